"""What Java KCL 3.4.0 to 3.5.1 had to fix, each as a promise of ours. 3.0.0 to 3.3.0: test_java_3_0_to_3_3.py.

The list is that of its CHANGELOG, by pull request, and is complete. Entries without a test:

release  entry                       why there is no test
3.4.0    #1664                       stream ids, reserved for later
3.4.2    #1713 #1717                 hooks for Java subclasses
         #1715                       type of a Java collection of metric dimensions; we do not publish metrics yet
3.4.3    #1734                       a metric that was never sent; we do not publish metrics yet
         #1730                       DynamoDB Streams, which we do not read
         #1670                       the lease-count strategy, tested with the balancing; its bug is #1765 of 3.5.0
3.5.0    #1773 #1776 #1777           metadata in a single table, which we refuse as yet; the rows are tolerated (#1792)
         #1781                       a new key (leaseTableScanTotalSegments), tested with the configuration
         #1772                       fan-out, which we lack yet: an ACTIVE consumer need not be described again
         #1728                       OpenTelemetry
         #1736 #1745, undone by      segments of a fleet, never released
         #1775
3.5.1    #1779                       metrics of the migration to a single table
         #1787 #1795                 jackson, logback
"""

from __future__ import annotations

import random
import threading
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, RetrievalSettings, WorkerMetricsSettings
from kcl_host.coordination.discovery import Discovery
from kcl_host.coordination.held_leases import HeldLeases
from kcl_host.coordination.streams import OpenStream, StreamAccess
from kcl_host.decisions.assignment import Tracked, plan_assignment
from kcl_host.decisions.consumer_state import ConsumerState, ShutdownReason
from kcl_host.errors import ChildStartFailed
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import StreamIdentifier
from kcl_host.runtime.outside import Outside
from kcl_host.runtime.supervisor import Supervisor
from tests.fakes.child import ModelChild
from tests.fakes.fault import THROTTLED, TIMED_OUT, Fault
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.fakes.stream import InMemoryStream
from tests.fakes.wire import Reply
from tests.regression.scene import NoticedLock, Scene, load, scripted
from tests.simulation.hub import Hub, HubClock, Process, ProcessClock, ProcessThreads
from tests.simulation.run import Setup, settings_of
from tests.unit.consumer_rig import SETTINGS, SHARD, Rig, failing
from tests.unit.coordination_rig import FIVE, ME, OTHER, SEVEN, THIRD, lease, reporting
from tests.unit.coordination_rig import Worker as Holder

# 3.4.0


class Measuring(Process):
    """A worker of which only the moments count at which it measures its load."""

    def __init__(self, hub: Hub, seed: int) -> None:
        super().__init__(f"w{seed}")
        self.measured_s: list[float] = []
        self._hub = hub
        self._ids = 0
        threads, clock = ProcessThreads(hub, self), HubClock(hub)
        lease_table = InMemoryLeaseTable(clock, exists=False)
        self.supervisor = Supervisor(
            msgspec.structs.replace(settings_of(Setup(seed=1)), worker_id=self.name),
            Outside(
                clock=ProcessClock(hub, since_s=0.0),
                rng=random.Random(seed),
                new_id=self._new_id,
                threads=threads,
                open_stream=lambda *_: StreamAccess(InMemoryStream(clock)),
                lease_table=lease_table,
                metadata_tables=InMemoryMetadata(clock, lease_table).tables,
                sample_load=self._measure,
                drain_load=dict,
                start_child=self._no_child,
            ),
        )
        threads.start("main", self.supervisor.run)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}#{self._ids}"

    def _measure(self) -> float:
        self.measured_s.append(self._hub.now_s)
        return 1.0

    def _no_child(self, shard_id: str, stream: OpenStream) -> ModelChild:
        raise ChildStartFailed(f"none for {shard_id}")


def test_3_4_0_workers_that_start_together_do_not_measure_together() -> None:
    """#1698. All workers of a host asked for its CPU at the same moments, and the endpoint throttled them.

    The first turn comes after a random part of the interval, in which no report is waiting for it.
    """
    hub = Hub()
    workers = [Measuring(hub, seed) for seed in range(12)]
    hub.run(hub.now_s + 10.0)
    assert hub.failures == []
    first_s = sorted(worker.measured_s[0] - 1000.0 for worker in workers)
    assert all(len(worker.measured_s) >= 9 for worker in workers)
    assert 0.0 <= first_s[0] and first_s[-1] < 1.5
    assert first_s[-1] - first_s[0] > 0.5 and len(set(first_s)) == 12


# 3.4.1


def test_3_4_1_a_worker_that_stops_takes_up_nothing_more() -> None:
    """#1700. The discovery was stopped only where the old lease taker ran, which is nowhere in 3.x: a worker took up
    leases all through its graceful shutdown.

    Here a leader that has not noticed assigns it a lease meanwhile: no child starts, and the lease is passed on.
    """
    scene = Scene(shards=4)
    leaving = scene.start("leaving")
    staying = scene.start("staying")
    scene.until(lambda: scene.settled("leaving", "staying"), limit_s=300)
    late = scene.owned_by("staying")[0]
    scene.slow_down(leaving, action_s=6.0)
    scene.fleet.term(leaving)
    scene.run(3.0)
    children = len(leaving.children)
    row = scene.rows[late]
    scene.fleet.lease_table.put(
        msgspec.structs.replace(row, lease_owner="leaving", lease_counter=row.lease_counter + 1)
    )
    began = len(scene.writes)
    scene.until(lambda: not leaving.alive, limit_s=27)
    assert (leaving.exit_code, len(leaving.children)) == (0, children)
    of_late = [
        (w.worker, w.operation) for w in scene.writes[began:] if w.after is not None and w.after.lease_key == late
    ]
    assert ("leaving", "assign") in of_late and ("leaving", "renew") not in of_late
    scene.until(lambda: scene.settled("staying"), limit_s=15)
    assert staying.alive


def test_3_4_1_a_leader_that_stops_neither_assigns_nor_reports_that_it_is_well() -> None:
    """#1702. The assignment and the reports went on during the graceful shutdown, so that the worker gave leases to
    itself and looked like a good target to every other leader.
    """
    scene = Scene(shards=4)
    leader = scene.start("leader")
    scene.until(lambda: leader.supervisor.is_leader, limit_s=10)
    other = scene.start("other")
    scene.until(lambda: scene.settled("leader", "other"), limit_s=300)
    scene.slow_down(leader, action_s=6.0)
    scene.fleet.term(leader)
    termed_s = scene.now_s
    scene.until(lambda: other.supervisor.is_leader, limit_s=5)
    while leader.alive:
        scene.run(0.5)
        if scene.now_s - termed_s > 1.0:
            row = scene.fleet.metadata.metrics.rows["leader"]
            assert row.properties == {"state": "TERMINATING"}
    given_s = [w.at_s for w in scene.writes if w.after is not None and w.after.lease_owner == "leader" != _owner(w)]
    assert not [at_s for at_s in given_s if at_s > termed_s]
    passes = [what for at_s, who, what in scene.requests if who == "leader" and at_s > termed_s + 1.0]
    assert "list_workers" not in passes and "put" in passes, "the row expires with the last lease"


def _owner(write: Any) -> str | None:
    return None if write.before is None else write.before.lease_owner


@pytest.mark.parametrize("bound", [0, 1])
def test_3_4_1_a_bound_of_no_batches_stops_no_shard(bound: int) -> None:
    """#1708. With maxPendingProcessRecordsInput = 0 nothing was ever delivered.

    An empty queue always has room for one answer, whatever the bounds; the next is fetched when it has been taken.
    """
    retrieval = RetrievalSettings(mode="POLLING", mode_reason="test", max_pending_batches=bound)
    rig = Rig(settings=msgspec.structs.replace(SETTINGS, retrieval=retrieval))
    rig.stream.page_records = 1
    rig.put("a", "b", "c")
    rig.turn_until(lambda: len(rig.delivered) == 3)
    assert rig.delivered == ["a", "b", "c"]
    rig.end_shard()
    rig.finish()
    assert rig.row.is_at_shard_end
    assert load(maxPendingProcessRecordsInput=str(bound)).settings.retrieval.max_pending_batches >= 1


# 3.4.2: #1718, stuck leases with a pending checkpoint


def test_3_4_2_a_handover_whose_both_ends_were_restarted_does_not_stand_still() -> None:
    """#1718. Next owner gone, old owner restarted and alone: it did not take the lease up, since its row was pending,
    and the leader left it alone, since it had its "owner" already. Nobody ever read the shard again.
    """
    scene = Scene(shards=1)
    first = scene.start("b")
    scene.until(lambda: scene.settled("b"), limit_s=30)
    scene.fleet.kill(first)
    (row,) = scene.rows.values()
    pending = msgspec.structs.replace(row, lease_owner="gone", checkpoint_owner="b")
    scene.fleet.lease_table.put(pending)
    second = scene.start("b")
    scene.run(5.0)
    assert scene.rows[row.lease_key] == pending, "not ours: no heartbeat, and not assigned before it has expired"
    scene.until(lambda: scene.settled("b"), limit_s=60)
    scene.until(lambda: [child for child in second.children if child.alive], limit_s=5)


@pytest.mark.parametrize(
    "owners",
    [
        {"lease_owner": ME, "checkpoint_owner": OTHER},
        {"lease_owner": ME, "checkpoint_owner": ME},
        {"lease_owner": OTHER, "checkpoint_owner": ME},
    ],
    ids=["pending to us", "pending from us to us", "pending from us"],
)
def test_3_4_2_a_worker_that_starts_leaves_pending_leases_alone(owners: dict[str, str]) -> None:
    """#1718. It took up and renewed leases in pending handover: two workers read one shard, or, when it was its own
    next owner, nobody ever completed the handover and every heartbeat kept the leader away.
    """
    holder = Holder()
    found: list[object] = []
    holder.table.put(lease(**owners))  # type: ignore[arg-type]
    discovery = Discovery(
        holder.table,
        holder.held_leases,
        ME,
        LeaseSettings(),
        AssignmentSettings(),
        holder.clock,
        lambda: False,
        found.append,
    )
    for _ in range(50):
        holder.clock.advance(discovery.run_once())
    assert (found, holder.held_leases.all()) == ([], [])
    assert holder.table.rows["s1"] == lease(**owners)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "owners",
    [{"lease_owner": ME, "checkpoint_owner": ME}, {"lease_owner": ME, "checkpoint_owner": OTHER}],
    ids=["owner twice", "checkpoint owner another"],
)
def test_3_4_2_only_the_checkpoint_owner_renews(owners: dict[str, str]) -> None:
    """#1718. A holder that learnt of a handover did not ask whose: it renewed the lease of another, for ever."""
    holder = Holder()
    held = holder.hold()
    row = lease(**owners)  # type: ignore[arg-type]
    holder.table.put(row)
    assert holder.held_leases.renew(held, 0.0) == "lost"
    assert holder.held_leases.checkpoint(held, FIVE).error == "ShutdownException"
    assert holder.table.rows["s1"] == row
    assert len(holder.lost) == 1


# 3.4.3


def test_3_4_3_only_the_leader_syncs_shards_when_workers_start() -> None:
    """#1731. Every worker listed the shards and tried to create the leases: a large fleet throttled itself."""
    scene = Scene(shards=3)
    workers = [scene.start(f"w{n}") for n in range(4)]
    scene.until(lambda: scene.settled("w0", "w1", "w2", "w3") or len(scene.rows) == 3, limit_s=60)
    scene.run(30.0)
    (leader,) = [worker for worker in workers if worker.supervisor.is_leader]
    assert {who for _, who, what in scene.requests if what in ("list_shards", "create")} == {leader.worker_id}


def test_3_4_3_a_consumer_that_waits_for_its_parents_hands_over_and_stops_its_heartbeat() -> None:
    """#1729. It went from waiting straight to its end, past the task that transfers the lease, and the heartbeat went
    on: neither the next owner nor anybody else ever got it.
    """
    parent = Lease(lease_key="parent", checkpoint=AT_TRIM_HORIZON, lease_owner=OTHER)
    rig = Rig(
        Lease(
            lease_key=SHARD,
            checkpoint=AT_TRIM_HORIZON,
            lease_owner=ME,
            lease_counter=1,
            parent_shard_ids=frozenset({"parent"}),
        )
    )
    rig.table.put(parent)
    rig.alive(OTHER)
    rig.turn()
    assert rig.consumer.state is ConsumerState.WAITING_ON_PARENT_SHARDS
    assert rig.table.initiate_handoff(rig.row, OTHER).applied
    rig.renew()
    assert rig.held.lease.is_handover_pending
    rig.consumer.stop(ShutdownReason.REQUESTED)
    rig.finish()
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == (OTHER, None)
    assert (rig.held_leases.all(), rig.children) == ([], [])
    after = rig.row
    assert rig.held_leases.renew(rig.held, 0.0) == "lost"
    assert rig.row == after


@pytest.mark.parametrize("at", ["shutdownRequested", "leaseLost"])
def test_3_4_3_a_processor_that_fails_at_the_end_does_not_keep_the_lease(at: str) -> None:
    """#1732, which the CHANGELOG leaves out. An exception of the processor came first, and the transfer never."""
    rig = Rig(script=failing(at, "exits"))
    rig.alive(OTHER)
    rig.deliver("a")
    assert rig.table.initiate_handoff(rig.row, OTHER).applied
    rig.renew()
    rig.consumer.stop(ShutdownReason.REQUESTED)
    rig.finish()
    assert at in rig.child.names
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == (OTHER, None)
    assert rig.held_leases.all() == []


def test_3_4_3_the_lease_of_a_finished_shard_is_kept_until_it_is_cleaned_up() -> None:
    """#1732. The repair of #1729 dropped these too: nobody renewed them, so the leader moved them from worker to
    worker, each of which started and ended a consumer.
    """
    rig = Rig()
    rig.end_shard()
    rig.finish()
    assert rig.row.is_at_shard_end and rig.cleanup.is_queued(SHARD)
    for _ in range(5):
        rig.clock.advance(5.0)
        assert rig.held_leases.renew(rig.held, 0.0) == "renewed"
    assert (rig.row.lease_owner, rig.held_leases.is_held(rig.held)) == (ME, True)


# 3.5.0


@pytest.mark.parametrize(("left_s", "moved"), [(-0.001, 2), (60.0, 0)], ids=["expired", "under way"])
def test_3_5_0_an_expired_handover_does_not_hide_a_lease_from_the_balancing(left_s: float, moved: int) -> None:
    """#1765. By lease count, a lease that was once asked for counted as under way for ever, its deadline long past.

    Here four such leases are on one worker, whose heartbeats go on, and their next owner is gone.
    """
    now_s, wall_s = 5000.0, 1_800_000_000.0
    tracked = {
        f"s{n}": Tracked(
            lease=lease(f"s{n}", owner=THIRD, checkpoint_owner=ME),
            last_counter_increment_s=now_s - 1,
            handoff_deadline_s=now_s + left_s,
        )
        for n in range(4)
    }
    workers = [msgspec.structs.replace(reporting(w, Holder().clock), last_update_s=int(wall_s)) for w in (ME, OTHER)]
    plan = plan_assignment(
        tracked,
        workers,
        assignment=AssignmentSettings(strategy="LEASE_COUNT_BASED"),
        leases=LeaseSettings(),
        metrics=WorkerMetricsSettings(),
        now_s=now_s,
        wall_s=wall_s,
        balance=True,
        rng=random.Random(0),
    )
    assert [move.to for move in plan.moves].count(OTHER) == moved, plan.moves
    assert {move.kind for move in plan.moves} == ({"assign"} if moved else set())


def test_3_5_0_a_processor_that_fails_at_the_end_of_the_shard_gets_there_again() -> None:
    """#1744. A source that was restarted after the end of its shard did not know where it was, and never ended again.

    The next child goes on from the last checkpoint, sees the end and its child shards once more, and those start.
    """
    rig = Rig(script=failing("shardEnded", "exits"))
    rig.put("a", "b")
    children = rig.end_shard()
    rig.turn_until(lambda: rig.children and rig.child.ended)
    assert not rig.row.is_at_shard_end
    rig.script = failing("nothing", "exits")
    rig.finish()
    assert rig.calls == [
        ["initialize", "processRecords", "shardEnded"],
        ["initialize", "shardEnded"],
    ], "everything was checkpointed: nothing is delivered again"
    assert rig.row.is_at_shard_end
    assert set(rig.table.rows) == {SHARD, *children}


def test_3_5_0_the_keys_of_the_table_migration_are_known() -> None:
    """#1778. The daemon could not be told to migrate, nor how long to wait."""
    loaded = load(migrateAllEntitiesToLeaseTable="true", tableMigrationCompleteBakeTimeSeconds="7200")
    assert loaded.findings == ()
    coordinator = loaded.settings.coordinator
    assert (coordinator.migrate_all_entities, coordinator.complete_bake_s) == (True, 7200.0)


# 3.5.1


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT], ids=lambda fault: fault.kind)
def test_3_5_1_a_failed_checkpoint_does_not_undo_the_heartbeat_beside_it(fault: Fault) -> None:
    """#1788. What a failed update had changed in memory was undone outside the lock, and with it the counter of a
    renewal that had come in between: the next write was refused, and the lease counted as lost.

    A renewal during a checkpoint waits for its end; the failure changes nothing of what we know.
    """
    goes_on = threading.Event()
    holder = Holder()
    leases = HeldLeases(
        holder.table,
        ME,
        LeaseSettings(),
        holder.clock,
        lambda: "token",
        lambda held, reason: holder.lost.append((held, reason)),
        lambda: NoticedLock(goes_on),
    )
    holder.table.put(lease())
    held = leases.add(lease(), holder.clock.monotonic())
    assert held is not None
    outcomes: list[str] = []
    was_first: list[bool] = []

    def renew() -> None:
        outcomes.append(leases.renew(held, 30.0))
        goes_on.set()  # It has not waited: what follows must fail, not hang.

    renewal = threading.Thread(target=renew)

    def fail(operation: str, key: str) -> Fault | None:
        if operation != "checkpoint":
            return None
        if not renewal.ident:
            renewal.start()
            assert goes_on.wait(30)
            was_first.append(not outcomes)
        return fault

    holder.table.faults = fail
    assert leases.checkpoint(held, SEVEN).error is not None
    renewal.join(30)
    assert (was_first, outcomes) == ([True], ["renewed"])
    assert held.lease == holder.table.rows["s1"] == lease(counter=4)
    holder.table.faults = lambda operation, key: None
    assert leases.checkpoint(held, SEVEN).error is None
    assert holder.table.rows["s1"] == lease(counter=5, checkpoint=SEVEN)
    assert holder.lost == []


def test_3_5_1_a_worker_works_however_long_its_index_takes() -> None:
    """#1786 #1790. A table that was found without its index: after ten minutes of waiting for it a worker started
    half, took no leases, and only a restart helped.

    Until the index is ACTIVE a scan stands in for it, at most every ten seconds, and none after that.
    """
    scene = Scene(shards=3)
    first = scene.start("a")
    scene.until(lambda: scene.settled("a"), limit_s=60)
    scene.fleet.kill(first)
    table = scene.fleet.lease_table
    table.index_active_at_s = scene.now_s + 4000.0
    other = scene.start("b")
    second = scene.start("a")
    scene.until(lambda: scene.settled("a", "b"), limit_s=300)
    scene.run(table.index_active_at_s - scene.now_s + 60.0)
    assert second.alive and other.alive and scene.settled("a", "b")
    requests = len(scene.requests)
    scene.run(600.0)
    (leader,) = [w.worker_id for w in (second, other) if w.supervisor.is_leader]
    assert {who for _, who, what in scene.requests[requests:] if what == "list_leases"} <= {leader}


def test_3_5_1_rows_that_are_no_leases_hurt_no_application_of_many_streams() -> None:
    """#1792. With metadata in the lease table, every scan of an application of many streams failed at the first row
    that had no stream.
    """
    stream = StreamIdentifier(name="orders", account="123456789012", epoch=1700000000)
    item: dict[str, Any] = {
        "leaseKey": {"S": f"{stream}:{SHARD}"},
        "leaseCounter": {"N": "3"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "5"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "streamName": {"S": str(stream)},
        "shardId": {"S": SHARD},
        "entityType": {"S": "LEASE"},
    }
    others = [
        {"leaseKey": {"S": "Leader"}, "ownerName": {"S": "a"}, "entityType": {"S": "LEADER"}},
        {"leaseKey": {"S": "w"}, "lut": {"N": "1"}, "entityType": {"S": "WORKER_METRIC_STATS"}},
        {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "X"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"}},
    ]
    table, _ = scripted(Reply({"Items": [others[0], item, *others[1:]]}), Reply({"Item": others[0]}))
    listing = table.list_leases()
    (found,) = listing.leases
    assert (found.shard_id, found.stream_name, found.checkpoint) == (SHARD, str(stream), ExtendedSequenceNumber("5"))
    assert (listing.undecodable, len(listing.entity_types)) == ((), 4)
    assert table.get("Leader") is None
