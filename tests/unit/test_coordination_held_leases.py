"""A worker as the holder of leases: every write, every way its answer may be lost (spec lease-table 4 to 10)."""

from __future__ import annotations

import random
import threading

import pytest

from kcl_host.config.settings import LeaseSettings
from kcl_host.coordination.held_leases import CheckpointOutcome, HeldLease
from kcl_host.errors import Throttled, Unavailable
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.unit.coordination_rig import FIVE, ME, NINE, OTHER, SEVEN, THIRD, Worker, always, befall, before, lease


@pytest.fixture
def worker() -> Worker:
    return Worker()


# The map


def test_a_lease_is_taken_up_once(worker: Worker) -> None:
    held = worker.hold()
    assert worker.held_leases.add(lease(), worker.clock.monotonic()) is None
    assert worker.held_leases.all() == [held]
    assert worker.held_leases.is_held(held)


def test_leases_are_listed_in_descending_order(worker: Worker) -> None:
    for key in ("s1", "s3", "s2"):
        worker.hold(lease(key))
    assert [held.lease_key for held in worker.held_leases.all()] == ["s3", "s2", "s1"]


def test_a_row_read_before_the_lease_was_given_away_is_not_taken_up_again(worker: Worker) -> None:
    held = worker.hold()
    stale, read_at_s = worker.table.rows["s1"], worker.clock.monotonic()
    worker.clock.advance(0.1)
    worker.held_leases.give_away(held)
    assert worker.held_leases.add(stale, read_at_s) is None
    assert worker.held_leases.get("s1") is None


def test_a_row_read_after_that_is_taken_up_under_a_new_token(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.give_away(held)
    worker.clock.advance(0.1)
    row = worker.table.assign(worker.table.rows["s1"], ME).row
    assert row is not None
    again = worker.held_leases.add(row, worker.clock.monotonic())
    assert again is not None
    assert again.token != held.token
    assert not worker.held_leases.is_held(held)


def test_dropping_writes_nothing_and_says_nothing(worker: Worker) -> None:
    held = worker.hold()
    assert worker.held_leases.drop(held)
    assert not worker.held_leases.drop(held)
    assert worker.table.rows["s1"] == lease()
    assert worker.lost == []


# Renewal


def test_a_renewal_moves_the_counter_and_the_age(worker: Worker) -> None:
    held = worker.hold()
    worker.clock.advance(3.0)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert worker.table.rows["s1"] == held.lease == lease(counter=4)
    assert held.last_renewed_s == worker.clock.monotonic()


def test_the_age_counts_from_before_the_request(worker: Worker) -> None:
    held = worker.hold()
    sent_at_s = worker.clock.monotonic()
    worker.table.faults = befall("renew", Fault(before_s=1.0, after_s=1.0))
    worker.held_leases.renew(held, 0.0)
    assert held.last_renewed_s == sent_at_s


def test_a_lease_is_held_for_exactly_the_lease_duration(worker: Worker) -> None:
    held = worker.hold()
    worker.clock.advance(10.0)
    assert worker.held_leases.is_held(held)
    worker.clock.advance(0.001)
    assert not worker.held_leases.is_held(held)


def test_an_expired_lease_is_lost_without_a_write(worker: Worker) -> None:
    held = worker.hold()
    worker.clock.advance(10.001)
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert worker.table.requests["renew"] == 0
    assert [reason for _, reason in worker.lost] == ["not renewed for longer than failoverTimeMillis"]


def test_a_renewal_of_a_lease_that_is_gone_writes_nothing(worker: Worker) -> None:
    """A round works on a list made at its start; the row may be held again by then, under a new token."""
    held = worker.hold()
    worker.held_leases.drop(held)
    worker.clock.advance(0.1)
    worker.hold(worker.table.rows["s1"])
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert worker.table.requests["renew"] == 0
    assert worker.lost == []


@pytest.mark.parametrize(
    "row",
    [lease(owner=OTHER, counter=4), lease(owner=None, counter=4), lease(counter=4), None],
    ids=["assigned elsewhere", "evicted", "written under our name", "deleted"],
)
def test_a_refused_renewal_loses_the_lease_and_says_so_once(worker: Worker, row: Lease | None) -> None:
    held = worker.hold()
    worker.table.delete("s1")
    if row is not None:
        worker.table.put(row)
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert [lost for lost, _ in worker.lost] == [held]
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert len(worker.lost) == 1
    assert worker.table.rows.get("s1") == row


@pytest.mark.parametrize("fault", [TIMED_OUT, ANSWER_LOST])
def test_a_renewal_without_an_answer_is_made_good_by_the_next(worker: Worker, fault: Fault) -> None:
    held = worker.hold()
    worker.table.faults = befall("renew", fault)
    with pytest.raises(Unavailable):
        worker.held_leases.renew(held, 0.0)
    assert held.last_renewed_s == worker.clock.monotonic()
    worker.clock.advance(3.0)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert worker.table.rows["s1"].lease_counter == held.lease.lease_counter
    assert worker.lost == []


def test_a_lost_answer_does_not_make_the_lease_younger(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = lambda operation, key: ANSWER_LOST
    for _ in range(3):
        worker.clock.advance(3.0)
        with pytest.raises(Unavailable):
            worker.held_leases.renew(held, 0.0)
    worker.clock.advance(1.001)
    assert not worker.held_leases.is_held(held)


def test_several_lost_answers_are_one_write(worker: Worker) -> None:
    """All were conditional on one counter: a row two ahead has been somebody else's meanwhile."""
    held = worker.hold()
    worker.table.faults = befall("renew", TIMED_OUT, TIMED_OUT)
    for _ in range(2):
        with pytest.raises(Unavailable):
            worker.held_leases.renew(held, 0.0)
    worker.table.put(lease(counter=5))
    assert worker.held_leases.renew(held, 0.0) == "lost"


def test_a_throttled_renewal_leaves_no_doubt(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = befall("renew", THROTTLED)
    with pytest.raises(Throttled):
        worker.held_leases.renew(held, 0.0)
    worker.table.put(lease(counter=4))
    assert worker.held_leases.renew(held, 0.0) == "lost"


def test_doubt_ends_with_a_write_that_is_certain(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = befall("renew", TIMED_OUT)
    with pytest.raises(Unavailable):
        worker.held_leases.renew(held, 0.0)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    worker.table.put(lease(counter=held.lease.lease_counter + 1))
    assert worker.held_leases.renew(held, 0.0) == "lost"


def test_a_renewal_behind_a_write_in_flight_waits_no_longer_than_it_is_told(worker: Worker) -> None:
    held = worker.hold()
    with held.lock:
        assert worker.held_leases.renew(held, 0.0) == "busy"
        assert worker.held_leases.renew(held, 0.01) == "busy"
    assert worker.table.requests["renew"] == 0


# Handover announced by the leader


def announce(worker: Worker, to: str = OTHER) -> None:
    assert worker.table.initiate_handoff(worker.table.rows["s1"], to).applied


def test_a_renewal_learns_of_a_handover_and_goes_on(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == worker.table.rows["s1"] == lease(owner=OTHER, checkpoint_owner=ME, counter=4)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert worker.lost == []


def test_a_checkpoint_during_a_handover(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    assert worker.held_leases.checkpoint(held, FIVE).error is None
    assert worker.table.rows["s1"] == lease(owner=OTHER, checkpoint_owner=ME, counter=4, checkpoint=FIVE)


@pytest.mark.parametrize("fault", [TIMED_OUT, ANSWER_LOST])
def test_a_handover_announced_while_a_renewal_is_in_doubt(worker: Worker, fault: Fault) -> None:
    held = worker.hold()
    worker.table.faults = befall("renew", fault)
    with pytest.raises(Unavailable):
        worker.held_leases.renew(held, 0.0)
    announce(worker)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == worker.table.rows["s1"]
    assert held.lease.is_handover_pending


def test_a_handover_announced_between_a_lost_answer_and_its_repetition(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = befall("renew", ANSWER_LOST)
    with pytest.raises(Unavailable):
        worker.held_leases.renew(held, 0.0)
    # The first try of this renewal is refused by the counter, the second by the handover.
    asked = []

    def announce_before_the_second_try(operation: str, key: str) -> None:
        asked.append(operation)
        if asked == ["renew", "renew"]:
            announce(worker)

    worker.table.faults = announce_before_the_second_try
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == worker.table.rows["s1"]


def test_a_handover_between_two_others_is_not_ours(worker: Worker) -> None:
    held = worker.hold()
    worker.table.put(lease(owner=THIRD, checkpoint_owner=OTHER))
    assert worker.held_leases.renew(held, 0.0) == "lost"


def test_a_handover_to_its_own_owner_is_no_handover(worker: Worker) -> None:
    held = worker.hold()
    worker.table.put(lease(checkpoint_owner=ME))
    assert worker.held_leases.renew(held, 0.0) == "lost"


def test_a_handover_taken_back_by_the_leader_is_a_lost_lease(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    worker.held_leases.renew(held, 0.0)
    assert worker.table.assign(worker.table.rows["s1"], ME).applied
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert worker.table.rows["s1"].lease_owner == ME


def test_a_handover_that_takes_too_long_is_finished_over_the_head_of_the_child(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    for _ in range(11):
        assert worker.held_leases.renew(held, 0.0) == "renewed"
        worker.clock.advance(3.0)
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert worker.table.rows["s1"].actual_owner == OTHER
    assert [lost for lost, _ in worker.lost] == [held]
    assert worker.held_leases.checkpoint(held, FIVE).error == "ShutdownException"


def test_an_overdue_handover_without_an_answer_is_tried_again(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    worker.held_leases.renew(held, 0.0)
    for _ in range(10):
        worker.clock.advance(3.0)
        worker.held_leases.renew(held, 0.0)
    worker.clock.advance(0.1)
    worker.table.faults = befall("assign", TIMED_OUT)
    with pytest.raises(Unavailable):
        worker.held_leases.renew(held, 0.0)
    assert worker.lost == []
    assert worker.held_leases.renew(held, 0.0) == "lost"
    assert worker.table.rows["s1"].actual_owner == OTHER
    assert len(worker.lost) == 1


# Checkpoint


def test_a_checkpoint_is_a_heartbeat(worker: Worker) -> None:
    held = worker.hold()
    worker.clock.advance(9.0)
    assert worker.held_leases.checkpoint(held, FIVE).error is None
    assert worker.table.rows["s1"] == held.lease == lease(counter=4, checkpoint=FIVE)
    worker.clock.advance(9.0)
    assert worker.held_leases.is_held(held)


@pytest.mark.parametrize("fault", [TIMED_OUT, ANSWER_LOST])
def test_a_checkpoint_without_an_answer_is_asked_for_once_more(worker: Worker, fault: Fault) -> None:
    held = worker.hold()
    worker.table.faults = befall("checkpoint", fault)
    assert worker.held_leases.checkpoint(held, FIVE).error is None
    assert worker.table.rows["s1"].checkpoint == FIVE
    assert worker.table.rows["s1"] == held.lease


@pytest.mark.parametrize("second", [TIMED_OUT, ANSWER_LOST])
@pytest.mark.parametrize("first", [TIMED_OUT, ANSWER_LOST])
def test_a_checkpoint_without_any_answer_keeps_the_lease(worker: Worker, first: Fault, second: Fault) -> None:
    held = worker.hold()
    worker.table.faults = befall("checkpoint", first, second, second)
    assert worker.held_leases.checkpoint(held, FIVE).error == "KinesisClientLibDependencyException"
    worker.table.faults = befall("renew")
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert worker.held_leases.checkpoint(held, FIVE).error is None
    assert worker.table.rows["s1"].checkpoint == FIVE
    assert worker.lost == []


def test_a_renewal_in_doubt_and_a_checkpoint_in_doubt(worker: Worker) -> None:
    """Only one of them can have taken effect; whichever, the row is ours."""
    held = worker.hold()
    worker.table.faults = befall("renew", TIMED_OUT)
    with pytest.raises(Unavailable):
        worker.held_leases.renew(held, 0.0)
    worker.table.faults = befall("checkpoint", ANSWER_LOST, TIMED_OUT)
    assert worker.held_leases.checkpoint(held, NINE).error is not None
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == worker.table.rows["s1"]
    assert held.lease.checkpoint == NINE


def test_a_checkpoint_that_we_never_asked_for_is_not_ours(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = befall("checkpoint", TIMED_OUT, TIMED_OUT)
    worker.held_leases.checkpoint(held, NINE)
    worker.table.put(lease(counter=4, checkpoint=SEVEN))
    assert worker.held_leases.renew(held, 0.0) == "lost"


@pytest.mark.parametrize(
    "fault, error",
    [
        (THROTTLED, "ThrottlingException"),
        (TIMED_OUT, "KinesisClientLibDependencyException"),
        (Fault("refused"), "KinesisClientLibDependencyException"),
    ],
)
def test_the_child_learns_why_its_checkpoint_failed(worker: Worker, fault: Fault, error: str) -> None:
    held = worker.hold()
    worker.table.faults = always("checkpoint", fault)
    assert worker.held_leases.checkpoint(held, FIVE).error == error
    assert worker.held_leases.is_held(held)
    worker.table.faults = befall("checkpoint")
    assert worker.held_leases.checkpoint(held, FIVE).error is None


def test_a_checkpoint_while_the_table_is_missing(worker: Worker) -> None:
    missing = Worker()
    missing.table = InMemoryLeaseTable(missing.clock, exists=False)
    held_leases = type(worker.held_leases)(
        missing.table, ME, missing.settings, missing.clock, lambda: "token", lambda held, reason: None
    )
    held = held_leases.add(lease(), missing.clock.monotonic())
    assert held is not None
    assert held_leases.checkpoint(held, FIVE).error == "InvalidStateException"


def test_no_second_try_for_a_lease_that_expired_during_the_first(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = befall("checkpoint", Fault("timed_out", after_s=10.1))
    assert worker.held_leases.checkpoint(held, FIVE).error == "KinesisClientLibDependencyException"
    assert worker.table.requests["checkpoint"] == 1


def test_a_checkpoint_of_an_expired_lease_makes_no_request(worker: Worker) -> None:
    held = worker.hold()
    worker.clock.advance(10.001)
    assert worker.held_leases.checkpoint(held, FIVE).error == "ShutdownException"
    assert worker.table.requests["checkpoint"] == 0


def test_a_checkpoint_of_an_earlier_incarnation_makes_no_request(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.drop(held)
    worker.clock.advance(0.1)
    worker.hold(worker.table.rows["s1"])
    assert worker.held_leases.checkpoint(held, FIVE).error == "ShutdownException"
    assert worker.table.requests["checkpoint"] == 0


def test_a_refused_checkpoint_loses_the_lease_at_once(worker: Worker) -> None:
    held = worker.hold()
    worker.table.put(lease(owner=OTHER, counter=4))
    assert worker.held_leases.checkpoint(held, FIVE).error == "ShutdownException"
    assert [lost for lost, _ in worker.lost] == [held]
    assert worker.table.rows["s1"] == lease(owner=OTHER, counter=4)


def test_a_checkpoint_ends_what_was_prepared(worker: Worker) -> None:
    held = worker.hold(
        lease(pending_checkpoint=SEVEN, pending_checkpoint_state=b"x", owner_switches_since_checkpoint=2)
    )
    assert worker.held_leases.checkpoint(held, NINE).error is None
    assert worker.table.rows["s1"] == held.lease == lease(counter=4, checkpoint=NINE)


# Prepared checkpoints


def prepared(counter: int = 4, **fields: object) -> Lease:
    return lease(counter=counter, pending_checkpoint=SEVEN, pending_checkpoint_state=b"x", **fields)


def test_a_prepared_checkpoint_stands_beside_the_checkpoint_and_is_a_heartbeat(worker: Worker) -> None:
    held = worker.hold(lease(checkpoint=FIVE, owner_switches_since_checkpoint=2))
    worker.clock.advance(9.0)
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, b"x").error is None
    assert worker.table.rows["s1"] == held.lease == prepared(4, checkpoint=FIVE, owner_switches_since_checkpoint=2)
    worker.clock.advance(9.0)
    assert worker.held_leases.is_held(held)


def test_what_is_prepared_outlives_renewals_and_a_handover(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.prepare_checkpoint(held, SEVEN, b"x")
    worker.held_leases.renew(held, 0.0)
    announce(worker)
    worker.held_leases.renew(held, 0.0)
    assert held.lease == worker.table.rows["s1"] == prepared(6, owner=OTHER, checkpoint_owner=ME)
    assert worker.held_leases.give_away(held) == OTHER
    assert worker.table.rows["s1"] == prepared(7, owner=OTHER)


def test_a_checkpoint_ends_what_we_prepared(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.prepare_checkpoint(held, SEVEN, b"x")
    assert worker.held_leases.checkpoint(held, FIVE).error is None
    assert worker.table.rows["s1"] == held.lease == lease(counter=5, checkpoint=FIVE)


def test_another_prepared_checkpoint_takes_the_place_of_the_first_state_included(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.prepare_checkpoint(held, NINE, b"longer")
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, None).error is None
    assert worker.table.rows["s1"] == held.lease == lease(counter=5, pending_checkpoint=SEVEN)


@pytest.mark.parametrize("fault", [TIMED_OUT, ANSWER_LOST])
def test_a_prepared_checkpoint_without_an_answer_is_asked_for_once_more(worker: Worker, fault: Fault) -> None:
    held = worker.hold()
    worker.table.faults = befall("prepare_checkpoint", fault)
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, b"x").error is None
    row = worker.table.rows["s1"]
    assert row == held.lease == prepared(row.lease_counter)
    assert worker.lost == []


@pytest.mark.parametrize("second", [TIMED_OUT, ANSWER_LOST])
@pytest.mark.parametrize("first", [TIMED_OUT, ANSWER_LOST])
def test_a_prepared_checkpoint_in_doubt_keeps_the_lease_and_what_the_row_says(
    worker: Worker, first: Fault, second: Fault
) -> None:
    held = worker.hold()
    worker.table.faults = befall("prepare_checkpoint", first, second, second)
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, b"x").error == "KinesisClientLibDependencyException"
    worker.table.faults = befall("renew")
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == worker.table.rows["s1"]
    assert worker.lost == []


def test_a_checkpoint_in_doubt_is_not_taken_back_by_preparing_the_next_one(worker: Worker) -> None:
    """Java writes the checkpoint of its memory together with the pending one; ours first learns what the row says."""
    held = worker.hold()
    worker.table.faults = befall("checkpoint", ANSWER_LOST, TIMED_OUT)
    assert worker.held_leases.checkpoint(held, SEVEN).error is not None
    assert worker.held_leases.prepare_checkpoint(held, NINE, None).error is None
    assert worker.table.rows["s1"] == held.lease == lease(counter=5, checkpoint=SEVEN, pending_checkpoint=NINE)


def test_a_handover_announced_between_a_prepared_checkpoint_and_its_repetition(worker: Worker) -> None:
    held = worker.hold()
    asked = []

    def lose_the_answer_then_announce(operation: str, key: str) -> Fault | None:
        asked.append(operation)
        if asked == ["prepare_checkpoint", "prepare_checkpoint"]:
            announce(worker)
        return ANSWER_LOST if asked == ["prepare_checkpoint"] else None

    worker.table.faults = lose_the_answer_then_announce
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, b"x").error is None
    assert worker.table.rows["s1"] == held.lease == prepared(5, owner=OTHER, checkpoint_owner=ME)


def test_a_refused_prepared_checkpoint_loses_the_lease_at_once(worker: Worker) -> None:
    held = worker.hold()
    worker.table.put(lease(owner=OTHER, counter=4))
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, b"x").error == "ShutdownException"
    assert [lost for lost, _ in worker.lost] == [held]
    assert worker.table.rows["s1"] == lease(owner=OTHER, counter=4)


def test_nothing_is_prepared_for_a_lease_that_has_expired(worker: Worker) -> None:
    held = worker.hold()
    worker.clock.advance(10.001)
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, None).error == "ShutdownException"
    assert worker.table.requests["prepare_checkpoint"] == 0


@pytest.mark.parametrize(
    "fault, error", [(THROTTLED, "ThrottlingException"), (TIMED_OUT, "KinesisClientLibDependencyException")]
)
def test_the_child_learns_why_nothing_was_prepared(worker: Worker, fault: Fault, error: str) -> None:
    held = worker.hold()
    worker.table.faults = always("prepare_checkpoint", fault)
    assert worker.held_leases.prepare_checkpoint(held, SEVEN, None).error == error
    assert worker.held_leases.is_held(held)


# Giving away


@pytest.mark.parametrize("fault", [None, TIMED_OUT, ANSWER_LOST, THROTTLED])
def test_a_handover_is_completed_and_repeated_until_certain(worker: Worker, fault: Fault | None) -> None:
    held = worker.hold()
    announce(worker)
    worker.held_leases.renew(held, 0.0)
    worker.table.faults = befall("assign", fault)
    if fault is not None:
        with pytest.raises((Unavailable, Throttled)):
            worker.held_leases.give_away(held)
        assert worker.held_leases.is_held(held)
    assert worker.held_leases.give_away(held) == OTHER
    assert worker.table.rows["s1"] == lease(owner=OTHER, counter=5)
    assert not worker.held_leases.is_held(held)
    assert worker.lost == []


def test_a_handover_in_doubt_that_the_next_owner_has_taken_up_is_done(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    worker.held_leases.renew(held, 0.0)
    worker.table.faults = befall("assign", ANSWER_LOST)
    with pytest.raises(Unavailable):
        worker.held_leases.give_away(held)
    assert worker.table.renew(worker.table.rows["s1"], None).applied
    assert worker.held_leases.give_away(held) == OTHER
    assert worker.table.rows["s1"].lease_counter == 6


def test_a_handover_that_somebody_else_decided_otherwise(worker: Worker) -> None:
    held = worker.hold()
    announce(worker)
    worker.held_leases.renew(held, 0.0)
    assert worker.table.assign(worker.table.rows["s1"], THIRD).applied
    assert worker.held_leases.give_away(held) is None
    assert worker.table.rows["s1"].lease_owner == THIRD
    assert not worker.held_leases.is_held(held)


def test_an_earlier_incarnation_gives_nothing_away(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.drop(held)
    worker.clock.advance(0.1)
    again = worker.hold(worker.table.rows["s1"])
    worker.held_leases.give_away(held)
    assert worker.table.rows["s1"].lease_owner == ME
    assert worker.held_leases.is_held(again)


@pytest.mark.parametrize("fault", [None, TIMED_OUT, ANSWER_LOST, THROTTLED])
def test_a_lease_is_evicted_and_repeated_until_certain(worker: Worker, fault: Fault | None) -> None:
    held = worker.hold()
    worker.table.faults = befall("evict", fault)
    if fault is not None:
        with pytest.raises((Unavailable, Throttled)):
            worker.held_leases.give_away(held)
        assert worker.held_leases.is_held(held)
    worker.held_leases.give_away(held)
    assert worker.table.rows["s1"] == lease(owner=None, counter=4)
    assert not worker.held_leases.is_held(held)


def test_a_lease_evicted_in_doubt_and_assigned_elsewhere_stays_there(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = befall("evict", ANSWER_LOST)
    with pytest.raises(Unavailable):
        worker.held_leases.give_away(held)
    worker.table.assign(worker.table.rows["s1"], OTHER)
    worker.held_leases.give_away(held)
    assert worker.table.rows["s1"] == lease(owner=OTHER, counter=5, owner_switches_since_checkpoint=0)


@pytest.mark.parametrize("fault", [None, TIMED_OUT, ANSWER_LOST])
def test_an_eviction_that_meets_a_handover_just_announced_completes_it(worker: Worker, fault: Fault | None) -> None:
    held = worker.hold()
    announce(worker)
    worker.table.faults = befall("assign", fault)
    if fault is not None:
        with pytest.raises(Unavailable):
            worker.held_leases.give_away(held)
    worker.held_leases.give_away(held)
    assert worker.table.rows["s1"] == lease(owner=OTHER, counter=4)


def test_completing_a_handover_that_was_taken_back_does_not_keep_the_lease(worker: Worker) -> None:
    """Between the consumer's look and its write a renewal in doubt may have shown a row without a handover."""
    held = worker.hold()
    assert worker.held_leases.give_away(held) is None
    assert worker.table.rows["s1"].lease_owner is None


@pytest.mark.parametrize("fault", [None, TIMED_OUT, ANSWER_LOST, THROTTLED])
def test_naming_the_next_owner(worker: Worker, fault: Fault | None) -> None:
    held = worker.hold()
    worker.table.faults = befall("initiate_handoff", fault)
    worker.held_leases.initiate_handover(held, OTHER)
    worker.table.faults = befall("renew")
    named = fault in (None, ANSWER_LOST)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == worker.table.rows["s1"]
    assert held.lease.is_handover_pending == named
    worker.held_leases.give_away(held)
    assert worker.table.rows["s1"].lease_owner == (OTHER if named else None)


def test_an_owner_named_already_is_not_changed(worker: Worker) -> None:
    held = worker.hold()
    announce(worker, THIRD)
    worker.held_leases.initiate_handover(held, OTHER)
    worker.held_leases.renew(held, 0.0)
    worker.held_leases.initiate_handover(held, OTHER)
    assert worker.table.rows["s1"].lease_owner == THIRD


def test_no_next_owner_is_named_for_a_lease_that_is_gone(worker: Worker) -> None:
    held = worker.hold()
    worker.held_leases.drop(held)
    worker.held_leases.initiate_handover(held, OTHER)
    assert worker.table.rows["s1"] == lease()


def test_a_lease_lost_while_it_is_given_away(worker: Worker) -> None:
    held = worker.hold()
    worker.table.faults = before("evict", lambda: worker.table.put(lease(owner=OTHER, counter=9)))
    worker.held_leases.give_away(held)
    assert worker.table.rows["s1"] == lease(owner=OTHER, counter=9)
    assert not worker.held_leases.is_held(held)


# Throughput (spec lease-table 8)


def renewed_throughput(worker: Worker, held: HeldLease, after_s: float) -> float | None:
    worker.clock.advance(after_s)
    assert worker.held_leases.renew(held, 0.0) == "renewed"
    assert worker.table.rows["s1"].throughput_kbps == pytest.approx(held.lease.throughput_kbps)
    return worker.table.rows["s1"].throughput_kbps


def test_no_throughput_before_anything_was_delivered(worker: Worker) -> None:
    held = worker.hold()
    assert renewed_throughput(worker, held, 3.3) is None


def test_throughput_is_smoothed_and_fades_when_idle(worker: Worker) -> None:
    held = worker.hold()
    held.record_payload(40 * 1024)
    assert renewed_throughput(worker, held, 4.0) == pytest.approx(10.0)
    assert renewed_throughput(worker, held, 4.0) == pytest.approx(5.0)
    held.record_payload(40 * 1024)
    assert renewed_throughput(worker, held, 4.0) == pytest.approx(7.5)


def test_the_first_moment_is_no_peak(worker: Worker) -> None:
    """Bytes delivered just before the first renewal count as spread over a renewal interval."""
    held = worker.hold()
    held.record_payload(1024 * 1024)
    value = renewed_throughput(worker, held, 0.001)
    assert value == pytest.approx(1024 / worker.settings.renewal_interval_s)


def test_what_the_holder_before_us_wrote_fades_too(worker: Worker) -> None:
    held = worker.hold(lease(throughput_kbps=800.0))
    assert renewed_throughput(worker, held, 3.3) == pytest.approx(400.0)
    for _ in range(60):
        value = renewed_throughput(worker, held, 3.3)
    assert value == 0.0


# Threads


class OneAtATime:
    """The fake table for several threads: each request whole."""

    def __init__(self, table: InMemoryLeaseTable) -> None:
        self._table = table
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> object:
        method = getattr(self._table, name)

        def call(*args: object) -> object:
            with self._lock:
                return method(*args)

        return call


def test_threads_neither_deadlock_nor_write_after_the_loss() -> None:
    """Renewal, two consumers, a discovery and a leader at once on two leases."""
    worker = Worker(settings=LeaseSettings(failover_s=1000.0))
    table = OneAtATime(worker.table)
    held_leases = type(worker.held_leases)(
        table,  # type: ignore[arg-type]
        ME,
        worker.settings,
        worker.clock,
        lambda: "token",
        lambda held, reason: None,
    )
    for key in ("s1", "s2"):
        worker.table.put(lease(key))
    acknowledged: dict[str, int] = {"s1": 0, "s2": 0}
    failures: list[BaseException] = []
    finished = threading.Event()

    def renew(rng: random.Random) -> None:
        for held in held_leases.all():
            held_leases.renew(held, 0.001)

    def discover(rng: random.Random) -> None:
        for key in ("s1", "s2"):
            read_at_s = worker.clock.monotonic()
            row = worker.table.rows[key]
            if row.lease_owner == ME and not row.is_handover_pending:
                held_leases.add(row, read_at_s)

    def consume(key: str) -> None:
        held = held_leases.get(key)
        if held is None:
            return
        position = acknowledged[key] + 1
        if held_leases.checkpoint(held, ExtendedSequenceNumber(str(position))).error is None:
            acknowledged[key] = position
        if held.lease.is_handover_pending:
            held_leases.give_away(held)

    def lead(rng: random.Random) -> None:
        row = worker.table.rows[rng.choice(("s1", "s2"))]
        if row.actual_owner == ME and not row.is_handover_pending:
            table.initiate_handoff(row, OTHER)  # type: ignore[operator]
        elif row.actual_owner == OTHER:
            table.assign(row, ME)  # type: ignore[operator]

    def loop(act: object, seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(150):
                act(rng)  # type: ignore[operator]
                worker.clock.advance(0.0001)
        except BaseException as error:
            failures.append(error)
        finally:
            finished.set()

    acts = [renew, discover, lead, lambda rng: consume("s1"), lambda rng: consume("s2")]
    threads = [threading.Thread(target=loop, args=(act, seed), daemon=True) for seed, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert failures == []
    for key, position in acknowledged.items():
        checkpoint = worker.table.rows[key].checkpoint
        assert checkpoint is not None
        assert position == 0 or checkpoint == ExtendedSequenceNumber(str(position))


def test_a_checkpoint_before_one_whose_answer_was_lost_does_not_move_the_row_back(worker: Worker) -> None:
    eight, ten = ExtendedSequenceNumber("8"), ExtendedSequenceNumber("10")
    held = worker.hold()
    worker.table.faults = befall("checkpoint", ANSWER_LOST, ANSWER_LOST)
    assert worker.held_leases.checkpoint(held, NINE).error is not None
    assert worker.table.rows["s1"].checkpoint == NINE
    assert worker.held_leases.checkpoint(held, SEVEN) == CheckpointOutcome()
    assert worker.table.rows["s1"].checkpoint == NINE
    assert worker.held_leases.checkpoint(held, eight) == CheckpointOutcome()
    assert worker.table.rows["s1"].checkpoint == held.lease.checkpoint == NINE
    assert worker.held_leases.checkpoint(held, ten) == CheckpointOutcome()
    assert worker.table.rows["s1"].checkpoint == ten
