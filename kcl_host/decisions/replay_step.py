"""Which requests carry out a replay, and in which order.

First the replayer takes every lease of the group that exists, by the writes by which a leader moves it
(decisions/handover.py). Each of them moves the counter, at the latest when the owner transfers the lease, so that a
checkpoint of the former owner is refused from then on. Only when it holds them all it writes the positions, the
youngest shards first, and when it has read that they stand it gives the leases up, the oldest first.

Whatever cuts this off, at any write: what stands is a child shard that is set back while its parent is not yet, and
never the other way round. There the child would go on from where it was after its parent had been read anew, and the
records before would be left out. The same order keeps Java's clean-up off, which deletes the lease of a finished parent
without looking at it once more, but not while a child is at TRIM_HORIZON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.handover import write_kind
from kcl_host.decisions.lease_age import Tracked
from kcl_host.decisions.replay import LeaseChange
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber

WriteKind = Literal["create", "hand_over", "take", "renew", "checkpoint", "release"]

WRITES_AT_ONCE: Final = 100
"""Of positions, before the leases of the group are looked at, and renewed, again."""


class LeaseWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One request; `lease` as it was read, or to be created."""

    kind: WriteKind
    lease: Lease
    to: ExtendedSequenceNumber | None = None


class GroupStep(msgspec.Struct, frozen=True, kw_only=True):
    """What to send now, in order; nothing to send: wait.

    taking: not every lease is held yet. writing: nothing is to be sent after a request that did not take effect.
    releasing: every position stands, and the leases are given up; it is done when all of these have taken effect.
    """

    phase: Literal["taking", "writing", "releasing"]
    writes: tuple[LeaseWrite, ...] = ()


def plan_step(
    group: Sequence[LeaseChange],
    tracked: Mapping[str, Tracked],
    me: str,
    now_s: float,
    settings: LeaseSettings,
    *,
    written: bool,
) -> GroupStep:
    """The next requests for a group, from its rows as they were just read, by lease key.

    `written`: an earlier step was to release. Until then a lease that was lost is taken again, and written again. A
    lease is held when this replayer `me` is its actual owner, even if a leader wants it elsewhere already.
    """
    rows = [(change, tracked.get(change.lease_key)) for change in group]
    there = [t for _, t in rows if t is not None]
    mine = [t for t in there if t.lease.actual_owner == me]
    if not written:
        if len(mine) < len(there):
            holds = (_to_hold(t, me, now_s, settings) for t in there)
            return GroupStep(phase="taking", writes=tuple(write for write in holds if write is not None))
        positions = [write for change, t in rows if (write := _to_write(change, t, me)) is not None][:WRITES_AT_ONCE]
        if positions:
            written_now = {write.lease.lease_key for write in positions}
            beats = (_to_hold(t, me, now_s, settings) for t in mine if t.lease.lease_key not in written_now)
            return GroupStep(phase="writing", writes=(*(beat for beat in beats if beat is not None), *positions))
    return GroupStep(phase="releasing", writes=tuple(LeaseWrite(kind="release", lease=t.lease) for t in mine[::-1]))


def _to_hold(tracked: Tracked, me: str, now_s: float, settings: LeaseSettings) -> LeaseWrite | None:
    lease = tracked.lease
    if lease.actual_owner == me:
        is_due = now_s - tracked.last_counter_increment_s >= settings.renewal_interval_s
        return LeaseWrite(kind="renew", lease=lease) if is_due else None
    match write_kind(tracked, now_s, settings):
        case "handoff":
            return LeaseWrite(kind="hand_over", lease=lease)
        case "assign":
            return LeaseWrite(kind="take", lease=lease)
        case None:
            return None


def _to_write(change: LeaseChange, tracked: Tracked | None, me: str) -> LeaseWrite | None:
    if tracked is None:
        new = msgspec.structs.replace(change.new, checkpoint=change.to, lease_owner=me)
        return LeaseWrite(kind="create", lease=new)
    if tracked.lease.checkpoint == change.to and tracked.lease.pending_checkpoint is None:
        return None
    return LeaseWrite(kind="checkpoint", lease=tracked.lease, to=change.to)
