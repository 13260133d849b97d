"""The life of a shard consumer: order of calls, failures of children, stop reasons, at every moment.

Single-threaded: see consumer_rig. Rules cited are those of spec consumer-lifecycle 13 and DESIGN.md 4.1, 4.2.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
import pytest

from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.errors import ChildExited, ChildStartFailed
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, LATEST, ExtendedSequenceNumber, InitialPosition
from kcl_host.runtime.shard_consumer import IDLE_S
from tests.fakes.child import ModelChild, never_checkpoints, well_behaved
from tests.fakes.fault import TIMED_OUT, Fault
from tests.unit.consumer_rig import ME, SETTINGS, SHARD, Rig, delivered_to, failing, with_child

REQUESTED, LEASE_LOST = ShutdownReason.REQUESTED, ShutdownReason.LEASE_LOST
REASONS = pytest.mark.parametrize("reason", [REQUESTED, LEASE_LOST], ids=lambda reason: reason.name)
KINDS = pytest.mark.parametrize("how", ["exits", "hangs", "misbehaves"])


def lease(**changes: Any) -> Lease:
    return Lease(
        **{"lease_key": SHARD, "checkpoint": AT_TRIM_HORIZON, "lease_owner": ME, "lease_counter": 1, **changes}
    )


def assert_one_life(names: list[str], *, complete: bool = True) -> None:
    """initialize -> processRecords* -> shutdownRequested? -> exactly one of {leaseLost, shardEnded} (rule 3)."""
    end = "( leaseLost| shardEnded)"
    order = f"initialize( processRecords)*( shutdownRequested)?{end}{'' if complete else '?'}"
    assert re.fullmatch(order, " ".join(names)), names


def assert_left(rig: Rig, reason: ShutdownReason) -> None:
    """Given away: the row names nobody. Lost: the row was not touched, and is not renewed any more."""
    assert rig.row.lease_owner == (None if reason is REQUESTED else ME)
    assert not rig.held_leases.is_held(rig.held)
    assert rig.consumer.handoff.closed
    assert rig.source is None or rig.source.stopped
    assert all(child.ended for child in rig.children)
    assert not rig.fatal


# One life


def test_a_life_that_ends_with_the_shard() -> None:
    rig = Rig()
    rig.put("a", "b")
    children = rig.end_shard()
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "shardEnded"]]
    assert rig.delivered == ["a", "b"]
    assert rig.row.checkpoint == AT_SHARD_END and rig.row.child_shard_ids == frozenset(children)
    assert set(rig.table.rows) == {SHARD, *children}
    assert rig.shard_ends == 1 and rig.cleanup.is_queued(SHARD)
    assert rig.held_leases.is_held(rig.held), "a finished lease stays held until it is cleaned up"


def test_the_child_is_told_where_it_starts() -> None:
    number = Rig().put("a", "b")[0]
    rig = Rig(lease(checkpoint=ExtendedSequenceNumber(number)))
    rig.put("a", "b")
    rig.turn_until(lambda: rig.delivered)
    assert rig.child.actions[0] == {
        "action": "initialize", "shardId": SHARD, "sequenceNumber": number, "subSequenceNumber": 0,
    }  # fmt: skip
    assert rig.delivered == ["b"], "what was checkpointed is not delivered again"


def test_a_checkpoint_without_a_number_means_the_end_of_this_batch() -> None:
    """Rule 5: the largest permitted position is set before processRecords."""
    rig = Rig()
    numbers = rig.deliver("a", "b", "c")
    assert rig.row.checkpoint == ExtendedSequenceNumber(numbers[-1])


def test_a_checkpoint_between_actions_is_written() -> None:
    rig = Rig(script=never_checkpoints)
    numbers = rig.deliver("a")
    rig.child.on_idle = lambda child: child.checkpoint()
    rig.turn()
    assert rig.child.answers == [None] and rig.row.checkpoint == ExtendedSequenceNumber(numbers[0])


@pytest.mark.parametrize("request_", [("9" * 56, None), ("LATEST", None), ("nonsense", None), (None, None)])
def test_a_request_that_cannot_be_granted_is_answered_and_life_goes_on(request_: tuple[str, int]) -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "processRecords":
            child.checkpoint(*request_)
        child.answer()

    rig = Rig(lease(checkpoint=AT_TRIM_HORIZON), script=script)
    rig.deliver("a")
    assert rig.child.answers == [None if request_[0] is None else "IllegalArgumentException"]
    assert (rig.row.checkpoint == AT_TRIM_HORIZON) == (request_[0] is not None)


def test_an_idle_consumer_listens_to_its_handoff() -> None:
    rig = Rig()
    rig.deliver("a")
    assert rig.turn() == IDLE_S
    assert rig.child.idle_waits[-1] == (True, IDLE_S)


def test_empty_batches_reach_the_child_only_when_configured() -> None:
    for configured in (False, True):
        lifecycle = msgspec.structs.replace(SETTINGS.lifecycle, call_process_records_for_empty_list=configured)
        rig = Rig(settings=msgspec.structs.replace(SETTINGS, lifecycle=lifecycle))
        for _ in range(5):
            rig.turn()
        assert ("processRecords" in rig.child.names) == configured
        assert rig.consumer.status().millis_behind_latest == 0


# Stop reasons, at every moment


def blocked() -> tuple[Rig, str]:
    """Waits for a parent."""
    rig = Rig(lease(parent_shard_ids=frozenset({"parent"})))
    rig.table.put(Lease(lease_key="parent", checkpoint=AT_TRIM_HORIZON))
    rig.turn()
    return rig, "WAITING_ON_PARENT_SHARDS"


def fresh() -> tuple[Rig, str]:
    """The thread has not started yet."""
    return Rig(), "WAITING_ON_PARENT_SHARDS"


def backing_off() -> tuple[Rig, str]:
    rig = Rig(script=failing("initialize", "exits"))
    rig.turn_until(lambda: rig.children)
    assert rig.consumer.status().child == "BACKOFF"
    return rig, "INITIALIZING"


def fatal() -> tuple[Rig, str]:
    rig = Rig(script=failing("initialize", "exits"))
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    return rig, "INITIALIZING"


def not_opened() -> tuple[Rig, str]:
    """Kinesis does not answer."""
    rig = Rig()
    rig.stream.faults = lambda operation, key: Fault("timed_out")
    rig.turn()
    rig.turn()
    return rig, "INITIALIZING"


def idle() -> tuple[Rig, str]:
    rig = Rig()
    rig.deliver("a")
    rig.turn()
    return rig, "PROCESSING"


def with_batches() -> tuple[Rig, str]:
    """More is there than was delivered: none of it is, after a stop."""
    rig = Rig()
    rig.stream.page_records = 1
    rig.deliver("a")
    rig.put("b", "c")
    for _ in range(2):
        assert rig.source is not None
        rig.clock.advance(2)
        rig.source.run_once()
    return rig, "PROCESSING"


MOMENTS = [fresh, blocked, not_opened, backing_off, fatal, idle, with_batches]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@REASONS
def test_a_stop_at_any_moment(moment: Any, reason: ShutdownReason) -> None:
    rig, state = moment()
    assert rig.consumer.state.value == state
    alive = rig.consumer.status().child_pid is not None
    calls = [*rig.calls]
    rig.consumer.stop(reason)
    rig.finish()
    told = ["shutdownRequested", "leaseLost"] if reason is REQUESTED else ["leaseLost"]
    if alive:
        assert rig.calls == [*calls[:-1], calls[-1] + told]
        assert_one_life(rig.child.names)
    else:
        assert rig.calls == calls, "no child is started, and none is told, only to end (rule 4)"
    assert_left(rig, reason)


@pytest.mark.parametrize("action", ["initialize", "processRecords", "shardEnded"])
@REASONS
def test_a_running_action_is_not_interrupted(action: str, reason: ShutdownReason) -> None:
    """Rule 8. A shard end outranks a request; a lost lease outranks it too, but not the action under way."""

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == action:
            rig.consumer.stop(reason)
        well_behaved(child, message)

    rig = Rig(script=script)
    rig.put("a")
    rig.end_shard()
    rig.finish()
    expected = {
        "initialize": ["initialize"],
        "processRecords": ["initialize", "processRecords"],
        "shardEnded": ["initialize", "processRecords", "shardEnded"],
    }[action]
    if action == "processRecords" and reason is REQUESTED:
        expected = [*expected, "shardEnded"]  # the batch was the last one
    elif action != "shardEnded":
        expected = expected + (["shutdownRequested"] if reason is REQUESTED else []) + ["leaseLost"]
    assert rig.calls == [expected]
    if action == "shardEnded" and reason is LEASE_LOST:
        assert rig.row.checkpoint == AT_SHARD_END
    else:
        assert_left(rig, reason)


def test_a_lease_lost_while_asked_to_shut_down() -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "shutdownRequested":
            rig.table.put(msgspec.structs.replace(rig.row, lease_owner="other", lease_counter=99))
            rig.renew()
            rig.consumer.stop(LEASE_LOST)
            child.checkpoint()
        child.answer()

    rig = Rig(script=script)
    rig.deliver("a")
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "shutdownRequested", "leaseLost"]]
    assert rig.child.answers == ["ShutdownException"]
    assert rig.row.lease_owner == "other" and rig.row.checkpoint == AT_TRIM_HORIZON


def test_there_is_no_checkpoint_when_the_lease_is_gone_nor_in_initialize() -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] in ("initialize", "leaseLost"):
            child.checkpoint()
        child.answer()

    rig = Rig(script=script)
    rig.deliver("a")
    rig.consumer.stop(LEASE_LOST)
    rig.finish()
    assert rig.child.answers == ["InvalidStateException"] * 2
    assert rig.row.checkpoint == AT_TRIM_HORIZON


def test_shutdown_requested_may_checkpoint() -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "shutdownRequested":
            child.checkpoint()
        child.answer()

    rig = Rig(script=script)
    numbers = rig.deliver("a", "b")
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert rig.row.checkpoint == ExtendedSequenceNumber(numbers[-1])


def test_a_pending_handover_goes_to_its_owner() -> None:
    rig = Rig()
    rig.alive("other")
    rig.deliver("a")
    rig.table.put(msgspec.structs.replace(rig.row, lease_owner="other", checkpoint_owner=ME))
    rig.renew()
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "shutdownRequested", "leaseLost"]]
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == ("other", None)


@pytest.mark.parametrize("state", [{}, {"properties": {"state": "TERMINATING"}}])
def test_a_pending_handover_to_a_worker_that_has_gone_goes_to_another_one(state: dict[str, object]) -> None:
    rig = Rig()
    if state:
        rig.alive("other", **state)
    rig.alive("third")
    rig.deliver("a")
    rig.table.put(msgspec.structs.replace(rig.row, lease_owner="other", checkpoint_owner=ME))
    rig.renew()
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == ("third", None)


def test_a_pending_handover_to_a_worker_that_has_gone_ends_with_nobody_when_we_are_alone() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.table.put(msgspec.structs.replace(rig.row, lease_owner="other", checkpoint_owner=ME))
    rig.renew()
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == (None, None)


def test_a_next_owner_that_cannot_be_looked_at_is_trusted() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.table.put(msgspec.structs.replace(rig.row, lease_owner="other", checkpoint_owner=ME))
    rig.renew()
    rig.metrics.faults = lambda operation, key: TIMED_OUT
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert rig.row.lease_owner == "other"


def test_a_child_that_keeps_failing_costs_this_worker_the_lease_once() -> None:
    rig = Rig(script=failing("processRecords", "exits"))
    rig.alive("other")
    rig.put("poison")
    rig.finish()
    assert len(rig.children) == SETTINGS.child.failures_before_handover
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == ("other", None)
    assert rig.row.owner_switches_since_checkpoint == 1, "by which the next owner knows"


def test_a_child_that_kept_failing_elsewhere_is_fatal_here() -> None:
    lease = Lease(
        lease_key=SHARD,
        checkpoint=AT_TRIM_HORIZON,
        lease_owner=ME,
        lease_counter=1,
        owner_switches_since_checkpoint=1,
    )
    rig = Rig(lease, script=failing("processRecords", "exits"))
    rig.alive("other")
    rig.put("poison")
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    assert rig.row.lease_owner == ME


def test_a_failing_lease_that_cannot_be_handed_over_is_kept_and_tried_again() -> None:
    rig = Rig(script=failing("processRecords", "exits"))
    rig.alive("other")
    rig.put("poison")
    refusals = iter([TIMED_OUT])
    rig.table.faults = lambda operation, key: next(refusals, None) if operation == "assign" else None
    rig.finish()
    assert len(rig.children) == SETTINGS.child.failures_before_handover + 1
    assert rig.row.lease_owner == "other"


def test_past_the_deadline_a_child_that_has_answered_is_spared() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.table.faults = lambda operation, key: TIMED_OUT if operation == "evict" else None
    rig.consumer.stop(REQUESTED)
    rig.turn()
    rig.turn()
    assert rig.calls[0][-1] == "shutdownRequested"
    assert not rig.consumer.finish_now()
    rig.finish()
    assert rig.calls[0][-1] == "leaseLost" and not rig.child.killed


def test_past_the_deadline_a_child_that_has_not_answered_is_killed() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.consumer.stop(REQUESTED)
    assert rig.consumer.finish_now()
    rig.finish()
    assert rig.child.killed and rig.row.lease_owner is None


@REASONS
def test_a_transfer_that_fails_is_repeated_and_the_child_is_asked_once(reason: ShutdownReason) -> None:
    rig = Rig()
    rig.deliver("a")
    rig.turn()
    refusals = iter([Fault("timed_out"), Fault("throttled"), Fault("refused")])
    rig.table.faults = lambda operation, key: next(refusals, None) if operation == "evict" else None
    rig.consumer.stop(REQUESTED)
    rig.turn()
    assert rig.child.idle_waits[-1] == (False, SETTINGS.lifecycle.task_backoff_s), "a set stop reason must not spin"
    rig.consumer.stop(reason)
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "shutdownRequested", "leaseLost"]]
    assert_left(rig, reason)


# The lease


def test_the_lease_is_looked_at_before_each_delivery() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.put("b")
    assert rig.source is not None
    rig.clock.advance(SETTINGS.lease.failover_s + 0.1)
    rig.source.run_once()
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "leaseLost"]]
    assert rig.delivered == ["a"]


def test_a_lease_without_a_consumer_is_not_renewed() -> None:
    """It expired by our clock, the consumer left, and then a renewal that was on its way succeeds."""
    rig = Rig()
    rig.deliver("a")
    renewed_s = rig.held.last_renewed_s
    rig.clock.advance(SETTINGS.lease.failover_s + 0.1)
    rig.put("b")
    assert rig.source is not None
    rig.source.run_once()
    rig.finish()
    rig.held.last_renewed_s = renewed_s + SETTINGS.lease.failover_s
    assert rig.held_leases.all() == []


@pytest.mark.parametrize("row", [None, lease(checkpoint=None)], ids=["gone", "without checkpoint"])
def test_a_row_that_is_of_no_use(row: Lease | None) -> None:
    rig = Rig()
    rig.turn()
    if row is None:
        rig.table.delete(SHARD)
    else:
        rig.table.put(row)
    while rig.consumer.run_once() is not None:
        pass
    assert rig.children == [] and rig.held_leases.all() == []


def test_a_lease_that_was_completed_before() -> None:
    rig = Rig(lease(checkpoint=AT_SHARD_END, parent_shard_ids=frozenset({"parent"})))
    rig.table.put(Lease(lease_key="parent", checkpoint=AT_TRIM_HORIZON))
    rig.finish()
    assert rig.children == [] and rig.cleanup.is_queued(SHARD)
    assert rig.held_leases.is_held(rig.held)


@pytest.mark.parametrize("parent", [None, Lease(lease_key="parent", checkpoint=AT_SHARD_END)], ids=["absent", "ended"])
def test_parents_that_do_not_block(parent: Lease | None) -> None:
    rig = Rig(lease(parent_shard_ids=frozenset({"parent"})))
    if parent is not None:
        rig.table.put(parent)
    rig.deliver("a")


def test_parents_are_looked_at_again_after_the_configured_time() -> None:
    rig, _ = blocked()
    assert rig.turn() == SETTINGS.coordinator.parent_shard_poll_s
    rig.table.put(Lease(lease_key="parent", checkpoint=AT_SHARD_END))
    rig.deliver("a")


def test_tables_that_do_not_answer_are_asked_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(lease(parent_shard_ids=frozenset({"parent"})))
    rig.table.faults = lambda operation, key: Fault("refused") if operation == "get" else None
    pauses = [rig.turn() or 0.0 for _ in range(40)]
    assert 0.25 <= pauses[0] <= 0.5 and all(15 <= pause <= 30 for pause in pauses[-10:])
    assert rig.consumer.status().last_error
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) < 10, "the log tells it less often, too"


def test_a_position_that_kinesis_refuses_is_asked_less_and_less() -> None:
    rig = Rig(lease(checkpoint=ExtendedSequenceNumber("7")))
    pauses = [rig.turn() or 0.0 for _ in range(20)]
    assert pauses[1] <= 0.5 and pauses[-1] >= 15
    assert "7" in rig.consumer.status().last_error and rig.children == []


# Children that fail


def fails(at: str, how: str) -> Rig:
    """A consumer whose first child has just failed at `at`, after record a was delivered and checkpointed."""
    rig = Rig()
    rig.stream.page_records = 1
    if at == "start":
        error = ChildStartFailed("no such program")
        starts = iter([error])

        def on_start() -> None:
            for error in starts:
                raise error

        rig.on_start = on_start
    elif at != "idle":
        rig.script = failing(at, how)
    if at in ("start", "initialize"):
        rig.put("a", "b")
    elif at == "processRecords":
        rig.script = _fails_at_record("b", how)
        rig.deliver("a")
        rig.put("b")
    else:
        rig.deliver("a", "b")
    if at == "idle":
        rig.child.on_idle = lambda child: child.exit()
        rig.consumer.wait(IDLE_S)
    if at == "shardEnded":
        rig.end_shard()
    rig.turn_until(lambda: rig.consumer.status().child_failures)
    rig.script = well_behaved
    return rig


def _fails_at_record(text: str, how: str) -> Any:
    fail = failing("processRecords", how)

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        (fail if text in delivered_to(child) else well_behaved)(child, message)

    return script


FAILURES = [
    ("start", "exits"),
    ("idle", "exits"),
    *[(at, how) for at in ("initialize", "processRecords", "shardEnded") for how in ("exits", "hangs", "misbehaves")],
]


@pytest.mark.parametrize(("at", "how"), FAILURES)
def test_a_failed_child_is_restarted_from_the_checkpoint(at: str, how: str) -> None:
    rig = fails(at, how)
    status = rig.consumer.status()
    assert (status.child, status.child_pid, status.child_failures) == ("BACKOFF", None, 1)
    assert status.last_error
    assert all(child.ended for child in rig.children)
    before = len(rig.children)
    checkpoint = rig.row.checkpoint
    assert checkpoint is not None
    pause_s = rig.consumer.run_once()
    assert pause_s is not None and 0.5 <= pause_s <= 1, "the first back-off, jittered"
    rig.turn_until(lambda: len(rig.children) > before)
    assert rig.child.actions[0]["sequenceNumber"] == checkpoint.sequence_number
    if at == "shardEnded":
        rig.finish()
    else:
        rig.deliver("c")
    assert sorted(set(rig.delivered)) == (["a", "b"] if at == "shardEnded" else ["a", "b", "c"])
    assert all(delivered_to(child) == sorted(delivered_to(child)) for child in rig.children)
    assert (rig.consumer.status().child_failures, rig.consumer.status().last_error) == (0, "")
    assert rig.held_leases.is_held(rig.held), "the lease was never in danger"
    for child in rig.children:
        assert_one_life(child.names, complete=False)


@pytest.mark.parametrize("at", ["initialize", "processRecords", "shardEnded", "shutdownRequested", "leaseLost"])
@KINDS
@REASONS
def test_a_child_that_fails_while_a_stop_arrives_is_not_restarted(at: str, how: str, reason: ShutdownReason) -> None:
    fail = failing(at, how)

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == at and at not in ("shutdownRequested", "leaseLost"):
            rig.consumer.stop(reason)
        fail(child, message)

    rig = Rig(script=script)
    rig.put("a")
    if at == "shardEnded":
        rig.end_shard()
    else:
        rig.turn_until(lambda: rig.children and (at == "initialize" or rig.delivered))
    if at in ("shutdownRequested", "leaseLost"):
        rig.consumer.stop(reason)
    rig.finish()
    assert len(rig.children) == 1
    assert_one_life(rig.child.names, complete=False)
    assert_left(rig, reason)


@pytest.mark.parametrize("how", ["exits", "hangs", "misbehaves"])
def test_the_lease_goes_before_a_failed_child_is_ended(how: str) -> None:
    """DESIGN.md 4.2: the clean-up of a child, which may take its whole deadline, never stands in the gap."""
    rig = Rig(script=failing("shutdownRequested", how))
    rig.deliver("a")
    owners: list[str | None] = []
    rig.child.on_end = lambda child: owners.append(rig.row.lease_owner)
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert owners == [None]
    assert rig.calls == [["initialize", "processRecords", "shutdownRequested"]], "a broken dialogue is not gone on with"


def test_a_failed_transfer_after_a_failed_child() -> None:
    rig = Rig(script=failing("shutdownRequested", "hangs"))
    rig.deliver("a")
    refusals = iter([Fault("timed_out"), Fault("throttled")])
    rig.table.faults = lambda operation, key: next(refusals, None) if operation == "evict" else None
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert_left(rig, REQUESTED)


def test_a_child_killed_at_the_deadline() -> None:
    """While it does not answer shutdownRequested."""

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "shutdownRequested":
            rig.consumer.kill_child()
        else:
            child.answer()

    rig = Rig(script=script)
    rig.deliver("a")
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert rig.child.killed
    assert_left(rig, REQUESTED)


def test_a_child_that_is_just_starting_is_killed_too() -> None:
    rig = Rig()

    def on_start() -> None:
        rig.consumer.stop(REQUESTED)
        rig.consumer.kill_child()

    rig.on_start = on_start
    rig.finish()
    assert rig.calls == [[]] and rig.child.killed
    assert_left(rig, REQUESTED)


def test_a_child_that_is_being_ended_can_be_killed() -> None:
    rig = Rig(script=failing("processRecords", "hangs"))
    rig.put("a")
    rig.turn_until(lambda: rig.children)
    rig.child.on_end = lambda child: rig.consumer.kill_child()
    rig.turn_until(lambda: rig.child.ended)
    assert rig.child.killed


@pytest.mark.parametrize("moment", [idle, backing_off], ids=lambda moment: moment.__name__)
def test_a_kill_does_no_harm_at_other_times(moment: Any) -> None:
    rig, _ = moment()
    rig.consumer.stop(LEASE_LOST)
    rig.consumer.kill_child()
    rig.finish()
    rig.consumer.kill_child()
    assert_left(rig, LEASE_LOST)


def test_nothing_is_lost_before_the_first_checkpoint_under_latest() -> None:
    """DESIGN.md 4.1: the restarted child sees again what its predecessor got, and what came meanwhile."""
    settings = msgspec.structs.replace(SETTINGS, initial_position=InitialPosition(kind=LATEST))
    rig = Rig(lease(checkpoint=ExtendedSequenceNumber(LATEST)), script=never_checkpoints, settings=settings)
    rig.put("too early")
    rig.turn_until(lambda: rig.children)
    rig.deliver("a", "b")
    for text in ("c", "d"):
        rig.child.on_idle = lambda child: child.exit()
        rig.turn_until(lambda: rig.consumer.status().child == "BACKOFF")
        rig.deliver(text)
        assert rig.child.actions[0]["sequenceNumber"] == LATEST
    assert [delivered_to(child) for child in rig.children] == [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


def test_a_child_that_dies_before_any_record_under_latest() -> None:
    settings = msgspec.structs.replace(SETTINGS, initial_position=InitialPosition(kind=LATEST))
    rig = Rig(lease(checkpoint=ExtendedSequenceNumber(LATEST)), settings=settings)
    rig.script = failing("initialize", "exits")
    rig.turn_until(lambda: rig.children)
    rig.script = well_behaved
    rig.deliver("came while there was no child")


def test_only_a_checkpoint_that_moves_makes_failures_forgotten() -> None:
    """A child that dies on the same record each time is FATAL in the end, however long it lives between."""
    rig = Rig(script=_fails_at_record("poison", "exits"))
    rig.stream.page_records = 1
    rig.deliver("a")
    rig.put("poison")
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    assert rig.consumer.status().child_failures == SETTINGS.child.failures_before_handover == len(rig.children)
    started_s = rig.clock.monotonic()
    count = len(rig.children)
    rig.turn_until(lambda: len(rig.children) > count)
    assert rig.clock.monotonic() - started_s >= SETTINGS.child.fatal_retry_s / 2 - 2
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    rig.script = well_behaved
    rig.turn_until(lambda: rig.delivered.count("poison") > len(rig.children) - 1)
    rig.turn_until(lambda: rig.consumer.status().child_failures == 0)


def test_a_wait_for_a_restart_is_bounded_and_no_busy_loop() -> None:
    rig, _ = fatal()
    pause_s = rig.consumer.run_once()
    assert pause_s is not None and 1 < pause_s <= IDLE_S


def test_the_policy_exit_stops_the_worker_and_restarts_nothing() -> None:
    rig = Rig(script=failing("processRecords", "exits"), settings=with_child(failure_policy="exit"))
    rig.put("a")
    rig.turn_until(lambda: rig.fatal)
    assert [type(error) for error in rig.fatal] == [ChildExited]
    for _ in range(20):
        rig.turn()
    assert len(rig.children) == 1 and len(rig.fatal) == 1
    rig.consumer.stop(REQUESTED)
    rig.finish()
    assert rig.row.lease_owner is None


@REASONS
def test_the_policy_exit_is_for_workers_that_are_to_go_on(reason: ShutdownReason) -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        rig.consumer.stop(reason)
        child.exit()

    rig = Rig(script=script, settings=with_child(failure_policy="exit"))
    rig.finish()
    assert_left(rig, reason)


def test_a_checkpoint_refused_for_its_credentials_is_answered() -> None:
    """The child waits for an answer: without one the dialogue would stand still for ever, and its batches be lost."""
    rig = Rig()
    rig.table.faults = lambda operation, key: Fault("refused") if operation == "checkpoint" else None
    rig.deliver("a")
    assert rig.child.answers == ["KinesisClientLibDependencyException"]
    rig.table.faults = lambda operation, key: None
    numbers = rig.deliver("b")
    assert rig.row.checkpoint == ExtendedSequenceNumber(numbers[0]) and len(rig.children) == 1


def test_a_checkpoint_that_fails_names_why() -> None:
    rig = Rig()
    rig.table.faults = lambda operation, key: Fault("throttled") if operation == "checkpoint" else None
    rig.deliver("a")
    rig.table.faults = lambda operation, key: Fault("timed_out") if operation == "checkpoint" else None
    rig.deliver("b")
    rig.table.faults = lambda operation, key: None
    numbers = rig.deliver("c")
    assert rig.child.answers == ["ThrottlingException", "KinesisClientLibDependencyException", None]
    assert rig.row.checkpoint == ExtendedSequenceNumber(numbers[0])


# Shard end


def test_the_children_may_start_before_the_child_has_ended() -> None:
    rig = Rig()
    ends: list[int] = []
    rig.turn_until(lambda: rig.children)
    rig.child.on_end = lambda child: ends.append(rig.shard_ends)
    rig.end_shard()
    rig.finish()
    assert ends == [1]


def test_the_leases_of_the_child_shards_stand_before_the_child_may_checkpoint_the_end() -> None:
    rig = Rig()
    writes: list[str] = []
    rig.table.watch = lambda operation, before, after: writes.append(operation)
    rig.end_shard()
    rig.finish()
    assert [write for write in writes if write != "renew"] == ["create", "create", "write_child_shards", "checkpoint"]


def test_a_child_that_does_not_checkpoint_the_end_is_asked_again_then_fatal() -> None:
    rig = Rig(script=never_checkpoints)
    rig.put("a")
    rig.end_shard()
    rig.turn_until(lambda: rig.consumer.status().child == "FATAL")
    assert rig.calls == [["initialize", "processRecords", "shardEnded"]] * 3
    assert "must checkpoint" in rig.consumer.status().last_error
    assert not rig.cleanup.is_queued(SHARD) and rig.shard_ends == 0
    rig.script = well_behaved
    rig.finish()
    assert rig.row.checkpoint == AT_SHARD_END


def test_a_child_that_checkpoints_the_end_and_dies_is_not_needed_any_more() -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "shardEnded":
            child.checkpoint()
            child.exit()
        child.answer()

    rig = Rig(script=script)
    rig.end_shard()
    rig.finish()
    assert len(rig.children) == 1 and rig.shard_ends == 1 and rig.child.ended
    assert rig.consumer.status().child_failures == 0, "nothing waits for a restart"


def test_an_end_whose_answer_was_lost_needs_no_other_child() -> None:
    """The write took effect, the child was told that it failed and gave up: the row says SHARD_END all the same."""
    rig = Rig()
    rig.table.faults = lambda operation, key: Fault("answer_lost") if operation == "checkpoint" else None
    rig.end_shard()
    rig.finish()
    assert rig.calls == [["initialize", "shardEnded"]] and rig.child.answers == ["KinesisClientLibDependencyException"]
    assert rig.row.checkpoint == AT_SHARD_END and rig.shard_ends == 1 and rig.cleanup.is_queued(SHARD)


def test_a_shard_that_is_gone_ends_without_children() -> None:
    """Rule 12."""
    rig = Rig()
    rig.deliver("a")
    rig.stream.deleted = True
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "shardEnded"]]
    assert rig.row.checkpoint == AT_SHARD_END and rig.cleanup.is_queued(SHARD)


def waiting_for_a_merge_partner() -> tuple[Rig, Lease]:
    """At the end of a shard that was merged with one that has no lease yet; that lease, to be put."""
    rig = Rig(shards=2)
    first, second = rig.stream.open_shard_ids
    rig.deliver("a")
    rig.stream.merge(first, second)
    rig.turn_until(lambda: rig.consumer.status().last_error)
    assert "merge_parent_without_lease" in rig.consumer.status().last_error
    return rig, Lease(lease_key=second, checkpoint=AT_TRIM_HORIZON)


def test_the_end_of_a_merged_shard_waits_for_the_lease_of_its_partner() -> None:
    rig, partner = waiting_for_a_merge_partner()
    rig.turn()
    assert rig.child.names == ["initialize", "processRecords"]
    rig.table.put(partner)
    rig.finish()
    assert rig.calls == [["initialize", "processRecords", "shardEnded"]]


@REASONS
def test_a_worker_that_stops_does_not_wait_for_a_merge_partner(reason: ShutdownReason) -> None:
    rig, _ = waiting_for_a_merge_partner()
    rig.consumer.stop(reason)
    rig.finish()
    told = ["shutdownRequested", "leaseLost"] if reason is REQUESTED else ["leaseLost"]
    assert rig.calls == [["initialize", "processRecords", *told]]
    assert_left(rig, reason)


def test_a_child_that_dies_while_its_shard_waits_to_end() -> None:
    rig, partner = waiting_for_a_merge_partner()
    rig.child.on_idle = lambda child: child.exit()
    rig.turn_until(lambda: rig.consumer.status().child == "BACKOFF")
    rig.table.put(partner)
    rig.finish()
    assert rig.calls == [["initialize", "processRecords"], ["initialize", "shardEnded"]]


@REASONS
def test_a_table_that_fails_at_shard_end_keeps_nobody(reason: ShutdownReason) -> None:
    rig = Rig()
    rig.deliver("a")
    rig.end_shard()
    rig.table.faults = lambda operation, key: Fault("timed_out") if operation == "create" else None
    rig.turn_until(lambda: rig.consumer.status().last_error)
    assert rig.child.idle_waits[-1] == (False, SETTINGS.lifecycle.task_backoff_s)
    rig.table.faults = lambda operation, key: None
    rig.consumer.stop(reason)
    rig.finish()
    assert rig.calls == [
        ["initialize", "processRecords", "shardEnded" if reason is REQUESTED else "leaseLost"],
    ]
    assert rig.held_leases.all() == []


def test_an_ended_shard_with_a_pending_handover_goes_to_its_owner() -> None:
    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] == "shardEnded":
            rig.table.put(msgspec.structs.replace(rig.row, lease_owner="other", checkpoint_owner=ME))
            rig.renew()
            rig.consumer.stop(REQUESTED)
        well_behaved(child, message)

    rig = Rig(script=script)
    rig.alive("other")
    rig.end_shard()
    rig.finish()
    assert rig.row.checkpoint == AT_SHARD_END
    assert (rig.row.lease_owner, rig.row.checkpoint_owner) == ("other", None)


def test_a_row_that_vanishes_before_the_shard_end() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.turn()
    rig.end_shard()
    rig.table.delete(SHARD)
    while rig.consumer.run_once() is not None:
        rig.clock.advance(2)
        assert rig.source is not None
        rig.source.run_once()
    assert rig.calls == [["initialize", "processRecords", "leaseLost"]]
    assert rig.held_leases.all() == []


# The thread


def test_a_bug_is_told_and_everything_is_closed() -> None:
    rig = Rig()

    def broken(operation: str, key: str) -> None:
        raise ZeroDivisionError("a bug")

    rig.turn_until(lambda: rig.children)
    rig.end_shard()
    rig.clock.advance(2)
    assert rig.source is not None
    rig.source.run_once()
    rig.table.faults = broken
    rig.consumer.run()
    assert [type(error) for error in rig.fatal] == [ZeroDivisionError]
    assert rig.consumer.handoff.closed and rig.child.ended and rig.source.stopped
    assert rig.held_leases.is_held(rig.held), "the worker stops, and gives the lease up then"


def test_a_dead_source_is_not_mistaken_for_a_quiet_one() -> None:
    rig = Rig()
    rig.deliver("a")
    rig.consumer.handoff.fail(ZeroDivisionError("a bug in the source"))
    rig.consumer.run()
    assert [type(error) for error in rig.fatal] == [ZeroDivisionError]


def test_the_log_names_shard_and_child(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(script=failing("processRecords", "exits"))
    rig.put("a")
    rig.turn_until(lambda: rig.consumer.status().child_failures)
    by_action = {getattr(record, "action", ""): record for record in caplog.records}
    for action in ("child_initialized", "child_failed", "child_ended"):
        assert by_action[action].child_pid == rig.child.pid and by_action[action].shard == SHARD
    assert not hasattr(by_action["child_backoff"], "child_pid")


def test_a_task_that_takes_long_is_said(caplog: pytest.LogCaptureFixture) -> None:
    lifecycle = msgspec.structs.replace(SETTINGS.lifecycle, log_warning_for_task_after_s=5)

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        for _ in range(3):
            rig.clock.advance(2)
            rig.renew()
            rig.consumer.warn_if_slow()
        child.answer()

    rig = Rig(script=script, settings=msgspec.structs.replace(SETTINGS, lifecycle=lifecycle))
    rig.turn_until(lambda: rig.children)
    rig.clock.advance(60)
    rig.renew()
    rig.consumer.warn_if_slow()
    slow = [record for record in caplog.records if getattr(record, "action", "") == "task_slow"]
    assert [(record.task, record.for_s) for record in slow] == [("INITIALIZING", 6.0)]
