"""A shard consumer met by any events in any order: it never leaves its table, and a lost lease always ends it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kcl_host.decisions.consumer_state import (
    EVENT_OF,
    TRANSITIONS,
    ChildAction,
    ConsumerEvent,
    ConsumerState,
    ShutdownReason,
    child_action,
    event_of_child_failure,
    next_state,
    stronger,
)

S = ConsumerState


class Consumer(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = S.WAITING_ON_PARENT_SHARDS
        self.reason: ShutdownReason | None = None
        self.initialized = False
        self.told: list[ChildAction] = []

    @rule(reason=st.sampled_from(ShutdownReason))
    def stop(self, reason: ShutdownReason) -> None:
        self.reason = stronger(self.reason, reason)
        assert self.reason is not None
        self.state = next_state(self.state, EVENT_OF[self.reason])

    @rule()
    def task_succeeds(self) -> None:
        if self.state is S.SHUTDOWN_COMPLETE:
            return
        action = child_action(self.state, self.reason, initialized=self.initialized, row_at_shard_end=False)
        self.told.append(action)
        if self.state is S.INITIALIZING:
            self.initialized = True
        self.state = next_state(self.state, ConsumerEvent.TASK_SUCCEEDED)

    @rule()
    def task_fails(self) -> None:
        if self.state is not S.SHUTDOWN_COMPLETE:
            assert next_state(self.state, ConsumerEvent.TASK_FAILED) is self.state

    @rule()
    def child_fails(self) -> None:
        if self.state in (S.WAITING_ON_PARENT_SHARDS, S.SHUTDOWN_COMPLETE) or not self.initialized:
            return
        event = event_of_child_failure(self.state, self.reason)
        self.state = next_state(self.state, event)
        self.initialized = False
        if self.state is S.INITIALIZING:
            self.reason = None
            self.told.clear()

    @invariant()
    def a_lost_lease_is_two_steps_from_the_end(self) -> None:
        state = next_state(self.state, ConsumerEvent.LEASE_LOST)
        assert state in (S.SHUTTING_DOWN, S.SHUTDOWN_COMPLETE)
        if state is S.SHUTTING_DOWN:
            assert next_state(state, ConsumerEvent.TASK_SUCCEEDED) is S.SHUTDOWN_COMPLETE

    @invariant()
    def the_state_is_in_the_table(self) -> None:
        assert self.state in TRANSITIONS

    @invariant()
    def a_child_hears_one_farewell(self) -> None:
        farewells = [a for a in self.told if a in (ChildAction.LEASE_LOST, ChildAction.SHARD_ENDED)]
        assert len(farewells) <= 1


TestConsumer = Consumer.TestCase
TestConsumer.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
