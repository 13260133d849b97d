"""kcl-host against the Java MultiLangDaemon: what a gigabyte costs either, on the same source, into the same children.

A cell is a size of records, the most of an answer, a number of shards and a child; a run of it is a host on an
application of its own with the same properties for both: those by default, but for reads every 200 ms (as short as
either allows) and no metrics. So nothing is faster than five answers a second and shard; CPU per gigabyte does not
depend on that. In the cells called "unpaced" that limit is taken out of both hosts by a start of our own. A window
begins when the host has warmed up: the JVM compiles for a minute. CPU of the host, of the children and of the source
are the kernel's, each apart. The time to the status is from the moment the source begins to write an answer until the
child has answered for its last record. The source shows first how fast it is on the wire of each host.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click
import msgspec

from tests.bench import hosts, notes
from tests.bench.hosts import Child, Place, Source
from tests.bench.pairs import Options, Pairs, options
from tests.bench.report import Column, Kind, percentile
from tests.interop.java_daemon import LoggedProcess
from tests.kpl import User, aggregate

START_LIMIT_S: Final = 300.0
WINDOW_S: Final = 20.0
WARM_UP_S: Final[dict[Kind, float]] = {"kcl-host": 10.0, "java": 60.0}
SPREADING_S: Final = 10.0
"""Further time until several processes have their shares, with a pass of the leader each second."""
WINDOW_LIMIT_S: Final = 300.0
LEAST_BATCHES: Final = 3
CEILING_S: Final = 1.0
LARGEST_AGGREGATE: Final = 50_000
"""What the KPL makes by default is a little more."""


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
    is_paced: bool = True
    processes: int = 1
    """Of kcl-host; Java is the same either way."""

    def __str__(self) -> str:
        of_answer = f"{self.records.limit:,}" if not self.records.users else "10 MB"
        text = f"{self.records.name} by {of_answer}, {self.shards} shard{'s'[: self.shards > 1]}, {self.child}"
        text += "" if self.processes == 1 else f", {self.processes} processes"
        return text if self.is_paced else f"{text}, unpaced"

    @property
    def answer_records(self) -> int:
        """Kinesis records of an answer; the source cuts at 10 MiB."""
        return min(self.records.limit, 10 * 2**20 // len(self.records.payloads(1)[0]))


THOUSAND_BY_1000: Final = Records("1 KB", 1024, 1000)
KPL: Final = Records("KPL of 100 B", 100, 10_000, users=LARGEST_AGGREGATE // 108)
RECORDS: Final = (
    Records("100 B", 100, 10_000),
    THOUSAND_BY_1000,
    Records("1 KB", 1024, 10_000),
    Records("10 KB", 10_240, 1000),
    KPL,
)
SHARDS: Final = (1, 4, 16)
CHILDREN: Final[tuple[Child, ...]] = ("c", "kclpy", "node")
CELLS: Final = (
    *(Cell(records, n, "c") for records in RECORDS for n in SHARDS),
    *(Cell(THOUSAND_BY_1000, n, child) for child in CHILDREN[1:] for n in SHARDS),
    *(Cell(records, 1, "c", is_paced=False) for records in RECORDS),
    *(Cell(records, 16, "c", processes=2) for records in RECORDS),
)
WHOLE: Final = tuple(
    Cell(records, n, child, is_paced)
    for is_paced in (True, False)
    for child in CHILDREN
    for records in RECORDS
    for n in SHARDS
)
FEW: Final = tuple(
    cell
    for cell in CELLS
    if (cell.records.size, cell.child) == (1024, "c")
    and (cell.records.limit == 10_000 or (cell.is_paced and cell.processes == 1 and cell.shards != 4))
)
"""Those about which there is something to reach."""
QUICK: Final = (Cell(THOUSAND_BY_1000, 2, "c"), Cell(KPL, 2, "c", is_paced=False))
COLUMNS: Final = (
    Column("records/s", "records_per_s", ",.0f"),
    Column("MB/s", "mb_per_s", ",.1f"),
    Column("host CPU s/GB", "host_s_per_gb"),
    Column("children s/GB", "children_s_per_gb", has_ratio=False),
    Column("source s/GB", "source_s_per_gb", has_ratio=False),
    Column("host cores", "host_cores", has_ratio=False),
    Column("peak MB", "peak_mb", ",.0f"),
    Column("threads", "threads", ".0f"),
    Column("p50 ms", "p50_ms", ",.0f"),
    Column("p99 ms", "p99_ms", ",.0f"),
    Column("others' cores", "other_cores", ".1f", has_ratio=False),
    Column("source at most MB/s", "ceiling_mb_per_s", ",.0f", has_ratio=False),
)


@click.command()
@options
@click.option("--window", "window_s", default=WINDOW_S, show_default=True, help="Seconds that are measured.")
@click.option("--records", multiple=True, type=click.Choice([*dict.fromkeys(r.name for r in RECORDS)]))
@click.option("--shards", multiple=True, type=int)
@click.option("--child", "children", multiple=True, type=click.Choice(CHILDREN))
@click.option("--unpaced", is_flag=True, help="Without the 200 ms between reads.")
@click.option("--few", is_flag=True, help="Only the cells that the figures to reach are about.")
@click.option("--whole", is_flag=True, help="All cells that there are, not the choice of them.")
def main(
    given: Options,
    window_s: float,
    records: tuple[str, ...],
    shards: tuple[int, ...],
    children: tuple[Child, ...],
    unpaced: bool,
    few: bool,
    whole: bool,
) -> None:
    """Records, bytes, CPU, memory and time to the status of both hosts."""
    chosen = [
        cell
        for cell in (QUICK if given.quick else FEW if few else WHOLE if whole or unpaced else CELLS)
        if (not records or cell.records.name in records)
        and (not shards or cell.shards in shards)
        and (not children or cell.child in children)
        and (not unpaced or not cell.is_paced)
    ]
    cells = {str(cell): cell for cell in chosen}
    pairs = Pairs("throughput", given)
    bench = Bench(pairs, window_s)
    pairs.run(
        list(cells),
        COLUMNS,
        lambda cell, run, kind: bench.check(cells[cell], kind) if given.quick else bench.measure(cells[cell], kind),
    )


class Bench:
    def __init__(self, pairs: Pairs, window_s: float) -> None:
        self._pairs, self._window_s = pairs, window_s
        self._ceilings: dict[tuple[str, Kind], float] = {}

    def check(self, cell: Cell, kind: Kind) -> dict[str, float]:
        """No figures. Raises ClickException unless every record has arrived, once and in order."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            with self._scene(folder, cell, kind, {"KCL_BENCH_COUNT": "1"}) as (_, host):
                notes.wait_for_statuses(host, folder / "host", cell.shards, START_LIMIT_S)
                time.sleep(0.5)
                found = notes.statuses(folder / "host")
        for shard, of_shard in found.items():
            told = sum(status.records for status in of_shard)
            if not notes.monotone(of_shard) or told != _position(of_shard[-1], cell, cell.answer_records) + 1:
                raise click.ClickException(f"{kind}, {cell}: records of shard {shard} are missing or came twice")
        return {}

    def measure(self, cell: Cell, kind: Kind) -> dict[str, float]:
        ceiling = self._ceiling_mb_per_s(cell, kind)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            with self._scene(folder, cell, kind) as (at, host):
                first_s = notes.wait_for_statuses(host, folder / "host", cell.shards, START_LIMIT_S)
                is_several = cell.processes > 1 and kind == "kcl-host"
                time.sleep(WARM_UP_S[kind] + is_several * SPREADING_S)
                before = _Sample.now(host, at.source, is_several)
                time.sleep(self._window_s)
                # A host that hardly gets on needs more: two batches of a shard are the least that has a rate.
                host.wait_for(
                    lambda: _fewest_since(before.at_s, folder / "host") >= LEAST_BATCHES,
                    WINDOW_LIMIT_S,
                    f"{LEAST_BATCHES} batches of each shard",
                )
                after = _Sample.now(host, at.source, is_several)
                host.kill()
                for pid in before.children:
                    _wait_for_end(pid)
                figures = _figures(cell, before, after, folder / "host", at.source)
        return {**figures, "first_batch_s": first_s, "ceiling_mb_per_s": ceiling}

    def _ceiling_mb_per_s(self, cell: Cell, kind: Kind) -> float:
        """Before the host starts; once for what is the same."""
        key = (f"{cell.records.name} {cell.records.limit} {cell.shards}", kind)
        if key not in self._ceilings:
            with (
                tempfile.TemporaryDirectory() as folder,
                Source(Path(folder) / "source", cell.shards, cell.records.payloads(cell.shards)) as source,
            ):
                self._ceilings[key] = source.ceiling(kind, cell.records.limit, CEILING_S)
        return self._ceilings[key]

    @contextlib.contextmanager
    def _scene(
        self, folder: Path, cell: Cell, kind: Kind, further_env: Mapping[str, str] | None = None
    ) -> Iterator[tuple[Place, LoggedProcess]]:
        """The host's notes are under `folder`/host."""
        executable, env = hosts.child_command(cell.child)
        properties = {
            "executableName": executable,
            "workerId": kind,
            "maxRecords": str(cell.records.limit),
            "idleTimeBetweenReadsInMillis": "200",
        }
        if cell.processes > 1:
            properties |= {"leaseAssignmentIntervalMillis": "1000", "varianceBalancingFrequency": "1"}
            properties |= {"processes": str(cell.processes)} if kind == "kcl-host" else {}
        env = {**env, **(further_env or {})}
        with hosts.place(folder, cell.shards, cell.records.payloads(cell.shards)) as at:
            host = hosts.host(kind, "host", at, properties, env, self._pairs.jvm, is_paced=cell.is_paced)
            with hosts.running(host):
                yield at, host


class _Sample(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    host: list[hosts.Use]
    """Of its processes."""
    children: dict[int, hosts.Use]
    source: hosts.Use
    machine_s: float
    """CPU seconds of all cores that were not idle."""

    @staticmethod
    def now(host: LoggedProcess, source: Source, is_several: bool) -> _Sample:
        """With several processes the children are those of the host's children."""
        processes = [host.pid, *(hosts.children_of(host.pid) if is_several else [])]
        children = [pid for process in processes[is_several:] for pid in hosts.children_of(process)]
        return _Sample(
            at_s=notes.now_s(),
            host=[hosts.use_of(pid) for pid in processes],
            children={pid: hosts.use_of(pid) for pid in children},
            source=hosts.use_of(source.pid),
            machine_s=hosts.machine_busy_s(),
        )


def _figures(cell: Cell, before: _Sample, after: _Sample, folder: Path, source: Source) -> dict[str, float]:
    """`gb` are 10**9 bytes of the records' data; memory is the peak since the start of the process."""
    statuses, answers = notes.statuses(folder), notes.answers(source.notes)
    records_per_s, waits_ms = 0.0, []
    for shard, of_shard in statuses.items():
        window = [status for status in of_shard if before.at_s <= status.at_s < after.at_s]
        if not notes.monotone(window):
            raise click.ClickException(f"{cell}: records of shard {shard} are missing or came twice")
        of_answer = answers[shard, window[0].batch].records
        went = _position(window[-1], cell, of_answer) - _position(window[0], cell, of_answer)
        records_per_s += went / (window[-1].at_s - window[0].at_s)
        for status in window:
            is_last = (_position(status, cell, of_answer) + 1) % (of_answer * max(1, cell.records.users)) == 0
            if is_last:  # of its answer, which may be several batches
                waits_ms.append((status.at_s - answers[shard, status.batch].began_s) * 1000)
    took_s = after.at_s - before.at_s
    gb = records_per_s * took_s * cell.records.size / 1e9
    host_s = sum(use.cpu_s for use in after.host) - sum(use.cpu_s for use in before.host)
    children_s = sum(use.cpu_s - before.children[pid].cpu_s for pid, use in after.children.items())
    source_s = after.source.cpu_s - before.source.cpu_s
    waits_ms.sort()
    return {
        "records_per_s": records_per_s,
        "mb_per_s": gb * 1000 / took_s,
        "host_s_per_gb": host_s / gb,
        "children_s_per_gb": children_s / gb,
        "source_s_per_gb": source_s / gb,
        "host_cores": host_s / took_s,
        "peak_mb": sum(use.peak_mb for use in after.host),
        "children_peak_mb": sum(use.peak_mb for use in after.children.values()),
        "threads": sum(use.threads for use in after.host),
        "p50_ms": percentile(waits_ms, 50),
        "p99_ms": percentile(waits_ms, 99),
        "other_cores": max(0.0, after.machine_s - before.machine_s - host_s - children_s - source_s) / took_s,
        "load": os.getloadavg()[0],
    }


def _fewest_since(since_s: float, folder: Path) -> int:
    """Batches answered by the child of the shard that had the fewest."""
    return min(sum(status.at_s >= since_s for status in found) for found in notes.statuses(folder).values())


def _position(status: notes.Status, cell: Cell, of_answer: int) -> int:
    """Of a user record among all of its shard, from 0."""
    kinesis_record = status.batch * of_answer + status.index
    return kinesis_record * max(1, cell.records.users) + status.sub


def _wait_for_end(pid: int) -> None:
    """Children of a host that was killed end by themselves."""
    give_up_s = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up_s:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
