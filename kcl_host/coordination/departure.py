"""Where the leases of a worker that stops should go (DESIGN.md 4.2)."""

from __future__ import annotations

from collections.abc import Collection

from kcl_host.config.settings import Settings
from kcl_host.coordination.held_leases import HeldLease
from kcl_host.decisions.assignment import plan_departure, track
from kcl_host.ports import Clock, LeaseTable, WorkerMetricsTable


class Departure:
    """Asks the same decision as the leader does; whoever leads next may decide otherwise later."""

    def __init__(
        self,
        lease_table: LeaseTable,
        metrics_table: WorkerMetricsTable,
        worker_id: str,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._lease_table = lease_table
        self._metrics_table = metrics_table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock

    def targets(self, held: list[HeldLease], doubtful: Collection[str]) -> list[tuple[HeldLease, str]]:
        """Each held lease that a live worker can take, with that worker; empty when nobody else is alive.

        `doubtful` workers are left out although their metric stats are fresh.
        """
        workers, _ = self._metrics_table.list_workers()
        now_s = self._clock.monotonic()
        moves = plan_departure(
            self._worker_id,
            track({}, self._lease_table.list_leases().leases, now_s, self._settings.lease),
            workers,
            assignment=self._settings.assignment,
            leases=self._settings.lease,
            metrics=self._settings.worker_metrics,
            now_s=now_s,
            wall_s=self._clock.wall(),
            doubtful=doubtful,
        )
        by_key = {lease.lease_key: lease for lease in held}
        return [(by_key[move.lease.lease_key], move.to) for move in moves if move.lease.lease_key in by_key]
