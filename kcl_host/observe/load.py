"""The worker metrics of this process: which ones, their samples, and the average of each reporting period.

Shared state: the sources and the samples of the period, guarded by `LoadSampler._lock`; one thread samples, another
drains. The lock is held while the sources read (ECS: a few requests of at most ECS_TIMEOUT_S), since a source keeps its
last reading.
Source: KCL 3.5.1 WorkerMetricStatsManager, Scheduler.selectWorkerMetricsIfAvailable; spec coordination 3.2, 3.7.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from statistics import fmean
from typing import Final, Protocol

import msgspec

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.model.worker import SHORT_NAMES, WorkerMetric
from kcl_host.observe.cpu import Fetch, fetch_link_local, select_cpu
from kcl_host.observe.network import RECEIVED, SENT, NetworkUse

_log = logging.getLogger(__name__)

FAILED: Final = -1.0
"""What a period without any value reports: the leader gives such a worker no further leases."""
DEFAULTS: Final = WorkerMetricsSettings()
SAMPLES: Final = 300
"""Samples kept per metric; of a longer period the oldest are forgotten."""


class Source(Protocol):
    def read(self) -> float:
        """Percent used since the read before, 0 the first time. Raises what `LoadSampler` catches."""


def select_sources(
    settings: WorkerMetricsSettings,
    environ: Mapping[str, str],
    root: Path,
    now_s: Callable[[], float],
    fetch: Fetch,
) -> dict[str, Source]:
    """Sources by short name: of `settings.metrics`, else of CPU, which alone `settings.disabled` switches off.

    A metric that this platform does not have at all is left out: reported as failed, it would keep leases away from
    this worker for ever.
    """
    automatic: tuple[WorkerMetric, ...] = () if settings.disabled else ("CPU",)
    sources: dict[str, Source] = {}
    for metric in settings.metrics or automatic:
        source: Source | None = None
        if metric == "CPU":
            source = select_cpu(environ, root, now_s, fetch)
        elif (root / "proc/net/dev").exists():
            column = RECEIVED if metric == "NETWORK_IN" else SENT
            source = NetworkUse(root, settings.network_interface, column, settings.network_max_mb_per_s, now_s)
        if source is not None:
            sources[SHORT_NAMES[metric]] = source
        elif settings.metrics:
            _log.warning(
                "worker metric cannot be had on this platform", extra={"action": "load_unavailable", "metric": metric}
            )
    return sources


class LoadSampler:
    """Samples the worker metrics and averages them per reporting period; without any it reports nothing at all."""

    def __init__(
        self,
        settings: WorkerMetricsSettings = DEFAULTS,
        *,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        now_s: Callable[[], float] = time.monotonic,
        fetch: Fetch = fetch_link_local,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._interval_s = settings.capture_interval_s
        self._sources = select_sources(settings, environ, root, now_s, fetch) if sys.platform == "linux" else {}
        self._lock = threading.Lock()
        self._values: dict[str, deque[float]] = {metric: deque(maxlen=SAMPLES) for metric in self._sources}
        self._failing: set[str] = set()
        self._on_failure = on_failure

    def __repr__(self) -> str:
        sources = {metric: type(source).__name__ for metric, source in self._sources.items()}
        return f"<LoadSampler {sources} values={[len(values) for values in self._values.values()]}>"

    def run_once(self) -> float | None:
        """Takes one sample of each metric; None when there is no metric at all."""
        self.sample()
        return self._interval_s if self._sources else None

    def sample(self) -> None:
        """Takes one value of each metric; one that cannot be had, or is not within 0 and 100, is left out."""
        with self._lock:
            for metric in self._sources:
                self._take(metric)

    def drain_average(self) -> dict[str, float]:
        """By short name the average since the last drain, rounded half up to 6 decimals, FAILED without any value.

        A metric that has none yet is sampled now: at the start FAILED would keep leases away from this worker.
        """
        with self._lock:
            for metric, values in self._values.items():
                if not values:
                    self._take(metric)
            averages = {metric: _average(values) for metric, values in self._values.items()}
            for values in self._values.values():
                values.clear()
        return averages

    def _take(self, metric: str) -> None:
        """What goes wrong is said once per metric, and so is its end."""
        try:
            value = self._sources[metric].read()
            if not 0 <= value <= 100:
                raise ValueError(f"a load of {value} percent")
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, msgspec.MsgspecError) as error:
            if metric not in self._failing:
                facts = {"action": "load_failed", "metric": metric, "error": repr(error)}
                _log.warning("worker metric failed; a whole report without it keeps new leases away", extra=facts)
            self._failing.add(metric)
            self._on_failure()
            return
        self._values[metric].append(value)
        if metric in self._failing:
            _log.info("worker metric is back", extra={"action": "load_recovered", "metric": metric})
        self._failing.discard(metric)


def _average(values: deque[float]) -> float:
    if not values:
        return FAILED
    return float(Decimal(str(fmean(values))).quantize(Decimal("0.000001"), ROUND_HALF_UP))
