"""The life of a shard consumer, as a table.

One consumer per lease acquisition. Its state says which task it runs; events move it on; every transition stands in
this file. An event that is absent from the table is our own mistake.

Source: KCL 3.5.1 ConsumerStates, ShardConsumer, ShutdownReason; spec consumer-lifecycle 2 and 6. Where we differ, on
purpose: a failed task never holds back a shutdown (in Java a consumer that waits for its parents, or fails to
initialise, repeats that task although its lease is gone), and a failed child leads back to INITIALIZING instead of
out of the process.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from kcl_host.errors import KclHostError


class ConsumerState(Enum):
    WAITING_ON_PARENT_SHARDS = "WAITING_ON_PARENT_SHARDS"
    """Polls the parents' rows until each is at SHARD_END or gone. No child process yet."""
    INITIALIZING = "INITIALIZING"
    """Reads the checkpoint, opens the source, starts the child and tells it `initialize`; also after each restart."""
    PROCESSING = "PROCESSING"
    """One task per batch."""
    SHUTDOWN_REQUESTED = "SHUTDOWN_REQUESTED"
    """Tells the child `shutdownRequested`, hands the lease over, then waits for the lease to go."""
    SHUTTING_DOWN = "SHUTTING_DOWN"
    """Tells the child `leaseLost` or `shardEnded` and ends it."""
    SHUTDOWN_COMPLETE = "SHUTDOWN_COMPLETE"


class ShutdownReason(IntEnum):
    """Why a consumer stops. A reason only ever replaces a weaker one."""

    REQUESTED = 1
    """The worker stops, or the leader moves the lease: the lease is still held."""
    SHARD_END = 2
    LEASE_LOST = 3


class ConsumerEvent(Enum):
    TASK_SUCCEEDED = "task succeeded"
    TASK_FAILED = "task failed"
    """The task of this state failed on our side (a table or stream did not answer) and is to be repeated."""
    CHILD_FAILED = "child failed"
    """The child died, hung, broke the protocol, or answered `shardEnded` without a checkpoint at SHARD_END."""
    REQUESTED = "requested"
    SHARD_END = "shard end"
    LEASE_LOST = "lease lost"


_S: Final = ConsumerState
_E: Final = ConsumerEvent

EVENT_OF: Final[dict[ShutdownReason, ConsumerEvent]] = {
    ShutdownReason.REQUESTED: _E.REQUESTED,
    ShutdownReason.SHARD_END: _E.SHARD_END,
    ShutdownReason.LEASE_LOST: _E.LEASE_LOST,
}

TRANSITIONS: Final[dict[ConsumerState, dict[ConsumerEvent, ConsumerState]]] = {
    _S.WAITING_ON_PARENT_SHARDS: {
        _E.TASK_SUCCEEDED: _S.INITIALIZING,
        _E.TASK_FAILED: _S.WAITING_ON_PARENT_SHARDS,
        # There is no child to ask, so a request ends the consumer at once.
        _E.REQUESTED: _S.SHUTTING_DOWN,
        _E.SHARD_END: _S.SHUTTING_DOWN,
        _E.LEASE_LOST: _S.SHUTTING_DOWN,
    },
    _S.INITIALIZING: {
        _E.TASK_SUCCEEDED: _S.PROCESSING,
        _E.TASK_FAILED: _S.INITIALIZING,
        _E.CHILD_FAILED: _S.INITIALIZING,
        _E.REQUESTED: _S.SHUTDOWN_REQUESTED,
        _E.SHARD_END: _S.SHUTTING_DOWN,
        _E.LEASE_LOST: _S.SHUTTING_DOWN,
    },
    _S.PROCESSING: {
        _E.TASK_SUCCEEDED: _S.PROCESSING,
        _E.TASK_FAILED: _S.PROCESSING,
        _E.CHILD_FAILED: _S.INITIALIZING,
        _E.REQUESTED: _S.SHUTDOWN_REQUESTED,
        _E.SHARD_END: _S.SHUTTING_DOWN,
        _E.LEASE_LOST: _S.SHUTTING_DOWN,
    },
    _S.SHUTDOWN_REQUESTED: {
        # Told and handed over; what is left is that the lease goes.
        _E.TASK_SUCCEEDED: _S.SHUTDOWN_REQUESTED,
        _E.TASK_FAILED: _S.SHUTDOWN_REQUESTED,
        # A child that fails now is not restarted: the next owner repeats what it had not checkpointed.
        _E.CHILD_FAILED: _S.SHUTTING_DOWN,
        _E.REQUESTED: _S.SHUTDOWN_REQUESTED,
        _E.SHARD_END: _S.SHUTTING_DOWN,
        _E.LEASE_LOST: _S.SHUTTING_DOWN,
    },
    _S.SHUTTING_DOWN: {
        _E.TASK_SUCCEEDED: _S.SHUTDOWN_COMPLETE,
        _E.TASK_FAILED: _S.SHUTTING_DOWN,
        # Only at shard end: a new child reads on from the checkpoint to the end again.
        _E.CHILD_FAILED: _S.INITIALIZING,
        _E.REQUESTED: _S.SHUTTING_DOWN,
        _E.SHARD_END: _S.SHUTTING_DOWN,
        _E.LEASE_LOST: _S.SHUTTING_DOWN,
    },
    _S.SHUTDOWN_COMPLETE: {
        # Signals may come late.
        _E.REQUESTED: _S.SHUTDOWN_COMPLETE,
        _E.SHARD_END: _S.SHUTDOWN_COMPLETE,
        _E.LEASE_LOST: _S.SHUTDOWN_COMPLETE,
    },
}


def next_state(state: ConsumerState, event: ConsumerEvent) -> ConsumerState:
    """The state after `event`; raises KclHostError for an event that cannot happen there."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise KclHostError(f"a shard consumer in {state.value} cannot meet the event {event.value!r}") from None


def stronger(a: ShutdownReason | None, b: ShutdownReason | None) -> ShutdownReason | None:
    """The reason that prevails; None is weaker than any."""
    return max((r for r in (a, b) if r is not None), default=None)


def mermaid() -> str:
    """The table as a Mermaid state diagram, one arrow per pair of states, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {ConsumerState.WAITING_ON_PARENT_SHARDS.value}"]
    for state, row in TRANSITIONS.items():
        arrows: dict[ConsumerState, list[str]] = {}
        for event, target in row.items():
            arrows.setdefault(target, []).append(event.value)
        lines += [f"    {state.value} --> {target.value}: {', '.join(names)}" for target, names in arrows.items()]
    lines.append(f"    {ConsumerState.SHUTDOWN_COMPLETE.value} --> [*]")
    return "\n".join(lines) + "\n"
