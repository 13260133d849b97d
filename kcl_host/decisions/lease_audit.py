"""Whether the leases of a stream cover its hash space, and when a gap deserves a shard sync.

A reshard leaves gaps for moments, and reads of the table are eventually consistent, so only a hole seen unchanged in
several audits in a row counts. Source: KCL 3.5.1 PeriodicShardSyncManager; spec shard-sync 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from kcl_host.decisions.shard_sync import is_degenerate
from kcl_host.model.lease import Lease
from kcl_host.model.shard import MAX_HASH_KEY, MIN_HASH_KEY, HashKeyRange, Shard


class Hole(msgspec.Struct, frozen=True):
    """Hash keys between two ranges that no active lease covers.

    At a bound of the hash space the two are the first and the last range. Both None: no active lease has a range.
    """

    left: HashKeyRange | None = None
    right: HashKeyRange | None = None

    def __str__(self) -> str:
        ranges = [f"{r.start}-{r.end}" for r in (self.left, self.right) if r is not None]
        return f"between {' and '.join(ranges)}" if ranges else "everywhere"


class HoleTracker(msgspec.Struct, frozen=True, kw_only=True):
    """The hole of the last audit and in how many audits in a row it was seen. One per stream, in memory only."""

    hole: Hole | None = None
    sightings: int = 0


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """`tracker` is for the next audit. A sync does not reset it: while the hole persists each audit syncs again."""

    sync: bool
    reason: Literal["no_leases", "hash_ranges_complete", "hole_not_confirmed", "hole_confirmed"]
    tracker: HoleTracker

    @property
    def hole(self) -> Hole | None:
        return None if self.reason == "no_leases" else self.tracker.hole


class RangeFill(msgspec.Struct, frozen=True, kw_only=True):
    """All leases, ranges filled in where known, and which ranges have to be written to which rows, by lease key."""

    leases: tuple[Lease, ...]
    to_write: Mapping[str, HashKeyRange]


def active_leases(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """Leases whose shard is, or will be, read: with a checkpoint, and not at SHARD_END."""
    return tuple(lease for lease in leases if lease.checkpoint is not None and not lease.is_at_shard_end)


def lacks_hash_key_ranges(leases: Iterable[Lease]) -> bool:
    """True when an active lease has no range (old clients wrote none), so that a listing of shards is needed."""
    return any(lease.hash_key_range is None for lease in active_leases(leases))


def fill_hash_key_ranges(leases: Iterable[Lease], shards: Iterable[Shard]) -> RangeFill:
    """Ranges of active leases that have none, from an unfiltered listing. Shards not listed leave their lease as is."""
    leases = tuple(leases)
    known = {s.shard_id: s.hash_key_range for s in shards if not is_degenerate(s.hash_key_range)}
    to_write = {
        lease.lease_key: known[lease.shard_id]
        for lease in active_leases(leases)
        if lease.hash_key_range is None and lease.shard_id in known
    }
    filled = tuple(
        msgspec.structs.replace(lease, hash_key_range=to_write.get(lease.lease_key, lease.hash_key_range))
        for lease in leases
    )
    return RangeFill(leases=filled, to_write=to_write)


def find_hole(leases: Iterable[Lease]) -> Hole | None:
    """The first hole among the ranges of the active `leases`, None when they cover everything.

    As in Java, only the last range in the order (start, end) is compared with the upper bound, so a narrow range
    sorted after a wide one looks like a hole; it costs a sync that creates nothing. An overlapping lease does not
    change which hole is reported, so that it cannot restart the count.
    """
    ranges = sorted((r.start, r.end) for lease in active_leases(leases) if (r := lease.hash_key_range) is not None)
    if not ranges:
        return Hole()
    first, last = HashKeyRange(*ranges[0]), HashKeyRange(*ranges[-1])
    if first.start != MIN_HASH_KEY or last.end != MAX_HASH_KEY:
        return Hole(first, last)
    reference, running_end = first, first.end
    for start, end in ranges[1:]:
        if start > running_end + 1:
            return Hole(reference, HashKeyRange(start, end))
        if start == running_end + 1:
            reference = HashKeyRange(start, end)
        running_end = max(running_end, end)
    return None


def audit_leases(leases: Sequence[Lease], tracker: HoleTracker, *, confidence_threshold: int) -> Audit:
    """Whether the stream needs a shard sync. `leases` are all leases of the stream, missing ranges filled in.

    A stream without any lease is synced at once and leaves the count alone. Raises nothing.
    """
    if not leases:
        return Audit(sync=True, reason="no_leases", tracker=tracker)
    hole = find_hole(leases)
    if hole is None:
        return Audit(sync=False, reason="hash_ranges_complete", tracker=HoleTracker())
    seen = HoleTracker(hole=hole, sightings=tracker.sightings + 1 if hole == tracker.hole else 1)
    if seen.sightings >= confidence_threshold:
        return Audit(sync=True, reason="hole_confirmed", tracker=seen)
    return Audit(sync=False, reason="hole_not_confirmed", tracker=seen)
