"""What the leader's decision costs, and how good it is, by the size of the fleet: ours and Java's on one snapshot.

Java's is the library's own class, called by a small program of ours (java_decider.py). Both get the same leases and
reports of workers in memory, and decide on a pass that balances. Each run starts with a decision that nothing has
warmed up, in Java's case the first one of a JVM; the time of one after many is the median of the last REPEAT - WARM_UP.
How even a plan is: the highest load of a worker as a multiple of the mean, by the leases that it would have; once more
after ten such passes, each on what the ones before made of the fleet.

`--leader-pass` measures a whole pass of our leader over tables in memory, of a steady fleet.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import click
from msgspec.structs import replace

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, LockSettings, WorkerMetricsSettings
from kcl_host.coordination.election import Election
from kcl_host.coordination.leader import Assigner
from kcl_host.decisions.assignment import AssignmentPlan, Tracked, plan_assignment
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.model.worker import WorkerMetricStats
from tests.bench.java_decider import Decided, JavaDecider
from tests.bench.pairs import Options, Pairs, options
from tests.bench.report import Column, Kind, Spread, machine
from tests.bench.skew import REPORTS, Reports
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable

SIZES: Final = ((1_000, 50), (10_000, 500))
QUICK: Final = ((100, 5),)
REPEAT, WARM_UP, PASSES = 15, 10, 10
NOW_S, WALL_S = 1000.0, 1_800_000_000
USUAL_KBPS: Final = 100.0
COLUMNS: Final = (
    Column("first decision ms", "first_ms", ".1f"),
    Column("decision ms", "decision_ms", ".1f"),
    Column("moves", "moves", ",.0f", has_ratio=False),
    Column("highest load before", "before", has_ratio=False),
    Column("after a pass", "after"),
    Column(f"after {PASSES} passes", "settled"),
    Column(f"moves of {PASSES} passes", "settled_moves", ",.0f", has_ratio=False),
)


@click.command()
@options
@click.option("--leader-pass", is_flag=True, help="A whole pass of our leader, instead.")
def main(given: Options, leader_pass: bool) -> None:
    """Time and quality of the assignment of leases."""
    sizes = QUICK if given.quick else SIZES
    if leader_pass:
        for leases, workers in sizes:
            median, low, high = Spread.of(_pass_s(leases, workers, given.runs)).texts(".3f")
            click.echo(f"{leases:,} leases, {workers:,} workers: a pass takes {median} s ({low} - {high})")
        click.echo(f"{machine()}, {given.runs} runs")
        return
    fleets = {
        f"{leases:,} leases, {workers:,} workers, {name}, by {reports}": (leases, workers, name, reports)
        for leases, workers in sizes
        for name in INPUTS
        for reports in REPORTS
    }
    pairs = Pairs("plan", given)

    def measure(cell: str, run: int, kind: Kind) -> dict[str, float]:
        leases, workers, name, reports = fleets[cell]
        owner, kbps = INPUTS[name]
        fleet = {key: _tracked(key, n, owner, kbps, workers) for n, key in enumerate(_keys(leases))}
        with contextlib.ExitStack() as stack:
            decide: Decide = _ours
            if kind == "java":
                assert pairs.jvm is not None
                decide = stack.enter_context(JavaDecider(pairs.jvm)).decide
            first = decide(fleet, _all_stats(fleet, workers, reports), now_s=NOW_S, repeat=REPEAT)
            settled, moves = _after(fleet, first.assigned), len(first.assigned)
            for _ in range(PASSES - 1):
                decided = decide(settled, _all_stats(settled, workers, reports), now_s=NOW_S, repeat=1)
                settled, moves = _after(settled, decided.assigned), moves + len(decided.assigned)
        before = _highest(fleet, workers)
        return {
            "first_ms": first.seconds[0] * 1000,
            "decision_ms": statistics.median(first.seconds[WARM_UP:]) * 1000,
            "moves": len(first.assigned),
            **({"before": before} if before else {}),
            "after": _highest(_after(fleet, first.assigned), workers),
            "settled": _highest(settled, workers),
            "settled_moves": moves,
        }

    pairs.run(list(fleets), COLUMNS, measure)


class Decide(Protocol):
    def __call__(
        self, tracked: Mapping[str, Tracked], workers: Sequence[WorkerMetricStats], /, *, now_s: float, repeat: int
    ) -> Decided: ...


def _ours(fleet: Mapping[str, Tracked], stats: Sequence[WorkerMetricStats], *, now_s: float, repeat: int) -> Decided:
    """As JavaDecider.decide."""
    assert now_s == NOW_S
    decide = _planner(fleet, stats)
    seconds = [_elapsed_s(decide) for _ in range(repeat)]
    return Decided(seconds, {move.lease.lease_key: move.to for move in decide().moves})


def _after(fleet: Mapping[str, Tracked], assigned: Mapping[str, str]) -> dict[str, Tracked]:
    """All moves made, and the load of a lease that had none known by now."""

    def moved(t: Tracked) -> Tracked:
        owner, kbps = assigned.get(t.lease.lease_key, t.lease.lease_owner), t.lease.throughput_kbps
        lease = replace(t.lease, lease_owner=owner, throughput_kbps=USUAL_KBPS if kbps is None else kbps)
        return replace(t, lease=lease, last_counter_increment_s=NOW_S)

    return {key: moved(t) for key, t in fleet.items()}


def _highest(fleet: Mapping[str, Tracked], workers: int) -> float:
    """Load of the worker that has most, of the mean of those that are alive; 0 when nobody has anything."""
    load = dict.fromkeys(_workers(workers), 0.0)
    for lease in (t.lease for t in fleet.values()):
        if lease.lease_owner in load:
            load[lease.lease_owner] += lease.throughput_kbps or 0.0
    return max(load.values()) / (statistics.mean(load.values()) or 1.0)


def _elapsed_s(act: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    act()
    return time.perf_counter() - started_s


def _workers(count: int) -> list[str]:
    return [f"w{n:04d}" for n in range(count)]


Owner = Callable[[int, int], str | None]
"""Owner of the lease with that number among so many workers; dead ones are called "dead..."."""


def _hot(n: int) -> float:
    """One lease of twenty is hot, and the hot ones come in pairs."""
    return 1000.0 if n % 40 in (0, 1) else 100.0 + n % 7


INPUTS: Final[Mapping[str, tuple[Owner, Callable[[int], float | None]]]] = {
    "all unassigned": (lambda n, workers: None, lambda n: None),
    "half expired": (lambda n, workers: f"{'dead' if n % 2 else 'w'}{n // 2 % workers:04d}", lambda n: 100.0 + n % 7),
    "steady": (lambda n, workers: f"w{n % workers:04d}", lambda n: USUAL_KBPS),
    "uneven": (lambda n, workers: f"w{n * n % workers:04d}", lambda n: 100.0 + n % 7),
    "hot pairs": (lambda n, workers: f"w{n // 2 % workers:04d}", _hot),
}


def _keys(leases: int) -> list[str]:
    return [f"shardId-{n:012d}" for n in range(leases)]


def _tracked(key: str, n: int, owner: Owner, kbps: Callable[[int], float | None], workers: int) -> Tracked:
    worker_id = owner(n, workers)
    seen_s = -math.inf if worker_id is None else NOW_S - 11 if worker_id.startswith("dead") else NOW_S
    lease = Lease(lease_key=key, checkpoint=AT_TRIM_HORIZON, lease_owner=worker_id, throughput_kbps=kbps(n))
    return Tracked(lease=lease, last_counter_increment_s=seen_s)


def _all_stats(tracked: Mapping[str, Tracked], workers: int, reports: Reports) -> list[WorkerMetricStats]:
    """CPU of 5 % without any lease, and 40 % more for the average load."""
    load_kbps = dict.fromkeys(_workers(workers), 0.0)
    for lease in (t.lease for t in tracked.values()):
        if lease.lease_owner in load_kbps:
            load_kbps[lease.lease_owner] += lease.throughput_kbps or 0.0
    mean_kbps = sum(load_kbps.values()) / workers or 1.0
    percent = {worker_id: min(100.0, 5 + 40 * kbps / mean_kbps) for worker_id, kbps in load_kbps.items()}
    return [_stats(worker_id, [value] * 10 if reports == "cpu" else []) for worker_id, value in percent.items()]


def _stats(worker_id: str, cpu: list[float], last_update_s: int = WALL_S) -> WorkerMetricStats:
    return WorkerMetricStats(
        worker_id=worker_id,
        last_update_s=last_update_s,
        metric_stats={"C": cpu} if cpu else {},
        operating_range={"C": [100.0]} if cpu else {},
    )


def _planner(tracked: Mapping[str, Tracked], stats: Sequence[WorkerMetricStats]) -> Callable[[], AssignmentPlan]:
    return lambda: plan_assignment(
        tracked,
        stats,
        assignment=AssignmentSettings(),
        leases=LeaseSettings(),
        metrics=WorkerMetricsSettings(),
        now_s=NOW_S,
        wall_s=WALL_S,
        balance=True,
        rng=random.Random(1),
    )


def _pass_s(leases: int, workers: int, runs: int) -> list[float]:
    """Passes of a leader over a steady fleet whose leases are all renewed in between; the first one is not counted."""
    clock = FakeClock()
    lease_table, metrics_table = InMemoryLeaseTable(clock), InMemoryWorkerMetricsTable(clock)
    versions = iter(range(1_000_000))
    election = Election(InMemoryCoordinatorTable(clock), "w0000", LockSettings(), clock, lambda: f"v{next(versions)}")
    settings = AssignmentSettings(variance_balancing_frequency=1)
    assigner = Assigner(
        election,
        lease_table,
        metrics_table,
        "w0000",
        settings,
        LeaseSettings(),
        WorkerMetricsSettings(),
        clock,
        random.Random(1),
        on_assigned_to_self=lambda row, read_at_s: None,
    )
    owner, kbps = INPUTS["steady"]
    for n, key in enumerate(_keys(leases)):
        lease_table.put(_tracked(key, n, owner, kbps, workers).lease)
    values: list[float] = []
    while len(values) < runs + 1:
        for _ in range(10):
            election.run_once()
            clock.advance(settings.interval_s / 10)
        for row in lease_table.rows.values():
            lease_table.put(replace(row, lease_counter=row.lease_counter + 1))
        for n in range(workers):
            metrics_table.rows[f"w{n:04d}"] = _stats(f"w{n:04d}", [], int(clock.wall()))
        scans = lease_table.requests.get("list_leases", 0)
        values.append(_elapsed_s(assigner.run_once))
        assert lease_table.requests["list_leases"] > scans and len(assigner.active_workers) == workers, (
            "no pass was made"
        )
    assert not lease_table.requests.get("initiate_handoff") and not lease_table.requests.get("assign")
    return values[1:]


if __name__ == "__main__":
    main()
