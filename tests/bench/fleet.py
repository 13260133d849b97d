"""Where the time of a handover goes, from the logs of kcl-host, and what a rolling restart does; Java: handover.py.

Three hosts with equal shares of ten shards on the embedded engines, a record for each shard every 100 ms, children that
checkpoint every batch, polls 250 ms apart; everything else as by default, or shorter with --quick. The clock is the
machine's: a child notes when it got a batch. A run counts the last of the shards; what the slowest one waited for is
told apart, from the logs. Figures of one machine: the hosts, their children, engines and producer share its cores.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kcl_host.local.engines import Engines
from tests.bench.report import Spread, machine
from tests.integration.delivery_notes import Note
from tests.integration.fleet_of_hosts import FAST, Fleet
from tests.interop import dynamodb_local as engine

SHARDS: Final = 10
LIMIT_S: Final = 60.0
JOIN_LIMIT_S: Final = 400.0
ELSEWHERE: Final = "signal to last shard elsewhere"
MILESTONES: Final = {
    "stop_requested": "stop begins",
    "leader_acquired": "new leader",
    "worker_suspected": "suspected",
    "lease_assigned": "lease assigned",
    "lease_handed_over": "old owner lets go",
    "lease_released": "old owner lets go",
    "lease_taken": "taken up",
    "child_initialized": "child initialized",
}
"""What the hosts log on the way of a lease, by action."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`figures_s` are the run's own; `milestones_s` those of its slowest shard, since `at_s`, the monotonic time of the
    signal."""

    figures_s: dict[str, list[float]]
    milestones_s: dict[str, float]
    at_s: float
    repeated: int = 0


def term_of_follower(fleet: Fleet) -> Run:
    return _one_leave(fleet, slice(1, 2), signal.SIGTERM)


def term_of_leader(fleet: Fleet) -> Run:
    return _one_leave(fleet, slice(1), signal.SIGTERM)


def term_of_all_but_one(fleet: Fleet) -> Run:
    return _one_leave(fleet, slice(2), signal.SIGTERM)


def crash_of_follower(fleet: Fleet) -> Run:
    return _one_leave(fleet, slice(1, 2), signal.SIGKILL)


def crash_of_leader(fleet: Fleet) -> Run:
    return _one_leave(fleet, slice(1), signal.SIGKILL)


def rolling_restart_of_five(fleet: Fleet) -> Run:
    """The next one stops as soon as the one before is up again, though it has no leases yet."""
    names = list("abcde")
    fleet.start_evenly(*names)
    _wait_for_records(fleet, *names)
    began_s = time.monotonic()
    runs = []
    for name in names:
        runs.append(_leave(fleet, [name], signal.SIGTERM))
        fleet.host(name).process.wait(LIMIT_S)
        _start(fleet, name)
    fleet.check_all_delivered(LIMIT_S)
    slowest = max(runs, key=lambda run: run.figures_s[ELSEWHERE])
    return Run(
        figures_s={label: [v for run in runs for v in run.figures_s[label]] for label in slowest.figures_s},
        milestones_s=slowest.milestones_s,
        at_s=began_s,
        repeated=fleet.notes.repeated(since_s=began_s),
    )


def second_worker_joins(fleet: Fleet) -> Run:
    fleet.start("a")
    _wait_for_records(fleet, "a")
    at_s = time.monotonic()
    fleet.start("b")
    fleet.wait_until(lambda: fleet.is_even("a", "b"), JOIN_LIMIT_S)
    even_s = time.monotonic() - at_s
    moved = [shard for shard, owner in fleet.owners().items() if owner == "b"]
    firsts = fleet.wait_elsewhere(moved, {"a"}, at_s, LIMIT_S)
    gaps_s = {shard: fleet.notes.gap_s(note, {"a"}) for shard, note in firsts.items()}
    slowest = max(gaps_s, key=lambda shard: gaps_s[shard])
    fleet.check_all_delivered(LIMIT_S)
    return Run(
        figures_s={"start of the host to even": [even_s], "gap of a shard": list(gaps_s.values())},
        milestones_s=_milestones_s(fleet, firsts[slowest], firsts[slowest].at_s - gaps_s[slowest]),
        at_s=at_s,
        repeated=fleet.notes.repeated(since_s=at_s),
    )


def _one_leave(fleet: Fleet, who: slice, number: signal.Signals) -> Run:
    """Of three hosts with equal shares, the leader first, these leave at once."""
    names = list("abc")
    fleet.start_evenly(*names)
    _wait_for_records(fleet, *names)
    leader = fleet.leader()
    names.sort(key=lambda name: (name != leader, name))
    run = _leave(fleet, names[who], number)
    fleet.check_all_delivered(LIMIT_S)
    return msgspec.structs.replace(run, repeated=fleet.notes.repeated(since_s=run.at_s))


def _leave(fleet: Fleet, names: list[str], number: signal.Signals) -> Run:
    shards = [shard for shard, owner in fleet.owners().items() if owner in names]
    at_s = min(fleet.host(name).send(number) for name in names)
    firsts = fleet.wait_elsewhere(shards, names, at_s, LIMIT_S)
    slowest = max(firsts.values(), key=lambda note: note.at_s)
    return Run(
        figures_s={
            ELSEWHERE: [slowest.at_s - at_s],
            "gap of a shard": [fleet.notes.gap_s(note, names) for note in firsts.values()],
        },
        milestones_s=_milestones_s(fleet, slowest, at_s),
        at_s=at_s,
    )


def _milestones_s(fleet: Fleet, first: Note, since_s: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in fleet.log(*MILESTONES, since_s=since_s):
        if line.at_s <= first.at_s and line.shard in (None, first.shard):
            found.setdefault(MILESTONES[line.action], line.at_s - since_s)
    return {**found, "first record": first.at_s - since_s}


def _start(fleet: Fleet, name: str) -> None:
    """Until it knows who leads."""
    since_s = time.monotonic()
    fleet.start(name)

    def is_up() -> bool:
        found = fleet.log("leader_lock_foreign", "leader_acquired", since_s=since_s)
        return any(line.worker == name for line in found)

    fleet.wait_until(is_up, LIMIT_S)


def _wait_for_records(fleet: Fleet, *names: str) -> None:
    """Until every shard delivers at its owner, and until a leader has seen everybody renew.

    Then for any part of a renewal interval and of a second more: what comes next must not always find the periodic
    turns of the hosts, which started together, at the same point.
    """
    fleet.wait_until(lambda: set(fleet.owners().values()) == set(names), LIMIT_S)
    since_s = time.monotonic()
    fleet.wait_until(lambda: fleet.notes.delivering(since_s) == fleet.owners(), LIMIT_S)
    failover_s = int(fleet.settings.get("failoverTimeMillis", 10_000)) / 1000
    time.sleep(failover_s + random.uniform(0, failover_s / 3 + 1))


class Scenario(msgspec.Struct, frozen=True):
    run: Callable[[Fleet], Run]
    keys: Mapping[str, Any] = {}


SCENARIOS: Final[dict[str, Scenario]] = {
    "TERM of a follower": Scenario(term_of_follower),
    "TERM of the leader": Scenario(term_of_leader),
    "TERM of all but one": Scenario(term_of_all_but_one),
    "crash of a follower": Scenario(crash_of_follower),
    "crash of the leader": Scenario(crash_of_leader),
    "rolling restart of five": Scenario(rolling_restart_of_five),
    "second worker joins, by lease count": Scenario(second_worker_joins),
    "second worker joins, by throughput": Scenario(
        second_worker_joins, {"leaseAssignmentStrategy": "WORKER_UTILIZATION_AWARE", "disableWorkerMetrics": "true"}
    ),
}


@click.command()
@click.option("--runs", default=5, show_default=True)
@click.option("--quick", is_flag=True, help="failoverTimeMillis = 2000, a pass each second, each of them balances.")
@click.option("--only", multiple=True, help="Scenarios with these words in their names.")
@click.option("--dynamodb-local", is_flag=True, help="Amazon's DynamoDB Local instead of the embedded one; needs Java.")
@click.option("--logs", type=click.Path(path_type=Path), help="Keep notes and logs in this folder.")
def main(runs: int, quick: bool, only: tuple[str, ...], dynamodb_local: bool, logs: Path | None) -> None:
    """Handover and failover times of real hosts on the embedded engines."""
    keys = FAST if quick else {}
    results: dict[str, list[Run]] = {}
    for name, scenario in SCENARIOS.items():
        if not only or any(word in name for word in only):
            results[name] = []
            for _ in range(runs):
                with engine.dynamodb_local() if dynamodb_local else nullcontext() as endpoint_url:
                    results[name].append(_once(scenario, keys, endpoint_url, logs))
    console = Console()
    where = "DynamoDB Local" if dynamodb_local else "embedded DynamoDB"
    intervals = "--quick" if quick else "default intervals"
    table = Table(title=f"{SHARDS} shards, {intervals}, {where}, {runs} runs each")
    for column in ("scenario", "seconds"):
        table.add_column(column)
    for column in ("median", "min", "max", "values", "delivered twice"):
        table.add_column(column, justify="right")
    for name, measured in results.items():
        repeated = ", ".join(str(run.repeated) for run in measured)
        for label in measured[0].figures_s:
            values = [value for run in measured for value in run.figures_s[label]]
            table.add_row(name, label, *Spread.of(values).texts(".2f"), str(len(values)), repeated)
            name = repeated = ""
    console.print(table)
    for name, measured in results.items():
        console.print(f"{name}, the slowest shard of a run: {_way(run.milestones_s for run in measured)}")
    console.print(f"{machine()}, load average {os.getloadavg()[0]:.1f}")


def _once(scenario: Scenario, keys: Mapping[str, Any], dynamodb_endpoint: str | None, logs: Path | None) -> Run:
    folder = Path(tempfile.mkdtemp(dir=logs))
    keys = {**keys, **scenario.keys}
    try:
        with (
            Engines() as engines,
            Fleet(engines, folder, shards=SHARDS, dynamodb_endpoint=dynamodb_endpoint, **keys) as fleet,
        ):
            return scenario.run(fleet)
    finally:
        if logs is None:
            shutil.rmtree(folder)


def _way(runs: Iterable[Mapping[str, float]]) -> str:
    """Median time of each milestone, in the order of time."""
    times_s: dict[str, list[float]] = {}
    for milestones_s in runs:
        for label, at_s in milestones_s.items():
            times_s.setdefault(label, []).append(at_s)
    medians_s = {label: statistics.median(values) for label, values in times_s.items()}
    return ", ".join(f"{label} {at_s:.2f}" for label, at_s in sorted(medians_s.items(), key=lambda pair: pair[1]))


if __name__ == "__main__":
    main()
