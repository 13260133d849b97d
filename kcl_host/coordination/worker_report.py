"""The worker's own row of metric stats: what makes it known, and eligible, to whoever leads (spec coordination 3.2)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.decisions.worker_activity import LEAVING
from kcl_host.errors import RetryLater, TwinWorker
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, NewLock, WorkerReports

SUPPORT_CODE: Final = 1
"""SINGLE_TABLE_MIGRATION: the promise of spec migration 5, (a) to (e), renewed with each report."""


class WorkerReport:
    """Writes the row each reporting period. `averages` drains the sampled values of the period, by short name.

    A twin shows in what our own write replaces; to look before it would cost a read unit each time.

    `_lock` guards everything below it, and is held across the write: a report that is late must not undo a farewell.
    """

    def __init__(
        self,
        table: WorkerReports,
        worker_id: str,
        settings: WorkerMetricsSettings,
        clock: Clock,
        averages: Callable[[], dict[str, float]],
        new_lock: NewLock = threading.Lock,
        instruments: Instruments = NOTHING,
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._averages = averages
        self._instruments = instruments
        self._lock = new_lock()
        self._values: dict[str, deque[float]] = {}
        self._has_unwritten_values = False
        self._written_s: set[int] = set()
        """Last updates that the row may bear by our doing: of the last write that was answered, and of those in doubt
        then."""
        self._in_doubt_s: set[int] = set()
        """Last updates of the writes since, none of them answered."""
        self._properties: dict[str, str] = {}
        self._is_over = False
        """The row is not ours to write any more."""

    def run_once(self) -> float | None:
        """Raises TwinWorker when the row was written by anybody but this process since our first write."""
        with self._lock:
            if self._is_over:
                return None
            if not self._has_unwritten_values:
                for name, value in self._averages().items():
                    self._values.setdefault(name, deque(maxlen=self._settings.persisted_values)).append(value)
                self._has_unwritten_values = True
            with self._instruments.reporting_load():
                twin_update_s = self._put(int(self._clock.wall()))
            self._has_unwritten_values = False
            if twin_update_s is not None:
                self._give_way(twin_update_s)
                raise TwinWorker(
                    f"another process writes the metrics of worker {self._worker_id!r}: two workers must not share a "
                    "workerId; give each its own, or leave the key out"
                )
            return self._settings.report_interval_s

    def announce_leaving(self) -> None:
        """Tells other kcl-host workers that this one takes no more leases; it is still alive."""
        with self._lock:
            self._properties = {"state": LEAVING}
            if not self._is_over:
                self._put(int(self._clock.wall()))

    def expire(self) -> None:
        """Makes the row too old for any leader, Java's included: this worker holds nothing any more."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
            if not was_over:
                self._put(int(self._clock.wall() - 2 * self._settings.report_interval_s - 1))

    def _give_way(self, twin_update_s: int) -> None:
        """The one that came later stays: its row must bear its own last update, or it would take us for the twin."""
        self._is_over = True
        with suppress(RetryLater):
            self._put(twin_update_s)

    def _put(self, last_update_s: int) -> int | None:
        """The last update that somebody else had written over ours; None when nobody had."""
        had_written = bool(self._written_s)  # Before that the row is what an earlier process with our id has left.
        ours_s = self._written_s | self._in_doubt_s
        self._in_doubt_s.add(last_update_s)
        found_s = self._table.put(
            WorkerMetricStats(
                worker_id=self._worker_id,
                last_update_s=last_update_s,
                metric_stats={name: list(values) for name, values in self._values.items()},
                operating_range={name: [self._settings.operating_range_percent(name)] for name in self._values},
                support_code=SUPPORT_CODE,
                support_code_update_s=last_update_s,
                properties=self._properties,
            )
        )
        # A write in doubt may still be on its way, and take effect after this one.
        self._written_s, self._in_doubt_s = self._in_doubt_s, set()
        return found_s if had_written and found_s not in ours_s else None
