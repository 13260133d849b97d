"""When the lease of a finished shard may be deleted.

The decision needs facts that cost a request each (the row, the child shards as Kinesis knows them, the rows of
relatives), and most of them only sometimes. So `decide_cleanup` is asked again and again: as long as a fact is
missing it answers which one, at last it answers what to do. The shell only fetches and obeys.

Completed: every child has started and no parent's lease is left, so nobody reads this row any more. Garbage: Kinesis
does not know the shard any more. Source: KCL 3.5.1 LeaseCleanupManager; spec shard-sync 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TIMESTAMP, TRIM_HORIZON

SHARD_GONE: Final = "shard_gone"
_NOT_STARTED: Final = (TRIM_HORIZON, AT_TIMESTAMP)


class CleanupDue(msgspec.Struct, frozen=True, kw_only=True):
    """Which rule is to be applied in this turn. `completed` is never set with cleanupLeasesUponShardCompletion off."""

    completed: bool
    garbage: bool


class CleanupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one queued lease so far; a fact not fetched yet is None.

    `row` is a tuple of one row, or an empty one when the row does not exist. `children` are the bare ids that Kinesis
    named. `relatives` holds the rows that exist of those asked for, by key.
    """

    row: tuple[Lease, ...] | None = None
    children: frozenset[str] | Literal["shard_gone"] | None = None
    relatives: Mapping[str, Lease] | None = None


class ReadRow(msgspec.Struct, frozen=True):
    """Wanted: `facts.row`."""


class AskKinesis(msgspec.Struct, frozen=True):
    """Wanted: `facts.children`."""


class ReadRelatives(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted: `facts.relatives` of `lease_keys`. `child_shard_ids`, when not None, is first written to the row."""

    lease_keys: tuple[str, ...]
    child_shard_ids: frozenset[str] | None


class Delete(msgspec.Struct, frozen=True):
    reason: Literal["completed", "garbage"]


class Forget(msgspec.Struct, frozen=True):
    """Somebody else has deleted the row; that counts as one removed for `reason`."""

    reason: Literal["completed"] = "completed"


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Back to the queue. `lease_keys` names the rows it waits for."""

    reason: Literal["not_due", "not_at_shard_end", "child_lease_missing", "child_not_started", "parent_lease_exists"]
    lease_keys: tuple[str, ...] = ()


CleanupStep = ReadRow | AskKinesis | ReadRelatives | Delete | Forget | Keep


def decide_cleanup(pending: Lease, facts: CleanupFacts, due: CleanupDue) -> CleanupStep:
    """The next step for `pending`, a lease in the queue of the clean-up. Raises nothing."""
    verdict: CleanupStep = Keep(reason="not_due")
    if due.completed:
        verdict = _judge_completed(facts)
        if not isinstance(verdict, Keep):
            return verdict
    if due.garbage:
        if facts.children is None:
            return AskKinesis()
        if facts.children == SHARD_GONE:
            return Delete("garbage")
    return verdict


def _judge_completed(facts: CleanupFacts) -> CleanupStep:
    if facts.row is None:
        return ReadRow()
    if not facts.row:
        return Forget()
    (row,) = facts.row
    if not row.is_at_shard_end:
        # Java does not look: being queued is its proof. But a row may have been set back since, and a lease that is
        # deleted unfinished would let its children start too early.
        return Keep(reason="not_at_shard_end")
    child_shard_ids = row.child_shard_ids
    if not child_shard_ids:
        if facts.children is None:
            return AskKinesis()
        if isinstance(facts.children, str):
            return Delete("garbage")
        child_shard_ids = facts.children
    children = tuple(row.key_of(i) for i in sorted(child_shard_ids))
    parents = tuple(row.key_of(i) for i in sorted(row.parent_shard_ids))
    if facts.relatives is None:
        to_write = None if row.child_shard_ids else child_shard_ids or None
        return ReadRelatives(lease_keys=children + parents, child_shard_ids=to_write)

    # No children at all satisfy the rule: the stream was created anew under its old name, and the shard is open.
    rows = facts.relatives
    if missing := tuple(key for key in children if key not in rows):
        return Keep(reason="child_lease_missing", lease_keys=missing)
    if waiting := tuple(key for key in children if not _has_started(rows[key])):
        return Keep(reason="child_not_started", lease_keys=waiting)
    if remaining := tuple(key for key in parents if key in rows):
        return Keep(reason="parent_lease_exists", lease_keys=remaining)
    return Delete("completed")


def _has_started(lease: Lease) -> bool:
    return lease.checkpoint is not None and lease.checkpoint.sequence_number not in _NOT_STARTED
