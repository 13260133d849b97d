"""One look at a fleet: what is asked for, that nothing is written, and that a part that fails leaves the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kcl_host.coordination.fleet_snapshot import ATTEMPTS, SHARDS_PER_S, FleetReader
from kcl_host.coordination.streams import StreamAccess, Streams
from kcl_host.decisions.fleet_looks import Part
from kcl_host.errors import AccessError
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.state import ClientVersionState, LeaderLock, TableMigrationState
from tests.fakes.clock import FakeClock
from tests.fakes.fault import THROTTLED, Fault, FaultPlan
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.fakes.stream import InMemoryStream
from tests.unit.coordination_rig import lease, reporting, settings_of

REFUSED = Fault("refused")
READS = {
    "describe", "list_leases", "read_lock", "read_client_version", "read_table_migration", "list_workers",
}  # fmt: skip
LOCK = LeaderLock(owner_name="me", lease_duration_ms=10_000, record_version_number="v")
IDS = tuple(f"shardId-{n:012d}" for n in range(4))


class InlineThreads:
    """One after the other, where waiting moves the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def lock(self) -> Any:
        return threading.Lock()

    def event(self) -> Any:
        return self

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0.0)
        return False

    def for_each(self, act: Callable[[Any], None], items: Iterable[Any]) -> None:
        for item in items:
            act(item)


class Rig:
    """A fleet of three tables, or with `single` of one; its stream has four shards."""

    def __init__(self, *, single: bool = False, exists: bool = True) -> None:
        self.clock = FakeClock()
        self.leases = InMemoryLeaseTable(self.clock, exists=exists)
        three = exists and not single
        self.metadata = InMemoryMetadata(self.clock, self.leases, coordinator=three, metrics=three)
        self.stream = InMemoryStream(self.clock, shard_count=len(IDS))
        self.opened: list[str] = []
        self.reader = FleetReader(
            self.leases,
            self.metadata.tables,
            Streams(settings_of("me"), self._open),
            self.clock,
            InlineThreads(self.clock),  # type: ignore[arg-type]
        )

    def _open(self, stream: Any, settings: Any) -> StreamAccess:
        self.opened.append(stream.name)
        return StreamAccess(self.stream)

    def requests(self) -> dict[str, int]:
        """Of all tables together."""
        tables = (
            self.leases, self.metadata.coordinator, self.metadata.coordinator_in_lease_table, self.metadata.metrics,
            self.metadata.metrics_in_lease_table, self.metadata.migration,
        )  # fmt: skip
        counts: dict[str, int] = {}
        for table in tables:
            for operation, count in table.requests.items():
                counts[operation] = counts.get(operation, 0) + count
        return counts


def refuse(*operations: str) -> FaultPlan:
    return lambda operation, key: REFUSED if operation in operations else None


def test_a_look_reads_each_part_once_and_writes_nothing() -> None:
    rig = Rig()
    rig.leases.put(lease())
    rig.metadata.coordinator.lock = LOCK
    rig.metadata.metrics.rows["me"] = reporting("me", rig.clock)
    snapshot = rig.reader.take()
    assert snapshot.listing.leases == (lease(),)
    assert (snapshot.lock, snapshot.has_coordinator_table) == (LOCK, True)
    assert [row.worker_id for row in snapshot.workers.workers] == ["me"]
    assert (snapshot.taken_s, snapshot.at_s) == (rig.clock.wall(), rig.clock.monotonic())
    assert snapshot.failures == ()
    assert rig.requests().keys() == READS
    assert sum(rig.requests().values()) == 8, "one DescribeTable, two scans, five GetItem"


def test_everything_in_one_table() -> None:
    rig = Rig(single=True)
    rig.leases.put(lease())
    rig.metadata.coordinator_in_lease_table.lock = LOCK
    version = ClientVersionState(client_version="CLIENT_VERSION_3X", modified_by="me", modified_ms=1)
    rig.metadata.coordinator_in_lease_table.client_version = version
    rig.metadata.metrics_in_lease_table.rows["me"] = reporting("me", rig.clock)
    snapshot = rig.reader.take()
    assert (snapshot.lock, snapshot.lock_in_lease_table, snapshot.client_version) == (None, LOCK, version)
    assert snapshot.has_coordinator_table is False and snapshot.failures == ()
    assert [row.worker_id for row in snapshot.listing.workers.workers] == ["me"]


def test_in_the_middle_of_a_migration_both_places_are_read() -> None:
    rig = Rig()
    state = TableMigrationState(status="TABLE_MIGRATION_STATUS_DEPLOYED", modified_by="me", modified_ms=1)
    rig.metadata.coordinator.table_migration = state
    rig.metadata.metrics.rows["old"] = reporting("old", rig.clock)
    rig.metadata.metrics_in_lease_table.rows["new"] = reporting("new", rig.clock)
    snapshot = rig.reader.take()
    assert snapshot.table_migration == state
    assert [row.worker_id for row in snapshot.workers.workers] == ["old"]
    assert [row.worker_id for row in snapshot.listing.workers.workers] == ["new"]


def test_without_a_lease_table_nothing_is_asked_of_it() -> None:
    rig = Rig(exists=False)
    snapshot = rig.reader.take()
    assert (snapshot.table, snapshot.has_coordinator_table, snapshot.failures) == (None, False, ())
    assert rig.leases.requests == {"describe": 1}


@pytest.mark.parametrize(
    ("table", "operation", "parts"),
    [
        ("leases", "describe", ["lease table"]),
        ("leases", "list_leases", ["leases"]),
        ("coordinator", "read_lock", ["leader lock"]),
        ("coordinator", "read_client_version", ["Migration3.0"]),
        ("migration", "read_table_migration", ["TableMigration3.5"]),
        ("metrics", "list_workers", ["worker metrics"]),
        ("coordinator_in_lease_table", "read_lock", ["leader lock in the lease table"]),
    ],
)
def test_a_part_that_fails_is_named_and_the_others_are_there(table: str, operation: str, parts: list[Part]) -> None:
    rig = Rig()
    rig.leases.put(lease())
    rig.metadata.coordinator.lock = LOCK
    rig.metadata.metrics.rows["me"] = reporting("me", rig.clock)
    target = rig.leases if table == "leases" else getattr(rig.metadata, table)
    target.faults = refuse(operation)
    snapshot = rig.reader.take()
    assert [failure.part for failure in snapshot.failures] == parts
    assert "refused" in snapshot.failures[0].error
    there = {
        "leases": bool(snapshot.listing.leases),
        "leader lock": snapshot.lock is not None,
        "worker metrics": bool(snapshot.workers.workers),
    }
    assert {part for part, is_there in there.items() if not is_there} == set(parts) & there.keys()
    assert snapshot.has_coordinator_table is (None if parts == ["leader lock"] else True)


def test_when_nothing_at_all_can_be_read_the_error_is_raised() -> None:
    rig = Rig()
    rig.metadata.plan_faults(refuse(*READS), refuse(*READS))
    rig.leases.faults = refuse(*READS)
    with pytest.raises(AccessError, match="describe"):
        rig.reader.take()


# Lag


def test_the_lag_is_that_of_the_checkpoint_and_its_record_tells_its_age() -> None:
    rig = Rig()
    _, first = rig.stream.put(b"1", shard_id=IDS[0])
    put_ms = round(rig.clock.wall() * 1000)
    rig.clock.advance(20)
    rig.stream.put(b"2", shard_id=IDS[0])
    rig.stream.put(b"3", shard_id=IDS[1])
    rig.clock.advance(5)
    rows = [
        lease(IDS[0], checkpoint=ExtendedSequenceNumber(first)),
        lease(IDS[1], checkpoint=AT_TRIM_HORIZON),
        lease(IDS[2], checkpoint=AT_SHARD_END),
        lease(IDS[3], checkpoint=ExtendedSequenceNumber("LATEST")),
    ]
    lags, failures = rig.reader.ask_lags(rows)
    assert failures == ()
    assert lags.keys() == {IDS[0], IDS[1]}, "nothing is left to read, or nobody knows where LATEST was"
    assert (lags[IDS[0]].behind_ms, lags[IDS[0]].record_ms) == (5000, put_ms)
    # The unread record is the only one: what Kinesis says of the place behind it, 0, would hide it.
    assert lags[IDS[1]].record_ms is None and lags[IDS[1]].behind_ms == pytest.approx(5000, abs=20)
    assert rig.stream.requests == {"get_shard_iterator": 2, "get_records": 2}


def test_a_checkpointed_record_that_has_left_the_stream_tells_no_age() -> None:
    rig = Rig()
    _, trimmed = rig.stream.put(b"1", shard_id=IDS[0])
    rig.clock.advance(86400 + 1)
    rig.stream.put(b"2", shard_id=IDS[0])
    lags, _ = rig.reader.ask_lags([lease(IDS[0], checkpoint=ExtendedSequenceNumber(trimmed))])
    assert lags[IDS[0]].record_ms is None


def test_shards_are_asked_at_a_limited_rate() -> None:
    rig = Rig()
    before_s = rig.clock.monotonic()
    rig.reader.ask_lags([lease(IDS[n % 4]) for n in range(50)])
    assert rig.clock.monotonic() - before_s == pytest.approx(49 / SHARDS_PER_S)


def test_a_throttled_shard_is_asked_again_and_then_named_without_the_others() -> None:
    rig = Rig()
    rig.stream.faults = lambda operation, key: THROTTLED if key == IDS[1] else None
    lags, failures = rig.reader.ask_lags([lease(IDS[0]), lease(IDS[1]), lease(IDS[2])])
    assert lags.keys() == {IDS[0], IDS[2]}
    assert [(failure.part, failure.subjects) for failure in failures] == [("lag", (IDS[1],))]
    assert rig.stream.requests["get_shard_iterator"] == 2 + ATTEMPTS


def test_who_may_not_ask_for_one_shard_does_not_ask_for_the_next() -> None:
    rig = Rig()
    rig.stream.faults = refuse("get_shard_iterator")
    lags, failures = rig.reader.ask_lags([lease(shard_id) for shard_id in IDS])
    assert lags == {} and [failure.subjects for failure in failures] == [IDS]
    assert rig.stream.requests == {"get_shard_iterator": 1}


def test_leases_of_another_kind_than_configured_are_named() -> None:
    rig = Rig()
    stream = "123456789012:orders:1700000000"
    row = lease(f"{stream}:{IDS[0]}", stream_name=stream, multi_stream_shard_id=IDS[0])
    lags, failures = rig.reader.ask_lags([row])
    assert lags == {} and [failure.subjects for failure in failures] == [(row.lease_key,)]


def test_the_retention_is_asked_once_per_stream() -> None:
    rig = Rig()
    found, failures = rig.reader.ask_retentions([lease(shard_id) for shard_id in IDS])
    assert (found, failures) == ({None: 86400.0}, ())
    assert rig.stream.requests == {"describe": 1} and rig.opened == ["orders"]
    rig.stream.faults = refuse("describe")
    found, failures = rig.reader.ask_retentions([lease()])
    assert found == {} and [failure.part for failure in failures] == ["retention"]
