"""What the fakes can do beyond the contract: faults, stale reads, tables that are being created."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcl_host.errors import AccessError, StreamNotFound, TableMissing, Throttled, Unavailable
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber, IteratorPosition
from kcl_host.model.state import LeaderLock
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, CoordinatorTable, LeaseTable, Stream, WorkerMetricsTable
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.stream import InMemoryStream
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable

LEASE = Lease(lease_key="s1", checkpoint=AT_TRIM_HORIZON, lease_owner="a")


def seeded() -> tuple[InMemoryLeaseTable, FakeClock]:
    clock = FakeClock()
    table = InMemoryLeaseTable(clock)
    table.put(LEASE)
    return table, clock


def test_the_fakes_satisfy_the_ports() -> None:
    clock = FakeClock()
    port: Clock = clock
    lease_table: LeaseTable = InMemoryLeaseTable(clock)
    coordinator_table: CoordinatorTable = InMemoryCoordinatorTable(clock)
    worker_metrics_table: WorkerMetricsTable = InMemoryWorkerMetricsTable(clock)
    stream: Stream = InMemoryStream(clock)
    assert port.monotonic() == 1000.0
    assert lease_table.is_empty() and coordinator_table.exists() and worker_metrics_table.exists()
    assert stream.describe().open_shard_count == 1


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (THROTTLED, Throttled, False),
        (TIMED_OUT, Unavailable, False),
        (Fault("refused"), AccessError, False),
        (ANSWER_LOST, Unavailable, True),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_faults(fault: Fault, error: type[Exception], applied: bool) -> None:
    table, _ = seeded()
    table.faults = lambda operation, key: fault if (operation, key) == ("renew", "s1") else None
    with pytest.raises(error):
        table.renew(LEASE, None)
    assert table.rows["s1"].lease_counter == applied
    assert table.checkpoint(table.rows["s1"], ExtendedSequenceNumber("5")).applied
    assert table.requests == {"renew": 1, "checkpoint": 1}


def test_a_slow_request_takes_time_before_and_after_it_takes_effect() -> None:
    table, clock = seeded()
    times = []
    table.faults = lambda operation, key: Fault(before_s=2, after_s=3)
    table.watch = lambda operation, before, after: times.append((operation, clock.monotonic()))
    assert table.renew(LEASE, None).applied
    assert times == [("renew", 1002.0)]
    assert clock.monotonic() == 1005.0


def test_every_fake_has_its_faults() -> None:
    clock = FakeClock()
    coordinator_table, stream = InMemoryCoordinatorTable(clock), InMemoryStream(clock)
    worker_metrics_table = InMemoryWorkerMetricsTable(clock)
    lock = LeaderLock(owner_name="a", lease_duration_ms=1, record_version_number="v")
    for fake in (coordinator_table, worker_metrics_table, stream):
        fake.faults = lambda operation, key: ANSWER_LOST
    with pytest.raises(Unavailable):
        coordinator_table.acquire_lock(lock, None)
    with pytest.raises(Unavailable):
        worker_metrics_table.put(WorkerMetricStats(worker_id="a", last_update_s=1))
    with pytest.raises(Unavailable):
        stream.get_shard_iterator("shardId-000000000000", IteratorPosition(type="LATEST"))
    assert coordinator_table.lock == lock
    assert list(worker_metrics_table.rows) == ["a"]


def test_the_index_and_the_scan_may_lag_behind_while_get_never_does() -> None:
    table, clock = seeded()
    table.lag = lambda read, key: 5.0 if read == "index" else 2.0
    assert table.lease_keys_of("a") == [], "the row is not five seconds old"
    clock.advance(5)
    assert table.assign(LEASE, "b").applied
    assert table.get("s1") == table.rows["s1"]
    assert table.list_leases().leases == (LEASE,)
    assert (table.lease_keys_of("a"), table.lease_keys_of("b")) == (["s1"], [])
    clock.advance(2)
    assert table.list_leases().leases == (table.rows["s1"],)
    table.delete("s1")
    assert table.list_leases().leases != ()
    clock.advance(2)
    assert (table.list_leases().leases, table.lease_keys_of("a")) == ((), ["s1"])
    assert table.is_empty()


def test_a_scan_of_the_worker_metrics_may_lag_behind() -> None:
    clock = FakeClock()
    table = InMemoryWorkerMetricsTable(clock)
    first, second = (WorkerMetricStats(worker_id="a", last_update_s=n) for n in (1, 2))
    table.rows["a"] = first
    clock.advance(5)
    table.put(second)
    table.lag = lambda worker_id: 1.0
    assert (table.list_workers().workers, table.get("a")) == ((first,), second)
    assert not table.delete_if_unchanged(table.list_workers().workers[0]), "conditions see the row as it stands"
    clock.advance(1)
    assert table.list_workers().workers == (second,)
    assert table.delete_if_unchanged(second)
    assert (table.list_workers().workers, table.rows) == ((second,), {})
    clock.advance(1)
    assert table.list_workers().workers == ()


@pytest.mark.parametrize("fake", [InMemoryCoordinatorTable, InMemoryWorkerMetricsTable])
def test_a_metadata_table_that_is_not_there(
    fake: type[InMemoryCoordinatorTable] | type[InMemoryWorkerMetricsTable],
) -> None:
    table = fake(FakeClock(), exists=False)
    requests: list[Callable[[], object]]
    if isinstance(table, InMemoryCoordinatorTable):
        lock = LeaderLock(owner_name="a", lease_duration_ms=1, record_version_number="v")
        requests = [table.read_lock, lambda: table.acquire_lock(lock, None), table.read_client_version]
    else:
        stats = WorkerMetricStats(worker_id="a", last_update_s=1)
        requests = [table.list_workers, lambda: table.put(stats), lambda: table.delete_if_unchanged(stats)]
    for request in requests:
        with pytest.raises(TableMissing):
            request()
    assert not table.exists()
    assert [table.create_table(), table.create_table(), table.exists()] == [True, False, True]
    requests[0]()


def test_a_table_that_is_being_created() -> None:
    clock = FakeClock()
    table = InMemoryLeaseTable(clock, exists=False, creation_s=3.0)
    assert table.describe() is None
    with pytest.raises(TableMissing):
        table.list_leases()
    assert table.create_table()
    assert not table.create_table()
    with pytest.raises(TableMissing):
        table.create(LEASE)
    clock.advance(3)
    assert table.create(LEASE)
    assert table.lease_keys_of("a") == ["s1"]


def test_a_table_without_its_index() -> None:
    table, _ = seeded()
    table.index_active_at_s = None
    with pytest.raises(TableMissing):
        table.lease_keys_of("a")
    table.create_index()
    assert table.lease_keys_of("a") == ["s1"]


def test_a_small_page_and_a_stream_that_is_not_ready() -> None:
    clock = FakeClock()
    stream = InMemoryStream(clock)
    stream.page_records = 1
    for n in range(2):
        stream.put(str(n).encode())
    iterator = stream.get_shard_iterator("shardId-000000000000", IteratorPosition(type="TRIM_HORIZON"))
    assert len(stream.get_records(iterator, 10).records) == 1
    stream.status = "CREATING"
    assert stream.list_shards() is None
    stream.deleted = True
    with pytest.raises(StreamNotFound):
        stream.list_shards()


def test_a_record_can_be_put_into_any_open_shard() -> None:
    stream = InMemoryStream(FakeClock(), shard_count=3)
    shard_id, number = stream.put(b"x", shard_id="shardId-000000000002")
    assert shard_id == "shardId-000000000002"
    assert [str(r.sequence_number) for r in stream.records_of(shard_id)] == [number]
    assert len(number) == 56
