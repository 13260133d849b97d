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

from kcl_host.aws.clients import clients_for
from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.kinesis import KinesisStream
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.aws.subscribe import Subscriber, connect_subscriber
from kcl_host.aws.table_migration import DynamoDbTableMigration
from kcl_host.aws.worker_metrics_table import LEASE_KEY, DynamoDbWorkerMetricsTable
from kcl_host.child.process import child_environment, start_child
from kcl_host.child.stderr import level_of
from kcl_host.config.settings import Settings
from kcl_host.coordination.metadata_tables import MetadataTables
from kcl_host.log import CHILD, bind
from kcl_host.observe.load import LoadSampler
from kcl_host.ports import Child, Clock, LeaseTable, Stream, Threads
from kcl_host.runtime.threads import SystemThreads


@dataclass(frozen=True, kw_only=True)
class Outside:
    clock: Clock
    rng: random.Random
    new_id: Callable[[], str]
    """A string that nobody else ever makes."""
    threads: Threads
    stream: Stream
    lease_table: LeaseTable
    metadata_tables: MetadataTables
    sample_load: Callable[[], float | None]
    """Measures the load of this host; seconds until the next time, None when it reports no metrics."""
    drain_load: Callable[[], dict[str, float]]
    """Average of each metric since the last call, by short name."""
    start_child: Callable[[str], Child]
    """Starts the child of a shard; raises ChildStartFailed."""
    subscriber: Subscriber | None = None
    """For enhanced fan-out; None: shards are polled."""


def connect(settings: Settings, *, environ: Mapping[str, str], clock: Clock, rng: random.Random) -> Outside:
    """AWS, child processes and threads. Raises ConfigurationError, AccessError as `clients_for` does."""
    clients = clients_for(settings)
    sampler = LoadSampler(settings.worker_metrics)

    def start(shard_id: str) -> Child:
        log = bind(logging.getLogger(CHILD), shard=shard_id)
        env = child_environment(
            environ,
            application=settings.application_name,
            stream=settings.stream.name,
            shard=shard_id,
            worker=settings.worker_id,
            extensions=settings.child.protocol_extensions,
        )
        child = start_child(
            settings.child.command,
            env=env,
            settings=settings.child,
            on_stderr=lambda line: log.log(
                level_of(line), line, extra={"child_pid": child.pid, "action": "child_stderr"}
            ),
            name=shard_id,
        )
        return child

    threads = SystemThreads(pool_size=max(settings.lease.max_renewal_threads // 4, 2))
    stream = KinesisStream(
        clients.kinesis,
        settings.stream.name,
        arn=settings.stream.arn,
        list_shards_backoff_s=settings.shard_sync.list_shards_backoff_s,
        list_shards_max_attempts=settings.shard_sync.list_shards_max_attempts,
    )
    subscriber = None
    if settings.retrieval.mode == "FANOUT":
        subscriber = connect_subscriber(
            settings,
            clients.kinesis,
            stream,
            start_thread=partial(threads.start, daemon=True),
            jitter=rng.random,
            sleep=threads.event().wait,
        )
    return Outside(
        clock=clock,
        rng=rng,
        new_id=lambda: str(uuid.uuid4()),
        threads=threads,
        stream=stream,
        subscriber=subscriber,
        lease_table=DynamoDbLeaseTable(
            clients.dynamodb, settings.lease_table, scan_segments=settings.lease.scan_segments
        ),
        metadata_tables=MetadataTables(
            coordinator=DynamoDbCoordinatorTable(clients.dynamodb, settings.coordinator_table),
            worker_metrics=DynamoDbWorkerMetricsTable(clients.dynamodb, settings.worker_metrics_table),
            coordinator_in_lease_table=DynamoDbCoordinatorTable(
                clients.dynamodb, settings.lease_table, key_attribute=LEASE_KEY
            ),
            worker_metrics_in_lease_table=DynamoDbWorkerMetricsTable(
                clients.dynamodb, settings.lease_table, key_attribute=LEASE_KEY
            ),
            migration=DynamoDbTableMigration(clients.dynamodb, settings.coordinator_table, settings.lease_table),
        ),
        sample_load=sampler.run_once,
        drain_load=sampler.drain_average,
        start_child=start,
    )
