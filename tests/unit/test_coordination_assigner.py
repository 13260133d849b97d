"""The leader's assignment pass over one set of tables, with two workers (spec coordination 4, lease-table 9 and 10)."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, LockSettings, WorkerMetricsSettings
from kcl_host.coordination.discovery import Discovery
from kcl_host.coordination.election import Election
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.leader import Assigner
from kcl_host.coordination.renewal import Renewal
from kcl_host.errors import AccessError, RetryLater
from kcl_host.model.lease import Lease
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault, FaultPlan, no_faults
from tests.fakes.lease_table import InMemoryLeaseTable, no_lag
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable
from tests.unit.coordination_rig import ME, OTHER, THIRD, always, befall, before, lease, reporting

HEARTBEAT_S = 10.0 / 3
INTERVAL_S = 20.0


class Fleet:
    """The tables, and workers of which each has its own turns on one clock. `watch` sees every write of a lease."""

    def __init__(self, *worker_ids: str) -> None:
        self.clock = FakeClock()
        self.leases = InMemoryLeaseTable(self.clock)
        self.metrics = InMemoryWorkerMetricsTable(self.clock)
        self.lock = InMemoryCoordinatorTable(self.clock)
        self.versions = (f"v{n}" for n in itertools.count())
        self.workers: dict[str, FleetWorker] = {}
        for worker_id in worker_ids:
            self.start(worker_id)

    def start(self, worker_id: str) -> FleetWorker:
        self.report(worker_id)
        worker = self.workers[worker_id] = FleetWorker(worker_id, self)
        return worker

    def report(self, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            self.metrics.rows[worker_id] = reporting(worker_id, self.clock)

    def live(self, seconds: float) -> None:
        until_s = self.clock.monotonic() + seconds
        turns = 0
        while True:
            due = [
                (at_s, worker_id, name)
                for worker_id, w in self.workers.items()
                for name, at_s in sorted(w.due_s.items())
            ]
            at_s, worker_id, name = min(due, default=(until_s + 1, "", ""))
            if at_s > until_s:
                break
            self.clock.advance(max(0.0, at_s - self.clock.monotonic()))
            self.workers[worker_id].turn(name)
            turns += 1
            assert turns <= 40 * len(self.workers) * (seconds + 2), "no loop may spin"  # Half of it are renewals.
            if name == "renewal":
                continue  # Many turns, and what they lose is seen with the next turn of any other kind.
            assert sum(w.election.is_leader() for w in self.workers.values()) <= 1
            for lease_key in self.leases.rows:
                assert sum(w.believes_to_hold(lease_key) for w in self.workers.values()) <= 1
        self.clock.advance(max(0.0, until_s - self.clock.monotonic()))

    def owners(self) -> dict[str, str | None]:
        return {key: row.actual_owner for key, row in self.leases.rows.items()}


class FleetWorker:
    def __init__(self, worker_id: str, fleet: Fleet) -> None:
        self.fleet = fleet
        self.found: list[str] = []
        leases, clock = LeaseSettings(), fleet.clock
        tokens = (f"{worker_id}-{n}" for n in itertools.count())
        self.held_leases = HeldLeases(
            fleet.leases, worker_id, leases, clock, lambda: next(tokens), lambda held, reason: None
        )
        self.due_s: dict[str, float] = {}
        self.election = Election(
            fleet.lock, worker_id, LockSettings(), clock, lambda: next(fleet.versions), on_change=self.wake_lead
        )
        self.worker_id = worker_id
        self.assigner = an_assigner(self)
        self.discovery = Discovery(
            fleet.leases,
            self.held_leases,
            worker_id,
            leases,
            AssignmentSettings(),
            clock,
            lambda: self.assigner.active_workers == {worker_id},
            lambda held: self.found.append(held.lease_key),
        )
        self.renewal = Renewal(
            self.held_leases,
            leases,
            clock,
            lambda renew, all_held: [renew(h) for h in all_held] and None,
            self.hand_over,
        )
        self.turns = {
            "report": lambda: fleet.report(worker_id) or 30.0,
            "election": self.election.run_once,
            "lead": lambda: self.assigner.run_once(),
            "renewal": self.renewal.run_once,
            "discovery": self.discovery.run_once,
        }
        self.due_s = dict.fromkeys(self.turns, clock.monotonic())

    def wake_lead(self) -> None:
        if "lead" in self.due_s:
            self.due_s["lead"] = self.fleet.clock.monotonic()

    def take_up(self, row: Lease, read_at_s: float) -> None:
        self.discovery.take_up(row, read_at_s)

    def hand_over(self, held: HeldLease) -> None:
        self.held_leases.give_away(held)

    def turn(self, name: str) -> None:
        try:
            pause_s = self.turns[name]()
        except RetryLater:
            pause_s = 1.0
        self.due_s[name] = self.fleet.clock.monotonic() + pause_s

    def lead_now(self) -> None:
        self.election.run_once()
        assert self.election.is_leader()

    def believes_to_hold(self, lease_key: str) -> bool:
        held = self.held_leases.get(lease_key)
        return held is not None and self.held_leases.is_held(held)


def an_assigner(worker: FleetWorker, **options: Any) -> Assigner:
    return Assigner(
        worker.election,
        worker.fleet.leases,
        worker.fleet.metrics,
        worker.worker_id,
        AssignmentSettings(),
        LeaseSettings(),
        WorkerMetricsSettings(),
        worker.fleet.clock,
        random.Random(1),
        on_assigned_to_self=lambda row, read_at_s: worker.take_up(row, read_at_s),
        **options,
    )


def a_fleet(*worker_ids: str, leases: tuple[Lease, ...] = ()) -> Fleet:
    fleet = Fleet(*worker_ids)
    for row in leases:
        fleet.leases.put(row)
    return fleet


def unowned(count: int) -> tuple[Lease, ...]:
    return tuple(lease(f"s{n}", owner=None, counter=0) for n in range(count))


# One worker


def test_the_first_pass_gives_unassigned_leases_to_oneself_and_they_are_held_at_once() -> None:
    fleet = a_fleet(ME, leases=unowned(3))
    worker = fleet.workers[ME]
    worker.lead_now()
    assert worker.assigner.run_once() == 20.0
    assert fleet.owners() == dict.fromkeys(("s0", "s1", "s2"), ME)
    assert worker.found == ["s0", "s1", "s2"]
    assert "lease_keys_of" not in fleet.leases.requests
    assert worker.assigner.active_workers == {ME}


def test_what_one_assigned_to_oneself_is_as_old_as_the_request() -> None:
    fleet = a_fleet(ME, leases=unowned(1))
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = befall("assign", Fault(before_s=1.0, after_s=1.0))
    sent_at_s = fleet.clock.monotonic()
    worker.assigner.run_once()
    assert worker.held_leases.all()[0].last_renewed_s == sent_at_s


def test_one_worker_and_one_shard_cost_what_java_pays_and_the_stated_allowance() -> None:
    """Java: one scan of each table per 20 s, one query per 9.975 s, one renewal per 3.308 s."""
    fleet = a_fleet(ME, leases=unowned(1))
    fleet.live(60.0)
    for table in (fleet.leases, fleet.metrics, fleet.lock):
        table.requests.clear()  # type: ignore[attr-defined]
    fleet.live(3600.0)
    leases = fleet.leases.requests
    assert leases["list_leases"] <= 181
    assert leases["lease_keys_of"] <= 362
    assert leases["renew"] <= 1090
    assert leases["get"] == leases["assign"] == leases["evict"] == 0
    assert fleet.metrics.requests["list_workers"] <= 181
    assert fleet.lock.requests["heartbeat_lock"] <= 1081  # The allowance: a third of failoverTimeMillis.
    assert fleet.lock.requests["read_lock"] == 0


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_an_assignment_without_an_answer_is_settled_by_the_next_pass(fault: Fault) -> None:
    fleet = a_fleet(ME, leases=unowned(2))
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = befall("assign", fault)
    assert worker.assigner.run_once() == 2.0
    assert worker.found == ["s1"], "the other write of the pass was made all the same"
    fleet.live(15.0)
    assert fleet.owners() == {"s0": ME, "s1": ME}
    assert sorted(fleet.workers[ME].found) == ["s0", "s1"]


@pytest.mark.parametrize("operation", ["list_leases", "list_workers"])
def test_a_failed_pass_is_repeated_soon_and_three_of_them_end_the_lead(operation: str) -> None:
    fleet = a_fleet(ME, leases=unowned(1))
    worker = fleet.workers[ME]
    worker.lead_now()
    table = fleet.leases if operation == "list_leases" else fleet.metrics
    table.faults = always(operation, THROTTLED)
    assert [worker.assigner.run_once() for _ in range(3)] == [2.0, 4.0, 6.0]
    assert not worker.election.is_leader()
    assert fleet.lock.lock is None
    worker.election.run_once()
    assert not worker.election.is_leader(), "somebody else's turn, for one interval"
    table.faults = no_faults
    fleet.live(30.0)
    assert fleet.owners() == {"s0": ME}


def test_two_failures_and_a_success_start_the_count_anew() -> None:
    fleet = a_fleet(ME)
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = befall("list_leases", THROTTLED, THROTTLED, None, THROTTLED, THROTTLED)
    for _ in range(5):
        worker.assigner.run_once()
    assert worker.election.is_leader()


def test_a_leader_without_the_permission_to_lead_says_so_and_steps_back() -> None:
    fleet = a_fleet(ME)
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.metrics.faults = always("list_workers", Fault("refused"))
    for _ in range(3):
        with pytest.raises(AccessError):
            worker.assigner.run_once()
    assert not worker.election.is_leader()


def test_broken_rows_do_not_fail_the_pass() -> None:
    fleet = a_fleet(ME, leases=unowned(1))
    fleet.leases.undecodable = ("broken",)
    fleet.metrics.undecodable.append("broken too")
    fleet.live(1.0)
    assert fleet.owners() == {"s0": ME}


def test_rows_of_workers_long_gone_are_deleted_and_a_failure_of_that_is_none() -> None:
    fleet = a_fleet(ME)
    fleet.metrics.rows[OTHER] = msgspec.structs.replace(
        reporting(OTHER, fleet.clock), last_update_s=int(fleet.clock.wall()) - 86_401
    )
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.metrics.faults = befall("delete_if_unchanged", THROTTLED)
    assert worker.assigner.run_once() == 20.0
    assert OTHER in fleet.metrics.rows
    assert worker.assigner.run_once() == 20.0
    assert OTHER not in fleet.metrics.rows


# Fencing


def test_a_follower_writes_nothing_and_asks_nothing() -> None:
    fleet = a_fleet(ME, leases=unowned(1))
    worker = fleet.workers[ME]
    assert worker.assigner.run_once() == 1.0
    assert fleet.leases.requests == {}
    assert worker.assigner.active_workers == frozenset()


def test_a_plan_is_abandoned_where_the_lock_ends() -> None:
    """The lock is looked at before every write, and its age counts from before the heartbeat."""
    fleet = a_fleet(ME, leases=unowned(4))
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = always("assign", Fault(before_s=3.0))
    last_write_s: list[float] = []
    fleet.leases.watch = lambda operation, old, new: last_write_s.append(fleet.clock.monotonic())
    taken_s = fleet.clock.monotonic()
    worker.assigner.run_once()
    assert fleet.leases.requests["assign"] == 3
    assert list(fleet.owners().values()).count(ME) == 3
    assert last_write_s[-1] - taken_s <= 10.0, "no write takes effect when the lock may be somebody else's"
    assert worker.assigner.run_once() == 1.0
    assert fleet.leases.requests["list_leases"] == 1


def test_a_lock_lost_during_the_load_stops_the_plan_before_its_first_write() -> None:
    fleet = a_fleet(ME, leases=unowned(4))
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = befall("list_leases", Fault(after_s=10.1))
    worker.assigner.run_once()
    assert fleet.leases.requests["assign"] == 0


@pytest.mark.parametrize("operation", ["list_leases", "list_workers", "assign"])
@pytest.mark.parametrize("hangs_s", [5.0, 10.0, 30.0])
@pytest.mark.parametrize("leases", [0, 8])
def test_nothing_is_written_after_the_lock_went_stale_however_long_a_call_hangs(
    operation: str, hangs_s: float, leases: int
) -> None:
    fleet = a_fleet(ME, leases=unowned(leases))
    stale = msgspec.structs.replace(reporting(OTHER, fleet.clock), last_update_s=int(fleet.clock.wall()) - 86_401)
    fleet.metrics.rows[OTHER] = stale
    worker = fleet.workers[ME]
    worker.lead_now()
    late: list[str] = []
    hung = iter((None, Fault(before_s=0.1, after_s=hangs_s)) if operation == "assign" else (Fault(after_s=hangs_s),))

    def plan(asked: str, key: str) -> Fault | None:
        if asked in ("assign", "delete_if_unchanged") and not worker.election.is_leader():
            late.append(asked)
        return next(hung, None) if asked == operation else None

    fleet.leases.faults = fleet.metrics.faults = plan
    worker.assigner.run_once()
    assert late == []
    if operation != "assign":
        assert (OTHER in fleet.metrics.rows) == (hangs_s > 5.0)
        assert (None in fleet.owners().values()) == (hangs_s > 5.0 and leases > 0)
    worker.turn("election")
    for _ in range(4):
        worker.assigner.run_once()
        fleet.clock.advance(1.0)
    assert late == []


# The pass


def test_the_moves_of_a_pass_are_written_together_and_a_failure_does_not_stop_the_others() -> None:
    together: list[int] = []

    def several_at_once(act: Any, moves: Any) -> None:
        moves = list(moves)
        together.append(len(moves))
        for move in reversed(moves):
            act(move)

    fleet = a_fleet(ME, leases=unowned(25))
    worker = fleet.workers[ME]
    worker.assigner = an_assigner(worker, for_each=several_at_once)
    worker.lead_now()
    fleet.leases.faults = befall("assign", THROTTLED, TIMED_OUT)
    assert worker.assigner.run_once() == 2.0
    assert together == [10, 10, 5], "a renewal must not wait behind a whole plan"
    assert fleet.leases.requests["assign"] == 25
    assert list(fleet.owners().values()).count(None) == 2
    fleet.clock.advance(2.0)
    assert worker.assigner.run_once() == 20.0
    assert set(fleet.owners().values()) == {ME}


def test_moves_written_by_threads_are_all_noted() -> None:
    fleet = a_fleet(ME, leases=unowned(40))
    worker = fleet.workers[ME]
    with ThreadPoolExecutor(8) as pool:
        worker.assigner = an_assigner(worker, for_each=lambda act, moves: [*pool.map(act, moves)] and None)
        worker.lead_now()
        worker.assigner.run_once()
        assert set(fleet.owners().values()) == {ME}
        assert sorted(worker.found) == sorted(fleet.leases.rows)
        fleet.clock.advance(15.0)
        worker.election.run_once()
        worker.election.run_once()


def test_a_refused_move_fails_nothing() -> None:
    fleet = a_fleet(ME, leases=unowned(2))
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = before("assign", lambda: fleet.leases.put(lease("s0", owner=THIRD, counter=5)))
    assert worker.assigner.run_once() == pytest.approx(1.75), "the row as it was shows somebody to be watched"
    assert fleet.owners() == {"s0": THIRD, "s1": ME}


def test_a_turn_before_its_time_is_a_pass() -> None:
    """So whoever knows of new leases need only wake the thread."""
    fleet = a_fleet(ME)
    worker = fleet.workers[ME]
    worker.lead_now()
    assert worker.assigner.run_once() == 20.0
    fleet.leases.put(lease("new", owner=None, counter=0))
    fleet.clock.advance(5.0)
    worker.election.run_once()
    assert worker.assigner.run_once() == 20.0
    assert fleet.owners() == {"new": ME}


# Two workers


def test_leases_are_shared_and_each_has_one_holder() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(6))
    fleet.live(120.0)
    owners = list(fleet.owners().values())
    assert owners.count(ME) == owners.count(OTHER) == 3
    assert sorted(key for w in fleet.workers.values() for key in w.found) == sorted(set(fleet.leases.rows))


@pytest.mark.parametrize("kbps", [None, 100.0])
def test_a_worker_that_joins_has_its_half_within_two_passes(kbps: float | None) -> None:
    fleet = a_fleet(ME, leases=[msgspec.structs.replace(row, throughput_kbps=kbps) for row in unowned(10)])
    fleet.live(70.0)
    fleet.start(OTHER)
    # An owner learns with its next renewal that a lease shall move.
    fleet.live(2 * INTERVAL_S + LeaseSettings().renewal_interval_s)
    owners = list(fleet.owners().values())
    assert owners.count(ME) == owners.count(OTHER) == 5
    fleet.live(200.0)
    assert list(fleet.owners().values()) == owners, "and that is all"


def test_a_worker_that_starts_again_under_its_old_name_is_a_newcomer() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(10))
    fleet.live(60.0)
    del fleet.workers[OTHER]
    fleet.live(40.0)
    assert set(fleet.owners().values()) == {ME}
    fleet.start(OTHER)
    fleet.live(2 * INTERVAL_S + 1.0)
    assert list(fleet.owners().values()).count(OTHER) == 5


def test_a_follower_discovers_each_second() -> None:
    fleet = a_fleet(ME, OTHER)
    fleet.live(5.0)
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    fleet.live(100.0)
    # ME leads and knows of OTHER; both are in company.
    assert 190 <= fleet.leases.requests["lease_keys_of"] <= 210


def seconds_until_moved(fleet: Fleet, dead: str) -> float:
    """Kills a worker: the time from then until nothing is its own any more."""
    del fleet.workers[dead]
    crashed_s = fleet.clock.monotonic()
    while dead in fleet.owners().values():
        fleet.live(0.05)
        assert fleet.clock.monotonic() - crashed_s < 60.0
    return fleet.clock.monotonic() - crashed_s


def slow(operation: str, key: str) -> Fault:
    return Fault(before_s=0.01, after_s=0.01)


OFFSETS_S = [n * 0.34 for n in range(11)]


@pytest.mark.parametrize("faults", [no_faults, slow], ids=["at once", "20 ms a request"])
@pytest.mark.parametrize("offset_s", OFFSETS_S)
def test_the_leases_of_a_crashed_worker_move_when_they_have_expired(offset_s: float, faults: FaultPlan) -> None:
    """Failover time + 3 s from the crash, whenever that is in the cycle of renewals, and never before they expire."""
    fleet = a_fleet(ME, OTHER, leases=unowned(6))
    fleet.live(60.0 + offset_s)
    for table in (fleet.leases, fleet.metrics):
        table.faults = faults
    fleet.live(10.0)
    renewed_s = min(h.last_renewed_s for h in fleet.workers[OTHER].held_leases.all())
    assert list(fleet.owners().values()).count(OTHER) == 3
    crashed_s = fleet.clock.monotonic()
    assert seconds_until_moved(fleet, OTHER) <= 10.0 + 3.0
    assert fleet.clock.monotonic() - renewed_s > 10.0
    assert crashed_s - renewed_s <= 3.4
    fleet.live(2.0)
    assert len(fleet.workers[ME].held_leases.all()) == 6


@pytest.mark.parametrize("offset_s", OFFSETS_S[::3])
def test_where_a_scan_is_too_dear_a_crash_shows_by_the_silence_of_one_lease(offset_s: float) -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(300))
    fleet.live(40.0 + offset_s)
    assert list(fleet.owners().values()).count(OTHER) == 150
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    dead = fleet.workers.pop(OTHER)
    fleet.live(9.0)
    assert fleet.workers[ME].assigner.doubtful_workers() == {OTHER}
    fleet.workers[OTHER] = dead
    assert seconds_until_moved(fleet, OTHER) <= 10.0 + 5.5 - 9.0
    assert 3 <= fleet.leases.requests["list_leases"] + fleet.leases.requests["get_all"] <= 25


def test_a_worker_that_was_killed_is_given_nothing_although_its_metrics_are_fresh() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    del fleet.workers[OTHER]
    fleet.live(41.0)
    assert fleet.clock.wall() - (fleet.metrics.rows[OTHER].last_update_s or 0) < 60.0
    assert set(fleet.owners().values()) == {ME}
    given: list[Lease | None] = []
    fleet.leases.watch = lambda operation, old, new: given.append(new) if new and new.lease_owner == OTHER else None
    fleet.live(120.0)
    assert given == []


@pytest.mark.parametrize("dead_for_s", [5.5, 7.0])
def test_a_worker_that_missed_its_renewals_is_given_nothing_until_it_is_known_to_live(dead_for_s: float) -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    sleeper = fleet.workers.pop(OTHER)
    fleet.live(dead_for_s)
    fleet.leases.put(lease("new0", owner=None, counter=0))
    fleet.leases.put(lease("new1", owner=None, counter=0))
    assert fleet.workers[ME].assigner.doubtful_workers() == {OTHER}
    fleet.workers[ME].wake_lead()
    fleet.live(0.0)
    assert fleet.owners()["new0"] == fleet.owners()["new1"] == ME
    assert fleet.workers[ME].assigner.active_workers == {ME, OTHER}
    fleet.workers[OTHER] = sleeper
    fleet.live(2.0)
    fleet.leases.put(lease("new2", owner=None, counter=0))
    fleet.live(2.0)
    assert fleet.owners()["new2"] == OTHER
    assert fleet.workers[ME].assigner.doubtful_workers() == frozenset()


def test_when_our_own_renewals_fail_too_the_fault_is_the_tables() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    fleet.leases.faults = always("renew", THROTTLED)
    fleet.live(6.0)
    for n in range(2):
        fleet.leases.put(lease(f"new{n}", owner=None, counter=0))
    fleet.workers[ME].wake_lead()
    fleet.live(0.0)
    assert {fleet.owners()["new0"], fleet.owners()["new1"]} == {ME, OTHER}


def test_a_lease_just_assigned_has_a_whole_interval_until_it_must_move() -> None:
    """A Java worker needs up to 13.3 s to discover and to renew it; a pass may come at any time."""
    fleet = a_fleet(ME, leases=(lease("s0", owner=None, counter=0),))
    fleet.report(OTHER)
    fleet.metrics.rows[ME] = reporting(ME, fleet.clock, properties={"state": "TERMINATING"})
    worker = fleet.workers[ME]
    del worker.due_s["report"], worker.due_s["lead"]
    worker.lead_now()
    worker.assigner.run_once()
    assert fleet.owners() == {"s0": OTHER}
    fleet.report(THIRD)
    fleet.live(15.0)
    worker.assigner.run_once()
    assert fleet.owners() == {"s0": OTHER}
    fleet.live(5.1)
    worker.assigner.run_once()
    assert fleet.owners() == {"s0": THIRD}


@pytest.mark.parametrize("offset_s", OFFSETS_S)
@pytest.mark.parametrize("faults", [no_faults, slow], ids=["at once", "20 ms a request"])
def test_after_the_crash_of_the_leader_the_observation_starts_before_the_lock_expires(
    offset_s: float, faults: FaultPlan
) -> None:
    """Java grants everybody a fresh period after that; here the two run side by side: failover time + 6 s."""
    fleet = a_fleet(ME, OTHER, THIRD, leases=unowned(6))
    fleet.workers[OTHER].due_s["election"] += offset_s
    fleet.workers[THIRD].due_s["election"] += 1.2 * offset_s
    fleet.live(60.0 + 1.3 * offset_s)
    assert fleet.workers[ME].election.is_leader()
    for table in (fleet.leases, fleet.metrics, fleet.lock):
        table.faults = faults
    fleet.live(10.0)
    assert seconds_until_moved(fleet, ME) <= 10.0 + 6.0
    assert [w.election.is_leader() for w in fleet.workers.values()].count(True) == 1


def test_an_observation_made_while_another_leads_well_is_not_kept() -> None:
    fleet = a_fleet(ME, OTHER, leases=(lease("s0", owner=THIRD),))
    fleet.live(1.0)
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    follower = fleet.workers[OTHER]
    for _ in range(10):
        assert follower.assigner.run_once() == 1.0
    assert fleet.leases.requests["list_leases"] == 0


def test_a_new_leader_grants_every_owner_a_full_period_and_looks_again_just_after_it() -> None:
    fleet = a_fleet(ME, leases=(lease("s0", owner=THIRD),))
    worker = fleet.workers[ME]
    worker.lead_now()
    assert worker.assigner.run_once() == pytest.approx(1.75)
    fleet.live(10.0)
    assert fleet.owners() == {"s0": THIRD}
    fleet.live(0.2)
    assert fleet.owners() == {"s0": ME}


@pytest.mark.parametrize("writes", range(5))
def test_a_leader_killed_in_the_middle_of_a_pass(writes: int) -> None:
    """Whatever part of a pass was written, the next leader brings it to an end and every lease gets one holder."""
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    leader = fleet.workers[ME]
    leader.lead_now()
    left = [None] * writes

    class Killed(Exception):
        pass

    def kill(operation: str, key: str) -> None:
        if operation == "assign":
            if not left:
                raise Killed
            left.pop()

    fleet.leases.faults = kill
    if writes < 4:
        with pytest.raises(Killed):
            leader.assigner.run_once()
    else:
        leader.assigner.run_once()
    fleet.leases.faults = no_faults
    del fleet.workers[ME]
    fleet.live(60.0)
    assert set(fleet.owners().values()) == {OTHER}
    assert len(fleet.workers[OTHER].held_leases.all()) == 4


def test_a_leader_killed_after_it_announced_a_handover_is_not_needed_for_it() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(1))
    fleet.live(10.0)
    (holder,) = [w for w in fleet.workers.values() if w.held_leases.all()]
    (target,) = [w for w in fleet.workers if fleet.workers[w] is not holder]
    assert fleet.leases.initiate_handoff(fleet.leases.rows["s0"], target).applied
    for worker in fleet.workers.values():
        del worker.due_s["lead"], worker.due_s["election"]
    fleet.live(6.0)
    assert fleet.owners() == {"s0": target}
    assert fleet.workers[target].believes_to_hold("s0")
    assert not holder.held_leases.all()


# The watch: what it costs, and what does not deceive it


def test_a_leader_that_is_alone_watches_nobody() -> None:
    fleet = a_fleet(ME, leases=unowned(3))
    fleet.live(5.0)
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    fleet.live(200.0)
    assert fleet.leases.requests["list_leases"] <= 11
    assert fleet.leases.requests["get_all"] == 0


@pytest.mark.parametrize(
    "workers, leases, most_units",
    # By scans, 0.5 for each 4 KiB; by name, 0.5 for each other worker; and the scans of the passes.
    [(2, 4, 1029), (2, 10, 1029), (20, 200, 1029 * 20), (2, 300, 1029 + 181 * 15), (20, 300, 1029 * 19 + 181 * 15)],
)
def test_what_the_leader_reads_in_an_hour(workers: int, leases: int, most_units: float) -> None:
    fleet = a_fleet(leases=unowned(0))
    rows = {n: lease(f"s{n:03d}", owner=f"w{n % workers:02d}", counter=1) for n in range(leases)}
    for row in rows.values():
        fleet.leases.put(row)
    leader = fleet.start("w00")
    leader.due_s.pop("discovery")
    leader.lead_now()
    leader.due_s["renew the others"] = fleet.clock.monotonic()

    def renew_the_others() -> float:
        fleet.report(*(f"w{n:02d}" for n in range(workers)))
        for n, row in rows.items():
            rows[n] = msgspec.structs.replace(row, lease_counter=row.lease_counter + 1)
            fleet.leases.put(rows[n])
        return 3.308

    leader.turns["renew the others"] = renew_the_others
    fleet.live(30.0)
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    fleet.leases.read_units.clear()
    fleet.live(300.0)
    assert fleet.leases.requests["assign"] == 0
    assert most_units * 0.8 <= sum(fleet.leases.read_units.values()) * 12 <= most_units * 1.06


def test_nothing_is_balanced_before_every_owner_was_seen_to_renew() -> None:
    fleet = a_fleet(ME, leases=tuple(lease(f"s{n}", owner=OTHER) for n in range(6)))
    fleet.report(OTHER)
    worker = fleet.workers[ME]
    worker.lead_now()
    worker.assigner.run_once()
    assert fleet.leases.requests["initiate_handoff"] == 0
    fleet.clock.advance(3.0)
    for row in fleet.leases.rows.values():
        assert fleet.leases.renew(row, None).applied
    worker.assigner.run_once()
    worker.assigner.run_once()
    assert fleet.leases.requests["initiate_handoff"] == 3


def test_what_was_seen_in_an_earlier_lead_does_not_count() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    leader = fleet.workers[ME]
    assert leader.assigner.doubtful_workers() == frozenset()
    leader.election.release(pause_s=5.0)
    fleet.live(4.0)
    assert fleet.workers[OTHER].election.is_leader()
    fleet.workers[OTHER].election.release()
    fleet.workers[OTHER].due_s.pop("renewal")
    fleet.live(4.0)
    assert leader.election.is_leader()
    assert leader.assigner.doubtful_workers() == {OTHER}


def test_a_policy_made_for_java_does_not_allow_batches_and_is_enough() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(300))
    fleet.leases.faults = always("get_all", Fault("refused"))
    fleet.live(40.0)
    assert seconds_until_moved(fleet, OTHER) <= 10.0 + 5.5
    assert fleet.leases.requests["get_all"] == 1
    assert fleet.leases.requests["get"] > 0


def moved(fleet: Fleet) -> list[str]:
    """Notes the leases that change hands from now on."""
    moves: list[str] = []
    fleet.leases.watch = lambda operation, old, new: (
        moves.append(new.lease_key) if old and new and old.actual_owner != new.actual_owner else None
    )
    return moves


@pytest.mark.parametrize("kept_lock", [False, True])
@pytest.mark.parametrize("asleep_s", [9.0, 12.0, 25.0, 200.0])
@pytest.mark.parametrize("phase_s", [0.0, 0.8, 1.6, 2.4])
def test_a_leader_that_slept_takes_nobody_for_dead(asleep_s: float, kept_lock: bool, phase_s: float) -> None:
    """Whole, or only the thread that leads; nobody else is there to take over the lead meanwhile."""
    fleet = a_fleet(ME, OTHER, leases=unowned(6))
    fleet.live(60.0 + phase_s)
    fleet.workers[OTHER].due_s.pop("election")
    leader = fleet.workers[ME]
    for name in ("lead",) if kept_lock else ("lead", "election", "discovery"):
        leader.due_s[name] += asleep_s
    moves = moved(fleet)
    fleet.live(asleep_s + 60.0)
    assert leader.election.is_leader()
    assert moves == []


@pytest.mark.parametrize("after_s", [3.0, 9.0])
@pytest.mark.parametrize("operation", ["list_leases", "list_workers", "get_all"])
@pytest.mark.parametrize("leases", [6, pytest.param(300, marks=pytest.mark.interop)])
def test_an_answer_that_was_long_in_coming_does_not_age_the_leases_it_shows(
    operation: str, after_s: float, leases: int
) -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(leases))
    fleet.live(61.0)
    asleep = fleet.workers[OTHER]
    asleep.due_s["renewal"] += 5.0
    moves = moved(fleet)
    fleet.leases.faults = fleet.metrics.faults = befall(operation, *[Fault(after_s=after_s)] * 3)
    asleep.due_s.pop("election")
    fleet.live(5.0)
    fleet.leases.faults = fleet.metrics.faults = no_faults
    asleep.turn("renewal")
    fleet.live(60.0)
    assert [key for key in moves if fleet.leases.rows[key].actual_owner == ME] == []


def test_a_renewal_may_be_as_young_as_the_answer_that_shows_it() -> None:
    fleet = a_fleet(ME, leases=(lease("s0", owner=OTHER),))
    worker = fleet.workers[ME]
    worker.lead_now()
    worker.assigner.run_once()
    fleet.clock.advance(1.75)

    def renewed_on_the_way() -> None:
        fleet.clock.advance(4.0)
        fleet.leases.put(lease("s0", owner=OTHER, counter=4))

    fleet.leases.faults = before("list_leases", renewed_on_the_way)
    for pause_s in (0.0, 5.0, 4.9):
        fleet.clock.advance(pause_s)
        worker.election.run_once()
        worker.assigner.run_once()
    assert fleet.owners() == {"s0": OTHER}
    fleet.clock.advance(0.2)
    worker.assigner.run_once()
    assert fleet.owners() == {"s0": ME}


@pytest.mark.parametrize("slow", ["list_leases", "list_workers"])
def test_a_read_proves_nothing_about_the_time_after_it_was_sent(slow: str) -> None:
    fleet = a_fleet(ME, leases=(lease("s0", owner=OTHER),))
    worker = fleet.workers[ME]
    worker.lead_now()
    worker.assigner.run_once()
    fleet.clock.advance(6.0)
    worker.election.run_once()
    fleet.clock.advance(3.8)
    assert worker.assigner.run_once() == pytest.approx(0.25)
    fleet.clock.advance(0.1)
    fleet.leases.faults = fleet.metrics.faults = befall(slow, Fault(after_s=1.0))
    worker.assigner.run_once()
    assert fleet.owners() == {"s0": OTHER}
    worker.assigner.run_once()
    assert fleet.owners() == {"s0": ME}


@pytest.mark.parametrize(
    "leases, lag_s", [(6, 2.0), (6, 6.0), (6, 12.0), (6, 30.0), pytest.param(300, 12.0, marks=pytest.mark.interop)]
)
def test_stale_reads_do_not_let_a_lease_expire(leases: int, lag_s: float) -> None:
    """However old: before a lease is moved its row is read consistently."""
    fleet = a_fleet(ME, OTHER, leases=unowned(leases))
    fleet.live(60.0)
    moves = moved(fleet)
    began_s = fleet.clock.monotonic()
    # What stops: every eventually consistent read shows the rows as they were at one moment, up to lag_s ago.
    fleet.leases.lag = lambda read, key: min(fleet.clock.monotonic() - began_s, lag_s)
    fleet.live(lag_s + 30.0)
    fleet.leases.lag = no_lag
    fleet.live(60.0)
    assert moves == []


@pytest.mark.parametrize("step_s", [-86_400.0, -3600.0, -59.0, 25.0, 59.0, 3600.0, 90_000.0])
def test_a_step_of_the_leaders_wall_clock_moves_nothing(step_s: float) -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(6))
    fleet.live(60.0)
    moves = moved(fleet)
    lead = fleet.workers[ME].turns["lead"]

    def turn() -> float:
        fleet.clock.wall_skew_s = step_s
        try:
            return lead()
        finally:
            fleet.clock.wall_skew_s = 0.0

    fleet.workers[ME].turns["lead"] = turn
    fleet.live(120.0)
    assert moves == []


def test_a_worker_that_slept_gets_leases_again_once_it_is_heard_of() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(6))
    fleet.live(60.0)
    sleeper = fleet.workers.pop(OTHER)
    fleet.live(25.0)
    assert set(fleet.owners().values()) == {ME}
    fleet.workers[OTHER] = sleeper
    sleeper.due_s = dict.fromkeys(sleeper.due_s, fleet.clock.monotonic())
    fleet.live(1.5)
    assert sleeper.held_leases.all() == []
    for n in range(6, 9):
        fleet.leases.put(lease(f"s{n}", owner=None, counter=0))
    fleet.live(25.0)
    assert {key for key, owner in fleet.owners().items() if owner == OTHER} >= {"s6", "s7", "s8"}


def test_what_a_worker_was_given_just_before_it_died_moves_as_soon_as_the_rest() -> None:
    """A Java worker may need a whole interval to take a lease up; a dead one does not need it."""
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    for n in range(4, 8):
        fleet.leases.put(lease(f"s{n}", owner=None, counter=0))
    deaf = fleet.workers[OTHER]
    deaf.due_s.pop("discovery")
    fleet.live(4.0)
    assert list(fleet.owners().values()).count(OTHER) == 4
    fleet.live(3.0)
    assert seconds_until_moved(fleet, OTHER) <= 10.0 + 3.0


def test_a_lease_handed_over_to_a_java_worker_has_time_to_be_discovered() -> None:
    """It queries each 9.975 s and renews up to 3.3 s later; the old owner's transfer is not the leader's write."""
    fleet = a_fleet(ME, OTHER, THIRD, leases=unowned(6))
    fleet.live(60.0)
    java = fleet.workers[THIRD]
    java.due_s["discovery"] += 13.3
    (given,) = [key for key, owner in fleet.owners().items() if owner == OTHER][:1]
    fleet.leases.initiate_handoff(fleet.leases.rows[given], THIRD)
    moves = moved(fleet)
    fleet.live(30.0)
    assert fleet.owners()[given] == THIRD
    assert moves == [given]


def test_a_lease_that_nobody_takes_up_does_not_make_a_live_worker_silent() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    deaf = fleet.workers[OTHER]
    deaf.due_s.pop("discovery")
    for n in range(4, 6):
        fleet.leases.put(lease(f"s{n}", owner=None, counter=0))
    fleet.live(3.0)
    (given,) = [key for key in ("s4", "s5") if fleet.owners()[key] == OTHER]
    given_s = fleet.clock.monotonic()
    while fleet.owners()[given] == OTHER:
        fleet.live(0.1)
        assert fleet.clock.monotonic() - given_s < 40.0
    assert fleet.clock.monotonic() - given_s > 20.0 - 3.0
    assert list(fleet.owners().values()).count(OTHER) == 2


def test_leases_that_nobody_can_take_do_not_call_for_pass_after_pass() -> None:
    fleet = a_fleet(ME, leases=tuple(lease(f"s{n}", owner=THIRD) for n in range(3)))
    worker = fleet.workers[ME]
    del worker.due_s["report"]
    fleet.metrics.rows[ME] = reporting(ME, fleet.clock, properties={"state": "TERMINATING"})
    fleet.live(30.0)
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    fleet.live(200.0)
    assert set(fleet.owners().values()) == {THIRD}
    assert fleet.leases.requests["list_leases"] <= 12
    assert fleet.leases.requests["get_all"] == 0


def test_a_watch_that_fails_is_no_failed_pass() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    fleet.workers[OTHER].due_s.pop("election")
    moves = moved(fleet)
    fleet.leases.faults = befall("list_leases", *[THROTTLED] * 5)
    fleet.live(9.0)
    assert fleet.workers[ME].election.is_leader()
    fleet.live(60.0)
    assert moves == []


def test_handing_over_to_us_is_noticed_within_the_pending_cadence() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(1))
    fleet.live(10.0)
    (holder_id,) = set(fleet.owners().values())
    target_id = OTHER if holder_id == ME else ME
    assert holder_id is not None
    fleet.leases.initiate_handoff(fleet.leases.rows["s0"], target_id)
    while not fleet.workers[target_id].believes_to_hold("s0"):
        was_pending = fleet.leases.rows["s0"].is_handover_pending
        done_at_s = fleet.clock.monotonic()
        fleet.live(0.1)
        if was_pending:
            transferred_before_s = done_at_s
    assert fleet.clock.monotonic() - transferred_before_s <= 0.5


@pytest.mark.parametrize("seed", range(12))
def test_two_workers_through_weather(seed: int) -> None:
    """Throttles, time-outs, lost answers, slow answers, sleeps and restarts; the checks are in `Fleet.live`."""
    rng = random.Random(seed)
    fleet = a_fleet(ME, OTHER, leases=unowned(5))

    def weather(operation: str, key: str) -> Fault | None:
        kind = rng.choices((None, "throttled", "timed_out", "answer_lost"), (85, 5, 5, 5))[0]
        return Fault(kind, before_s=rng.choice((0.0, 0.0, 0.05, 1.0)), after_s=rng.choice((0.0, 0.0, 0.05, 1.0)))

    for _ in range(12):
        for table in (fleet.leases, fleet.metrics, fleet.lock):
            table.faults = rng.choice((weather, no_faults))
        fleet.live(rng.uniform(1.0, 15.0))
        worker = fleet.workers[rng.choice((ME, OTHER))]
        if rng.random() < 0.3:
            asleep_s = fleet.clock.monotonic() + rng.uniform(1.0, 25.0)
            worker.due_s = dict.fromkeys(worker.due_s, asleep_s)
        elif rng.random() < 0.2:
            fleet.start(rng.choice((ME, OTHER)))
    for table in (fleet.leases, fleet.metrics, fleet.lock):
        table.faults = no_faults
    fleet.live(120.0)
    assert set(fleet.owners().values()) <= {ME, OTHER}
    held = [h.lease_key for w in fleet.workers.values() for h in w.held_leases.all() if w.held_leases.is_held(h)]
    assert sorted(held) == sorted(fleet.leases.rows)
