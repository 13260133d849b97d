"""The shard consumer's table (consumer-lifecycle 2 and 6; KCL 3.5.1 ConsumerStates, ShutdownReason)."""

from __future__ import annotations

import itertools

import pytest

from kcl_host.decisions.consumer_state import (
    EVENT_OF,
    TRANSITIONS,
    ConsumerEvent,
    ConsumerState,
    ShutdownReason,
    mermaid,
    next_state,
    stronger,
)
from kcl_host.errors import KclHostError

S, E, R = ConsumerState, ConsumerEvent, ShutdownReason


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(S)
    assert set(EVENT_OF) == set(R)


@pytest.mark.parametrize("state, event", list(itertools.product(S, E)))
def test_every_event_leads_to_a_state_or_is_an_error(state: ConsumerState, event: ConsumerEvent) -> None:
    if event in TRANSITIONS[state]:
        assert next_state(state, event) in S
    else:
        with pytest.raises(KclHostError, match=f"{state.value} cannot meet the event '{event.value}'"):
            next_state(state, event)


@pytest.mark.parametrize(
    "state, requested, shard_end, lease_lost",
    [
        (S.WAITING_ON_PARENT_SHARDS, S.SHUTTING_DOWN, S.SHUTTING_DOWN, S.SHUTTING_DOWN),
        (S.INITIALIZING, S.SHUTDOWN_REQUESTED, S.SHUTTING_DOWN, S.SHUTTING_DOWN),
        (S.PROCESSING, S.SHUTDOWN_REQUESTED, S.SHUTTING_DOWN, S.SHUTTING_DOWN),
        (S.SHUTDOWN_REQUESTED, S.SHUTDOWN_REQUESTED, S.SHUTTING_DOWN, S.SHUTTING_DOWN),
    ],
)
def test_shutdown_reasons_move_the_state_as_in_java(
    state: ConsumerState, requested: ConsumerState, shard_end: ConsumerState, lease_lost: ConsumerState
) -> None:
    assert [next_state(state, EVENT_OF[reason]) for reason in R] == [requested, shard_end, lease_lost]


@pytest.mark.parametrize("state", [s for s in S if s is not S.SHUTDOWN_COMPLETE])
def test_a_failed_task_does_not_hold_back_the_loss_of_the_lease(state: ConsumerState) -> None:
    """consumer-lifecycle 6: in Java each of these repeats its task although the lease is gone."""
    after = next_state(next_state(state, E.TASK_FAILED), E.LEASE_LOST)
    assert after is S.SHUTTING_DOWN
    assert next_state(after, E.TASK_SUCCEEDED) is S.SHUTDOWN_COMPLETE


def test_the_shortest_life() -> None:
    state = S.WAITING_ON_PARENT_SHARDS
    seen = [state]
    for event in [E.TASK_SUCCEEDED, E.TASK_SUCCEEDED, E.TASK_SUCCEEDED, E.SHARD_END, E.TASK_SUCCEEDED, E.LEASE_LOST]:
        state = next_state(state, event)
        seen.append(state)
    assert seen == [
        S.WAITING_ON_PARENT_SHARDS, S.INITIALIZING, S.PROCESSING, S.PROCESSING, S.SHUTTING_DOWN,
        S.SHUTDOWN_COMPLETE, S.SHUTDOWN_COMPLETE,
    ]  # fmt: skip


def test_a_reason_replaces_only_a_weaker_one() -> None:
    assert stronger(None, None) is None
    assert stronger(None, R.REQUESTED) is R.REQUESTED
    assert stronger(R.SHARD_END, R.REQUESTED) is R.SHARD_END
    assert stronger(R.REQUESTED, R.LEASE_LOST) is R.LEASE_LOST
    assert stronger(R.LEASE_LOST, R.SHARD_END) is R.LEASE_LOST


def test_the_diagram_shows_every_transition() -> None:
    lines = mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    WAITING_ON_PARENT_SHARDS --> SHUTTING_DOWN: requested, shard end, lease lost" in lines
    arrows = [line.split(": ")[1].split(", ") for line in lines if ": " in line]
    assert sum(map(len, arrows)) == sum(map(len, TRANSITIONS.values()))
