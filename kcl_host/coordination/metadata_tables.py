"""Coordinator items and worker metrics, in the tables of their own or in the lease table: where each request goes.

KCL 3.5 moves both into the lease table while the fleet runs. What this worker wrote to at its start it goes on to
write to, so that it never writes an item to two places, until the move is complete; what is read, and which lock
counts, follows the status of the moment (spec migration 2.3; decisions/table_migration.Routes).
"""

from __future__ import annotations

from dataclasses import dataclass

from kcl_host.decisions.table_migration import LocalStatus, Place, routes
from kcl_host.model.lease import LeaseListing
from kcl_host.model.state import ClientVersionState, LeaderLock
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from kcl_host.ports import CoordinatorTable, TableMigrationItems, WorkerMetricsTable


@dataclass(frozen=True, kw_only=True)
class MetadataTables:
    """Both places, and what moves the items from the one to the other."""

    coordinator: CoordinatorTable
    worker_metrics: WorkerMetricsTable
    coordinator_in_lease_table: CoordinatorTable
    worker_metrics_in_lease_table: WorkerMetricsTable
    migration: TableMigrationItems


class Format:
    """The status of the table migration for this worker: at its start, and now. Read by all threads, set by one."""

    def __init__(self, status: LocalStatus = "INIT") -> None:
        self.started = self.live = status

    def start(self, status: LocalStatus) -> None:
        self.started = self.live = status

    def __repr__(self) -> str:
        return f"<Format {self.live}, {self.started} at the start>"


class CoordinatorItems:
    """Implements ports.CoordinatorState over both places."""

    def __init__(self, tables: MetadataTables, format: Format) -> None:
        self._tables: dict[Place, CoordinatorTable] = {
            "legacy": tables.coordinator,
            "lease": tables.coordinator_in_lease_table,
        }
        self._format = format

    @property
    def _lock_table(self) -> CoordinatorTable:
        return self._tables[routes(self._format.started, self._format.live).lock]

    def read_lock(self) -> LeaderLock | None:
        return self._lock_table.read_lock()

    def acquire_lock(self, lock: LeaderLock, over: LeaderLock | None) -> bool:
        return self._lock_table.acquire_lock(lock, over)

    def heartbeat_lock(self, lock: LeaderLock, previous_record_version_number: str) -> bool:
        return self._lock_table.heartbeat_lock(lock, previous_record_version_number)

    def release_lock(self, lock: LeaderLock) -> bool:
        return self._lock_table.release_lock(lock)

    def read_client_version(self) -> ClientVersionState | None:
        for place in routes(self._format.started, self._format.live).items_read:
            if (found := self._tables[place].read_client_version()) is not None:
                return found
        return None

    def create_client_version(self, state: ClientVersionState) -> bool:
        return self._write_table.create_client_version(state)

    def update_client_version(self, state: ClientVersionState, expected: str) -> bool:
        return self._write_table.update_client_version(state, expected)

    @property
    def _write_table(self) -> CoordinatorTable:
        return self._tables[routes(self._format.started, self._format.live).items_written]


class WorkerMetrics:
    """Implements ports.WorkerReports over both places."""

    def __init__(self, tables: MetadataTables, format: Format) -> None:
        self._tables: dict[Place, WorkerMetricsTable] = {
            "legacy": tables.worker_metrics,
            "lease": tables.worker_metrics_in_lease_table,
        }
        self._format = format
        self._written_to: Place | None = None
        self.found: dict[Place, WorkerListing] = {}
        """What the last listing found in each place that was read."""

    def put(self, stats: WorkerMetricStats) -> int | None:
        place = routes(self._format.started, self._format.live).metrics_written
        replaced_s = self._tables[place].put(stats)
        # A row in the other place may be what this worker id has left there long ago; only our own has to be so.
        is_first, self._written_to = place != self._written_to, place
        return None if is_first else replaced_s

    def get(self, worker_id: str) -> WorkerMetricStats | None:
        rows = [self._tables[place].get(worker_id) for place in self._read]
        return max((row for row in rows if row is not None), key=_age_key, default=None)

    def list_workers(self, listing: LeaseListing | None = None) -> WorkerListing:
        """Of a worker in both places the row that was written last."""
        self.found = {place: self._tables[place].list_workers(listing) for place in self._read}
        rows = [row for found in self.found.values() for row in found.workers]
        newest = {row.worker_id: row for row in sorted(rows, key=_age_key)}
        return WorkerListing(
            workers=tuple(newest.values()),
            undecodable=tuple(worker_id for found in self.found.values() for worker_id in found.undecodable),
        )

    def delete_if_unchanged(self, stats: WorkerMetricStats) -> bool:
        """From each place that is read."""
        return any([self._tables[place].delete_if_unchanged(stats) for place in self._read])

    @property
    def _read(self) -> tuple[Place, ...]:
        return routes(self._format.started, self._format.live).metrics_read


def _age_key(row: WorkerMetricStats) -> int:
    return row.last_update_s or 0
