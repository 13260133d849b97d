"""Everything that a worker reaches of the world outside itself, in one place.

The supervisor wires a worker from these; a real worker gets them from `connect`, the fleet simulation makes its own.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kcl_host.aws.clients import clients_for
from kcl_host.child.process import child_environment, start_child
from kcl_host.child.stderr import level_of
from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.coordination.metadata_tables import MetadataTables
from kcl_host.coordination.streams import OpenStream, StreamAccess
from kcl_host.log import CHILD, bind
from kcl_host.observe.load import LoadSampler
from kcl_host.ports import Child, Clock, LeaseTable, Threads
from kcl_host.runtime.metrics import NO_METRICS, Metrics, metrics_of
from kcl_host.runtime.services import lease_table_of, metadata_tables_of, stream_of
from kcl_host.runtime.threads import SystemThreads

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

    from kcl_host.aws.subscribe import Subscribers


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
    close_streams: Callable[[], None] = lambda: None
    """Breaks off whatever read of a stream may wait long."""
    read_streams: Callable[[], tuple[StreamSettings, ...] | None] = lambda: None
    """Reads the configuration again: the streams of now; None when it cannot be read, or is not to be read again."""


def connect(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    clock: Clock,
    rng: random.Random,
    read_streams: Callable[[], tuple[StreamSettings, ...] | None] = lambda: None,
) -> Outside:
    """AWS, child processes and threads. Raises ConfigurationError, AccessError as `clients_for` does."""
    clients = clients_for(settings)
    threads = SystemThreads(pool_size=max(settings.lease.max_renewal_threads // 4, 2))
    metrics = metrics_of(settings, clients, clock, threads.lock)
    sampler = LoadSampler(settings.worker_metrics, on_failure=metrics.instruments.sampling_failed)
    streams = _Streams(settings, clients.kinesis, threads, rng)

    def start(shard_id: str, stream: OpenStream) -> Child:
        log = bind(logging.getLogger(CHILD), shard=shard_id, **stream.log_facts)
        env = child_environment(
            environ,
            application=settings.application_name,
            stream=str(stream.identifier),
            stream_created_s=stream.stream_settings.epoch,
            shard=shard_id,
            worker=settings.worker_id,
            extensions=settings.child.protocol_extensions,
        )
        child = start_child(
            stream.settings.child.command,
            env=env,
            settings=stream.settings.child,
            on_stderr=lambda line: log.log(
                level_of(line), line, extra={"child_pid": child.pid, "action": "child_stderr"}
            ),
            name=shard_id,
        )
        return child

    return Outside(
        metrics=metrics,
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
