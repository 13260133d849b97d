"""Leases of a single-stream application brought into a multi-stream table: the plan, and what carries it out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.aws.items import lease_from, lease_item
from kcl_host.config.settings import CoordinatorSettings, WorkerMetricsSettings
from kcl_host.coordination.lease_migration import LeaseMigration, MigratedTables
from kcl_host.coordination.metadata import Metadata
from kcl_host.coordination.metadata_tables import CoordinatorItems, Format
from kcl_host.decisions.lease_migration import (
    LeaseMigrationPlan,
    Sighting,
    multi_stream_lease,
    observation_s,
    plan_lease_migration,
    plan_metadata_format,
    signs_of_life,
)
from kcl_host.decisions.metadata_format import (
    UNUSED_S,
    VERSION_2X,
    VERSION_3X,
    VERSION_3X_WITH_ROLLBACK,
    MetadataFacts,
    Refuse,
    UseSingleTable,
    UseThreeTables,
    client_version_item,
)
from kcl_host.decisions.table_migration import STATUS_COMPLETE, STATUS_DEPLOYED, STATUS_PENDING, first_state
from kcl_host.decisions.worker_activity import LEAVING
from kcl_host.errors import (
    AccessError,
    ConfigurationError,
    KclHostError,
    MetadataConflict,
    StreamNotFound,
    Unavailable,
)
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange, Shard, StreamIdentifier, StreamSummary
from kcl_host.model.state import LeaderLock
from tests.fakes.clock import FakeClock
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault, FaultPlan
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.fakes.stream import InMemoryStream
from tests.unit.coordination_rig import ME, OTHER, always, befall, lease, reporting, settings_of

ORDERS = StreamIdentifier(name="orders", account="123456789012", epoch=1_800_000_000)
EVENTS = StreamIdentifier(name="events", account="123456789012", epoch=1_700_000_000)
NOTHING = LeaseListing(leases=())
S0, S1, S2 = (f"shardId-{n:012d}" for n in range(3))


def shard(shard_id: str, start: int = 100) -> Shard:
    whole = HashKeyRange(0, MAX_HASH_KEY)
    return Shard(shard_id=shard_id, hash_key_range=whole, starting_sequence_number=str(start))


SHARDS = (shard(S0), shard(S1))


def at(number: int, sub: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), sub)


def listing(*leases: Lease, **fields: Any) -> LeaseListing:
    return LeaseListing(leases=leases, **{"entity_types": frozenset({"LEASE"}), **fields})


def planned(old: LeaseListing, new: LeaseListing = NOTHING) -> LeaseMigrationPlan:
    plan = plan_lease_migration(ORDERS, SHARDS, old, new)
    assert isinstance(plan, LeaseMigrationPlan), plan
    return plan


def refused(old: LeaseListing, new: LeaseListing = NOTHING) -> Refuse:
    plan = plan_lease_migration(ORDERS, SHARDS, old, new)
    assert isinstance(plan, Refuse), plan
    return plan


# One lease

numbers = st.integers(0, 2**186).map(str)
positions = st.builds(ExtendedSequenceNumber, numbers, st.integers(0, 2**40)) | st.sampled_from(
    [AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber("LATEST"), ExtendedSequenceNumber("AT_TIMESTAMP")]
)
workers = st.none() | st.sampled_from([ME, OTHER])
shard_ids = st.integers(0, 10**6).map(lambda n: f"shardId-{n:012d}")
ranges = st.tuples(st.integers(0, MAX_HASH_KEY), st.integers(0, MAX_HASH_KEY)).filter(lambda pair: pair[0] < pair[1])
leases = st.builds(
    Lease,
    lease_key=shard_ids,
    checkpoint=st.none() | positions,
    lease_counter=st.integers(0, 2**60),
    lease_owner=workers,
    checkpoint_owner=workers,
    owner_switches_since_checkpoint=st.integers(0, 1000),
    parent_shard_ids=st.frozensets(shard_ids, max_size=2),
    child_shard_ids=st.frozensets(shard_ids, max_size=2),
    hash_key_range=st.none() | ranges.map(lambda pair: HashKeyRange(*pair)),
    pending_checkpoint=st.none() | positions,
    pending_checkpoint_state=st.none() | st.binary(min_size=1, max_size=20),
    throughput_kbps=st.none() | st.floats(0, 1e9),
)
KEPT = (
    "checkpoint",
    "owner_switches_since_checkpoint",
    "parent_shard_ids",
    "child_shard_ids",
    "hash_key_range",
    "pending_checkpoint",
)


@given(leases)
def test_everything_but_the_key_and_who_holds_it_is_kept(old: Lease) -> None:
    new = multi_stream_lease(old, ORDERS)
    assert new.lease_key == f"123456789012:orders:1800000000:{old.lease_key}"
    assert (new.stream_name, new.shard_id) == ("123456789012:orders:1800000000", old.lease_key)
    assert (new.lease_counter, new.lease_owner, new.checkpoint_owner) == (0, None, None)
    assert [getattr(new, name) for name in KEPT] == [getattr(old, name) for name in KEPT]
    assert new.throughput_kbps == pytest.approx(old.throughput_kbps, abs=1e-6)
    if old.pending_checkpoint is not None:
        assert new.pending_checkpoint_state == old.pending_checkpoint_state
    assert {new.key_of(shard_id) for shard_id in new.parent_shard_ids} == {
        f"{ORDERS}:{shard_id}" for shard_id in old.parent_shard_ids
    }


@given(leases)
def test_a_new_lease_is_read_back_as_it_was_written(old: Lease) -> None:
    """Else an attempt that is run again would take its own rows for somebody else's."""
    new = multi_stream_lease(old, ORDERS)
    assert lease_from(lease_item(new)) == new


def test_the_identifier_is_that_of_this_incarnation_of_the_stream() -> None:
    summary = StreamSummary(
        name="orders",
        arn="arn:aws-cn:kinesis:cn-north-1:123456789012:stream/orders",
        status="ACTIVE",
        open_shard_count=1,
        retention_hours=24,
        creation_s=1_800_000_000.999,
    )
    assert summary.identifier == ORDERS


# The plan


@given(st.lists(leases, min_size=1, max_size=6, unique_by=lambda lease: lease.lease_key), st.data())
def test_what_is_there_already_is_recognised_and_the_rest_is_missing(old: list[Lease], data: st.DataObject) -> None:
    there = data.draw(st.lists(st.sampled_from(old), unique=True))
    foreign = multi_stream_lease(old[0], EVENTS)
    plan = plan_lease_migration(
        ORDERS, (), listing(*old), listing(foreign, *(multi_stream_lease(one, ORDERS) for one in there))
    )
    assert isinstance(plan, LeaseMigrationPlan)
    assert [move.lease for move in plan.moves] == sorted(old, key=lambda lease: lease.lease_key)
    assert {move.lease.lease_key for move in plan.moves if move.is_there} == {one.lease_key for one in there}


@given(leases, st.integers(1, 5))
def test_a_lease_that_is_there_and_different_is_refused(old: Lease, counter: int) -> None:
    used = msgspec.structs.replace(multi_stream_lease(old, ORDERS), lease_counter=counter)
    refusal = plan_lease_migration(ORDERS, (), listing(old), listing(used))
    assert isinstance(refusal, Refuse) and used.lease_key in refusal.message and refusal.because == "conflict"


def test_rows_that_are_no_leases_are_left_behind() -> None:
    plan = planned(listing(lease(S0), entity_types=frozenset({"LEASE", "WORKER_METRIC_STATS", "LEADER"})))
    assert plan.left_behind == ("LEADER", "WORKER_METRIC_STATS")


def test_what_the_operator_should_know_of_a_lease() -> None:
    plan = planned(
        listing(
            lease(S0, checkpoint=ExtendedSequenceNumber("AT_TIMESTAMP")),
            lease(S1, checkpoint=at(100)),
            lease("shardId-000000000007", checkpoint=at(5)),
            lease("shardId-000000000008", checkpoint=AT_SHARD_END),
        )
    )
    assert [move.note for move in plan.moves] == [
        "needs the same initialPositionInStreamExtended again",
        "",
        "the shard is not in the stream any more",
        "",
    ]


CASES: dict[str, tuple[LeaseListing, LeaseListing, str, str]] = {
    "no lease": (NOTHING, NOTHING, "configuration", "holds no leases"),
    "broken row": (listing(lease(S0), undecodable=("x", "y")), NOTHING, "conflict", "no valid leases: x, y"),
    "multi-stream already": (
        listing(multi_stream_lease(lease(S0), EVENTS)),
        NOTHING,
        "configuration",
        f"multi-stream leases already: {EVENTS}:{S0}",
    ),
    "a former stream": (
        listing(lease(S0, checkpoint=at(99, 5)), lease(S1, checkpoint=at(101))),
        NOTHING,
        "conflict",
        f"a former stream of this name: {S0}",
    ),
    "broken row in the new table": (listing(lease(S0)), listing(undecodable=("z",)), "conflict", "no valid leases: z"),
    "single-stream rows in the new table": (listing(lease(S0)), listing(lease(S1)), "conflict", S1),
    "more leases of the stream than there should be": (
        listing(lease(S0)),
        listing(multi_stream_lease(lease(S1), ORDERS)),
        "conflict",
        f"other leases of this stream than it should: {ORDERS}:{S1}",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_understood_is_refused_by_name(case: str) -> None:
    old, new, because, said = CASES[case]
    refusal = refused(old, new)
    assert refusal.because == because
    assert said in refusal.message


def test_many_rows_are_not_all_named() -> None:
    assert refused(listing(lease(S0), undecodable=tuple("gfedcba"))).message.endswith("a, b, c, d, e and 2 more")


# The format

THREE = MetadataFacts(
    lease_table_exists=True,
    lease_table_has_index=True,
    entity_types=frozenset({"LEASE"}),
    coordinator_table_exists=True,
    worker_metrics_table_exists=True,
    client_version=VERSION_3X,
    counters_moving=False,
    watched_s=UNUSED_S,
)
SINGLE = msgspec.structs.replace(THREE, coordinator_table_exists=False, worker_metrics_table_exists=False)
BARE = msgspec.structs.replace(SINGLE, lease_table_has_index=False, entity_types=frozenset(), client_version=None)
PLAIN = CoordinatorSettings()


def facts(of: MetadataFacts, *more_types: str, **changes: Any) -> MetadataFacts:
    return msgspec.structs.replace(of, entity_types=of.entity_types | set(more_types), **changes)


FORMATS: dict[str, tuple[MetadataFacts, CoordinatorSettings, type | str]] = {
    "three tables": (THREE, PLAIN, UseThreeTables),
    "three, of 3.4": (facts(THREE, lease_table_has_index=False), PLAIN, UseThreeTables),
    "three, may be rolled back": (facts(THREE, client_version=VERSION_3X_WITH_ROLLBACK), PLAIN, UseThreeTables),
    "three, ready to move": (facts(THREE, table_migration_status=STATUS_DEPLOYED), PLAIN, UseThreeTables),
    "single table": (facts(SINGLE, "WORKER_METRIC_STATS", "LEADER"), PLAIN, UseSingleTable),
    "single, moved into": (facts(THREE, "LEADER", table_migration_status=STATUS_COMPLETE), PLAIN, UseSingleTable),
    "2.x, continued as single": (BARE, CoordinatorSettings(metadata_table_format="single"), UseSingleTable),
    "half moved": (
        facts(THREE, "CLIENT_VERSION_MIGRATION", table_migration_status=STATUS_PENDING),
        CoordinatorSettings(migrate_all_entities=True),
        "CLIENT_VERSION_MIGRATION already",
    ),
    "2.x mode": (facts(THREE, client_version=VERSION_2X), PLAIN, "2.x mode"),
    "2.x": (BARE, PLAIN, "metadataTableFormat"),
    "2.x, continued as three": (BARE, CoordinatorSettings(metadata_table_format="three"), "run a worker on it"),
    "an unused table beside a single one": (
        facts(THREE, "LEADER", coordinator_table_used=False),
        PLAIN,
        "a CoordinatorState table that nobody uses",
    ),
}


@pytest.mark.parametrize("case", FORMATS)
def test_the_format_of_the_new_table_is_that_of_the_old_one(case: str) -> None:
    found, settings, expected = FORMATS[case]
    format = plan_metadata_format(found, frozenset(), settings)
    if isinstance(expected, str):
        assert isinstance(format, Refuse) and expected in format.message
    else:
        assert type(format) is expected


# Whether the fleet has stopped

METRICS = WorkerMetricsSettings()


def test_a_fleet_that_stands_still_shows_nothing() -> None:
    clock = FakeClock()
    still = Sighting(leases=(lease(S0), lease(S1)), workers=(reporting(ME, clock),), locks=frozenset({"version"}))
    assert signs_of_life(still, still) == ()
    assert signs_of_life(still, msgspec.structs.replace(still, workers=(), locks=frozenset())) == ()


SIGNS: dict[str, tuple[dict[str, Any], str]] = {
    "heartbeat": ({"leases": (lease(S0, counter=4), lease(S1))}, f"lease {S0} was written (held by {ME})"),
    "handover begun": (
        {"leases": (lease(S0), lease(S1, owner=OTHER, checkpoint_owner=ME))},
        f"lease {S1} was written (held by {ME})",
    ),
    "counter gone back": ({"leases": (lease(S0, counter=2), lease(S1))}, f"lease {S0} was written (held by {ME})"),
    "evicted": ({"leases": (lease(S0, owner=None), lease(S1))}, f"lease {S0} was written (held by {ME})"),
    "created": ({"leases": (lease(S0), lease(S1), lease(S2))}, f"lease {S2} was created"),
    "deleted": ({"leases": (lease(S0),)}, f"lease {S1} was deleted"),
    "reported": ({"workers": (reporting(ME, FakeClock(wall_s=2e9)),)}, f"worker {ME} reported"),
    "new worker": (
        {"workers": (reporting(ME, FakeClock()), reporting(OTHER, FakeClock()))},
        f"worker {OTHER} reported",
    ),
    "lock": ({"locks": frozenset({"next"})}, "the leader renewed its lock"),
}


@pytest.mark.parametrize("case", SIGNS)
def test_whatever_moves_is_a_sign_of_life(case: str) -> None:
    before = Sighting(
        leases=(lease(S0), lease(S1)), workers=(reporting(ME, FakeClock()),), locks=frozenset({"version"})
    )
    change, said = SIGNS[case]
    assert signs_of_life(before, msgspec.structs.replace(before, **change)) == (said,)


def test_workers_that_reported_of_late_are_watched_until_their_next_report() -> None:
    clock = FakeClock()
    row = reporting(ME, clock)
    leaving = reporting(ME, clock, properties={"state": LEAVING})

    def observed(wall_s: float, *workers: Any) -> float:
        return observation_s(Sighting(leases=(), workers=workers), wall_s, 10.0, METRICS)

    assert observed(clock.wall()) == 10.0
    assert observed(clock.wall(), leaving) == 10.0
    assert observed(clock.wall() + 61, row) == 10.0
    assert observed(clock.wall() + 5, row) == 35.0


# Carried out


class Killed(Exception):
    """The process ended here."""


class Application:
    """A stopped application of two shards, and the table its leases are to be brought into."""

    def __init__(self, *, single_table: bool = False, **sections: Any) -> None:
        self.clock = FakeClock()
        self.stream = InMemoryStream(self.clock, shard_count=2)
        self.old = InMemoryLeaseTable(self.clock)
        self.metadata = InMemoryMetadata(self.clock, self.old, coordinator=not single_table, metrics=not single_table)
        self.items = self.metadata.coordinator_in_lease_table if single_table else self.metadata.coordinator
        self.items.client_version = client_version_item(ME, 1)
        self.new = InMemoryLeaseTable(self.clock, exists=False, creation_s=3.0)
        self.new_metadata = InMemoryMetadata(self.clock, self.new)
        self.new_items = self.new_metadata.coordinator_in_lease_table
        self.settings = settings_of(ME, **sections)
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens during each pause."""
        self.progress: list[tuple[str, float, float]] = []
        number = int(self.stream.put(b"x", shard_id=S0)[1])
        for one in (
            lease(S0, ME, 17, checkpoint=at(number, 2), pending_checkpoint=at(number + 1), throughput_kbps=1.5),
            lease(S1, OTHER, 4, checkpoint_owner=ME, owner_switches_since_checkpoint=3),
        ):
            self.old.put(one)
        self.before = dict(self.old.rows)

    def migration(self) -> LeaseMigration:
        tables = MigratedTables(
            old=self.old,
            metadata=self.metadata.tables,
            new=self.new,
            new_name="new",
            new_items=self.new_items,
        )
        return LeaseMigration(self.stream, tables, self.settings, self.clock, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)
        self.meanwhile()

    def apply(self) -> None:
        self.migration().apply(lambda *step: self.progress.append(step))

    @property
    def wanted(self) -> dict[str, Lease]:
        stream = self.stream.describe().identifier
        leases = [multi_stream_lease(one, stream) for one in self.before.values()]
        return {one.lease_key: one for one in leases}

    def check(self) -> None:
        """All is as it should be after an end without an error."""
        assert self.new.rows == self.wanted
        assert self.old.rows == self.before, "the old table is never changed"


def test_a_preview_writes_nothing_and_waits_for_nobody() -> None:
    app = Application()
    app.metadata.metrics.rows[OTHER] = reporting(OTHER, app.clock)
    preview = app.migration().preview()
    assert [move.lease.lease_key for move in preview.plan.moves] == [S0, S1]
    assert not any(move.is_there for move in preview.plan.moves)
    assert (preview.is_single_table, preview.new_table_exists, preview.reporting) == (False, False, (OTHER,))
    assert app.new.requests.keys() == {"describe"} and app.slept == []


def test_leases_are_brought_into_a_table_made_for_them() -> None:
    app = Application(lease_table=msgspec.structs.replace(settings_of(ME).lease_table, point_in_time_recovery=True))
    began_s = app.clock.monotonic()
    app.apply()
    app.check()
    state = app.new.describe()
    assert state is not None and (state.status, state.index_status) == ("ACTIVE", "ACTIVE")
    assert app.new.has_point_in_time_recovery
    assert app.clock.monotonic() - began_s > app.settings.lease.failover_s
    assert app.new_items.client_version is None, "Migration3.0 stays where it is"
    watched = [step for step in app.progress if step[0].startswith("seconds")]
    assert len(watched) >= 3 and watched[-1][1] > watched[-1][2] == app.settings.lease.failover_s
    assert app.progress[-1] == ("leases written", 2, 2)


def test_a_single_table_takes_migration_3_0_along() -> None:
    app = Application(single_table=True)
    app.apply()
    app.check()
    assert app.new_items.client_version == client_version_item(ME, 1)
    app.apply()
    app.new_items.client_version = client_version_item(OTHER, 2)
    with pytest.raises(MetadataConflict, match=r"Migration3\.0"):
        app.apply()


@pytest.mark.parametrize("single_table", [False, True])
def test_the_first_worker_on_the_new_table_goes_on_as_the_old_ones_did(single_table: bool) -> None:
    app = Application(single_table=single_table)
    app.apply()
    tables = app.new_metadata.tables
    if not single_table:
        tables = replace(tables, coordinator=app.metadata.coordinator, worker_metrics=app.metadata.metrics)
        tables = replace(tables, migration=app.metadata.migration)
    format = Format()
    worker = Metadata(
        app.new, tables, CoordinatorItems(tables, format), format, app.settings, app.clock, random.Random(1)
    )
    worker.prepare()
    assert format.live == ("COMPLETE" if single_table else "INIT")
    assert not app.new_metadata.coordinator.is_there and app.new.requests["create_index"] == 0


def test_a_table_without_an_index_gets_it() -> None:
    app = Application()
    app.new = InMemoryLeaseTable(app.clock)
    app.new.index_active_at_s = None
    app.apply()
    app.check()
    assert app.new.index_active_at_s is not None


def test_a_scan_that_lags_behind_does_not_bring_an_old_checkpoint_along() -> None:
    app = Application()
    last = msgspec.structs.replace(app.old.rows[S1], checkpoint=at(10**58), lease_counter=5)
    app.clock.advance(1.0)
    app.old.put(last)
    app.before[S1] = last
    app.old.lag = lambda read, key: 1000.0 if read == "scan" and key == S1 else 0.0
    app.clock.advance(999.5)
    app.apply()
    app.check()


def killed_before(write: int) -> FaultPlan:
    """Ends the process just before its write of that number, from 0."""
    left = [write]

    def plan(operation: str, key: str) -> Fault | None:
        if operation in ("create_table", "create_client_version", "create"):
            if not left[0]:
                raise Killed
            left[0] -= 1
        return None

    return plan


@pytest.mark.parametrize("write", range(4))
def test_an_attempt_that_was_killed_anywhere_is_completed_by_the_next(write: int) -> None:
    app = Application(single_table=True)
    app.new.faults = app.new_items.faults = killed_before(write)
    with pytest.raises(Killed):
        app.apply()
    assert len(app.new.rows) == max(write - 2, 0)
    app.new.faults = app.new_items.faults = lambda operation, key: None
    app.apply()
    app.check()
    assert app.new_items.client_version == app.items.client_version
    assert app.progress[-1] == ("leases written", *[2 - max(write - 2, 0)] * 2), "what is there is not written again"
    assert app.new.requests["create_table"] == (2 if write == 0 else 1)


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
@pytest.mark.parametrize("operation", ["create_table", "create", "get_all", "list_leases"])
def test_what_fails_for_the_moment_is_tried_again(operation: str, fault: Fault) -> None:
    app = Application()
    app.new.faults = befall(operation, fault, fault)
    app.old.faults = befall(operation, fault, fault)
    app.apply()
    app.check()


def test_what_goes_on_failing_ends_it() -> None:
    app = Application()
    app.new.faults = always("create", TIMED_OUT)
    with pytest.raises(Unavailable):
        app.apply()
    assert app.new.requests["create"] == 10
    app.new.faults = always("create", Fault("refused"))
    with pytest.raises(AccessError):
        app.apply()
    assert app.new.requests["create"] == 11, "nobody waits for a permission"


def renew(app: Application) -> None:
    one = app.old.rows[S0]
    app.old.put(msgspec.structs.replace(one, lease_counter=one.lease_counter + 1))


def hand_over(app: Application) -> None:
    app.old.put(msgspec.structs.replace(app.old.rows[S0], lease_owner=OTHER, checkpoint_owner=ME))


def transfer(app: Application) -> None:
    app.old.put(msgspec.structs.replace(app.old.rows[S1], checkpoint_owner=None))


def report(app: Application) -> None:
    app.metadata.metrics.rows[OTHER] = reporting(OTHER, app.clock)


def lead(app: Application) -> None:
    app.metadata.coordinator.lock = LeaderLock(
        owner_name=OTHER, lease_duration_ms=10_000, record_version_number=str(app.clock.now_s)
    )


LIVELY: dict[str, tuple[Callable[[Application], None], str]] = {
    "heartbeats": (renew, f"lease {S0} was written"),
    "a handover begins": (hand_over, f"lease {S0} was written"),
    "a pending handover ends": (transfer, f"lease {S1} was written"),
    "an idle worker reports": (report, f"worker {OTHER} reported"),
    "a leader": (lead, "the leader renewed its lock"),
}


@pytest.mark.parametrize("case", LIVELY)
@pytest.mark.parametrize("moment", ["at once", "just before failoverTimeMillis"])
def test_nothing_is_written_while_a_worker_runs(case: str, moment: str) -> None:
    app = Application()
    act, said = LIVELY[case]
    due_s = app.clock.monotonic() + (0 if moment == "at once" else 0.95 * app.settings.lease.failover_s)
    app.meanwhile = lambda: act(app) if app.clock.monotonic() >= due_s else None
    with pytest.raises(MetadataConflict, match="workers are running on table app") as raised:
        app.apply()
    assert said in str(raised.value)
    assert app.new.requests.keys() == {"describe"}


def test_a_worker_that_reported_of_late_is_waited_for() -> None:
    """An idle worker shows itself by nothing else, and that may be seldom."""
    app = Application()
    app.metadata.metrics.rows[OTHER] = reporting(OTHER, app.clock)
    app.clock.advance(2.0)
    due_s = app.clock.monotonic() + 28.0
    app.meanwhile = lambda: report(app) if app.clock.monotonic() >= due_s else None
    with pytest.raises(MetadataConflict, match=f"worker {OTHER} reported"):
        app.apply()


def test_a_fleet_that_uses_the_new_table_is_seen_too() -> None:
    app = Application()
    foreign = multi_stream_lease(lease("shardId-000000000009"), EVENTS)
    app.new = InMemoryLeaseTable(app.clock)
    app.new.put(foreign)

    def beat() -> None:
        one = app.new.rows[foreign.lease_key]
        app.new.put(msgspec.structs.replace(one, lease_counter=one.lease_counter + 1))

    app.meanwhile = beat
    with pytest.raises(MetadataConflict, match=foreign.lease_key):
        app.apply()
    app.meanwhile = lambda: None
    app.apply()
    assert len(app.new.rows) == 3, "leases of other streams stay"


def test_a_fleet_started_meanwhile_is_said_at_the_end() -> None:
    app = Application()

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "create":
            renew(app)
        return None

    app.new.faults = plan
    with pytest.raises(MetadataConflict, match="delete table new"):
        app.apply()


def test_a_worker_on_the_new_table_in_the_middle_of_it_is_noticed() -> None:
    app = Application()

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "create" and key.endswith(S1):
            first = next(iter(app.new.rows.values()))
            app.new.put(msgspec.structs.replace(first, lease_counter=1, lease_owner=OTHER))
        return None

    app.new.faults = plan
    with pytest.raises(MetadataConflict, match=f"not as they were written: .*{S0}"):
        app.apply()


def test_a_row_that_came_in_between_is_not_overwritten() -> None:
    app = Application()
    (key, theirs), *_ = (
        (key, msgspec.structs.replace(one, checkpoint=AT_TRIM_HORIZON)) for key, one in app.wanted.items()
    )

    def plan(operation: str, at_key: str) -> Fault | None:
        if operation == "create" and at_key == key:
            app.new.put(theirs)
        return None

    app.new.faults = plan
    with pytest.raises(MetadataConflict, match=f"another lease {key}"):
        app.apply()
    assert app.new.rows == {key: theirs}


def test_the_new_table_in_use_is_nothing_to_do_again() -> None:
    app = Application()
    app.apply()
    used = msgspec.structs.replace(next(iter(app.wanted.values())), lease_counter=1, lease_owner=OTHER)
    app.new.put(used)
    with pytest.raises(MetadataConflict, match=f"app -> new: .*{used.lease_key}"):
        app.apply()


def missing_table(app: Application) -> None:
    app.old = InMemoryLeaseTable(app.clock, exists=False)


def missing_stream(app: Application) -> None:
    app.stream.deleted = True


def stream_going_away(app: Application) -> None:
    app.stream.status = "DELETING"


def half_moved(app: Application) -> None:
    app.metadata.coordinator.table_migration = first_state(STATUS_PENDING, ME, 1)
    app.old.other_entities = frozenset({"CLIENT_VERSION_MIGRATION"})


def broken_row(app: Application) -> None:
    app.old.undecodable = ("broken",)


BROKEN: dict[str, tuple[Callable[[Application], None], type[KclHostError], int, str]] = {
    "missing table": (missing_table, ConfigurationError, 2, "lease table app is missing"),
    "missing stream": (missing_stream, StreamNotFound, 4, "orders"),
    "stream going away": (stream_going_away, StreamNotFound, 4, "orders is DELETING"),
    "half moved to the single table": (half_moved, MetadataConflict, 6, "app -> new: .*CLIENT_VERSION"),
    "broken row": (broken_row, MetadataConflict, 6, "app -> new: .*broken"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_said_before_anything_is_watched_or_written(case: str) -> None:
    app = Application()
    spoil, kind, exit_code, said = BROKEN[case]
    spoil(app)
    with pytest.raises(kind, match=said) as raised:
        app.apply()
    assert raised.value.exit_code == exit_code
    assert app.slept == [] and app.new.requests.keys() <= {"describe"}
