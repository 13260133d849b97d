"""Worker metric stats in memory."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kcl_host.errors import TableMissing
from kcl_host.model.lease import LeaseListing
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from tests.fakes.clock import FakeClock
from tests.fakes.fault import FaultPlan, Requests
from tests.fakes.versions import Versions

Lag = Callable[[str], float]
"""Worker id -> how old the row is, in seconds, that a scan sees."""


class Rows(dict[str, WorkerMetricStats]):
    """The rows as they stand; each change by item is remembered, for scans that lag behind."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.past: Versions[WorkerMetricStats] = Versions(clock)

    def __setitem__(self, worker_id: str, stats: WorkerMetricStats) -> None:
        super().__setitem__(worker_id, stats)
        self.past.set(worker_id, stats)

    def __delitem__(self, worker_id: str) -> None:
        super().__delitem__(worker_id)
        self.past.set(worker_id, None)


class InMemoryWorkerMetricsTable:
    """Satisfies ports.WorkerMetricsTable. `rows` by worker id; `undecodable` are ids of broken rows; `lag` of scans."""

    def __init__(self, clock: FakeClock, *, exists: bool = True, in_lease_table: bool = False) -> None:
        self._requests = Requests("worker metrics table", clock)
        self._in_lease_table = in_lease_table
        self._exists = exists
        self.rows = Rows(clock)
        self.undecodable: list[str] = []
        self.lag: Lag = lambda worker_id: 0.0

    @property
    def faults(self) -> FaultPlan:
        return self._requests.plan

    @faults.setter
    def faults(self, plan: FaultPlan) -> None:
        self._requests.plan = plan

    @property
    def requests(self) -> dict[str, int]:
        return self._requests.counts

    def exists(self) -> bool:
        with self._requests.request("exists"):
            return self._exists

    def create_table(self) -> bool:
        with self._requests.request("create_table"):
            created, self._exists = not self._exists, True
            return created

    def delete_table(self) -> None:
        with self._requests.request("delete_table"):
            self._exists = False

    def put(self, stats: WorkerMetricStats) -> int | None:
        with self._requests.request("put", stats.worker_id):
            self._require_table()
            before = self.rows.get(stats.worker_id)
            kept = {
                name: getattr(before or stats, name)
                for name in ("last_update_s", "support_code", "support_code_update_s")
                if getattr(stats, name) is None
            }
            self.rows[stats.worker_id] = msgspec.structs.replace(stats, **kept)
            return None if before is None else before.last_update_s

    def get(self, worker_id: str) -> WorkerMetricStats | None:
        with self._requests.request("get", worker_id):
            self._require_table()
            return self.rows.get(worker_id)

    def list_workers(self, listing: LeaseListing | None = None) -> WorkerListing:
        if self._in_lease_table and listing is not None:
            return listing.workers
        with self._requests.request("list_workers"):
            self._require_table()
            return self.seen()

    def seen(self) -> WorkerListing:
        """What a scan sees."""
        seen = [self.rows.past.get(worker_id, self.lag(worker_id)) for worker_id in self.rows.past.keys()]
        workers = tuple(row for row in seen if row is not None)
        return WorkerListing(workers=workers, undecodable=tuple(self.undecodable))

    def delete_if_unchanged(self, stats: WorkerMetricStats) -> bool:
        with self._requests.request("delete_if_unchanged", stats.worker_id):
            self._require_table()
            row = self.rows.get(stats.worker_id)
            if row is None or row.last_update_s != stats.last_update_s:
                return False
            del self.rows[stats.worker_id]
            return True

    def _require_table(self) -> None:
        if not self._exists:
            raise TableMissing("the worker metrics table is not there")
