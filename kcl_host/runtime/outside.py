"""Everything that a worker reaches of the world outside itself, in one place.

The supervisor wires a worker from these; a real worker gets them from `connect`, the fleet simulation makes its own.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kcl_host.aws.clients import clients_for
from kcl_host.aws.dead_letter import dead_letters_of
from kcl_host.child.process import child_environment, start_child
from kcl_host.child.stderr import level_of
from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.coordination.metadata_tables import MetadataTables
from kcl_host.coordination.streams import OpenStream, StreamAccess
from kcl_host.log import CHILD, bind
from kcl_host.observe.load import LoadSampler
from kcl_host.observe.micro_batch import ANNOUNCED, points_of
from kcl_host.ports import Child, Clock, DeadLetters, LeaseTable, Threads
from kcl_host.runtime.metrics import NO_METRICS, Metrics, metrics_of
from kcl_host.runtime.poison_records import STDERR_LINES
from kcl_host.runtime.service_manager import NO_SERVICE_MANAGER, ServiceManager
from kcl_host.runtime.services import lease_table_of, metadata_tables_of, stream_of
from kcl_host.runtime.threads import SystemThreads

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

    from kcl_host.aws.subscribe import Subscribers
    from kcl_host.runtime.transcripts import TranscriptFolder


@dataclass(frozen=True, kw_only=True)
class Outside:
    clock: Clock
    rng: random.Random
    new_id: Callable[[], str]
    """A string that nobody else ever makes."""
    threads: Threads
    open_stream: Callable[[StreamSettings, Settings], StreamAccess]
    """How a stream is reached, with the settings that hold for it; makes no request."""
    lease_table: LeaseTable
    metadata_tables: MetadataTables
    sample_load: Callable[[], float | None]
    """Measures the load of this host; seconds until the next time, None when it reports no metrics."""
    drain_load: Callable[[], dict[str, float]]
    """Average of each metric since the last call, by short name."""
    start_child: Callable[[str, OpenStream], Child]
    """Starts the child of a shard of that stream; raises ChildStartFailed."""
    metrics: Metrics = NO_METRICS
    service_manager: ServiceManager = NO_SERVICE_MANAGER
    """Who is told that the worker is ready, lives, stops."""
    close_streams: Callable[[], None] = lambda: None
    """Breaks off whatever read of a stream may wait long."""
    read_streams: Callable[[], tuple[StreamSettings, ...] | None] = lambda: None
    """Reads the configuration again: the streams of now; None when it cannot be read, or is not to be read again."""
    transcripts: TranscriptFolder | None = None
    """Where the dialogues with children are written down; None: nowhere."""
    dead_letters: DeadLetters | None = None
    last_stderr: Callable[[str], tuple[str, ...]] = lambda lease_key: ()
    """The last lines that the child of this lease has written, the one before while there is none."""


def connect(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    clock: Clock,
    rng: random.Random,
    read_streams: Callable[[], tuple[StreamSettings, ...] | None] = lambda: None,
    note_line: Callable[[str, int, int, str], None] | None = None,
    transcripts: TranscriptFolder | None = None,
) -> Outside:
    """AWS, child processes and threads. Raises ConfigurationError, AccessError as `clients_for` does.

    `note_line` is told each line of a child's stderr too: lease key, pid, level (of module logging), text.
    """
    clients = clients_for(settings)
    threads = SystemThreads(pool_size=max(settings.lease.max_renewal_threads // 4, 2))
    metrics = metrics_of(settings, clients, clock, threads.lock)
    sampler = LoadSampler(settings.worker_metrics, on_failure=metrics.instruments.sampling_failed)
    announced = dict([ANNOUNCED]) if settings.child.stderr == "log" else {}
    streams = _Streams(settings, clients.kinesis, threads, rng)
    dead_letters = dead_letters_of(settings)
    last_lines: dict[str, deque[str]] = {}

    def start(shard_id: str, stream: OpenStream) -> Child:
        log = bind(logging.getLogger(CHILD), shard=shard_id, **stream.log_facts)
        env = child_environment(
            {**environ, **announced},
            application=settings.application_name,
            stream=str(stream.identifier),
            stream_created_s=stream.stream_settings.epoch,
            shard=shard_id,
            worker=settings.worker_id,
            extensions=settings.child.protocol_extensions,
        )
        lease_key = f"{stream.identifier}:{shard_id}" if stream.identifier.is_multi_stream else shard_id

        def on_stderr(line: str) -> None:
            if (points := points_of(line)) is not None:
                metrics.instruments.child_reported(points)
                return
            level = level_of(line)
            log.log(level, line, extra={"child_pid": child.pid, "action": "child_stderr"})
            if dead_letters is not None:
                last_lines[lease_key].append(line)
            if note_line is not None:
                note_line(lease_key, child.pid, level, line)

        if dead_letters is not None:
            last_lines[lease_key] = deque(maxlen=STDERR_LINES)
        child = start_child(
            stream.settings.child.command,
            env=env,
            settings=stream.settings.child,
            on_stderr=on_stderr,
            name=shard_id,
        )
        return child

    return Outside(
        metrics=metrics,
        service_manager=ServiceManager(environ),
        clock=clock,
        rng=rng,
        new_id=lambda: str(uuid.uuid4()),
        threads=threads,
        open_stream=streams.open,
        close_streams=streams.close,
        read_streams=read_streams,
        lease_table=lease_table_of(clients.dynamodb, settings),
        metadata_tables=metadata_tables_of(clients.dynamodb, settings),
        sample_load=sampler.run_once,
        drain_load=sampler.drain_average,
        start_child=start,
        transcripts=transcripts,
        dead_letters=dead_letters,
        last_stderr=lambda lease_key: tuple(last_lines.get(lease_key, ())),
    )


class _Streams:
    """Opens streams; what fan-out needs is loaded with the first stream that is read so."""

    def __init__(self, settings: Settings, client: KinesisClient, threads: SystemThreads, rng: random.Random) -> None:
        self._settings = settings
        self._client = client
        self._threads = threads
        self._rng = rng
        self._subscribers: Subscribers | None = None

    def open(self, stream: StreamSettings, of_stream: Settings) -> StreamAccess:
        opened = stream_of(self._client, stream, of_stream)
        if of_stream.retrieval.mode == "POLLING":
            return StreamAccess(opened)
        if self._subscribers is None:
            from kcl_host.aws.subscribe import Subscribers

            self._subscribers = Subscribers(
                self._settings,
                self._client,
                start_thread=partial(self._threads.start, daemon=True),
                jitter=self._rng.random,
                sleep=self._threads.event().wait,
            )
        return StreamAccess(opened, self._subscribers.of(opened, stream.name, of_stream.retrieval))

    def close(self) -> None:
        if self._subscribers is not None:
            self._subscribers.close()
