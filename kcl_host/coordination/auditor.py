"""The leader looks from time to time whether the leases still cover each stream (spec shard-sync 6)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Literal

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.coordination.stream_sync import StreamSync
from kcl_host.coordination.streams import OpenStream
from kcl_host.decisions.lease_audit import (
    HoleTracker,
    RangeFill,
    audit_leases,
    fill_hash_key_ranges,
    lacks_hash_key_ranges,
)
from kcl_host.errors import KclHostError
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import Lease
from kcl_host.model.shard import StreamIdentifier
from kcl_host.ports import Clock, LeaseTable

_log = logging.getLogger(__name__)

FIRST_AUDIT_S: Final = 60.0
"""From the first turn to the first audit."""

Outcome = Literal["not_leader", "no_sync_needed", "synced", "failed"]
WORST_FIRST: Final[tuple[Outcome, ...]] = ("failed", "not_leader", "synced", "no_sync_needed")


class Auditor:
    """Mends what neither the first sync nor the ends of shards created.

    The count of sightings survives a loss of leadership, as in Java: the hole is looked at again anyway.
    """

    def __init__(
        self,
        streams: StreamSync,
        lease_table: LeaseTable,
        settings: ShardSyncSettings,
        clock: Clock,
        is_leader: Callable[[], bool],
        instruments: Instruments = NOTHING,
    ) -> None:
        self._streams = streams
        self._lease_table = lease_table
        self._settings = settings
        self._clock = clock
        self._is_leader = is_leader
        self._instruments = instruments
        self._with_holes = self._to_sync = 0
        self._next_s: float | None = None
        self._trackers: dict[StreamIdentifier, HoleTracker] = {}
        self.last_outcome: Outcome | None = None
        """What the last audit came to, the worst of all streams; None before the first."""

    def __repr__(self) -> str:
        return f"<Auditor {self.last_outcome or 'not run'}>"

    def run_once(self) -> float:
        now_s = self._clock.monotonic()
        if self._next_s is None:
            self._next_s = now_s + FIRST_AUDIT_S
        if now_s < self._next_s:
            return self._next_s - now_s
        self.last_outcome = self._audit_as_leader() if self._is_leader() else "not_leader"
        self._next_s = self._clock.monotonic() + self._settings.audit_interval_s
        return self._settings.audit_interval_s

    def _audit_as_leader(self) -> Outcome:
        self._with_holes = self._to_sync = 0
        with self._instruments.auditing() as audit:
            outcome = self._audit_safely()
            audit.success = outcome != "failed"
        self._instruments.audited(streams_with_holes=self._with_holes, streams_to_sync=self._to_sync, skipped=0)
        return outcome

    def _audit_safely(self) -> Outcome:
        """All streams by one listing; what fails for one does not keep the others from being audited."""
        try:
            of_stream: dict[str | None, list[Lease]] = defaultdict(list)
            for lease in self._lease_table.list_leases().leases:
                of_stream[lease.stream_name].append(lease)
        except KclHostError as error:
            return self._failed(error)
        outcomes: set[Outcome] = {"no_sync_needed"}
        streams = self._streams.tracked()
        self._trackers = {s.identifier: self._trackers.get(s.identifier, HoleTracker()) for s in streams}
        for stream in streams:
            name = str(stream.identifier) if stream.identifier.is_multi_stream else None
            try:
                outcomes.add(self._audit(stream, tuple(of_stream[name])))
            except KclHostError as error:
                outcomes.add(self._failed(error, stream))
        return next(outcome for outcome in WORST_FIRST if outcome in outcomes)

    def _failed(self, error: KclHostError, stream: OpenStream | None = None) -> Outcome:
        extra = {"action": "audit_failed", "stream": None if stream is None else str(stream.identifier)}
        _log.warning("audit of the leases failed", extra={**extra, "error": str(error)})
        return "failed"

    def _audit(self, stream: OpenStream, leases: tuple[Lease, ...]) -> Outcome:
        if lacks_hash_key_ranges(leases):
            leases = self._fill(stream, leases).leases
        before = self._trackers[stream.identifier]
        audit = audit_leases(leases, before, confidence_threshold=self._settings.audit_confidence_threshold)
        self._trackers[stream.identifier] = audit.tracker
        self._with_holes += audit.hole is not None
        self._to_sync += audit.sync
        if audit.hole is not None or audit.sync:
            _log.warning(
                "leases do not cover the hash key space",
                extra={
                    "action": "hash_range_hole",
                    "stream": str(stream.identifier),
                    "reason": audit.reason,
                    "hole": str(audit.hole),
                    "sightings": audit.tracker.sightings,
                },
            )
        if not audit.sync:
            return "no_sync_needed"
        if not self._is_leader():
            return "not_leader"
        self._streams.shard_sync(stream).run()
        return "synced"

    def _fill(self, stream: OpenStream, leases: tuple[Lease, ...]) -> RangeFill:
        """Ranges from a listing, written to the rows too; a write that fails costs only another try next time."""
        fill = fill_hash_key_ranges(leases, stream.stream.list_shards() or ())
        for lease_key, hash_key_range in sorted(fill.to_write.items()):
            try:
                self._lease_table.write_hash_key_range(lease_key, hash_key_range)
            except KclHostError as error:
                _log.warning(
                    "hash key range not written",
                    extra={"action": "hash_range_not_written", "lease_key": lease_key, "error": str(error)},
                )
        return fill
