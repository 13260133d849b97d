"""Where leases should go that this worker gives up (DESIGN.md 4.1, 4.2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.coordination.held_leases import HeldLease
from kcl_host.decisions.assignment import plan_departure, track
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.errors import RetryLater
from kcl_host.model.lease import Lease
from kcl_host.ports import Clock, LeaseTable, WorkerReports

_log = logging.getLogger(__name__)


class Departure:
    """Asks the same decision as the leader does; whoever leads next may decide otherwise later.

    `doubtful` names workers that get nothing although their metric stats are fresh.
    """

    def __init__(
        self,
        lease_table: LeaseTable,
        metrics_table: WorkerReports,
        worker_id: str,
        settings: Settings,
        clock: Clock,
        doubtful: Callable[[], Collection[str]],
    ) -> None:
        self._lease_table = lease_table
        self._metrics_table = metrics_table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._doubtful = doubtful

    def targets(self, held: Iterable[HeldLease]) -> list[tuple[HeldLease, str]]:
        """Each held lease that has no next owner yet and that a live worker can take, with that worker.

        Empty when nobody else is alive.
        """
        by_key = {h.lease_key: h for h in held if not h.lease.is_handover_pending}
        to = self.next_owners([h.lease for h in by_key.values()])
        return [(by_key[key], worker_id) for key, worker_id in to.items()]

    def next_owners(self, leases: Collection[Lease]) -> dict[str, str]:
        """Workers by lease key: who should take each of these leases, whatever their rows say now about owners."""
        if not leases:
            return {}
        ours = {
            lease.lease_key: msgspec.structs.replace(lease, lease_owner=self._worker_id, checkpoint_owner=None)
            for lease in leases
        }
        listing = self._lease_table.list_leases()
        workers = self._metrics_table.list_workers(listing).workers
        rows = [ours.get(row.lease_key, row) for row in listing.leases]
        now_s = self._clock.monotonic()
        moves = plan_departure(
            self._worker_id,
            track({}, rows, now_s, self._settings.lease),
            workers,
            assignment=self._settings.assignment,
            leases=self._settings.lease,
            metrics=self._settings.worker_metrics,
            now_s=now_s,
            wall_s=self._clock.wall(),
            doubtful=self._doubtful(),
        )
        return {move.lease.lease_key: move.to for move in moves if move.lease.lease_key in ours}

    def is_gone(self, worker_id: str) -> bool:
        """True when a named next owner is about to stop, or has: its row says so, is old, or is not there."""
        try:
            row = self._metrics_table.get(worker_id)
        except RetryLater as error:
            _log.debug("next owner not looked at", extra={"action": "next_owner_unknown", "error": str(error)})
            return False
        if row is None:
            return True
        return judge_worker(row, self._clock.wall(), self._settings.worker_metrics) in ("inactive", "leaving")
