"""What happens, and which metrics of KCL that is: names, dimensions and values as the Java daemon's."""

from __future__ import annotations

import pytest

from kcl_host.config.settings import MetricsSettings
from kcl_host.errors import ExpiredIterator, Throttled, Unavailable
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import Lease
from kcl_host.model.metric import StatisticSet
from kcl_host.model.records import Batch, Record, RecordsPage
from kcl_host.model.sequence import ExtendedSequenceNumber, IteratorPosition
from kcl_host.observe.cloudwatch import MetricsPublisher
from kcl_host.observe.measured import MeasuredStream
from kcl_host.observe.metrics import Registry
from kcl_host.observe.published import Published
from tests.fakes.clock import FakeClock
from tests.fakes.cloudwatch import FakeCloudWatch
from tests.unit.test_metrics_catalogue import rows_of_spec


class Rig:
    def __init__(self) -> None:
        import threading

        self.clock = FakeClock()
        self.registry = Registry("worker-1")
        self.instruments: Instruments = Published(self.registry, self.clock)
        self.cloudwatch = FakeCloudWatch(self.clock)
        self.publisher = MetricsPublisher(
            self.registry, self.cloudwatch, MetricsSettings(), self.clock, threading.Lock()
        )

    def found(self, name: str, **dimensions: str) -> StatisticSet | None:
        self.publisher.run_once()
        return self.cloudwatch.statistics(name, **dimensions)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def batch(records: int, millis_behind_latest: int | None = 500, **more: object) -> Batch:
    one = Record(data="aGVsbG8=", partition_key="p", sequence_number="1", approximate_arrival_timestamp=0)
    return Batch(records=[one] * records, millis_behind_latest=millis_behind_latest, **more)  # type: ignore[arg-type]


def lease(checkpoint: str) -> Lease:
    return Lease(lease_key="shard-1", checkpoint=ExtendedSequenceNumber(checkpoint), lease_counter=0)


PROCESS = {"Operation": "ProcessTask", "ShardId": "shard-0"}


def test_batches_by_hand(rig: Rig) -> None:
    """Two batches of 3 and 2 records, of which one had been checkpointed already, and an empty one (spec 4.1, 4.2)."""
    shard = rig.instruments.of_shard("shard-0", None)
    for records, kept, payload_bytes, behind in ((3, 2, 200, 900), (2, 2, 40, None)):
        with shard.task(batch(records, behind)):
            with shard.delivering(kept, payload_bytes):
                rig.clock.advance(0.25)
            rig.clock.advance(0.05)
    with shard.task(batch(0, 100)):
        pass
    assert rig.found("RecordsProcessed", **PROCESS) == StatisticSet(0, 3, 5, 5), "a 0 for each batch"
    assert rig.found("DataBytesProcessed", **PROCESS) == StatisticSet(0, 100, 240, 7), "a 0 per batch, a point a record"
    assert rig.found("MillisBehindLatest", **PROCESS) == StatisticSet(100, 900, 1000, 2), "only what Kinesis told"
    assert rig.found("MillisBehindLatest", Operation="ApplicationTracker") == StatisticSet(100, 900, 1000, 2)
    assert rig.found("Success", **PROCESS) == StatisticSet(1, 1, 3, 3)
    time = rig.found("Time", **PROCESS)
    assert time is not None and (time.minimum, time.count) == (0, 3) and time.sum == pytest.approx(600)
    user = rig.found("RecordProcessor.processRecords.Time", **PROCESS)
    assert user is not None and user.count == 2 and user.maximum == pytest.approx(250)


def test_a_batch_whose_child_failed_is_no_success_and_counts_all_the_same(rig: Rig) -> None:
    shard = rig.instruments.of_shard("shard-0", None)
    with pytest.raises(RuntimeError), shard.task(batch(2)), shard.delivering(2, 10):
        raise RuntimeError
    assert rig.found("Success", **PROCESS) == StatisticSet(0, 0, 0, 1)
    assert rig.found("RecordsProcessed", **PROCESS) == StatisticSet(0, 2, 2, 2)
    user = rig.found("RecordProcessor.processRecords.Time", **PROCESS)
    assert user is not None and user.count == 1


def test_the_end_of_a_shard_without_records_is_a_success(rig: Rig) -> None:
    """Java says 0 here (spec metrics 4.3), which sets off alarms at each reshard."""
    shard = rig.instruments.of_shard("shard-0", None)
    with shard.task(batch(0, None, shard_end=True)):
        pass
    assert rig.found("Success", **PROCESS) == StatisticSet(1, 1, 1, 1)


def test_reads_of_a_shard(rig: Rig) -> None:
    class Stream:
        answers: list[RecordsPage | Exception]

        def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
            rig.clock.advance(0.02)
            return "iterator"

        def get_records(self, iterator: str, limit: int) -> RecordsPage:
            rig.clock.advance(0.1)
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    page = RecordsPage(records=[], next_iterator="next", millis_behind_latest=0)
    stream = Stream()
    stream.answers = [page, Throttled("slow down"), ExpiredIterator()]
    measured = MeasuredStream(stream, rig.instruments.of_shard("shard-0", None))  # type: ignore[arg-type]
    assert measured.get_shard_iterator("shard-0", IteratorPosition(type="LATEST")) == "iterator"
    assert measured.get_records("iterator", 10) is page
    for error in (Throttled, ExpiredIterator):
        with pytest.raises(error):
            measured.get_records("iterator", 10)
    assert rig.found("KinesisDataFetcher.getRecords.Success", **PROCESS) == StatisticSet(0, 1, 1, 3)
    time = rig.found("KinesisDataFetcher.getRecords.Time", **PROCESS)
    assert time is not None and time.sum == pytest.approx(300)
    assert rig.found("KinesisDataFetcher.getShardIterator.Success", **PROCESS) == StatisticSet(1, 1, 1, 1)
    assert rig.found("ExpiredIterator", Operation="ProcessTask") == StatisticSet(1, 1, 1, 1), "without the shard"


def test_shards_of_several_streams_bear_the_stream(rig: Rig) -> None:
    shard = rig.instruments.of_shard("shard-0", "123456789012:orders:1700000000")
    with shard.updating_lease(shard_end=True):
        pass
    dimensions = {"ShardId": "shard-0", "StreamId": "123456789012:orders:1700000000"}
    assert rig.found("UpdateLease.Success", Operation="ShutdownTask", **dimensions) == StatisticSet(1, 1, 1, 1)


def test_a_shard_that_was_given_away_is_still_published(rig: Rig) -> None:
    shard = rig.instruments.of_shard("shard-0", None)
    with shard.task(batch(1)):
        pass
    shard.end()
    assert rig.found("RecordsProcessed", **PROCESS) == StatisticSet(0, 1, 1, 2)


def test_a_block_that_was_told_to_have_failed(rig: Rig) -> None:
    with rig.instruments.renewing() as renewal:
        renewal.success = False
    dimensions = {"Operation": "RenewAllLeases", "WorkerIdentifier": "worker-1"}
    assert rig.found("RenewLease.Success", **dimensions) == StatisticSet(0, 0, 0, 1)


@pytest.mark.parametrize(
    ("checkpoint", "kind"),
    [
        ("LATEST", "LATEST"),
        ("TRIM_HORIZON", "TRIM_HORIZON"),
        ("AT_TIMESTAMP", "AT_TIMESTAMP"),
        ("77", "SEQUENCE_NUMBER"),
    ],
)
def test_a_new_lease_tells_where_it_begins_even_when_it_could_not_be_made(rig: Rig, checkpoint: str, kind: str) -> None:
    with pytest.raises(Unavailable), rig.instruments.creating_lease("ShardSyncTask", lease(checkpoint)):
        raise Unavailable
    assert rig.found("CreateLease.Success", Operation="ShardSyncTask") == StatisticSet(0, 0, 0, 1)
    assert rig.found(f"CreateLease_{kind}.Success", Operation="ShardSyncTask") == StatisticSet(1, 1, 1, 1)


def test_signs_of_trouble_are_published_only_when_there_is_trouble(rig: Rig) -> None:
    seen = dict(total=8, workers=2, expired=0, undecodable=0, invalid_workers=0, support_code=1)
    rig.instruments.planned(**seen, spillover=0, rebalanced=None, failing_workers=0)
    rig.publisher.run_once()
    assert {name for name, _ in rig.cloudwatch.published} == {
        "TotalLeases", "NumWorkers", "ExpiredLeases", "FleetMinSupportCode",
    }  # fmt: skip
    rig.instruments.planned(**seen, spillover=3, rebalanced=0, failing_workers=1)
    assert rig.found("LeaseSpillover", Operation="LeaseAssignmentManager") == StatisticSet(3, 3, 3, 1)
    assert rig.found("NumOfLeasesReassignment", Operation="LeaseAssignmentManager") == StatisticSet(0, 0, 0, 1)


def test_a_follower_says_that_it_has_nothing_to_assign_as_often_as_a_java_worker(rig: Rig) -> None:
    for _ in range(60):
        rig.instruments.assignment_skipped(20.0)
        rig.clock.advance(1.0)
    assert rig.found("Success", Operation="LeaseAssignmentManager") == StatisticSet(1, 1, 3, 3)


@pytest.mark.parametrize(
    ("status", "ordinal"),
    [(None, 0), ("NOT_KNOWN", 0), ("TABLE_MIGRATION_STATUS_DEPLOYED", 2), ("PENDING", 3), ("COMPLETE", 4)],
)
def test_the_status_of_the_table_migration_is_a_number(rig: Rig, status: str | None, ordinal: int) -> None:
    rig.instruments.table_migration_seen(status)
    assert rig.found("StatusOrdinal", Operation="TableMigration") == StatisticSet(ordinal, ordinal, ordinal, 1)


def report_everything(instruments: Instruments) -> None:
    """Each report once: what a worker that leads and does all kinds of work tells."""
    shard = instruments.of_shard("shard-0", None)
    with shard.task(batch(1)), shard.delivering(1, 5):
        pass
    for shard_end in (False, True):
        with shard.updating_lease(shard_end=shard_end):
            pass
    shard.iterator_expired()
    for kind in ("LATEST", "TRIM_HORIZON", "AT_TIMESTAMP", "SHARD_END", "9"):
        with (
            instruments.creating_lease("ShutdownTask", lease(kind)),
            instruments.creating_lease("ShardSyncTask", lease(kind)),
        ):
            pass
    for measured in (
        shard.getting_records(), shard.getting_iterator(), instruments.initializing(), instruments.shutting_down(),
        instruments.renewing_all(), instruments.renewing(), instruments.discovering(), instruments.listing_keys(),
        instruments.fetching_leases(), instruments.reporting_load(), instruments.table_status_found(),
        instruments.assigning(), instruments.loading_leases(), instruments.planning(balance=True),
        instruments.writing_assignments(), instruments.auditing(), instruments.syncing_shards(),
        instruments.following_table_migration(),
    ):  # fmt: skip
        with measured:
            pass
    instruments.merge_parent_missing()
    instruments.merge_parent_lease_missing()
    instruments.leases_renewed(lost=0, held=1)
    instruments.first_leases_read(success=True)
    instruments.leases_discovered(1)
    instruments.owner_mismatched()
    instruments.lease_read_failed()
    instruments.started(success=True)
    instruments.sampling_failed()
    instruments.leadership_checked(leads=True)
    instruments.assignment_skipped(20.0)
    instruments.planned(
        total=1, workers=1, expired=1, spillover=1, rebalanced=1, failing_workers=1, invalid_workers=1, undecodable=1,
        support_code=1,
    )  # fmt: skip
    instruments.assignments_written(failed=0)
    instruments.lead_given_up()
    instruments.fleet_seen({"worker-1": 1}, unclaimed=0)
    instruments.audited(streams_with_holes=0, streams_to_sync=0, skipped=0)
    instruments.streams_tracked(active=1, pending_deletion=0)
    instruments.streams_deleted(deleted=0, of_which_gone=0)
    instruments.table_migration_seen("COMPLETE")
    instruments.table_migration_workers(before=0, phase_1=1, phase_2=0)
    instruments.child_reported({"RecordsCommitted": 1, "HeadLag": 5, "Execute.Time": 3})
    shard.end()


NOT_REPORTED = {
    # What kcl-host does not do: one request per item instead of a job, a write that is no part of the start.
    "BatchCount", "CompletionFault", "DeleteFault", "WriteFault",
}  # fmt: skip


def test_everything_that_a_java_worker_publishes_in_normal_operation_can_be_reported(rig: Rig) -> None:
    report_everything(rig.instruments)
    rig.publisher.run_once()
    reported = {(dict(dimensions)["Operation"], name) for name, dimensions in rig.cloudwatch.published}
    wanted = {
        (row[0], row[1])
        for row in rows_of_spec()
        if row[5] in ("always", "leader", "multi_stream") and row[1] not in NOT_REPORTED
        if row[0] != "TableMigrationAsyncMove"
    }
    assert sorted(wanted - reported) == []
    assert reported - wanted == {("TableMigration", "Time")}
    dimensions = {name for _, of_one in rig.cloudwatch.published for name, _ in of_one}
    assert dimensions == {"Operation", "ShardId", "WorkerIdentifier"}


def test_without_metrics_every_report_is_taken_and_nothing_happens() -> None:
    report_everything(NOTHING)
    with pytest.raises(RuntimeError), NOTHING.assigning():
        raise RuntimeError
