"""Exchanging leases, when balancing found none that could be taken from a loaded worker.

Two hot leases that sit on one worker stay there in Java for ever: a hot lease fits below nobody's average, and without
its light leases the worker is still above it. Here the hot one goes where lighter ones make room for it, in one pass.

It is the last resort, since it costs more moves. It is made only for a worker that stands above the average by half as
much again as the threshold (15 % by default) with two leases or more, and from which this pass has moved nothing else;
only in a pass without unassigned or expired leases, which the averages do not count yet; and only if none of those who
take part stands there afterwards. (A lease that would be alone on a worker may lift it higher, as long as it shows less
than the loaded worker did: that is as far as the shards allow.)

By throughput, where the prediction is exact, each exchange leaves one such worker less, and no lease comes back. By
other metrics a lease is reckoned to add as much as it would on an average worker or, if that is more, as much as the
worker's own leases do, and to take along its share of what the worker shows; and since these trail behind, a loaded
worker counts by the lower of its average and its last report, others by the higher.

Java has nothing like it. Where Java comes below the 15 % by itself, we make no more moves (tests/bench/skew.py).
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Collection, Sequence
from typing import Final

from kcl_host.config.settings import AssignmentSettings
from kcl_host.decisions.fleet import THROUGHPUT, Fleet, WorkerLoad, is_above

_MARGIN: Final = 1.5
"""Of the threshold. Nearer to the average an exchange is not worth its moves."""
_ASKED: Final = 16
"""So many workers are relieved in one pass, the most loaded, and asked to make room for a lease, the least loaded."""

_Lease = tuple[float, str]
"""KiB per second and key: sorted, the lightest comes first."""


def plan_exchange(fleet: Fleet, metric: str, settings: AssignmentSettings, relieved: Collection[str]) -> dict[str, str]:
    """The next owner of each lease to move, by lease key; empty when there is nothing to gain.

    `relieved` are the workers from which this pass has moved leases. Who takes part in a pending handover is left out.
    """
    if fleet.target_kbps <= 0:
        return {}
    upper = {n: a * (1 + _MARGIN * settings.rebalance_threshold_percentage / 100) for n, a in fleet.averages.items()}
    workers = {
        worker_id: _Worker(fleet, w, upper)
        for worker_id, w in sorted(fleet.workers.items())
        if not w.incoming and not w.held & fleet.blocked
    }
    loaded = [w for worker_id, w in workers.items() if worker_id not in relieved and w.is_loaded(metric)]
    moves: dict[str, str] = {}
    for worker in heapq.nsmallest(_ASKED, loaded, key=lambda w: (-w.excess_kbps(metric), w.worker_id)):
        moves |= _relieve(workers, worker.worker_id, metric)
    return moves


def _relieve(workers: dict[str, _Worker], worker_id: str, metric: str) -> dict[str, str]:
    """Takes leases off the worker and finds a place for each, heaviest first; changes nothing if one finds none.

    It ends, because only lighter leases make room for a lease: nothing is placed twice.
    """
    trial = {other_id: copy.copy(worker) for other_id, worker in workers.items()}
    ceiling = trial[worker_id].values
    light_kbps = max(w.room_kbps() for w in trial.values())
    pool = [(-kbps, key, worker_id) for kbps, key in trial[worker_id].release(metric, light_kbps)]
    heapq.heapify(pool)
    moves: dict[str, str] = {}
    while pool:
        negative_kbps, key, origin = heapq.heappop(pool)
        found = _find_place(trial, trial[origin], -negative_kbps, ceiling)
        if found is None:
            return {}
        target, evicted = found
        for lease in evicted:
            target.remove(lease)
            heapq.heappush(pool, (-lease[0], lease[1], target.worker_id))
        target.add(-negative_kbps)
        if target.worker_id != origin:
            moves[key] = target.worker_id
    workers |= trial
    return moves


def _find_place(
    workers: dict[str, _Worker], origin: _Worker, kbps: float, ceiling: dict[str, float]
) -> tuple[_Worker, list[_Lease]] | None:
    """Where the lease goes, and what leaves there: best is no move at all, then few."""
    if origin.make_room(kbps, ceiling) == []:
        return origin, []
    best: tuple[_Worker, list[_Lease]] | None = None
    for worker in heapq.nsmallest(_ASKED, workers.values(), key=lambda w: (w.fullness, w.worker_id)):
        evicted = worker.make_room(kbps, ceiling)
        if evicted is not None and (best is None or len(evicted) < len(best[1])):
            best = worker, evicted
        if evicted == []:
            break
    return best


class _Worker:
    """A worker in a copy of the fleet. Its attributes are replaced and never changed, so a shallow copy is enough."""

    def __init__(self, fleet: Fleet, worker: WorkerLoad, upper: dict[str, float]) -> None:
        self.worker_id = worker.worker_id
        self._fleet = fleet
        # By throughput the "range" of 100 is the average itself, not something that the worker asked for.
        self._ranges = {n: math.inf if n == THROUGHPUT else limit for n, limit in worker.limits.items()}
        self._bounds = {n: min(upper[n], limit) for n, limit in self._ranges.items()}
        low = {n: min(v, worker.newest[n]) for n, v in worker.metrics.items()}
        self._loaded = {n for n, v in low.items() if is_above(v, self._bounds[n])}
        self.values = {n: low[n] if n in self._loaded else max(v, worker.newest[n]) for n, v in worker.metrics.items()}
        self._load_kbps = worker.load_kbps
        self._share = {n: v / worker.load_kbps if worker.load_kbps > 0 else 0.0 for n, v in self.values.items()}
        """Percent points that leave with each KiB per second."""
        self._growth = {n: max(fleet.percent_per_kbps[n], share) for n, share in self._share.items()}
        """Percent points that come with each."""
        weighty = sorted((fleet.throughput[key], key) for key in worker.held if fleet.throughput[key] > 0)
        self._leases = tuple(lease for lease in weighty if lease[1] not in fleet.moves)
        """Those that may leave, the lightest first."""
        self._staying = len(weighty) - len(self._leases)
        self._weightless = worker.lease_count - len(weighty)
        self.fullness = self._fullness()
        """The scarcest metric as a share of its bound."""

    def is_loaded(self, metric: str) -> bool:
        return metric in self._loaded and self.excess_kbps(metric) > 0

    def excess_kbps(self, metric: str) -> float:
        """What has to leave so that the metric comes down to its bound; 0 when just one lease is left."""
        excess = self.values[metric] - self._bounds[metric]
        if len(self._leases) + self._staying < 2 or self._share[metric] <= 0 or excess <= 1e-9 * self._bounds[metric]:
            return 0.0
        return excess / self._share[metric]

    def room_kbps(self) -> float:
        """What may come without lifting any metric above the fleet's average or the operating range."""
        room = [
            (min(self._fleet.averages[n], self._ranges[n]) - v) / self._growth[n] * (1 + 1e-9)
            for n, v in self.values.items()
            if self._growth[n] > 0
        ]
        return min(room, default=0.0)

    def release(self, metric: str, light_kbps: float) -> list[_Lease]:
        """Takes leases off until the metric is within its bound: light ones if they suffice, else few."""
        released = []
        while (excess_kbps := self.excess_kbps(metric)) > 0 and self._leases:
            light = [lease for lease in self._leases if lease[0] <= light_kbps]
            enough = sum(kbps for kbps, _ in light) >= excess_kbps
            heavy = self._leases[len(light) :]
            released.append(_next_to_leave(light if enough or not heavy else heavy, excess_kbps))
            self.remove(released[-1])
        return released

    def make_room(self, kbps: float, ceiling: dict[str, float]) -> list[_Lease] | None:
        """The leases, each lighter, that have to leave before one of `kbps` can come; None: it cannot come.

        A lease that would be alone may exceed the bounds, but neither `ceiling` nor the operating range.
        """
        lighter = [lease for lease in self._leases if lease[0] < kbps]
        values, load_kbps, evicted = self.values, self._load_kbps, list[_Lease]()
        while True:
            after = {n: v + kbps * self._growth[n] for n, v in values.items()}
            left = len(self._leases) + self._staying - len(evicted)
            too_high = [n for n, v in after.items() if is_above(v, self._bounds[n])]
            if self._fleet.has_room(load_kbps, left + self._weightless) and (
                not too_high
                or (left == 0 and all(after[n] < min(ceiling.get(n, 0.0), self._ranges[n]) for n in too_high))
            ):
                return evicted
            if not lighter or any(self._share[n] <= 0 for n in too_high):
                return None
            excess_kbps = max(((after[n] - self._bounds[n]) / self._share[n] for n in too_high), default=0.0)
            leaving = _next_to_leave(lighter, excess_kbps)
            lighter.remove(leaving)
            evicted.append(leaving)
            load_kbps -= leaving[0]
            values = {n: v - leaving[0] * self._share[n] for n, v in values.items()}

    def add(self, kbps: float) -> None:
        self._change(kbps, self._growth)
        self._staying += 1

    def remove(self, lease: _Lease) -> None:
        self._change(-lease[0], self._share)
        self._leases = tuple(other for other in self._leases if other != lease)

    def _change(self, kbps: float, percent: dict[str, float]) -> None:
        self.values = {n: v + kbps * percent[n] for n, v in self.values.items()}
        self._load_kbps += kbps
        self.fullness = self._fullness()

    def _fullness(self) -> float:
        return max((v / b if (b := self._bounds[n]) > 0 else 0.0 for n, v in self.values.items()), default=0.0)


def _next_to_leave(leases: Sequence[_Lease], excess_kbps: float) -> _Lease:
    """The lightest that is enough, or else the heaviest."""
    return next((lease for lease in leases if lease[0] >= excess_kbps), leases[-1])
