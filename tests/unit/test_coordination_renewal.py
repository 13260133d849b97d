"""Heartbeats of all held leases (spec lease-table 7.3)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from kcl_host.config.settings import LeaseSettings
from kcl_host.coordination.held_leases import HeldLease
from kcl_host.coordination.renewal import Renewal
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.unit.coordination_rig import FIVE, ME, OTHER, Worker, always, befall, lease


def one_by_one(renew: Callable[[HeldLease], None], leases: Iterable[HeldLease]) -> None:
    for held in leases:
        renew(held)


class Renewing(Worker):
    def __init__(self, settings: LeaseSettings | None = None) -> None:
        super().__init__(settings=settings)
        self.handovers: list[HeldLease] = []
        self.renewal = Renewal(self.held_leases, self.settings, self.clock, one_by_one, self.handovers.append)

    def turns(self, seconds: float) -> None:
        """Lets the thread of the renewal live for a while."""
        until_s = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until_s:
            pause_s = self.renewal.run_once()
            assert pause_s > 0, "the loop must not spin"
            self.clock.advance(pause_s)


@pytest.fixture
def worker() -> Renewing:
    return Renewing()


INTERVAL_S = 10 / 3 - 0.025


def keys(count: int) -> list[str]:
    return [f"shardId-{number:012d}" for number in range(count)]


def test_each_lease_is_renewed_every_third_of_its_duration(worker: Renewing) -> None:
    at_s: dict[str, list[float]] = {key: [] for key in keys(40)}
    for key in at_s:
        worker.hold(lease(key))
    worker.renewal.run_once()
    worker.table.faults = lambda operation, key: at_s[key].append(worker.clock.monotonic())
    worker.turns(60.0)
    for times in at_s.values():
        assert len(times) == pytest.approx(60 / INTERVAL_S, abs=1)
        assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([INTERVAL_S] * (len(times) - 1))


def test_a_lease_that_is_new_does_not_wait_longer_than_the_others(worker: Renewing) -> None:
    worker.hold(lease(keys(1)[0]))
    worker.turns(20.0)
    for key in keys(40)[1:]:
        worker.hold(lease(key))
    worker.turns(INTERVAL_S)
    assert min(row.lease_counter for row in worker.table.rows.values()) > 3


@pytest.mark.parametrize("count", [16, 64, 500])
def test_renewals_are_no_burst(worker: Renewing, count: int) -> None:
    """At most two leases, or 2.5 % of them, at the same time: a burst is what other requests wait behind."""
    for key in keys(count):
        worker.hold(lease(key))
    worker.renewal.run_once()
    together = Counter[float]()
    worker.table.faults = lambda operation, key: together.update([worker.clock.monotonic()])
    worker.turns(INTERVAL_S * 1.01)
    assert together.total() >= count
    assert max(together.values()) <= max(2, count * 0.025)


def test_nothing_held_is_nothing_to_do(worker: Renewing) -> None:
    worker.turns(30.0)
    assert worker.table.requests == {}


def test_an_hour_costs_what_java_pays(worker: Renewing) -> None:
    worker.hold()
    worker.turns(3600.0)
    assert worker.table.requests["renew"] <= 3600 / (10 / 3 - 0.025) + 1
    assert set(worker.table.requests) == {"renew"}


def test_the_next_turn_is_on_time_however_long_this_one_took(worker: Renewing) -> None:
    worker.hold()
    worker.clock.advance(worker.renewal.run_once())
    worker.table.faults = befall("renew", Fault(before_s=2.0))
    assert worker.renewal.run_once() == pytest.approx(INTERVAL_S - 2.0)
    worker.clock.advance(INTERVAL_S - 2.0)
    worker.table.faults = befall("renew", Fault(before_s=5.0))
    assert worker.renewal.run_once() == 0.0


def test_slow_renewals_of_one_lease_do_not_let_the_others_expire(worker: Renewing) -> None:
    for key in keys(20):
        worker.hold(lease(key))
    slow = keys(20)[7]
    worker.table.faults = lambda operation, key: Fault("timed_out", before_s=3.0) if key == slow else None
    until_s = worker.clock.monotonic() + 60.0
    while worker.clock.monotonic() < until_s:
        worker.clock.advance(worker.renewal.run_once())
    assert [held.lease_key for held, _ in worker.lost] == [slow]


def test_a_failed_renewal_is_tried_again_soon_and_alone(worker: Renewing) -> None:
    for key in ("s1", "s2"):
        worker.hold(lease(key))
    asked: list[tuple[str, float]] = []
    worker.table.faults = lambda operation, key: (
        asked.append((key, worker.clock.monotonic())) or (THROTTLED if key == "s1" and len(asked) == 2 else None)
    )
    began_s = worker.clock.monotonic()
    worker.turns(1.1)
    assert asked[:2] == [("s2", began_s), ("s1", began_s)]
    assert [at_s for key, at_s in asked[2:] if key == "s1"] == [pytest.approx(began_s + 1.0)]
    assert worker.table.rows["s1"].lease_counter == 4


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_trouble_shorter_than_two_thirds_of_the_lease_costs_nothing(worker: Renewing, fault: Fault) -> None:
    held = worker.hold()
    worker.turns(6.0)
    worker.table.faults = always("renew", fault)
    worker.turns(6.0)
    worker.table.faults = befall("renew")
    worker.turns(6.0)
    assert worker.lost == []
    assert worker.held_leases.is_held(held)


def test_a_minute_of_throttling_loses_the_leases_and_not_the_thread(worker: Renewing) -> None:
    worker.hold()
    worker.table.faults = always("renew", THROTTLED)
    worker.turns(60.0)
    assert [reason for _, reason in worker.lost] == ["not renewed for longer than failoverTimeMillis"]
    worker.table.faults = befall("renew")
    again = worker.hold(worker.table.rows["s1"])
    worker.turns(60.0)
    assert worker.held_leases.is_held(again)


def test_missing_permission_is_no_end_of_the_thread(worker: Renewing) -> None:
    worker.hold()
    worker.table.faults = befall("renew", Fault("refused"))
    worker.turns(6.0)
    assert worker.lost == []


def test_every_round_tells_of_a_pending_handover_as_long_as_it_lasts(worker: Renewing) -> None:
    held = worker.hold()
    worker.renewal.run_once()
    assert worker.handovers == []
    worker.table.initiate_handoff(worker.table.rows["s1"], OTHER)
    worker.clock.advance(4.0)
    worker.renewal.run_once()
    worker.clock.advance(4.0)
    worker.renewal.run_once()
    assert worker.handovers == [held, held]
    worker.held_leases.give_away(held)
    worker.clock.advance(4.0)
    worker.renewal.run_once()
    assert len(worker.handovers) == 2


def test_a_child_that_does_not_end_its_batch_keeps_a_lease_no_longer_than_the_handoff_timeout(worker: Renewing) -> None:
    held = worker.hold()
    worker.table.initiate_handoff(worker.table.rows["s1"], OTHER)
    worker.turns(30.0)
    assert worker.table.rows["s1"].actual_owner == ME
    worker.turns(4.0)
    assert worker.table.rows["s1"].actual_owner == OTHER
    assert [lost for lost, _ in worker.lost] == [held]


def test_a_slow_checkpoint_delays_its_own_lease_only() -> None:
    worker = Renewing(LeaseSettings(failover_s=0.03, epsilon_s=0.0001))
    slow, other = worker.hold(lease("s2")), worker.hold(lease("s1"))
    with slow.lock:
        worker.renewal.run_once()
        assert worker.table.requests["renew"] == 1
        assert other.lease.lease_counter == 4
    worker.clock.advance(0.001)
    worker.table.checkpoint(worker.table.rows["s1"], FIVE)
    assert worker.held_leases.is_held(slow)


def test_a_lease_left_out_behind_a_checkpoint_comes_before_the_next_round() -> None:
    worker = Renewing(LeaseSettings(failover_s=6.0, epsilon_s=0.0))
    held = worker.hold()
    impatient = Renewal(worker.held_leases, LeaseSettings(failover_s=0.003), worker.clock, one_by_one, lambda _: None)
    with held.lock:
        pause_s = impatient.run_once()
    assert pause_s <= 1.0
    worker.clock.advance(1.0)
    impatient.run_once()
    assert held.lease.lease_counter == 4


def test_a_lease_given_away_during_the_round_is_left_alone(worker: Renewing) -> None:
    first, second = worker.hold(lease("s2")), worker.hold(lease("s1"))
    worker.table.faults = lambda operation, key: (
        worker.held_leases.give_away(second) if (operation, key) == ("renew", "s2") else None
    )
    worker.renewal.run_once()
    assert worker.table.rows["s1"] == lease("s1", owner=None, counter=4)
    assert worker.held_leases.all() == [first]
    assert worker.lost == []
