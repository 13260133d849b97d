"""A holder of leases, a leader who disposes of them, and a table whose answers get lost, in any order.

Each request may be throttled, time out before it takes effect, lose its answer after it, or take effect late: after
the requests that follow it. What must hold all the time stands in the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kcl_host.config.settings import AssignmentSettings
from kcl_host.coordination.discovery import Discovery
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.renewal import Renewal
from kcl_host.errors import RetryLater, Unavailable
from kcl_host.model.lease import Lease, WriteOutcome
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault, no_faults
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.unit.coordination_rig import ME, OTHER, THIRD, Worker, lease

KEYS = ("s1", "s2")
FAILOVER_S = 10.0
WRITES = ("renew", "checkpoint", "prepare_checkpoint", "assign", "evict", "initiate_handoff")
keys = st.sampled_from(KEYS)
delays = st.sampled_from((0.0, 0.0, 0.5, 3.0))


class OurTable:
    """The table as this worker sees it. `writer` says whose incarnation is at work while one of its writes applies."""

    def __init__(self, table: InMemoryLeaseTable) -> None:
        self.table = table
        self.faults: list[Fault] = []
        self.late = False
        self.in_flight: list[Callable[[], object]] = []
        self.writing = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.table, name)

        def request(*args: Any) -> Any:
            fault = self.faults.pop(0) if self.faults else None
            self.table.faults = lambda operation, key: fault
            self.writing = True
            try:
                if self.late and name in WRITES:
                    self.late = False
                    self.in_flight.append(lambda: self._arrive(method, args))
                    raise Unavailable("the request is still on its way")
                return method(*args)
            finally:
                self.writing = False
                self.table.faults = no_faults

        return request

    def _arrive(self, method: Callable[..., WriteOutcome], args: tuple[Any, ...]) -> None:
        self.writing = True
        method(*args)
        self.writing = False


def pending(row: Lease) -> tuple[ExtendedSequenceNumber | None, bytes | None]:
    return row.pending_checkpoint, row.pending_checkpoint_state


class Holder(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        rig = Worker()
        self.clock, self.table = rig.clock, rig.table
        self.ours = OurTable(self.table)
        self.lost: list[str] = []
        self.tokens = 0
        self.incarnations: list[HeldLease] = []
        self.disposed_of: set[str] = set()
        self.acknowledged = dict.fromkeys(KEYS, AT_TRIM_HORIZON)
        self.requested = 0
        self.given_to_us_s = dict.fromkeys(KEYS, self.clock.monotonic())
        self.assigned: list[tuple[Lease, float, list[HeldLease]]] = []
        self.table.watch = self.on_write
        self.held_leases = HeldLeases(
            self.ours,  # type: ignore[arg-type]
            ME,
            rig.settings,
            self.clock,
            self.new_token,
            self.on_lost,
        )
        self.discovery = Discovery(
            self.ours,  # type: ignore[arg-type]
            self.held_leases,
            ME,
            rig.settings,
            AssignmentSettings(),
            self.clock,
            lambda: False,
            self.on_found,
        )
        self.renewal = Renewal(
            self.held_leases,
            rig.settings,
            self.clock,
            lambda renew, all_held: [renew(held) for held in all_held] and None,
            lambda held: None,
        )
        for key in KEYS:
            self.table.put(lease(key, counter=1))
        self.discover()

    def new_token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def on_write(self, operation: str, before: Lease | None, after: Lease | None) -> None:
        """Every write that takes effect, whoever's."""
        assert before is not None and after is not None
        if operation in ("assign", "evict"):
            self.disposed_of.add(after.lease_key)
        if self.ours.writing and operation in WRITES:
            assert before.actual_owner == ME, f"{operation} of a lease that belongs to {before.actual_owner}"
        if self.ours.writing and operation in ("renew", "checkpoint", "prepare_checkpoint"):
            self.given_to_us_s[after.lease_key] = self.clock.monotonic()
        if operation == "prepare_checkpoint":
            assert after.checkpoint == before.checkpoint, "a prepared checkpoint moved the checkpoint"
        elif operation != "checkpoint":
            assert pending(after) == pending(before), f"{operation} changed what was prepared"
        else:
            assert pending(after) == (None, None)
        if not self.ours.writing and operation == "assign" and after.lease_owner == ME:
            self.given_to_us_s[after.lease_key] = self.clock.monotonic()

    def on_found(self, held: HeldLease) -> None:
        self.incarnations.append(held)
        if self.table.rows[held.lease_key] == held.lease:
            self.disposed_of.discard(held.lease_key)

    def on_lost(self, held: HeldLease, reason: str) -> None:
        self.lost.append(held.token)
        if held in self.incarnations and not reason.startswith(("not renewed", "handed over")):
            assert held.lease_key in self.disposed_of, f"lost for nothing: {reason}"

    # Weather

    @rule(fault=st.sampled_from((THROTTLED, TIMED_OUT, ANSWER_LOST, Fault())), before_s=delays, after_s=delays)
    def next_request_meets_a_fault(self, fault: Fault, before_s: float, after_s: float) -> None:
        self.ours.faults.append(msgspec.structs.replace(fault, before_s=before_s, after_s=after_s))

    @rule()
    def next_write_arrives_late(self) -> None:
        self.ours.late = True

    @precondition(lambda self: self.ours.in_flight)
    @rule()
    def a_late_write_arrives(self) -> None:
        self.ours.in_flight.pop(0)()

    @rule(seconds=st.sampled_from((0.01, 1.0, 3.4, 9.0, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # This worker

    @rule()
    def discover(self) -> None:
        self.clock.advance(1.0)
        try:
            self.discovery.run_once()
        except RetryLater:
            pass

    @rule(wait_s=st.sampled_from((0.0, 1.0, 3.4)))
    def renew(self, wait_s: float) -> None:
        self.clock.advance(wait_s)
        assert self.renewal.run_once() >= 0.0

    @rule(key=keys, step=st.integers(-2, 3))
    def checkpoint(self, key: str, step: int) -> None:
        """The child asks for a position, which is never below what was acknowledged to it."""
        held = self.held_leases.get(key)
        if held is None:
            return
        self.requested = max(self.requested + step, 1)
        position = max(ExtendedSequenceNumber(str(self.requested)), self.acknowledged[key])
        if self.held_leases.checkpoint(held, position).error is None:
            assert self.table.rows[key].checkpoint == position, "acknowledged, so it stands in the table"
            self.acknowledged[key] = position

    @rule(key=keys, position=st.integers(1, 9), state=st.sampled_from((None, b"", b"x")))
    def prepare_checkpoint(self, key: str, position: int, state: bytes | None) -> None:
        held = self.held_leases.get(key)
        if held is None:
            return
        prepared = ExtendedSequenceNumber(str(position))
        if self.held_leases.prepare_checkpoint(held, prepared, state).error is None:
            assert pending(self.table.rows[key]) == (prepared, state), "acknowledged, so it stands in the table"

    @rule(key=keys, how=st.sampled_from(("give up", "leave", "drop")))
    def part_with(self, key: str, how: str) -> None:
        held = self.held_leases.get(key)
        if held is None:
            return
        try:
            if how == "drop":
                assert self.held_leases.drop(held)
            elif how == "leave":
                self.held_leases.initiate_handover(held, OTHER)
                return
            elif held.lease.is_handover_pending:
                self.held_leases.give_away(held)
            else:
                self.held_leases.give_away(held)
        except RetryLater:
            return
        assert not self.held_leases.is_held(held)

    @rule(key=keys)
    def our_leader_assigns_to_us(self, key: str) -> None:
        ended = [held for held in self.incarnations if self.held_leases.get(held.lease_key) is not held]
        sent_at_s = self.clock.monotonic()
        row = self.table.assign(self.table.rows[key], ME).row
        assert row is not None
        self.assigned.append((row, sent_at_s, ended))
        self.clock.advance(0.001)

    @precondition(lambda self: self.assigned)
    @rule()
    def and_its_thread_takes_the_lease_up_later(self) -> None:
        row, sent_at_s, ended_before = self.assigned.pop(0)
        ended_since = [
            held
            for held in self.incarnations
            if held.lease_key == row.lease_key
            and held not in ended_before
            and self.held_leases.get(held.lease_key) is not held
        ]
        if self.discovery.take_up(row, sent_at_s):
            assert not ended_since, "the lease was lost or given away since"
            if self.table.rows[row.lease_key].actual_owner != ME:
                self.held_leases.drop(self.incarnations[-1])  # Never ours: somebody disposed of it in between.

    @precondition(lambda self: self.incarnations)
    @rule(data=st.data())
    def a_former_incarnation_wakes_up(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.incarnations))
        if self.held_leases.get(held.lease_key) is held:
            return
        rows = self.table.rows
        requests = dict(self.table.requests)
        position = ExtendedSequenceNumber("999")
        assert self.held_leases.checkpoint(held, position).error == "ShutdownException"
        assert self.held_leases.prepare_checkpoint(held, position, None).error == "ShutdownException"
        assert self.held_leases.renew(held, 0.0) == "lost"
        self.held_leases.initiate_handover(held, OTHER)
        self.held_leases.give_away(held)
        assert self.held_leases.give_away(held) is None
        assert self.table.rows == rows
        assert dict(self.table.requests) == requests

    # The leader and another worker: nothing keeps them from acting at any moment

    @rule(key=keys, to=st.sampled_from((ME, OTHER, None)))
    def leader_disposes(self, key: str, to: str | None) -> None:
        row = self.table.rows[key]
        if to is None:
            self.table.evict(row)
        else:
            self.table.assign(row, to)

    @rule(key=keys, to=st.sampled_from((OTHER, THIRD)))
    def leader_announces_a_handover(self, key: str, to: str) -> None:
        row = self.table.rows[key]
        if row.actual_owner == ME:
            self.table.initiate_handoff(row, to)
        elif row.lease_owner is not None:
            self.table.initiate_handoff(row, ME)

    @rule(key=keys)
    def other_owner_acts(self, key: str) -> None:
        """Renews what it owns; completes the handover that is asked of it."""
        row = self.table.rows[key]
        if row.actual_owner not in (None, ME):
            if row.is_handover_pending and row.lease_owner is not None:
                self.table.assign(row, row.lease_owner)
            else:
                self.table.renew(row, None)

    # What always holds

    @invariant()
    def checkpoints_never_go_back_below_what_was_acknowledged(self) -> None:
        for key, position in self.acknowledged.items():
            checkpoint = self.table.rows[key].checkpoint
            assert checkpoint is not None and checkpoint >= position

    @invariant()
    def nothing_is_believed_for_longer_than_the_lease_after_the_last_write(self) -> None:
        for held in self.held_leases.all():
            if self.held_leases.is_held(held) and self.table.rows[held.lease_key].actual_owner != ME:
                assert self.clock.monotonic() - self.given_to_us_s[held.lease_key] <= FAILOVER_S

    @invariant()
    def a_loss_is_told_once(self) -> None:
        assert len(self.lost) == len(set(self.lost))
        assert not {held.token for held in self.held_leases.all()} & set(self.lost)

    @invariant()
    def one_incarnation_of_a_lease_at_a_time(self) -> None:
        current = [held for held in self.incarnations if self.held_leases.is_held(held)]
        assert len({held.lease_key for held in current}) == len(current)

    def teardown(self) -> None:
        """In good weather belief and table agree again, and every lease that names us is held."""
        if not hasattr(self, "ours"):
            return
        self.ours.faults.clear()
        self.ours.late = False
        for arrive in self.ours.in_flight:
            arrive()
        for _ in range(8):
            self.clock.advance(3.4)
            self.renewal.run_once()
            self.discovery.run_once()
        for key, row in self.table.rows.items():
            held = self.held_leases.get(key)
            if row.lease_owner == ME and not row.is_handover_pending:
                assert held is not None and self.held_leases.is_held(held)
            if held is not None:
                assert self.held_leases.is_held(held)
                assert held.lease == row


TestHolder = Holder.TestCase
TestHolder.settings = settings(max_examples=60, stateful_step_count=50)
