"""scripts/simulate: fleets of real workers in simulated time, disturbed by seeds."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kcl_host.decisions.saved_fleet import load_fleet
from kcl_host.errors import ConfigurationError
from tests.simulation.beginning import beginning_of
from tests.simulation.coverage import expected, missing
from tests.simulation.run import Failure, Outcome, Setup, outcome_of, shrink, simulate

SHOWN_FAILURES = 3
SEEDS_PER_PROCESS = 4


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--seed", type=int, help="Run this seed alone, shrink its failure and print the history.")
@click.option("--seeds", type=int, default=20, show_default=True, help="Run so many seeds, from --first on.")
@click.option("--first", type=int, default=0, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=5, show_default=True)
@click.option("--shards", type=click.IntRange(1), default=20, show_default=True)
@click.option("--hours", type=float, default=1.0, show_default=True, help="Simulated time with disturbances.")
@click.option("--failover", type=float, default=10.0, show_default=True, help="failoverTimeMillis, in seconds.")
@click.option("--every", type=float, default=40.0, show_default=True, help="Seconds between disturbances, on average.")
@click.option("--minutes", type=float, help="Start no further seed after so long; those under way are finished.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default=True, help="Seeds at once.")
@click.option("--coverage/--no-coverage", default=True, show_default=True, help="Fail when something was never met.")
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Begin with a fleet saved by `kcl-host plan --save`: its settings, workers, shards, owners and loads; "
    "--workers, --shards, --failover and --coverage do not count then.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write counts and times here.")
def main(
    seed: int | None,
    seeds: int,
    first: int,
    workers: int,
    shards: int,
    hours: float,
    failover: float,
    every: float,
    minutes: float | None,
    jobs: int,
    coverage: bool,
    snapshot: Path | None,
    json_path: Path | None,
) -> None:
    """Break fleets of real kcl-host workers, and see whether every promise holds.

    A seed decides everything: when a worker is killed, stopped or cut off, which answers are lost, when shards are
    split, how children misbehave. The same seed does the same again. A failure is printed with its seed, the few
    disturbances that it needs, and what happened to the lease.
    """
    setup = Setup(seed=seed or 0, workers=workers, shards=shards, hours=hours, failover_s=failover, every_s=every)
    if snapshot is not None:
        setup, coverage = _begun(setup, snapshot), False
    console = Console(stderr=False)
    if seed is not None:
        try:
            console.print(_summary(simulate(setup)))
        except Failure as failure:
            with console.status("shrinking"):
                small = shrink(failure)
            _show(console, small)
            sys.exit(1)
        return
    started_s = time.monotonic()
    counts, outcomes, failures = Counter[str](), list[Outcome](), list[Failure]()
    # Tasks of a fleet that is over hang on to each other; a process that ends lets go of them.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=SEEDS_PER_PROCESS)
    with pool, _progress(console) as progress:
        task = progress.add_task("seeds", total=seeds, broken=0)
        until_s = math.inf if minutes is None else started_s + 60 * minutes
        for result in _results(pool, jobs, [_with_seed(setup, first + n) for n in range(seeds)], until_s):
            if isinstance(result, Outcome):
                outcomes.append(result)
                counts += result.counts
            else:
                failures.append(result)
            progress.update(task, advance=1, broken=len(failures))
    _report(console, setup, counts, outcomes, failures, time.monotonic() - started_s, first)
    absent = missing(counts) if coverage else []
    if absent:
        console.print(f"[red]never met:[/] {', '.join(absent)}")
    if json_path:
        json_path.write_text(json.dumps({"setup": repr(setup), "seeds": seeds, "counts": counts}, indent=1))
    for failure in failures[:SHOWN_FAILURES]:
        _show(console, failure)
    sys.exit(1 if failures or absent else 0)


def _begun(setup: Setup, path: Path) -> Setup:
    try:
        beginning = beginning_of(load_fleet(path.read_bytes()), str(path))
    except (ConfigurationError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    return msgspec.structs.replace(
        setup,
        workers=beginning.workers,
        shards=len(beginning.owners),
        failover_s=beginning.leases.failover_s,
        beginning=beginning,
    )


def _with_seed(setup: Setup, seed: int) -> Setup:
    return msgspec.structs.replace(setup, seed=seed)


def _results(pool: Executor, jobs: int, setups: Iterable[Setup], until_s: float) -> Iterator[Outcome | Failure]:
    """As they come; no setup is begun when the time is over."""
    rest = iter(setups)
    running: set[Future[Outcome | Failure]] = set()
    while True:
        while len(running) < 2 * jobs and time.monotonic() < until_s and (setup := next(rest, None)):
            running.add(pool.submit(outcome_of, setup))
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[broken]} broken"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _summary(outcome: Outcome) -> str:
    return (
        f"held: {outcome.records:,} records, {outcome.redelivered:,} delivered again, {outcome.moves:,} leases moved, "
        f"{outcome.seconds:.1f} s"
    )


def _report(
    console: Console,
    setup: Setup,
    counts: Counter[str],
    outcomes: list[Outcome],
    failures: list[Failure],
    took_s: float,
    first: int,
) -> None:
    table = Table("what", "times", title="What was met", title_justify="left")
    for name in expected():
        table.add_row(name, f"{counts[name]:,}", style="" if counts[name] else "red")
    console.print(table)
    total = len(outcomes) + len(failures)
    console.print(
        f"{total:,} seeds from {first} of {setup.workers} workers x {setup.shards} shards x {setup.hours:g} h "
        f"(failover {setup.failover_s:g} s), {len(failures)} broken; "
        f"{sum(o.records for o in outcomes):,} records, {sum(o.redelivered for o in outcomes):,} delivered again, "
        f"{sum(o.moves for o in outcomes):,} leases moved; {took_s:.0f} s, "
        f"{sum(o.seconds for o in outcomes) / max(1, len(outcomes)):.1f} s per seed"
    )


def _show(console: Console, failure: Failure) -> None:
    setup = failure.setup
    console.rule(f"seed {setup.seed}")
    for line in failure.history:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"[red]{failure.why}[/]", highlight=False)
    console.print(f"{len(failure.schedule)} disturbances:", highlight=False)
    for item in failure.schedule:
        console.print(f"  {item}", highlight=False, markup=False)
    size = f"--workers {setup.workers} --shards {setup.shards} --failover {setup.failover_s:g}"
    if setup.beginning is not None:
        size = f"--snapshot {setup.beginning.path}"
    console.print(
        f"again: scripts/simulate --seed {setup.seed} {size} --hours {setup.hours:g} --every {setup.every_s:g}",
        highlight=False,
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a run; without this a seed would not replay in another process.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    main()
