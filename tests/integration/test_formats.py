"""Real hosts on a single table, on the way from three tables to it, and in a fleet that goes back to KCL 2.x.

The way of the tables runs on DynamoDB Local (`-m interop`), whose transactions are real; what takes minutes is marked
`stress`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcl_host.aws.table_migration import DynamoDbTableMigration
from kcl_host.config.settings import TableSettings
from kcl_host.decisions.table_migration import (
    STATUS_COMPLETE,
    STATUS_DEPLOYED,
    STATUS_INIT,
    STATUS_PENDING,
    first_state,
)
from kcl_host.local.engines import Engines
from tests.integration.fleet_of_hosts import APPLICATION, FAST, Fleet
from tests.interop.dynamodb_local import dynamodb_local
from tests.recorder import differences, read_trace, writes

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LIMIT_S = 30.0
PATIENT: dict[str, Any] = {**FAST, "failoverTimeMillis": 5000, "workerMetricsReporterFreqInMillis": 1000}


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_fleet_of_a_single_table(engines: Engines, tmp_path: Path) -> None:
    with (
        Fleet(engines, tmp_path, shards=4, metadataTableFormat="single", **PATIENT) as fleet,
        fleet.recorder() as recorder,
    ):
        first, second = fleet.start("a", "b")
        fleet.wait_until(lambda: fleet.is_even("a", "b"), LIMIT_S)
        assert fleet.tables() == {APPLICATION}
        assert {fleet.metadata(name, in_lease_table=True)["entityType"] for name in ("a", "b")} == {
            "WORKER_METRIC_STATS"
        }
        assert {row["entityType"] for row in fleet.rows().values()} == {"LEASE"}
        leader, other = (first, second) if fleet.leader() == "a" else (second, first)
        leader.send(signal.SIGTERM)
        fleet.wait_until(lambda: fleet.is_even(other.name) and fleet.leader() == other.name, LIMIT_S)
        assert leader.process.wait(LIMIT_S) == 0
        fleet.check_all_delivered()
        assert fleet.tables() == {APPLICATION}
    java = read_trace(GOLDEN / "java-kcl-3.5.1-single-table.jsonl")
    required = {"lease created", "assigned", "renewed", "checkpoint", "lock acquired", "worker metrics reported"}
    assert differences(recorder.changes, java, required) == []


def test_java_in_a_single_table_is_understood() -> None:
    java = read_trace(GOLDEN / "java-kcl-3.5.1-single-table.jsonl")
    kinds = {change.key: change.kind for change in java if change.new}
    assert {kinds[key] for key in ("Leader", "Migration3.0")} == {"coordinator"}
    assert {kind for key, kind in kinds.items() if key.startswith("java-")} == {"worker_metrics"}
    assert {kind for key, kind in kinds.items() if key.startswith("shardId-")} == {"lease"}
    assert not [write for write in writes(java) if write.startswith("unknown")]
    assert {"handoff initiated", "handoff completed", "child shards written"} <= writes(java)


def test_the_item_of_the_table_migration_is_written_as_java_writes_it() -> None:
    """By names and types; the contract tests hold what we read and write to the same item."""
    java = read_trace(GOLDEN / "java-kcl-3.5.1-three-tables.jsonl")
    (item, *_) = (change.changed for change in java if change.key == "TableMigration3.5" and change.new)
    assert item["tm"] == {"S": STATUS_INIT} and item["entityType"] == {"S": "TABLE_MIGRATION"}
    client, table = Captured(), TableSettings(name="app-CoordinatorState")
    DynamoDbTableMigration(client, table, TableSettings(name="app")).create(first_state(STATUS_INIT, "java-1", 5))
    ours = client.item
    assert shape(ours) == shape({name: value for name, value in item.items() if value})


class Captured:
    """A client that remembers what was put."""

    item: dict[str, Any]

    class exceptions:
        class ConditionalCheckFailedException(Exception): ...

    def put_item(self, **request: Any) -> None:
        self.item = request["Item"]


def shape(value: Any) -> Any:
    """Names and types, the values left out."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else None


@pytest.mark.interop
def test_three_tables_become_one_while_records_flow(tmp_path: Path) -> None:
    """Both phases are deployed host by host; the times to wait are over because the item is made older.

    While b still reports to the table of its own, and a already to the lease table, both get leases.
    """
    with (
        dynamodb_local() as url,
        Engines() as engines,
        Fleet(engines, tmp_path, shards=4, dynamodb_endpoint=url, **PATIENT) as fleet,
    ):
        fleet.start("a", "b")
        fleet.wait_until(lambda: fleet.is_even("a", "b"), LIMIT_S)
        fleet.wait_until(lambda: status(fleet) == STATUS_INIT, 3 * LIMIT_S)
        older(fleet, 3600)
        new_leader(fleet)
        fleet.wait_until(lambda: status(fleet) == STATUS_DEPLOYED, 3 * LIMIT_S)
        fleet.settings["migrateAllEntitiesToLeaseTable"] = "true"
        for name in ("a", "b"):
            restart(fleet, name)
        fleet.wait_until(lambda: status(fleet) == STATUS_PENDING, 3 * LIMIT_S)
        assert fleet.metadata("Leader", in_lease_table=False) and not fleet.metadata("Leader", in_lease_table=True)
        older(fleet, 86400)
        new_leader(fleet)
        fleet.wait_until(lambda: status(fleet) == STATUS_COMPLETE, 3 * LIMIT_S)
        fleet.wait_until(lambda: fleet.metadata("Leader", in_lease_table=True), LIMIT_S)
        assert fleet.metadata("TableMigration3.5", in_lease_table=True)["tm"] == STATUS_COMPLETE
        assert fleet.coordinator_keys() == {"TableMigration3.5"}
        # From then on a new host joins by the lease table, whatever its flag says.
        del fleet.settings["migrateAllEntitiesToLeaseTable"]
        restart(fleet, "b")
        fleet.check_all_delivered()
        assert not fleet.notes.repeated()
        for host in fleet.hosts:
            assert not [line for line in host.log() if line.facts["level"] == "ERROR"]


def restart(fleet: Fleet, name: str) -> None:
    host = fleet.host(name)
    host.send(signal.SIGTERM)
    assert host.process.wait(LIMIT_S) == 0
    fleet.start(name)
    fleet.wait_until(lambda: fleet.is_even("a", "b"), LIMIT_S)


def new_leader(fleet: Fleet) -> None:
    """A leader reads the item when it comes to lead; from then on nobody else has business with it."""
    leader = fleet.leader()
    assert leader is not None
    restart(fleet, leader)


def status(fleet: Fleet) -> str | None:
    return fleet.metadata("TableMigration3.5", in_lease_table=False).get("tm")


def older(fleet: Fleet, by_s: int) -> None:
    ms = int(fleet.metadata("TableMigration3.5", in_lease_table=False)["mts"])
    fleet.change("TableMigration3.5", in_lease_table=False, mts=ms - by_s * 1000)


@pytest.mark.stress
def test_a_fleet_goes_back_to_2x_and_forward_again(engines: Engines, tmp_path: Path) -> None:
    """The hosts go on as processes; they give everything back, report nothing, lead nothing, and wait."""
    with Fleet(engines, tmp_path, shards=4, **PATIENT) as fleet:
        hosts = fleet.start("a", "b")
        fleet.wait_until(lambda: fleet.is_even("a", "b"), LIMIT_S)
        fleet.put_version("CLIENT_VERSION_2X")
        fleet.wait_until(lambda: len(fleet.log("worker_starts_anew")) == 2, 150)
        fleet.wait_until(lambda: set(fleet.owners().values()) == {None}, LIMIT_S)
        assert fleet.leader() is None
        reported = fleet.last_reports()
        time.sleep(5)
        assert fleet.last_reports() == reported and len(reported) == 2
        fleet.put_version("CLIENT_VERSION_3X_WITH_ROLLBACK")
        fleet.wait_until(lambda: fleet.is_even("a", "b"), 2 * LIMIT_S)
        assert all(host.is_running for host in hosts)
        fleet.check_all_delivered()
        assert not fleet.notes.repeated()
