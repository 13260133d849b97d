"""An operator sets positions while a fleet of real workers reads, loses workers and moves leases.

What was set is what counts from then on: the observer forgets what was delivered before, so a checkpoint beyond what
was given again breaks a promise, whoever writes it. At the end each record that arrived since the time that was asked
for has been given to a child that started after the replay began.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from kcl_host.coordination.replay import Replay
from kcl_host.coordination.replay_preview import ReplayPlanner, ReplayPreview
from kcl_host.coordination.streams import StreamAccess, Streams
from kcl_host.decisions.replay import ReplayTarget
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from tests.simulation.child import Habits, SimChild
from tests.simulation.fleet import Fleet, Worker
from tests.simulation.hub import Hub, Process, ProcessClock, ProcessThreads
from tests.simulation.observer import Observer
from tests.simulation.run import Setup, counting, settings_of

pytestmark = pytest.mark.simulation

WORKERS, SHARDS = 3, 4
REPLAYER = "replayer"


class Replayer(Process):
    """`kcl-host replay --apply`."""

    def __init__(self, fleet: Fleet, name: str, target: ReplayTarget, *, take: bool) -> None:
        super().__init__(name)
        self.is_done = False
        self.preview: ReplayPreview | None = None
        self._fleet = fleet
        self._target = target
        clock, threads = ProcessClock(fleet.hub, since_s=5.0), ProcessThreads(fleet.hub, self)
        streams = Streams(fleet.settings, lambda stream, own: StreamAccess(fleet.stream))
        tables = fleet.metadata.tables
        self._planner = ReplayPlanner(
            streams, fleet.lease_table, tables, fleet.settings, clock, threads, ask_owners=not take
        )
        self._replay = Replay(fleet.lease_table, tables, fleet.settings, clock, threads, name)
        threads.start("main", self._main)

    def _main(self) -> None:
        self.preview = self._planner.preview(self._target)
        self._replay.apply(self.preview, lambda done, total, note: None)
        self.is_done = True


class ReplayObserver(Observer):
    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._hub: Hub = fleet.hub
        self._set_s: dict[str, float] = {}
        """When the position of a shard was set last."""
        self.began_s = math.inf
        self.again: dict[str, set[int]] = defaultdict(set)
        """Places of records by shard, given to children that started after the replay began."""
        self.late_checkpoints = 0
        """Of owners that had lost the lease to a replayer, and were refused."""
        self.astray = 0
        """Leases that their owners handed over to somebody else than the replayer that had asked."""

    def wrote(self, operation: str, before: Lease | None, after: Lease | None) -> None:
        replayer = self._hub.current_process
        if not isinstance(replayer, Replayer):
            super().wrote(operation, before, after)
            if (
                operation in ("assign", "evict")
                and before
                and after
                and (before.lease_owner or "").startswith(REPLAYER)
            ):
                self.astray += before.is_handover_pending and after.lease_owner != before.lease_owner
            return
        assert after is not None, "a replayer deletes nothing"
        key, position = after.lease_key, after.checkpoint
        assert before is None or after.lease_counter >= before.lease_counter
        if operation != "renew":
            self.note(key, replayer.name, f"{operation} {position}, owner {after.lease_owner}")
        if operation in ("renew", "checkpoint"):
            assert before is not None and before.actual_owner == replayer.name
        if operation not in ("create", "checkpoint"):
            assert before is not None and after.checkpoint == before.checkpoint
            return
        assert position is not None
        for child in self._children_of(key):
            row = self._fleet.lease_table.peek(child)
            assert row is not None or not position.is_shard_end, f"{key} is finished, and {child} has no lease"
            assert position.is_shard_end or row is None or row.checkpoint == AT_TRIM_HORIZON, f"{child} is not set back"
        self._highest[key] = position
        self._set_s[key] = self._hub.now_s
        self._delivered[key] = self._place_after(key, position.sequence_number)

    def _children_of(self, key: str) -> list[str]:
        shards = self._fleet.stream.list_shards() or ()
        return [shard.shard_id for shard in shards if key in shard.parent_shard_ids]

    def _place_after(self, key: str, position: str) -> int:
        if position.isdigit():
            return self._index[key][int(position)] + 1
        return 0 if position == "TRIM_HORIZON" else len(self._index[key])

    def delivered(self, child: SimChild, sequence_numbers: list[int]) -> None:
        known = self._delivered[child.shard_id]
        super().delivered(child, sequence_numbers)
        if child.initialized_s < self._set_s.get(child.shard_id, 0.0):
            self._delivered[child.shard_id] = known  # From before, and does not count any more.
        if child.initialized_s > self.began_s:
            self.again[child.shard_id].update(self._index[child.shard_id][number] for number in sequence_numbers)

    def check_all_again(self, since_s: float) -> int:
        """How many records have arrived since then (epoch seconds), all of which were delivered again."""
        total = 0
        for shard_id in self._index:
            records = self._fleet.stream.records_of(shard_id)
            places = {place for place, record in enumerate(records) if record.arrival_s >= since_s}
            assert places <= self.again[shard_id], f"{shard_id}: {sorted(places - self.again[shard_id])} left out"
            total += len(places)
        return total

    def checkpoint_answered(self, child: SimChild, error: str | None) -> None:
        super().checkpoint_answered(child, error)
        if error == "ShutdownException" and child.shard_id in self._set_s:
            self.late_checkpoints += 1


@pytest.fixture
def replay_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.fleet.Observer", ReplayObserver)


def fleet_of(seed: int) -> Fleet:
    """Has read for a while, over a split and a merge. Every third one keeps its metadata in the lease table."""
    setup = Setup(seed={0: 0, 1: 1, 2: 2}[seed % 3], workers=WORKERS, shards=SHARDS)
    fleet = Fleet(seed, settings_of(setup), workers=WORKERS, shards=SHARDS, put_every_s=8.0)
    fleet.fanout_slots = {slot for slot in range(WORKERS) if setup.reads_by_fanout(slot)}
    for slot in range(WORKERS):
        fleet.habits[f"slot {slot}"] = Habits(processing_s=2.0)
    fleet.run(90)
    first = fleet.stream.open_shard_ids[0]
    children = fleet.stream.split(first)
    fleet.run(40)
    fleet.stream.merge(*children)
    return fleet


def disturb(fleet: Fleet, rng: random.Random, seconds: float) -> None:
    """Workers are killed, told to end and held up, and so the leader moves leases, the lead among them."""
    acts: tuple[Callable[[Worker], None], ...] = (fleet.kill, fleet.term, lambda worker: fleet.pause(worker, 4.0))
    at_s = 0.0
    while (at_s := at_s + rng.random() * 20) < seconds:
        fleet.hub.at(fleet.hub.now_s + at_s, partial(befall, fleet, rng.choice(acts), rng.randrange(WORKERS)))


def befall(fleet: Fleet, act: Callable[[Worker], None], slot: int) -> None:
    act(fleet.workers[slot])


@pytest.mark.usefixtures("replay_observer")
@pytest.mark.parametrize("take", [False, pytest.param(True, marks=pytest.mark.interop)], ids=["asked", "taken"])
def test_every_record_from_the_time_on_is_delivered_again(take: bool) -> None:
    observer = run(seed=2, take=take, disturbed=False)
    assert observer.astray == 0
    assert (observer.late_checkpoints > 0) == take, "children in mid-batch checkpoint when it is too late"


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
@pytest.mark.usefixtures("replay_observer")
@pytest.mark.parametrize("seed", range(4))
def test_also_while_workers_die_and_replayers_are_killed(seed: int) -> None:
    run(seed, take=seed % 2 == 1, disturbed=True)


def run(seed: int, *, take: bool, disturbed: bool) -> ReplayObserver:
    rng = random.Random(f"{seed}/replay")
    fleet = fleet_of(seed)
    fleet.run(rng.choice((5, 100, 900)))  # Just after the merge; later; or with the parents' leases cleaned up.
    since_s = fleet.clock.wall() - rng.choice((60, 120, 1000))
    target = ReplayTarget(kind="AT_TIMESTAMP", timestamp_s=since_s)
    observer = fleet.observer
    assert isinstance(observer, ReplayObserver)
    observer.began_s = fleet.hub.now_s
    with counting(fleet):
        if disturbed:
            disturb(fleet, rng, 60.0)
        replayer = Replayer(fleet, f"{REPLAYER}-1", target, take=take)
        if disturbed:
            fleet.run(rng.random() * 12)
            observer.note("", replayer.name, f"killed, done: {replayer.is_done}")
            replayer.alive = False
            # What the first one set may have been read over meanwhile by those who will set it again.
            observer.again.clear()
            observer.began_s = fleet.hub.now_s
            replayer = Replayer(fleet, f"{REPLAYER}-2", target, take=take)
        fleet.run(180)
        assert replayer.is_done, observer.history[-40:]
        fleet.calm()
        fleet.run(300)  # Averages of what was read again fade away.
        fleet.check_quiet(2)
    assert replayer.preview is not None and len(replayer.preview.changes) >= SHARDS
    assert observer.check_all_again(since_s) > 60
    return observer
