"""Micro-batches through Spark: parts of a warm one, records/s, memory per thin client, and a Structured Streaming job.

One local Connect server (2 GB) for everything, records of 1 KB of JSON, the client in this process. What is compared is
interleaved, round by round:

    ours       lines -> Arrow -> spool -> json_rows -> Parquet -> described, synced, committed
    no-op      the same with a transform that returns its frame
    ceiling    spool -> from_json -> Parquet, and nothing else: no count of rejected rows, no fsync, no commit
    upload     ours, with createDataFrame in place of the spool
    arrow      ours with ArrowEngine, JSON parsed by Arrow: what can be had without Spark

`--streaming` compares end to end, in turns, with a Structured Streaming job that does the same to the same events. They
have different sources, neither of which is Kinesis: kcl-host reads the embedded one over HTTP, Spark reads files of
JSON lines that appear in a folder. So the latency says something (both trigger every 2 s), the throughput less.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import psutil
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from kcl_host.local.engines import Engines
from kcl_host.spark import ArrowEngine, ChainKey, ParquetSink, SparkEngine, committed_files, json_rows
from kcl_host.spark.engine import _spool_files as spool_files
from kcl_host.spark.lines import parse
from kcl_host.spark.parquet import views
from kcl_host.spark.position import Position
from kcl_host.spark.processor import _Frames as Frames
from kcl_host.spark.sinks import Batch
from tests.bench.report import Spread, machine, percentile

FIELDS = "id long, key string, at_ms long, pad string"
LINE = 10_000
KEY = ChainKey(application="bench", stream="bench", shard="shard-1")
INGEST = """
import sys
from kcl_host.spark import MicroBatchProcessor, ParquetSink, Trigger, json_rows, run
run(MicroBatchProcessor(lambda batch: json_rows(batch, "{fields}"), ParquetSink("{table}"), Trigger(age_s=2)))
"""


@click.command()
@click.option("--sizes", default="1000,10000,100000", show_default=True, help="Records of a batch.")
@click.option("--ways", default="ours,ceiling,no-op,upload,arrow", show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--warm-up", default=3, show_default=True, help="Rounds that do not count.")
@click.option("--clients", default=3, show_default=True, help="Processes of which the memory is measured; 0: none.")
@click.option("--streaming", default=0.0, help="Seconds per run against Structured Streaming; 0: none.")
@click.option("--rate", default=2000, show_default=True, help="Events per second there.")
@click.option("--client", hidden=True, help="Is a client: batches of 20,000 into this folder.")
def main(
    sizes: str, ways: str, rounds: int, warm_up: int, clients: int, streaming: float, rate: int, client: str | None
) -> None:
    """Spark as processor."""
    if client is not None:
        return _be_client(Path(client))
    with tempfile.TemporaryDirectory(prefix="kcl-host-bench-") as folder, _server():
        import pyspark

        click.echo(
            f"{machine()}, pyspark {pyspark.__version__}, pyarrow {pa.__version__}, load {os.getloadavg()[0]:.1f}"
        )
        for size in map(int, sizes.split(",")):
            _compare(Path(folder, str(size)), size, ways.split(","), rounds, warm_up)
        if clients:
            _memory(Path(folder, "clients"), clients)
        for turn in range(2 if streaming else 0):
            _end_to_end(Path(folder, f"streaming-{turn}"), streaming, rate)


@contextmanager
def _server() -> Iterator[psutil.Process]:
    process = subprocess.Popen(
        [sys.executable, "-m", "kcl_host.spark.server", "--memory", "2g"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    os.environ["SPARK_REMOTE"] = process.stdout.readline().strip()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.stdin.close()
        process.wait()


def _lines(size: int, round_: int) -> list[bytes]:
    """As the host writes them; other payloads each time, since Connect sends equal ones only once."""
    pad = b"x" * 940
    lines = []
    for first in range(0, size, LINE):
        numbers = range(round_ * size + first, round_ * size + min(first + LINE, size))
        payloads = [b'{"id":%d,"key":"k%d","at_ms":%d,"pad":"%s"}' % (n, n % 97, n, pad) for n in numbers]
        records = [
            {"action": "record", "data": b64encode(p).decode(), "partitionKey": "key",
             "sequenceNumber": str(10**55 + n), "subSequenceNumber": 0, "approximateArrivalTimestamp": 1735689600123}
            for n, p in zip(numbers, payloads, strict=True)
        ]  # fmt: skip
        lines.append(msgspec.json.encode({"action": "processRecords", "records": records, "millisBehindLatest": 0}))
    return lines


class _Way:
    """One way of getting a batch into a table, timed part by part."""

    def __init__(self, folder: Path, engine: Any, transform: Callable[[Any], Any]) -> None:
        self.engine = engine
        self.transform = transform
        self.sink = ParquetSink(folder)
        self.parts: list[tuple[float, ...]] = []

    def batch(self, size: int, lines: list[bytes], counts: bool) -> None:
        began_s = time.perf_counter()
        chunks = [self.engine.columns(parse(line)["records"], KEY.stream, KEY.shard) for line in lines]
        converted_s = time.perf_counter()
        head = self.sink.head(KEY)
        number = (head.position or Position(0, 0)).sequence_number + 1
        batch = Batch(end=Position(number, 0), records=size, arrived_ms=None)
        started_s = time.perf_counter()
        with self.engine.frame(chunks) as frame:
            spooled_s = time.perf_counter()
            written = self.sink.write(KEY, self.engine, Frames(self.transform(frame)), batch)
        written_s = time.perf_counter()
        assert self.sink.commit(KEY, head, batch, written) is not None
        done_s = time.perf_counter()
        if counts:
            self.parts.append((converted_s - began_s, spooled_s - started_s, written_s - spooled_s, done_s - written_s))

    @property
    def seconds(self) -> list[float]:
        return [sum(parts) for parts in self.parts]


class _Ceiling(_Way):
    def batch(self, size: int, lines: list[bytes], counts: bool) -> None:
        from pyspark.sql import functions as F

        from kcl_host.spark.arrow import DDL

        table = pa.concat_tables([self.engine.columns(parse(line)["records"], KEY.stream, KEY.shard) for line in lines])
        folder = Path(self.sink.storage.uri(f"{random.randrange(2**60)}"))
        folder.mkdir(parents=True)
        began_s = time.perf_counter()
        paths = spool_files(table, folder)
        spooled_s = time.perf_counter()
        frame = self.engine.session.read.schema(DDL).parquet(*paths)
        row = F.from_json(F.col("data").cast("string"), FIELDS).alias("row")
        frame.select(*[name for name in frame.columns if name != "data"], row).select("*", "row.*").drop(
            "row"
        ).write.parquet(f"{folder}/out")
        if counts:
            self.parts.append((0.0, spooled_s - began_s, time.perf_counter() - spooled_s, 0.0))


def _by_arrow(table: pa.Table) -> pa.Table:
    rows = pyarrow.json.read_json(pa.BufferReader(b"\n".join(table["data"].to_pylist())))
    for name in table.column_names[:-1]:
        rows = rows.append_column(name, table[name])
    return rows


def _compare(folder: Path, size: int, chosen: list[str], rounds: int, warm_up: int) -> None:
    def transform(frame: Any) -> Any:
        return json_rows(frame, FIELDS)

    spool = folder / "spool"
    ways = {
        "ours": _Way(folder / "ours", SparkEngine(spool=spool), transform),
        "ceiling": _Ceiling(folder / "ceiling", SparkEngine(spool=spool), transform),
        "no-op": _Way(folder / "no-op", SparkEngine(spool=spool), lambda frame: frame),
        "upload": _Way(folder / "upload", SparkEngine(upload=True), transform),
        "arrow": _Way(folder / "arrow", ArrowEngine(), _by_arrow),
    }
    ways = {name: way for name, way in ways.items() if name in chosen}
    for round_ in range(warm_up + rounds):
        order = list(ways.values())
        random.Random(round_).shuffle(order)
        lines = _lines(size, round_)
        for way in order:
            way.batch(size, lines, round_ >= warm_up)
    for way in ways.values():
        way.engine.reset()
    click.echo(f"\nbatches of {size:,} records of 1 KB, {rounds} rounds; seconds, medians")
    click.echo(f"{'':10}{'convert':>9}{'spool':>9}{'Spark':>9}{'commit':>9}{'records/s':>12}   (low to high)")
    for name, way in ways.items():
        medians = [Spread.of(values).median for values in zip(*way.parts, strict=True)]
        rate = Spread.of([size / seconds for seconds in way.seconds])
        parts = "".join(f"{value:9.3f}" for value in medians)
        click.echo(f"{name:10}{parts}{rate.median:12,.0f}   ({rate.low:,.0f} to {rate.high:,.0f})")
    for name in [name for name in ways if name != "ours" and "ours" in ways]:
        ratios = [b / a for a, b in zip(ways["ours"].seconds, ways[name].seconds, strict=True)]
        median, low, high = Spread.of(ratios)
        without = [sum(b) / sum(a[1:]) for a, b in zip(ways["ours"].parts, ways[name].parts, strict=True)]
        click.echo(
            f"ours / {name}: {median:.2f} ({low:.2f} to {high:.2f}) of its records/s, in the same round; "
            f"{Spread.of(without).median:.2f} without converting, which is done as the lines arrive"
        )


def _memory(folder: Path, clients: int) -> None:
    command = [sys.executable, "-m", "tests.bench.spark", "--client", str(folder)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(clients)]
    said = [process.communicate()[0].split() for process in processes]
    for name, column in (
        ("after its import", 0),
        ("after 10 batches of 20,000", 1),
        ("of that private", 2),
        ("peak", 3),
    ):
        values = Spread.of([float(words[column]) for words in said])
        click.echo(f"thin client, MB {name}: {values.median:.0f} ({values.low:.0f} to {values.high:.0f})")


def _be_client(folder: Path) -> None:
    """Prints its resident memory: after the import of the client, after ten batches, private of that, and the peak."""
    engine = SparkEngine(spool=folder / "spool")
    way = _Way(folder / str(os.getpid()), engine, lambda frame: json_rows(frame, FIELDS))
    engine.session  # noqa: B018
    imported = psutil.Process().memory_info().rss
    peak = 0
    lines = _lines(20_000, 0)
    for _ in range(10):
        way.batch(20_000, lines, False)
        peak = max(peak, psutil.Process().memory_info().rss)
    lines.clear()
    memory = psutil.Process().memory_full_info()
    print(*(f"{value / 1e6:.1f}" for value in (imported, memory.rss, memory.uss, peak)))
    engine.reset()


def _end_to_end(folder: Path, seconds: float, rate: int) -> None:
    folder.mkdir()
    for name, run in (("kcl-host", _by_kcl_host), ("Structured Streaming", _by_streaming)):
        latencies, caught_up_s = run(folder / name.replace(" ", "-"), seconds, rate)
        latencies.sort()
        p50, p99 = percentile(latencies, 50), percentile(latencies, 99)
        click.echo(
            f"{name}: {len(latencies):,} events at {rate:,}/s; until committed p50 {p50:.2f} s, p99 {p99:.2f} s, "
            f"last one {caught_up_s:.1f} s after the last was produced"
        )


def _produce(put: Callable[[list[bytes]], None], seconds: float, rate: int) -> float:
    """When the last was produced, epoch seconds. The first fifth is a warm-up for both: it is left out of latencies."""
    pad, produced, began_s = "x" * 900, 0, time.monotonic()
    while (elapsed_s := time.monotonic() - began_s) < seconds:
        due = int(elapsed_s * rate) - produced
        now_ms = time.time_ns() // 1_000_000
        numbers = range(produced, produced + due)
        put([json.dumps({"id": n, "key": f"k{n % 97}", "at_ms": now_ms, "pad": pad}).encode() for n in numbers])
        produced += due
        time.sleep(0.2)
    return time.time()


def _latencies(committed: list[tuple[str, float]], seconds: float) -> list[float]:
    """`committed`: files and when their rows were there to be read, epoch seconds."""
    seen = [(at / 1000, when) for path, when in committed for at in pq.read_table(path)["at_ms"].to_pylist()]
    start = min(at for at, _ in seen) + seconds / 5
    return [when - at for at, when in seen if at >= start]


def _by_kcl_host(folder: Path, seconds: float, rate: int) -> tuple[list[float], float]:
    folder.mkdir()
    table = folder / "table"
    (folder / "ingest.py").write_text(INGEST.format(fields=FIELDS, table=table))
    with Engines() as engines, (folder / "log").open("w") as log:
        engines.create_stream("events", 1)
        keys = [
            f"executableName = {sys.executable} {folder / 'ingest.py'}", "streamName = events",
            "applicationName = bench", "initialPositionInStream = TRIM_HORIZON", "retrievalMode = POLLING",
            "AwsCredentialsProvider = AnonymousCredentialsProvider", "idleTimeBetweenReadsInMillis = 200",
            "metricsLevel = NONE", *engines.properties_lines(),
        ]  # fmt: skip
        (folder / "app.properties").write_text("\n".join(keys) + "\n")
        host = subprocess.Popen(
            [sys.executable, "-m", "kcl_host", "-p", str(folder / "app.properties")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        produced = [0]

        def put(payloads: list[bytes]) -> None:
            engines.put_records("events", [("key", payload) for payload in payloads])
            produced[0] += len(payloads)

        last_s = _produce(put, seconds, rate)
        while sum(f.rows for view in views(table).values() for f in view.tables.get("table", [])) < produced[0]:
            time.sleep(0.1)
        caught_up_s = time.time() - last_s
        host.send_signal(signal.SIGTERM)
        host.wait()
    committed = [(path, Path(path).stat().st_mtime) for path in committed_files(table)[0]]
    return _latencies(committed, seconds), caught_up_s


def _by_streaming(folder: Path, seconds: float, rate: int) -> tuple[list[float], float]:
    from pyspark.sql import functions as F

    source, table = folder / "source", folder / "table"
    source.mkdir(parents=True)
    spark = SparkEngine(spool=folder / "spool").session
    rows = spark.readStream.text(str(source)).select(F.from_json("value", FIELDS).alias("row")).select("row.*")
    query = (
        rows.writeStream.format("parquet").option("path", str(table)).option("checkpointLocation", f"{folder}/state")
        .trigger(processingTime="2 seconds").start()
    )  # fmt: skip
    produced, files = [0], [0]

    def put(payloads: list[bytes]) -> None:
        hidden = source / f".{files[0]}"
        hidden.write_bytes(b"\n".join(payloads) + b"\n")
        hidden.rename(source / f"{files[0]}.json")
        files[0] += 1
        produced[0] += len(payloads)

    def committed() -> list[tuple[str, float]]:
        found = {}
        for log in sorted((table / "_spark_metadata").glob("*[0-9]")):
            for line in log.read_text().splitlines()[1:]:
                found[json.loads(line)["path"].removeprefix("file://")] = log.stat().st_mtime
        return list(found.items())

    last_s = _produce(put, seconds, rate)
    while sum(pq.read_metadata(path).num_rows for path, _ in committed()) < produced[0]:
        time.sleep(0.1)
    caught_up_s = time.time() - last_s
    query.stop()
    return _latencies(committed(), seconds), caught_up_s


if __name__ == "__main__":
    main()
