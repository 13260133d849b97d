"""Moving leases from loaded workers to others, once every lease has a live owner.

By variance (the default): of all metrics the one with most to move is handled; workers that stand above the fleet's
average by the threshold, or above their operating range, give away a dampened share of their excess to whoever has
most room, as long as that lifts nobody above the average. By lease count: the counts become equal, give or take one.

Source: KCL 3.5.1 VarianceBasedLeaseAssignmentDecider, LeaseCountBasedLeaseAssignmentDecider; spec coordination 4.6
and 4.8.
Where we differ from Java:
- A worker that joins without any lease gets its share at once, undampened (share_with_newcomers); Java approaches it
  by dampened steps, one a minute, and not at all where its CPU happens to stand at the fleet's average.
- A worker far above the average from which no lease can be moved so exchanges a hot one for lighter ones (exchange.py).
- While there is no throughput at all, workers without metrics are balanced by lease count; Java divides 0 by 0 and
  leaves a worker that joins without any lease.
- A worker with throughput gives away no lease without any: that relieves nobody.
- Leases already on their way count as given (fleet.py); Java would choose again.
- The lease-count strategy levels fully, with the fewest moves; Java leaves workers without any lease when the others do
  not exceed the rounded-up target.
- Leases are shuffled by the rng that is handed in, and sorted before: the same seed gives the same plan.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final

import msgspec

from kcl_host.config.settings import AssignmentSettings
from kcl_host.decisions.exchange import plan_exchange
from kcl_host.decisions.fleet import THROUGHPUT, Fleet, WorkerLoad, is_above
from kcl_host.decisions.rng import Rng

_NOTHING_KBPS: Final = 0.01
"""Averages of what is read no more fade away, each at the pace of its renewals; what is left of them is no load."""
_EVEN: Final = 1 + 1e-9
"""Sums of floats must not make equals unequal."""


class _Excess(msgspec.Struct, frozen=True):
    """Workers above the average in one metric, each with the KiB per second it should give away, most first."""

    metric: str
    sources: tuple[tuple[WorkerLoad, float], ...]

    @property
    def total_kbps(self) -> float:
        return sum(take_kbps for _, take_kbps in self.sources)


def balance_by_variance(fleet: Fleet, settings: AssignmentSettings, max_leases: int, rng: Rng) -> None:
    """Places leases in `fleet` so that utilisation evens out."""
    if fleet.target_kbps <= 0 and fleet.averages.keys() <= {THROUGHPUT}:
        balance_by_lease_count(fleet, max_leases)
        return
    is_quiet = not fleet.moves
    fleet.reckon_as_seen()
    found = [excess for metric in fleet.averages if (excess := _excess(fleet, metric, settings)).sources]
    if not found:
        return
    excess = max(found, key=lambda e: e.total_kbps)  # the first of equals
    relieved = set()
    for source, take_kbps in excess.sources:
        keys = _leases_to_give(fleet, source, take_kbps, settings, rng)
        if _give(fleet, source, keys, f"balance:{excess.metric}"):
            relieved.add(source.worker_id)
    if settings.allow_throughput_overshoot and is_quiet:
        for key, worker_id in plan_exchange(fleet, excess.metric, settings, relieved).items():
            fleet.place(key, fleet.workers[worker_id], f"balance:{excess.metric}")


def share_with_newcomers(
    fleet: Fleet, newcomers: Collection[str], ended: Collection[str], settings: AssignmentSettings
) -> None:
    """Gives each newcomer that holds nothing its share of the leases, from whoever has most.

    By throughput where there is any and the strategy looks at it, else by count. A newcomer with a metric above its
    operating range, or above the fleet's average by the threshold, has other work to do and gets nothing here. Leases
    that are `ended`, or in a pending handover, stay where they are.
    """
    idle_kbps = max(fleet.target_kbps / max(1, len(fleet.owner)) / 100, _NOTHING_KBPS)
    by_count = settings.strategy == "LEASE_COUNT_BASED"
    weight = {key: 1.0 if by_count else max(kbps, idle_kbps) for key, kbps in fleet.throughput.items()}
    load = {w: sum(weight[key] for key in worker.held | worker.incoming) for w, worker in fleet.workers.items()}
    empty = [(0.0, w) for w in sorted(newcomers) if w in load and not load[w] and _is_idle(fleet, w, settings)]
    movable = {
        w: sorted((weight[key], key) for key in worker.held - fleet.blocked if key not in ended)
        for w, worker in fleet.workers.items()
        if load[w]
    }
    loaded = [(-load[w], w) for w in movable]
    heapq.heapify(loaded)
    while empty and loaded:
        target_kbps, target = empty[0]
        if not fleet.has_room(fleet.workers[target].load_kbps, fleet.workers[target].lease_count):
            heapq.heappop(empty)
            continue
        source_kbps, source = -loaded[0][0], loaded[0][1]
        # The heaviest that leaves the target no more loaded than the source will be.
        most_kbps = (source_kbps - target_kbps) / 2 * _EVEN
        fitting = bisect_right(movable[source], most_kbps, key=itemgetter(0))
        if not fitting:
            return
        kbps, key = movable[source].pop(fitting - 1)
        heapq.heapreplace(empty, (target_kbps + kbps, target))
        heapq.heapreplace(loaded, (kbps - source_kbps, source))
        fleet.place(key, fleet.workers[target], "newcomer")


def _is_idle(fleet: Fleet, worker_id: str, settings: AssignmentSettings) -> bool:
    worker, share = fleet.workers[worker_id], 1 + settings.rebalance_threshold_percentage / 100
    return not any(
        is_above(value, min(fleet.averages[name] * share, worker.limits[name]))
        for name, value in worker.metrics.items()
    )


def _give(fleet: Fleet, source: WorkerLoad, keys: Sequence[str], reason: str) -> bool:
    """Places each lease with whoever has most room, until it would overload that worker; True if one was placed."""
    given = False
    for key in keys:
        target = fleet.best()
        if target is None or fleet.would_overload(target, key):
            # It stays out of the queue for this pass, and so does the rest of this source (Java's rule).
            break
        if target is not source:
            fleet.place(key, target, reason)
            given = True
        fleet.put_back(target)
    return given


def _excess(fleet: Fleet, metric: str, settings: AssignmentSettings) -> _Excess:
    average = fleet.averages[metric]
    upper = average * (1 + settings.rebalance_threshold_percentage / 100)
    lower = average * (1 - settings.rebalance_threshold_percentage / 100)
    workers = [w for _, w in sorted(fleet.workers.items()) if metric in w.metrics]

    def beyond_range(worker: WorkerLoad) -> bool:
        return is_above(worker.metrics[metric], worker.limits[metric])

    if not any(is_above(w.metrics[metric], upper) or is_above(lower, w.metrics[metric]) for w in workers) and not any(
        beyond_range(w) for w in workers
    ):
        return _Excess(metric, ())
    sources = [w for w in workers if w.metrics[metric] >= upper or beyond_range(w)]
    if not sources:
        sources = [max(workers, key=lambda w: w.metrics[metric])]
    taken = [(w, _take_kbps(w, metric, average, settings)) for w in sources]
    return _Excess(metric, tuple(sorted(taken, key=lambda pair: (-pair[1], pair[0].worker_id))))


def _take_kbps(worker: WorkerLoad, metric: str, average: float, settings: AssignmentSettings) -> float:
    value = worker.metrics[metric]
    share = (value - average) / value if value > 0 else 0.0
    return worker.load_kbps * share * settings.dampening_percentage / 100


def _leases_to_give(
    fleet: Fleet, source: WorkerLoad, take_kbps: float, settings: AssignmentSettings, rng: Rng
) -> list[str]:
    """Leases of `source` that together weigh less than `take_kbps`, in random order; or one that weighs more.

    A worker whose leases show no throughput gives one; another gives none of those that show none.
    """
    leaving = source.held & fleet.blocked
    movable = sorted(source.held - leaving)
    if source.load_kbps <= 0:
        return [] if leaving else movable[:1]
    movable = [key for key in movable if fleet.throughput[key] > 0]
    remaining_kbps = take_kbps - sum(fleet.throughput[key] for key in sorted(leaving))
    rng.shuffle(movable)
    given = []
    for key in movable:
        if remaining_kbps - fleet.throughput[key] > 0:
            remaining_kbps -= fleet.throughput[key]
            given.append(key)
    if movable and not given and not leaving and settings.allow_throughput_overshoot:
        given = [min(movable, key=lambda key: (fleet.throughput[key], key))]
    return given


def balance_by_lease_count(fleet: Fleet, max_leases: int) -> None:
    """Places leases in `fleet` so that no two workers differ by more than one lease, with the fewest moves."""
    counts = {w: fleet.workers[w].lease_count - len(fleet.workers[w].held & fleet.blocked) for w in fleet.workers}
    if not counts:
        return
    quotient, remainder = divmod(sum(counts.values()), len(counts))
    # Whoever has most keeps the odd ones.
    ordered = sorted(counts, key=lambda w: (-counts[w], w))
    target = {w: quotient + (1 if rank < remainder else 0) for rank, w in enumerate(ordered)}
    offered = iter(
        [
            key
            for w in ordered
            if counts[w] > target[w]
            for key in sorted(fleet.workers[w].held - fleet.blocked)[: counts[w] - target[w]]
        ]
    )
    for worker_id in reversed(ordered):
        worker = fleet.workers[worker_id]
        room = min(target[worker_id] - counts[worker_id], max_leases - worker.lease_count)
        for key in islice(offered, max(0, room)):
            fleet.place(key, worker, "balance:leases")
