"""The leader lock: never two who believe in it, and a short time with none (spec coordination 2, DESIGN.md 4)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.config.settings import LockSettings
from kcl_host.coordination.election import Election
from kcl_host.errors import RetryLater, Throttled, Unavailable
from kcl_host.model.state import LeaderLock
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.unit.coordination_rig import ME, OTHER, THIRD, always, befall

DURATION_S, HEARTBEAT_S = 10.0, 10.0 / 3


class Race:
    """Workers that compete for one lock, each with its own turns, on one clock."""

    def __init__(self, *workers: str) -> None:
        self.clock = FakeClock()
        self.table = InMemoryCoordinatorTable(self.clock)
        self.versions: Iterator[str] = (f"v{n}" for n in itertools.count())
        self.elections = {worker: self.join(worker) for worker in workers}
        self.due_s = dict.fromkeys(workers, self.clock.monotonic())

    def join(self, worker: str) -> Election:
        return Election(self.table, worker, LockSettings(), self.clock, lambda: next(self.versions))

    def turn(self, worker: str) -> None:
        """One turn of its thread; an error is followed by a pause of a second, as in runtime."""
        try:
            pause_s = self.elections[worker].run_once()
        except RetryLater:
            pause_s = 1.0
        self.due_s[worker] = self.clock.monotonic() + pause_s

    def live(self, seconds: float) -> None:
        until_s = self.clock.monotonic() + seconds
        turns = 0
        while self.elections:
            worker = min(self.elections, key=lambda w: (self.due_s[w], w))
            if self.due_s[worker] > until_s:
                break
            self.clock.advance(max(0.0, self.due_s[worker] - self.clock.monotonic()))
            self.turn(worker)
            assert len(self.leaders) <= 1
            turns += 1
            assert turns <= 4 * len(self.due_s) * (seconds + 1), "the loop must not spin"
        self.clock.advance(max(0.0, until_s - self.clock.monotonic()))

    @property
    def leaders(self) -> list[str]:
        return [worker for worker, election in self.elections.items() if election.is_leader()]


def foreign_lock(version: str = "theirs", **fields: Any) -> LeaderLock:
    return LeaderLock(owner_name=OTHER, lease_duration_ms=10_000, record_version_number=version, **fields)


def test_a_free_lock_is_taken_at_once_and_kept() -> None:
    race = Race(ME)
    race.turn(ME)
    assert race.leaders == [ME]
    assert race.table.lock == LeaderLock(owner_name=ME, lease_duration_ms=10_000, record_version_number="v0")
    race.live(3600.0)
    assert race.leaders == [ME]
    assert race.table.requests["heartbeat_lock"] <= 3600 / HEARTBEAT_S + 1
    assert race.table.requests["read_lock"] == 1


def test_two_workers_one_leader() -> None:
    race = Race(ME, OTHER)
    race.live(600.0)
    assert race.leaders == [ME]
    assert race.table.requests["read_lock"] <= 600 / HEARTBEAT_S * 1.9 + 3


def test_leadership_counts_from_before_the_request() -> None:
    race = Race(ME)
    race.table.faults = befall("acquire_lock", Fault(before_s=2.0, after_s=2.0))
    race.turn(ME)
    race.clock.advance(DURATION_S - 4.0)
    assert race.leaders == [ME]
    race.clock.advance(0.001)
    assert race.leaders == []


def test_a_slow_turn_does_not_delay_the_next_heartbeat() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.faults = befall("heartbeat_lock", Fault(before_s=2.0))
    assert race.elections[ME].run_once() == pytest.approx(HEARTBEAT_S - 2.0)


def test_after_a_crash_another_leads_within_the_lease_duration_and_one_heartbeat() -> None:
    for phase_s in (0.01, 1.7, 3.3):
        race = Race(ME, OTHER)
        race.turn(ME)
        race.due_s[OTHER] += phase_s
        race.live(20.0)
        last_heartbeat_s = race.due_s.pop(ME) - HEARTBEAT_S
        del race.elections[ME]
        while not race.leaders:
            race.live(0.05)
        assert race.clock.monotonic() - last_heartbeat_s <= DURATION_S + HEARTBEAT_S + 0.1


def test_the_holders_own_duration_is_honoured() -> None:
    race = Race(ME)
    race.table.lock = LeaderLock(owner_name="java", lease_duration_ms=120_000, record_version_number="theirs")
    race.live(119.0)
    assert race.leaders == []
    race.live(2.0)
    assert race.leaders == [ME]


def test_a_lock_of_an_earlier_process_with_our_name_is_a_foreign_lock() -> None:
    race = Race(ME)
    race.table.lock = LeaderLock(owner_name=ME, lease_duration_ms=10_000, record_version_number="before")
    race.live(9.0)
    assert race.leaders == []
    race.live(2.0)
    assert race.leaders == [ME]


def test_a_released_lock_is_taken_at_once() -> None:
    race = Race(ME)
    race.table.lock = foreign_lock(is_released=True)
    race.turn(ME)
    assert race.leaders == [ME]


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_an_acquisition_without_an_answer_is_settled_at_the_next_turn(fault: Fault) -> None:
    race = Race(ME)
    race.table.faults = befall("acquire_lock", fault)
    with pytest.raises((Throttled, Unavailable)):
        race.elections[ME].run_once()
    assert race.leaders == []
    race.clock.advance(1.0)
    race.turn(ME)
    assert race.leaders == [ME]


def test_an_adopted_lock_is_as_old_as_the_attempt() -> None:
    race = Race(ME)
    race.table.faults = befall("acquire_lock", ANSWER_LOST)
    with pytest.raises(Unavailable):
        race.elections[ME].run_once()
    race.clock.advance(6.0)
    race.turn(ME)
    race.clock.advance(4.0)
    assert race.leaders == [ME]
    race.clock.advance(0.001)
    assert race.leaders == []


def test_an_attempt_that_is_too_old_is_not_adopted() -> None:
    race = Race(ME)
    race.table.faults = befall("acquire_lock", ANSWER_LOST)
    with pytest.raises(Unavailable):
        race.elections[ME].run_once()
    race.clock.advance(DURATION_S + 1.0)
    race.turn(ME)
    assert race.leaders == []
    race.live(DURATION_S + 1.0)
    assert race.leaders == [ME]


def test_a_lost_throttle_does_not_cost_the_observation() -> None:
    race = Race(ME)
    race.table.lock = foreign_lock()
    race.live(9.9)
    race.table.faults = befall("acquire_lock", THROTTLED)
    race.live(1.5)
    assert race.leaders == [ME]


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_heartbeats_without_an_answer(fault: Fault, times: int) -> None:
    race = Race(ME, OTHER)
    race.live(1.0)
    race.table.faults = befall("heartbeat_lock", *[fault] * times)
    race.live(60.0)
    assert race.leaders == [ME]


def test_a_failed_heartbeat_is_repeated_soon() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.faults = befall("heartbeat_lock", THROTTLED)
    assert race.elections[ME].run_once() == pytest.approx(1.0)


def test_no_answer_for_longer_than_the_lease_ends_the_lead_without_a_word_from_the_table() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.faults = always("heartbeat_lock", TIMED_OUT)
    race.live(DURATION_S)
    assert race.leaders == [ME]
    race.live(0.01)
    assert race.leaders == []


def test_a_leader_that_slept_does_not_believe_in_its_lock() -> None:
    race = Race(ME, OTHER)
    race.live(1.0)
    race.due_s[ME] += 60.0
    race.live(30.0)
    assert race.leaders == [OTHER]
    race.live(60.0)
    assert race.leaders == [OTHER]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_step_of_the_wall_clock_neither_ends_a_lead_nor_prolongs_one(step_s: float) -> None:
    race = Race(ME, OTHER)
    race.live(5.0)
    race.clock.wall_skew_s = step_s
    assert race.leaders == [ME]
    race.live(30.0)
    assert race.leaders == [ME]
    race.due_s[ME] += 60.0
    race.live(15.0)
    assert race.leaders == [OTHER]


def test_a_lock_taken_by_somebody_else_is_lost_at_the_next_heartbeat() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.lock = foreign_lock()
    race.clock.advance(HEARTBEAT_S)
    race.turn(ME)
    assert race.leaders == []
    assert race.table.lock == foreign_lock()


def test_a_lock_deleted_by_an_operator_is_taken_again() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.lock = None
    race.live(2 * HEARTBEAT_S + 0.1)
    assert race.leaders == [ME]


# Release


def test_release_lets_the_next_worker_lead_at_its_next_turn() -> None:
    race = Race(ME, OTHER)
    race.live(1.0)
    race.elections[ME].release()
    assert race.table.lock is None
    race.live(HEARTBEAT_S)
    assert race.leaders == [OTHER]


def test_a_worker_that_has_released_for_good_never_competes_again() -> None:
    """Its thread may be about to take its turn just now."""
    race = Race(ME)
    race.turn(ME)
    race.elections[ME].release()
    race.live(100.0)
    assert race.table.lock is None
    assert race.leaders == []


def test_a_release_for_a_while() -> None:
    race = Race(ME)
    race.turn(ME)
    race.elections[ME].release(pause_s=20.0)
    race.live(19.0)
    assert race.leaders == []
    race.live(2.0 + HEARTBEAT_S)
    assert race.leaders == [ME]


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_a_release_without_an_answer_is_repeated_once(fault: Fault) -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.faults = befall("release_lock", fault)
    race.elections[ME].release()
    assert race.table.lock is None
    assert race.leaders == []


def test_a_release_that_fails_still_ends_the_lead() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.faults = always("release_lock", TIMED_OUT)
    race.elections[ME].release()
    assert race.leaders == []
    assert race.table.lock is not None


@pytest.mark.parametrize("operation", ["acquire_lock", "heartbeat_lock"])
def test_a_lock_whose_last_write_is_in_doubt_is_released_all_the_same(operation: str) -> None:
    race = Race(ME)
    if operation == "heartbeat_lock":
        race.turn(ME)
    race.table.faults = befall(operation, ANSWER_LOST)
    race.turn(ME)
    race.elections[ME].release()
    assert race.table.lock is None


def test_a_lock_of_somebody_else_is_never_released() -> None:
    race = Race(ME)
    race.turn(ME)
    race.table.lock = foreign_lock()
    race.elections[ME].release()
    assert race.table.lock == foreign_lock()


# What a follower sees


def test_a_follower_sees_that_the_leader_stalls() -> None:
    race = Race(ME, OTHER)
    for _ in range(200):
        race.live(0.7)
        assert not race.elections[OTHER].lock_is_stalled()
        assert not race.elections[ME].lock_is_stalled()
    del race.elections[ME]
    race.live(2 * HEARTBEAT_S)
    assert race.elections[OTHER].lock_is_stalled()


@pytest.mark.parametrize("phase_s", [n * 0.3 for n in range(12)])
def test_a_stall_is_known_soon_after_the_crash_of_the_leader(phase_s: float) -> None:
    race = Race(ME, OTHER)
    race.turn(ME)
    race.due_s[OTHER] += phase_s
    race.live(60.0 + phase_s)
    last_heartbeat_s = race.due_s[ME] - HEARTBEAT_S
    del race.elections[ME]
    while not race.elections[OTHER].lock_is_stalled():
        race.live(0.05)
    assert race.clock.monotonic() - last_heartbeat_s <= 3 * HEARTBEAT_S / 1.9 + 0.1


def test_a_follower_that_slept_does_not_take_a_lock_for_stalled() -> None:
    race = Race(ME, OTHER)
    race.live(20.0)
    race.due_s[OTHER] += 25.0
    race.live(25.0)
    assert not race.elections[OTHER].lock_is_stalled()


def test_changes_are_told_once_each() -> None:
    race, told = Race(ME), []
    table, clock = race.table, race.clock
    follower = Election(
        table, OTHER, LockSettings(), clock, lambda: next(race.versions), on_change=lambda: told.append(clock.now_s)
    )
    race.elections[OTHER], race.due_s[OTHER] = follower, clock.now_s + 0.5
    race.live(30.0)
    assert told == []
    del race.elections[ME]
    race.live(7.0)
    assert len(told) == 1 and follower.lock_is_stalled()
    race.live(10.0)
    assert len(told) == 2 and follower.is_leader()
    race.live(30.0)
    assert len(told) == 2
    table.lock = foreign_lock()
    race.live(4.0)
    assert len(told) == 3 and not follower.is_leader()


def test_a_worker_that_finds_a_foreign_lock_says_once_how_long_it_may_have_to_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="kcl_host")
    race = Race(ME)
    race.table.lock = LeaderLock(owner_name="java", lease_duration_ms=120_000, record_version_number="theirs")
    race.live(119.0)
    (said,) = [vars(r) for r in caplog.records if vars(r).get("action") == "leader_lock_foreign"]
    assert (said["owner"], said["longest_wait_s"]) == ("java", 120.0)


def test_writes_end_before_the_lead_does() -> None:
    """A request takes a third of the lock's duration at most (Settings.lease.request_timeout_s)."""
    race = Race(ME)
    race.turn(ME)
    race.table.faults = always("heartbeat_lock", TIMED_OUT)
    race.live(DURATION_S * 2 / 3 - 0.01)
    assert race.elections[ME].may_write()
    race.live(0.02)
    assert race.elections[ME].is_leader()
    assert not race.elections[ME].may_write()


MOVES = st.one_of(
    st.tuples(st.just("turn"), st.sampled_from((ME, OTHER, THIRD))),
    st.tuples(st.just("pass"), st.floats(0.0, 12.0)),
    st.tuples(st.just("release"), st.sampled_from((ME, OTHER, THIRD))),
    st.tuples(st.just("restart"), st.sampled_from((ME, OTHER, THIRD))),
    st.tuples(
        st.just("fault"),
        st.tuples(
            st.sampled_from(("acquire_lock", "heartbeat_lock", "release_lock", "read_lock")),
            st.sampled_from(("throttled", "timed_out", "answer_lost", None)),
            st.floats(0.0, 6.0),
            st.floats(0.0, 6.0),
        ),
    ),
)


@settings(max_examples=150, deadline=None)
@given(moves=st.lists(MOVES, max_size=40))
def test_never_two_leaders_whatever_happens(moves: list[tuple[str, Any]]) -> None:
    race = Race(ME, OTHER, THIRD)
    for move, argument in moves:
        if move == "turn":
            race.turn(argument)
        elif move == "pass":
            race.clock.advance(argument)
        elif move == "release":
            race.elections[argument].release(pause_s=1.0)
        elif move == "restart":
            race.elections[argument] = race.join(argument)
        else:
            operation, kind, before_s, after_s = argument
            race.table.faults = befall(operation, Fault(kind, before_s=before_s, after_s=after_s))
        assert len(race.leaders) <= 1
    race.table.faults = befall("read_lock")
    race.due_s = dict.fromkeys(race.due_s, race.clock.monotonic())
    race.live(2 * DURATION_S + 2 * HEARTBEAT_S)
    assert len(race.leaders) == 1
