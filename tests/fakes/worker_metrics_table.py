"""Worker metric stats in memory."""

from __future__ import annotations

import msgspec

from kcl_host.errors import TableMissing
from kcl_host.model.worker import WorkerMetricStats
from tests.fakes.clock import FakeClock
from tests.fakes.fault import FaultPlan, Requests


class InMemoryWorkerMetricsTable:
    """Satisfies ports.WorkerMetricsTable. `rows` by worker id; `undecodable` are ids of broken rows."""

    def __init__(self, clock: FakeClock, *, exists: bool = True) -> None:
        self._requests = Requests("worker metrics table", clock)
        self._exists = exists
        self.rows: dict[str, WorkerMetricStats] = {}
        self.undecodable: list[str] = []

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

    def put(self, stats: WorkerMetricStats) -> None:
        with self._requests.request("put", stats.worker_id):
            self._require_table()
            before = self.rows.get(stats.worker_id, stats)
            kept = {
                name: getattr(before, name)
                for name in ("last_update_s", "support_code", "support_code_update_s")
                if getattr(stats, name) is None
            }
            self.rows[stats.worker_id] = msgspec.structs.replace(stats, **kept)

    def get(self, worker_id: str) -> WorkerMetricStats | None:
        with self._requests.request("get", worker_id):
            self._require_table()
            return self.rows.get(worker_id)

    def list_workers(self) -> tuple[list[WorkerMetricStats], list[str]]:
        with self._requests.request("list_workers"):
            self._require_table()
            return [self.rows[key] for key in sorted(self.rows)], list(self.undecodable)

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
