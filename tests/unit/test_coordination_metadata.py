"""The metadata tables at the start (DESIGN.md 4.3, spec migration 1 to 4)."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import CoordinatorSettings, TableSettings
from kcl_host.coordination.metadata import Metadata, NotYet
from kcl_host.coordination.metadata_tables import CoordinatorItems, Format
from kcl_host.decisions.table_migration import (
    STATUS_COMPLETE,
    STATUS_DEPLOYED,
    STATUS_INIT,
    STATUS_PENDING,
    first_state,
)
from kcl_host.errors import ConfigurationError, FleetRolledBack, MetadataConflict, RetryLater, TableMissing
from kcl_host.model.lease import TableState
from kcl_host.model.state import ClientVersionState, LeaderLock
from kcl_host.model.worker import WorkerMetricStats
from tests.fakes.clock import FakeClock
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.unit.coordination_rig import ME, OTHER, always, befall, before, lease, settings_of

LOCK = LeaderLock(owner_name=OTHER, lease_duration_ms=10_000, record_version_number="theirs")


class Tables:
    def __init__(
        self, *, lease: bool = False, coordinator: bool = False, metrics: bool = False, creation_s: float = 0.0
    ):
        self.clock = FakeClock()
        self.lease = InMemoryLeaseTable(self.clock, exists=lease, creation_s=creation_s)
        self.metadata = InMemoryMetadata(self.clock, self.lease, coordinator=coordinator, metrics=metrics)
        self.coordinator, self.metrics = self.metadata.coordinator, self.metadata.metrics
        self.single, self.metrics_in_lease_table = (
            self.metadata.coordinator_in_lease_table,
            self.metadata.metrics_in_lease_table,
        )
        self.format = Format()

    def worker(self, worker_id: str = ME, **sections: Any) -> Metadata:
        self.format = Format()
        return Metadata(
            self.lease,
            self.metadata.tables,
            CoordinatorItems(self.metadata.tables, self.format),
            self.format,
            settings_of(worker_id, **sections),
            self.clock,
            random.Random(1),
        )

    @property
    def exist(self) -> tuple[bool, bool, bool]:
        return self.coordinator.exists(), self.metrics.exists(), self.lease.describe() is not None


def prepared(metadata: Metadata, clock: FakeClock, within_s: float = 60.0) -> float:
    """Seconds it took until `prepare` returned, with a try per second."""
    started_s = clock.monotonic()
    while True:
        try:
            metadata.prepare()
            return clock.monotonic() - started_s
        except RetryLater:
            clock.advance(1.0)
            assert clock.monotonic() - started_s <= within_s


def existing(**fields: Any) -> Tables:
    """An application that has been used: a worker has left its metrics."""
    tables = Tables(lease=True, coordinator=True, metrics=True, **fields)
    tables.metrics.rows[OTHER] = WorkerMetricStats(worker_id=OTHER, last_update_s=0)
    return tables


# A new application


def test_a_new_application_gets_three_tables_with_the_lease_table_last() -> None:
    tables = Tables()
    order: list[str] = []
    tables.coordinator.faults = lambda operation, key: (
        order.append("coordinator") if operation == "create_table" else None
    )
    tables.metrics.faults = lambda operation, key: order.append("metrics") if operation == "create_table" else None
    tables.lease.faults = lambda operation, key: order.append("lease") if operation == "create_table" else None
    tables.worker().prepare()
    assert order == ["coordinator", "metrics", "lease"]
    assert tables.exist == (True, True, True)
    state = tables.lease.describe()
    assert state is not None
    assert state.index_status == "ACTIVE"


def test_a_table_that_is_being_created_is_waited_for_without_limit() -> None:
    """DynamoDB may take its time; the caller counts NotYet for no failure."""
    tables = Tables(creation_s=45.0)
    metadata = tables.worker()
    for _ in range(45):
        with pytest.raises(NotYet, match="CREATING"):
            metadata.prepare()
        tables.clock.advance(1.0)
    metadata.prepare()
    assert tables.lease.requests["create_table"] == 1


def test_a_table_found_while_somebody_creates_it_is_waited_for() -> None:
    tables = Tables(coordinator=True, metrics=True, creation_s=30.0)
    tables.coordinator.lock = LOCK
    tables.lease.create_table()
    assert prepared(tables.worker(), tables.clock) == 30.0


@pytest.mark.parametrize("table", ["coordinator", "metrics", "lease"])
@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_a_creation_without_an_answer(table: str, fault: Fault) -> None:
    tables = Tables(creation_s=5.0)
    getattr(tables, table).faults = befall("create_table", fault)
    assert prepared(tables.worker(), tables.clock) <= 7.0
    assert tables.exist == (True, True, True)


class SeenLate(InMemoryLeaseTable):
    """DescribeTable does not show the table for the first looks after it was created."""

    looks_in_vain = 0

    def describe(self) -> TableState | None:
        if self.looks_in_vain:
            self.looks_in_vain -= 1
            return None
        return super().describe()


def test_our_own_creation_without_an_answer_that_is_seen_late_is_not_taken_for_anothers() -> None:
    tables = Tables()
    tables.lease = late = SeenLate(tables.clock, exists=False)
    late.faults = befall("create_table", ANSWER_LOST)
    worker = tables.worker()
    with pytest.raises(RetryLater):
        worker.prepare()
    late.looks_in_vain = 2
    assert prepared(worker, tables.clock) <= 3.0
    assert tables.exist == (True, True, True)


def test_a_lease_table_of_somebody_else_found_after_a_creation_without_an_answer() -> None:
    """Ours comes with its index; a Java worker adds the index later. Its format is not known yet."""
    tables = Tables()
    tables.lease.faults = befall("create_table", TIMED_OUT)
    metadata = tables.worker()
    with pytest.raises(RetryLater):
        metadata.prepare()
    tables.lease.create_table()
    tables.lease.index_active_at_s = None
    with pytest.raises(NotYet, match="same moment"):
        metadata.prepare()


def test_interrupted_between_the_tables() -> None:
    for left in range(1, 3):
        tables = Tables(coordinator=True, metrics=left == 2)
        tables.worker().prepare()
        assert tables.exist == (True, True, True)


@pytest.mark.parametrize("creation_s", [0.0, 8.0])
def test_two_workers_start_a_new_application_at_once(creation_s: float) -> None:
    tables = Tables(creation_s=creation_s)
    first, second = tables.worker(ME), tables.worker(OTHER)
    tables.lease.faults = before("create_table", lambda: _swallow(first.prepare))
    with pytest.raises(NotYet, match="another worker"):
        second.prepare()
    prepared(first, tables.clock)
    for _ in range(30):
        with pytest.raises(NotYet):
            second.prepare()
        tables.clock.advance(1.0)
    tables.coordinator.lock = LOCK
    second.prepare()
    assert tables.lease.requests["create_table"] == 2


def test_a_lease_table_that_appears_between_our_look_and_our_creation() -> None:
    tables = Tables()
    tables.metrics.faults = before("create_table", tables.lease.create_table)
    with pytest.raises(NotYet, match="another worker"):
        tables.worker().prepare()


def test_the_winner_of_the_creation_uses_a_single_table() -> None:
    """Our two tables would make the next Java worker lead by them; nothing is in them, so they go."""
    tables = Tables()
    metadata = tables.worker()
    tables.lease.faults = before("create_table", tables.lease.create_table)
    _swallow(metadata.prepare)
    tables.single.lock = LOCK
    metadata.prepare()
    assert tables.format.live == "COMPLETE"
    assert tables.exist == (False, False, True)


def test_tables_of_others_are_left_alone_beside_a_single_table() -> None:
    tables = Tables(lease=True, coordinator=True, metrics=True)
    tables.single.lock = LOCK
    tables.worker().prepare()
    assert tables.format.live == "COMPLETE"
    assert tables.exist == (True, True, True)


def test_tables_in_which_nothing_is_are_those_of_a_worker_that_starts() -> None:
    tables = Tables(lease=True, coordinator=True, metrics=True)
    metadata = tables.worker()
    with pytest.raises(NotYet, match="without any item"):
        metadata.prepare()
    tables.metrics.rows[OTHER] = WorkerMetricStats(worker_id=OTHER, last_update_s=0)
    metadata.prepare()
    assert tables.format.live == "INIT"


def test_tables_in_which_nothing_ever_is_are_used_after_a_minute() -> None:
    tables = Tables(lease=True, coordinator=True, metrics=True)
    assert prepared(tables.worker(), tables.clock, within_s=61.0) == 60.0
    assert tables.format.live == "INIT"


def test_two_leaders_are_possible() -> None:
    tables = Tables()
    metadata = tables.worker()
    tables.lease.faults = before("create_table", tables.lease.create_table)
    _swallow(metadata.prepare)
    tables.single.lock = tables.coordinator.lock = LOCK
    with pytest.raises(MetadataConflict, match="Two leaders"):
        metadata.prepare()


@pytest.mark.parametrize("fault", [None, ANSWER_LOST])
@pytest.mark.parametrize("creation_s", [0.0, 5.0])
def test_point_in_time_recovery_of_a_table_that_we_created(creation_s: float, fault: Fault | None) -> None:
    tables = Tables(creation_s=creation_s)
    tables.lease.faults = befall("create_table", fault)
    prepared(tables.worker(lease_table=TableSettings(name="app", point_in_time_recovery=True)), tables.clock)
    assert tables.lease.has_point_in_time_recovery


def test_a_table_found_is_never_altered() -> None:
    tables = existing()
    tables.worker(lease_table=TableSettings(name="app", point_in_time_recovery=True)).prepare()
    assert not tables.lease.has_point_in_time_recovery
    assert "create_index" not in tables.lease.requests


# What is found


def test_a_known_application_is_looked_at_once() -> None:
    tables = existing()
    tables.worker().prepare()
    assert tables.lease.requests == {"describe": 1, "list_leases": 1}


def test_a_missing_index_is_created_and_not_waited_for() -> None:
    tables = existing(creation_s=100.0)
    tables.lease.index_active_at_s = None
    tables.worker().prepare()
    state = tables.lease.describe()
    assert state is not None
    assert state.index_status == "CREATING"


def test_a_missing_table_of_worker_metrics_is_created() -> None:
    tables = Tables(lease=True, coordinator=True)
    tables.coordinator.lock = LOCK
    tables.worker().prepare()
    assert tables.metrics.exists()


def test_a_table_that_is_not_ready_is_no_failure() -> None:
    tables = existing()
    tables.coordinator.faults = before("read_client_version", lambda: _missing())
    with pytest.raises(NotYet):
        tables.worker().prepare()


@pytest.mark.parametrize("version", ["CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"])
def test_a_fleet_in_2x_mode_is_waited_for_as_long_as_it_takes(version: str) -> None:
    tables = existing()
    tables.coordinator.client_version = _version(version)
    metadata = tables.worker()
    for _ in range(100):
        with pytest.raises(NotYet, match=version):
            metadata.prepare()
        tables.clock.advance(60.0)
    tables.coordinator.client_version = _version("CLIENT_VERSION_3X_WITH_ROLLBACK")
    metadata.prepare()
    assert set(tables.metrics.rows) == {OTHER}


def test_an_unknown_client_version_is_refused() -> None:
    tables = existing()
    tables.coordinator.client_version = _version("CLIENT_VERSION_9X")
    with pytest.raises(MetadataConflict, match="CLIENT_VERSION_9X"):
        tables.worker().prepare()


def test_2x_compatibility_asked_for_and_no_item_is_refused() -> None:
    tables = existing()
    compatible = CoordinatorSettings(client_version_config="CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X")
    with pytest.raises(ConfigurationError):
        tables.worker(coordinator=compatible).prepare()


# The format (spec migration 4)


@pytest.mark.parametrize(
    ("status", "migrate_all", "local"),
    [
        (None, False, "INIT"),
        (STATUS_INIT, False, "INIT"),
        (STATUS_DEPLOYED, False, "DEPLOYED"),
        (STATUS_DEPLOYED, True, "PENDING"),
        (STATUS_PENDING, False, "DEPLOYED"),
        (STATUS_PENDING, True, "PENDING"),
        (STATUS_COMPLETE, False, "COMPLETE"),
        (STATUS_COMPLETE, True, "COMPLETE"),
    ],
)
def test_the_status_at_the_start(status: str | None, migrate_all: bool, local: str) -> None:
    tables = existing()
    tables.coordinator.table_migration = None if status is None else first_state(status, OTHER, 0)
    tables.worker(coordinator=CoordinatorSettings(migrate_all_entities=migrate_all)).prepare()
    assert (tables.format.started, tables.format.live) == (local, local)


@pytest.mark.parametrize("status", [None, STATUS_INIT])
def test_phase_2_before_its_time_is_refused(status: str | None) -> None:
    tables = existing()
    tables.coordinator.table_migration = None if status is None else first_state(status, OTHER, 0)
    with pytest.raises(ConfigurationError, match="must wait until TableMigration3"):
        tables.worker(coordinator=CoordinatorSettings(migrate_all_entities=True)).prepare()


def test_an_unknown_status_is_refused() -> None:
    tables = existing()
    tables.coordinator.table_migration = first_state("TABLE_MIGRATION_STATUS_LATER", OTHER, 0)
    with pytest.raises(MetadataConflict, match="STATUS_LATER"):
        tables.worker().prepare()


@pytest.mark.parametrize("format", ["single", "auto"])
def test_a_new_application_in_the_lease_table_alone(format: Any) -> None:
    tables = Tables()
    coordinator = CoordinatorSettings(metadata_table_format=format, migrate_all_entities=format == "auto")
    tables.worker(coordinator=coordinator).prepare()
    assert tables.exist == (False, False, True)
    assert tables.format.live == "COMPLETE"
    state = tables.lease.describe()
    assert state is not None and state.index_status == "ACTIVE"


def test_a_single_table_is_recognised_and_nothing_is_created_beside_it() -> None:
    tables = Tables(lease=True)
    tables.single.client_version = _version("CLIENT_VERSION_3X")
    tables.worker().prepare()
    assert tables.exist == (False, False, True)
    assert tables.format.live == "COMPLETE"


def test_after_the_move_only_the_lease_table_tells_the_client_version() -> None:
    tables = existing()
    tables.coordinator.table_migration = first_state(STATUS_COMPLETE, OTHER, 0)
    tables.coordinator.client_version = _version("CLIENT_VERSION_2X")
    tables.single.client_version = _version("CLIENT_VERSION_3X")
    tables.worker().prepare()
    assert tables.format.live == "COMPLETE"


def test_the_client_version_of_a_single_table_counts() -> None:
    tables = Tables(lease=True)
    tables.single.client_version = _version("CLIENT_VERSION_2X")
    with pytest.raises(NotYet, match="CLIENT_VERSION_2X"):
        tables.worker().prepare()


def test_workers_that_report_in_the_lease_table_before_its_time_are_a_second_fleet() -> None:
    tables = existing()
    now_s = int(tables.clock.wall())
    tables.metrics_in_lease_table.rows["java"] = WorkerMetricStats(worker_id="java", last_update_s=now_s - 100)
    tables.worker().prepare()
    tables.metrics_in_lease_table.rows["java"] = WorkerMetricStats(worker_id="java", last_update_s=now_s)
    with pytest.raises(MetadataConflict, match="Two leaders"):
        tables.worker().prepare()


# A lease table without the other two


def bare() -> Tables:
    tables = Tables(lease=True)
    tables.lease.index_active_at_s = None
    tables.lease.leases_have_entity_type = False
    tables.lease.put(lease(owner="java-2x"))
    return tables


def test_counters_that_move_are_a_2x_fleet() -> None:
    tables = bare()
    metadata = tables.worker()
    with pytest.raises(NotYet):
        metadata.prepare()
    tables.clock.advance(4.0)
    tables.lease.put(lease(owner="java-2x", counter=4))
    with pytest.raises(NotYet, match="making them"):
        metadata.prepare()
    with pytest.raises(MetadataConflict, match=r"2\.x workers are running"):
        prepared(metadata, tables.clock, within_s=86.0)
    assert tables.exist == (False, False, True)


def test_leases_that_appear_are_a_2x_fleet_that_starts() -> None:
    tables = bare()
    tables.lease.delete("s1")
    metadata = tables.worker(coordinator=CoordinatorSettings(metadata_table_format="three"))
    with pytest.raises(NotYet):
        metadata.prepare()
    tables.lease.put(lease(counter=0))
    with pytest.raises(MetadataConflict, match=r"2\.x workers are running"):
        prepared(metadata, tables.clock, within_s=90.0)


def test_a_java_3_worker_that_is_still_making_its_tables_is_waited_for() -> None:
    tables = bare()
    metadata = tables.worker()
    _swallow(metadata.prepare)
    tables.clock.advance(30.0)
    tables.lease.put(lease(owner="java-2x", counter=9))
    with pytest.raises(NotYet, match="making them"):
        metadata.prepare()
    tables.coordinator.create_table()
    tables.coordinator.lock = LOCK
    metadata.prepare()
    assert tables.format.live == "INIT"


def test_counters_that_stand_still_need_a_word_from_the_operator() -> None:
    tables = bare()
    metadata = tables.worker()
    with pytest.raises(ConfigurationError, match="metadataTableFormat = three"):
        prepared(metadata, tables.clock)
    assert tables.clock.monotonic() > 1010.0


def test_with_that_word_the_other_tables_and_the_index_are_created() -> None:
    tables = bare()
    metadata = tables.worker(coordinator=CoordinatorSettings(metadata_table_format="three"))
    assert prepared(metadata, tables.clock) == 11.0
    assert tables.exist == (True, True, True)
    assert tables.lease.requests["create_index"] == 1


def test_another_worker_that_creates_the_tables_meanwhile_ends_the_watch() -> None:
    tables = bare()
    metadata = tables.worker()
    _swallow(metadata.prepare)
    tables.coordinator.create_table()
    tables.coordinator.lock = LOCK
    metadata.prepare()


# Migration3.0, later


def test_the_client_version_is_created_after_one_to_two_minutes() -> None:
    tables = existing()
    metadata = tables.worker()
    metadata.prepare()
    pause_s = metadata.run_once()
    assert pause_s is not None
    assert 60.0 <= pause_s <= 120.0
    tables.clock.advance(pause_s)
    assert metadata.run_once() is None
    created = tables.coordinator.client_version
    assert created is not None
    assert (created.client_version, created.modified_by) == ("CLIENT_VERSION_3X", ME)
    assert created.modified_ms == round(tables.clock.wall() * 1000)
    assert [entry.client_version for entry in created.history] == ["CLIENT_VERSION_INIT"]


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_its_creation_without_an_answer_is_looked_after(fault: Fault) -> None:
    tables = existing()
    metadata = tables.worker()
    tables.clock.advance(120.0)
    tables.coordinator.faults = befall("create_client_version", fault)
    with pytest.raises(RetryLater):
        metadata.run_once()
    assert metadata.run_once() is None
    assert tables.coordinator.client_version is not None


def test_who_loses_the_creation_accepts_what_the_winner_wrote() -> None:
    tables = existing()
    metadata = tables.worker()
    tables.clock.advance(120.0)
    theirs = _version("CLIENT_VERSION_3X")
    tables.coordinator.faults = before("create_client_version", lambda: _set(tables, theirs))
    assert metadata.run_once() == 0.0
    assert metadata.run_once() is None
    assert tables.coordinator.client_version == theirs


@pytest.mark.parametrize("version", ["CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"])
@pytest.mark.parametrize("at_first", [None, "CLIENT_VERSION_3X_WITH_ROLLBACK"])
def test_an_application_rolled_back_to_2x_is_left(at_first: str | None, version: str) -> None:
    tables, metadata = _watching(at_first)
    tables.coordinator.client_version = _version(version)
    with pytest.raises(FleetRolledBack, match=version):
        metadata.run_once()


def test_a_version_that_nobody_knows_is_said_each_minute_and_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    tables, metadata = _watching("CLIENT_VERSION_3X_WITH_ROLLBACK")
    tables.coordinator.client_version = _version("CLIENT_VERSION_9X")
    assert metadata.run_once() == 60.0
    assert "CLIENT_VERSION_9X" in caplog.records[-1].__dict__["error"]


def _watching(version: str | None) -> tuple[Tables, Metadata]:
    tables = existing()
    tables.coordinator.client_version = None if version is None else _version(version)
    metadata = tables.worker()
    metadata.prepare()
    tables.clock.advance(120.0)
    if version is not None:
        assert metadata.run_once() == 60.0
        tables.clock.advance(30.0)
        assert metadata.run_once() == 30.0
        tables.clock.advance(30.0)
    return tables, metadata


def test_the_time_of_the_rollback_is_ended_by_who_was_told_to() -> None:
    """Java's workers do it by their default (spec migration 1.2); ours only by a key that stands in the file."""
    tables, _ = _watching("CLIENT_VERSION_3X_WITH_ROLLBACK")
    assert tables.coordinator.client_version == _version("CLIENT_VERSION_3X_WITH_ROLLBACK")
    told = tables.worker(coordinator=CoordinatorSettings(client_version_is_explicit=True))
    told.prepare()
    tables.clock.advance(120.0)
    assert told.run_once() is None
    promoted = tables.coordinator.client_version
    assert promoted is not None
    assert (promoted.client_version, promoted.modified_by) == ("CLIENT_VERSION_3X", ME)
    assert promoted.history[0].client_version == "CLIENT_VERSION_3X_WITH_ROLLBACK"


def test_the_watch_ends_with_the_migration() -> None:
    tables = existing()
    tables.coordinator.client_version = _version("CLIENT_VERSION_3X_WITH_ROLLBACK")
    metadata = tables.worker()
    tables.clock.advance(120.0)
    assert metadata.run_once() == 60.0
    tables.coordinator.client_version = _version("CLIENT_VERSION_3X")
    tables.clock.advance(60.0)
    assert metadata.run_once() is None


def test_a_table_without_answers_is_no_decision() -> None:
    tables = existing()
    tables.coordinator.faults = always("exists", TIMED_OUT)
    with pytest.raises(RetryLater) as raised:
        tables.worker().prepare()
    assert not isinstance(raised.value, NotYet)


def _version(client_version: str) -> ClientVersionState:
    return ClientVersionState(client_version=client_version, modified_by="java", modified_ms=1)


def _set(tables: Tables, version: ClientVersionState) -> None:
    tables.coordinator.client_version = msgspec.structs.replace(version)


def _missing() -> None:
    raise TableMissing("CoordinatorState is being created")


def _swallow(prepare: Any) -> None:
    with contextlib.suppress(NotYet):
        prepare()
