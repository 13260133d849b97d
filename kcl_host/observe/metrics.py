"""The one registry behind every exporter of metrics.

A **scope** is what shares dimension values: the worker, or one incarnation of a lease. In it each metric has one
**series**, which keeps two things of its points: the statistics since the last `drain` (CloudWatch, EMF) and the totals
since it began (Prometheus). Points are merged as they come, as in Java's publisher queue, so what is kept does not grow
with time: neither while nothing can be published nor while many points come.

Shared state: the map of scopes, and what is waiting of ended ones, guarded by `Registry._lock`; the series of a scope
by the lock of the scope. A thread that reports takes the latter only, which nobody else wants but another reporter of
the same shard and, for microseconds, a drain. Nothing is sent under a lock. The lock order is registry, then scope.

Source: KCL 3.5.1 AccumulatingMetricsScope, MetricAccumulatingQueue, FilteringMetricsScope; spec metrics 1, 2, 5.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping

import msgspec

from kcl_host.config.settings import MetricsSettings
from kcl_host.model.metric import Dimensions, MetricDatum, StatisticSet
from kcl_host.observe.catalogue import BY_NAME, OPERATION, WORKER_IDENTIFIER, Metric

Record = Callable[[float], None]
"""Gets a point, or the sum of several."""
NewRecorder = Callable[[Metric, Dimensions], Record | None]


class Total(msgspec.Struct, frozen=True):
    """What a series came to since it began; `last` is its last point."""

    metric: Metric
    dimensions: Dimensions
    sum: float
    count: int
    last: float


class Series:
    """The points of one metric and one set of dimensions. Everything under the lock of its scope."""

    __slots__ = ("_count", "_last", "_maximum", "_minimum", "_record", "_sum", "_sum_before", "_total_before",
                 "dimensions", "metric")  # fmt: skip

    def __init__(self, metric: Metric, dimensions: Dimensions, record: Record | None) -> None:
        self.metric = metric
        self.dimensions = dimensions
        self._record = record
        self._sum_before, self._total_before, self._last = 0.0, 0, 0.0
        self._restart()

    def _restart(self) -> None:
        self._minimum, self._maximum, self._sum, self._count = math.inf, -math.inf, 0.0, 0

    def add(self, value: float) -> None:
        self._add(value, value, 1)

    def add_many(self, total: float, count: int) -> None:
        """`count` points of which only the sum is known: each counts as their average."""
        self._add(total / count, total, count)

    def _add(self, value: float, total: float, count: int) -> None:
        if value < self._minimum:
            self._minimum = value
        if value > self._maximum:
            self._maximum = value
        self._sum += total
        self._count += count
        self._last = value
        if self._record is not None:
            self._record(total)

    def take(self) -> StatisticSet | None:
        """The statistics since the last time; None without a point."""
        if not self._count:
            return None
        taken = StatisticSet(self._minimum, self._maximum, self._sum, self._count)
        self._sum_before += self._sum
        self._total_before += self._count
        self._restart()
        return taken

    def total(self) -> Total:
        return Total(
            self.metric, self.dimensions, self._sum_before + self._sum, self._total_before + self._count, self._last
        )


class Scope:
    """The series that share dimension values. Any thread may report."""

    def __init__(self, values: Mapping[str, str], new_recorder: NewRecorder | None = None) -> None:
        """`values` by the name of the dimension; those that a metric has, and that are here, it gets."""
        self.lock = threading.Lock()
        self._values = values
        self._new_recorder = new_recorder
        self._series: dict[tuple[str, str], Series] = {}

    def series(self, operation: str, name: str) -> Series:
        """The series of a metric of the catalogue, to be used under `lock`; KeyError when there is no such metric."""
        key = (operation, name)
        found = self._series.get(key)
        if found is None:
            metric = BY_NAME[key]
            known = [
                (dimension, self._values[dimension]) for dimension in metric.dimensions if dimension in self._values
            ]
            dimensions = ((OPERATION, operation), *known)
            record = self._new_recorder(metric, dimensions) if self._new_recorder else None
            found = self._series[key] = Series(metric, dimensions, record)
        return found

    def add(self, operation: str, **points: float) -> None:
        """A point for each metric of the operation that is named."""
        with self.lock:
            for name, value in points.items():
                self.series(operation, name).add(value)

    def take(self) -> list[tuple[Series, StatisticSet]]:
        with self.lock:
            return [(series, taken) for series in self._series.values() if (taken := series.take()) is not None]

    def totals(self) -> list[Total]:
        with self.lock:
            return [series.total() for series in self._series.values()]


class Registry:
    """All scopes of a worker.

    `max_waiting` bounds how many metrics of ended scopes wait for the next drain: beyond it a new one is dropped and
    counted, while points of those that wait are still merged, as Java does with its whole queue (metricsMaxQueueSize).
    What lives needs no bound: there are as many series as leases held. `new_recorder` gets to see each point at once.
    """

    def __init__(self, worker_id: str, max_waiting: int = 10_000, new_recorder: NewRecorder | None = None) -> None:
        self._max_waiting = max_waiting
        self._new_recorder = new_recorder
        self._lock = threading.Lock()
        self._scopes: dict[Scope, None] = {}
        self._waiting: dict[tuple[Metric, Dimensions], StatisticSet] = {}
        self._by_worker: Mapping[str, int] = {}
        self.worker = self.scope({WORKER_IDENTIFIER: worker_id})

    def __repr__(self) -> str:
        return f"<Registry {len(self._scopes)} scopes, {len(self._waiting)} metrics of ended ones>"

    def scope(self, values: Mapping[str, str]) -> Scope:
        scope = Scope(values, self._new_recorder)
        with self._lock:
            self._scopes[scope] = None
        return scope

    def scopes(self) -> list[Scope]:
        """Those that have not ended."""
        with self._lock:
            return list(self._scopes)

    def end(self, scope: Scope) -> None:
        """The scope gets no more points; what it has waits for the next drain. Any number of times."""
        shed = 0
        with self._lock:
            if scope not in self._scopes:
                return
            del self._scopes[scope]
            for series, taken in scope.take():
                key = (series.metric, series.dimensions)
                before = self._waiting.get(key)
                if before is None and len(self._waiting) >= self._max_waiting:
                    shed += 1
                else:
                    self._waiting[key] = taken if before is None else before.merged(taken)
        if shed:
            self.worker.add("Metrics", Shed=shed)

    def drain(self) -> Iterator[tuple[Metric, Dimensions, StatisticSet]]:
        """What came since the last drain, scope by scope: each is asked only when the ones before have been taken."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            scopes = list(self._scopes)
        for (metric, dimensions), statistics in waiting.items():
            yield metric, dimensions, statistics
        for scope in scopes:
            for series, statistics in scope.take():
                yield series.metric, series.dimensions, statistics

    def totals(self) -> list[Total]:
        """Of all that lives; a shard that was given away has none any more."""
        with self._lock:
            scopes, by_worker = list(self._scopes), self._by_worker
        leases = BY_NAME["Fleet", "WorkerLeases"]
        return [total for scope in scopes for total in scope.totals()] + [
            Total(leases, ((OPERATION, leases.operation), (WORKER_IDENTIFIER, worker_id)), count, 1, count)
            for worker_id, count in by_worker.items()
        ]

    def note_fleet(self, leases_by_worker: Mapping[str, int]) -> None:
        """The leases of each worker as of now, in place of what was noted before; empty when we do not lead."""
        with self._lock:
            self._by_worker = dict(leases_by_worker)


class Selection:
    """Which metrics are published, and with which dimensions (metricsLevel, metricsEnabledDimensions)."""

    def __init__(self, settings: MetricsSettings, *, ours: bool = False) -> None:
        self._level = settings.level
        self._ours = ours
        enabled = frozenset(settings.enabled_dimensions)
        self._enabled = None if "ALL" in enabled else enabled

    def wants(self, metric: Metric) -> bool:
        """False for what is below the level, and for ours unless they are wanted too."""
        if self._level == "NONE" or (metric.ours and not self._ours):
            return False
        return self._level == "DETAILED" or metric.level == "SUMMARY"

    def enabled(self, dimensions: Dimensions) -> Dimensions:
        """Operation has no special protection, as in Java: without it metrics of the same name become one."""
        return dimensions if self._enabled is None else tuple(d for d in dimensions if d[0] in self._enabled)

    def data(
        self, drained: Iterator[tuple[Metric, Dimensions, StatisticSet]], at_most: int
    ) -> Iterator[list[MetricDatum]]:
        """Data in portions of at most `at_most`. In a portion what differs in left out dimensions only is merged."""
        portion: dict[tuple[str, Dimensions], MetricDatum] = {}
        for metric, dimensions, statistics in drained:
            if not self.wants(metric):
                continue
            dimensions = self.enabled(dimensions)
            key = (metric.name, dimensions)
            before = portion.get(key)
            if before is not None:
                statistics = before.statistics.merged(statistics)
            elif len(portion) >= at_most:
                yield list(portion.values())
                portion = {}
            portion[key] = MetricDatum(metric.name, metric.unit, dimensions, statistics)
        if portion:
            yield list(portion.values())
