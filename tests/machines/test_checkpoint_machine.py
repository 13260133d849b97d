"""A shard consumer's checkpoints over its whole life: whatever the child asks for, the row only moves forward, never
beyond what was delivered, and a child that follows the rules can always end the shard. What is prepared beside the
checkpoint never moves it, and can be made as long as nothing else was; a handover leaves no lie."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kcl_host.decisions.checkpoint import (
    HANDOVER_STATE,
    Refused,
    Write,
    delivered,
    entering_shard_end,
    handover_note,
    prepared_checkpoint,
    replay_end,
    resolve,
    started,
    written,
)
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber, PreparedCheckpoint


class Checkpoints(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.row = ExtendedSequenceNumber("TRIM_HORIZON")
        self.state = started(self.row)
        self.next = 1
        self.delivered: list[ExtendedSequenceNumber] = []
        self.ended = False
        self.pending: PreparedCheckpoint | None = None
        self.prepared: PreparedCheckpoint | None = None
        """By the child, and not yet replaced or ended."""

    @property
    def lease(self) -> Lease:
        position, state = (self.pending.position, self.pending.state) if self.pending else (None, None)
        return Lease(lease_key="s", checkpoint=self.row, pending_checkpoint=position, pending_checkpoint_state=state)

    def ask(self, sequence_number: str | None, sub: int | None, *, answer_lost: bool = False) -> bool:
        outcome = resolve(self.state, sequence_number, sub)
        if isinstance(outcome, Write):
            assert self.row < outcome.position
            assert outcome.position.is_shard_end or outcome.position <= self.delivered[-1]
            assert self.ended or not outcome.position.is_shard_end
            if not answer_lost:
                self.row = outcome.position
                self.state = written(self.state, outcome.position)
                self.pending = self.prepared = None
        return not isinstance(outcome, Refused)

    @precondition(lambda self: not self.ended)
    @rule(subs=st.integers(1, 3))
    def deliver(self, subs: int) -> None:
        self.delivered += [ExtendedSequenceNumber(str(self.next), sub) for sub in range(subs)]
        self.next += 1
        self.state = delivered(self.state, self.delivered[-1])

    @rule()
    def end(self) -> None:
        self.ended = True
        self.state = entering_shard_end(self.state)

    @rule(n=st.none() | st.integers(0, 40), sub=st.none() | st.integers(-1, 3))
    def ask_for_anything(self, n: int | None, sub: int | None) -> None:
        self.ask(None if n is None else str(n), sub)

    @rule()
    def ask_for_all(self) -> None:
        assert self.ask(None, None)
        if self.ended:
            assert self.row == AT_SHARD_END

    @precondition(lambda self: self.delivered)
    @rule()
    def ask_for_the_last_record_by_number(self) -> None:
        last = self.delivered[-1]
        assert self.ask(last.sequence_number, last.sub_sequence_number)
        assert self.row == (AT_SHARD_END if self.ended else last)

    @rule(
        n=st.none() | st.integers(0, 40), sub=st.none() | st.integers(-1, 3), state=st.sampled_from((None, b"", b"x"))
    )
    def prepare(self, n: int | None, sub: int | None, state: bytes | None) -> None:
        outcome = resolve(self.state, None if n is None else str(n), sub)
        if isinstance(outcome, Write):
            assert self.row < outcome.position
            assert outcome.position.is_shard_end or outcome.position <= self.delivered[-1]
            assert self.ended or not outcome.position.is_shard_end
            self.pending = self.prepared = PreparedCheckpoint(outcome.position, state)

    @precondition(lambda self: self.prepared)
    @rule()
    def make_the_checkpoint_that_was_prepared(self) -> None:
        position = self.prepared.position
        # At the end of the shard, too, a child may not go beyond what this one was given.
        largest_delivered = self.state.at_shard_end or self.state.largest_permitted
        may_be_made = position <= largest_delivered or (position.is_shard_end and self.ended)
        assert self.ask(position.sequence_number, position.sub_sequence_number) == may_be_made
        assert not may_be_made or self.row == position or (self.ended and self.row == AT_SHARD_END)

    @rule()
    def hand_over(self) -> None:
        """The note of the owner that leaves, and a child on the next one, to which nothing was delivered so far."""
        note = handover_note(self.state, self.lease)
        if note is not None:
            assert self.row < note <= self.delivered[-1]
            assert self.prepared is None
            self.pending = PreparedCheckpoint(note, HANDOVER_STATE)
        if not self.row.is_shard_end and self.prepared is None:
            seen = self.state.at_shard_end or self.state.largest_permitted
            assert (replay_end(self.lease) or self.row) >= seen, "somebody delivered more than the note tells"
        if not self.row.is_shard_end:
            self.state, self.ended = started(self.row), False
            self.delivered = [position for position in self.delivered if position <= self.row]
            self.next = int(self.delivered[-1].sequence_number) + 1 if self.delivered else 1

    @rule()
    def ask_but_the_write_fails(self) -> None:
        self.ask(None, None, answer_lost=True)

    @precondition(lambda self: not self.row.is_shard_end)
    @rule()
    def restart(self) -> None:
        """A new child reads again from the row's checkpoint."""
        self.state = started(self.row)
        self.ended = False
        for position in self.delivered:
            if position > self.row:
                self.state = delivered(self.state, position)

    @invariant()
    def last_is_the_row_and_not_beyond_the_largest(self) -> None:
        assert self.state.last == self.row
        assert self.state.last <= self.state.largest_permitted

    @invariant()
    def a_child_is_told_what_a_child_prepared(self) -> None:
        assert prepared_checkpoint(self.lease) == self.prepared
        assert self.prepared is None or replay_end(self.lease) is None


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = settings(max_examples=60, stateful_step_count=30)
