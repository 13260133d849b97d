"""Worker metric stats on DynamoDB (spec coordination 3; KCL 3.5.1 WorkerMetricStatsDAO)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kcl_host.aws.items import Item, Undecodable, decimal, number, read_float, read_integer, read_text, text
from kcl_host.aws.table import Table
from kcl_host.config.settings import TableSettings
from kcl_host.errors import Unavailable
from kcl_host.model.lease import LeaseListing
from kcl_host.model.worker import WorkerListing, WorkerMetricStats

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


LEASE_KEY: Final = "leaseKey"
WORKER_METRIC_STATS: Final = "WORKER_METRIC_STATS"
"""entityType of these rows."""


class DynamoDbWorkerMetricsTable:
    """Implements ports.WorkerMetricsTable. `key_attribute` is `wid`, in the single table `leaseKey`."""

    def __init__(
        self,
        client: DynamoDBClient,
        settings: TableSettings,
        *,
        key_attribute: str = "wid",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._table = Table(client, settings, key_attribute, sleep)
        self._is_lease_table = key_attribute == LEASE_KEY

    def __repr__(self) -> str:
        return f"<DynamoDbWorkerMetricsTable {self._table.name}>"

    def exists(self) -> bool:
        return self._table.describe() is not None

    def create_table(self) -> bool:
        """False when somebody else created it. Waits until it is ACTIVE either way."""
        return self._table.create_and_await()

    def delete_table(self) -> None:
        self._table.delete()

    def put(self, stats: WorkerMetricStats) -> int | None:
        """Unconditional update of the named attributes; None leaves an attribute alone, as Java does.

        `properties` are ours alone: an empty map removes what an earlier run with this worker id has left there.
        Returns the last update that the row bore before, which costs no read; None when it bore none that can be read.
        """
        sets: dict[str, Any] = {
            "entityType": text(WORKER_METRIC_STATS),
            "sts": _number_lists(stats.metric_stats),
            "opr": _number_lists(stats.operating_range),
        }
        if stats.last_update_s is not None:
            sets["lut"] = number(stats.last_update_s)
        if stats.support_code is not None:
            sets["sup"] = number(stats.support_code)
        if stats.support_code_update_s is not None:
            sets["slu"] = number(stats.support_code_update_s)
        if stats.properties:
            sets["properties"] = {"M": {name: text(value) for name, value in sorted(stats.properties.items())}}
        update = "SET " + ", ".join(f"#{name} = :{name}" for name in sets)
        if not stats.properties:
            update += " REMOVE #properties"
        with self._table.translated():
            answer = self._client.update_item(
                TableName=self._table.name,
                Key=self._table.key(stats.worker_id),
                UpdateExpression=update,
                ExpressionAttributeNames={f"#{name}": name for name in {**sets, "properties": None}},
                ExpressionAttributeValues={f":{name}": value for name, value in sets.items()},
                ReturnValues="ALL_OLD",
            )
        try:
            return read_integer(answer.get("Attributes", {}), "lut")
        except Undecodable:
            return None

    def get(self, worker_id: str) -> WorkerMetricStats | None:
        """Consistent read. Raises Unavailable when the row cannot be decoded."""
        item = self._table.get(worker_id)
        if item is None:
            return None
        try:
            return stats_from(item, self._table.key_attribute)
        except Undecodable as error:
            raise Unavailable(f"table {self._table.name}: row {worker_id} cannot be decoded: {error}") from error

    def list_workers(self, listing: LeaseListing | None = None) -> WorkerListing:
        """Scan, eventually consistent. A `listing` of the lease table that was just made saves its scan."""
        if self._is_lease_table and listing is not None:
            return listing.workers
        request: dict[str, Any] = {"TableName": self._table.name}
        if self._is_lease_table:
            # A row of the table for worker metric stats may be of a version that wrote no entityType.
            request["FilterExpression"] = "entityType = :type"
            request["ExpressionAttributeValues"] = {":type": text(WORKER_METRIC_STATS)}
        items: list[Item] = []
        while True:
            with self._table.translated():
                answer = self._client.scan(**request)
            items += answer["Items"]
            if not (last := answer.get("LastEvaluatedKey")):
                return worker_listing(items, self._table.key_attribute)
            request["ExclusiveStartKey"] = last

    def delete_if_unchanged(self, stats: WorkerMetricStats) -> bool:
        """Deletes a stale row, provided that its last update is still the one given."""
        condition = "attribute_exists(#pk) AND attribute_not_exists(lut)"
        values: dict[str, Any] = {}
        if stats.last_update_s is not None:
            condition = "attribute_exists(#pk) AND lut = :lut"
            values["ExpressionAttributeValues"] = {":lut": number(stats.last_update_s)}
        return self._table.applied(
            lambda: self._client.delete_item(
                TableName=self._table.name,
                Key=self._table.key(stats.worker_id),
                ConditionExpression=condition,
                ExpressionAttributeNames={"#pk": self._table.key_attribute},
                **values,
            )
        )


def worker_listing(items: Iterable[Item], key_attribute: str) -> WorkerListing:
    """Rows of worker metric stats as a scan found them."""
    workers, undecodable = [], []
    for item in items:
        try:
            workers.append(stats_from(item, key_attribute))
        except Undecodable:
            undecodable.append(read_text(item, key_attribute) or "?")
    return WorkerListing(workers=tuple(workers), undecodable=tuple(undecodable))


def stats_from(item: Item, key_attribute: str) -> WorkerMetricStats:
    """Raises Undecodable."""
    worker_id = read_text(item, key_attribute)
    if worker_id is None:
        raise Undecodable(f"{key_attribute} is missing")
    properties = item.get("properties", {}).get("M", {})
    return WorkerMetricStats(
        worker_id=worker_id,
        last_update_s=read_integer(item, "lut"),
        metric_stats=_read_number_lists(item, "sts"),
        operating_range=_read_number_lists(item, "opr"),
        support_code=read_integer(item, "sup"),
        support_code_update_s=read_integer(item, "slu"),
        properties={name: value["S"] for name, value in properties.items() if "S" in value},
    )


def _number_lists(lists: Mapping[str, list[float]]) -> dict[str, Any]:
    return {"M": {name: {"L": [decimal(value) for value in values]} for name, values in sorted(lists.items())}}


def _read_number_lists(item: Item, name: str) -> dict[str, list[float]]:
    """An absent map is empty; anything but a map of lists of numbers is undecodable."""
    if name not in item:
        return {}
    try:
        entries = {key: value["L"] for key, value in item[name]["M"].items()}
    except (KeyError, TypeError):
        raise Undecodable(f"{name} is not a map of lists") from None
    return {key: [_element(value, f"{name}.{key}") for value in values] for key, values in entries.items()}


def _element(value: Any, name: str) -> float:
    number_read = read_float({name: value}, name)
    assert number_read is not None
    return number_read
