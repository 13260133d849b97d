"""The worker's own row of metric stats: what makes it known, and eligible, to whoever leads (spec coordination 3.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.errors import TwinWorker
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, WorkerMetricsTable

OPERATING_RANGE_PERCENT = 100.0
"""What Java gives to metrics it selected by itself."""


class WorkerReport:
    """Writes the row each reporting period. `averages` drains the sampled values of the period, by short name."""

    def __init__(
        self,
        table: WorkerMetricsTable,
        worker_id: str,
        settings: WorkerMetricsSettings,
        clock: Clock,
        averages: Callable[[], dict[str, float]],
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._averages = averages
        self._values: dict[str, deque[float]] = {}
        self._written: set[int] = set()

    def run_once(self) -> float:
        """Raises TwinWorker when the row was written by anybody but this process since our first write."""
        if self._written:
            row = self._table.get(self._worker_id)
            if row is not None and row.last_update_s not in self._written:
                raise TwinWorker(
                    f"another process writes the metrics of worker {self._worker_id!r}: two workers must not share a "
                    "workerId; give each its own, or leave the key out"
                )
        for name, value in self._averages().items():
            self._values.setdefault(name, deque(maxlen=self._settings.persisted_values)).append(value)
        self._put(int(self._clock.wall()), {})
        return self._settings.report_interval_s

    def announce_leaving(self) -> None:
        """Tells other kcl-host workers that this one takes no more leases; it is still alive."""
        self._put(int(self._clock.wall()), {"state": "TERMINATING"})

    def expire(self) -> None:
        """Makes the row too old for any leader, Java's included: this worker holds nothing any more."""
        self._put(int(self._clock.wall() - 2 * self._settings.report_interval_s - 1), {"state": "TERMINATING"})

    def _put(self, last_update_s: int, properties: dict[str, str]) -> None:
        # An attempt counts as written before its answer: it may have taken effect all the same.
        self._written = {*sorted(self._written)[-8:], last_update_s}
        self._table.put(
            WorkerMetricStats(
                worker_id=self._worker_id,
                last_update_s=last_update_s,
                metric_stats={name: list(values) for name, values in self._values.items()},
                operating_range={name: [OPERATING_RANGE_PERCENT] for name in self._values},
                properties=properties,
            )
        )
