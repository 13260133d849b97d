"""Resident memory, threads and descriptors of a host: with 4 shards at work, and what each further idle shard adds.

The engines run in a process of their own (`kcl-host local`), the host is started as a user would; only the host process
is measured, not its children. Resident is what the system says (psutil's rss); "private" leaves out pages of files that
other processes of the machine share. Records go to the first 4 shards however many there are, so that what a larger
number adds is the cost of idle ones.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import click
import psutil

from tests.bench.engines import engines_apart
from tests.bench.report import machine

MB = 1e6
BUSY_SHARDS = 4
LIMIT_S = 120.0
TURN_S = 0.1


class Figures(NamedTuple):
    shards: int
    resident_mb: float
    private_mb: float
    peak_mb: float
    threads: int
    descriptors: int
    records: int


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="From the moment at which every shard has its child.")
@click.option("--rate", default=100.0, show_default=True, help="Records per second.")
@click.option("--shards", default="4,36", show_default=True, help="Numbers of shards, a run for each.")
def main(seconds: float, rate: float, shards: str) -> None:
    """Memory of a host on the embedded engines."""
    figures = []
    for count in map(int, shards.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            figures.append(_measure(Path(folder), count, seconds, rate))
    click.echo(f"{machine()}, {rate:g} records/s into {BUSY_SHARDS} shards, {seconds:g} s")
    for f in figures:
        click.echo(
            f"{f.shards} shards: {f.resident_mb:.1f} MB resident at the end ({f.private_mb:.1f} MB private), "
            f"peak {f.peak_mb:.1f} MB, {f.threads} threads, {f.descriptors} descriptors, {f.records} records"
        )
    for few, many in itertools.pairwise(figures):
        further = many.shards - few.shards
        click.echo(
            f"each further shard: {(many.resident_mb - few.resident_mb) / further:.2f} MB, "
            f"{(many.threads - few.threads) / further:.1f} threads, "
            f"{(many.descriptors - few.descriptors) / further:.1f} descriptors"
        )


def _measure(folder: Path, shards: int, seconds: float, rate: float) -> Figures:
    with engines_apart("--stream", "bench", "--shards", str(shards)) as lines:
        (folder / "bench.properties").write_text(
            "\n".join(
                [
                    *lines,
                    f"executableName = {sys.executable} -m kcl_host.processor.demo",
                    "applicationName = bench-app",
                    "initialPositionInStream = TRIM_HORIZON",
                    "retrievalMode = POLLING",
                ]
            )
            + "\n"
        )
        endpoint = next(line.partition("= ")[2] for line in lines if line.startswith("kinesisEndpoint"))
        with _host(folder) as host:
            _await_children(folder / "host.log", shards)
            records = _produce(endpoint, seconds, rate)
            process = psutil.Process(host.pid)
            memory = process.memory_info()
            return Figures(
                shards=shards,
                resident_mb=memory.rss / MB,
                private_mb=(memory.rss - memory.shared) / MB,
                peak_mb=_peak_bytes(host.pid) / MB,
                threads=process.num_threads(),
                descriptors=process.num_fds(),
                records=records,
            )


@contextmanager
def _host(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "host.log").open("w") as log:
        host = subprocess.Popen(
            [sys.executable, "-m", "kcl_host", "-p", str(folder / "bench.properties")],
            stderr=log,
            env={**os.environ, "KCL_DEMO_OUT": str(folder / "delivered")},
        )
    try:
        yield host
    finally:
        host.terminate()
        host.wait()


def _await_children(log: Path, shards: int) -> None:
    started_s = time.monotonic()
    while log.read_text().count("action=child_initialized") < shards:
        if time.monotonic() - started_s > LIMIT_S:
            raise click.ClickException(log.read_text()[-2000:])
        time.sleep(TURN_S)


def _produce(endpoint: str, seconds: float, rate: float) -> int:
    """Puts records of 1 KB into the first shards for so long; how many."""
    kinesis: Any = boto3.client(
        "kinesis",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    shards = kinesis.list_shards(StreamName="bench", MaxResults=BUSY_SHARDS)["Shards"]
    hash_keys = itertools.cycle(shard["HashKeyRange"]["StartingHashKey"] for shard in shards)
    started_s, produced = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - started_s) < seconds:
        due = int(elapsed_s * rate) - produced
        for count in [500] * (due // 500) + [due % 500]:
            if count:
                data = os.urandom(1000)
                records = [
                    {"Data": data, "PartitionKey": "k", "ExplicitHashKey": next(hash_keys)} for _ in range(count)
                ]
                kinesis.put_records(StreamName="bench", Records=records)
                produced += count
        time.sleep(TURN_S)
    return produced


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
