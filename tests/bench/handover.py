"""How long a shard stands still when its host stops, crashes, or gives it to another one; both hosts.

Three hosts of a kind on one application, ten shards with a few records for each read, a read every 200 ms, C children
that checkpoint every batch. The properties of both are the same: by default the short intervals of SHARED, with
--defaults those that either has without being told, which are the same, too. A graceful stop is asked of both
(shutdownGraceMillis; Java's default is none). Not to be set in Java's file, and 30 s and 2 minutes there: heartbeat and
length of the leader lock. A figure ends when a child has answered for a batch; the clock is the machine's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from tests.bench import hosts, notes
from tests.bench.hosts import Place
from tests.bench.pairs import Options, Pairs, options
from tests.bench.report import Column, Kind
from tests.interop.java_daemon import FAST, LoggedProcess

SHARDS: Final = 10
SHARED: Final = {**FAST, "varianceBalancingFrequency": "1"}
ALWAYS: Final = {"idleTimeBetweenReadsInMillis": "200", "maxRecords": "10", "shutdownGraceMillis": "20000"}
START_LIMIT_S: Final = 600.0
LIMIT_S: Final = 400.0
SETTLE_S: Final = 5.0
"""After the last lease has moved: two renewals, and a pass of the leader."""
SHARE: Final = SHARDS * 2 // 5
"""Of a second worker: Java stops short of half."""
LEAST: Final = 2
"""Leases of each of three workers, which Java does not always make even."""
SIGNALS: Final[dict[str, tuple[signal.Signals, bool]]] = {
    "TERM of a follower": (signal.SIGTERM, False),
    "TERM of the leader": (signal.SIGTERM, True),
    "kill -9 of a follower": (signal.SIGKILL, False),
    "kill -9 of the leader": (signal.SIGKILL, True),
}
"""And whether it goes to the leader."""
JOINS: Final = "a second worker joins"
DEFAULTS: Final = ", default intervals"
COLUMNS: Final = (
    Column("first record elsewhere s", "first_s"),
    Column("last shard elsewhere s", "last_s"),
    Column("longest gap of a shard s", "gap_s"),
    Column("batches twice", "twice", ".0f", has_ratio=False),
    Column("shards moved", "moved", ".0f", has_ratio=False),
    Column(f"start to {SHARE} of {SHARDS} s", "share_s"),
)


@click.command()
@options
@click.option("--defaults", is_flag=True, help="Default intervals instead of short ones: minutes for each run.")
def main(given: Options, defaults: bool) -> None:
    """Handover and failover of both hosts."""
    pairs = Pairs("handover", given)
    suffix = DEFAULTS if defaults else ""

    def measure(cell: str, run: int, kind: Kind) -> dict[str, float]:
        event = cell.removesuffix(suffix)
        executable, env = hosts.child_command("c")
        env["KCL_BENCH_CHECKPOINT"] = "1"
        properties = {"executableName": executable, **ALWAYS, **({} if defaults else SHARED)}

        def host(at: Place, name: str) -> LoggedProcess:
            return hosts.host(kind, name, at, {**properties, "workerId": name}, env, pairs.jvm)

        with tempfile.TemporaryDirectory() as folder, hosts.place(Path(folder), SHARDS, [b"record"]) as at:
            if event == JOINS:
                return _joins(at, host)
            return _leaves(at, host, "ab" if given.quick else "abc", *SIGNALS[event])

    cells = [f"{event}{suffix}" for event in (*SIGNALS, JOINS)]
    pairs.run([cells[0]] if given.quick else cells, COLUMNS, measure)


Make = Callable[[Place, str], LoggedProcess]


def _leaves(at: Place, make: Make, names: str, number: signal.Signals, of_leader: bool) -> dict[str, float]:
    with _fleet(at, make, names) as fleet:
        _wait(at, fleet, lambda held: len(held) == len(names) and min(held.values()) >= LEAST)
        leader = at.leader()
        victim = leader if of_leader else min(name for name in fleet if name != leader)
        assert victim in fleet, f"the leader is {leader}"
        moved = {int(shard[-12:]) for shard, owner in at.owners().items() if owner == victim}
        others = [name for name in fleet if name != victim]
        at_s = notes.now_s()
        os.kill(fleet[victim].pid, number)
        return _elsewhere(at, victim, others, moved, at_s, fleet[others[0]])


def _joins(at: Place, make: Make) -> dict[str, float]:
    with _fleet(at, make, "a") as fleet:
        _wait(at, fleet, lambda held: held["a"] == SHARDS)
        at_s = notes.now_s()
        with hosts.running(make(at, "b")) as second:
            second.wait_for(lambda: _held(at)["b"] >= SHARE, LIMIT_S, f"{SHARE} leases of the second worker")
            share_s = notes.now_s() - at_s
            moved = {int(shard[-12:]) for shard, owner in at.owners().items() if owner == "b"}
            return {**_elsewhere(at, "a", ["b"], moved, at_s, second), "share_s": share_s}


@contextlib.contextmanager
def _fleet(at: Place, make: Make, names: str) -> Iterator[dict[str, LoggedProcess]]:
    """All started at once; killed in the end."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(make(at, name)) for name in names}


def _held(at: Place) -> Counter[str]:
    return Counter(owner for owner in at.owners().values() if owner)


def _wait(at: Place, fleet: dict[str, LoggedProcess], is_spread: Callable[[Counter[str]], bool]) -> None:
    """Until the leases are spread like that, have not moved for a while, and every shard is read by its owner."""
    first = next(iter(fleet.values()))
    still: list[tuple[float, dict[str, str | None]]] = []

    def is_settled() -> bool:
        owners, now_s = at.owners(), notes.now_s()
        if not still or still[-1][1] != owners:
            still.append((now_s, owners))
        if now_s - still[-1][0] < SETTLE_S or not is_spread(Counter(o for o in owners.values() if o)):
            return False
        read = {name: notes.statuses(at.folder / name) for name in fleet}
        return all(
            owner is not None and now_s - read[owner].get(int(shard[-12:]), [notes.NEVER])[-1].at_s < SETTLE_S
            for shard, owner in owners.items()
        )

    first.wait_for(is_settled, START_LIMIT_S, "leases are spread and all shards are read")


def _elsewhere(
    at: Place, old: str, new: list[str], moved: set[int], at_s: float, watched: LoggedProcess
) -> dict[str, float]:
    """Of the shards that moved, since the signal at `at_s`; waits until every one is read by a new owner."""

    def firsts() -> dict[int, notes.Status]:
        found: dict[int, notes.Status] = {}
        for name in new:
            for shard, of_shard in notes.statuses(at.folder / name).items():
                later = [status for status in of_shard if status.at_s > at_s]
                if shard in moved and later and (shard not in found or later[0].at_s < found[shard].at_s):
                    found[shard] = later[0]
        return found

    watched.wait_for(lambda: len(firsts()) == len(moved), LIMIT_S, f"{len(moved)} shards at their new owners")
    came, before = firsts(), notes.statuses(at.folder / old)
    lasts = {shard: [s for s in before[shard] if s.at_s < came[shard].at_s][-1] for shard in moved}
    return {
        "first_s": min(status.at_s for status in came.values()) - at_s,
        "last_s": max(status.at_s for status in came.values()) - at_s,
        "gap_s": max(came[shard].at_s - lasts[shard].at_s for shard in moved),
        "twice": sum(max(0, lasts[shard].batch - came[shard].batch + 1) for shard in moved),
        "moved": len(moved),
    }


if __name__ == "__main__":
    main()
