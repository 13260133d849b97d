"""Which leases a replay changes, to what, and in which order.

Theory of operation. A checkpoint says what was processed, so the position "from this record on" is the checkpoint of
the record before it, as if the application had checkpointed there; TRIM_HORIZON where there is none. A moment lies in
the shards that were open then (`here`); their descendants begin after it (`later`, TRIM_HORIZON), all others have ended
before it (`ended`, SHARD_END unless their lease is gone). So going back over a reshard makes the parents' leases anew
and sets the children's back, and going forward over one finishes the parents; there is no case of its own for either.

Leases of shards that descend from each other are one group, moved together (decisions/replay_step.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import (
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
    IteratorPosition,
)
from kcl_host.model.shard import Shard, ShardFilter, StreamIdentifier

TargetKind = Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"]
Place = Literal["here", "later", "ended"]
ChangeKind = Literal["create", "back", "forward", "again", "finish"]

FILE_VERSION: Final = 1


class ReplayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """`timestamp_s` (epoch seconds) with AT_TIMESTAMP, the numbers with the last two kinds only.

    Without a sub-sequence number the Kinesis record as a whole is meant.
    """

    kind: TargetKind
    timestamp_s: float | None = None
    sequence_number: str | None = None
    sub_sequence_number: int | None = None

    @property
    def iterator(self) -> IteratorPosition:
        """Where the first record is that is to be delivered."""
        return IteratorPosition(type=self.kind, sequence_number=self.sequence_number, timestamp_s=self.timestamp_s)

    @property
    def checkpoint_within(self) -> ExtendedSequenceNumber | None:
        """The checkpoint where it lies inside an aggregate and so needs no search; None elsewhere."""
        if self.sequence_number is None or self.sub_sequence_number is None:
            return None
        sub = self.sub_sequence_number - (self.kind == "AT_SEQUENCE_NUMBER")
        return ExtendedSequenceNumber(self.sequence_number, sub) if sub >= 0 else None

    def shard_filter(self, horizon_s: float) -> ShardFilter:
        """The shards that a moment lies in; before `horizon_s`, from where on records are kept, there is none."""
        if self.kind == "LATEST":
            return ShardFilter(type="AT_LATEST")
        if self.timestamp_s is None or self.timestamp_s <= horizon_s:
            return ShardFilter(type="AT_TRIM_HORIZON")
        return ShardFilter(type="AT_TIMESTAMP", timestamp_s=self.timestamp_s)


class LeaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """`row` is the lease as it was when this was planned, None when there was none; `to` is the new checkpoint.

    `new` is what is created where there is no row. back, forward: by the order of checkpoints; again: to where the row
    is already, since its owner has read beyond it; finish: to SHARD_END.
    """

    row: Lease | None
    new: Lease
    to: ExtendedSequenceNumber
    kind: ChangeKind
    note: str = ""

    @property
    def lease_key(self) -> str:
        return self.new.lease_key

    @property
    def shard_id(self) -> str:
        return self.new.shard_id


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Each group in the order in which its positions are written: child shards before their parents.

    `ended` are the shards that were asked for, end before the position and are finished: nothing is done about them.
    """

    groups: tuple[tuple[LeaseChange, ...], ...] = ()
    ended: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[LeaseChange, ...]:
        return tuple(change for group in self.groups for change in group)


class SavedPosition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a lease was before a replay, `checkpoint` as text; None: there was no lease."""

    lease_key: str
    stream: str
    shard_id: str
    checkpoint: str | None = None
    sub_sequence_number: int = 0
    to: str = ""
    """For people."""


class SavedPositions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file that a replay writes before its first request, and that takes it back."""

    version: int = FILE_VERSION
    table: str
    written: str
    target: str
    leases: tuple[SavedPosition, ...]


def place_shards(
    shards: Iterable[Shard], here: Iterable[str], chosen: Iterable[str] = (), finished: Iterable[str] = ()
) -> dict[str, Place]:
    """Where each listed shard lies to a position that lies in the shards `here`, by shard id.

    `chosen` leaves out all other shards, but those that descend from a chosen one that is read again: their records
    come after it. Nothing follows from one that ended before the position and is `finished` (its lease is at SHARD_END,
    or gone). Empty: all shards.
    """
    listed = {shard.shard_id: shard for shard in shards}
    children = _children(listed)
    places: dict[str, Place] = dict.fromkeys(listed, "ended")
    places |= dict.fromkeys(_with_descendants(here, children), "later")
    places |= {shard_id: "here" for shard_id in here if shard_id in listed}
    wanted = set(chosen)
    if not wanted:
        return places
    done = {shard_id for shard_id in finished if places.get(shard_id) == "ended"}
    reached = _with_descendants(wanted - done, children) | wanted
    return {shard_id: place for shard_id, place in places.items() if shard_id in reached}


def place_shard(shards: Iterable[Shard], shard_id: str) -> dict[str, Place]:
    """The same for a sequence number, which lies in one shard: that one and its descendants."""
    listed = {shard.shard_id: shard for shard in shards}
    reached = _with_descendants((shard_id,), _children(listed))
    return {i: "here" if i == shard_id else "later" for i in listed if i in reached}


def plan_replay(
    stream: StreamIdentifier,
    shards: Sequence[Shard],
    places: Mapping[str, Place],
    found: Mapping[str, ExtendedSequenceNumber],
    leases: Iterable[Lease],
) -> ReplayPlan:
    """What is changed, for `places` and the checkpoints `found` for those that are `here`, by shard id.

    `shards` is a complete listing, `leases` are those of this stream. Leases at SHARD_END are made where others wait
    for them: a shard that is passed over unread, by the clean-up of its parent (spec shard-sync 7); the finished other
    parent of a merge that is to be reached again, by the end of the one (spec shard-sync 4.2).
    """
    rows = {lease.shard_id: lease for lease in leases}
    children = _children({shard.shard_id: shard for shard in shards})
    wanted: dict[str, ExtendedSequenceNumber] = {}
    for shard in sorted(shards, key=_age):
        row, parents = rows.get(shard.shard_id), shard.parent_shard_ids
        match places.get(shard.shard_id):
            case "here":
                wanted[shard.shard_id] = found[shard.shard_id]
            case "later":
                wanted[shard.shard_id] = AT_TRIM_HORIZON
            case "ended" if not (row.is_at_shard_end if row else all(wanted.get(p) != AT_SHARD_END for p in parents)):
                wanted[shard.shard_id] = AT_SHARD_END
    ended = sorted(shard_id for shard_id in places if shard_id not in wanted)
    for shard in shards:
        if all(wanted.get(parent, AT_SHARD_END) == AT_SHARD_END for parent in shard.parent_shard_ids):
            continue
        for parent in shard.parent_shard_ids:
            # Without a lease below it, it has not even begun; its own parents will see to it.
            if parent not in wanted and parent not in rows and rows.keys() & _with_descendants((parent,), children):
                wanted[parent] = AT_SHARD_END
    return ReplayPlan(groups=_grouped(stream, shards, rows, wanted), ended=tuple(ended))


def plan_undo(
    stream: StreamIdentifier, shards: Sequence[Shard], saved: Iterable[SavedPosition], leases: Iterable[Lease]
) -> ReplayPlan:
    """Every lease back to where it was. `saved` and `leases` are those of this stream.

    A lease is never deleted, for its shard may be read at this moment: where there was none, it is put to SHARD_END if
    the shard was finished, which shows in a lease that a descendant had, else to TRIM_HORIZON. A shard that the file
    does not know was not there then, or had not begun: it begins after its parents once more.
    """
    rows = {lease.shard_id: lease for lease in leases}
    before = {one.shard_id: one for one in saved}
    children = _children({shard.shard_id: shard for shard in shards})
    reached = _with_descendants(before, children)
    wanted = {i: AT_TRIM_HORIZON for i in reached if i in rows}
    for shard_id, one in before.items():
        if one.checkpoint is not None:
            wanted[shard_id] = ExtendedSequenceNumber(one.checkpoint, one.sub_sequence_number)
        elif shard_id in rows:
            descendants = _with_descendants((shard_id,), children) - {shard_id}
            had_begun = any((other := before.get(i)) is not None and other.checkpoint is not None for i in descendants)
            wanted[shard_id] = AT_SHARD_END if had_begun else AT_TRIM_HORIZON
    wanted = {i: to for i, to in wanted.items() if not (to.is_shard_end and i in rows and rows[i].is_at_shard_end)}
    return ReplayPlan(groups=_grouped(stream, shards, rows, wanted))


def saved_positions(plan: ReplayPlan, stream_of: Mapping[str, StreamIdentifier]) -> tuple[SavedPosition, ...]:
    """What `plan_undo` needs. `stream_of` by lease key."""
    return tuple(
        SavedPosition(
            lease_key=change.lease_key,
            stream=str(stream_of[change.lease_key]),
            shard_id=change.shard_id,
            checkpoint=old.sequence_number if (old := _checkpoint(change.row)) else None,
            sub_sequence_number=old.sub_sequence_number if old else 0,
            to=str(change.to),
        )
        for change in plan.changes
    )


def _grouped(
    stream: StreamIdentifier,
    shards: Sequence[Shard],
    rows: Mapping[str, Lease],
    wanted: Mapping[str, ExtendedSequenceNumber],
) -> tuple[tuple[LeaseChange, ...], ...]:
    """Connected by descent, groups by their first shard id; youngest shards first in each."""
    listed = {shard.shard_id: shard for shard in shards}
    parents = {i: _parents(i, listed, rows) for i in wanted}
    group_of = {i: {i} for i in wanted}
    for shard_id in sorted(wanted):
        for parent in parents[shard_id]:
            if parent in group_of and group_of[parent] is not group_of[shard_id]:
                joined = group_of[parent] | group_of[shard_id]
                group_of |= dict.fromkeys(joined, joined)

    def age(shard_id: str) -> tuple[int, str]:
        """A shard that is not listed any more is older than those that are."""
        return _age(listed[shard_id]) if shard_id in listed else (0, shard_id)

    def change(shard_id: str) -> LeaseChange:
        waits = [p for p in parents[shard_id] if p not in wanted and p in rows and not rows[p].is_at_shard_end]
        row, to = rows.get(shard_id), wanted[shard_id]
        return LeaseChange(
            row=row,
            new=_new_lease(stream, shard_id, listed.get(shard_id)),
            to=to,
            kind=_kind(_checkpoint(row), to),
            note=f"read when {' and '.join(waits)} has ended" if waits and to != AT_SHARD_END else "",
        )

    groups = {min(members): members for members in group_of.values()}
    return tuple(tuple(change(i) for i in sorted(groups[first], key=age, reverse=True)) for first in sorted(groups))


def _age(shard: Shard) -> tuple[int, str]:
    return int(shard.starting_sequence_number), shard.shard_id


def _kind(now: ExtendedSequenceNumber | None, to: ExtendedSequenceNumber) -> ChangeKind:
    if now is None:
        return "create"
    if to.is_shard_end and not now.is_shard_end:
        return "finish"
    if to == now:
        return "again"
    return "back" if to < now else "forward"


def _checkpoint(row: Lease | None) -> ExtendedSequenceNumber | None:
    """A row without any checkpoint, which only a broken writer leaves, begins where its shard does."""
    return None if row is None else row.checkpoint or AT_TRIM_HORIZON


def _new_lease(stream: StreamIdentifier, shard_id: str, shard: Shard | None) -> Lease:
    return Lease(
        lease_key=stream.lease_key(shard_id),
        checkpoint=None,
        parent_shard_ids=frozenset(shard.parent_shard_ids) if shard else frozenset(),
        hash_key_range=shard.hash_key_range if shard else None,
        stream_name=str(stream) if stream.is_multi_stream else None,
        multi_stream_shard_id=shard_id if stream.is_multi_stream else None,
    )


def _parents(shard_id: str, listed: Mapping[str, Shard], rows: Mapping[str, Lease]) -> list[str]:
    if shard_id in listed:
        return list(listed[shard_id].parent_shard_ids)
    return sorted(rows[shard_id].parent_shard_ids) if shard_id in rows else []


def _children(listed: Mapping[str, Shard]) -> Mapping[str, list[str]]:
    children: dict[str, list[str]] = defaultdict(list)
    for shard in listed.values():
        for parent in shard.parent_shard_ids:
            children[parent].append(shard.shard_id)
    return children


def _with_descendants(shard_ids: Iterable[str], children: Mapping[str, list[str]]) -> set[str]:
    """Iterative: lineages can be long."""
    found = set(shard_ids)
    to_visit = list(found)
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in found:
                found.add(child)
                to_visit.append(child)
    return found
