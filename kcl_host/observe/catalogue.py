"""Every metric: KCL's by their own names, as data, and a few of ours.

Source: KCL 3.5.1, each place that adds data to a metrics scope (spec metrics 3). The row is looked up by operation and
name, which are unique together. Ours are for Prometheus and OpenTelemetry only: each further CloudWatch metric costs
money, and a file that publishes KCL's metrics under Java publishes the same ones here.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kcl_host.model.metric import Level, Unit

Seen = Literal["always", "leader", "migration", "multi_stream", "onboarding"]
"""Who publishes it: every worker in normal operation, the leader only, and so on."""
Kind = Literal["counter", "gauge", "distribution"]
"""What the points mean where values of one metric are kept for long: they add up, the last one counts, or each is a
measurement of its own."""

OPERATION: Final = "Operation"
SHARD_ID: Final = "ShardId"
STREAM_ID: Final = "StreamId"
"""account:stream:epoch, only where leases carry the identifier of their stream."""
WORKER_IDENTIFIER: Final = "WorkerIdentifier"
API: Final = "Api"
RESOURCE: Final = "Resource"
"""Of ours only: a request's name, and its table or stream."""


class Metric(msgspec.Struct, frozen=True):
    """`dimensions` are those beside Operation; one whose value is not known is left out."""

    operation: str
    name: str
    unit: Unit
    level: Level
    dimensions: tuple[str, ...]
    seen: Seen
    kind: Kind
    help: str
    ours: bool = False


_GAUGES: Final = frozenset(
    {
        "MillisBehindLatest", "CurrentLeases", "TotalLeases", "NumWorkers", "ExpiredLeases", "VeryOldLeases",
        "ActiveStreams.Count", "StreamsPendingDeletion.Count", "QueueSize", "NumStreamsToSync",
        "NumStreamsWithPartialLeases", "NumWorkersWithInvalidEntry", "NumWorkersWithFailingWorkerMetric",
        "LeaseDeserializationFailureCount", "LeaseSpillover", "FleetMinSupportCode", "GsiReadyStatus",
        "WorkerMetricsReadyStatus", "CurrentState:3xWorker", "CurrentState:2xCompatibleWorker", "StatusOrdinal",
        "Phase1Worker", "Phase2Worker", "PrePhase1Worker", "LeaderDecider:IsLeader", "WorkerLeases", "UnclaimedLeases",
    }
)  # fmt: skip
"""Of these the last value counts; spec metrics 6, and those that are a state by their nature."""

_C: Final[Unit] = "Count"
_MS: Final[Unit] = "Milliseconds"
_NONE: Final[Unit] = "None"
_S: Final[Level] = "SUMMARY"
_D: Final[Level] = "DETAILED"
_SHARD: Final = (STREAM_ID, SHARD_ID)
_WORKER: Final = (WORKER_IDENTIFIER,)


def _row(
    operation: str,
    name: str,
    unit: Unit,
    level: Level,
    dimensions: tuple[str, ...] = (),
    seen: Seen = "always",
    help: str = "",
    ours: bool = False,
) -> Metric:
    last = name.rpartition(".")[2]
    kind: Kind = "counter"
    if name in _GAUGES:
        kind = "gauge"
    elif unit == "Milliseconds" or last == "Success":
        kind = "distribution"
    return Metric(operation, name, unit, level, dimensions, seen, kind, help or _HELP.get(last, last), ours)


_HELP: Final = {"Success": "1 for a success, 0 for a failure", "Time": "Duration", "Fault": "Failures"}


def _call(
    operation: str,
    prefix: str,
    level: Level,
    dimensions: tuple[str, ...] = (),
    seen: Seen = "always",
) -> tuple[Metric, Metric]:
    """Success and duration of something; without a prefix, of the operation as a whole."""
    dot = f"{prefix}." if prefix else ""
    return (
        _row(operation, f"{dot}Success", _C, level, dimensions, seen),
        _row(operation, f"{dot}Time", _MS, level, dimensions, seen),
    )


CHECKPOINT_KINDS: Final = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END", "SEQUENCE_NUMBER")
"""What CreateLease_<kind> tells of the first checkpoint of a new lease."""


def _creations(operation: str, seen: Seen) -> tuple[Metric, ...]:
    return (
        *_call(operation, "CreateLease", _D, (), seen),
        *(
            _row(operation, f"CreateLease_{kind}.Success", _C, _D, (), seen, f"Leases created at {kind}")
            for kind in CHECKPOINT_KINDS
        ),
    )


# fmt: off
CATALOGUE: Final[tuple[Metric, ...]] = (
    # 3.1 Per shard
    _row("ProcessTask", "RecordsProcessed", _C, _S, _SHARD, help="User records, before the checkpoint filter"),
    _row("ProcessTask", "DataBytesProcessed", "Bytes", _S, _SHARD, help="Payload given to the child"),
    _row("ProcessTask", "MillisBehindLatest", _MS, _S, _SHARD, help="Lag of the last batch, as Kinesis told it"),
    *_call("ProcessTask", "", _S, _SHARD),
    _row("ProcessTask", "RecordProcessor.processRecords.Time", _MS, _S, _SHARD, help="One processRecords of the child"),
    _row("ApplicationTracker", "MillisBehindLatest", _MS, _S, help="Lag of the batches of all shards"),
    *_call("ProcessTask", "KinesisDataFetcher.getRecords", _D, _SHARD),
    *_call("ProcessTask", "KinesisDataFetcher.getShardIterator", _D, _SHARD),
    _row("ProcessTask", "ExpiredIterator", _C, _S, (STREAM_ID,), help="Shard iterators that had expired"),
    *_call("ProcessTask", "UpdateLease", _D, _SHARD),
    *_call("ShutdownTask", "UpdateLease", _D, _SHARD),
    _row("InitializeTask", "RecordProcessor.initialize.Time", _MS, _S, help="One initialize of a child"),
    _row("ShutdownTask", "RecordProcessor.shutdown.Time", _MS, _S, help="leaseLost or shardEnded, and what precedes"),
    *_creations("ShutdownTask", "always"),
    _row("ShutdownTask", "MissingMergeParent", _C, _S, help="Merged child shards without two parents"),
    _row("ShutdownTask", "MissingMergeParentLease", _C, _S, help="Merges of which one parent has no lease"),
    # 3.2 Leases
    _row("RenewAllLeases", "LostLeases", _C, _S, _WORKER, help="Leases lost at a renewal"),
    _row("RenewAllLeases", "CurrentLeases", _C, _S, _WORKER, help="Leases held after a round of renewals"),
    *_call("RenewAllLeases", "", _S, _WORKER),
    *_call("RenewAllLeases", "RenewLease", _D, _WORKER),
    _row("LeaseRenewerInitialize", "Fault", _C, _D, help="1 when the first look at the leases failed"),
    _row("LeaseDiscovery", "ListLeaseKeysForWorker.Time", _MS, _D, _WORKER, help="Query of the index"),
    _row("LeaseDiscovery", "FetchNewLeases.Time", _MS, _D, _WORKER, help="Reads of the rows that are new"),
    _row("LeaseDiscovery", "NewLeasesDiscovered", _C, _D, _WORKER, help="Leases found assigned to this worker"),
    _row("LeaseDiscovery", "OwnerMismatch", _C, _D, _WORKER, help="Rows of which index and table disagree"),
    _row("LeaseDiscovery", "GetLease:Error", _C, _S, _WORKER, help="Rows that could not be read"),
    *_call("LeaseDiscovery", "", _S, _WORKER),
    *_call("WorkerMetricStatsReporter", "", _S, _WORKER),
    _row("WorkerMetricStatsReporter", "InMemoryMetricStatsReporterFailure", _C, _S, help="Failed measurements of load"),
    _row("Scheduler:Initialize", "Initialize.Success", _C, _S, help="1 when the worker has started, 0 when it gave up"),
    _row("LeaderDecider", "LeaderDecider:IsLeader", _C, _D, help="1 while this worker leads"),
    _row("LeaderDecider", "DynamoDBLockBasedLeaderDecider", _C, _D, (), "migration", "Checks of the leadership"),
    _row("LeaderDecider", "DeterministicShuffleShardSyncLeaderDecider", _C, _D, (), "migration", "Checks as in 2.x"),
    _row("StreamIdFetch", "Success", _C, _S, (), "onboarding"),
    _row("StreamIdFetch", "QueueSize", _C, _S, (), "onboarding"),
    # 3.3 Lease assignment
    *_call("LeaseAssignmentManager", "", _S),
    _row("LeaseAssignmentManager", "LeaseAndWorkerMetricsLoad.Time", _MS, _D, (), "leader"),
    _row("LeaseAssignmentManager", "TotalLeases", _C, _S, (), "leader", "Leases in the table"),
    _row("LeaseAssignmentManager", "NumWorkers", _C, _S, (), "leader", "Workers that can take leases"),
    _row("LeaseAssignmentManager", "ExpiredLeases", _C, _S, (), "leader", "Leases that are expired or unassigned"),
    _row("LeaseAssignmentManager", "AssignExpiredOrUnassignedLeases.Time", _MS, _D, (), "leader"),
    _row("LeaseAssignmentManager", "LeaseSpillover", _C, _S, (), "leader", "Leases that no worker can take"),
    _row("LeaseAssignmentManager", "BalanceWorkerVariance.Time", _MS, _D, (), "leader"),
    _row("LeaseAssignmentManager", "NumOfLeasesReassignment", _C, _S, (), "leader", "Leases moved to balance load"),
    _row("LeaseAssignmentManager", "FailedAssignmentCount", _C, _D, (), "leader", "Assignments that were not written"),
    *_call("LeaseAssignmentManager", "ParallelyAssignLeases", _D, (), "leader"),
    _row("LeaseAssignmentManager", "NumWorkersWithFailingWorkerMetric", _C, _S, (), "leader"),
    _row("LeaseAssignmentManager", "NumWorkersWithInvalidEntry", _C, _S, (), "leader"),
    _row("LeaseAssignmentManager", "LeaseDeserializationFailureCount", _C, _S, (), "leader", "Rows that are no lease"),
    _row("LeaseAssignmentManager", "ForceLeaderRelease", _C, _S, (), "leader", "Leads given up after failures"),
    _row("WorkerMetrics", "FleetMinSupportCode", _NONE, _S, (), "leader"),
    # 3.4 Shard sync and streams
    _row("PeriodicShardSyncManager", "NumStreamsWithPartialLeases", _C, _S, (), "leader", "Streams with holes"),
    _row("PeriodicShardSyncManager", "NumStreamsToSync", _C, _S, (), "leader", "Streams that an audit has to sync"),
    _row("PeriodicShardSyncManager", "NumSkippedShardSyncTask", _C, _S, (), "leader"),
    *_call("PeriodicShardSyncManager", "", _S, (), "leader"),
    *_call("ShardSyncTask", "", _S, (), "leader"),
    _row("ShardSyncTask", "SyncShards.Success", _C, _D, (), "leader"),
    *_creations("ShardSyncTask", "leader"),
    _row("MultiStreamTracker", "ActiveStreams.Count", _C, _S, (), "multi_stream"),
    _row("MultiStreamTracker", "StreamsPendingDeletion.Count", _C, _S, (), "multi_stream"),
    _row("MultiStreamTracker", "NonExistingStreamDelete.Count", _C, _S, (), "multi_stream"),
    _row("MultiStreamTracker", "DeletedStreams.Count", _C, _S, (), "multi_stream"),
    # 3.5 The lease taker of 2.x, which kcl-host does not have
    *_call("TakeLeases", "ListLeases", _D, _WORKER, "migration"),
    *_call("TakeLeases", "TakeLease", _D, _WORKER, "migration"),
    *(_row("TakeLeases", name, _C, _S, _WORKER, "migration") for name in (
        "TakenLeases", "UntakenLeases", "ExpiredLeases", "LeaseSpillover", "NumWorkers", "VeryOldLeases")),
    *(_row("TakeLeases", name, _C, _D, _WORKER, "migration") for name in (
        "LeasesToTake", "NeededLeases", "TotalLeases")),
    *_call("TakeLeases", "", _S, _WORKER, "migration"),
    # 3.6 Migrations
    *(_row("Migration", name, _C, _S, (), "migration") for name in (
        "Fault", "GsiReadyStatus", "WorkerMetricsReadyStatus", "CurrentState:3xWorker",
        "CurrentState:2xCompatibleWorker")),
    *_call("TableMigrationInitialize", "", _S),
    _row("TableMigrationInitialize", "ReadFault", _C, _S),
    _row("TableMigrationInitialize", "WriteFault", _C, _S),
    _row("TableMigration", "StatusOrdinal", _NONE, _S, (), "leader",
         "0 unknown, 1 init, 2 deployed, 3 pending, 4 complete"),
    *(_row("TableMigration", name, _C, _S, (), "leader") for name in (
        "Phase1Worker", "Phase2Worker", "PrePhase1Worker", "ReadFault", "WriteFault", "DeleteFault",
        "CompletionFault")),
    _row("TableMigration", "Time", _MS, _S, (), "migration"),
    _row("TableMigrationAsyncMove", "BatchCount", _C, _S, (), "leader"),
    *_call("TableMigrationAsyncMove", "", _S, (), "leader"),
    # Ours
    _row("Fleet", "WorkerLeases", _C, _S, _WORKER, "leader", "Leases of each worker, as the leader sees it", True),
    _row("Fleet", "UnclaimedLeases", _C, _S, (), "leader", "Leases without an owner", True),
    *(_row("Aws", name, _C, _S, (API, RESOURCE), help=help, ours=True) for name, help in (
        ("Requests", "Requests to DynamoDB and Kinesis, SubscribeToShard left out"),
        ("ReadUnits", "Read units that DynamoDB says were consumed"),
        ("WriteUnits", "Write units that DynamoDB says were consumed"))),
    _row("ProcessTask", "DeadLetters", _C, _S, _SHARD, help="Records that went into the dead letter", ours=True),
    _row("Metrics", "Published", _C, _S, help="Statistic sets that were taken by CloudWatch", ours=True),
    _row("MicroBatch", "RecordsCommitted", _C, _S, help="Records of the batches that PySpark children committed",
         ours=True),
    _row("MicroBatch", "BytesCommitted", "Bytes", _S, help="Their size as Arrow columns", ours=True),
    _row("MicroBatch", "RowsRejected", _C, _S, help="Rows that a helper kept apart", ours=True),
    _row("MicroBatch", "Retries", _C, _S, help="Batches that were tried again", ours=True),
    _row("MicroBatch", "HeadLag", _MS, _S, help="Age of the last record of a batch when it was committed", ours=True),
    *(_row("MicroBatch", f"{part}.Time", _MS, _S, ours=True) for part in ("Convert", "Execute", "Commit",
                                                                         "Checkpoint")),
    _row("Metrics", "Shed", _C, _S, help="Statistic sets that were lost or never kept", ours=True),
)
# fmt: on

BY_NAME: Final = {(metric.operation, metric.name): metric for metric in CATALOGUE}
assert len(BY_NAME) == len(CATALOGUE)
