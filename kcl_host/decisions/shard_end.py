"""What happens at the end of a shard, and when its children may start.

The holder of a finished shard's lease creates the leases of the child shards, notes their ids on its own lease, and
only then lets the child process checkpoint at SHARD_END. A crash at any point leaves a lease that is not at
SHARD_END, and its next owner repeats steps that are all idempotent. The other way round the children would be
lost: nobody creates them once the parent is at SHARD_END (spec shard-sync 4.2 and pitfall 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.model.shard import ChildShard

GIVE_UP_PROBABILITY: Final = 1 / 30
"""How often a shard that waits for the lease of its merge partner drops its own lease instead of waiting on."""

Judgement = Literal["valid", "shard_end", "invalid"]
ShardEndReason = Literal[
    "children_ready",
    "no_children",
    "already_at_shard_end",
    "merge_parent_without_lease",
    "malformed_merge",
    "lease_not_held",
    "lease_row_gone",
]


class ShardEndPlan(msgspec.Struct, frozen=True, kw_only=True):
    """First `create` in order, then `child_shard_ids` (None: nothing to write), then what `outcome` says.

    proceed: `shardEnded`, unless the row is at SHARD_END already (`reason`), then the queue of the clean-up.
    retry: after the task back-off all of it again. lost: the lease is dropped and the child told `leaseLost`.
    """

    outcome: Literal["proceed", "retry", "lost"]
    reason: ShardEndReason
    create: tuple[Lease, ...] = ()
    child_shard_ids: frozenset[str] | None = None


class ShardEndConclusion(msgspec.Struct, frozen=True, kw_only=True):
    """`completed`: the consumer is done. Not completed: the exchange of `shardEnded` is to be repeated."""

    completed: bool
    enqueue_for_cleanup: bool


def judge_response(next_token: str | None, child_shards: Sequence[ChildShard] | None) -> Judgement:
    """Whether an answer of GetRecords or SubscribeToShard goes on, ends the shard, or makes no sense.

    `next_token` is NextShardIterator or ContinuationSequenceNumber. An invalid answer is asked for again with the
    same iterator. That a shard or stream is gone is no answer but an error, and ends the shard without children.
    Source: KCL 3.5.1 DataRetrievalUtil; spec shard-sync 4.1.
    """
    if next_token is not None:
        return "invalid" if child_shards else "valid"
    if not child_shards or not all(child.parent_shard_ids for child in child_shards):
        return "invalid"
    return "shard_end"


def is_blocked_on_parents(parents: Iterable[Lease | None]) -> bool:
    """True while a parent's lease exists that is not at SHARD_END, one without any checkpoint included.

    `parents` are the rows read for `lease.parent_shard_ids`; None stands for an absent row, which counts as finished.
    Source: KCL 3.5.1 BlockOnParentShardTask; spec shard-sync 5.
    """
    return any(parent is not None and not parent.is_at_shard_end for parent in parents)


def keys_to_read(lease: Lease, child_shards: Sequence[ChildShard]) -> list[str]:
    """Lease keys whose rows `plan_shard_end` wants: children, both parents of a merge, and last our own."""
    parents = child_shards[0].parent_shard_ids if len(child_shards) == 1 else ()
    keys = [lease.key_of(i) for i in (*(child.shard_id for child in child_shards), *parents)]
    return [key for key in dict.fromkeys(keys) if key != lease.lease_key] + [lease.lease_key]


def plan_shard_end(
    lease: Lease,
    child_shards: Sequence[ChildShard],
    rows: Mapping[str, Lease],
    *,
    held: bool = True,
    give_up: bool = False,
) -> ShardEndPlan:
    """What has to be written before the child process may end its shard.

    `lease` as held in memory, `child_shards` in the order of the last answer (empty when the shard is gone), `rows`
    what the table holds under `keys_to_read`, by key. `give_up` is one draw of GIVE_UP_PROBABILITY: a lease that
    waits for a merge partner without a lease goes to another worker in the end.
    Child leases start at TRIM_HORIZON whatever the initial position. Raises nothing.
    Source: KCL 3.5.1 ShutdownTask; spec shard-sync 4.2, 4.3.
    """
    if not held:
        return ShardEndPlan(outcome="lost", reason="lease_not_held")
    if len(child_shards) == 1:
        # One child is a merge. Its other parent needs a lease, or nobody would read that shard before the child.
        parents = child_shards[0].parent_shard_ids
        if len(parents) != 2:
            return ShardEndPlan(outcome="lost", reason="malformed_merge")
        if sum(lease.key_of(parent) in rows for parent in parents) == 1:
            return ShardEndPlan(outcome="lost" if give_up else "retry", reason="merge_parent_without_lease")

    create = tuple(_child_lease(lease, c) for c in child_shards if lease.key_of(c.shard_id) not in rows)
    child_shard_ids = frozenset(child.shard_id for child in child_shards) or None
    own = rows.get(lease.lease_key)
    reason: ShardEndReason = "children_ready" if child_shards else "no_children"
    if own is None:
        # The children are created all the same: they do no harm, and nobody else may come to do it.
        return ShardEndPlan(outcome="lost", reason="lease_row_gone", create=create, child_shard_ids=child_shard_ids)
    if own.is_at_shard_end:
        reason = "already_at_shard_end"
    return ShardEndPlan(outcome="proceed", reason=reason, create=create, child_shard_ids=child_shard_ids)


def conclude_shard_end(
    child_shards: Sequence[ChildShard], *, is_at_shard_end: bool, already_queued: bool = False
) -> ShardEndConclusion:
    """What follows the exchange of `shardEnded`; `is_at_shard_end` says whether the checkpoint was written.

    A shard without children (it is gone from the stream) is queued even if the child did not checkpoint: nothing but
    its removal as garbage can come of it. `already_queued`: the clean-up has the lease, nothing is left to do.
    Source: spec shard-sync 4.2 steps 3 and 4.
    """
    if already_queued:
        return ShardEndConclusion(completed=True, enqueue_for_cleanup=False)
    return ShardEndConclusion(completed=is_at_shard_end, enqueue_for_cleanup=is_at_shard_end or not child_shards)


def _child_lease(parent: Lease, child: ChildShard) -> Lease:
    return Lease(
        lease_key=parent.key_of(child.shard_id),
        checkpoint=AT_TRIM_HORIZON,
        parent_shard_ids=frozenset(child.parent_shard_ids),
        hash_key_range=child.hash_key_range,
        stream_name=parent.stream_name,
        multi_stream_shard_id=None if parent.stream_name is None else child.shard_id,
    )
