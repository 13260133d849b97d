"""TableMigration3.5 and the move of the coordinator items into the lease table, on DynamoDB (spec migration 2).

The working copy of the item is in the CoordinatorState table until the end; the copy that the end puts into the lease
table is for people. Whatever touches both tables is one transaction that holds only while we own the leader lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcl_host.aws.items import Item, Undecodable, number, read_integer, read_text, text
from kcl_host.aws.table import Table
from kcl_host.config.settings import TableSettings
from kcl_host.errors import Unavailable
from kcl_host.model.state import (
    LEADER_KEY,
    TABLE_MIGRATION_KEY,
    CoordinatorItem,
    TableHistoryEntry,
    TableMigrationState,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient


class DynamoDbTableMigration:
    """Implements ports.TableMigrationItems."""

    def __init__(self, client: DynamoDBClient, coordinator_table: TableSettings, lease_table: TableSettings) -> None:
        self._client = client
        self._legacy = Table(client, coordinator_table, "key")
        self._lease_table = Table(client, lease_table, "leaseKey")

    def __repr__(self) -> str:
        return f"<DynamoDbTableMigration {self._legacy.name} to {self._lease_table.name}>"

    def read(self) -> TableMigrationState | None:
        """Consistent; None when there is no item. Raises Unavailable for one that has no status."""
        item = self._legacy.get(TABLE_MIGRATION_KEY)
        if item is None:
            return None
        try:
            entry = _entry(item)
            history = tuple(_entry(old["M"]) for old in item.get("h", {}).get("L", ()))
        except (Undecodable, KeyError) as error:
            raise Unavailable(f"table {self._legacy.name}: item {TABLE_MIGRATION_KEY} is broken: {error}") from error
        return TableMigrationState(
            status=entry.status, modified_by=entry.modified_by, modified_ms=entry.modified_ms, history=history
        )

    def create(self, state: TableMigrationState) -> bool:
        """False when the item exists."""
        return self._legacy.applied(
            lambda: self._client.put_item(
                TableName=self._legacy.name,
                Item={**self._legacy.key(TABLE_MIGRATION_KEY), **_attributes(state)},
                ConditionExpression="attribute_not_exists(#pk)",
                ExpressionAttributeNames={"#pk": "key"},
            )
        )

    def update(self, state: TableMigrationState, expected_status: str) -> bool:
        """False when the item is gone, or has another status than `expected_status`."""
        values = {f":{name}": value for name, value in _attributes(state).items() if name != "entityType"}
        return self._legacy.applied(
            lambda: self._client.update_item(
                TableName=self._legacy.name,
                Key=self._legacy.key(TABLE_MIGRATION_KEY),
                UpdateExpression="SET " + ", ".join(f"{name[1:]} = {name}" for name in values),
                ConditionExpression="attribute_exists(#pk) AND tm = :expected",
                ExpressionAttributeNames={"#pk": "key"},
                ExpressionAttributeValues={**values, ":expected": text(expected_status)},
            )
        )

    def delete(self, expected_status: str) -> bool:
        """False when the item is gone, or has another status than `expected_status`.

        Java deletes whatever it finds (spec migration 2.4, INIT). A leader that was stopped in the middle must not
        delete what another has written since: after the end that would make a second leader.
        """
        return self._legacy.applied(
            lambda: self._client.delete_item(
                TableName=self._legacy.name,
                Key=self._legacy.key(TABLE_MIGRATION_KEY),
                ConditionExpression="tm = :expected",
                ExpressionAttributeValues={":expected": text(expected_status)},
            )
        )

    def list_items(self) -> list[CoordinatorItem]:
        """Everything in the CoordinatorState table, by a consistent scan."""
        items: list[CoordinatorItem] = []
        request: dict[str, Any] = {"TableName": self._legacy.name, "ConsistentRead": True}
        while True:
            with self._legacy.translated():
                answer = self._client.scan(**request)
            items += [
                CoordinatorItem(key=item["key"]["S"], attributes={n: v for n, v in item.items() if n != "key"})
                for item in answer["Items"]
            ]
            if not (last := answer.get("LastEvaluatedKey")):
                return items
            request["ExclusiveStartKey"] = last

    def move(self, items: Sequence[CoordinatorItem], leader: str) -> bool:
        """Moves at most 49 items in one transaction, while `leader` owns the lock and no such item is in the lease
        table; False when one of that does not hold: nothing has been moved then."""
        moves: list[dict[str, Any]] = []
        for item in items:
            moves.append(self._put_absent(item.key, item.attributes))
            moves.append({"Delete": {"TableName": self._legacy.name, "Key": self._legacy.key(item.key)}})
        return self._transact([self._leads(leader), *moves])

    def finalise(self, state: TableMigrationState, expected_status: str, leader: str) -> bool:
        """Writes the last status into both tables, while `leader` owns the lock; False when somebody was faster."""
        over = {
            "Put": {
                "TableName": self._legacy.name,
                "Item": {**self._legacy.key(TABLE_MIGRATION_KEY), **_attributes(state)},
                "ConditionExpression": "tm = :expected",
                "ExpressionAttributeValues": {":expected": text(expected_status)},
            }
        }
        return self._transact([self._leads(leader), self._put_absent(TABLE_MIGRATION_KEY, _attributes(state)), over])

    def _leads(self, leader: str) -> dict[str, Any]:
        return {
            "ConditionCheck": {
                "TableName": self._legacy.name,
                "Key": self._legacy.key(LEADER_KEY),
                "ConditionExpression": "ownerName = :leader",
                "ExpressionAttributeValues": {":leader": text(leader)},
            }
        }

    def _put_absent(self, key: str, attributes: Item) -> dict[str, Any]:
        return {
            "Put": {
                "TableName": self._lease_table.name,
                "Item": {**self._lease_table.key(key), **attributes},
                "ConditionExpression": "attribute_not_exists(leaseKey)",
            }
        }

    def _transact(self, requests: list[Any]) -> bool:
        with self._legacy.translated():
            try:
                self._client.transact_write_items(TransactItems=requests)
            except self._client.exceptions.TransactionCanceledException as error:
                reasons = {reason.get("Code") for reason in error.response.get("CancellationReasons", ())}
                if reasons <= {"None", "ConditionalCheckFailed"}:
                    return False
                raise Unavailable(f"table {self._legacy.name}: transaction cancelled: {error}") from error
        return True


def _attributes(state: TableMigrationState) -> dict[str, Any]:
    attributes: dict[str, Any] = {"entityType": text("TABLE_MIGRATION"), **_entry_attributes(state)}
    if state.history:
        attributes["h"] = {"L": [{"M": _entry_attributes(entry)} for entry in state.history]}
    return attributes


def _entry_attributes(entry: TableMigrationState | TableHistoryEntry) -> dict[str, Any]:
    return {"tm": text(entry.status), "mb": text(entry.modified_by), "mts": number(entry.modified_ms)}


def _entry(item: Item) -> TableHistoryEntry:
    if (status := read_text(item, "tm")) is None:
        raise Undecodable("tm is missing, or not a string")
    return TableHistoryEntry(
        status=status, modified_by=read_text(item, "mb") or "", modified_ms=read_integer(item, "mts") or 0
    )
