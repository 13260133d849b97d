"""`kcl-host demo`: the embedded engines, a producer, the host with a sample child, and a table to watch it all."""

from __future__ import annotations

import os
import random
import secrets
import select
import sys
import tempfile
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kcl_host import log
from kcl_host.errors import ConfigurationError
from kcl_host.model.sequence import AT_SHARD_END

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kcl_host.local.engines import Engines
    from kcl_host.runtime.consumer_status import ConsumerStatus
    from kcl_host.runtime.supervisor import Supervisor, WorkerStatus

STREAM: Final = "demo"
SHARDS: Final = 4
SPLIT_AFTER_S: Final = 6.0
REFRESH_S: Final = 0.25
PLAIN_EVERY_S: Final = 4.0
PLAIN_WIDTH: Final = 90
RATE_WINDOW_S: Final = 2.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(min=1), help="Stop by itself after this time.")
@click.option("--plain", is_flag=True, help="Lines instead of the live table, for scripts and logs.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Write the last view as an SVG.")
@click.option("--rate", type=click.IntRange(1, 2000), default=40, show_default=True, help="Records per second.")
@click.option("--aggregate", type=click.IntRange(1, 1000), default=1, metavar="N", help="N records to a KPL aggregate.")
def demo(seconds: float | None, plain: bool, picture: Path | None, rate: int, aggregate: int) -> int:
    """Watch kcl-host at work, with nothing but this machine.

    Starts the embedded Kinesis and DynamoDB, makes a stream of 4 shards, produces numbered records, runs the host
    with one child process per shard, and splits a shard while you watch. Any key quits. Nothing outlives the
    command. Exit code 1 when no record arrived.
    """
    try:
        from kcl_host.local.engines import Engines
    except ImportError as error:
        raise ConfigurationError(
            f"the demo needs the embedded engines ({error.name} is missing): pip install 'kcl-host[local]'"
        ) from error
    plain = plain or not sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="kcl-host-demo-") as folder, Engines() as engines:
        log_path = Path(folder) / "host.log"
        with log_path.open("w") as log_file:
            log.configure(level="INFO", format="text", stream=log_file)
            return _Demo(engines, Path(folder), seconds, plain, picture, rate, aggregate).run()


class _Demo:
    def __init__(
        self,
        engines: Engines,
        folder: Path,
        seconds: float | None,
        plain: bool,
        picture: Path | None,
        rate: int,
        aggregate: int,
    ) -> None:
        self._engines = engines
        self._folder = folder
        self._seconds = seconds
        self._plain = plain
        self._picture = picture
        self._rate = rate
        self._aggregate = aggregate
        self._started_s = time.monotonic()
        self._first_record_s: float | None = None
        self._failure: BaseException | None = None
        self._rates = _Rates()
        self._split_done = False

    def run(self) -> int:
        from kcl_host.local.producer import Producer

        self._engines.create_stream(STREAM, SHARDS)
        producer = Producer(self._engines, STREAM, records_per_s=self._rate, aggregate=self._aggregate)
        producer.start()
        supervisor = self._supervisor()
        host = threading.Thread(target=self._host, args=(supervisor,), name="host")
        host.start()
        try:
            self._watch(supervisor, host)
        except KeyboardInterrupt:
            pass
        finally:
            producer.stop()
            supervisor.request_stop()
            host.join()
        return self._farewell(supervisor, producer.produced)

    def _supervisor(self) -> Supervisor:
        from kcl_host.config.properties import load_settings
        from kcl_host.runtime.clock import SystemClock
        from kcl_host.runtime.outside import connect
        from kcl_host.runtime.supervisor import Supervisor

        path = self._folder / "demo.properties"
        path.write_text(
            "\n".join(
                [
                    f"executableName = {sys.executable} -m kcl_host.processor.demo",
                    f"streamName = {STREAM}",
                    "applicationName = demo-app",
                    "workerId = demo",
                    "initialPositionInStream = TRIM_HORIZON",
                    "AwsCredentialsProvider = AnonymousCredentialsProvider",
                    "retrievalMode = POLLING",
                    "idleTimeBetweenReadsInMillis = 250",
                    "leaseAssignmentIntervalMillis = 2000",
                    "parentShardPollIntervalMillis = 1000",
                    *self._engines.properties_lines(),
                ]
            )
            + "\n"
        )
        loaded = load_settings(str(path), environ=os.environ, random_suffix=secrets.token_hex(2), hostname="demo")
        return Supervisor(
            loaded.settings,
            connect(loaded.settings, environ=dict(os.environ), clock=SystemClock(), rng=random.Random()),
        )

    def _host(self, supervisor: Supervisor) -> None:
        try:
            supervisor.run()
        except Exception as error:
            self._failure = error

    def _watch(self, supervisor: Supervisor, host: threading.Thread) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        next_line_s = 0.0
        live = nullcontext() if self._plain else Live(console=console, screen=True, auto_refresh=False)
        with live as table, _key_pressed() as key_pressed:
            while host.is_alive():
                elapsed_s = time.monotonic() - self._started_s
                if key_pressed(REFRESH_S) or (self._seconds is not None and elapsed_s >= self._seconds):
                    break
                if not self._split_done and elapsed_s >= min(SPLIT_AFTER_S, (self._seconds or 60) / 3):
                    self._split()
                status = supervisor.status()
                self._rates.observe(status, time.monotonic())
                if self._first_record_s is None and any(consumer.records for consumer in status.consumers):
                    self._first_record_s = elapsed_s
                if table is not None:
                    table.update(self._screen(status, elapsed_s), refresh=True)
                elif elapsed_s >= next_line_s:
                    next_line_s = elapsed_s + PLAIN_EVERY_S
                    console.print(self._table(status), self._caption(status, elapsed_s), soft_wrap=True)

            if self._picture is not None:
                self._paint(self._picture, supervisor.status(), time.monotonic() - self._started_s)

    def _paint(self, picture: Path, status: WorkerStatus, elapsed_s: float) -> None:
        from rich.console import Console

        with open(os.devnull, "w") as nowhere:
            canvas = Console(record=True, width=PLAIN_WIDTH, file=nowhere, force_terminal=True)
            canvas.print(self._table(status), self._caption(status, elapsed_s))
            canvas.save_svg(str(picture), title="kcl-host demo")

    def _split(self) -> None:
        self._split_done = True
        self._engines.split_shard(STREAM, "shardId-000000000000")

    # What people see

    def _screen(self, status: WorkerStatus, elapsed_s: float) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        return Group(self._table(status), self._caption(status, elapsed_s), Text("any key quits", style="dim"))

    def _table(self, status: WorkerStatus) -> RenderableType:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title_justify="left")
        table.title = f"stream {', '.join(status.stream_names)}, application {status.application_name}"
        for heading in ("shard", "state", "owner"):
            table.add_column(heading, no_wrap=True)
        for heading in ("rec/s", "records", "lag", "last checkpoint", "child"):
            table.add_column(heading, justify="right", no_wrap=True)
        now_s = time.monotonic()
        for depth, consumer in by_lineage(status.consumers):
            word, style = _state(consumer)
            table.add_row(
                "   " * max(depth - 1, 0) + ("└─ " if depth else "") + _shard_name(consumer.shard_id),
                f"[{style}]{word}[/]",
                status.worker_id + (" ★" if status.is_leader else ""),
                f"{self._rates.of(consumer.lease_key):.0f}",
                f"{consumer.records:,}",
                "-" if consumer.millis_behind_latest is None else f"{consumer.millis_behind_latest / 1000:.1f} s",
                _checkpoint(consumer, now_s),
                "-" if consumer.child_pid is None else str(consumer.child_pid),
            )
        return table

    def _caption(self, status: WorkerStatus, elapsed_s: float) -> RenderableType:
        from rich.text import Text

        records = sum(consumer.records for consumer in status.consumers)
        facts = [
            f"{elapsed_s:5.1f} s",
            status.phase.lower(),
            f"{records:,} records through {len(status.consumers)} shards",
        ]
        if self._first_record_s is not None:
            facts.append(f"first record after {self._first_record_s:.1f} s")
        if self._split_done:
            facts.append("shard 0 was split")
        return Text(" | ".join(facts))

    def _farewell(self, supervisor: Supervisor, produced: int) -> int:
        if self._failure is not None:
            raise self._failure
        status = supervisor.status()
        records = self._rates.total
        click.echo(f"stopped in order: {produced:,} records produced, {records:,} delivered to the children")
        ended = [consumer.shard_id for consumer in status.consumers if consumer.checkpoint == AT_SHARD_END]
        if ended:
            click.echo(f"ended and handed on to its children: {', '.join(ended)}")
        return 0 if records else 1


class _Rates:
    """Records per second of each shard over the last two seconds, and all records ever seen."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def observe(self, status: WorkerStatus, now_s: float) -> None:
        for consumer in status.consumers:
            seen = self._seen.setdefault(consumer.lease_key, deque())
            seen.append((now_s, consumer.records))
            while len(seen) > 2 and now_s - seen[1][0] > RATE_WINDOW_S:
                seen.popleft()

    def of(self, lease_key: str) -> float:
        seen = self._seen[lease_key]
        elapsed_s = seen[-1][0] - seen[0][0]
        return (seen[-1][1] - seen[0][1]) / elapsed_s if elapsed_s else 0.0

    @property
    def total(self) -> int:
        return sum(seen[-1][1] for seen in self._seen.values())


def by_lineage(consumers: Sequence[ConsumerStatus]) -> list[tuple[int, ConsumerStatus]]:
    """Each consumer with its depth, children right below their (first present) parent."""
    present = {consumer.shard_id: consumer for consumer in consumers}
    children: dict[str | None, list[ConsumerStatus]] = {}
    for consumer in consumers:
        parent = next((p for p in consumer.parent_shard_ids if p in present), None)
        children.setdefault(parent, []).append(consumer)
    ordered: list[tuple[int, ConsumerStatus]] = []

    def add(parent: str | None, depth: int) -> None:
        for consumer in children.get(parent, ()):
            ordered.append((depth, consumer))
            add(consumer.shard_id, depth + 1)

    add(None, 0)
    return ordered


def _state(consumer: ConsumerStatus) -> tuple[str, str]:
    """A word for people, and its colour."""
    if consumer.checkpoint is not None and consumer.checkpoint.is_shard_end:
        return "ended", "dim"
    if consumer.child in ("BACKOFF", "FATAL"):
        return f"child {consumer.child.lower()}", "red"
    words = {
        "WAITING_ON_PARENT_SHARDS": ("waiting", "yellow"),
        "INITIALIZING": ("starting", "yellow"),
        "PROCESSING": ("processing", "green"),
    }
    return words.get(consumer.state, ("stopping", "yellow"))


def _shard_name(shard_id: str) -> str:
    """`shard 7` for shardId-000000000007."""
    number = shard_id.removeprefix("shardId-").lstrip("0") or "0"
    return f"shard {number}" if number.isdigit() else shard_id


def _checkpoint(consumer: ConsumerStatus, now_s: float) -> str:
    """The end of the sequence number, and how long ago it was written."""
    if consumer.checkpoint is None:
        return "-"
    text = str(consumer.checkpoint)
    short = text if len(text) <= 12 else f"…{text[-7:]}"
    return short if consumer.checkpoint_at_s is None else f"{short} {now_s - consumer.checkpoint_at_s:4.1f} s"


def _pass_time(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _key_pressed() -> Iterator[Callable[[float], bool]]:
    """A function that waits for a key for some seconds; without a terminal it only waits."""
    if not sys.stdin.isatty():
        yield _pass_time
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield lambda seconds: bool(select.select([fd], [], [], seconds)[0])
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
