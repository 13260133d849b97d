"""Positions set by an operator: which leases change, in which order, and what stands if it ends half-way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcl_host.cli.replay import read_saved, read_target, write_saved
from kcl_host.config.settings import LeaseSettings
from kcl_host.coordination.replay import Replay, ReplayOutcome
from kcl_host.coordination.replay_position import PositionFinder
from kcl_host.coordination.replay_preview import ReplayPlanner, ReplayPreview
from kcl_host.coordination.streams import StreamAccess, Streams
from kcl_host.decisions.metadata_format import VERSION_2X, client_version_item
from kcl_host.decisions.replay import ReplayTarget
from kcl_host.decisions.table_migration import STATUS_COMPLETE, STATUS_DEPLOYED, first_state
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.errors import AccessError, ConfigurationError, MetadataConflict, StreamNotFound
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import (
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    IteratorPosition,
)
from kcl_host.model.shard import StreamIdentifier
from tests.fakes.clock import FakeClock
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault, FaultPlan
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.fakes.stream import InMemoryStream
from tests.kpl import User, aggregate
from tests.unit.coordination_rig import lease, settings_of

S0, S1, S2, S3, S4 = (f"shardId-{n:012d}" for n in range(5))
ALIVE, SILENT, REPLAYER = "alive", "silent", "replayer"
BEGIN = ReplayTarget(kind="TRIM_HORIZON")
WRITES = ("create", "renew", "assign", "initiate_handoff", "evict", "checkpoint", "put", "delete_if_unchanged")


class Killed(BaseException):
    """The process ended here."""


class InlineThreads:
    """One after the other; a wait is time that passes, in which the world goes on."""

    def __init__(self, pause: Callable[[float], None]) -> None:
        self._pause = pause

    def for_each(self, act: Callable[[Any], None], items: Iterable[Any]) -> None:
        for item in items:
            act(item)

    def event(self) -> InlineThreads:
        return self

    def wait(self, timeout: float | None = None) -> bool:
        self._pause(timeout or 0.0)
        return False


class World:
    """A stream that was split and merged again, and the leases of an application that follows it.

    S0 became S2 and S3, which became S4; S1 is as it was. S0's lease has been cleaned up. `ALIVE` renews what it holds
    and hands over when it is told to, after one more checkpoint.
    """

    def __init__(self, *, single_table: bool = False, **lease_settings: Any) -> None:
        self.clock = FakeClock()
        self.stream = InMemoryStream(self.clock, shard_count=2)
        self.table = InMemoryLeaseTable(self.clock)
        self.metadata = InMemoryMetadata(self.clock, self.table, coordinator=not single_table, metrics=not single_table)
        self.settings = settings_of("w", lease=LeaseSettings(**lease_settings))
        self.numbers: dict[str, list[str]] = {}
        self.times: dict[str, list[float]] = {}
        self.answers = True
        """Whether ALIVE reacts to a handover."""
        self.checkpoints: dict[str, ExtendedSequenceNumber] = {}
        """What ALIVE checkpoints at the next occasion, by lease key."""
        self.refused: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.fill(S0, S1)
        self.stream.split(S0)
        self.clock.advance(10)
        self.fill(S2, S3, S1)
        self.stream.merge(S2, S3)
        self.clock.advance(10)
        self.fill(S4, S1)
        parents = {S2: frozenset({S0}), S3: frozenset({S0}), S4: frozenset({S2, S3})}
        for key, checkpoint in ((S2, AT_SHARD_END), (S3, AT_SHARD_END), (S4, self.at(S4, 1)), (S1, self.at(S1, 4))):
            self.table.put(lease(key, ALIVE, 7, checkpoint=checkpoint, parent_shard_ids=parents.get(key, frozenset())))

    def fill(self, *shard_ids: str) -> None:
        """Three records each, a minute apart."""
        for _ in range(3):
            for shard_id in shard_ids:
                self.numbers.setdefault(shard_id, []).append(self.stream.put(b"x", shard_id=shard_id)[1])
                self.times.setdefault(shard_id, []).append(self.clock.wall())
            self.clock.advance(60)

    def at(self, shard_id: str, place: int, sub: int = 0) -> ExtendedSequenceNumber:
        return ExtendedSequenceNumber(self.numbers[shard_id][place], sub)

    def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for row in self.table.rows.values():
            if row.actual_owner != ALIVE:
                continue
            held = row
            if (to := self.checkpoints.pop(row.lease_key, None)) is not None:
                assert self.table.checkpoint(row, to).applied
                held = self.table.rows[row.lease_key]
            if held.is_handover_pending and self.answers:
                assert held.lease_owner
                self.table.assign(held, held.lease_owner)
            else:
                self.table.renew(held, 1.0)
        self.meanwhile()

    def planner(self, **how: Any) -> ReplayPlanner:
        streams = Streams(self.settings, lambda stream, own: StreamAccess(self.stream))
        threads: Any = InlineThreads(self.pause)
        return ReplayPlanner(streams, self.table, self.metadata.tables, self.settings, self.clock, threads, **how)

    def preview(self, target: ReplayTarget, *shards: str) -> ReplayPreview:
        return self.planner().preview(target, shards)

    def apply(self, preview: ReplayPreview, replayer: str = REPLAYER) -> ReplayOutcome:
        threads: Any = InlineThreads(self.pause)
        replay = Replay(self.table, self.metadata.tables, self.settings, self.clock, threads, replayer)
        return replay.apply(preview, lambda done, total, note: None)

    @property
    def positions(self) -> dict[str, ExtendedSequenceNumber | None]:
        return {key: row.checkpoint for key, row in sorted(self.table.rows.items())}

    @property
    def owners(self) -> set[str | None]:
        return {row.actual_owner for row in self.table.rows.values()}


def at_time(timestamp_s: float) -> ReplayTarget:
    return ReplayTarget(kind="AT_TIMESTAMP", timestamp_s=timestamp_s)


def wanted(preview: ReplayPreview) -> dict[str, ExtendedSequenceNumber]:
    return {change.lease_key: change.to for change in preview.changes}


# Where a position is


def finder(world: World) -> PositionFinder:
    return PositionFinder(world.stream, world.clock, world.clock.advance)


def test_a_position_is_the_checkpoint_of_the_record_before_it() -> None:
    world = World()
    for place in range(1, 9):
        for at_s in (world.times[S1][place], world.times[S1][place] - 0.5, world.times[S1][place - 1] + 0.001):
            found = finder(world).checkpoint_before(S1, IteratorPosition(type="AT_TIMESTAMP", timestamp_s=at_s))
            assert found == world.at(S1, place - 1), (place, at_s)


def test_before_the_first_record_is_the_horizon() -> None:
    world = World()
    for at_s in (world.times[S1][0], world.times[S1][0] - 1000):
        found = finder(world).checkpoint_before(S1, IteratorPosition(type="AT_TIMESTAMP", timestamp_s=at_s))
        assert found == AT_TRIM_HORIZON
    assert finder(world).checkpoint_before(S1, IteratorPosition(type=TRIM_HORIZON)) == AT_TRIM_HORIZON


def test_without_a_record_since_then_it_is_the_last_one_there_is() -> None:
    world = World()
    world.clock.advance(7200)
    late = IteratorPosition(type="AT_TIMESTAMP", timestamp_s=world.clock.wall() - 60)
    assert finder(world).checkpoint_before(S1, late) == world.at(S1, 8)
    assert finder(world).checkpoint_before(S1, IteratorPosition(type=LATEST)) == world.at(S1, 8)
    assert finder(world).checkpoint_before(S2, late) == world.at(S2, 2), "of a closed shard too"


def test_a_shard_without_records_begins_at_its_horizon() -> None:
    world = World()
    child, _ = world.stream.split(S1)
    assert finder(world).checkpoint_before(child, IteratorPosition(type=LATEST)) == AT_TRIM_HORIZON


def test_a_busy_second_is_read_through_and_a_silent_day_is_not() -> None:
    world = World()
    world.clock.advance(86400 / 4)
    burst = []
    for _ in range(500):
        world.clock.advance(0.001)
        burst.append(world.stream.put(b"x", shard_id=S1)[1])
    world.clock.advance(86400 / 4)
    world.stream.put(b"x", shard_id=S1)
    before = world.stream.requests["get_records"]
    at = IteratorPosition(type="AT_TIMESTAMP", timestamp_s=world.clock.wall() - 1)
    assert finder(world).checkpoint_before(S1, at) == ExtendedSequenceNumber(burst[-1])
    assert world.stream.requests["get_records"] - before < 30


def test_a_sequence_number_is_a_position_too() -> None:
    world = World()
    number = world.numbers[S1][4]
    at, after = (
        IteratorPosition(type=kind, sequence_number=number)  # type: ignore[arg-type]
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    )
    assert finder(world).checkpoint_before(S1, at) == world.at(S1, 3)
    assert finder(world).checkpoint_before(S1, after) == world.at(S1, 4)


def test_past_an_aggregate_is_past_all_of_it() -> None:
    world = World()
    data = aggregate([User(b"a"), User(b"b"), User(b"c")])
    number = world.stream.put(data, shard_id=S1)[1]
    assert finder(world).checkpoint_before(S1, IteratorPosition(type=LATEST)) == ExtendedSequenceNumber(number, 2)


@pytest.mark.parametrize(
    ("kind", "sub", "place", "expected_sub"),
    [
        ("AT_SEQUENCE_NUMBER", None, "before", 0),
        ("AT_SEQUENCE_NUMBER", 0, "before", 0),
        ("AT_SEQUENCE_NUMBER", 2, "inside", 1),
        ("AFTER_SEQUENCE_NUMBER", None, "inside", 2),
        ("AFTER_SEQUENCE_NUMBER", 0, "inside", 0),
        ("AFTER_SEQUENCE_NUMBER", 1, "inside", 1),
    ],
)
def test_a_user_record_of_an_aggregate_can_be_meant(kind: Any, sub: int | None, place: str, expected_sub: int) -> None:
    world = World()
    number = world.stream.put(aggregate([User(b"a"), User(b"b"), User(b"c")]), shard_id=S1)[1]
    preview = world.preview(ReplayTarget(kind=kind, sequence_number=number, sub_sequence_number=sub), S1)
    before = world.at(S1, 8) if place == "before" else ExtendedSequenceNumber(number, expected_sub)
    assert wanted(preview) == {S1: before}


def test_a_number_of_another_shard_is_refused() -> None:
    world = World()
    foreign = ReplayTarget(kind="AT_SEQUENCE_NUMBER", sequence_number=world.numbers[S0][0])
    with pytest.raises(ConfigurationError, match=f"shard {S4} does not know"):
        world.preview(foreign, S4)


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT])
def test_reads_that_fail_for_the_moment_are_made_again(fault: Fault) -> None:
    world = World()
    turns = itertools.count()
    world.stream.faults = lambda operation, key: fault if next(turns) % 2 else None
    assert finder(world).checkpoint_before(S1, IteratorPosition(type=LATEST)) == world.at(S1, 8)


# What is changed


def test_a_time_before_the_reshards_sets_the_parents_in_and_their_descendants_anew() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S0][1]))
    assert wanted(preview) == {
        S0: world.at(S0, 0),
        S2: AT_TRIM_HORIZON,
        S3: AT_TRIM_HORIZON,
        S4: AT_TRIM_HORIZON,
        S1: world.at(S1, 0),
    }
    (family, lone) = preview.groups
    assert [change.shard_id for change in family] == [S4, S3, S2, S0], "child shards before their parents"
    assert [change.kind for change in family] == ["back", "back", "back", "create"]
    assert [change.shard_id for change in lone] == [S1]
    created = family[-1].new
    shards = {shard.shard_id: shard for shard in world.stream.list_shards() or ()}
    assert (created.hash_key_range, created.parent_shard_ids) == (shards[S0].hash_key_range, frozenset())


def test_a_time_between_the_reshards_leaves_what_had_ended_alone() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S2][1]))
    assert wanted(preview) == {
        S2: world.at(S2, 0),
        S3: world.at(S3, 0),
        S4: AT_TRIM_HORIZON,
        S1: world.at(S1, 3),
    }
    assert preview.streams[0].plan.ended == (S0,)


def test_forward_over_reshards_finishes_what_is_passed() -> None:
    world = World()
    for key in (S2, S3, S4):
        world.table.delete(key)
    world.table.put(lease(S0, ALIVE, checkpoint=world.at(S0, 0)))
    preview = world.preview(at_time(world.times[S4][2]))
    assert wanted(preview) == {
        S0: AT_SHARD_END,
        S2: AT_SHARD_END,
        S3: AT_SHARD_END,
        S4: world.at(S4, 1),
        S1: world.at(S1, 7),
    }, "the clean-up of S0 waits for leases of its children"
    assert [change.shard_id for change in preview.groups[0]] == [S4, S3, S2, S0]


def test_latest_is_past_what_is_there() -> None:
    world = World()
    assert wanted(world.preview(ReplayTarget(kind="LATEST"))) == {S4: world.at(S4, 2), S1: world.at(S1, 8)}


def test_one_shard_takes_its_descendants_with_it() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S2][1]), S2)
    assert wanted(preview) == {S2: world.at(S2, 0), S4: AT_TRIM_HORIZON}


def test_one_shard_that_has_no_descendants_goes_alone() -> None:
    world = World()
    assert wanted(world.preview(BEGIN, S1)) == {S1: AT_TRIM_HORIZON}
    assert wanted(world.preview(at_time(world.times[S4][2]), S4)) == {S4: world.at(S4, 1)}


def test_the_other_parent_of_a_merge_gets_its_lease_back() -> None:
    """At the end of the one parent, its consumer waits for a lease of the other (spec shard-sync 4.2)."""
    world = World()
    world.table.delete(S2)
    world.table.delete(S3)
    assert wanted(world.preview(at_time(world.times[S2][0]), S2)) == {
        S2: AT_TRIM_HORIZON,
        S3: AT_SHARD_END,
        S4: AT_TRIM_HORIZON,
    }


def test_a_parent_that_has_not_begun_is_not_finished_unread() -> None:
    world = World()
    for key in (S3, S4):
        world.table.delete(key)
    world.table.put(lease(S0, ALIVE, checkpoint=world.at(S0, 0)))
    assert S3 not in wanted(world.preview(at_time(world.times[S2][0]), S2))


def test_a_shard_that_ended_before_and_is_finished_is_left_alone() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S4][1]), S2)
    assert preview.changes == [] and preview.streams[0].plan.ended == (S2,)


def test_a_shard_whose_parent_is_still_read_says_so() -> None:
    world = World()
    world.table.put(lease(S2, ALIVE, checkpoint=world.at(S2, 0)))
    (change,) = world.preview(at_time(world.times[S4][1]), S4).changes
    assert change.note == f"read when {S2} has ended"


def test_a_time_older_than_the_stream_is_its_beginning() -> None:
    world = World()
    preview = world.preview(at_time(world.clock.wall() - 10 * 86400))
    assert preview.horizon_is_nearer and set(wanted(preview).values()) == {AT_TRIM_HORIZON}
    assert len(preview.changes) == 5


def broken_row(world: World) -> None:
    world.table.undecodable = ("broken",)


def no_table(world: World) -> None:
    world.table = InMemoryLeaseTable(world.clock, exists=False)


def no_leases(world: World) -> None:
    for key in world.table.rows:
        world.table.delete(key)


def no_stream(world: World) -> None:
    world.stream.deleted = True


def stream_going_away(world: World) -> None:
    world.stream.status = "DELETING"


def several_streams(world: World) -> None:
    world.table.put(lease("x", stream_name="123456789012:orders:1", multi_stream_shard_id=S1))


@pytest.mark.parametrize(
    ("fault", "error", "exit_code"),
    [
        (broken_row, MetadataConflict, 6),
        (several_streams, MetadataConflict, 6),
        (no_table, ConfigurationError, 2),
        (no_leases, ConfigurationError, 2),
        (no_stream, StreamNotFound, 4),
        (stream_going_away, StreamNotFound, 4),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    fault: Callable[[World], None], error: type[Exception], exit_code: int
) -> None:
    world = World()
    fault(world)
    before = world.table.rows
    with pytest.raises(error) as raised:
        world.preview(BEGIN)
    assert raised.value.exit_code == exit_code  # type: ignore[attr-defined]
    assert world.table.rows == before


def test_an_unknown_shard_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no such shard in the stream: nonsense"):
        World().preview(BEGIN, S1, "nonsense")


def test_a_preview_writes_nothing() -> None:
    world = World()
    world.pause = world.clock.advance  # type: ignore[method-assign]
    world.preview(at_time(world.times[S0][1]))
    assert not set(WRITES) & {*world.table.requests, *world.metadata.metrics.requests}


# Several streams

ORDERS = StreamIdentifier(name="orders", account="123456789012", epoch=1_800_000_000)
CLICKS = StreamIdentifier(name="clicks", account="123456789012", epoch=1_700_000_000)


def several() -> World:
    world = World()
    rows = list(world.table.rows.values())
    for row in rows:
        world.table.delete(row.lease_key)
        for stream in (ORDERS, CLICKS):
            key = stream.lease_key(row.lease_key)
            fields = {"lease_key": key, "stream_name": str(stream), "multi_stream_shard_id": row.lease_key}
            world.table.put(msgspec.structs.replace(row, **fields))
    world.settings = msgspec.structs.replace(world.settings, multi_stream=True)
    return world


def test_of_several_streams_all_or_some_are_meant() -> None:
    world = several()
    target = at_time(world.times[S0][1])
    assert len(world.planner().preview(target).changes) == 10
    for name in ("orders", str(ORDERS)):
        changes = world.planner().preview(target, stream_names=[name]).changes
        assert {change.lease_key for change in changes} == {ORDERS.lease_key(s) for s in (S0, S1, S2, S3, S4)}
    with pytest.raises(ConfigurationError, match="no leases of stream other"):
        world.planner().preview(target, stream_names=["orders", "other"])


def test_a_lease_of_several_streams_is_made_as_such() -> None:
    world = several()
    preview = world.planner().preview(at_time(world.times[S0][1]), stream_names=["clicks"])
    world.apply(preview)
    made = world.table.rows[CLICKS.lease_key(S0)]
    assert (made.stream_name, made.shard_id, made.checkpoint) == (str(CLICKS), S0, world.at(S0, 0))
    assert world.table.rows[ORDERS.lease_key(S4)].checkpoint == world.at(S4, 1)
    saved = preview.saved("app", "now", "then")
    world.apply(world.planner().preview_undo(saved))
    assert world.table.rows[CLICKS.lease_key(S4)].checkpoint == world.at(S4, 1)


# Carried out


@pytest.mark.parametrize("single_table", [False, True])
def test_owners_hand_over_and_the_leases_are_free_afterwards(single_table: bool) -> None:
    world = World(single_table=single_table)
    preview = world.preview(at_time(world.times[S0][1]))
    metrics = world.metadata.metrics_in_lease_table if single_table else world.metadata.metrics
    seen: list[str] = []

    def look() -> None:
        if (row := metrics.rows.get(REPLAYER)) is not None:
            seen.append(judge_worker(row, world.clock.wall(), world.settings.worker_metrics))

    world.meanwhile = look
    outcome = world.apply(preview)
    assert world.positions == wanted(preview) and world.owners == {None}
    assert outcome.handed_over == (S1, S4), "the others are at SHARD_END, and taken as a leader takes them"
    assert outcome.taken == ()
    assert set(seen) == {"failing"}, "there, but no leader gives it leases"
    assert REPLAYER not in metrics.rows


@pytest.mark.parametrize("status", [STATUS_DEPLOYED, STATUS_COMPLETE])
def test_a_fleet_on_its_way_to_the_single_table_sees_the_replayer(status: str) -> None:
    world = World()
    world.metadata.coordinator.table_migration = first_state(status, ALIVE, 1)
    places: set[str] = set()

    def look() -> None:
        places.update(
            name
            for name, table in (("legacy", world.metadata.metrics), ("lease", world.metadata.metrics_in_lease_table))
            if REPLAYER in table.rows
        )

    world.meanwhile = look
    world.apply(world.preview(BEGIN, S1))
    assert places == {"lease" if status == STATUS_COMPLETE else "legacy"}


def test_a_checkpoint_of_the_old_owner_counts_until_the_transfer_and_never_after() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S1][1]), S1)
    world.checkpoints[S1] = world.at(S1, 6)
    stale: list[Lease] = [world.table.rows[S1]]

    def note() -> None:
        stale.append(world.table.rows[S1])
        for row in stale[:-1]:
            if row.actual_owner == ALIVE:
                assert not world.table.checkpoint(row, world.at(S1, 7)).applied, "its counter has moved"

    world.meanwhile = note
    world.apply(preview)
    note()
    assert world.at(S1, 6) in {row.checkpoint for row in stale}
    assert world.positions[S1] == world.at(S1, 0)


def test_an_owner_that_does_not_answer_loses_the_lease_at_the_deadline() -> None:
    world = World()
    world.answers = False
    began_s = world.clock.monotonic()
    outcome = world.apply(world.preview(BEGIN, S1))
    assert outcome.taken == (S1,) and outcome.handed_over == ()
    assert 40 <= world.clock.monotonic() - began_s < 50
    assert world.positions[S1] == AT_TRIM_HORIZON


def taken_at_once(world: World) -> ReplayPreview:
    return world.planner(ask_owners=False).preview(BEGIN, [S1])


def never_graceful(world: World) -> ReplayPreview:
    lease_settings = msgspec.structs.replace(world.settings.lease, graceful_handoff=False)
    world.settings = msgspec.structs.replace(world.settings, lease=lease_settings)
    return world.preview(BEGIN, S1)


def fleet_of_2x(world: World) -> ReplayPreview:
    version = client_version_item(ALIVE, 1)
    world.metadata.coordinator.client_version = msgspec.structs.replace(version, client_version=VERSION_2X)
    return world.preview(BEGIN, S1)


@pytest.mark.parametrize("case", [taken_at_once, never_graceful, fleet_of_2x])
def test_where_nobody_hands_over_leases_are_taken(case: Callable[[World], ReplayPreview]) -> None:
    world = World()
    preview = case(world)
    assert not preview.asks_owners
    began_s = world.clock.monotonic()
    assert world.apply(preview).taken == (S1,)
    assert world.clock.monotonic() - began_s < 5 and world.table.requests["initiate_handoff"] == 0


def test_a_dead_owner_is_waited_for_until_its_lease_has_expired() -> None:
    world = World()
    world.table.put(lease(S1, SILENT, 3, checkpoint=world.at(S1, 4)))
    began_s = world.clock.monotonic()
    outcome = world.apply(world.preview(BEGIN, S1))
    assert (outcome.handed_over, outcome.taken) == ((), ())
    assert world.settings.lease.failover_s < world.clock.monotonic() - began_s < 15


def test_a_free_lease_is_taken_without_a_wait() -> None:
    world = World()
    world.table.put(lease(S1, None, 3, checkpoint=world.at(S1, 4)))
    began_s = world.clock.monotonic()
    world.apply(world.preview(BEGIN, S1))
    assert world.clock.monotonic() - began_s < 5


def test_a_handover_under_way_ends_first() -> None:
    """The leader moves the lease at the same time: from ALIVE to another one, which is then asked in its turn."""
    world = World()
    preview = world.preview(BEGIN, S1)
    world.table.put(msgspec.structs.replace(world.table.rows[S1], lease_owner=SILENT, checkpoint_owner=ALIVE))
    owners: list[tuple[str | None, str | None]] = []
    world.meanwhile = lambda: owners.append((world.table.rows[S1].lease_owner, world.table.rows[S1].checkpoint_owner))
    world.apply(preview)
    assert (SILENT, None) in owners and (REPLAYER, SILENT) in owners
    assert world.positions[S1] == AT_TRIM_HORIZON


def test_a_leader_that_wants_the_lease_elsewhere_gets_it_there_afterwards() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S0][1]))

    def lead() -> None:
        row = world.table.rows[S4]
        if row.lease_owner == REPLAYER and row.checkpoint_owner is None:
            world.table.initiate_handoff(row, SILENT)

    world.meanwhile = lead
    world.apply(preview)
    assert world.positions == wanted(preview)
    assert (world.table.rows[S4].lease_owner, world.table.rows[S4].checkpoint_owner) in ((SILENT, None), (None, None))


def test_a_lease_lost_before_all_is_written_is_taken_again() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S0][1]))
    left = ["checkpoint"]

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "checkpoint" and key == S2 and left:
            left.clear()
            world.table.assign(world.table.rows[S4], ALIVE)
            world.table.checkpoint(world.table.rows[S4], world.at(S4, 2))
            return TIMED_OUT
        return None

    world.table.faults = plan
    world.apply(preview)
    assert world.positions == wanted(preview) and not left


def test_a_lease_that_clean_up_deleted_meanwhile_is_made_again() -> None:
    world = World()
    preview = world.preview(at_time(world.times[S2][1]))
    left = ["evict"]

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "checkpoint" and key == S4 and left:
            left.clear()
            world.table.delete(S3)
        return None

    world.table.faults = plan
    world.apply(preview)
    assert world.positions == wanted(preview)


def test_a_lease_that_is_deleted_at_the_very_end_is_told() -> None:
    world = World()
    preview = world.preview(BEGIN, S1)

    def plan(operation: str, key: str) -> Fault | None:
        if operation == "evict":
            world.table.delete(S1)
        return None

    world.table.faults = plan
    with pytest.raises(MetadataConflict, match=f"deleted meanwhile: {S1}"):
        world.apply(preview)


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
@pytest.mark.parametrize("operation", ["initiate_handoff", "assign", "checkpoint", "create", "evict", "get_all"])
def test_requests_that_fail_for_the_moment_are_made_again(operation: str, fault: Fault) -> None:
    world = World()
    preview = world.preview(at_time(world.times[S0][1]))
    left = [fault, fault]

    def plan(asked: str, key: str) -> Fault | None:
        return left.pop() if asked == operation and left else None

    world.table.faults = plan
    world.apply(preview)
    assert world.positions == wanted(preview) and world.owners == {None}
    assert len(left) <= (operation == "create"), "there is but one lease to create"


def test_a_permission_is_not_waited_for() -> None:
    world = World()
    preview = world.preview(BEGIN, S1)
    world.table.faults = lambda operation, key: Fault("refused") if operation == "initiate_handoff" else None
    with pytest.raises(AccessError):
        world.apply(preview)


def test_a_lease_that_cannot_be_got_ends_it() -> None:
    world = World()
    preview = world.preview(BEGIN, S1)
    world.table.faults = lambda operation, key: TIMED_OUT if operation == "initiate_handoff" else None
    with pytest.raises(Exception, match="timed_out"):
        world.apply(preview)
    assert world.positions[S1] == world.at(S1, 4)


# Cut off


def killed_at(world: World, number: int) -> FaultPlan:
    """Ends the replayer just before its write of that number, from 0."""
    left = [number]

    def plan(operation: str, key: str) -> Fault | None:
        if operation in WRITES and world.replaying:  # type: ignore[attr-defined]
            if not left[0]:
                raise Killed
            left[0] -= 1
        return None

    return plan


@cache
def first_preview() -> ReplayPreview:
    """Every world is the same."""
    world = World()
    return world.preview(at_time(world.times[S0][1]))


class KilledWorld(World):
    """Its replayer is killed before one of its writes."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.replaying = False
        self.was_killed = False
        plan = killed_at(self, number)
        self.preview_before = first_preview()
        self.before = self.positions
        self.table.faults = plan
        self.metadata.metrics.faults = plan
        self.replaying = True
        try:
            self.apply(self.preview_before)
        except Killed:
            self.was_killed = True
        self.replaying = False

    def pause(self, seconds: float) -> None:
        was, self.replaying = self.replaying, False
        super().pause(seconds)
        self.replaying = was

    def check_no_hole(self) -> None:
        """Whatever is read again has its descendants read again, all of them."""
        rows = self.table.rows
        for parent, children in ((S0, (S2, S3)), (S2, (S4,)), (S3, (S4,))):
            if parent in rows and not rows[parent].is_at_shard_end:
                for child in children:
                    assert rows[child].checkpoint == AT_TRIM_HORIZON, f"{child} goes on behind {parent}"

    def take_over(self) -> None:
        """The replayer's leases expire, and ALIVE reads on."""
        self.clock.advance(60)
        for row in self.table.rows.values():
            if row.actual_owner != ALIVE:
                self.table.assign(row, ALIVE)
        self.pause(1.0)


def test_however_often_it_writes_it_can_be_killed_there() -> None:
    killed = 0
    for number in itertools.count():
        world = KilledWorld(number)
        if not world.was_killed:
            break
        killed += 1
        world.check_no_hole()
        world.take_over()
        again = world.preview(at_time(world.times[S0][1]))
        assert wanted(again) == wanted(world.preview_before)
        world.apply(again, "another")
        assert world.positions == wanted(world.preview_before), f"killed before write {number}"
        assert world.owners == {None}
    assert killed >= 12


def test_however_often_it_writes_it_can_be_taken_back_after_it_was_killed() -> None:
    for number in itertools.count():
        world = KilledWorld(number)
        world.check_no_hole()
        world.take_over()
        saved = world.preview_before.saved("app", "now", "then")
        world.apply(world.planner().preview_undo(saved), "another")
        after = world.positions
        assert after.pop(S0, AT_SHARD_END) == AT_SHARD_END, "its lease had been cleaned up"
        assert after == world.before, f"killed before write {number}"
        if not world.was_killed:
            break
    assert number >= 12


def test_what_is_undone_half_way_leaves_no_hole_either() -> None:
    """Back over the reshards for good: child shards stand before their parents are finished."""
    world = World()
    preview = world.preview(at_time(world.times[S0][1]))
    world.apply(preview)
    undo = world.planner().preview_undo(preview.saved("app", "now", "then"))
    assert [change.shard_id for change in undo.groups[0]] == [S4, S3, S2, S0]
    assert [change.to for change in undo.groups[0]] == [world.at(S4, 1), *[AT_SHARD_END] * 3]


def test_a_lease_that_had_not_begun_begins_anew_when_the_rest_is_taken_back() -> None:
    world = World()
    for key in (S3, S4):
        world.table.delete(key)
    world.table.put(lease(S0, ALIVE, checkpoint=world.at(S0, 1)))
    world.table.put(lease(S2, ALIVE, checkpoint=AT_TRIM_HORIZON))
    preview = world.preview(at_time(world.times[S0][0]))
    world.apply(preview)
    child, _ = world.stream.split(S4)
    world.table.put(lease(child, ALIVE, checkpoint=AT_SHARD_END, parent_shard_ids=frozenset({S4})))
    undo = world.planner().preview_undo(preview.saved("app", "now", "then"))
    assert wanted(undo) == {
        S0: world.at(S0, 1),
        S1: world.at(S1, 4),
        **dict.fromkeys((S2, S3, S4, child), AT_TRIM_HORIZON),
    }


def test_positions_of_another_table_are_not_taken_back() -> None:
    world = World()
    saved = world.preview(BEGIN).saved("other", "now", "then")
    with pytest.raises(ConfigurationError, match="table other, not of app"):
        world.planner().preview_undo(saved)


# The command


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ago": "2h"}, at_time(92_800.0)),
        ({"ago": "1d1h30m0.5s"}, at_time(8_199.5)),
        ({"at": "1970-01-02T00:00:00.1239Z"}, at_time(86_400.123)),
        ({"at": "1970-01-02T00:00"}, at_time(86_400.0)),
        ({"at": "1970-01-02T02:00:00+02:00"}, at_time(86_400.0)),
        ({"trim_horizon": True}, BEGIN),
        ({"latest": True}, ReplayTarget(kind="LATEST")),
        ({"at_number": "17"}, ReplayTarget(kind="AT_SEQUENCE_NUMBER", sequence_number="17")),
        (
            {"after_number": "17:0"},
            ReplayTarget(kind="AFTER_SEQUENCE_NUMBER", sequence_number="17", sub_sequence_number=0),
        ),
    ],
)
def test_a_position_is_given_in_many_ways(given: dict[str, Any], expected: ReplayTarget) -> None:
    assert read_target(100_000.0, **NONE | given) == expected


NONE: dict[str, Any] = {
    **dict.fromkeys(("ago", "at", "at_number", "after_number")),
    **dict.fromkeys(("trim_horizon", "latest"), False),
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ago": "2h", "latest": True},
        {"ago": "2"},
        {"ago": "-2h"},
        {"ago": "2h later"},
        {"at": "yesterday"},
        {"at": "1971-01-01"},
        {"at_number": "LATEST"},
        {"after_number": "17:"},
    ],
    ids=str,
)
def test_what_is_no_position_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        read_target(100_000.0, **NONE | given)


def test_old_positions_are_saved_once_and_read_back(tmp_path: Path) -> None:
    saved = World().preview(BEGIN).saved("app", "now", "then")
    file = tmp_path / "before.json"
    write_saved(file, saved)
    assert read_saved(file) == saved and file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="is there already"):
        write_saved(file, saved)
    file.write_text('{"version": 1}')
    with pytest.raises(ConfigurationError, match="does not hold the positions"):
        read_saved(file)
    with pytest.raises(ConfigurationError, match="cannot be saved"):
        write_saved(tmp_path / "missing" / "before.json", saved)
