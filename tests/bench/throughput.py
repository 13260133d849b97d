"""kcl-host against the Java MultiLangDaemon: what a gigabyte costs either, on the same source, into the same children.

A cell is a size of records, the most of an answer, a number of shards and a child. In each of its runs both hosts are
measured one after the other, in alternating order, each on an application of its own with the same properties: those
by default, but for reads every 200 ms (as short as either allows) and no metrics. So nothing is faster than five
answers a second and shard; CPU per gigabyte does not depend on that. A window begins when the host has warmed up: the
JVM compiles for a minute. CPU of the host, of the children and of the source are the kernel's, each apart. The time to
the status is from the moment the source begins to write an answer until the child has answered for its last record.

Results are a line of JSON each; a second start with the same --results goes on where the first one ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from kcl_host.local.dynamodb import REGION, DynamoDbEngine
from tests.bench import hosts
from tests.bench.hosts import Child, Java, Kind, Missing, Source
from tests.bench.report import Spread, machine, percentile
from tests.interop.java_daemon import LoggedProcess
from tests.kpl import User, aggregate

START_LIMIT_S: Final = 300.0
WINDOW_S: Final = 20.0
WARM_UP_S: Final[dict[Kind, float]] = {"kcl-host": 10.0, "java": 60.0}
WINDOW_LIMIT_S: Final = 300.0
LEAST_BATCHES: Final = 3
CEILING_S: Final = 1.0
LARGEST_AGGREGATE: Final = 50_000
"""What the KPL makes by default is a little more."""
PROPERTIES: Final = {
    "streamName": "bench",
    "AWSCredentialsProvider": "EnvironmentVariableCredentialsProvider",
    "initialPositionInStream": "TRIM_HORIZON",
    "retrievalMode": "POLLING",
    "idleTimeBetweenReadsInMillis": "200",
    "metricsLevel": "NONE",
    "disableWorkerMetrics": "true",
    "regionName": REGION,
}
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": REGION}


class Records(msgspec.Struct, frozen=True):
    """`users` of `size` bytes in each Kinesis record: 0 for plain records."""

    name: str
    size: int
    limit: int
    users: int = 0

    def payloads(self, shards: int) -> list[bytes]:
        """Data of the Kinesis records of each shard; one for all where it does not matter."""
        if not self.users:
            return [os.urandom(self.size)]
        users = [User(os.urandom(self.size)) for _ in range(self.users)]
        return [aggregate(users, [_key_in(shard, shards)]) for shard in range(shards)]


def _key_in(shard: int, shards: int) -> str:
    """A partition key of the shard, or hosts would drop the aggregate."""
    keys = (f"key-{number}" for number in itertools.count())
    return next(key for key in keys if int(hashlib.md5(key.encode()).hexdigest(), 16) * shards >> 128 == shard)


class Cell(msgspec.Struct, frozen=True):
    records: Records
    shards: int
    child: Child

    def __str__(self) -> str:
        of_answer = f"{self.records.limit:,}" if not self.records.users else "10 MB"
        return f"{self.records.name} by {of_answer}, {self.shards} shard{'s'[: self.shards > 1]}, {self.child}"


HUNDRED: Final = Records("100 B", 100, 10_000)
THOUSAND_BY_1000: Final = Records("1 KB", 1024, 1000)
THOUSAND: Final = Records("1 KB", 1024, 10_000)
TEN_THOUSAND: Final = Records("10 KB", 10_240, 1000)
KPL: Final = Records("KPL of 100 B", 100, 10_000, users=LARGEST_AGGREGATE // 108)
CELLS: Final = (
    *(
        Cell(records, n, "c")
        for records in (HUNDRED, THOUSAND_BY_1000, THOUSAND, TEN_THOUSAND, KPL)
        for n in (1, 4, 16)
    ),
    *(Cell(THOUSAND_BY_1000, n, child) for child in ("kclpy", "node") for n in (1, 4, 16)),
)
QUICK: Final = (Cell(THOUSAND_BY_1000, 2, "c"), Cell(KPL, 2, "c"))


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One host in one run. `gb` are 10**9 bytes of the records' data; memory is the peak since its start."""

    records_per_s: float
    mb_per_s: float
    host_s_per_gb: float
    children_s_per_gb: float
    source_s_per_gb: float
    host_cores: float
    peak_mb: float
    children_peak_mb: float
    threads: int
    p50_ms: float
    p99_ms: float
    first_batch_s: float
    other_cores: float
    """Kept busy by all else on the machine."""
    load: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    run: int
    host: Kind
    figures: Figures
    ceiling_mb_per_s: float
    """Bodies of this host's wire that the source can make and a client of its own can read."""
    versions: str
    taken: str


@click.command()
@click.option("--runs", default=5, show_default=True, help="Of each cell, with both hosts.")
@click.option("--quick", is_flag=True, help="Only shows that it works: every record arrives, once.")
@click.option(
    "--only", multiple=True, help="Cells with all of these words, such as --only '1 KB by 1,000' --only ', c'."
)
@click.option("--host", "kinds", multiple=True, type=click.Choice(["kcl-host", "java"]), help="Both, if not given.")
@click.option("--java-option", "jvm_options", multiple=True, help="For the JVM, such as -Xmx256m; none by default.")
@click.option("--window", "window_s", default=WINDOW_S, show_default=True, help="Seconds that are measured.")
@click.option("--results", type=click.Path(path_type=Path), help="A file to go on with; a new one, if not given.")
@click.option("--list", "listing", is_flag=True, help="Names the cells.")
def main(
    runs: int,
    quick: bool,
    only: tuple[str, ...],
    kinds: tuple[Kind, ...],
    jvm_options: tuple[str, ...],
    window_s: float,
    results: Path | None,
    listing: bool,
) -> None:
    """Records, bytes, CPU, memory and time to the status of both hosts."""
    cells = [cell for cell in (QUICK if quick else CELLS) if all(words in str(cell) for words in only)]
    if listing:
        click.echo("\n".join(map(str, cells)))
        return
    chosen, jvm = _hosts(kinds or ("kcl-host", "java"), jvm_options, required="java" in kinds)
    versions = _versions(jvm)
    click.echo(versions)
    bench = Bench(jvm, versions, click.echo)
    if quick:
        for cell in cells:
            for kind in chosen:
                bench.check(cell, kind)
        return
    hosts.BUILT.mkdir(parents=True, exist_ok=True)
    file = results or hosts.BUILT / time.strftime("throughput-%Y%m%d-%H%M%S.jsonl")
    found = _read(file)
    for run in range(runs):
        for cell in cells:
            for kind in chosen if run % 2 == 0 else reversed(chosen):
                if not any((r.cell, r.run, r.host) == (str(cell), run, kind) for r in found):
                    found.append(bench.measure(cell, run, kind, window_s))
                    with file.open("ab") as out:
                        out.write(msgspec.json.encode(found[-1]) + b"\n")
    click.echo("\n".join(["", *table([r for r in found if r.cell in map(str, cells)])]))
    click.echo(f"\nresults: {file}")


def _hosts(kinds: Sequence[Kind], options: Sequence[str], *, required: bool) -> tuple[list[Kind], Java | None]:
    if "java" not in kinds:
        return list(kinds), None
    try:
        return list(kinds), hosts.java(options)
    except Missing as missing:
        if required:
            raise
        click.echo(f"without Java: {missing.message}")
        return [kind for kind in kinds if kind != "java"], None


def _versions(jvm: Java | None) -> str:
    go = subprocess.run(["go", "version"], stdout=subprocess.PIPE, text=True).stdout.split() or ["?"] * 3
    cpu = next((line.partition(": ")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    return (
        f"{machine()} of {cpu}, Linux {platform.release()}; "
        f"{jvm.versions if jvm else 'without Java'}; source on {go[2]}"
    )


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


def _read(file: Path) -> list[Result]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


class Bench:
    def __init__(self, jvm: Java | None, versions: str, say: Callable[[str], None]) -> None:
        self._jvm, self._versions, self._say = jvm, versions, say

    def check(self, cell: Cell, kind: Kind) -> None:
        """Raises ClickException unless every record has arrived, once and in order."""
        counting = {"KCL_BENCH_COUNT": "1"}
        with (
            tempfile.TemporaryDirectory() as folder,
            _scene(Path(folder), cell, kind, self._jvm, counting) as (_, host),
        ):
            hosts.wait_for_statuses(host, Path(folder) / "host", cell.shards, START_LIMIT_S)
            time.sleep(2.0)
            found = hosts.statuses(Path(folder) / "host")
        for shard, of_shard in found.items():
            told = sum(status.records for status in of_shard)
            if not hosts.monotone(of_shard) or told != _position(of_shard[-1], cell, _answer_records(cell)) + 1:
                raise click.ClickException(f"{kind}, {cell}: records of shard {shard} are missing or came twice")
        self._say(f"{kind}, {cell}: works")

    def measure(self, cell: Cell, run: int, kind: Kind, window_s: float) -> Result:
        with tempfile.TemporaryDirectory() as folder, _scene(Path(folder), cell, kind, self._jvm) as (source, host):
            first_s = hosts.wait_for_statuses(host, Path(folder) / "host", cell.shards, START_LIMIT_S)
            time.sleep(WARM_UP_S[kind])
            before = _Sample.now(host, source)
            time.sleep(window_s)
            # A host that hardly gets on needs more: two batches of a shard are the least that has a rate.
            host.wait_for(
                lambda: _fewest_since(before.at_s, Path(folder) / "host") >= LEAST_BATCHES,
                WINDOW_LIMIT_S,
                f"{LEAST_BATCHES} batches of each shard",
            )
            after = _Sample.now(host, source)
            figures = _figures(cell, before, after, first_s, Path(folder) / "host", source)
            host.kill()
            for pid in before.children:
                _wait_for_end(pid)
            _, ceiling = source.ceiling("h2-cbor" if kind == "java" else "h1-json", cell.records.limit, CEILING_S)
        self._say(
            f"run {run + 1}, {cell}, {kind}: {figures.mb_per_s:.1f} MB/s, host {figures.host_s_per_gb:.2f} s/GB, "
            f"children {figures.children_s_per_gb:.2f} s/GB, peak {figures.peak_mb:.0f} MB, "
            f"p50 {figures.p50_ms:.0f} ms, p99 {figures.p99_ms:.0f} ms; source at most {ceiling:,.0f} MB/s; "
            f"load {figures.load:.1f}, others {figures.other_cores:.1f} cores"
        )
        return Result(
            cell=str(cell),
            run=run,
            host=kind,
            figures=figures,
            ceiling_mb_per_s=ceiling,
            versions=self._versions,
            taken=time.strftime("%Y-%m-%dT%H:%M:%S"),
        )


@contextlib.contextmanager
def _scene(
    folder: Path, cell: Cell, kind: Kind, jvm: Java | None, further_env: Mapping[str, str] | None = None
) -> Iterator[tuple[Source, LoggedProcess]]:
    """Source, tables and the host, whose notes are under `folder`/host."""
    executable, env = hosts.child_command(cell.child)
    tables = DynamoDbEngine()
    tables.start()
    try:
        with Source(folder / "source", cell.shards, cell.records.payloads(cell.shards)) as source:
            properties = {
                **PROPERTIES,
                "executableName": executable,
                "applicationName": f"bench-{kind}",
                "workerId": kind,
                "maxRecords": str(cell.records.limit),
                "kinesisEndpoint": source.url,
                "dynamoDBEndpoint": tables.endpoint,
            }
            env = {**env, **CREDENTIALS, **(further_env or {})}
            with hosts.running(kind, folder / "host", source, properties, env, jvm) as host:
                yield source, host
    finally:
        tables.stop()


class _Sample(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    host: hosts.Use
    children: dict[int, hosts.Use]
    source: hosts.Use
    machine_s: float
    """CPU seconds of all cores that were not idle."""

    @staticmethod
    def now(host: LoggedProcess, source: Source) -> _Sample:
        ticks = list(map(int, _lines("/proc/stat")[0].split()[1:9]))
        return _Sample(
            at_s=hosts.now_s(),
            host=hosts.use_of(host.pid),
            children={pid: hosts.use_of(pid) for pid in hosts.children_of(host.pid)},
            source=hosts.use_of(source.pid),
            machine_s=(sum(ticks) - ticks[3] - ticks[4]) / hosts.TICKS_PER_S,
        )


def _figures(cell: Cell, before: _Sample, after: _Sample, first_s: float, folder: Path, source: Source) -> Figures:
    statuses, answers = hosts.statuses(folder), hosts.answers(source)
    for shard, of_shard in statuses.items():
        if not hosts.monotone(of_shard):
            raise click.ClickException(f"{cell}: records of shard {shard} are missing or came twice")
    records_per_s, waits_ms = 0.0, []
    for shard, of_shard in statuses.items():
        window = [status for status in of_shard if before.at_s <= status.at_s < after.at_s]
        of_answer = answers[shard, window[0].batch].records
        went = _position(window[-1], cell, of_answer) - _position(window[0], cell, of_answer)
        records_per_s += went / (window[-1].at_s - window[0].at_s)
        for status in window:
            is_last = (_position(status, cell, of_answer) + 1) % (of_answer * max(1, cell.records.users)) == 0
            if is_last:  # of its answer, which may be several batches
                waits_ms.append((status.at_s - answers[shard, status.batch].began_s) * 1000)
    took_s = after.at_s - before.at_s
    gb = records_per_s * took_s * cell.records.size / 1e9
    host_s = after.host.cpu_s - before.host.cpu_s
    children_s = sum(use.cpu_s - before.children[pid].cpu_s for pid, use in after.children.items())
    source_s = after.source.cpu_s - before.source.cpu_s
    waits_ms.sort()
    return Figures(
        records_per_s=records_per_s,
        mb_per_s=gb * 1000 / took_s,
        host_s_per_gb=host_s / gb,
        children_s_per_gb=children_s / gb,
        source_s_per_gb=source_s / gb,
        host_cores=host_s / took_s,
        peak_mb=after.host.peak_mb,
        children_peak_mb=sum(use.peak_mb for use in after.children.values()),
        threads=after.host.threads,
        p50_ms=percentile(waits_ms, 50),
        p99_ms=percentile(waits_ms, 99),
        first_batch_s=first_s,
        other_cores=max(0.0, after.machine_s - before.machine_s - host_s - children_s - source_s) / took_s,
        load=os.getloadavg()[0],
    )


def _fewest_since(since_s: float, folder: Path) -> int:
    """Batches answered by the child of the shard that had the fewest."""
    return min(sum(status.at_s >= since_s for status in found) for found in hosts.statuses(folder).values())


def _answer_records(cell: Cell) -> int:
    """Kinesis records of an answer; the source cuts at 10 MiB."""
    return min(cell.records.limit, 10 * 2**20 // len(cell.records.payloads(1)[0]))


def _position(status: hosts.Status, cell: Cell, of_answer: int) -> int:
    """Of a user record among all of its shard, from 0."""
    kinesis_record = status.batch * of_answer + status.index
    return kinesis_record * max(1, cell.records.users) + status.sub


def _wait_for_end(pid: int) -> None:
    """Children of a host that was killed end by themselves."""
    give_up_s = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up_s:
        time.sleep(0.02)


# The table

_COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "records/s": ("records_per_s", ",.0f"),
    "MB/s": ("mb_per_s", ",.1f"),
    "host CPU s/GB": ("host_s_per_gb", ".2f"),
    "children s/GB": ("children_s_per_gb", ".2f"),
    "source s/GB": ("source_s_per_gb", ".2f"),
    "host cores": ("host_cores", ".2f"),
    "peak MB": ("peak_mb", ",.0f"),
    "threads": ("threads", ".0f"),
    "p50 ms": ("p50_ms", ",.0f"),
    "p99 ms": ("p99_ms", ",.0f"),
    "others' cores": ("other_cores", ".1f"),
}
_RATIOS: Final = ("records_per_s", "mb_per_s", "host_s_per_gb", "peak_mb", "threads", "p50_ms", "p99_ms")


def table(results: Sequence[Result]) -> list[str]:
    """Markdown: medians with their range; under them kcl-host to Java within a run."""
    lines = [
        f"| cell | host | runs | {' | '.join(_COLUMNS)} |",
        f"| --- | --- | ---: |{' ---: |' * len(_COLUMNS)}",
    ]
    for cell in dict.fromkeys(result.cell for result in results):
        of_cell = [result for result in results if result.cell == cell]
        by_run: dict[Kind, dict[int, Figures]] = {"java": {}, "kcl-host": {}}
        for result in of_cell:
            by_run[result.host][result.run] = result.figures
        for kind, figures in by_run.items():
            if figures:
                values = [
                    _spread([getattr(f, name) for f in figures.values()], form) for name, form in _COLUMNS.values()
                ]
                lines.append(f"| {cell} | {kind} | {len(figures)} | {' | '.join(values)} |")
        pairs = [(ours, by_run["java"][run]) for run, ours in by_run["kcl-host"].items() if run in by_run["java"]]
        if pairs:
            values = [
                _spread([getattr(ours, n) / getattr(theirs, n) for ours, theirs in pairs], ".2f")
                if n in _RATIOS
                else ""
                for n, _ in _COLUMNS.values()
            ]
            lines.append(f"| {cell} | **ratio** | {len(pairs)} | {' | '.join(values)} |")
    return lines


def _spread(values: Sequence[float], form: str) -> str:
    median, low, high = Spread.of(values).texts(form)
    return median if low == high else f"{median} ({low} - {high})"


if __name__ == "__main__":
    main()
