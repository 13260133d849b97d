"""The leader's working copy of the fleet during one pass: who holds which lease, and how loaded everybody is.

Averages and the target throughput are fixed when the copy is made; a worker's metrics, load and leases change as
leases are placed in memory. Its own metrics are NOT lowered when a lease is taken from it, since nobody knows by how
much. Workers wait in a queue, the one with most capacity first; of equals the one with fewest leases, then the lower
worker id (Java serves equals in heap order and gives everything to two of them).

A lease blocked on a pending checkpoint still belongs to its old owner, but is reserved at the next one: it counts
there for limits and load, so that a pass during a handover does not promise the same room twice. Java does not reserve.

Source: KCL 3.5.1 VarianceBasedLeaseAssignmentDecider, LeaseAssignmentManager; spec coordination 4.3.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from kcl_host.config.settings import AssignmentSettings, LeaseSettings
from kcl_host.decisions.handover import blocked_on_pending_checkpoint
from kcl_host.decisions.lease_age import Tracked
from kcl_host.decisions.worker_activity import is_throughput_only, moving_average
from kcl_host.model.worker import WorkerMetricStats

THROUGHPUT: Final = "T"
"""Metric of workers without metrics: their load in percent of the target throughput."""

_SATURATED_PERCENT: Final = 99.0

_TOLERANCE: Final = 1 + 1e-9
"""Sums of floats must not put a worker above an average that it meets exactly."""


class WorkerLoad:
    """One active worker; changed by Fleet alone."""

    def __init__(
        self,
        worker_id: str,
        metrics: dict[str, float],
        newest: dict[str, float],
        limits: dict[str, float],
        load_kbps: float,
    ) -> None:
        self.worker_id = worker_id
        self.metrics = metrics
        """Moving averages, in percent."""
        self.newest = newest
        """The last report alone."""
        self.limits = limits
        """Operating range: the most percent each metric should show."""
        self.load_kbps = load_kbps
        self.held: set[str] = set()
        """Keys of the leases it may heartbeat now."""
        self.incoming: set[str] = set()
        """Keys reserved for it by pending handovers."""
        self.version = 0

    @property
    def lease_count(self) -> int:
        return len(self.held) + len(self.incoming)


class Fleet:
    """Leases and active workers of one pass. `moves` maps a lease key to (worker id, reason), latest placing wins."""

    def __init__(
        self,
        tracked: Mapping[str, Tracked],
        active: Sequence[WorkerMetricStats],
        assignment: AssignmentSettings,
        leases: LeaseSettings,
        now_s: float,
    ) -> None:
        self._by_count = assignment.strategy == "LEASE_COUNT_BASED"
        self._max_leases = leases.max_leases_for_worker
        self._max_load_kbps = assignment.max_throughput_per_host_kbps
        keys = sorted(tracked)
        known = [t for t in (tracked[key].lease.throughput_kbps for key in keys) if t is not None]
        average_kbps = sum(known) / len(known) if known else 0.0
        self.throughput = {
            key: average_kbps if (value := tracked[key].lease.throughput_kbps) is None else value for key in keys
        }
        self.owner = {key: tracked[key].lease.actual_owner for key in keys}
        self.target_kbps = average_kbps * len(keys) / max(1, len(active))
        self._leases_per_worker = max(1, len(keys) // max(1, len(active)))

        load: dict[str | None, float] = {}
        for key in keys:
            load[self.owner[key]] = load.get(self.owner[key], 0.0) + self.throughput[key]
        self.workers = {s.worker_id: self._worker(s, load.get(s.worker_id, 0.0), assignment.ema_alpha) for s in active}
        self.averages = self._averages()
        self.percent_per_kbps: dict[str, float] = {}
        """Percent points that a KiB per second adds to a metric; empty while there is no throughput."""
        if self.target_kbps > 0:
            self.percent_per_kbps = {name: average / self.target_kbps for name, average in self.averages.items()}

        self.blocked: set[str] = set()
        for key in keys:
            owner = self.owner[key]
            if owner in self.workers:
                self.workers[owner].held.add(key)
            if blocked_on_pending_checkpoint(tracked[key], now_s, leases):
                self.blocked.add(key)
                next_owner = tracked[key].lease.lease_owner
                if next_owner is not None and next_owner != owner and next_owner in self.workers:
                    self._burden(self.workers[next_owner], key)
                    self.workers[next_owner].incoming.add(key)

        self.moves: dict[str, tuple[str, str]] = {}
        self._queue: list[tuple[float, int, str, int]] = []
        self._queued: set[str] = set()
        for worker_id in sorted(self.workers):
            self.put_back(self.workers[worker_id])

    # The queue of workers that can take another lease

    def best(self) -> WorkerLoad | None:
        """Takes the worker with most capacity out of the queue; None when nobody can take a lease any more."""
        while self._queue:
            *_, worker_id, version = heapq.heappop(self._queue)
            worker = self.workers[worker_id]
            if worker_id in self._queued and version == worker.version:
                self._queued.remove(worker_id)
                return worker
        return None

    def put_back(self, worker: WorkerLoad) -> None:
        """Queues the worker again, unless it has reached a limit."""
        worker.version += 1  # What the queue has of it does not count any more.
        self._queued.discard(worker.worker_id)
        if not self.has_room(worker.load_kbps, worker.lease_count):
            return
        score = 0.0 if self._by_count else self.capacity(worker)
        heapq.heappush(self._queue, (-score, worker.lease_count, worker.worker_id, worker.version))
        self._queued.add(worker.worker_id)

    def has_room(self, load_kbps: float, lease_count: int) -> bool:
        """True while a worker with so much may take another lease; by throughput it may then exceed its limit."""
        return lease_count < self._max_leases and (self._by_count or load_kbps <= self._max_load_kbps)

    # Placing leases

    def place(self, key: str, worker: WorkerLoad, reason: str) -> None:
        """Gives the lease to `worker`, which the caller puts back into the queue, unless it is done with the queue."""
        source = self.workers.get(self.owner[key] or "")
        if source is not None:
            source.held.discard(key)
            source.load_kbps -= self.throughput[key]
            if source.worker_id in self._queued:
                self.put_back(source)
        self._burden(worker, key)
        worker.held.add(key)
        self.owner[key] = worker.worker_id
        self.moves[key] = (worker.worker_id, reason)

    def capacity(self, worker: WorkerLoad) -> float:
        """Room below the fleet's average, as a share of the worker's own value; of several metrics the scarcest."""
        return min((self._room(name, value) for name, value in worker.metrics.items()), default=0.0)

    def would_overload(self, worker: WorkerLoad, key: str) -> bool:
        """True when the lease would lift any metric above the fleet's average or the operating range."""
        return any(
            is_above(value + self._growth(name, key), min(self.averages[name], worker.limits[name]))
            for name, value in worker.metrics.items()
        )

    def reckon_as_seen(self) -> None:
        """From now on a lease adds at least as much to a metric as the leases of the active workers do.

        Java reckons with the average divided by the target throughput. That is too little, and moves leases to and fro,
        while others than active workers hold leases, and while a worker at 100 % hides how much its leases cost.
        """
        for name in self.averages:
            having = [w for w in self.workers.values() if name in w.metrics]
            telling = [w for w in having if name == THROUGHPUT or w.metrics[name] < _SATURATED_PERCENT]
            load_kbps = sum(w.load_kbps for w in telling)
            if name in self.percent_per_kbps and load_kbps > 0:
                seen = sum(w.metrics[name] for w in telling) / load_kbps
                self.percent_per_kbps[name] = max(self.percent_per_kbps[name], seen)

    def _room(self, name: str, value: float) -> float:
        return 1.0 if value == 0 else (self.averages[name] - value) / value

    def _growth(self, name: str, key: str) -> float:
        """Percent points that the lease is expected to add to a metric."""
        if self.target_kbps > 0:
            return self.throughput[key] * self.percent_per_kbps[name]
        return self.averages[name] / self._leases_per_worker

    def _burden(self, worker: WorkerLoad, key: str) -> None:
        worker.load_kbps += self.throughput[key]
        for name in worker.metrics:
            worker.metrics[name] += self._growth(name, key)
            worker.newest[name] += self._growth(name, key)

    def _worker(self, stats: WorkerMetricStats, load_kbps: float, alpha: float) -> WorkerLoad:
        if is_throughput_only(stats):
            # 0 / 0 in a new application: Java gets NaN.
            percent = load_kbps / self.target_kbps * 100 if self.target_kbps > 0 else 0.0
            return WorkerLoad(
                stats.worker_id, {THROUGHPUT: percent}, {THROUGHPUT: percent}, {THROUGHPUT: 100.0}, load_kbps
            )
        metrics = {name: moving_average(stats.metric_stats[name], alpha) for name in sorted(stats.metric_stats)}
        limits = {name: stats.operating_range[name][0] for name in metrics}
        newest = {name: stats.metric_stats[name][-1] for name in metrics}
        return WorkerLoad(stats.worker_id, metrics, newest, limits, load_kbps)

    def _averages(self) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for worker_id in sorted(self.workers):
            for name, value in self.workers[worker_id].metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(values[name]) / len(values[name]) for name in sorted(values)}


def is_above(value: float, limit: float) -> bool:
    """True when `value` exceeds `limit` by more than rounding."""
    return value > limit * _TOLERANCE
