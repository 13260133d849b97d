"""Rows and tables as they really stand in DynamoDB: names, types, what survives, what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract_engines import DynamoDb

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.lease_table import INDEX, DynamoDbLeaseTable
from kcl_host.aws.table_migration import DynamoDbTableMigration
from kcl_host.aws.worker_metrics_table import DynamoDbWorkerMetricsTable
from kcl_host.errors import TableMissing, Unavailable
from kcl_host.model.lease import Lease, TableState
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import HashKeyRange
from kcl_host.model.state import ClientVersionState, LeaderLock, VersionHistoryEntry
from kcl_host.model.worker import WorkerMetricStats

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LEASE = {
    "leaseKey": {"S": "s1"},
    "leaseCounter": {"N": "3"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
}


def new_table(dynamodb: DynamoDb, **settings: Any) -> tuple[DynamoDbLeaseTable, str]:
    name = dynamodb.settings().name
    return dynamodb.lease_table(name=name, **settings), name


def put(dynamodb: DynamoDb, name: str, item: dict[str, Any]) -> None:
    dynamodb.client.put_item(TableName=name, Item=item)


def row(dynamodb: DynamoDb, name: str, key: str, attribute: str = "leaseKey") -> dict[str, Any]:
    item: dict[str, Any] = dynamodb.client.get_item(TableName=name, Key={attribute: {"S": key}}, ConsistentRead=True)[
        "Item"
    ]
    return {attribute: _sorted(value) for attribute, value in item.items()}


def _sorted(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: sorted(content) if kind == "SS" else content for kind, content in value.items()}


def golden(table_suffix: str, key: str) -> dict[str, str]:
    """Attribute -> type of the first row with this key that the Java KCL 3.1.3 wrote."""
    lines = (GOLDEN / "java-kcl-3.1.3-split-merge-cleanup.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    changed = next(
        e["changed"]
        for e in entries
        if e.get("new") and e["table"] == f"reshard{table_suffix}" and (e["key"] == key or not key)
    )
    return {name: next(iter(value)) for name, value in changed.items()}


def types(item: dict[str, Any]) -> dict[str, str]:
    return {name: next(iter(value)) for name, value in item.items()}


# What we write, against the golden trace; 3.5 adds entityType


def test_a_new_lease_has_the_attributes_and_types_of_java(dynamodb: DynamoDb) -> None:
    table, name = new_table(dynamodb)
    child = Lease(
        lease_key="shardId-000000000003",
        checkpoint=AT_TRIM_HORIZON,
        parent_shard_ids=frozenset({"shardId-000000000000"}),
        hash_key_range=HashKeyRange(0, 56713727820156410577229101238628035241),
    )
    assert table.create(child)
    item = row(dynamodb, name, child.lease_key)
    assert types(item) == golden("", child.lease_key) | {"entityType": "S"}
    assert item["parentShardId"] == {"SS": ["shardId-000000000000"]}
    assert item["endingHashKey"] == {"S": "56713727820156410577229101238628035241"}
    assert item["entityType"] == {"S": "LEASE"}


def test_a_lease_of_many_streams(dynamodb: DynamoDb) -> None:
    table, name = new_table(dynamodb)
    stream = "123456789012:orders:1700000000"
    lease = Lease(lease_key=f"{stream}:s1", checkpoint=AT_TRIM_HORIZON, stream_name=stream, multi_stream_shard_id="s1")
    assert table.create(lease)
    item = row(dynamodb, name, lease.lease_key)
    assert (item["streamName"], item["shardId"]) == ({"S": stream}, {"S": "s1"})


def test_the_lock_is_all_strings(dynamodb: DynamoDb) -> None:
    settings = dynamodb.settings()
    table = DynamoDbCoordinatorTable(dynamodb.client, settings)
    table.create_table()
    assert table.acquire_lock(LeaderLock(owner_name="me", lease_duration_ms=10_000, record_version_number="v1"), None)
    item = row(dynamodb, settings.name, "Leader", "key")
    assert types(item) == golden("-CoordinatorState", "Leader") | {"entityType": "S"}
    assert (item["leaseDuration"], item["entityType"]) == ({"S": "10000"}, {"S": "LEADER"})


def test_a_lock_in_the_single_table(dynamodb: DynamoDb) -> None:
    lease_table, name = new_table(dynamodb)
    table = DynamoDbCoordinatorTable(dynamodb.client, dynamodb.settings(name=name), key_attribute="leaseKey")
    lock = LeaderLock(owner_name="me", lease_duration_ms=10_000, record_version_number="v1")
    assert table.acquire_lock(lock, None)
    assert table.read_lock() == lock
    assert lease_table.is_empty()
    assert lease_table.list_leases().entity_types == {"LEADER"}
    assert lease_table.get("Leader") is None


def test_a_lock_that_was_released_without_being_deleted(dynamodb: DynamoDb) -> None:
    settings = dynamodb.settings()
    table = DynamoDbCoordinatorTable(dynamodb.client, settings)
    table.create_table()
    item = {
        "key": {"S": "Leader"},
        "ownerName": {"S": "java"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "v7"},
        "isReleased": {"S": "1"},
    }
    put(dynamodb, settings.name, item)
    released = table.read_lock()
    assert released == LeaderLock(
        owner_name="java", lease_duration_ms=120_000, record_version_number="v7", is_released=True
    )
    lock = LeaderLock(owner_name="me", lease_duration_ms=10_000, record_version_number="v8")
    assert table.acquire_lock(lock, released)
    assert "isReleased" not in row(dynamodb, settings.name, "Leader", "key")


@pytest.mark.parametrize("broken", [{"leaseDuration": {"N": "120000"}}, {"ownerName": {"NULL": True}}])
def test_a_broken_lock_is_neither_held_nor_free(dynamodb: DynamoDb, broken: dict[str, Any]) -> None:
    settings = dynamodb.settings()
    table = DynamoDbCoordinatorTable(dynamodb.client, settings)
    table.create_table()
    item = {
        "key": {"S": "Leader"},
        "ownerName": {"S": "java"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "v7"},
    }
    put(dynamodb, settings.name, item | broken)
    with pytest.raises(Unavailable, match="Leader is broken"):
        table.read_lock()


def test_the_client_version_item(dynamodb: DynamoDb) -> None:
    settings = dynamodb.settings()
    table = DynamoDbCoordinatorTable(dynamodb.client, settings)
    table.create_table()
    entry = VersionHistoryEntry(client_version="CLIENT_VERSION_INIT", modified_by="me", modified_ms=5)
    table.create_client_version(
        ClientVersionState(client_version="CLIENT_VERSION_3X", modified_by="me", modified_ms=6, history=(entry,))
    )
    item = row(dynamodb, settings.name, "Migration3.0", "key")
    assert types(item) == golden("-CoordinatorState", "Migration3.0") | {"entityType": "S"}
    assert item["h"] == {"L": [{"M": {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "me"}, "mts": {"N": "5"}}}]}
    assert item["entityType"] == {"S": "CLIENT_VERSION_MIGRATION"}


def test_a_broken_item_of_the_table_migration(dynamodb: DynamoDb) -> None:
    settings = dynamodb.settings()
    DynamoDbCoordinatorTable(dynamodb.client, settings).create_table()
    items = DynamoDbTableMigration(dynamodb.client, settings, settings)
    put(dynamodb, settings.name, {"key": {"S": "TableMigration3.5"}, "tm": {"S": "DEPLOYED"}})
    found = items.read()
    assert found is not None and found.status == "DEPLOYED"
    put(dynamodb, settings.name, {"key": {"S": "TableMigration3.5"}, "mb": {"S": "x"}})
    with pytest.raises(Unavailable, match="tm is missing"):
        items.read()


def test_worker_metrics(dynamodb: DynamoDb) -> None:
    settings = dynamodb.settings()
    table = DynamoDbWorkerMetricsTable(dynamodb.client, settings)
    table.create_table()
    table.put(WorkerMetricStats(worker_id="w1", last_update_s=5, metric_stats={"C": [10.0, -1.0]}))
    item = row(dynamodb, settings.name, "w1", "wid")
    assert types(item) == golden("-WorkerMetricStats", "") | {"entityType": "S"}
    assert item["sts"] == {"M": {"C": {"L": [{"N": "10"}, {"N": "-1"}]}}}
    # an attribute of a later version survives our next report
    put(dynamodb, settings.name, item | {"new": {"S": "kept"}})
    table.put(WorkerMetricStats(worker_id="w1", last_update_s=6, operating_range={"C": [80.0]}))
    assert row(dynamodb, settings.name, "w1", "wid") | {"sts": {}} == {
        "wid": {"S": "w1"},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "6"},
        "sts": {},
        "opr": {"M": {"C": {"L": [{"N": "80"}]}}},
        "new": {"S": "kept"},
    }


def test_workers_that_cannot_be_decoded_are_named(dynamodb: DynamoDb) -> None:
    settings = dynamodb.settings()
    table = DynamoDbWorkerMetricsTable(dynamodb.client, settings)
    table.create_table()
    put(dynamodb, settings.name, {"wid": {"S": "w1"}, "lut": {"S": "yesterday"}})
    put(dynamodb, settings.name, {"wid": {"S": "w2"}, "sts": {"M": {"C": {"N": "1"}}}})
    put(dynamodb, settings.name, {"wid": {"S": "w3"}, "lut": {"N": "5"}, "sts": {"M": {"C": {"L": [{"S": "x"}]}}}})
    put(dynamodb, settings.name, {"wid": {"S": "w4"}, "lut": {"N": "5"}})
    listing = table.list_workers()
    workers, undecodable = list(listing.workers), list(listing.undecodable)
    assert workers == [WorkerMetricStats(worker_id="w4", last_update_s=5)]
    assert sorted(undecodable) == ["w1", "w2", "w3"]
    with pytest.raises(Unavailable, match="w1 cannot be decoded"):
        table.get("w1")


# What we leave alone


def test_attributes_we_do_not_know_survive_every_write(dynamodb: DynamoDb) -> None:
    table, name = new_table(dynamodb)
    put(dynamodb, name, {**LEASE, "leaseOwner": {"S": "a"}, "later": {"M": {"version": {"N": "4"}}}})
    lease = table.get("s1")
    assert lease is not None
    assert table.renew(lease, 1.0).applied
    assert table.checkpoint(replaced(table), ExtendedSequenceNumber("5")).applied
    assert table.prepare_checkpoint(replaced(table), ExtendedSequenceNumber("6"), b"x").applied
    assert table.initiate_handoff(replaced(table), "b").applied
    assert table.assign(replaced(table), "b").applied
    assert table.write_child_shards("s1", frozenset({"s2"}))
    assert table.evict(replaced(table)).applied
    item = row(dynamodb, name, "s1")
    assert item["later"] == {"M": {"version": {"N": "4"}}}
    assert "entityType" not in item, "it is never filled in later"
    assert "leaseOwner" not in item and "checkpointOwner" not in item


@pytest.mark.parametrize(
    ("state", "binary"), [(None, {}), (b"\x00\xff", {"pendingCheckpointState": {"B": b"\x00\xff"}})]
)
def test_a_prepared_checkpoint_is_beside_the_checkpoint(
    dynamodb: DynamoDb, state: bytes | None, binary: dict[str, Any]
) -> None:
    """Each attribute, its type, and nothing else (spec 1.2, 5.8); the next checkpoint leaves none of them."""
    table, name = new_table(dynamodb)
    before = LEASE | {"leaseOwner": {"S": "a"}, "ownerSwitchesSinceCheckpoint": {"N": "2"}}
    put(dynamodb, name, {**before, "pendingCheckpointState": {"B": b"older"}})
    assert table.prepare_checkpoint(replaced(table), ExtendedSequenceNumber("6", 4), state).applied
    pending = {"pendingCheckpoint": {"S": "6"}, "pendingCheckpointSubSequenceNumber": {"N": "4"}}
    assert row(dynamodb, name, "s1") == before | pending | binary | {"leaseCounter": {"N": "4"}}
    assert table.checkpoint(replaced(table), ExtendedSequenceNumber("5")).applied
    checkpointed = {"checkpoint": {"S": "5"}, "leaseCounter": {"N": "5"}, "ownerSwitchesSinceCheckpoint": {"N": "0"}}
    assert row(dynamodb, name, "s1") == before | checkpointed


def test_a_refused_write_answers_with_the_row(dynamodb: DynamoDb) -> None:
    """What we do about a refusal is decided by the row that refused, not by one read later, and costs no request."""
    dynamodb.require("old item of a refused write")
    table, name = new_table(dynamodb)
    put(dynamodb, name, {**LEASE, "leaseOwner": {"S": "a"}})
    lease = replaced(table)
    dynamodb.client.meta.events.register("before-call.dynamodb.GetItem", forbidden, unique_id="refused")
    try:
        for outcome in (
            table.renew(msgspec.structs.replace(lease, lease_counter=2), None),
            table.checkpoint(msgspec.structs.replace(lease, lease_counter=2), AT_TRIM_HORIZON),
            table.assign(msgspec.structs.replace(lease, lease_owner="b"), "c"),
            table.initiate_handoff(msgspec.structs.replace(lease, lease_owner="b"), "c"),
            table.evict(msgspec.structs.replace(lease, lease_owner="b")),
        ):
            assert (outcome.applied, outcome.row) == (False, lease)
    finally:
        dynamodb.client.meta.events.unregister("before-call.dynamodb.GetItem", unique_id="refused")


def forbidden(**_: Any) -> None:
    raise AssertionError("a request that is not needed")


def replaced(table: DynamoDbLeaseTable) -> Lease:
    lease = table.get("s1")
    assert lease is not None
    return lease


# Rows that others wrote (spec 1.5, 1.6; check 14)


@pytest.mark.parametrize("entity_type", [None, "LEASE"])
def test_a_lease_with_or_without_entity_type(dynamodb: DynamoDb, entity_type: str | None) -> None:
    table, name = new_table(dynamodb)
    put(dynamodb, name, LEASE | ({"entityType": {"S": entity_type}} if entity_type else {}))
    listing = table.list_leases()
    assert [lease.lease_key for lease in listing.leases] == ["s1"]
    assert listing.entity_types == ({entity_type} if entity_type else set())
    assert not table.is_empty()


@pytest.mark.parametrize(
    "entity_type", ["LEADER", "STREAM", "WORKER_METRIC_STATS", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "NEW"]
)
def test_rows_of_other_entities_are_no_leases(dynamodb: DynamoDb, entity_type: str) -> None:
    table, name = new_table(dynamodb)
    put(dynamodb, name, {**LEASE, "entityType": {"S": entity_type}})
    listing = table.list_leases()
    assert (listing.leases, listing.undecodable, listing.entity_types) == ((), (), {entity_type})
    assert table.is_empty()
    assert table.get("s1") is None


@pytest.mark.parametrize(
    "broken",
    [
        {"leaseCounter": None},
        {"ownerSwitchesSinceCheckpoint": None},
        {"leaseCounter": {"S": "3"}},
        {"leaseCounter": {"N": "3.5"}},
        {"checkpoint": {"S": "soon"}},
        {"checkpointSubSequenceNumber": {"S": "0"}},
        {"startingHashKey": {"S": "5"}, "endingHashKey": {"S": "5"}},
        {"startingHashKey": {"S": "x"}, "endingHashKey": {"S": "y"}},
        {"pendingCheckpointState": {"S": "text"}},
        {"streamName": {"S": "1:orders:1"}},
        {"streamName": {"S": "1:orders:0"}, "shardId": {"S": "s1"}},
        {"throughputKBps": {"S": "1"}},
    ],
    ids=json.dumps,
)
def test_a_broken_row_is_named_and_does_no_other_harm(dynamodb: DynamoDb, broken: dict[str, Any]) -> None:
    table, name = new_table(dynamodb)
    put(dynamodb, name, {key: value for key, value in {**LEASE, **broken}.items() if value is not None})
    put(dynamodb, name, {**LEASE, "leaseKey": {"S": "s2"}})
    listing = table.list_leases()
    assert listing.undecodable == ("s1",)
    assert [lease.lease_key for lease in listing.leases] == ["s2"]
    with pytest.raises(Unavailable, match="row s1 cannot be decoded"):
        table.get("s1")
    assert not table.create(Lease(lease_key="s1", checkpoint=AT_TRIM_HORIZON))


def test_odd_rows_read_as_java_reads_them(dynamodb: DynamoDb) -> None:
    table, name = new_table(dynamodb)
    odd = {
        **LEASE,
        "parentShardId": {"L": [{"S": "s0"}]},
        "childShardIds": {"S": "s2"},
        "startingHashKey": {"S": "5"},
        "pendingCheckpoint": {"S": ""},
        "checkpointOwner": {"NULL": True},
        "checkpoint": {"N": "12"},
        "unknown": {"BOOL": True},
    }
    del odd["checkpointSubSequenceNumber"]
    put(dynamodb, name, odd)
    assert table.get("s1") == Lease(lease_key="s1", lease_counter=3, checkpoint=None)


def test_a_row_of_the_rust_client_can_be_read_and_assigned(dynamodb: DynamoDb) -> None:
    # its tables have no index; with one DynamoDB refuses a NULL owner
    settings = dynamodb.settings()
    dynamodb.client.create_table(
        TableName=settings.name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    table = DynamoDbLeaseTable(dynamodb.client, settings)
    dynamodb.wait_until_active(table, index=None)
    put(
        dynamodb,
        settings.name,
        {
            **LEASE,
            "leaseCounter": {"N": "1"},
            "leaseOwner": {"NULL": True},
            "checkpoint": {"S": "AT_TIMESTAMP"},
            "checkpointSubSequenceNumber": {"N": "1700000000000"},
        },
    )
    lease = table.get("s1")
    assert lease == Lease(lease_key="s1", lease_counter=1, checkpoint=ExtendedSequenceNumber("AT_TIMESTAMP"))
    outcome = table.assign(lease, "a")
    assert outcome.applied
    assert outcome.row is not None
    assert (outcome.row.lease_owner, outcome.row.lease_counter) == ("a", 2)
    assert row(dynamodb, settings.name, "s1")["leaseOwner"] == {"S": "a"}


# Tables


def test_a_missing_table(dynamodb: DynamoDb) -> None:
    table = DynamoDbLeaseTable(dynamodb.client, dynamodb.settings())
    assert table.describe() is None
    lease = Lease(lease_key="s1", checkpoint=AT_TRIM_HORIZON, lease_owner="a")
    for request in (
        table.list_leases,
        table.is_empty,
        table.create_index,
        lambda: table.get("s1"),
        lambda: table.lease_keys_of("a"),
        lambda: table.create(lease),
        lambda: table.renew(lease, None),
        lambda: table.delete("s1"),
    ):
        with pytest.raises(TableMissing):
            request()
    assert not DynamoDbCoordinatorTable(dynamodb.client, dynamodb.settings()).exists()
    assert not DynamoDbWorkerMetricsTable(dynamodb.client, dynamodb.settings()).exists()


def test_a_table_found_without_its_index_gets_it(dynamodb: DynamoDb) -> None:
    dynamodb.require("index added later")
    settings = dynamodb.settings()
    dynamodb.client.create_table(
        TableName=settings.name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PROVISIONED",
        ProvisionedThroughput={"ReadCapacityUnits": 7, "WriteCapacityUnits": 3},
    )
    table = DynamoDbLeaseTable(dynamodb.client, settings)
    assert table.create(Lease(lease_key="s1", checkpoint=AT_TRIM_HORIZON, lease_owner="a"))
    assert table.describe() == TableState(status="ACTIVE", index_status=None, size_bytes=size(dynamodb, settings.name))
    with pytest.raises(TableMissing):
        table.lease_keys_of("a")
    table.create_index()
    table.create_index()
    description = dynamodb.client.describe_table(TableName=settings.name)["Table"]
    (index,) = description["GlobalSecondaryIndexes"]
    assert index["IndexName"] == INDEX
    assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert [key["AttributeName"] for key in index["KeySchema"]] == ["leaseOwner", "leaseKey"]
    assert index["ProvisionedThroughput"]["ReadCapacityUnits"] == 7
    assert index["ProvisionedThroughput"]["WriteCapacityUnits"] == 3


def size(dynamodb: DynamoDb, name: str) -> int:
    size_bytes: int = dynamodb.client.describe_table(TableName=name)["Table"]["TableSizeBytes"]
    return size_bytes


def test_tables_are_created_as_configured(dynamodb: DynamoDb) -> None:
    table, name = new_table(dynamodb, billing_mode="PROVISIONED", read_capacity=4, write_capacity=5)
    description = dynamodb.client.describe_table(TableName=name)["Table"]
    assert table.describe() is not None
    for described in (description, description["GlobalSecondaryIndexes"][0]):
        assert described["ProvisionedThroughput"]["ReadCapacityUnits"] == 4
        assert described["ProvisionedThroughput"]["WriteCapacityUnits"] == 5


@pytest.mark.parametrize("protected", [True, False])
def test_deletion_protection(dynamodb: DynamoDb, protected: bool) -> None:
    dynamodb.require("deletion protection")
    _, name = new_table(dynamodb, deletion_protection=protected)
    description = dynamodb.client.describe_table(TableName=name)["Table"]
    assert description["DeletionProtectionEnabled"] is protected


def test_tables_are_tagged(dynamodb: DynamoDb) -> None:
    dynamodb.require("tags")
    _, name = new_table(dynamodb, tags={"team": "orders", "cost": "7"})
    description = dynamodb.client.describe_table(TableName=name)["Table"]
    tags = dynamodb.client.list_tags_of_resource(ResourceArn=description["TableArn"])["Tags"]
    assert sorted((tag["Key"], tag["Value"]) for tag in tags) == [("cost", "7"), ("team", "orders")]


def test_on_demand_is_the_default(dynamodb: DynamoDb) -> None:
    _, name = new_table(dynamodb)
    description = dynamodb.client.describe_table(TableName=name)["Table"]
    assert description["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_point_in_time_recovery(dynamodb: DynamoDb) -> None:
    dynamodb.require("backups")
    table, name = new_table(dynamodb, point_in_time_recovery=True)
    table.enable_point_in_time_recovery()
    settings = dynamodb.settings(point_in_time_recovery=True)
    assert DynamoDbCoordinatorTable(dynamodb.client, settings).create_table()
    for of in (name, settings.name):
        backups = dynamodb.client.describe_continuous_backups(TableName=of)["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


@pytest.mark.parametrize("segments", [0, 1, 3])
def test_scans_of_any_number_of_segments_find_every_lease(dynamodb: DynamoDb, segments: int) -> None:
    _, name = new_table(dynamodb)
    table = DynamoDbLeaseTable(dynamodb.client, dynamodb.settings(name=name), scan_segments=segments)
    keys = {f"shardId-{n:012d}" for n in range(20)}
    for key in keys:
        put(dynamodb, name, {**LEASE, "leaseKey": {"S": key}})
    leases = table.list_leases().leases
    assert len(leases) == 20
    assert {lease.lease_key for lease in leases} == keys
