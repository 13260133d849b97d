"""What all metadata tables have in common: being described, created once, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from kcl_host.aws.faults import Resource, translated
from kcl_host.config.settings import TableSettings
from kcl_host.errors import ConfigurationError, KclHostError, TableMissing

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import ProvisionedThroughputTypeDef, TableDescriptionTypeDef

FIRST_POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 1.0
CREATION_LIMIT_S: Final = 600.0
READY: Final = ("ACTIVE", "UPDATING")


class Table:
    """One DynamoDB table with a string partition key."""

    def __init__(
        self,
        client: DynamoDBClient,
        settings: TableSettings,
        key_attribute: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.settings = settings
        self.name = settings.name
        self.key_attribute = key_attribute
        self._sleep = sleep
        self._resource = Resource("dynamodb", settings.name)

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    def translated(self, codes: Mapping[str, type[KclHostError]] | None = None) -> AbstractContextManager[None]:
        """The errors of requests to this table, as ours."""
        return translated(self._resource, codes)

    def key(self, value: str) -> dict[str, Any]:
        return {self.key_attribute: {"S": value}}

    def get(self, key: str) -> dict[str, Any] | None:
        """The item by a consistent read; None when there is none."""
        with self.translated():
            answer = self.client.get_item(TableName=self.name, Key=self.key(key), ConsistentRead=True)
        return answer.get("Item")

    def applied(self, request: Callable[[], object]) -> bool:
        """Makes a conditional write; False when its condition failed."""
        with self.translated():
            try:
                request()
            except self.client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def describe(self) -> TableDescriptionTypeDef | None:
        """None when the table does not exist. Raises ConfigurationError for a name that DynamoDB does not allow."""
        with self.translated({"ValidationException": ConfigurationError}):
            try:
                return self.client.describe_table(TableName=self.name)["Table"]
            except self.client.exceptions.ResourceNotFoundException:
                return None

    def create(self, indexes: tuple[dict[str, Any], ...] = (), attributes: tuple[str, ...] = ()) -> bool:
        """CreateTable without waiting; False when it exists or is being created. `attributes` are string keys."""
        request: dict[str, Any] = {
            "TableName": self.name,
            "KeySchema": [{"AttributeName": self.key_attribute, "KeyType": "HASH"}],
            "AttributeDefinitions": string_attributes(self.key_attribute, *attributes),
            "BillingMode": self.settings.billing_mode,
            "DeletionProtectionEnabled": self.settings.deletion_protection,
        }
        if indexes:
            request["GlobalSecondaryIndexes"] = list(indexes)
        if self.settings.billing_mode == "PROVISIONED":
            capacity = throughput(self.settings.read_capacity, self.settings.write_capacity)
            request["ProvisionedThroughput"] = capacity
            for index in request.get("GlobalSecondaryIndexes", ()):
                index["ProvisionedThroughput"] = capacity
        if self.settings.tags:
            request["Tags"] = [{"Key": key, "Value": value} for key, value in sorted(self.settings.tags.items())]
        with self.translated({"ValidationException": ConfigurationError}):
            try:
                self.client.create_table(**request)
            except self.client.exceptions.ResourceInUseException:
                return False
        return True

    def await_active(self) -> None:
        """Returns when the table can be used; raises TableMissing after 600 s."""
        waited_s, pause_s, status = 0.0, FIRST_POLL_S, "missing"
        while waited_s < CREATION_LIMIT_S:
            description = self.describe()
            status = description["TableStatus"] if description else "missing"
            if status in READY:
                return
            self._sleep(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, LONGEST_POLL_S)
        raise TableMissing(f"table {self.name} is {status} after {CREATION_LIMIT_S:.0f} s")

    def create_and_await(self) -> bool:
        """A table without indexes, ready for use; False when somebody else created it."""
        created = self.create()
        self.await_active()
        if created and self.settings.point_in_time_recovery:
            self.enable_point_in_time_recovery()
        return created

    def delete(self) -> None:
        """Without waiting; nothing when it does not exist."""
        with self.translated():
            with suppress(self.client.exceptions.ResourceNotFoundException):
                self.client.delete_table(TableName=self.name)

    def enable_point_in_time_recovery(self) -> None:
        with self.translated():
            self.client.update_continuous_backups(
                TableName=self.name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
            )


def throughput(read_capacity: int, write_capacity: int) -> ProvisionedThroughputTypeDef:
    return {"ReadCapacityUnits": read_capacity, "WriteCapacityUnits": write_capacity}


def string_attributes(*names: str) -> list[dict[Literal["AttributeName", "AttributeType"], str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in dict.fromkeys(names)]
