"""The whole way on this machine: producer, kcl-host, one ingest.py per shard, a table that grows, a query at the end.

Run by scripts/demo-spark. The exit code is 1 when an event is missing from the table or stands in it twice.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kcl_host.local.engines import Engines
from kcl_host.spark.parquet import views

HERE = Path(__file__).parent
SHARDS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of producing (default 30)")
    parser.add_argument("--rate", type=int, default=500, help="events per second (default 500)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kcl-host-demo-spark-") as folder, Engines() as engines:
        engines.create_stream("events", SHARDS)
        return demo(engines, Path(folder), options.seconds, options.rate)


def demo(engines: Engines, folder: Path, seconds: float, rate: int) -> int:
    table, log = folder / "table", (folder / "host.log").open("w+")
    say(f"a Spark Connect server for all children (memory 1g); logs in {folder}")
    server = subprocess.Popen(
        [sys.executable, "-m", "kcl_host.spark.server", "--memory", "1g"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "spark.log").open("w"), text=True,
    )  # fmt: skip
    host = None
    try:
        remote = server.stdout.readline().strip()
        if not remote:
            print((folder / "spark.log").read_text())
            return 1
        say(f"Spark is ready at {remote}; kcl-host starts, one thin PySpark child per shard")
        environ = {**os.environ, "SPARK_REMOTE": remote, "EVENTS_TABLE": str(table), "EVENTS_AGE_S": "3"}
        host = subprocess.Popen(
            [sys.executable, "-m", "kcl_host", "-p", str(properties(engines, folder))],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
        )  # fmt: skip
        produced = produce_and_watch(engines, table, seconds, rate)
        done = wait_for(table, produced, host)
        what = "all of it is committed" if done else "not all of it is committed yet"
        say(f"{what}; the query (samples/pyspark/aggregate.py):")
        subprocess.run([sys.executable, str(HERE / "aggregate.py"), str(table)], env=environ, check=True)
        return verdict(table, produced, environ)
    finally:
        if host is not None:
            host.send_signal(signal.SIGTERM)
            host.wait()
        server.stdin.close()
        server.wait()
        log.close()


def properties(engines: Engines, folder: Path) -> Path:
    path = folder / "ingest.properties"
    lines = [
        f"executableName = {sys.executable} {HERE / 'ingest.py'}",
        "streamName = events",
        "applicationName = demo-spark",
        "initialPositionInStream = TRIM_HORIZON",
        "AwsCredentialsProvider = AnonymousCredentialsProvider",
        "retrievalMode = POLLING",
        "idleTimeBetweenReadsInMillis = 500",
        *engines.properties_lines(),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def produce_and_watch(engines: Engines, table: Path, seconds: float, rate: int) -> int:
    rng = random.Random(1)
    began, next_line, produced = time.monotonic(), 0.0, 0
    while (elapsed := time.monotonic() - began) < seconds:
        due = int(elapsed * rate) - produced
        if due > 0:
            records = [(f"key-{n}", event(n, rng)) for n in range(produced, produced + due)]
            engines.put_records("events", records)
            produced += due
        if elapsed >= next_line:
            next_line = elapsed + 3
            report(table, produced)
        time.sleep(0.05)
    return produced


def event(number: int, rng: random.Random) -> bytes:
    if number % 997 == 996:
        return b"not an event"
    late = timedelta(hours=2) if rng.random() < 0.01 else timedelta()
    at = datetime.now(UTC) - late
    fields = {"id": number, "key": rng.choice("abc"), "at": at.isoformat(), "value": round(rng.gauss(10, 3), 3)}
    return json.dumps(fields).encode()


def counts(table: Path) -> tuple[int, int, int, float | None]:
    """Rows, files, commits, and the age in seconds of the newest record that is in the table."""
    seen = views(table).values()
    files = [file for view in seen for files in view.tables.values() for file in files]
    arrived = [view.arrived_ms for view in seen if view.arrived_ms is not None]
    lag_s = None if len(arrived) < SHARDS else time.time() - min(arrived) / 1000
    return sum(file.rows for file in files), len(files), sum(view.commits for view in seen), lag_s


def report(table: Path, produced: int) -> None:
    rows, files, commits, lag_s = counts(table)
    lag = "-" if lag_s is None else f"{lag_s:.1f} s"
    say(f"{produced:>7,} events produced | table: {rows:>7,} rows, {files:>4} files, {commits:>4} commits, lag {lag}")


def wait_for(table: Path, produced: int, host: subprocess.Popen) -> bool:
    """Whether everything was committed within three minutes."""
    deadline = time.monotonic() + 180
    while counts(table)[0] < produced and host.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
    report(table, produced)
    return counts(table)[0] >= produced


def verdict(table: Path, produced: int, environ: dict[str, str]) -> int:
    os.environ["SPARK_REMOTE"] = environ["SPARK_REMOTE"]
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
