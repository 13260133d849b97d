"""The worker's own row of metric stats: what makes it known, and eligible, to whoever leads (spec coordination 3.2)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.decisions.worker_activity import LEAVING
from kcl_host.errors import RetryLater, TwinWorker
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, WorkerMetricsTable

_log = logging.getLogger(__name__)

OPERATING_RANGE_PERCENT: Final = 100.0
"""What Java gives to metrics it selected by itself."""


class WorkerReport:
    """Writes the row each reporting period. `averages` drains the sampled values of the period, by short name.

    `_lock` guards everything below it, and is held across the write: a report that is late must not undo a farewell.
    """

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
        self._lock = threading.Lock()
        self._values: dict[str, deque[float]] = {}
        self._has_unwritten_values = False
        self._written_s: set[int] = set()
        """Last updates that the row may bear by our doing: of the last write that was answered, and of those in doubt
        then."""
        self._in_doubt_s: set[int] = set()
        """Last updates of the writes since, none of them answered."""
        self._properties: dict[str, str] = {}
        self._has_expired = False

    def run_once(self) -> float | None:
        """Raises TwinWorker when the row was written by anybody but this process since our first write."""
        with self._lock:
            if self._has_expired:
                return None
            self._look_for_twin()
            if not self._has_unwritten_values:
                for name, value in self._averages().items():
                    self._values.setdefault(name, deque(maxlen=self._settings.persisted_values)).append(value)
                self._has_unwritten_values = True
            self._put(int(self._clock.wall()))
            self._has_unwritten_values = False
            return self._settings.report_interval_s

    def announce_leaving(self) -> None:
        """Tells other kcl-host workers that this one takes no more leases; it is still alive."""
        with self._lock:
            self._properties = {"state": LEAVING}
            self._put(int(self._clock.wall()))

    def expire(self) -> None:
        """Makes the row too old for any leader, Java's included: this worker holds nothing any more."""
        with self._lock:
            self._has_expired = True
            self._put(int(self._clock.wall() - 2 * self._settings.report_interval_s - 1))

    def _look_for_twin(self) -> None:
        if not self._written_s | self._in_doubt_s:
            return
        try:
            row = self._table.get(self._worker_id)
        except RetryLater as error:
            # A worker that does not report gets no leases; a twin will still be there next time.
            _log.debug("own row not read", extra={"action": "twin_not_looked_for", "error": str(error)})
            return
        if row is not None and row.last_update_s not in self._written_s | self._in_doubt_s:
            raise TwinWorker(
                f"another process writes the metrics of worker {self._worker_id!r}: two workers must not share a "
                "workerId; give each its own, or leave the key out"
            )

    def _put(self, last_update_s: int) -> None:
        self._in_doubt_s.add(last_update_s)
        self._table.put(
            WorkerMetricStats(
                worker_id=self._worker_id,
                last_update_s=last_update_s,
                metric_stats={name: list(values) for name, values in self._values.items()},
                operating_range={name: [OPERATING_RANGE_PERCENT] for name in self._values},
                properties=self._properties,
            )
        )
        # A write in doubt may still be on its way, and take effect after this one.
        self._written_s, self._in_doubt_s = {last_update_s, *self._in_doubt_s}, set()
