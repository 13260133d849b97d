"""From the start of the process to the first record in a child: a new application, and a known one; both hosts.

"Known" is started again after a graceful stop (TERM, shutdownGraceMillis = 20000 for both: Java's default is none), as
after a deployment: with another worker id. The source has records from the beginning; the time is that of a child's
answer, which is noted on the machine's clock. Measured with the intervals that either host has by default, which are
the same, and with those of tests/interop/java_daemon.py FAST, set short in both. What no properties file changes in
Java stays: the random 1 to 30 s before the first shard sync of a new application, and the length of its leader lock, 2
minutes, which a graceful stop releases.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import click

from tests.bench import hosts, notes
from tests.bench.hosts import Place
from tests.bench.pairs import Options, Pairs, options
from tests.bench.report import Column, Kind
from tests.interop.java_daemon import FAST, LoggedProcess

LIMIT_S: Final = 400.0
STOP_LIMIT_S: Final = 60.0
INTERVALS: Final[dict[str, dict[str, str]]] = {"default intervals": {}, "short intervals": FAST}
COLUMNS: Final = (
    Column("new: first record s", "new_first_s"),
    Column("new: every shard s", "new_all_s"),
    Column("graceful stop s", "stop_s"),
    Column("known: first record s", "known_first_s"),
    Column("known: every shard s", "known_all_s"),
)


@click.command()
@options
@click.option("--shards", default=4, show_default=True)
def main(given: Options, shards: int) -> None:
    """Start of a new and of a known application."""
    pairs = Pairs("start", given)

    def measure(cell: str, run: int, kind: Kind) -> dict[str, float]:
        executable, env = hosts.child_command("c")
        properties = {"executableName": executable, "maxRecords": "10", "shutdownGraceMillis": "20000"}
        properties |= INTERVALS[cell]
        env["KCL_BENCH_CHECKPOINT"] = "1"
        with tempfile.TemporaryDirectory() as folder, hosts.place(Path(folder), shards, [b"record"]) as at:
            figures: dict[str, float] = {}
            for name in ("new", "known"):
                began_s = notes.now_s()
                with hosts.running(hosts.host(kind, name, at, properties, env, pairs.jvm)) as host:
                    figures |= {f"{name}_{what}_s": s for what, s in _came_s(host, at, name, began_s).items()}
                    began_s = notes.now_s()
                    host.stop(STOP_LIMIT_S)
                    figures.setdefault("stop_s", notes.now_s() - began_s)
            return figures

    cells = ["short intervals"] if given.quick else list(INTERVALS)
    pairs.run(cells, COLUMNS, measure)


def _came_s(host: LoggedProcess, at: Place, name: str, began_s: float) -> dict[str, float]:
    notes.wait_for_statuses(host, at.folder / name, at.source.shards, LIMIT_S)
    firsts_s = [of_shard[0].at_s - began_s for of_shard in notes.statuses(at.folder / name).values()]
    return {"first": min(firsts_s), "all": max(firsts_s)}


if __name__ == "__main__":
    main()
