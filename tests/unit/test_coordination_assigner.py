"""The leader's assignment pass over one set of tables, with two workers (spec coordination 4, lease-table 9 and 10)."""

from __future__ import annotations

import itertools
import random

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
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault, no_faults
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable
from tests.unit.coordination_rig import ME, OTHER, THIRD, always, befall, lease, reporting

HEARTBEAT_S = 10.0 / 3


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
        self.election = Election(fleet.lock, worker_id, LockSettings(), clock, lambda: next(fleet.versions))
        self.assigner = Assigner(
            self.election,
            fleet.leases,
            fleet.metrics,
            worker_id,
            AssignmentSettings(),
            leases,
            WorkerMetricsSettings(),
            clock,
            random.Random(1),
            on_assigned_to_self=lambda row, read_at_s: self.take_up(row, read_at_s),
        )
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
            "lead": self.assigner.run_once,
            "renewal": self.renewal.run_once,
            "discovery": self.discovery.run_once,
        }
        self.due_s = dict.fromkeys(self.turns, clock.monotonic())

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
    fleet.leases.faults = always("assign", Fault(before_s=4.0))
    worker.assigner.run_once()
    assert fleet.leases.requests["assign"] == 3
    assert list(fleet.owners().values()).count(ME) == 3
    assert worker.assigner.run_once() == 1.0


def test_a_lock_lost_during_the_load_stops_the_plan_before_its_first_write() -> None:
    fleet = a_fleet(ME, leases=unowned(4))
    worker = fleet.workers[ME]
    worker.lead_now()
    fleet.leases.faults = befall("list_leases", Fault(after_s=10.1))
    worker.assigner.run_once()
    assert fleet.leases.requests["assign"] == 0


# Two workers


def test_leases_are_shared_and_each_has_one_holder() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(6))
    fleet.live(120.0)
    owners = list(fleet.owners().values())
    assert owners.count(ME) == owners.count(OTHER) == 3
    assert sorted(key for w in fleet.workers.values() for key in w.found) == sorted(set(fleet.leases.rows))


def test_a_follower_discovers_each_second() -> None:
    fleet = a_fleet(ME, OTHER)
    fleet.live(5.0)
    fleet.leases.requests.clear()  # type: ignore[attr-defined]
    fleet.live(100.0)
    # ME leads and knows of OTHER; both are in company.
    assert 190 <= fleet.leases.requests["lease_keys_of"] <= 210


def test_the_leases_of_a_crashed_worker_move_after_they_have_expired() -> None:
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    del fleet.workers[OTHER]
    crashed_at_s = fleet.clock.monotonic()
    while OTHER in fleet.owners().values():
        fleet.live(0.5)
    assert 10.0 < fleet.clock.monotonic() - crashed_at_s + HEARTBEAT_S
    fleet.live(2.0)
    assert len(fleet.workers[ME].held_leases.all()) == 4


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


def test_after_the_crash_of_the_leader_the_observation_starts_before_the_lock_expires() -> None:
    """Java grants everybody a fresh period after that; here the two run side by side."""
    fleet = a_fleet(ME, OTHER, leases=unowned(4))
    fleet.live(60.0)
    assert fleet.workers[ME].election.is_leader()
    del fleet.workers[ME]
    crashed_at_s = fleet.clock.monotonic()
    while ME in fleet.owners().values():
        fleet.live(0.5)
        assert fleet.clock.monotonic() - crashed_at_s < 60.0
    assert fleet.clock.monotonic() - crashed_at_s <= 10.0 + HEARTBEAT_S + 1.5 * HEARTBEAT_S + 2.0 + 0.5
    assert fleet.workers[OTHER].election.is_leader()


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
    assert worker.assigner.run_once() == pytest.approx(10.05)
    assert fleet.owners() == {"s0": THIRD}
    fleet.live(10.2)
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
