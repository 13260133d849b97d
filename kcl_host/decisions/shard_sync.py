"""Which leases a shard sync creates.

Theory of operation. The first sync of an application sees an empty table and takes a snapshot: a filtered listing
names the shards that were open at the initial position, and each gets a lease; later generations are created by
whoever ends their parents (decisions/shard_end.py). Every other sync only mends gaps. It starts at the open shards
that have no lease and walks up the listed parents. A shard that descends from a leased one will be reached when its
ancestors end, provided that the other side of each merge on the way has a lease too. A shard that does not descend
from a leased one gets a lease itself (LATEST), or its oldest listed ancestors do (TRIM_HORIZON, AT_TIMESTAMP).

A sync never deletes or changes a lease, and never creates children of a leased parent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber, InitialPosition
from kcl_host.model.shard import MAX_HASH_KEY, MIN_HASH_KEY, HashKeyRange, Shard, ShardFilter, StreamIdentifier

SyncError = Literal[
    "stream_not_ready",
    "no_shards",
    "incomplete_hash_range",
    "inconsistent_shards",
    "degenerate_hash_range",
]
CreationReason = Literal["bootstrap", "uncovered", "root", "merge_partner"]


class LeaseToCreate(msgspec.Struct, frozen=True, kw_only=True):
    """bootstrap: part of the first snapshot. uncovered: open and without leased ancestor. root: the oldest listed
    ancestor of such a shard. merge_partner: the other parent of a shard that waits for a leased one."""

    lease: Lease
    reason: CreationReason


class ShardSyncPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`create` in the binding order; empty with an error. `shards_at_fault` explains the error where shards can.

    `synced` false without an error means that the listing was empty: the stream is gone, nothing is to be done.
    """

    create: tuple[LeaseToCreate, ...] = ()
    error: SyncError | None = None
    shards_at_fault: tuple[str, ...] = ()
    synced: bool = False


def bootstrap_filter(initial: InitialPosition) -> ShardFilter:
    """The filter of the listing for an empty table: the shards that were open at the initial position.

    Source: spec shard-sync 2.1. A listing for a table that holds leases has no filter.
    """
    if initial.kind == LATEST:
        return ShardFilter(type="AT_LATEST")
    if initial.kind == TRIM_HORIZON:
        return ShardFilter(type="AT_TRIM_HORIZON")
    return ShardFilter(type="AT_TIMESTAMP", timestamp_s=initial.timestamp_s)


def plan_shard_sync(
    shards: Sequence[Shard] | None,
    leases: Iterable[Lease],
    initial: InitialPosition,
    *,
    table_is_empty: bool,
    stream: StreamIdentifier,
    ignore_unexpected_child_shards: bool = False,
    undecodable: Collection[str] = (),
) -> ShardSyncPlan:
    """Leases to create so that every shard is eventually read, parents before children.

    `shards` is one complete listing (filtered when `table_is_empty`), None when the stream is neither ACTIVE nor
    UPDATING. `table_is_empty` is about the whole table, whatever the stream. Leases of other streams do not count.
    `undecodable` are keys of rows that cannot be read; their shards count as leased, since a sync that took them for
    missing could start the child shards in the middle. `create` is ordered by starting sequence number as an integer,
    then shard id. Raises nothing.
    Source: KCL 3.5.1 HierarchicalShardSyncer; spec shard-sync 2 and 3.
    """
    if shards is None:
        return ShardSyncPlan(error="stream_not_ready")
    if not shards:
        return ShardSyncPlan(error="no_shards") if table_is_empty else ShardSyncPlan()
    if table_is_empty and not covers_hash_space(shards):
        return ShardSyncPlan(error="incomplete_hash_range")

    listed = {shard.shard_id: shard for shard in shards}
    inconsistent = {s.shard_id for s in shards if any(p.is_open for p in _listed_parents(s, listed))}
    if inconsistent and not ignore_unexpected_child_shards:
        return ShardSyncPlan(error="inconsistent_shards", shards_at_fault=tuple(sorted(inconsistent)))

    reasons: Mapping[str, CreationReason]
    if table_is_empty:
        reasons = dict.fromkeys(listed, "bootstrap")
    else:
        keys = {lease.lease_key for lease in leases} | set(undecodable)
        leased = {shard_id for shard_id in listed if stream.lease_key(shard_id) in keys}
        reasons = _uncovered(listed, leased, inconsistent, from_latest=initial.kind == LATEST)

    chosen = sorted((listed[i] for i in reasons), key=lambda s: (int(s.starting_sequence_number), s.shard_id))
    # Java cannot read a lease whose range is a single hash key.
    if degenerate := [s.shard_id for s in chosen if is_degenerate(s.hash_key_range)]:
        return ShardSyncPlan(error="degenerate_hash_range", shards_at_fault=tuple(degenerate))
    return ShardSyncPlan(
        create=tuple(
            LeaseToCreate(lease=_new_lease(s, stream, initial.checkpoint), reason=reasons[s.shard_id]) for s in chosen
        ),
        synced=True,
    )


def covers_hash_space(shards: Iterable[Shard]) -> bool:
    """True when the ranges join without gap or overlap from 0 to 2^128-1.

    A listing made while a reshard is under way may hold too few shards, or parents beside their children.
    """
    ranges = sorted((s.hash_key_range.start, s.hash_key_range.end) for s in shards)
    return (
        bool(ranges)
        and ranges[0][0] == MIN_HASH_KEY
        and ranges[-1][1] == MAX_HASH_KEY
        and all(left[1] + 1 == right[0] for left, right in pairwise(ranges))
    )


def is_degenerate(hash_key_range: HashKeyRange) -> bool:
    """True for a range of one hash key, which Kinesis allows and a lease row of KCL does not."""
    return hash_key_range.start >= hash_key_range.end


def _uncovered(
    listed: Mapping[str, Shard], leased: set[str], inconsistent: set[str], *, from_latest: bool
) -> dict[str, CreationReason]:
    """The walk of spec shard-sync 3.2: shard ids to lease, with the reason. Iterative: lineages can be long."""
    reached = _descendants(listed, leased) if from_latest else leased | _with_listed_parents(listed)
    create: dict[str, CreationReason] = {}
    visited: set[str] = set()
    for shard in listed.values():
        if not shard.is_open or shard.shard_id in leased or shard.shard_id in inconsistent:
            continue
        if shard.shard_id not in reached:
            create[shard.shard_id] = "uncovered"
        to_visit = [shard]
        while to_visit:
            waiting = to_visit.pop()
            if waiting.shard_id in visited:
                continue
            visited.add(waiting.shard_id)
            parents = [p for p in _listed_parents(waiting, listed) if p.shard_id not in leased]
            to_visit += parents
            if waiting.shard_id in reached:
                for parent in parents:
                    if parent.shard_id not in reached:
                        create.setdefault(parent.shard_id, "merge_partner" if from_latest else "root")
    return create


def _listed_parents(shard: Shard, listed: Mapping[str, Shard]) -> list[Shard]:
    """A parent that is not listed counts as if it did not exist."""
    return [listed[i] for i in shard.parent_shard_ids if i in listed]


def _with_listed_parents(listed: Mapping[str, Shard]) -> set[str]:
    return {shard_id for shard_id, shard in listed.items() if _listed_parents(shard, listed)}


def _descendants(listed: Mapping[str, Shard], leased: set[str]) -> set[str]:
    """The leased shards, their children, and so on."""
    children: dict[str, list[str]] = {}
    for shard in listed.values():
        for parent in _listed_parents(shard, listed):
            children.setdefault(parent.shard_id, []).append(shard.shard_id)
    found, to_visit = set(leased), list(leased)
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in found:
                found.add(child)
                to_visit.append(child)
    return found


def _new_lease(shard: Shard, stream: StreamIdentifier, checkpoint: ExtendedSequenceNumber) -> Lease:
    """Parents stay in the row as bare shard ids, listed or not (spec shard-sync 3)."""
    return Lease(
        lease_key=stream.lease_key(shard.shard_id),
        checkpoint=checkpoint,
        parent_shard_ids=frozenset(shard.parent_shard_ids),
        hash_key_range=shard.hash_key_range,
        stream_name=str(stream) if stream.is_multi_stream else None,
        multi_stream_shard_id=shard.shard_id if stream.is_multi_stream else None,
    )
