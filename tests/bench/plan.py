"""How long the leader thinks: one plan, and one whole steady pass over tables in memory; and what becomes of skew.

`python -m tests.bench.plan` prints the median and the range of several runs, on one core, collector included.
`python -m tests.bench.plan --skew` prints how even a skewed fleet becomes, and by how many moves, ours and Java's.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, LockSettings, WorkerMetricsSettings
from kcl_host.coordination.election import Election
from kcl_host.coordination.leader import Assigner
from kcl_host.decisions.assignment import AssignmentPlan, Tracked, plan_assignment
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.model.worker import WorkerMetricStats
from tests.bench.report import Spread, machine
from tests.bench.skew import PLACEMENTS, REPORTS, Reports, javas, ours, settle, skewed
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable

SIZES: Final = ((1_000, 50), (10_000, 500))
NOW_S, WALL_S = 1000.0, 1_800_000_000
PLAN_LIMIT_S, PASS_LIMIT_S = 1.0, 2.0


@click.command()
@click.option("--runs", default=7, show_default=True, help="Of each kind.")
@click.option("--skew", is_flag=True, help="How even a skewed fleet becomes, instead of times.")
@click.option("--seeds", default=100, show_default=True, help="Skewed fleets of each kind.")
def main(runs: int, skew: bool, seeds: int) -> None:
    """What the leader's decisions cost, and how good they are."""
    console = Console(width=118)
    console.print(_skew_table(machine(), seeds) if skew else _times_table(machine(), runs))


# Times


def _times_table(versions: str, runs: int) -> Table:
    table = Table(title=f"{versions}, {runs} runs", title_justify="left")
    for name in ("leases", "workers", "input", "moves"):
        table.add_column(name, justify="left" if name == "input" else "right")
    for name in ("median s", "from", "to", "limit"):
        table.add_column(name, justify="right")
    for leases, workers in SIZES:
        for name, (owner, kbps) in INPUTS.items():
            for reports in REPORTS:
                tracked = {key: _tracked(key, n, owner, kbps, workers) for n, key in enumerate(_keys(leases))}
                stats = _all_stats(tracked, workers, reports)
                decide = _planner(tracked, stats)
                values = [_elapsed_s(decide) for _ in range(runs)]
                _add(table, leases, workers, f"plan, {name}, {reports}", len(decide().moves), values, PLAN_LIMIT_S)
        values = _pass_s(leases, workers, runs)
        _add(table, leases, workers, "leader pass, steady, throughput", 0, values, PASS_LIMIT_S)
    return table


def _add(table: Table, leases: int, workers: int, name: str, moves: int, values: list[float], limit_s: float) -> None:
    figures = Spread.of(values).texts(".3f")
    # The limit is for the largest size.
    limit = f"{limit_s:.1f}" if (leases, workers) == SIZES[-1] else ""
    table.add_row(f"{leases:,}", f"{workers:,}", name, f"{moves:,}", *figures, limit)


def _elapsed_s(act: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    act()
    return time.perf_counter() - started_s


Owner = Callable[[int, int], str | None]
"""Owner of the lease with that number among so many workers; dead ones are called "dead..."."""


def _hot(n: int) -> float:
    """One lease of twenty is hot, and the hot ones come in pairs."""
    return 1000.0 if n % 40 in (0, 1) else 100.0 + n % 7


INPUTS: Final[Mapping[str, tuple[Owner, Callable[[int], float | None]]]] = {
    "all unassigned": (lambda n, workers: None, lambda n: None),
    "half expired": (lambda n, workers: f"{'dead' if n % 2 else 'w'}{n // 2 % workers:04d}", lambda n: 100.0 + n % 7),
    "steady": (lambda n, workers: f"w{n % workers:04d}", lambda n: 100.0),
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
    load_kbps = dict.fromkeys((f"w{n:04d}" for n in range(workers)), 0.0)
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


def _planner(tracked: dict[str, Tracked], stats: list[WorkerMetricStats]) -> Callable[[], AssignmentPlan]:
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
            lease_table.put(msgspec.structs.replace(row, lease_counter=row.lease_counter + 1))
        for n in range(workers):
            metrics_table.rows[f"w{n:04d}"] = _stats(f"w{n:04d}", [], int(clock.wall()))
        scans = lease_table.requests.get("list_leases", 0)
        values.append(_elapsed_s(assigner.run_once))
        assert lease_table.requests["list_leases"] > scans and len(assigner.active_workers) == workers, (
            "no pass was made"
        )
    assert not lease_table.requests.get("initiate_handoff") and not lease_table.requests.get("assign")
    return values[1:]


# Skew


def _skew_table(versions: str, seeds: int) -> Table:
    table = Table(
        title=f"{versions}; 30 leases, 3 hot, 6 workers; {seeds} seeds each\n"
        "Highest load of a worker with more than one lease, as a multiple of the mean: worst, and share of seeds "
        "at most 1.15.\nMoves: all seeds, and those in which Java gets to 1.15 too.",
        title_justify="left",
    )
    for name in ("reports", "hot leases", "hotter"):
        table.add_column(name, no_wrap=True)
    for name in ("before", "ours", "Java", "1.15 ours", "Java", "moves ours", "Java", "of these ours", "Java"):
        table.add_column(name, justify="right")
    for reports in REPORTS:
        for holders in PLACEMENTS:
            for times_hotter in (3, 5, 8, 12):
                pairs = []
                for seed in range(seeds):
                    fleet = skewed(seed, times_hotter, holders)
                    pairs.append([settle(fleet, decide, reports, seed) for decide in (ours, javas)])
                good = [[o.is_even for o in pair] for pair in pairs]
                both = [pair for pair, is_even in zip(pairs, good, strict=True) if is_even[1]]
                table.add_row(
                    reports,
                    holders,
                    f"x {times_hotter}",
                    f"{max(pair[0].before for pair in pairs):.2f}",
                    *(f"{max(pair[n].peak for pair in pairs):.2f}" for n in (0, 1)),
                    *(f"{sum(is_even[n] for is_even in good) / seeds:.0%}" for n in (0, 1)),
                    *(f"{sum(pair[n].moves for pair in pairs):,}" for n in (0, 1)),
                    *(f"{sum(pair[n].moves for pair in both):,}" for n in (0, 1)),
                )
    return table


if __name__ == "__main__":
    main()
