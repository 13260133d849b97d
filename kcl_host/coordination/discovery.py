"""Finds the leases that rows give to this worker, through the index or, while there is none, by a scan."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcl_host.config.settings import AssignmentSettings, LeaseSettings
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.errors import KclHostError, TableMissing
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import Lease
from kcl_host.ports import Clock, LeaseTable

_log = logging.getLogger(__name__)

SCAN_PAUSE_S = 10.0
"""While the index is not ACTIVE, a scan stands in for it, no more often than this."""
IN_COMPANY_S = 1.0
"""Cadence when other workers are alive, and until a row that could not be read is asked for again."""
PENDING_S = 0.2
"""Cadence while a row is in pending handover to us."""


class Discovery:
    """Takes up what the leader assigned to us; `on_found` gets each lease taken up.

    A row that was read is renewed before anything starts, conditional on the counter read: it may name us for long,
    and be given to somebody else any moment now. Java starts first and renews later. A row in pending handover to us
    is not ours yet (spec lease-table 7.4, pitfall 8); it is read again soon. The first turn finds what an earlier
    process with our worker id held, too.

    `take_up` may be called by any thread; everything else belongs to one thread.
    """

    def __init__(
        self,
        lease_table: LeaseTable,
        held_leases: HeldLeases,
        worker_id: str,
        lease_settings: LeaseSettings,
        assignment: AssignmentSettings,
        clock: Clock,
        is_alone: Callable[[], bool],
        on_found: Callable[[HeldLease], None],
        instruments: Instruments = NOTHING,
    ) -> None:
        self._table = lease_table
        self._held_leases = held_leases
        self._worker_id = worker_id
        self._alone_s = assignment.interval_s / 2 - lease_settings.epsilon_s
        self._patience_s = lease_settings.failover_s / 3
        self._clock = clock
        self._is_alone = is_alone
        self._on_found = on_found
        self._instruments = instruments
        self._pending: set[str] = set()
        self._next_query_s = 0.0
        self._next_scan_s = 0.0

    def take_up(self, lease: Lease, read_at_s: float) -> bool:
        """Holds a lease that a write at `read_at_s` or later has given to us; True when it is new."""
        held = self._add(lease, read_at_s)
        if held is not None:
            self._found(held)
        return held is not None

    def run_once(self) -> float:
        now_s = self._clock.monotonic()
        for lease_key in sorted(self._pending):
            self._read(lease_key)
        if now_s >= self._next_query_s:
            with self._instruments.discovering():
                self._query(now_s)
        pause_s = self._next_query_s - self._clock.monotonic()
        return max(0.0, min(pause_s, PENDING_S) if self._pending else pause_s)

    def _query(self, now_s: float) -> None:
        with self._instruments.listing_keys():
            keys = self._keys(now_s)
        self._next_query_s = now_s + (self._alone_s if self._is_alone() else IN_COMPANY_S)
        with self._instruments.fetching_leases():
            found = [self._read(lease_key) for lease_key in sorted(set(keys) - self._pending)]
        self._instruments.leases_discovered(sum(found))

    def leases_named_ours(self) -> list[Lease]:
        """Rows that name this worker as next or only owner and are not held; for the last look before the exit."""
        keys = [key for key in self._table.lease_keys_of(self._worker_id) if self._held_leases.get(key) is None]
        rows = [self._table.get(key) for key in keys]
        return [row for row in rows if row is not None and row.lease_owner == self._worker_id]

    def _keys(self, now_s: float) -> list[str]:
        try:
            return self._table.lease_keys_of(self._worker_id)
        except TableMissing:
            if now_s < self._next_scan_s:
                return []
            self._next_scan_s = now_s + SCAN_PAUSE_S
            _log.warning("index not ready, scanning the lease table instead", extra={"action": "discovery_by_scan"})
            leases = self._table.list_leases().leases
            return [lease.lease_key for lease in leases if lease.lease_owner == self._worker_id]

    def _read(self, lease_key: str) -> bool:
        """True when the lease was taken up."""
        if self._held_leases.get(lease_key) is not None:
            self._pending.discard(lease_key)
            return False
        read_at_s = self._clock.monotonic()
        held = None
        try:
            row = self._table.get(lease_key)
            if row is not None and row.lease_owner == self._worker_id and row.is_handover_pending:
                self._pending.add(lease_key)
                return False
            if row is not None and row.lease_owner != self._worker_id:
                self._instruments.owner_mismatched()
            self._pending.discard(lease_key)
            held = None if row is None else self._add(row, read_at_s)
            if held is not None and self._held_leases.renew(held, self._patience_s) != "lost":
                self._found(held)
                return True
        except KclHostError as error:
            self._instruments.lease_read_failed()
            if held is not None:
                self._held_leases.drop(held)
            self._next_query_s = min(self._next_query_s, read_at_s + IN_COMPANY_S)
            _log.warning(
                "lease could not be taken up, tried again soon",
                extra={"action": "discovery_failed", "lease_key": lease_key, "error": str(error)},
            )
        return False

    def _add(self, lease: Lease, read_at_s: float) -> HeldLease | None:
        if lease.lease_owner != self._worker_id or lease.is_handover_pending:
            return None
        return self._held_leases.add(lease, read_at_s)

    def _found(self, held: HeldLease) -> None:
        _log.info("lease taken up", extra={"action": "lease_taken", "lease_key": held.lease_key})
        self._on_found(held)
