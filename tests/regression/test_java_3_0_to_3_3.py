"""What Java KCL 3.0.1 to 3.3.0 had to fix, each as a promise of ours. 3.4.0 to 3.5.1: test_java_3_4_to_3_5.py.

The list is that of its CHANGELOG, by pull request, and is complete. Entries without a test:

release  entry                       why there is no test
3.0.0    idle time of 200 ms         first release, listed for the one repair it contains (tested here)
3.0.1    #1398 dependencies, typo    Maven dependencies; the misspelt name was that of a constant, not of the attribute
3.0.2    #1440 #1441                 hooks for Java subclasses
         #1439 #1400                 netty, jackson
3.0.3    #1463 #1472                 a constructor, a keyword without effect
3.1.0    #1479 #1480                 hooks for Java subclasses
         #1478                       commons-beanutils
3.1.1    #1495                       a new key (millisBehindLatestThresholdForReducedTps), tested with the pacing
         #1499                       Java's user agent
         #1493 #1502 #1457 #1505     SDK, RxJava, Lombok, schema registry
3.1.2    #1501                       migration from 2.x, which we do not offer yet: owners among the active workers are
                                     enough for it, the two sets need not be equal
         #1519                       a flaky test
         #1504 #1538 #1513           SDK, lock client, commons-lang
3.1.3    #1619                       SDK, jackson
3.2.0    #1533 #1634 #1635 #1641     SDK, commons-collections, a test, netty
3.2.1    #1650                       netty, and with it (#1652) the name of a time-out of the fan-out, which we lack yet
3.3.0    #1653 #1657 #1662           change log, tests
         #1656                       errors of deaggregation are logged: decisions/deaggregation.UnreadableRest is
         #1674                       a new key (maxPendingProcessRecordsInput); its bug is #1708 of 3.4.1
         #1645 #1689                 SDK, schema registry
"""

from __future__ import annotations

import itertools
import logging
import threading
import tracemalloc
from typing import Any

import msgspec
import pytest

from kcl_host.aws.items import lease_from, lease_item
from kcl_host.config.settings import CoordinatorSettings, LockSettings, RetrievalSettings
from kcl_host.coordination.election import Election
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.decisions.pacing import pause_after_answer_s
from kcl_host.errors import RetryLater
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import HashKeyRange
from kcl_host.model.state import LeaderLock
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import THROTTLED, Fault
from tests.fakes.wire import Reply
from tests.regression.scene import NoticedLock, Scene, load, scripted
from tests.simulation.observer import Broken
from tests.unit.consumer_rig import SHARD, Rig
from tests.unit.coordination_rig import FIVE, ME, OTHER, THIRD
from tests.unit.coordination_rig import Worker as Holder

# 3.0.0 and 3.0.1


def test_3_0_0_a_shard_is_not_read_more_often_than_five_times_a_second() -> None:
    """A pause below 200 ms was obeyed, and a shard allows five reads a second: most of them were throttled.

    Such a value is raised, with a warning; and whatever the settings say, no pause is shorter.
    """
    assert load(idleTimeBetweenReadsInMillis="50").settings.retrieval.idle_between_reads_s == 0.2
    eager = RetrievalSettings(mode="POLLING", mode_reason="test", idle_between_reads_s=0.0)
    assert pause_after_answer_s(eager, millis_behind_latest=0) >= 0.2


def test_3_0_1_a_lease_of_many_streams_keeps_its_checkpoint_owner() -> None:
    """#1401. A copy of a multi-stream lease lost checkpointOwner, so its owner never noticed a graceful handover.

    The same row in the table, as the holder knows it, and as it is handed over.
    """
    stream = "123456789012:orders:1700000000"
    lease = Lease(
        lease_key=f"{stream}:{SHARD}",
        checkpoint=FIVE,
        lease_owner=ME,
        stream_name=stream,
        multi_stream_shard_id=SHARD,
    )
    pending = msgspec.structs.replace(lease, lease_owner=OTHER, checkpoint_owner=ME)
    assert lease_from(lease_item(pending)) == pending

    holder = Holder()
    held = holder.hold(lease)
    assert holder.table.initiate_handoff(lease, OTHER).applied
    assert holder.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == msgspec.structs.replace(pending, lease_counter=1)
    assert holder.held_leases.give_away(held) == OTHER
    assert holder.table.rows[lease.lease_key] == msgspec.structs.replace(
        lease, lease_owner=OTHER, lease_counter=2, owner_switches_since_checkpoint=0
    )


def test_3_0_1_heartbeats_go_on_until_the_last_consumer_has_ended() -> None:
    """#1398. Thread pools were shut down twice and their ends awaited the wrong way round.

    A stop ends the threads of a worker in order: here the child answers later than a lease lives, and the lease is
    renewed all the while, then handed over. Nothing of the worker is left behind.
    """
    scene = Scene(shards=2, failover_s=4.0)
    leaving, staying = scene.start("leaving"), scene.start("staying")
    scene.until(lambda: scene.settled("leaving", "staying"), limit_s=120)
    (key,) = scene.owned_by("leaving")
    scene.slow_down(leaving, action_s=6.0)
    termed_s = scene.now_s
    scene.fleet.term(leaving)
    scene.until(lambda: not leaving.alive, limit_s=25)
    assert leaving.exit_code == 0 and staying.alive
    of_lease = [w for w in scene.writes if w.at_s >= termed_s and w.after is not None and w.after.lease_key == key]
    heartbeats_s = [w.at_s for w in of_lease if (w.worker, w.operation) == ("leaving", "renew")]
    (transferred_s,) = [w.at_s for w in of_lease if (w.worker, w.operation) == ("leaving", "assign")]
    assert transferred_s - termed_s > 4.0, "or nothing was tried"
    moments_s = [termed_s, *heartbeats_s, transferred_s]
    assert max(later - earlier for earlier, later in itertools.pairwise(moments_s)) < 2.0
    assert scene.rows[key].lease_owner == "staying"


# 3.0.2


@pytest.mark.parametrize(("size_bytes", "segments"), [(0, 1), (100_000, 1), (2**30, 5), (2**40, 32)])
def test_3_0_2_a_small_table_is_scanned_in_one_request(size_bytes: int, segments: int) -> None:
    """#1443. Every scan had ten segments, and each costs a read unit even if it is empty: ten times the price."""
    description = {
        "TableName": "app",
        "TableStatus": "ACTIVE",
        "TableSizeBytes": size_bytes,
        "GlobalSecondaryIndexes": [],
    }
    table, wire = scripted(Reply({"Table": description}), *[Reply({"Items": []})] * segments)
    table.describe()
    table.list_leases()
    scans = [body for operation, body in wire.requests if operation == "Scan"]
    assert len(scans) == segments
    assert all(scan.get("TotalSegments", 1) == segments for scan in scans)


def test_3_0_2_a_healthy_fleet_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """#1437. Each pass of the leader warned of its broken rows, also of none: alarms that nobody reads any more."""
    caplog.set_level(logging.WARNING, logger="kcl_host")
    scene = Scene(shards=4)
    for worker_id in ("a", "b"):
        scene.start(worker_id)
    scene.run(600)
    assert scene.settled("a", "b")
    assert [(r.message, r.__dict__.get("action")) for r in caplog.records] == []


# 3.0.3


def test_3_0_3_leases_of_child_shards_are_given_away_at_once() -> None:
    """#1464. A new lease waited for the next pass, twice failoverTimeMillis apart, and then for its discovery.

    The end of a shard calls for a pass, and what the leader gives itself it takes up without discovery.
    """
    scene = Scene(shards=1, put_every_s=5.0)
    scene.start("a")
    scene.until(lambda: scene.settled("a"), limit_s=60)
    scene.run(60)
    (parent,) = scene.owned_by("a")
    children = scene.fleet.stream.split(parent)
    scene.until(lambda: scene.rows[parent].is_at_shard_end, limit_s=60)
    assert scene.until(lambda: set(children) <= set(scene.owned_by("a")), limit_s=60) < 1.5


# 3.1.0 to 3.1.2


def test_3_1_0_a_scan_does_not_hold_the_answers_of_dynamodb() -> None:
    """#1481. A leader with many leases held each of them twice, as an item and as a lease, and ran out of memory."""
    pages, per_page = 10, 200

    def items(page: int) -> list[dict[str, Any]]:
        numbers = range(page * per_page, (page + 1) * per_page)
        return [
            lease_item(
                Lease(
                    lease_key=f"shardId-{n:012d}",
                    checkpoint=ExtendedSequenceNumber("4" * 56),
                    lease_owner="a-worker-with-a-long-name",
                    hash_key_range=HashKeyRange(n, 2**120),
                )
            )
            for n in numbers
        ]

    last = {"LastEvaluatedKey": {"leaseKey": {"S": "x"}}}
    table, _ = scripted(*(Reply({"Items": items(p), **(last if p < pages - 1 else {})}) for p in range(pages)))
    tracemalloc.start()
    try:
        leases = table.list_leases().leases
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(leases) == pages * per_page
    assert peak < 2 * kept


def test_3_1_1_the_interval_of_the_assignment_can_be_set_in_the_file() -> None:
    """#1498. The daemon did not know leaseAssignmentIntervalMillis and ignored it without a word."""
    assert load(leaseAssignmentIntervalMillis="7000").settings.assignment.interval_s == 7.0
    assert load(failoverTimeMillis="5000").settings.assignment.interval_s == 10.0


def test_3_1_2_a_heartbeat_and_a_checkpoint_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """#1496. Every update of a lease was logged at INFO with both of its rows, each checkpoint included."""
    scene = Scene(shards=4, put_every_s=1.0, coordinator=CoordinatorSettings())
    scene.start("a")
    scene.until(lambda: scene.settled("a"), limit_s=60)
    scene.run(60)
    caplog.set_level(logging.INFO, logger="kcl_host")
    caplog.clear()
    began = len(scene.writes)
    scene.run(300)
    written = [w.operation for w in scene.writes[began:]]
    assert written.count("renew") > 100 and written.count("checkpoint") > 20, "or nothing was tried"
    assert [r.message for r in caplog.records] == []


def test_3_1_2_child_shards_survive_when_the_records_beside_them_are_dropped() -> None:
    """#1523. The batch was built anew on its way to the processor, and the child shards were forgotten.

    Here the last answer has one record, which was delivered before, and the children: they get their leases.
    """
    rig = Rig()
    (number,) = rig.put("seen before")
    children = rig.end_shard()
    assert rig.held_leases.checkpoint(rig.held, ExtendedSequenceNumber(number, 3)).error is None
    rig.finish()
    assert rig.delivered == []
    assert rig.row.is_at_shard_end
    assert {key for key in rig.table.rows if key != SHARD} == set(children) == rig.row.child_shard_ids


# 3.2.0 and 3.2.1


def test_3_2_0_the_leader_lock_lasts_as_long_as_it_says() -> None:
    """#1482. Two minutes, whatever the settings: so long nobody led after a crash.

    We write our own duration into the item, and wait for a silent holder as long as its item states: no longer, no
    shorter.
    """
    clock = FakeClock()
    table = InMemoryCoordinatorTable(clock)
    settings = LockSettings(lease_duration_s=6.0, heartbeat_s=2.0)
    mine = Election(table, ME, settings, clock, lambda: "v1")
    mine.run_once()
    assert table.lock == LeaderLock(owner_name=ME, lease_duration_ms=6_000, record_version_number="v1")

    table.lock = LeaderLock(owner_name=OTHER, lease_duration_ms=30_000, record_version_number="theirs")
    third = Election(table, THIRD, settings, clock, lambda: "v2")
    since_s = clock.monotonic()
    while not third.is_leader():
        pause_s = third.run_once()
        if not third.is_leader():
            clock.advance(pause_s)
    assert 30.0 < clock.monotonic() - since_s < 31.0


def test_3_2_1_a_read_that_comes_back_to_a_consumer_that_has_ended_hurts_nobody() -> None:
    """#1648. Subscribing to a publisher that had been shut down threw an exception into a thread that nobody watched.

    The consumer ends while a read is under way: its answer is refused, and the source ends with the next turn.
    """
    rig = Rig()
    rig.deliver("a")
    rig.put("b")
    source = rig.source
    assert source is not None

    def end_the_consumer(operation: str, key: str) -> Fault | None:
        if operation == "get_records":
            rig.stream.faults = lambda operation, key: None
            rig.consumer.stop(ShutdownReason.LEASE_LOST)
            rig.consumer.run()
        return None

    rig.clock.advance(10)
    rig.stream.faults = end_the_consumer
    assert source.run_once() is not None
    assert source.run_once() is None
    assert rig.delivered == ["a"]
    assert rig.calls == [["initialize", "processRecords", "leaseLost"]]


# 3.3.0


def test_3_3_0_a_leader_whose_passes_break_does_not_go_on_as_a_zombie() -> None:
    """#1669. An Error ended the thread of the assignment, the lock was renewed for ever: leases without an owner
    stayed so until an operator came.

    A pass that dies of a bug ends the worker, which releases the lock; another one leads soon.
    """
    scene = Scene(shards=2)
    broken = scene.start("broken")
    scene.until(lambda: broken.supervisor.is_leader, limit_s=10)
    other = scene.start("other")
    scene.until(lambda: scene.settled("broken", "other"), limit_s=120)

    def die(worker_id: str, operation: str) -> Fault | None:
        if (worker_id, operation) == ("broken", "list_workers"):
            raise RuntimeError("a bug")
        return None

    scene.befall = die
    with pytest.raises(Broken, match="a bug"):
        scene.run(120)
    lock = scene.fleet.metadata.coordinator.lock
    assert lock is None or lock.owner_name == "other"
    scene.fleet.hub.failures.clear()
    scene.fleet.gone(broken)
    scene.until(lambda: other.supervisor.is_leader, limit_s=10)


def test_3_3_0_a_leader_that_cannot_assign_lets_others_try() -> None:
    """#1669. Three passes in a row that fail cost the lead, and only that: its leases stay."""
    scene = Scene(shards=2)
    first = scene.start("first")
    scene.until(lambda: first.supervisor.is_leader, limit_s=10)
    second = scene.start("second")
    scene.until(lambda: scene.settled("first", "second"), limit_s=120)
    scene.befall = lambda worker_id, operation: (
        THROTTLED if (worker_id, operation) == ("first", "list_workers") else None
    )
    scene.until(lambda: second.supervisor.is_leader, limit_s=90)
    scene.run(60)
    assert first.alive and second.supervisor.is_leader
    assert scene.settled("first", "second")


@pytest.mark.parametrize("answer", [None, Fault("answer_lost")], ids=["answered", "answer lost"])
def test_3_3_0_the_lock_is_not_taken_while_its_owner_shuts_down(answer: Fault | None) -> None:
    """#1673. The shutdown released the lock while a turn was on its way to take it: an owner that had gone, and nobody
    led until it expired.

    A release waits for the turn under way, deletes what that has taken, answered or not, and no later turn competes.
    """
    clock = FakeClock()
    table = InMemoryCoordinatorTable(clock)
    goes_on = threading.Event()
    versions = itertools.count()
    election = Election(table, ME, LockSettings(), clock, lambda: f"v{next(versions)}", lambda: NoticedLock(goes_on))

    def release() -> None:
        election.release()
        goes_on.set()  # It has not waited: what follows must fail, not hang.

    shutdown = threading.Thread(target=release)

    def shut_down(operation: str, key: str) -> Fault | None:
        if operation != "acquire_lock":
            return None
        shutdown.start()
        assert goes_on.wait(30)
        return answer

    table.faults = shut_down
    try:
        election.run_once()
    except RetryLater:
        assert answer is not None
    shutdown.join(30)
    assert table.lock is None
    assert not election.is_leader()
    for _ in range(5):
        clock.advance(60)
        election.run_once()
    assert table.lock is None
