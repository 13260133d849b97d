"""The tables and streams of an application in AWS, made from its configuration. Nothing here makes a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.kinesis import KinesisStream, arn_of
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.aws.table_migration import DynamoDbTableMigration
from kcl_host.aws.worker_metrics_table import LEASE_KEY, DynamoDbWorkerMetricsTable
from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.coordination.metadata_tables import MetadataTables

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_kinesis.client import KinesisClient


def lease_table_of(client: DynamoDBClient, settings: Settings) -> DynamoDbLeaseTable:
    return DynamoDbLeaseTable(client, settings.lease_table, scan_segments=settings.lease.scan_segments)


def metadata_tables_of(client: DynamoDBClient, settings: Settings) -> MetadataTables:
    """In both formats; which of them is in use is found out later."""
    coordinator, workers, leases = settings.coordinator_table, settings.worker_metrics_table, settings.lease_table
    return MetadataTables(
        coordinator=DynamoDbCoordinatorTable(client, coordinator),
        worker_metrics=DynamoDbWorkerMetricsTable(client, workers),
        coordinator_in_lease_table=DynamoDbCoordinatorTable(client, leases, key_attribute=LEASE_KEY),
        worker_metrics_in_lease_table=DynamoDbWorkerMetricsTable(client, leases, key_attribute=LEASE_KEY),
        migration=DynamoDbTableMigration(client, coordinator, leases),
    )


def stream_of(client: KinesisClient, stream: StreamSettings, settings: Settings) -> KinesisStream:
    """Of several streams each is named by its ARN, so that those of other accounts are reached."""
    arn = stream.arn
    if arn is None and settings.multi_stream and stream.account is not None:
        arn = arn_of(client, stream.account, stream.name)
    return KinesisStream(
        client,
        stream.name,
        arn=arn,
        list_shards_backoff_s=settings.shard_sync.list_shards_backoff_s,
        list_shards_max_attempts=settings.shard_sync.list_shards_max_attempts,
    )
