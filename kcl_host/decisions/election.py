"""Who leads: judging the leader lock.

No wall clock takes part. A held lock counts as abandoned once the same record version number has been seen for
strictly longer than the duration that the item itself states, on the observer's own monotonic clock. A worker that
has just started therefore watches an abandoned lock for one full duration, even one that bears its own name.

Source: the DynamoDB lock client that KCL 3.x ships, KCL 3.5.1 DynamoDBLockBasedLeaderDecider; spec coordination 2.3.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kcl_host.model.state import LeaderLock

STALL_HEARTBEATS: Final = 1.04
"""Heartbeats that the same version must be seen for until a follower starts to observe lease counters."""
LOOKS_PER_HEARTBEAT: Final = 1.9
"""Two looks are a little longer than a heartbeat, so the third look at a lock must show a new version."""

_HEARTBEATS_PER_LEASE: Final = 4
"""Java's ratio (120 s to 30 s), for a holder whose heartbeat we do not know."""


class LockObservation(msgspec.Struct, frozen=True, kw_only=True):
    """A held lock as a follower remembers it; `first_seen_s` and `last_seen_s` are the follower's monotonic time."""

    record_version_number: str
    lease_duration_s: float
    first_seen_s: float
    last_seen_s: float
    owner_name: str = ""


class Acquire(msgspec.Struct, frozen=True, kw_only=True):
    """Try to take the lock over the item as read; `over` None: it must still be absent."""

    over: LeaderLock | None
    reason: Literal["absent", "released", "abandoned"]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Not now; keep `observation` for the next look."""

    observation: LockObservation
    reason: Literal["held", "held by an earlier process with our worker id"]


class HeldLock(msgspec.Struct, frozen=True, kw_only=True):
    """The lock as its holder knows it. `taken_at_s` is the monotonic time BEFORE the last successful write was sent."""

    record_version_number: str
    duration_s: float
    taken_at_s: float

    def is_valid(self, now: float) -> bool:
        """True while nobody else can have found the lock abandoned."""
        return now - self.taken_at_s <= self.duration_s

    def outlives_a_request(self, now: float) -> bool:
        """True while a request sent now ends before that, in a third of the lock's duration at most."""
        return now - self.taken_at_s <= self.duration_s * 2 / 3


def judge_lock(lock: LeaderLock | None, seen: LockObservation | None, now: float, worker_id: str) -> Acquire | Wait:
    """Whether a worker that does not hold the lock may try to take it.

    `lock` is a consistent read, None when there is no item; `now` the monotonic time after that read. The owner's name
    decides nothing: an item with our own id that we do not hold is an earlier process's, or a twin's.
    """
    if lock is None:
        return Acquire(over=None, reason="absent")
    if lock.is_released:
        return Acquire(over=lock, reason="released")
    if seen is None or seen.record_version_number != lock.record_version_number:
        seen = LockObservation(
            record_version_number=lock.record_version_number,
            lease_duration_s=lock.lease_duration_ms / 1000,
            first_seen_s=now,
            last_seen_s=now,
            owner_name=lock.owner_name,
        )
    elif now - seen.first_seen_s > seen.lease_duration_s:
        return Acquire(over=lock, reason="abandoned")
    else:
        seen = msgspec.structs.replace(seen, last_seen_s=now)
    ours = lock.owner_name == worker_id
    return Wait(observation=seen, reason="held by an earlier process with our worker id" if ours else "held")


def is_ours(lock: LeaderLock | None, worker_id: str, attempted_record_version_number: str) -> bool:
    """True when the item, read again after an ambiguous or refused write, is the very one we tried to write.

    Source: spec coordination 2.9 step 4; Java has no such step and goes without a leader for one lease duration.
    """
    return (
        lock is not None
        and not lock.is_released
        and lock.owner_name == worker_id
        and lock.record_version_number == attempted_record_version_number
    )


def is_stalled(seen: LockObservation | None, heartbeat_s: float) -> bool:
    """True when the holder seems to have missed a heartbeat: time to observe lease counters, not yet to take over.

    `heartbeat_s` is our own period; a holder with a longer lease is granted a quarter of it. A false alarm costs a few
    reads. None (nobody observed) is no stall.
    """
    if seen is None:
        return False
    return seen.last_seen_s - seen.first_seen_s > STALL_HEARTBEATS * _heartbeat_of(seen, heartbeat_s)


def look_again_in_s(seen: LockObservation | None, heartbeat_s: float) -> float:
    """Seconds until a follower looks at the lock again: twice in a heartbeat, so that a crash of the holder shows soon.

    At the lock of a slower holder (Java) it looks once in each of our own: there is no haste.
    """
    if seen is not None and _heartbeat_of(seen, heartbeat_s) > heartbeat_s:
        return heartbeat_s
    return heartbeat_s / LOOKS_PER_HEARTBEAT


def _heartbeat_of(seen: LockObservation, heartbeat_s: float) -> float:
    return max(heartbeat_s, seen.lease_duration_s / _HEARTBEATS_PER_LEASE)
