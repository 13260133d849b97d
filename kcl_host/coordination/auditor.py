"""The leader looks from time to time whether the leases still cover the stream (spec shard-sync 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.coordination.shard_sync import ShardSync
from kcl_host.decisions.lease_audit import (
    Audit,
    HoleTracker,
    RangeFill,
    audit_leases,
    fill_hash_key_ranges,
    lacks_hash_key_ranges,
)
from kcl_host.errors import KclHostError
from kcl_host.model.lease import Lease
from kcl_host.model.shard import StreamIdentifier
from kcl_host.ports import Clock, LeaseTable, Stream

_log = logging.getLogger(__name__)

FIRST_AUDIT_S: Final = 60.0
"""From the first turn to the first audit."""

Outcome = Literal["not_leader", "no_sync_needed", "synced", "failed"]


class Auditor:
    """Mends what neither the first sync nor the ends of shards created; one stream.

    The count of sightings survives a loss of leadership, as in Java: the hole is looked at again anyway.
    """

    def __init__(
        self,
        stream: Stream,
        lease_table: LeaseTable,
        shard_sync: ShardSync,
        identifier: StreamIdentifier,
        settings: ShardSyncSettings,
        clock: Clock,
        is_leader: Callable[[], bool],
    ) -> None:
        self._stream = stream
        self._lease_table = lease_table
        self._shard_sync = shard_sync
        self._identifier = identifier
        self._settings = settings
        self._clock = clock
        self._is_leader = is_leader
        self._next_s: float | None = None
        self._tracker = HoleTracker()
        self.last_outcome: Outcome | None = None
        """What the last audit came to; None before the first."""

    def __repr__(self) -> str:
        return f"<Auditor {self._identifier} {self.last_outcome or 'not run'}>"

    def run_once(self) -> float:
        now_s = self._clock.monotonic()
        if self._next_s is None:
            self._next_s = now_s + FIRST_AUDIT_S
        if now_s < self._next_s:
            return self._next_s - now_s
        self.last_outcome = self._audit_safely()
        self._next_s = self._clock.monotonic() + self._settings.audit_interval_s
        return self._settings.audit_interval_s

    def _audit_safely(self) -> Outcome:
        if not self._is_leader():
            return "not_leader"
        try:
            audit = self._audit()
            self._tracker = audit.tracker
            if not audit.sync:
                return "no_sync_needed"
            if not self._is_leader():
                return "not_leader"
            self._shard_sync.run()
            return "synced"
        except KclHostError as error:
            _log.warning("audit of the leases failed", extra={"action": "audit_failed", "error": str(error)})
            return "failed"

    def _audit(self) -> Audit:
        listing = self._lease_table.list_leases(self._identifier if self._identifier.is_multi_stream else None)
        leases = listing.leases
        if lacks_hash_key_ranges(leases):
            leases = self._fill(leases).leases
        audit = audit_leases(leases, self._tracker, confidence_threshold=self._settings.audit_confidence_threshold)
        if audit.hole is not None or audit.sync:
            _log.warning(
                "leases do not cover the hash key space",
                extra={
                    "action": "hash_range_hole",
                    "reason": audit.reason,
                    "hole": str(audit.hole),
                    "sightings": audit.tracker.sightings,
                },
            )
        return audit

    def _fill(self, leases: tuple[Lease, ...]) -> RangeFill:
        """Ranges from a listing, written to the rows too; a write that fails costs only another try next time."""
        fill = fill_hash_key_ranges(leases, self._stream.list_shards() or ())
        for lease_key, hash_key_range in sorted(fill.to_write.items()):
            try:
                self._lease_table.write_hash_key_range(lease_key, hash_key_range)
            except KclHostError as error:
                _log.warning(
                    "hash key range not written",
                    extra={"action": "hash_range_not_written", "lease_key": lease_key, "error": str(error)},
                )
        return fill
