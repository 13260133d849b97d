"""Leader lock and migration items on DynamoDB (spec coordination 1.3, 2.3 to 2.7; migration 1).

The lock item is that of Java's lock client: all strings, `leaseDuration` (milliseconds) included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kcl_host.aws.items import Item, Undecodable, number, read_integer, read_text, text
from kcl_host.aws.table import Table
from kcl_host.config.settings import TableSettings
from kcl_host.errors import Unavailable
from kcl_host.model.state import (
    CLIENT_VERSION_KEY,
    LEADER_KEY,
    ClientVersionState,
    LeaderLock,
    VersionHistoryEntry,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


class DynamoDbCoordinatorTable:
    """Implements ports.CoordinatorTable. `key_attribute` is `key`, in the single table `leaseKey`."""

    def __init__(
        self,
        client: DynamoDBClient,
        settings: TableSettings,
        *,
        key_attribute: str = "key",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._table = Table(client, settings, key_attribute, sleep)

    def __repr__(self) -> str:
        return f"<DynamoDbCoordinatorTable {self._table.name}>"

    def exists(self) -> bool:
        return self._table.describe() is not None

    def create_table(self) -> bool:
        """False when somebody else created it. Waits until it is ACTIVE either way."""
        return self._table.create_and_await()

    def delete_table(self) -> None:
        self._table.delete()

    # Leader lock

    def read_lock(self) -> LeaderLock | None:
        """None when there is no item. Raises Unavailable for one that no lock client could have written."""
        item = self._table.get(LEADER_KEY)
        if item is None:
            return None
        try:
            duration_ms = int(_required(item, "leaseDuration"))
            if abs(duration_ms) >= 2**63:
                raise Undecodable("leaseDuration is no number of 64 bits")
            return LeaderLock(
                owner_name=_required(item, "ownerName"),
                lease_duration_ms=duration_ms,
                record_version_number=_required(item, "recordVersionNumber"),
                is_released="isReleased" in item,
            )
        except ValueError as error:
            raise Unavailable(f"table {self._table.name}: the lock item {LEADER_KEY} is broken: {error}") from error

    def acquire_lock(self, lock: LeaderLock, over: LeaderLock | None) -> bool:
        """Replaces the whole item (spec coordination 2.3). The owner is not in the condition, its version is."""
        values: dict[str, Any] = {}
        if over is None:
            condition = "attribute_not_exists(#pk)"
        elif over.is_released:
            condition = "attribute_exists(#pk) AND isReleased = :released"
            values[":released"] = text("1")
        else:
            condition = "attribute_exists(#pk) AND recordVersionNumber = :seen"
            values[":seen"] = text(over.record_version_number)
        return self._put(
            {
                **self._table.key(LEADER_KEY),
                "entityType": text("LEADER"),
                "ownerName": text(lock.owner_name),
                "leaseDuration": text(str(lock.lease_duration_ms)),
                "recordVersionNumber": text(lock.record_version_number),
            },
            condition,
            values,
        )

    def heartbeat_lock(self, lock: LeaderLock, previous_record_version_number: str) -> bool:
        """Writes the new version of `lock` over the previous one, if it is still ours (spec coordination 2.4)."""
        return self._table.applied(
            lambda: self._client.update_item(
                TableName=self._table.name,
                Key=self._table.key(LEADER_KEY),
                UpdateExpression="SET leaseDuration = :duration, recordVersionNumber = :next",
                ConditionExpression="attribute_exists(#pk) AND recordVersionNumber = :previous AND ownerName = :owner",
                ExpressionAttributeNames={"#pk": self._table.key_attribute},
                ExpressionAttributeValues={
                    ":duration": text(str(lock.lease_duration_ms)),
                    ":next": text(lock.record_version_number),
                    ":previous": text(previous_record_version_number),
                    ":owner": text(lock.owner_name),
                },
            )
        )

    def release_lock(self, lock: LeaderLock) -> bool:
        """Deletes the item if it is still exactly ours (spec coordination 2.7)."""
        return self._table.applied(
            lambda: self._client.delete_item(
                TableName=self._table.name,
                Key=self._table.key(LEADER_KEY),
                ConditionExpression="attribute_exists(#pk) AND recordVersionNumber = :version AND ownerName = :owner",
                ExpressionAttributeNames={"#pk": self._table.key_attribute},
                ExpressionAttributeValues={
                    ":version": text(lock.record_version_number),
                    ":owner": text(lock.owner_name),
                },
            )
        )

    # Migration items

    def read_client_version(self) -> ClientVersionState | None:
        """Raises Unavailable for an item that cannot be understood: its meaning must not be guessed."""
        item = self._table.get(CLIENT_VERSION_KEY)
        if item is None:
            return None
        try:
            entry = _version_entry(item)
            history = tuple(_version_entry(old["M"]) for old in item.get("h", {}).get("L", ()))
        except (ValueError, KeyError) as error:
            raise Unavailable(f"table {self._table.name}: item {CLIENT_VERSION_KEY} is broken: {error}") from error
        return ClientVersionState(
            client_version=entry.client_version,
            modified_by=entry.modified_by,
            modified_ms=entry.modified_ms,
            history=history,
        )

    def create_client_version(self, state: ClientVersionState) -> bool:
        """False when the item exists. `h` is absent while there is no history."""
        item: dict[str, Any] = {
            **self._table.key(CLIENT_VERSION_KEY),
            "entityType": text("CLIENT_VERSION_MIGRATION"),
            **_version_attributes(state),
        }
        if state.history:
            item["h"] = {"L": [{"M": _version_attributes(entry)} for entry in state.history]}
        return self._put(item, "attribute_not_exists(#pk)", {})

    def update_client_version(self, state: ClientVersionState, expected: str) -> bool:
        """False when the item is gone, or says something else than `expected`."""
        values = {f":{name}": value for name, value in _version_attributes(state).items()}
        values[":h"] = {"L": [{"M": _version_attributes(entry)} for entry in state.history]}
        return self._table.applied(
            lambda: self._client.update_item(
                TableName=self._table.name,
                Key=self._table.key(CLIENT_VERSION_KEY),
                UpdateExpression="SET " + ", ".join(f"{name[1:]} = {name}" for name in values),
                ConditionExpression="attribute_exists(#pk) AND cv = :expected",
                ExpressionAttributeNames={"#pk": self._table.key_attribute},
                ExpressionAttributeValues={**values, ":expected": text(expected)},
            )
        )

    def _put(self, item: dict[str, Any], condition: str, values: dict[str, Any]) -> bool:
        request: dict[str, Any] = {"ExpressionAttributeValues": values} if values else {}
        return self._table.applied(
            lambda: self._client.put_item(
                TableName=self._table.name,
                Item=item,
                ConditionExpression=condition,
                ExpressionAttributeNames={"#pk": self._table.key_attribute},
                **request,
            )
        )


def _required(item: Item, name: str) -> str:
    value = read_text(item, name)
    if value is None:
        raise Undecodable(f"{name} is missing, or not a string")
    return value


def _version_entry(item: Item) -> VersionHistoryEntry:
    return VersionHistoryEntry(
        client_version=_required(item, "cv"),
        modified_by=_required(item, "mb"),
        modified_ms=read_integer(item, "mts") or 0,
    )


def _version_attributes(entry: ClientVersionState | VersionHistoryEntry) -> dict[str, Any]:
    return {
        "cv": text(entry.client_version),
        "mb": text(entry.modified_by),
        "mts": number(entry.modified_ms),
    }
