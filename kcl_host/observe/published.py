"""What happens, as points of the registry: the one place that knows which event is which metric of KCL."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Literal

from kcl_host.instruments import Measured, ShardInstruments
from kcl_host.model.lease import Lease
from kcl_host.model.records import Batch
from kcl_host.observe.catalogue import API, RESOURCE, SHARD_ID, STREAM_ID
from kcl_host.observe.metrics import Registry, Scope
from kcl_host.ports import Clock

_PROCESS: Final = "ProcessTask"
_SHUTDOWN: Final = "ShutdownTask"
_ASSIGNMENT: Final = "LeaseAssignmentManager"

_STATUS_ORDINALS: Final = {"INIT": 1, "DEPLOYED": 2, "PENDING": 3, "COMPLETE": 4}


class _Timer:
    """Reports how long the block took, and whether it succeeded, under each of the `prefixes`.

    One that is, or ends with, `Time` is the name of a metric without another about the success.
    """

    __slots__ = ("_began_s", "_clock", "_operation", "_prefixes", "_scope", "success")

    def __init__(self, scope: Scope, clock: Clock, operation: str, *prefixes: str) -> None:
        self._scope = scope
        self._clock = clock
        self._operation = operation
        self._prefixes = prefixes
        self.success = True
        self._began_s = 0.0

    def __enter__(self) -> _Timer:
        self._began_s = self._clock.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        duration_ms = (self._clock.monotonic() - self._began_s) * 1000
        success = float(self.success and error is None)
        scope, operation = self._scope, self._operation
        with scope.lock:
            for prefix in self._prefixes:
                if prefix.endswith("Time"):
                    scope.series(operation, prefix).add(duration_ms)
                else:
                    dot = f"{prefix}." if prefix else ""
                    scope.series(operation, f"{dot}Time").add(duration_ms)
                    scope.series(operation, f"{dot}Success").add(success)
            self._report(success)

    def _report(self, success: float) -> None:
        """What else there is to say; under the lock of the scope."""


class _Task(_Timer):
    """A batch. Both counts get a 0 too, so that an empty batch is seen; only the sum means something, as in Java.

    The end of a shard without records is a success; Java reports a failure then, which is none (spec metrics 4.3).
    """

    __slots__ = ("_batch",)

    def __init__(self, scope: Scope, clock: Clock, batch: Batch) -> None:
        super().__init__(scope, clock, _PROCESS, "")
        self._batch = batch

    def _report(self, success: float) -> None:
        scope, batch = self._scope, self._batch
        records = scope.series(_PROCESS, "RecordsProcessed")
        records.add(0)
        scope.series(_PROCESS, "DataBytesProcessed").add(0)
        if batch.records:
            records.add(len(batch.records))
        if batch.millis_behind_latest is not None:
            scope.series(_PROCESS, "MillisBehindLatest").add(batch.millis_behind_latest)
            scope.series("ApplicationTracker", "MillisBehindLatest").add(batch.millis_behind_latest)


class _Creation(_Timer):
    __slots__ = ("_lease",)

    def __init__(self, scope: Scope, clock: Clock, operation: str, lease: Lease) -> None:
        super().__init__(scope, clock, operation, "CreateLease")
        self._lease = lease

    def _report(self, success: float) -> None:
        """Always a success, as in Java: which kinds of leases are made, not how it went."""
        checkpoint = self._lease.checkpoint
        if checkpoint is not None:
            at = checkpoint.sequence_number if checkpoint.is_sentinel else "SEQUENCE_NUMBER"
            self._scope.series(self._operation, f"CreateLease_{at}.Success").add(1)


class PublishedShard:
    """Satisfies instruments.ShardInstruments."""

    def __init__(self, registry: Registry, clock: Clock, values: Mapping[str, str]) -> None:
        self._registry = registry
        self._clock = clock
        self._scope = registry.scope(values)

    def _timed(self, operation: str, prefix: str) -> Measured:
        return _Timer(self._scope, self._clock, operation, prefix)

    def task(self, batch: Batch) -> Measured:
        return _Task(self._scope, self._clock, batch)

    def delivering(self, records: int, payload_bytes: int) -> Measured:
        """Sum and SampleCount of DataBytesProcessed are Java's; its Maximum would cost work per record."""
        if records:
            with self._scope.lock:
                self._scope.series(_PROCESS, "DataBytesProcessed").add_many(payload_bytes, records)
        return self._timed(_PROCESS, "RecordProcessor.processRecords.Time")

    def updating_lease(self, *, shard_end: bool) -> Measured:
        return self._timed(_SHUTDOWN if shard_end else _PROCESS, "UpdateLease")

    def getting_records(self) -> Measured:
        return self._timed(_PROCESS, "KinesisDataFetcher.getRecords")

    def getting_iterator(self) -> Measured:
        return self._timed(_PROCESS, "KinesisDataFetcher.getShardIterator")

    def iterator_expired(self) -> None:
        self._scope.add(_PROCESS, ExpiredIterator=1)

    def dead_lettered(self) -> None:
        self._scope.add(_PROCESS, DeadLetters=1)

    def end(self) -> None:
        self._registry.end(self._scope)


class Published:
    """Satisfies instruments.Instruments."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._worker = registry.worker
        self._lock = threading.Lock()
        self._skipped_s = -math.inf
        """When a skipped assignment was last counted, guarded by `_lock`."""
        self._requests: dict[tuple[str, str], Scope] = {}
        """By API and resource; guarded by `_lock`."""

    def _timed(self, operation: str, *prefixes: str) -> Measured:
        return _Timer(self._worker, self._clock, operation, *prefixes or ("",))

    # Shard consumers

    def of_shard(self, shard_id: str, stream: str | None) -> ShardInstruments:
        values = {SHARD_ID: shard_id} if stream is None else {SHARD_ID: shard_id, STREAM_ID: stream}
        return PublishedShard(self._registry, self._clock, values)

    def initializing(self) -> Measured:
        return self._timed("InitializeTask", "RecordProcessor.initialize.Time")

    def shutting_down(self) -> Measured:
        return self._timed(_SHUTDOWN, "RecordProcessor.shutdown.Time")

    def creating_lease(self, by: Literal["ShutdownTask", "ShardSyncTask"], lease: Lease) -> Measured:
        return _Creation(self._worker, self._clock, by, lease)

    def merge_parent_missing(self) -> None:
        self._worker.add(_SHUTDOWN, MissingMergeParent=1)

    def merge_parent_lease_missing(self) -> None:
        self._worker.add(_SHUTDOWN, MissingMergeParentLease=1)

    def child_reported(self, points: Mapping[str, float]) -> None:
        self._worker.add("MicroBatch", **points)

    # Leases of this worker

    def renewing_all(self) -> Measured:
        return self._timed("RenewAllLeases")

    def renewing(self) -> Measured:
        return self._timed("RenewAllLeases", "RenewLease")

    def leases_renewed(self, *, lost: int, held: int) -> None:
        self._worker.add("RenewAllLeases", LostLeases=lost, CurrentLeases=held)

    def first_leases_read(self, *, success: bool) -> None:
        self._worker.add("LeaseRenewerInitialize", Fault=not success)

    def discovering(self) -> Measured:
        return self._timed("LeaseDiscovery")

    def listing_keys(self) -> Measured:
        return self._timed("LeaseDiscovery", "ListLeaseKeysForWorker.Time")

    def fetching_leases(self) -> Measured:
        return self._timed("LeaseDiscovery", "FetchNewLeases.Time")

    def leases_discovered(self, found: int) -> None:
        self._worker.add("LeaseDiscovery", NewLeasesDiscovered=found)

    def owner_mismatched(self) -> None:
        self._worker.add("LeaseDiscovery", OwnerMismatch=1)

    def lease_read_failed(self) -> None:
        self._worker.add("LeaseDiscovery", **{"GetLease:Error": 1})

    # The worker

    def started(self, *, success: bool) -> None:
        self._worker.add("Scheduler:Initialize", **{"Initialize.Success": success})

    def requested(self, api: str, resource: str, read_units: float, write_units: float) -> None:
        with self._lock:
            scope = self._requests.get((api, resource))
            if scope is None:
                scope = self._requests[api, resource] = self._registry.scope({API: api, RESOURCE: resource})
        units = {"ReadUnits": read_units, "WriteUnits": write_units}
        scope.add("Aws", Requests=1, **{name: consumed for name, consumed in units.items() if consumed})

    def reporting_load(self) -> Measured:
        return self._timed("WorkerMetricStatsReporter")

    def sampling_failed(self) -> None:
        self._worker.add("WorkerMetricStatsReporter", InMemoryMetricStatsReporterFailure=1)

    def leadership_checked(self, *, leads: bool) -> None:
        self._worker.add("LeaderDecider", **{"LeaderDecider:IsLeader": leads})

    def table_status_found(self) -> Measured:
        return _ReadFault(self._worker, self._clock, "TableMigrationInitialize", "")

    # The leader

    def assigning(self) -> Measured:
        return self._timed(_ASSIGNMENT)

    def assignment_skipped(self, every_s: float) -> None:
        now_s = self._clock.monotonic()
        with self._lock:
            if now_s - self._skipped_s < every_s:
                return
            self._skipped_s = now_s
        self._worker.add(_ASSIGNMENT, Success=1, Time=0)

    def loading_leases(self) -> Measured:
        return self._timed(_ASSIGNMENT, "LeaseAndWorkerMetricsLoad.Time")

    def planning(self, *, balance: bool) -> Measured:
        balanced = ("BalanceWorkerVariance.Time",) if balance else ()
        return self._timed(_ASSIGNMENT, "AssignExpiredOrUnassignedLeases.Time", *balanced)

    def planned(
        self,
        *,
        total: int,
        workers: int,
        expired: int,
        spillover: int,
        rebalanced: int | None,
        failing_workers: int,
        invalid_workers: int,
        undecodable: int,
        support_code: int | None,
    ) -> None:
        """Those that are a sign of something wrong are there only when there is something, as in Java."""
        signs = {
            "LeaseSpillover": spillover,
            "NumWorkersWithFailingWorkerMetric": failing_workers,
            "NumWorkersWithInvalidEntry": invalid_workers,
            "LeaseDeserializationFailureCount": undecodable,
        }
        points = {name: count for name, count in signs.items() if count}
        if rebalanced is not None:
            points["NumOfLeasesReassignment"] = rebalanced
        self._worker.add(_ASSIGNMENT, TotalLeases=total, NumWorkers=workers, ExpiredLeases=expired, **points)
        if support_code is not None:
            self._worker.add("WorkerMetrics", FleetMinSupportCode=support_code)

    def writing_assignments(self) -> Measured:
        return self._timed(_ASSIGNMENT, "ParallelyAssignLeases")

    def assignments_written(self, *, failed: int) -> None:
        self._worker.add(_ASSIGNMENT, FailedAssignmentCount=failed)

    def lead_given_up(self) -> None:
        self._worker.add(_ASSIGNMENT, ForceLeaderRelease=1)

    def fleet_seen(self, leases_by_worker: Mapping[str, int], unclaimed: int) -> None:
        self._registry.note_fleet(leases_by_worker)
        self._worker.add("Fleet", UnclaimedLeases=unclaimed)

    def auditing(self) -> Measured:
        return self._timed("PeriodicShardSyncManager")

    def audited(self, *, streams_with_holes: int, streams_to_sync: int, skipped: int) -> None:
        self._worker.add(
            "PeriodicShardSyncManager",
            NumStreamsWithPartialLeases=streams_with_holes,
            NumStreamsToSync=streams_to_sync,
            NumSkippedShardSyncTask=skipped,
        )

    def syncing_shards(self) -> Measured:
        return _ShardSync(self._worker, self._clock, "ShardSyncTask", "")

    def streams_tracked(self, *, active: int, pending_deletion: int) -> None:
        self._worker.add(
            "MultiStreamTracker", **{"ActiveStreams.Count": active, "StreamsPendingDeletion.Count": pending_deletion}
        )

    def streams_deleted(self, *, deleted: int, of_which_gone: int) -> None:
        self._worker.add(
            "MultiStreamTracker", **{"DeletedStreams.Count": deleted, "NonExistingStreamDelete.Count": of_which_gone}
        )

    def following_table_migration(self) -> Measured:
        return _ReadFault(self._worker, self._clock, "TableMigration", "Time")

    def table_migration_seen(self, status: str | None) -> None:
        ordinal = _STATUS_ORDINALS.get((status or "").rpartition("_")[2], 0)
        self._worker.add("TableMigration", StatusOrdinal=ordinal)

    def table_migration_workers(self, *, before: int, phase_1: int, phase_2: int) -> None:
        self._worker.add("TableMigration", PrePhase1Worker=before, Phase1Worker=phase_1, Phase2Worker=phase_2)


class _ReadFault(_Timer):
    def _report(self, success: float) -> None:
        self._scope.series(self._operation, "ReadFault").add(1 - success)


class _ShardSync(_Timer):
    def _report(self, success: float) -> None:
        self._scope.series(self._operation, "SyncShards.Success").add(success)
