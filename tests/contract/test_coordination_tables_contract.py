"""What every coordinator table and every worker metrics table does (spec coordination 2 and 3)."""

from __future__ import annotations

import msgspec
import pytest

from kcl_host.model.state import ClientVersionState, LeaderLock, VersionHistoryEntry
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import CoordinatorTable, WorkerMetricsTable

MINE = LeaderLock(owner_name="me", lease_duration_ms=10_000, record_version_number="v1")
THEIRS = LeaderLock(owner_name="other", lease_duration_ms=120_000, record_version_number="v2")


def version(lock: LeaderLock, number: str) -> LeaderLock:
    return msgspec.structs.replace(lock, record_version_number=number)


# The leader lock: 2.3, 2.4, 2.7


def test_a_free_lock_is_granted_once(coordinator_table: CoordinatorTable) -> None:
    assert coordinator_table.read_lock() is None
    assert coordinator_table.acquire_lock(MINE, None)
    assert not coordinator_table.acquire_lock(THEIRS, None)
    assert coordinator_table.read_lock() == MINE


def test_a_held_lock_is_taken_by_its_version_alone(coordinator_table: CoordinatorTable) -> None:
    assert coordinator_table.acquire_lock(THEIRS, None)
    assert not coordinator_table.acquire_lock(MINE, version(THEIRS, "v0"))
    assert coordinator_table.acquire_lock(MINE, msgspec.structs.replace(THEIRS, owner_name="somebody"))
    assert coordinator_table.read_lock() == MINE


def test_a_lock_that_is_gone_cannot_be_taken_over(coordinator_table: CoordinatorTable) -> None:
    assert not coordinator_table.acquire_lock(MINE, THEIRS)
    assert not coordinator_table.acquire_lock(MINE, msgspec.structs.replace(THEIRS, is_released=True))
    assert coordinator_table.read_lock() is None


def test_a_held_lock_is_not_a_released_one(coordinator_table: CoordinatorTable) -> None:
    assert coordinator_table.acquire_lock(THEIRS, None)
    assert not coordinator_table.acquire_lock(MINE, msgspec.structs.replace(THEIRS, is_released=True))


def test_heartbeat(coordinator_table: CoordinatorTable) -> None:
    assert coordinator_table.acquire_lock(MINE, None)
    next_lock = msgspec.structs.replace(MINE, record_version_number="v9", lease_duration_ms=20_000)
    assert coordinator_table.heartbeat_lock(next_lock, "v1")
    assert coordinator_table.read_lock() == next_lock
    assert not coordinator_table.heartbeat_lock(version(MINE, "v10"), "v1")
    assert not coordinator_table.heartbeat_lock(version(THEIRS, "v10"), "v9")
    assert coordinator_table.read_lock() == next_lock


def test_heartbeat_does_not_create_a_lock(coordinator_table: CoordinatorTable) -> None:
    assert not coordinator_table.heartbeat_lock(version(MINE, "v2"), "v1")
    assert coordinator_table.read_lock() is None


@pytest.mark.parametrize("not_mine", [version(MINE, "v0"), msgspec.structs.replace(MINE, owner_name="other")])
def test_release_deletes_exactly_my_lock(coordinator_table: CoordinatorTable, not_mine: LeaderLock) -> None:
    assert coordinator_table.acquire_lock(MINE, None)
    assert not coordinator_table.release_lock(not_mine)
    assert coordinator_table.read_lock() == MINE
    assert coordinator_table.release_lock(MINE)
    assert coordinator_table.read_lock() is None
    assert not coordinator_table.release_lock(MINE)


# Migration items


@pytest.mark.parametrize(
    "history", [(), (VersionHistoryEntry(client_version="CLIENT_VERSION_INIT", modified_by="me", modified_ms=5),)]
)
def test_the_client_version_is_created_once(
    coordinator_table: CoordinatorTable, history: tuple[VersionHistoryEntry, ...]
) -> None:
    state = ClientVersionState(
        client_version="CLIENT_VERSION_3X", modified_by="me", modified_ms=1_795_224_684_142, history=history
    )
    assert coordinator_table.read_client_version() is None
    assert coordinator_table.create_client_version(state)
    assert not coordinator_table.create_client_version(msgspec.structs.replace(state, modified_by="other"))
    assert coordinator_table.read_client_version() == state
    assert coordinator_table.read_lock() is None


def test_the_coordinator_table_is_there(coordinator_table: CoordinatorTable) -> None:
    assert coordinator_table.exists()
    assert not coordinator_table.create_table()


# Worker metric stats

STATS = WorkerMetricStats(
    worker_id="w1",
    last_update_s=1_795_224_686,
    metric_stats={"C": [-1.0, 12.5], "M": [0.333333]},
    operating_range={"C": [80.0]},
)


def test_a_worker_reports_and_is_listed(worker_metrics_table: WorkerMetricsTable) -> None:
    other = WorkerMetricStats(worker_id="w2", last_update_s=7, properties={"state": "TERMINATING"})
    worker_metrics_table.put(STATS)
    worker_metrics_table.put(other)
    listing = worker_metrics_table.list_workers()
    workers, undecodable = list(listing.workers), list(listing.undecodable)
    assert sorted(workers, key=lambda w: w.worker_id) == [STATS, other]
    assert undecodable == []
    assert worker_metrics_table.get("w1") == STATS
    assert worker_metrics_table.get("w3") is None


def test_a_report_replaces_the_one_before(worker_metrics_table: WorkerMetricsTable) -> None:
    worker_metrics_table.put(msgspec.structs.replace(STATS, properties={"state": "TERMINATING"}, support_code=1))
    worker_metrics_table.put(msgspec.structs.replace(STATS, last_update_s=1_795_224_716, metric_stats={"C": [1.0]}))
    # an older version leaves `sup` alone; properties are ours and follow each report
    assert worker_metrics_table.get("w1") == msgspec.structs.replace(
        STATS, last_update_s=1_795_224_716, metric_stats={"C": [1.0]}, support_code=1
    )


def test_a_report_tells_the_last_update_of_the_one_before(worker_metrics_table: WorkerMetricsTable) -> None:
    assert worker_metrics_table.put(STATS) is None
    assert worker_metrics_table.put(msgspec.structs.replace(STATS, last_update_s=8)) == STATS.last_update_s
    assert worker_metrics_table.put(msgspec.structs.replace(STATS, last_update_s=None)) == 8
    assert worker_metrics_table.put(STATS) == 8


def test_a_stale_row_is_deleted_only_if_it_is_still_stale(worker_metrics_table: WorkerMetricsTable) -> None:
    worker_metrics_table.put(STATS)
    assert not worker_metrics_table.delete_if_unchanged(msgspec.structs.replace(STATS, last_update_s=1))
    assert not worker_metrics_table.delete_if_unchanged(msgspec.structs.replace(STATS, last_update_s=None))
    assert worker_metrics_table.delete_if_unchanged(STATS)
    assert worker_metrics_table.get("w1") is None
    assert not worker_metrics_table.delete_if_unchanged(STATS)


def test_the_worker_metrics_table_is_there(worker_metrics_table: WorkerMetricsTable) -> None:
    assert worker_metrics_table.exists()
    assert not worker_metrics_table.create_table()
