"""How Java's leader would decide on the same snapshot: the yardstick for ours, in our own words.

A model of the decision alone, quirks included: scores that are equal are served in the order of a binary heap, a new
application divides nothing by nothing, and a lease that is moved twice in one pass is taken off its first owner twice.
What it takes from kcl_host is what both agree on: who is active, what is expired, what a pending handover blocks.

Source: KCL 3.5.1 LeaseAssignmentManager, VarianceBasedLeaseAssignmentDecider, WorkerMetricStats; spec coordination 4.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.decisions.handover import blocked_on_pending_checkpoint, is_expired_or_unassigned
from kcl_host.decisions.lease_age import Tracked
from kcl_host.decisions.worker_activity import is_throughput_only, judge_worker, moving_average
from kcl_host.model.worker import WorkerMetricStats


def java_plan(
    tracked: Mapping[str, Tracked],
    workers: Sequence[WorkerMetricStats],
    *,
    assignment: AssignmentSettings,
    leases: LeaseSettings,
    metrics: WorkerMetricsSettings,
    now_s: float,
    wall_s: float,
    balance: bool,
    rng: random.Random,
) -> dict[str, str]:
    """The next owner of each lease that Java would write, by lease key. Takes what plan_assignment takes."""
    active = [w for w in workers if judge_worker(w, wall_s, metrics) in ("active", "leaving")]
    view = _View(tracked, active, assignment, leases)
    candidates = [t for t in tracked.values() if is_expired_or_unassigned(t, now_s, leases)]
    for candidate in sorted(candidates, key=lambda t: t.last_counter_increment_s):
        worker = view.queue.poll()
        if worker is None:
            break
        view.assign(candidate.lease.lease_key, worker, is_expired=True)
    if balance:
        _balance(view, assignment, rng)
    return {
        key: to for key, to in view.assigned.items() if not blocked_on_pending_checkpoint(tracked[key], now_s, leases)
    }


class _Worker:
    def __init__(self, worker_id: str, values: dict[str, float], limits: dict[str, float]) -> None:
        self.worker_id = worker_id
        self.values = values
        self.limits = limits


class _View:
    """Java's in-memory view of one run, and its queue of workers that can take a lease."""

    def __init__(
        self,
        tracked: Mapping[str, Tracked],
        active: Sequence[WorkerMetricStats],
        assignment: AssignmentSettings,
        leases: LeaseSettings,
    ) -> None:
        self._tracked = tracked
        self._max_kbps = assignment.max_throughput_per_host_kbps
        self._max_leases = leases.max_leases_for_worker
        known = [kbps for t in tracked.values() if (kbps := t.lease.throughput_kbps) is not None]
        average_kbps = sum(known) / len(known) if known else 0.0
        self.kbps = {
            key: average_kbps if t.lease.throughput_kbps is None else t.lease.throughput_kbps
            for key, t in tracked.items()
        }
        self.target_kbps = average_kbps * len(tracked) / max(1, len(active))
        self.leases_per_worker = max(1, len(tracked) // max(1, len(active)))
        self.held: defaultdict[str | None, list[str]] = defaultdict(list)
        self.load_kbps: defaultdict[str | None, float] = defaultdict(float)
        for key, t in tracked.items():
            self.held[t.lease.actual_owner].append(key)
            self.load_kbps[t.lease.actual_owner] += self.kbps[key]
        self.workers = [self._worker(stats, assignment.ema_alpha) for stats in active]
        values: defaultdict[str, list[float]] = defaultdict(list)
        for worker in self.workers:
            for name, value in worker.values.items():
                values[name].append(value)
        self.averages = {name: sum(found) / len(found) for name, found in values.items()}
        self.assigned: dict[str, str] = {}
        self.queue = _Queue(self)
        for worker in self.workers:
            self.queue.add(worker)

    def assign(self, key: str, worker: _Worker, *, is_expired: bool) -> None:
        lease = self._tracked[key].lease
        if lease.actual_owner == worker.worker_id and not (is_expired and lease.is_handover_pending):
            self.queue.add(worker)
            return
        worker.values = self.with_lease(worker, key)
        # The owner as read, even if the lease has moved in memory since.
        if key in self.held[lease.actual_owner]:
            self.held[lease.actual_owner].remove(key)
        self.held[worker.worker_id].append(key)
        self.load_kbps[worker.worker_id] += self.kbps[key]
        self.load_kbps[lease.actual_owner] -= self.kbps[key]
        self.assigned[key] = worker.worker_id
        self.queue.add(worker)

    def with_lease(self, worker: _Worker, key: str) -> dict[str, float]:
        if self.target_kbps > 0:
            return {n: v + self.kbps[key] * self.averages[n] / self.target_kbps for n, v in worker.values.items()}
        return {n: v + self.averages[n] / self.leases_per_worker for n, v in worker.values.items()}

    def is_eligible(self, worker: _Worker) -> bool:
        held = self.held[worker.worker_id]
        return self.load_kbps[worker.worker_id] <= self._max_kbps and (not held or len(held) < self._max_leases)

    def score(self, worker: _Worker) -> float:
        """Not a number counts as more than any number, as in Java's order of doubles."""
        ratios = [1.0 if v == 0 else (self.averages[n] - v) / v for n, v in worker.values.items()]
        return math.inf if any(math.isnan(r) for r in ratios) else min(ratios, default=math.inf)

    def _worker(self, stats: WorkerMetricStats, alpha: float) -> _Worker:
        if is_throughput_only(stats):
            load_kbps = self.load_kbps[stats.worker_id]
            percent = load_kbps / self.target_kbps * 100 if self.target_kbps else (math.inf if load_kbps else math.nan)
            return _Worker(stats.worker_id, {"T": percent}, {"T": 100.0})
        values = {name: moving_average(found, alpha) for name, found in stats.metric_stats.items()}
        return _Worker(stats.worker_id, values, {name: stats.operating_range[name][0] for name in values})


class _Queue:
    """A binary heap as java.util.PriorityQueue keeps it, since the order of equals decides who gets leases."""

    def __init__(self, view: _View) -> None:
        self._view = view
        self._heap: list[_Worker] = []

    def add(self, worker: _Worker) -> None:
        if not self._view.is_eligible(worker):
            return
        self._heap.append(worker)
        child = len(self._heap) - 1
        while child and self._before(worker, self._heap[(child - 1) // 2]):
            self._heap[child] = self._heap[(child - 1) // 2]
            child = (child - 1) // 2
        self._heap[child] = worker

    def poll(self) -> _Worker | None:
        if not self._heap:
            return None
        first, last = self._heap[0], self._heap.pop()
        if self._heap:
            place = 0
            while (child := 2 * place + 1) < len(self._heap):
                if child + 1 < len(self._heap) and self._before(self._heap[child + 1], self._heap[child]):
                    child += 1
                if not self._before(self._heap[child], last):
                    break
                self._heap[place] = self._heap[child]
                place = child
            self._heap[place] = last
        return first

    def _before(self, one: _Worker, other: _Worker) -> bool:
        return self._view.score(one) > self._view.score(other)


def _balance(view: _View, settings: AssignmentSettings, rng: random.Random) -> None:
    chosen: list[tuple[float, _Worker]] = []
    largest_kbps = -1.0
    for name in view.averages:
        found = _takes(view, name, settings)
        total_kbps = sum(kbps for kbps, _ in found)
        if total_kbps > largest_kbps:
            chosen, largest_kbps = found, total_kbps
    for take_kbps, source in sorted(chosen, key=lambda pair: -pair[0]):
        for key in _taken(view, source, take_kbps, settings, rng):
            target = view.queue.poll()
            if target is None:
                continue
            if any(v > min(view.averages[n], target.limits[n]) for n, v in view.with_lease(target, key).items()):
                break
            view.assign(key, target, is_expired=False)


def _takes(view: _View, name: str, settings: AssignmentSettings) -> list[tuple[float, _Worker]]:
    average = view.averages[name]
    upper, lower = (average * (1 + sign * settings.rebalance_threshold_percentage / 100) for sign in (1, -1))
    workers = [w for w in view.workers if name in w.values]
    beyond = [w for w in workers if w.values[name] > w.limits[name]]
    if not beyond and not any(w.values[name] > upper or w.values[name] < lower for w in workers):
        return []
    sources = [w for w in workers if w.values[name] >= upper or w in beyond]
    if not sources:
        sources = [max(workers, key=lambda w: w.values[name])]
    return [
        (
            view.load_kbps[w.worker_id]
            * (w.values[name] - average)
            / w.values[name]
            * settings.dampening_percentage
            / 100,
            w,
        )
        for w in sources
    ]


def _taken(
    view: _View, source: _Worker, take_kbps: float, settings: AssignmentSettings, rng: random.Random
) -> list[str]:
    held = sorted(view.held[source.worker_id])
    if not held or view.load_kbps[source.worker_id] == 0:
        return held[:1]
    rng.shuffle(held)
    taken: list[str] = []
    for key in held:
        if take_kbps - view.kbps[key] > 0:
            take_kbps -= view.kbps[key]
            taken.append(key)
    if not taken and settings.allow_throughput_overshoot:
        return [min(held, key=lambda key: view.kbps[key])]
    return taken
