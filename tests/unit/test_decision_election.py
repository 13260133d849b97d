"""The leader lock (coordination 2.3 - 2.9; lock client of KCL 3.x, DynamoDBLockBasedLeaderDecider)."""

from __future__ import annotations

import msgspec
import pytest

from kcl_host.decisions.election import (
    Acquire,
    HeldLock,
    LockObservation,
    Wait,
    is_ours,
    is_stalled,
    judge_lock,
    look_again_in_s,
)
from kcl_host.model.state import LeaderLock

LOCK = LeaderLock(owner_name="other", lease_duration_ms=120_000, record_version_number="v1")


def seen(
    at_s: float, version: str = "v1", duration_s: float = 120.0, last_seen_s: float | None = None
) -> LockObservation:
    return LockObservation(
        record_version_number=version,
        lease_duration_s=duration_s,
        first_seen_s=at_s,
        last_seen_s=at_s if last_seen_s is None else last_seen_s,
        owner_name="other",
    )


def test_an_absent_lock_is_free() -> None:
    assert judge_lock(None, seen(0), 1.0, "me") == Acquire(over=None, reason="absent")


def test_a_released_lock_is_free_at_once() -> None:
    released = msgspec.structs.replace(LOCK, is_released=True)
    assert judge_lock(released, None, 1.0, "me") == Acquire(over=released, reason="released")


def test_a_held_lock_is_first_remembered() -> None:
    assert judge_lock(LOCK, None, 7.0, "me") == Wait(observation=seen(7.0), reason="held")


def test_a_new_version_starts_the_watch_again() -> None:
    assert judge_lock(LOCK, seen(0, "v0"), 1000.0, "me") == Wait(observation=seen(1000.0), reason="held")


def test_the_holder_s_own_duration_counts() -> None:
    short = msgspec.structs.replace(LOCK, lease_duration_ms=10_000)
    first = judge_lock(short, None, 0.0, "me")
    assert isinstance(first, Wait)
    assert judge_lock(short, first.observation, 10.0, "me") == Wait(
        observation=seen(0.0, duration_s=10.0, last_seen_s=10.0), reason="held"
    )
    assert judge_lock(short, first.observation, 10.001, "me") == Acquire(over=short, reason="abandoned")


def test_our_own_earlier_process_is_waited_out_like_anybody() -> None:
    ours = msgspec.structs.replace(LOCK, owner_name="me")
    first = judge_lock(ours, None, 0.0, "me")
    assert isinstance(first, Wait) and first.reason == "held by an earlier process with our worker id"
    assert isinstance(judge_lock(ours, first.observation, 120.0, "me"), Wait)
    assert isinstance(judge_lock(ours, first.observation, 120.1, "me"), Acquire)


def test_take_over_after_a_crash() -> None:
    """Worked example E14: the leader's last heartbeat is at 60, the follower looks every 30 s from 65 on."""
    observation = None
    verdicts = {}
    for now in (5.0, 35.0, 65.0, 95.0, 125.0, 155.0, 185.0, 215.0):
        heartbeats = min(int(now // 30), 2)
        lock = msgspec.structs.replace(LOCK, record_version_number=f"v{heartbeats}")
        verdict = judge_lock(lock, observation, now, "me")
        verdicts[now] = type(verdict).__name__
        observation = verdict.observation if isinstance(verdict, Wait) else None
    assert verdicts == dict.fromkeys((5.0, 35.0, 65.0, 95.0, 125.0, 155.0, 185.0), "Wait") | {215.0: "Acquire"}
    # 120.0 s are not strictly more; a moment later they are
    assert isinstance(judge_lock(LOCK, seen(65.0), 185.0, "me"), Wait)
    assert isinstance(judge_lock(LOCK, seen(65.0), 185.001, "me"), Acquire)


def test_the_holder_stops_believing_no_later_than_others_may_take_over() -> None:
    held = HeldLock(record_version_number="v1", duration_s=10.0, taken_at_s=100.0)
    assert held.is_valid(110.0)
    assert not held.is_valid(110.001)
    # A write is sent only while its answer comes before that, however long it takes.
    assert held.outlives_a_request(106.6)
    assert not held.outlives_a_request(106.7)
    # An observer cannot have seen the version before it was sent.
    assert isinstance(judge_lock(LOCK, seen(100.0, duration_s=10.0), 110.0, "me"), Wait)


@pytest.mark.parametrize(
    "lock, ours",
    [
        (LeaderLock(owner_name="me", lease_duration_ms=1, record_version_number="mine"), True),
        (LeaderLock(owner_name="me", lease_duration_ms=1, record_version_number="older"), False),
        (LeaderLock(owner_name="you", lease_duration_ms=1, record_version_number="mine"), False),
        (LeaderLock(owner_name="me", lease_duration_ms=1, record_version_number="mine", is_released=True), False),
        (None, False),
    ],
)
def test_a_lock_whose_answer_was_lost_is_adopted(lock: LeaderLock | None, ours: bool) -> None:
    assert is_ours(lock, "me", "mine") is ours


def test_a_stall_shows_before_the_lock_is_free() -> None:
    """It takes a look at the lock to know: time alone may have passed without one."""
    assert not is_stalled(None, 10 / 3)
    assert not is_stalled(seen(100.0, duration_s=10.0), 10 / 3)
    assert not is_stalled(seen(100.0, duration_s=10.0, last_seen_s=103.4), 10 / 3)
    assert is_stalled(seen(100.0, duration_s=10.0, last_seen_s=103.5), 10 / 3)
    # a Java holder heartbeats each 30 s
    assert not is_stalled(seen(100.0, last_seen_s=131.0), 10 / 3)
    assert is_stalled(seen(100.0, last_seen_s=131.3), 10 / 3)


def test_the_third_look_shows_a_heartbeat_or_a_stall() -> None:
    pause_s = look_again_in_s(seen(100.0, duration_s=10.0), 10 / 3)
    assert 10 / 3 < 2 * pause_s < 3.6
    assert is_stalled(seen(100.0, duration_s=10.0, last_seen_s=100.0 + 2 * pause_s), 10 / 3)
    assert look_again_in_s(None, 10 / 3) == pause_s
    assert look_again_in_s(seen(100.0), 10 / 3) == 10 / 3, "a Java holder"
