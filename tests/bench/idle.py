"""What shards without records cost, by their number: CPU, memory, threads and requests; both hosts.

One host with the default intervals (a read of each shard every 1.5 s) on a source that has nothing, a C child for each
shard; only the host is measured, not its children. A window begins when every shard has its child and the host has
settled: the JVM compiles for a minute. Requests are counted by the stand-ins. Resident memory is the system's.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

import click

from tests.bench import hosts, notes
from tests.bench.pairs import Options, Pairs, options
from tests.bench.report import Column, Kind

START_LIMIT_S: Final = 600.0
SETTLE_S: Final[dict[Kind, float]] = {"kcl-host": 10.0, "java": 60.0}
COLUMNS: Final = (
    Column("CPU, % of a core", "cpu_percent"),
    Column("resident MB", "resident_mb", ".1f"),
    Column("peak MB", "peak_mb", ".1f"),
    Column("threads", "threads", ".0f"),
    Column("descriptors", "descriptors", ".0f"),
    Column("Kinesis requests/min", "kinesis_per_min", ",.0f"),
    Column("DynamoDB requests/min", "dynamodb_per_min", ",.0f"),
    *(
        Column(f"{operation}/min", f"{operation}_per_min", ",.0f")
        for operation in ("GetRecords", "ListShards", "UpdateItem", "PutItem", "GetItem", "Query", "Scan")
    ),
    Column("until all are read s", "start_s", ".1f"),
)


@click.command()
@options
@click.option("--shards", default="1,16,100,128,512", show_default=True, help="Numbers of shards, a cell for each.")
@click.option("--window", "window_s", default=60.0, show_default=True, help="Seconds that are measured.")
def main(given: Options, shards: str, window_s: float) -> None:
    """CPU, memory, threads and requests of idle polled shards."""
    pairs = Pairs("idle", given)
    counts = {f"{count} shard{'s'[: count != '1']}": int(count) for count in shards.split(",")}
    if given.quick:
        counts, window_s = {"2 shards": 2}, 2.0

    def measure(cell: str, run: int, kind: Kind) -> dict[str, float]:
        count, settle_s = counts[cell], 0.0 if given.quick else SETTLE_S[kind]
        executable, env = hosts.child_command("c")
        with tempfile.TemporaryDirectory() as temporary, hosts.place(Path(temporary), count) as at:
            host = hosts.host(kind, "host", at, {"executableName": executable}, env, pairs.jvm)
            with hosts.running(host):
                start_s = host.wait_for(
                    lambda: notes.children(at.folder / "host") == count, START_LIMIT_S, f"{count} children"
                )
                time.sleep(settle_s)
                began_s, before = time.monotonic(), hosts.use_of(host.pid)
                kinesis, dynamodb = at.source.requests(), at.table_requests.copy()
                time.sleep(window_s)
                took_s, after = time.monotonic() - began_s, hosts.use_of(host.pid)
                kinesis, dynamodb = at.source.requests() - kinesis, at.table_requests - dynamodb
                children = len(hosts.children_of(host.pid))
        if children != count or not kinesis["GetRecords"]:
            raise click.ClickException(f"{kind}, {cell}: {children} children, {dict(kinesis)}")
        per_min = {f"{operation}_per_min": n * 60 / took_s for operation, n in (kinesis + dynamodb).items()}
        return {
            "cpu_percent": (after.cpu_s - before.cpu_s) / took_s * 100,
            "resident_mb": after.resident_mb,
            "peak_mb": after.peak_mb,
            "threads": after.threads,
            "descriptors": after.descriptors,
            "kinesis_per_min": kinesis.total() * 60 / took_s,
            "dynamodb_per_min": dynamodb.total() * 60 / took_s,
            "start_s": start_s,
            **per_min,
        }

    pairs.run(list(counts), COLUMNS, measure)


if __name__ == "__main__":
    main()
