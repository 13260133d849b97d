"""The lease table on DynamoDB: every request the host ever makes to it, each write with its whole condition.

All updates touch named attributes only, so attributes we do not know survive. Source: spec lease-table 1 to 5;
KCL 3.5.1 DynamoDBLeaseRefresher, DynamoDBLeaseSerializer. Overview of what a write does to a row:

    write                 leaseCounter  leaseOwner  checkpointOwner  condition on
    create                0             -           -                row absent
    renew                 +1            -           -                counter, and no checkpointOwner unless we know one
    assign                +1            SET         REMOVE           row, owner, checkpointOwner as read
    initiate_handoff      unchanged     SET next    SET current      row, owner as read, no checkpointOwner
    evict                 +1            REMOVE*     REMOVE           row, owner, checkpointOwner as read
    checkpoint, prepare   +1            -           -                counter
    write_child_shards    -             -           -                row
    delete                                                           none
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from botocore.exceptions import ClientError

from kcl_host.aws.faults import error_code
from kcl_host.aws.items import (
    Item,
    Undecodable,
    checkpoint_attributes,
    decimal,
    entity_type,
    hash_key_attributes,
    is_lease,
    lease_from,
    lease_item,
    multi_stream_attributes,
    number,
    pending_attributes,
    read_text,
    text,
    text_set,
)
from kcl_host.aws.table import Table, string_attributes, throughput
from kcl_host.aws.worker_metrics_table import LEASE_KEY, WORKER_METRIC_STATS, worker_listing
from kcl_host.config.settings import TableSettings
from kcl_host.errors import TableMissing, Throttled, Unavailable
from kcl_host.model.lease import Lease, LeaseListing, TableState, WriteOutcome
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import HashKeyRange, StreamIdentifier

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient

INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
SEGMENT_BYTES: Final = 0.2 * 2**30
MAX_SEGMENTS: Final = 32
BATCH: Final = 100
"""Rows of one BatchGetItem at most."""
_ONE: Final = number(1)


class DynamoDbLeaseTable:
    """Implements ports.LeaseTable. Thread-safe. `scan_segments` 0: by the size that `describe` last saw."""

    def __init__(
        self,
        client: DynamoDBClient,
        settings: TableSettings,
        *,
        scan_segments: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._table = Table(client, settings, "leaseKey", sleep)
        self._scan_segments = scan_segments
        self._size_bytes = 0

    def __repr__(self) -> str:
        return f"<DynamoDbLeaseTable {self._table.name}>"

    # The table

    def describe(self) -> TableState | None:
        """None when the table does not exist."""
        description = self._table.describe()
        if description is None:
            return None
        self._size_bytes = description.get("TableSizeBytes", 0)
        indexes = {index["IndexName"]: index["IndexStatus"] for index in description.get("GlobalSecondaryIndexes", ())}
        return TableState(
            status=description["TableStatus"], index_status=indexes.get(INDEX), size_bytes=self._size_bytes
        )

    def create_table(self) -> bool:
        """Creates the table together with its index; False when somebody else did. Does not wait."""
        return self._table.create(indexes=(_index(),), attributes=("leaseOwner",))

    def create_index(self) -> None:
        """Adds the index to a table that was found without it, with the capacity the table has now."""
        description = self._table.describe()
        if description is None:
            raise TableMissing(f"lease table {self._table.name} does not exist")
        if any(index["IndexName"] == INDEX for index in description.get("GlobalSecondaryIndexes", ())):
            return
        index = _index()
        now = description.get("ProvisionedThroughput", {})
        if now.get("ReadCapacityUnits") and now.get("WriteCapacityUnits"):
            index["ProvisionedThroughput"] = throughput(now["ReadCapacityUnits"], now["WriteCapacityUnits"])
        with self._table.translated():
            try:
                self._client.update_table(
                    TableName=self._table.name,
                    AttributeDefinitions=string_attributes("leaseOwner", "leaseKey"),  # type: ignore[arg-type]
                    GlobalSecondaryIndexUpdates=[{"Create": index}],  # type: ignore[typeddict-item]
                )
            except ClientError as error:
                raced = error_code(error) == "ValidationException" and "already exists" in str(error)
                if not raced and error_code(error) != "ResourceInUseException":
                    raise

    def enable_point_in_time_recovery(self) -> None:
        """For a table that we created; a table found is never altered."""
        self._table.enable_point_in_time_recovery()

    # Reads

    def list_leases(self, stream: StreamIdentifier | None = None) -> LeaseListing:
        """Scan, eventually consistent; with `stream` only the leases of that (multi-stream) stream."""
        request: dict[str, Any] = {}
        if stream is not None:
            request = {
                "FilterExpression": "streamName = :stream",
                "ExpressionAttributeValues": {":stream": text(str(stream))},
            }
        leases, undecodable, entity_types, workers = [], [], set(), []
        for item in self._scan_segmented(request):
            if (kind := entity_type(item)) is not None:
                entity_types.add(kind)
            if kind == WORKER_METRIC_STATS:
                workers.append(item)
            if not is_lease(item):
                continue
            try:
                leases.append(lease_from(item))
            except Undecodable:
                undecodable.append(read_text(item, "leaseKey") or "?")
        return LeaseListing(
            leases=tuple(leases),
            undecodable=tuple(undecodable),
            entity_types=frozenset(entity_types),
            workers=worker_listing(workers, LEASE_KEY),
        )

    def is_empty(self) -> bool:
        """True when no row is a lease; rows of other entity types do not count, broken leases do."""
        request = {"ProjectionExpression": "leaseKey, entityType", "Limit": 100}
        return not any(is_lease(item) for item in self._scan(request))

    def get(self, lease_key: str) -> Lease | None:
        """Consistent read; None when there is no such lease. Raises Unavailable when the row cannot be decoded."""
        return self._lease_or_none(self._table.get(lease_key))

    def get_all(self, lease_keys: Iterable[str], *, consistent: bool) -> list[Lease]:
        """Rows of these keys in any order, without those that are not there or cannot be decoded.

        A hundred to a request. What a request leaves undone is asked for again while any of it is answered; Throttled
        when nothing is.
        """
        keys = sorted(set(lease_keys))
        leases = []
        for first in range(0, len(keys), BATCH):
            for item in self._batch([self._table.key(key) for key in keys[first : first + BATCH]], consistent):
                with suppress(Undecodable):
                    if is_lease(item):
                        leases.append(lease_from(item))
        return leases

    def lease_keys_of(self, worker_id: str) -> list[str]:
        """Keys whose leaseOwner is `worker_id`, through the index. Raises TableMissing while it cannot be queried."""
        request: dict[str, Any] = {
            "TableName": self._table.name,
            "IndexName": INDEX,
            "KeyConditionExpression": "leaseOwner = :owner",
            "ExpressionAttributeValues": {":owner": text(worker_id)},
        }
        keys: list[str] = []
        while True:
            with self._table.translated({"ValidationException": TableMissing}):
                answer = self._client.query(**request)
            keys += [item["leaseKey"]["S"] for item in answer["Items"]]
            if not (last := answer.get("LastEvaluatedKey")):
                return keys
            request["ExclusiveStartKey"] = last

    # Writes

    def create(self, lease: Lease) -> bool:
        """The whole row, if there is none with this key; False when there is (spec 5.1)."""
        return self._table.applied(
            lambda: self._client.put_item(
                TableName=self._table.name,
                Item=lease_item(lease),
                ConditionExpression="attribute_not_exists(leaseKey)",
            )
        )

    def renew(self, lease: Lease, throughput_kbps: float | None) -> WriteOutcome:
        """Heartbeat (spec 5.2). The owner is not in the condition: each write that moves a lease bumps the counter."""
        update = "SET leaseCounter = :next"
        values = _counter_values(lease)
        if throughput_kbps is not None and math.isfinite(throughput_kbps):
            update += ", throughputKBps = :throughput"
            values[":throughput"] = decimal(throughput_kbps)
        condition = "leaseCounter = :seen"
        if not lease.is_handover_pending:
            condition += " AND attribute_not_exists(checkpointOwner)"
        return self._update(lease.lease_key, update, condition, values)

    def assign(self, lease: Lease, to: str) -> WriteOutcome:
        """Gives the lease to `to` (spec 5.5). Heartbeats meanwhile do not matter: the counter is not in the condition.

        An owner of type NULL, as the Rust client leaves it, counts as none: such a lease could not be assigned else.
        """
        update = "SET leaseOwner = :to REMOVE checkpointOwner ADD leaseCounter :one"
        values: dict[str, Any] = {":to": text(to), ":one": _ONE}
        if lease.lease_owner not in (None, to) or lease.checkpoint_owner == to:
            update += ", ownerSwitchesSinceCheckpoint :one"
        return self._update(lease.lease_key, update, *_owners_as_read(lease, values), returned="ALL_NEW")

    def initiate_handoff(self, lease: Lease, to: str) -> WriteOutcome:
        """Names the next owner while the current one goes on (spec 5.6). The counter must not move."""
        assert lease.lease_owner, "a lease without an owner is assigned, not handed over"
        return self._update(
            lease.lease_key,
            "SET leaseOwner = :to, checkpointOwner = :owner",
            "leaseKey = :key AND leaseOwner = :owner AND attribute_not_exists(checkpointOwner)",
            {":key": text(lease.lease_key), ":to": text(to), ":owner": text(lease.lease_owner)},
            returned="ALL_NEW",
        )

    def evict(self, lease: Lease) -> WriteOutcome:
        """Takes the lease from its actual owner (spec 5.7); the next owner of a pending handover stays."""
        update = "REMOVE checkpointOwner ADD leaseCounter :one"
        if not lease.is_handover_pending:
            update = "REMOVE checkpointOwner, leaseOwner ADD leaseCounter :one"
        return self._update(lease.lease_key, update, *_owners_as_read(lease, {":one": _ONE}))

    def checkpoint(self, lease: Lease, checkpoint: ExtendedSequenceNumber) -> WriteOutcome:
        """Writes a checkpoint, which is a heartbeat as well and ends a prepared one (spec 5.8)."""
        sets = {"ownerSwitchesSinceCheckpoint": number(0), **checkpoint_attributes(checkpoint)}
        removes = ("pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState")
        return self._update_as_holder(lease, sets, removes)

    def prepare_checkpoint(self, lease: Lease, pending: ExtendedSequenceNumber, state: bytes | None) -> WriteOutcome:
        """Writes a pending checkpoint; the checkpoint itself is written again as it was (spec 5.8)."""
        sets = {
            "ownerSwitchesSinceCheckpoint": number(lease.owner_switches_since_checkpoint),
            **(checkpoint_attributes(lease.checkpoint) if lease.checkpoint else {}),
            **pending_attributes(pending, state),
        }
        return self._update_as_holder(lease, sets, () if state is not None else ("pendingCheckpointState",))

    def write_child_shards(self, lease_key: str, child_shard_ids: frozenset[str]) -> bool:
        """False when the row is gone (spec 5.9). The set must not be empty."""
        return self._write_meta(lease_key, {"childShardIds": text_set(child_shard_ids)})

    def write_hash_key_range(self, lease_key: str, hash_key_range: HashKeyRange) -> bool:
        """False when the row is gone, or the range is a single key, which no row may hold (spec 5.9)."""
        attributes = hash_key_attributes(hash_key_range)
        return bool(attributes) and self._write_meta(lease_key, attributes)

    def delete(self, lease_key: str) -> None:
        """Unconditional; a row that is gone already is fine (spec 5.10)."""
        with self._table.translated():
            self._client.delete_item(TableName=self._table.name, Key=self._table.key(lease_key))

    # How they are made

    def _update_as_holder(self, lease: Lease, sets: dict[str, Any], removes: tuple[str, ...]) -> WriteOutcome:
        """updateLease: what is given, the counter, and what Java's worker writes again from memory each time."""
        sets = {**sets, **hash_key_attributes(lease.hash_key_range), **multi_stream_attributes(lease)}
        if lease.child_shard_ids:
            sets["childShardIds"] = text_set(lease.child_shard_ids)
        update = "SET leaseCounter = :next" + "".join(f", {name} = :{name}" for name in sets)
        if removes:
            update += f" REMOVE {', '.join(removes)}"
        values = _counter_values(lease) | {f":{name}": value for name, value in sets.items()}
        return self._update(lease.lease_key, update, "leaseCounter = :seen", values)

    def _write_meta(self, lease_key: str, attributes: dict[str, Any]) -> bool:
        return self._table.applied(
            lambda: self._client.update_item(
                TableName=self._table.name,
                Key=self._table.key(lease_key),
                UpdateExpression="SET " + ", ".join(f"{name} = :{name}" for name in attributes),
                ConditionExpression="leaseKey = :key",
                ExpressionAttributeValues={
                    ":key": text(lease_key),
                    **{f":{name}": value for name, value in attributes.items()},
                },
            )
        )

    def _update(
        self,
        lease_key: str,
        update: str,
        condition: str,
        values: dict[str, Any],
        returned: Literal["NONE", "ALL_NEW"] = "NONE",
    ) -> WriteOutcome:
        with self._table.translated():
            try:
                answer = self._client.update_item(
                    TableName=self._table.name,
                    Key=self._table.key(lease_key),
                    UpdateExpression=update,
                    ConditionExpression=condition,
                    ExpressionAttributeValues=values,
                    ReturnValues=returned,
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self._client.exceptions.ConditionalCheckFailedException as refused:
                response: Mapping[str, Any] = refused.response
                old = response.get("Item")
            else:
                return WriteOutcome(applied=True, row=self._lease_or_none(answer.get("Attributes")))
        # No item: there is no row, or this is an engine that does not return it (dynalite).
        return WriteOutcome(applied=False, row=self._lease_or_none(old) if old else self.get(lease_key))

    def _lease_or_none(self, item: Item | None) -> Lease | None:
        """None also for a row of another entity type."""
        if not item or not is_lease(item):
            return None
        try:
            return lease_from(item)
        except Undecodable as error:
            key = read_text(item, "leaseKey")
            raise Unavailable(f"lease table {self._table.name}: row {key} cannot be decoded: {error}") from error

    def _batch(self, keys: list[Any], consistent: bool) -> Iterator[Item]:
        name = self._table.name
        while keys:
            with self._table.translated():
                answer = self._client.batch_get_item(RequestItems={name: {"Keys": keys, "ConsistentRead": consistent}})
            unprocessed: Mapping[str, Any] = answer.get("UnprocessedKeys", {})
            left = unprocessed.get(name, {}).get("Keys", [])
            if len(left) == len(keys):
                raise Throttled(f"lease table {name}: none of {len(keys)} rows could be read")
            yield from answer["Responses"].get(name, ())
            keys = list(left)

    def _scan_segmented(self, request: dict[str, Any]) -> Iterable[Item]:
        segments = self._scan_segments or min(max(math.ceil(self._size_bytes / SEGMENT_BYTES), 1), MAX_SEGMENTS)
        if segments == 1:
            return self._scan(request)
        parts = [{**request, "Segment": n, "TotalSegments": segments} for n in range(segments)]
        with ThreadPoolExecutor(segments, "lease-scan") as pool:
            return [item for items in pool.map(lambda part: list(self._scan(part)), parts) for item in items]

    def _scan(self, request: dict[str, Any]) -> Iterator[Item]:
        request = {**request, "TableName": self._table.name}
        while True:
            with self._table.translated():
                answer = self._client.scan(**request)
            yield from answer["Items"]
            if not (last := answer.get("LastEvaluatedKey")):
                return
            request["ExclusiveStartKey"] = last


def _counter_values(lease: Lease) -> dict[str, Any]:
    return {":seen": number(lease.lease_counter), ":next": number(lease.lease_counter + 1)}


def _owners_as_read(lease: Lease, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The condition of assign and evict: the row is there, its owner and checkpoint owner are those of `lease`."""
    condition = "leaseKey = :key"
    values = {**values, ":key": text(lease.lease_key)}
    if lease.lease_owner is None:
        condition += " AND (attribute_not_exists(leaseOwner) OR attribute_type(leaseOwner, :null))"
        values[":null"] = text("NULL")
    else:
        condition += " AND leaseOwner = :owner"
        values[":owner"] = text(lease.lease_owner)
    if lease.checkpoint_owner is None:
        condition += " AND attribute_not_exists(checkpointOwner)"
    else:
        condition += " AND checkpointOwner = :checkpoint_owner"
        values[":checkpoint_owner"] = text(lease.checkpoint_owner)
    return condition, values


def _index() -> dict[str, Any]:
    return {
        "IndexName": INDEX,
        "KeySchema": [
            {"AttributeName": "leaseOwner", "KeyType": "HASH"},
            {"AttributeName": "leaseKey", "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
