"""The move into the lease table: driven by the leader, followed by everybody (spec migration 2)."""

from __future__ import annotations

import itertools
import logging
from typing import Literal

import msgspec
import pytest

from kcl_host.config.settings import CoordinatorSettings, LockSettings, Settings
from kcl_host.coordination.election import Election
from kcl_host.coordination.metadata_tables import CoordinatorItems, Format, WorkerMetrics
from kcl_host.coordination.table_migration import TableMigration
from kcl_host.decisions.metadata_format import client_version_item
from kcl_host.decisions.table_migration import (
    STATUS_COMPLETE,
    STATUS_DEPLOYED,
    STATUS_INIT,
    STATUS_PENDING,
    LocalStatus,
    first_state,
)
from kcl_host.errors import RetryLater
from kcl_host.model.state import CoordinatorItem, LeaderLock
from kcl_host.model.worker import WorkerMetricStats
from tests.fakes.clock import FakeClock
from tests.fakes.fault import ANSWER_LOST, THROTTLED
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.unit.coordination_rig import ME, OTHER, befall, before, lease, settings_of

BAKE_S = 3600.0
DAY_S = 86400.0


class World:
    """The tables, and what the workers of both phases see of them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.leases = InMemoryLeaseTable(self.clock)
        self.metadata = InMemoryMetadata(self.clock, self.leases, coordinator=True, metrics=True)
        self.versions = (f"v{n}" for n in itertools.count())
        self.legacy, self.single = self.metadata.coordinator, self.metadata.coordinator_in_lease_table

    @property
    def status(self) -> str | None:
        item = self.legacy.table_migration
        return None if item is None else item.status

    def report(self, worker_id: str, place: Literal["legacy", "lease"] = "legacy", *, code: int | None = 1) -> None:
        now_s = int(self.clock.wall())
        table = self.metadata.metrics if place == "legacy" else self.metadata.metrics_in_lease_table
        table.rows[worker_id] = WorkerMetricStats(
            worker_id=worker_id,
            last_update_s=now_s,
            support_code=code,
            support_code_update_s=None if code is None else now_s,
        )


class Worker:
    def __init__(
        self, world: World, started: LocalStatus = "INIT", *, migrate_all: bool = False, worker_id: str = ME
    ) -> None:
        self.world, self.worker_id = world, worker_id
        self.format = Format(started)
        settings: Settings = settings_of(worker_id, coordinator=CoordinatorSettings(migrate_all_entities=migrate_all))
        tables = world.metadata.tables
        self.items, self.metrics = CoordinatorItems(tables, self.format), WorkerMetrics(tables, self.format)
        self.election = Election(
            self.items,
            worker_id,
            LockSettings(lease_duration_s=10 * DAY_S, heartbeat_s=DAY_S),
            world.clock,
            lambda: next(world.versions),
        )
        self.migration = TableMigration(
            tables.migration, self.metrics, self.election, self.format, worker_id, settings, world.clock
        )

    def lead(self) -> None:
        self.election.run_once()
        assert self.election.is_leader()
        self.migration.look()

    def turn(self) -> float | None:
        """As the supervisor's threads do it: a heartbeat, a pass, a turn of the migration."""
        self.election.run_once()
        listing = self.world.leases.list_leases()
        self.metrics.list_workers(listing)
        self.migration.note(listing.leases)
        return self.migration.run_once()


@pytest.fixture
def world() -> World:
    world = World()
    world.leases.put(lease("s1", ME))
    world.leases.put(lease("s2", OTHER))
    return world


def reporting(world: World, place: Literal["legacy", "lease"] = "legacy") -> None:
    for worker_id in (ME, OTHER):
        world.report(worker_id, place)


def leader(world: World, started: LocalStatus = "INIT", *, migrate_all: bool = False) -> Worker:
    worker = Worker(world, started, migrate_all=migrate_all)
    worker.lead()
    return worker


# INIT


def test_the_whole_way(world: World) -> None:
    world.legacy.client_version = client_version_item(OTHER, 1)
    world.legacy.others["orders"] = CoordinatorItem(key="orders", attributes={"streamId": {"S": "id"}})
    worker = leader(world)
    reporting(world)
    worker.turn()
    assert world.status == STATUS_INIT
    world.clock.advance(BAKE_S - 1)
    reporting(world)
    worker.turn()
    assert world.status == STATUS_INIT
    world.clock.advance(1)
    reporting(world)
    worker.turn()
    assert world.status == STATUS_DEPLOYED
    assert worker.format.live == "DEPLOYED"
    # phase 2: the fleet starts anew
    worker.election.release()
    worker = leader(world, "PENDING", migrate_all=True)
    reporting(world, "lease")
    worker.turn()
    assert world.status == STATUS_DEPLOYED and world.legacy.client_version is not None, "old metrics are still fresh"
    world.clock.advance(61)
    reporting(world, "lease")
    worker.turn()
    assert world.single.client_version == client_version_item(OTHER, 1) and world.legacy.client_version is None
    assert world.single.others["orders"].entity_type == "STREAM" and not world.legacy.others
    assert world.status == STATUS_DEPLOYED
    worker.turn()
    assert world.status == STATUS_PENDING
    world.clock.advance(DAY_S - 1)
    reporting(world, "lease")
    worker.turn()
    assert world.status == STATUS_PENDING
    world.clock.advance(1)
    reporting(world, "lease")
    worker.turn()
    assert world.status == STATUS_COMPLETE
    assert world.single.table_migration == world.legacy.table_migration
    assert worker.format.live == "COMPLETE"
    assert world.legacy.lock is None and not worker.election.is_leader(), "the lock of before is given back"
    worker.election.run_once()
    assert worker.election.is_leader()
    assert world.single.lock is not None
    assert worker.turn() is None


@pytest.mark.parametrize("code", [None, 0])
def test_an_owner_that_does_not_know_the_format_starts_the_time_anew(world: World, code: int | None) -> None:
    worker = leader(world)
    reporting(world)
    worker.turn()
    world.clock.advance(BAKE_S)
    world.report(ME)
    world.report(OTHER, code=code)
    worker.turn()
    assert world.status is None
    reporting(world)
    worker.turn()
    item = world.legacy.table_migration
    assert item is not None and item.modified_ms == round(world.clock.wall() * 1000)


def test_a_leader_that_was_stopped_does_not_delete_what_another_wrote_since(world: World) -> None:
    worker = leader(world)
    reporting(world)
    worker.turn()
    world.report(OTHER, code=0)
    deployed = first_state(STATUS_DEPLOYED, OTHER, 0)
    world.metadata.migration.faults = before(
        "delete_table_migration", lambda: setattr(world.legacy, "table_migration", deployed)
    )
    worker.turn()
    assert (world.legacy.table_migration, worker.format.live) == (deployed, "DEPLOYED")


def test_a_code_that_was_not_renewed_for_three_reports_does_not_count(world: World) -> None:
    worker = leader(world)
    reporting(world)
    world.clock.advance(90)
    worker.turn()
    assert world.status == STATUS_INIT
    world.clock.advance(1)
    worker.turn()
    assert world.status is None


def test_nothing_is_done_before_the_first_pass(world: World) -> None:
    worker = leader(world)
    reporting(world)
    worker.migration.run_once()
    assert world.status is None


def test_a_follower_writes_nothing(world: World) -> None:
    world.legacy.lock = LeaderLock(owner_name=OTHER, lease_duration_ms=10_000, record_version_number="theirs")
    worker = Worker(world)
    reporting(world)
    worker.turn()
    assert world.status is None


# Steps that fail


@pytest.mark.parametrize("fault", [THROTTLED, ANSWER_LOST])
@pytest.mark.parametrize("operation", ["create_table_migration", "read_table_migration"])
def test_a_request_that_fails_is_made_again(world: World, operation: str, fault: object) -> None:
    worker = leader(world)
    reporting(world)
    world.metadata.migration.faults = befall(operation, fault)  # type: ignore[arg-type]
    for _ in range(3):
        try:
            worker.turn()
        except RetryLater:
            continue
    assert world.status == STATUS_INIT
    item = world.legacy.table_migration
    assert item is not None and len(item.history) == 1


def test_a_lost_answer_of_the_end_is_noticed_by_the_next_look(world: World) -> None:
    worker = pending(world)
    world.metadata.migration.faults = befall("finalise_table_migration", ANSWER_LOST)
    with pytest.raises(RetryLater):
        worker.turn()
    assert worker.format.live == "PENDING"
    worker.turn()
    assert worker.format.live == "COMPLETE"


def pending(world: World) -> Worker:
    """A leader whose day is over."""
    world.legacy.table_migration = first_state(STATUS_PENDING, OTHER, round((world.clock.wall() - DAY_S) * 1000))
    reporting(world, "lease")
    return leader(world, "PENDING", migrate_all=True)


def test_a_worker_that_reports_to_the_old_table_takes_pending_back(world: World) -> None:
    worker = pending(world)
    world.report("newcomer")
    worker.turn()
    assert (world.status, worker.format.live) == (STATUS_DEPLOYED, "PENDING")


def test_an_item_left_behind_takes_pending_back(world: World) -> None:
    worker = pending(world)
    world.legacy.client_version = client_version_item(OTHER, 1)
    worker.turn()
    assert world.status == STATUS_DEPLOYED


def test_an_owner_without_metrics_keeps_the_end_away(world: World) -> None:
    world.leases.put(lease("s3", "silent"))
    worker = pending(world)
    worker.turn()
    assert world.status == STATUS_DEPLOYED


def test_who_has_lost_the_lock_does_not_end_it(world: World) -> None:
    worker = pending(world)
    theirs = LeaderLock(owner_name=OTHER, lease_duration_ms=10_000, record_version_number="theirs")
    world.metadata.migration.faults = before("finalise_table_migration", lambda: setattr(world.legacy, "lock", theirs))
    worker.turn()
    assert world.status == STATUS_PENDING


def test_items_that_are_in_both_places_block_the_move_and_it_is_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.legacy.table_migration = first_state(STATUS_DEPLOYED, OTHER, 0)
    world.legacy.client_version, world.single.client_version = (client_version_item(w, 1) for w in (ME, OTHER))
    reporting(world, "lease")
    worker = leader(world, "PENDING", migrate_all=True)
    with caplog.at_level(logging.ERROR):
        worker.turn()
    assert "Migration3.0" in caplog.records[-1].__dict__["keys"]
    assert world.legacy.client_version == client_version_item(ME, 1)


def test_an_item_that_nobody_knows_is_left_where_it_is(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """In the lease table it would be a lease to every worker that reads it."""
    world.legacy.table_migration = first_state(STATUS_DEPLOYED, OTHER, 0)
    world.legacy.others["x"] = CoordinatorItem(key="x", attributes={"a": {"S": "b"}})
    reporting(world, "lease")
    worker = leader(world, "PENDING", migrate_all=True)
    for _ in range(3):
        worker.turn()
    assert (world.status, set(world.legacy.others), world.single.others) == (STATUS_DEPLOYED, {"x"}, {})
    assert caplog.records[-1].__dict__["keys"] == ["x"]


# Rollback, and those who only follow


def test_phase_1_deployed_over_phase_2_takes_pending_back(world: World) -> None:
    world.legacy.table_migration = first_state(STATUS_PENDING, OTHER, 0)
    reporting(world)
    worker = leader(world, "DEPLOYED")
    worker.turn()
    assert (world.status, worker.format.live) == (STATUS_DEPLOYED, "DEPLOYED")


def test_a_leader_in_a_table_that_the_fleet_has_left_does_nothing_there(world: World) -> None:
    """It took the lock of the old table after its holder had ended the migration, and gives it back before any pass."""
    world.legacy.table_migration = first_state(STATUS_COMPLETE, OTHER, 0)
    worker = Worker(world, "PENDING", migrate_all=True)
    worker.election.run_once()
    assert worker.election.is_leader() and world.legacy.lock is not None
    worker.migration.look()
    assert not worker.election.is_leader()
    assert world.legacy.lock is None
    worker.election.run_once()
    assert worker.election.is_leader() and world.single.lock is not None


def test_a_worker_that_has_its_metrics_in_a_table_of_their_own_moves_them_at_the_end(world: World) -> None:
    """Java's goes on to write where nobody reads any more (spec migration 7.18)."""
    worker = Worker(world)
    row = WorkerMetricStats(worker_id=ME, last_update_s=5)
    worker.metrics.put(row)
    assert set(world.metadata.metrics.rows) == {ME}
    world.metadata.metrics_in_lease_table.rows[ME] = msgspec.structs.replace(row, last_update_s=1)
    world.legacy.table_migration = first_state(STATUS_COMPLETE, OTHER, 0)
    worker.migration.look()
    assert worker.metrics.put(msgspec.structs.replace(row, last_update_s=6)) is None, "what it left there is no twin"
    assert world.metadata.metrics_in_lease_table.rows[ME].last_update_s == 6
    assert worker.metrics.put(msgspec.structs.replace(row, last_update_s=7)) == 6


def test_of_a_worker_in_both_places_the_last_report_counts(world: World) -> None:
    world.report(ME)
    world.clock.advance(10)
    world.report(ME, "lease")
    world.report(OTHER)
    worker = Worker(world)
    listing = worker.metrics.list_workers(world.leases.list_leases())
    newest = {row.worker_id: row.last_update_s for row in listing.workers}
    assert newest == {ME: int(world.clock.wall()), OTHER: int(world.clock.wall())}
    assert worker.metrics.get(ME) == world.metadata.metrics_in_lease_table.rows[ME]


def test_an_application_of_a_single_table_asks_for_nothing_else(world: World) -> None:
    worker = Worker(world, "COMPLETE")
    worker.election.run_once()
    worker.metrics.put(WorkerMetricStats(worker_id=ME, last_update_s=1))
    assert worker.turn() is None
    assert world.legacy.requests == {} and world.metadata.metrics.requests == {}
    assert world.metadata.migration.requests == {}
