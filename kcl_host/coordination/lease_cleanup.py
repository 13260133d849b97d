"""Deletes the leases of finished shards (spec shard-sync 7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.decisions.lease_cleanup import (
    SHARD_GONE,
    AskKinesis,
    CleanupDue,
    CleanupFacts,
    Delete,
    Forget,
    Keep,
    ReadRelatives,
    ReadRow,
    decide_cleanup,
)
from kcl_host.errors import KclHostError, StreamNotFound
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import IteratorPosition
from kcl_host.ports import Clock, LeaseTable, Stream

_log = logging.getLogger(__name__)


class LeaseCleanup:
    """A queue of leases at SHARD_END, filled by shard consumers, worked off by one turn a minute.

    `_lock` guards the queue, the one thing that consumers' threads touch; no request is made under it. The queue is in
    memory only: a lease that moves to another worker is queued there again.
    """

    def __init__(
        self,
        stream_of: Callable[[Lease], Stream],
        lease_table: LeaseTable,
        settings: ShardSyncSettings,
        clock: Clock,
    ) -> None:
        self._stream_of = stream_of
        self._lease_table = lease_table
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: dict[str, Lease] = {}
        now_s = clock.monotonic()
        self._completed_since_s = now_s
        self._garbage_since_s = now_s

    def __repr__(self) -> str:
        return f"<LeaseCleanup {len(self._queue)} queued>"

    def enqueue(self, lease: Lease) -> bool:
        """False when the lease is in the queue already."""
        with self._lock:
            if lease.lease_key in self._queue:
                return False
            self._queue[lease.lease_key] = lease
            return True

    def is_queued(self, lease_key: str) -> bool:
        with self._lock:
            return lease_key in self._queue

    def run_once(self) -> float:
        """One turn over the whole queue; what cannot be removed yet, or fails, goes back."""
        due = self._due()
        if not (due.completed or due.garbage):
            return self._settings.cleanup_interval_s
        with self._lock:
            drained = list(self._queue.values())
        removed = set()
        for pending in drained:
            reason = self._clean(pending, due)
            if reason is not None:
                removed.add(reason)
                with self._lock:
                    self._queue.pop(pending.lease_key, None)
        # A stop watch starts again only when its rule removed something; until then it counts as elapsed every minute.
        now_s = self._clock.monotonic()
        if "completed" in removed:
            self._completed_since_s = now_s
        if "garbage" in removed:
            self._garbage_since_s = now_s
        return self._settings.cleanup_interval_s

    def _due(self) -> CleanupDue:
        now_s, settings = self._clock.monotonic(), self._settings
        return CleanupDue(
            completed=settings.cleanup_upon_shard_completion
            and now_s - self._completed_since_s >= settings.completed_cleanup_interval_s,
            garbage=now_s - self._garbage_since_s >= settings.garbage_cleanup_interval_s,
        )

    def _clean(self, pending: Lease, due: CleanupDue) -> str | None:
        """Why the lease was removed; None when it stays in the queue."""
        try:
            return self._decide(pending, due)
        except KclHostError as error:
            _log.warning(
                "lease clean-up failed, tried again next time",
                extra={"action": "lease_cleanup_failed", "lease_key": pending.lease_key, "error": str(error)},
            )
            return None

    def _decide(self, pending: Lease, due: CleanupDue) -> str | None:
        facts = CleanupFacts()
        while True:
            step = decide_cleanup(pending, facts, due)
            match step:
                case ReadRow():
                    row = self._lease_table.get(pending.lease_key)
                    facts = msgspec.structs.replace(facts, row=() if row is None else (row,))
                case AskKinesis():
                    facts = msgspec.structs.replace(facts, children=self._children(pending))
                case ReadRelatives():
                    if step.child_shard_ids is not None:
                        self._lease_table.write_child_shards(pending.lease_key, step.child_shard_ids)
                    rows = {key: self._lease_table.get(key) for key in step.lease_keys}
                    relatives = {key: row for key, row in rows.items() if row is not None}
                    facts = msgspec.structs.replace(facts, relatives=relatives)
                case Delete() | Forget():
                    if isinstance(step, Delete):
                        self._lease_table.delete(pending.lease_key)
                    _log.info(
                        "lease of a finished shard removed",
                        extra={"action": "lease_deleted", "lease_key": pending.lease_key, "reason": step.reason},
                    )
                    return step.reason
                case Keep():
                    self._explain(pending, step)
                    return None

    def _children(self, lease: Lease) -> frozenset[str] | str:
        """Child shards as Kinesis names them; a closed shard names them in its last answer."""
        stream = self._stream_of(lease)
        try:
            iterator = stream.get_shard_iterator(lease.shard_id, IteratorPosition(type="LATEST"))
            page = stream.get_records(iterator, 1)
        except StreamNotFound:
            return SHARD_GONE
        return frozenset(child.shard_id for child in page.child_shards)

    def _explain(self, pending: Lease, step: Keep) -> None:
        extra = {
            "action": "lease_kept",
            "lease_key": pending.lease_key,
            "reason": step.reason,
            "waits_for": list(step.lease_keys),
        }
        if step.reason == "child_lease_missing":
            # No sync creates a child of a leased parent (spec shard-sync 3.3), so this does not heal by itself.
            _log.warning(
                "a child lease is missing while the lease of its finished parent exists; to have it created again, "
                "delete the parent's lease too: the next shard sync then treats the child as uncovered",
                extra=extra,
            )
        else:
            _log.debug("lease of a finished shard kept", extra=extra)
