"""The whole way on this machine: producer, kcl-host with a local Spark server and one ingest.py per shard, a table that
grows, a query at the end.

Run by scripts/demo-spark. The exit code is 1 when an event is missing from the table or stands in it twice.
"""

import argparse
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from rich.live import Live
from rich.table import Table

from kcl_host.local.engines import Engines
from kcl_host.spark.parquet import views

HERE = Path(__file__).parent
SHARDS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of producing (default 30)")
    parser.add_argument("--rate", type=int, default=500, help="events per second (default 500)")
    parser.add_argument("--plain", action="store_true", help="a line every few seconds instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kcl-host-demo-spark-") as folder, Engines() as engines:
        engines.create_stream("events", SHARDS)
        show = Lines() if options.plain or not sys.stdout.isatty() else Screen()
        return demo(engines, Path(folder), options.seconds, options.rate, show)


def demo(engines: Engines, folder: Path, seconds: float, rate: int, show: "Lines | Screen") -> int:
    table, log = folder / "table", folder / "host.log"
    # Whoever knows the secret may run code on the server. kcl-host makes one up, unless the query has to know it too.
    environ = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": secrets.token_hex(16),
        "EVENTS_TABLE": str(table),
        "EVENTS_AGE_S": "3",
    }
    port = free_port()
    say(f"kcl-host starts: a local Spark server, then one thin PySpark child per shard (log: {log})")
    with log.open("w") as output:
        host = subprocess.Popen(
            [sys.executable, "-m", "kcl_host", "-p", str(properties(engines, folder, port))],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ,
        )  # fmt: skip
    try:
        with show:
            produced = produce_and_watch(engines, table, seconds, rate, host, show)
            done = wait_for(table, produced, host, show)
        if not done:
            say("not everything was committed in time; the end of the host's log:")
            print("\n".join(log.read_text().splitlines()[-30:]))
            return 1
        say("all of it is committed; the query (samples/pyspark/aggregate.py):")
        environ["SPARK_REMOTE"] = f"sc://localhost:{port}"
        subprocess.run([sys.executable, str(HERE / "aggregate.py"), str(table)], env=environ, check=True)
        return verdict(table, produced, environ)
    finally:
        host.send_signal(signal.SIGTERM)
        host.wait()


def properties(engines: Engines, folder: Path, port: int) -> Path:
    path = folder / "ingest.properties"
    lines = [
        f"executableName = {sys.executable} {HERE / 'ingest.py'}",
        "streamName = events",
        "applicationName = demo-spark",
        "spark.server = local",
        "spark.server.memory = 1g",
        f"spark.server.port = {port}",
        "initialPositionInStream = TRIM_HORIZON",
        "AwsCredentialsProvider = AnonymousCredentialsProvider",
        "retrievalMode = POLLING",
        "idleTimeBetweenReadsInMillis = 500",
        "metricsLevel = NONE",
        *engines.properties_lines(),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def produce_and_watch(
    engines: Engines, table: Path, seconds: float, rate: int, host: subprocess.Popen, show: "Lines | Screen"
) -> int:
    """Events at an even rate, also while the host starts. How many they were."""
    rng = random.Random(1)
    began, next_look, produced = time.monotonic(), 0.0, 0
    while (elapsed := time.monotonic() - began) < seconds and host.poll() is None:
        due = int(elapsed * rate) - produced
        if due > 0:
            records = [(f"key-{n}", event(n, rng)) for n in range(produced, produced + due)]
            engines.put_records("events", records)
            produced += due
        if elapsed >= next_look:
            next_look = elapsed + show.every_s
            show.update(produced, counts(table))
        time.sleep(0.05)
    return produced


def event(number: int, rng: random.Random) -> bytes:
    if number % 997 == 996:
        return b"not an event"
    late = timedelta(hours=2) if rng.random() < 0.01 else timedelta()
    at = datetime.now(UTC) - late
    fields = {"id": number, "key": rng.choice("abc"), "at": at.isoformat(), "value": round(rng.gauss(10, 3), 3)}
    return json.dumps(fields).encode()


class Count(NamedTuple):
    """What is committed of a shard."""

    rows: int
    files: int
    commits: int
    lag_s: float | None
    """Age of the newest record that is in the table."""


def counts(table: Path) -> dict[str, Count]:
    found = {}
    for key, view in views(table).items():
        files = [file for files in view.tables.values() for file in files]
        lag_s = None if view.arrived_ms is None else time.time() - view.arrived_ms / 1000
        found[key.shard] = Count(sum(file.rows for file in files), len(files), view.commits, lag_s)
    return dict(sorted(found.items()))


def total(found: dict[str, Count]) -> Count:
    lags = [one.lag_s for one in found.values() if one.lag_s is not None]
    lag_s = max(lags) if len(lags) == SHARDS else None
    return Count(*(sum(one[i] for one in found.values()) for i in range(3)), lag_s)


def words(count: Count) -> list[str]:
    lag = "-" if count.lag_s is None else f"{count.lag_s:.1f} s"
    return [f"{count.rows:,}", f"{count.files}", f"{count.commits}", lag]


class Lines:
    every_s = 3.0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, produced: int, found: dict[str, Count]) -> None:
        rows, files, commits, lag = words(total(found))
        shards = ", ".join(f"{count.rows:,}" for count in found.values()) or "-"
        say(f"{produced:>7,} events | table: {rows} rows ({shards}), {files} files, {commits} commits, lag {lag}")


class Screen:
    every_s = 0.5

    def __init__(self) -> None:
        self._live = Live(auto_refresh=False)

    def __enter__(self) -> "Screen":
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(*error)

    def update(self, produced: int, found: dict[str, Count]) -> None:
        table = Table(title=f"{produced:,} events produced", title_justify="left")
        for column in ("shard", "rows", "files", "commits", "lag"):
            table.add_column(column, justify="left" if column == "shard" else "right", min_width=8)
        for shard, count in found.items():
            table.add_row(shard, *words(count))
        table.add_section()
        table.add_row("table", *words(total(found)), style="bold")
        self._live.update(table, refresh=True)


def wait_for(table: Path, produced: int, host: subprocess.Popen, show: "Lines | Screen") -> bool:
    """Whether everything was committed within three minutes."""
    deadline = time.monotonic() + 180
    while total(found := counts(table)).rows < produced and host.poll() is None and time.monotonic() < deadline:
        show.update(produced, found)
        time.sleep(show.every_s)
    show.update(produced, found)
    return total(found).rows >= produced


def verdict(table: Path, produced: int, environ: dict[str, str]) -> int:
    os.environ |= environ
    from pyspark.sql import SparkSession

    from kcl_host.spark import read_committed

    spark = SparkSession.builder.getOrCreate()
    events = read_committed(spark, table)
    rows, different, rejected = (
        events.count(),
        events.select("id").distinct().count(),
        read_committed(spark, table, "rejected", schema="reason string").count(),
    )
    spark.stop()
    exact = rows == different and rows + rejected == produced
    say(
        f"{produced:,} events produced: {rows:,} rows with {different:,} different ids, {rejected} rejected: "
        + ("each exactly once" if exact else "THAT IS WRONG")
    )
    return 0 if exact else 1


_began = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _began:5.1f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
