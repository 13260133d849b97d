"""From the put of a record to its child: polling at 200 ms and at a second, and fan-out over HTTP/2.

The host is started as a user would, on the embedded Kinesis in this process and DynamoDB in another one; the children
are of C where there is a compiler. A record is put at random times, its own put time is its data, the child notes when
it has read it; both are the machine's monotonic clock. The modes come in turn within each round. Every record counts:
one that is missing, or comes twice, ends the run. Rates are far from what two cores can do: 50 records/s into one
shard, 5 into each of several; "busy" is what the whole machine used of its cores meanwhile. What the stand-in takes to
pass a record on is part of the figures; what AWS takes is not.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from kcl_host.local.kinesis import KinesisEngine
from tests.bench.engines import engines_apart
from tests.bench.report import Spread, machine, percentile

CHILDREN: Final = Path(__file__).parent / "children"
START_LIMIT_S: Final = 90.0
LATE_S: Final = 15.0
WARM_UP_S: Final = 1.0
TURN_S: Final = 0.05
MB: Final = 1e6
MODES: Final = {
    "polling, 200 ms": ["retrievalMode = POLLING", "idleTimeBetweenReadsInMillis = 200"],
    "polling, 1 s": ["retrievalMode = POLLING", "idleTimeBetweenReadsInMillis = 1000"],
    "fan-out, HTTP/2": ["retrievalMode = FANOUT"],
}
RATE_OF_ONE: Final = 50.0
RATE_OF_EACH: Final = 5.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one host in one mode. CPU and memory are the host's, without its children."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_s_per_minute: float
    busy_percent: float
    """Of all cores, the host's and everybody else's work."""
    resident_mb: float
    threads: int
    connections: int
    """Of TCP, to Kinesis."""
    subscriptions: int
    """That the stand-in has accepted so far: more than there are shards means that some were lost."""
    records: int


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Measured of each mode in each round.")
@click.option("--shards", default="1,64", show_default=True, help="Numbers of shards.")
@click.option("--quick", is_flag=True, help="One short round with 1 and 4 shards: shows that all of it works.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every round here.")
def main(rounds: int, seconds: float, shards: str, quick: bool, json_path: Path | None) -> None:
    """Time from put to child, by mode and number of shards."""
    if quick:
        rounds, seconds, shards = 1, 1.0, "1,4"
    console = Console(width=160)
    sys.setswitchinterval(0.0005)  # The producer and the stand-in share this process: neither waits 5 ms for the other.
    measured: dict[int, dict[str, list[Figures]]] = {}
    with tempfile.TemporaryDirectory() as folder, engines_apart() as engines:
        command = _child_command(Path(folder))
        shared = [line for line in engines if not line.startswith("kinesisEndpoint")]
        shared.append(f"executableName = {command}")
        for count in map(int, shards.split(",")):
            measured[count] = {mode: [] for mode in MODES}
            for round_number in range(rounds):
                for mode_number, (mode, keys) in enumerate(MODES.items()):
                    app = f"latency-{count}-{round_number}-{mode_number}"
                    lines = [*shared, *keys, f"applicationName = {app}"]
                    figures = _measure(Path(folder) / app, lines, count, seconds, random.Random(round_number))
                    measured[count][mode].append(figures)
                    console.print(
                        f"round {round_number + 1}/{rounds}, {count} shards, {mode}: "
                        f"p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms of {figures.records} records"
                    )
    about = f"{machine()}, load average {os.getloadavg()[0]:.1f}, {rounds} rounds of {seconds:g} s in each mode"
    console.print(_table(about, measured))
    if json_path is not None:
        by_shards = {str(count): msgspec.to_builtins(modes) for count, modes in measured.items()}
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode({"about": about, "shards": by_shards})) + b"\n")


def _table(about: str, measured: dict[int, dict[str, list[Figures]]]) -> Table:
    """Medians over the rounds, with their range where it says something."""
    table = Table(title=about, title_justify="left", box=box.MARKDOWN)
    figures = ("p50 ms", "p99 ms", "max ms", "host CPU s/min", "busy", "MB", "threads", "TCP", "subscr.", "records")
    for name in ("shards", "mode", *figures):
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for count, modes in measured.items():
        for mode, rounds in modes.items():
            last = rounds[-1]
            table.add_row(
                str(count),
                mode,
                _ranged([f.p50_ms for f in rounds]),
                _ranged([f.p99_ms for f in rounds]),
                f"{max(f.max_ms for f in rounds):,.0f}",
                _ranged([f.cpu_s_per_minute for f in rounds]),
                f"{Spread.of([f.busy_percent for f in rounds]).median:.0f} %",
                f"{Spread.of([f.resident_mb for f in rounds]).median:.1f}",
                *(str(figure) for figure in (last.threads, last.connections, max(f.subscriptions for f in rounds))),
                f"{sum(f.records for f in rounds):,}",
            )
    return table


def _ranged(values: Sequence[float]) -> str:
    median, low, high = Spread.of(values).texts(".1f")
    return f"{median} ({low}-{high})"


def _child_command(folder: Path) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        return f"{sys.executable} -S -E {CHILDREN / 'noting_child.py'}"
    child = folder / "noting_child"
    subprocess.run([compiler, "-O2", str(CHILDREN / "noting_child.c"), "-o", str(child)], check=True)
    return str(child)


def _measure(folder: Path, lines: Sequence[str], shards: int, seconds: float, rng: random.Random) -> Figures:
    folder.mkdir()
    notes = folder / "notes"
    notes.mkdir()
    kinesis = KinesisEngine()
    kinesis.start()
    try:
        kinesis.create_stream("bench", shards)
        properties = [
            *lines,
            f"kinesisEndpoint = {kinesis.endpoint}",
            "streamName = bench",
            "initialPositionInStream = LATEST",
            "AwsCredentialsProvider = AnonymousCredentialsProvider",
        ]
        (folder / "bench.properties").write_text("\n".join(properties) + "\n")
        with _Host(folder, notes) as host:
            host.wait_until(lambda: host.log.read_text().count("action=child_initialized") >= shards, START_LIMIT_S)
            with _Putting(kinesis, RATE_OF_ONE if shards == 1 else RATE_OF_EACH * shards, rng) as putting:
                time.sleep(WARM_UP_S)
                began_ns, cpu_s = time.monotonic_ns(), host.cpu_s()
                psutil.cpu_percent()
                time.sleep(seconds)
                busy_percent = psutil.cpu_percent()
                cpu_s, elapsed_s = host.cpu_s() - cpu_s, (time.monotonic_ns() - began_ns) / 1e9
                resident_mb, threads = host.process.memory_info().rss / MB, host.process.num_threads()
                connections = host.connections(kinesis.endpoint)
            arrived = _arrived(notes, putting.count, host)
        latencies_ms = sorted((arrived_ns - put_ns) / 1e6 for put_ns, arrived_ns in arrived if put_ns >= began_ns)
        return Figures(
            p50_ms=percentile(latencies_ms, 50),
            p99_ms=percentile(latencies_ms, 99),
            max_ms=latencies_ms[-1],
            cpu_s_per_minute=cpu_s / elapsed_s * 60,
            busy_percent=busy_percent,
            resident_mb=resident_mb,
            threads=threads,
            connections=connections,
            subscriptions=kinesis.subscriptions.succeeded,
            records=len(latencies_ms),
        )
    finally:
        kinesis.stop()


class _Host:
    """As a user starts it, on bench.properties in `folder`; stopped by TERM."""

    def __init__(self, folder: Path, notes: Path) -> None:
        self.log = folder / "host.log"
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "kcl_host", "-p", str(folder / "bench.properties")]
            self._popen = subprocess.Popen(command, stderr=log, env={**os.environ, "KCL_BENCH_NOTES": str(notes)})
        self.process = psutil.Process(self._popen.pid)

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.terminate()
        self._popen.wait()

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Raises ClickException with the end of the log."""
        started_s = time.monotonic()
        while not condition():
            if time.monotonic() - started_s > limit_s or self._popen.poll() is not None:
                raise click.ClickException(f"not within {limit_s:.0f} s\n{self.log.read_text()[-2000:]}")
            time.sleep(TURN_S)

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def connections(self, endpoint: str) -> int:
        port = int(endpoint.rpartition(":")[2])
        return sum(
            bool(c.raddr) and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED
            for c in self.process.net_connections("tcp")
        )


class _Putting:
    """Puts records one by one into the shards in turn, at random times, `per_s` on average."""

    def __init__(self, kinesis: KinesisEngine, per_s: float, rng: random.Random) -> None:
        self.count = 0
        """Final afterwards."""
        self._kinesis = kinesis
        self._per_s = per_s
        self._rng = rng
        shards = kinesis.call("ListShards", StreamName="bench")["Shards"]
        self._hash_keys = [shard["HashKeyRange"]["StartingHashKey"] for shard in shards]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="putting")

    def __enter__(self) -> _Putting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._ending.wait(max(0.0, due_s - time.monotonic())):
            hash_key = self._hash_keys[self.count % len(self._hash_keys)]
            data = b64encode(f"{self.count} {time.monotonic_ns()}".encode()).decode()
            self._kinesis.call("PutRecord", StreamName="bench", Data=data, PartitionKey="p", ExplicitHashKey=hash_key)
            self.count += 1
            due_s += self._rng.expovariate(self._per_s)


def _arrived(notes: Path, count: int, host: _Host) -> list[tuple[int, int]]:
    """When each record was put, and when it came to its child, in ns; waits for the last ones."""
    arrived: list[tuple[int, int, int]] = []

    def is_complete() -> bool:
        arrived[:] = _noted(notes)
        return len(arrived) >= count

    host.wait_until(is_complete, LATE_S)
    if sorted(number for number, _, _ in arrived) != list(range(count)):
        numbers = {number for number, _, _ in arrived}
        raise click.ClickException(f"{len(arrived)} deliveries of {len(numbers)} records, and {count} were put")
    return [(put_ns, arrived_ns) for _, put_ns, arrived_ns in arrived]


def _noted(notes: Path) -> Iterator[tuple[int, int, int]]:
    """Number, put time and time of arrival; the last line of a file may be half written."""
    for file in notes.iterdir():
        text = file.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            arrived_ns, data = line.split()
            number, put_ns = b64decode(data).split()
            yield int(number), int(put_ns), int(arrived_ns)


if __name__ == "__main__":
    main()
