"""What a request of a child for a checkpoint, prepared or not, means; and what a handover notes of its records.

Theory of operation. A shard consumer keeps three positions: the last checkpoint written, the largest one permitted
(the last user record handed to the child), and, once the shard has ended, what the largest one was just before it
became SHARD_END. A request names a target; it must lie between the first two. At shard end the target "last delivered
record" stands for the end of the shard itself.

Source: KCL 3.5.1 ShardRecordProcessorCheckpointer; spec consumer-lifecycle 8. Where we differ, on purpose:

- The substitution of SHARD_END comes before the comparison with the last checkpoint. In Java a child that checkpointed
  its very last record while processing, and names that record again at shard end, gets no write and wedges the shard.
- Positions are compared by their order, not by their text, and are written without leading zeros: Kinesis would refuse
  such a text as a starting position for ever after.
- At shard end a number beyond the last record is refused as ever. Java takes it, since it is below SHARD_END.
- A child may repeat the sentinel it started from, but not move to another one: LATEST written over TRIM_HORIZON is
  "in range" by the order and would skip the whole shard.
- A prepared checkpoint without a number means the last record delivered, with state as without. Java drops the
  sub-sequence number as soon as a state is given.

A prepared checkpoint is `resolve`d like any other, is written beside the checkpoint and moves nothing (spec 8.5).
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final

import msgspec

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import (
    AT_SHARD_END,
    MAX_DIGITS,
    MAX_STATE_BYTES,
    SHARD_END,
    ExtendedSequenceNumber,
    PreparedCheckpoint,
)

ILLEGAL_ARGUMENT: Final = "IllegalArgumentException"
"""Name of the exception a child gets to see for every refusal of this module."""

HANDOVER_STATE: Final = b"kcl-host: delivered"
"""pendingCheckpointState of what a worker prepares, not its child: how far records were delivered at a handover."""


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """The three positions. Invariant: last <= largest_permitted.

    `at_shard_end` is None until the shard has ended, and stays None when the lease was at SHARD_END from the start.
    """

    last: ExtendedSequenceNumber
    largest_permitted: ExtendedSequenceNumber
    at_shard_end: ExtendedSequenceNumber | None = None


class Write(msgspec.Struct, frozen=True):
    """Write `position`, then answer success. SHARD_END is already substituted."""

    position: ExtendedSequenceNumber


class Unchanged(msgspec.Struct, frozen=True):
    """Answer success; `position` is what the row says already."""

    position: ExtendedSequenceNumber


class Refused(msgspec.Struct, frozen=True):
    """Write nothing; answer with the exception name `error`. `reason` is a sentence for the log."""

    error: str
    reason: str


def started(checkpoint: ExtendedSequenceNumber) -> CheckpointState:
    """The state of a consumer whose child starts from the row's checkpoint, at first and after each restart."""
    return CheckpointState(last=checkpoint, largest_permitted=checkpoint)


def delivered(state: CheckpointState, position: ExtendedSequenceNumber) -> CheckpointState:
    """The state once the record at `position` may be seen by the child. The permitted position never decreases."""
    return msgspec.structs.replace(state, largest_permitted=max(state.largest_permitted, position))


def entering_shard_end(state: CheckpointState) -> CheckpointState:
    """The state just before the child is told that the shard has ended. A repetition changes nothing."""
    if state.largest_permitted.is_shard_end:
        return state
    return msgspec.structs.replace(state, largest_permitted=AT_SHARD_END, at_shard_end=state.largest_permitted)


def written(state: CheckpointState, position: ExtendedSequenceNumber) -> CheckpointState:
    """The state after `position` was written to the row."""
    return msgspec.structs.replace(state, last=position)


def resolve(
    state: CheckpointState, sequence_number: str | None, sub_sequence_number: int | None
) -> Write | Unchanged | Refused:
    """What to do with a child's request. Raises nothing.

    No sequence number means everything delivered so far (a sub-sequence number alone is ignored, as in Java);
    a sequence number alone means its sub-sequence 0.
    """
    if sequence_number is None:
        target = state.largest_permitted
    else:
        parsed = _parse(sequence_number, sub_sequence_number or 0)
        if isinstance(parsed, Refused):
            return parsed
        target = parsed
    if state.at_shard_end is not None and _same(target, state.at_shard_end):
        target = AT_SHARD_END
    if _same(target, state.last):
        return Unchanged(state.last)
    if target < state.last:
        return _refused(f"{target} is below the last checkpoint {state.last}")
    largest_delivered = state.at_shard_end or state.largest_permitted
    if target > state.largest_permitted or (target > largest_delivered and not target.is_shard_end):
        return _refused(f"{target} is beyond {largest_delivered}, the last position delivered")
    if target.is_sentinel and not target.is_shard_end:
        return _refused(f"{target} is not the position of a record")
    return Write(target)


def parse_state(text: str | None) -> bytes | Refused | None:
    """The state that a child wants to keep with a prepared checkpoint, out of its base64 text."""
    if text is None:
        return None
    try:
        state = b64decode(text, validate=True)
    except ValueError:
        return _refused("the application state is not base64")
    if len(state) > MAX_STATE_BYTES:
        return _refused(f"an application state of {len(state)} bytes is too large, at most {MAX_STATE_BYTES} are kept")
    return state


def handover_note(state: CheckpointState, lease: Lease) -> ExtendedSequenceNumber | None:
    """What to prepare before the lease is handed over: the last record delivered, if it lies after the checkpoint.

    None when there is nothing to tell. What a child has prepared stays, here or on another worker (which may be one in
    Java); of two notes the farther one counts: what the worker before us delivered has been delivered.
    """
    position = state.at_shard_end or state.largest_permitted
    pending = lease.pending_checkpoint
    if pending is not None and (lease.pending_checkpoint_state != HANDOVER_STATE or pending >= position):
        return None
    return position if position > state.last else None


def replay_end(lease: Lease) -> ExtendedSequenceNumber | None:
    """How far records after the checkpoint were delivered by an owner before; None when nobody has noted it.

    Never a place to start from: they come again.
    """
    pending = lease.pending_checkpoint
    if pending is None or lease.checkpoint is None or lease.pending_checkpoint_state != HANDOVER_STATE:
        return None
    return pending if pending > lease.checkpoint else None


def prepared_checkpoint(lease: Lease) -> PreparedCheckpoint | None:
    """What an application has prepared and not checkpointed; None also when it is the note of a handover."""
    if lease.pending_checkpoint is None or lease.pending_checkpoint_state == HANDOVER_STATE:
        return None
    return PreparedCheckpoint(lease.pending_checkpoint, lease.pending_checkpoint_state)


def _parse(text: str, sub_sequence_number: int) -> ExtendedSequenceNumber | Refused:
    if sub_sequence_number < 0:
        return _refused(f"sub-sequence number {sub_sequence_number} is negative")
    if text == SHARD_END:
        return AT_SHARD_END
    if text.isascii() and text.isdigit():
        text = text.lstrip("0") or "0"
        if len(text) > MAX_DIGITS:
            return _refused(f"a sequence number of {len(text)} digits is malformed")
    try:
        return ExtendedSequenceNumber(text, sub_sequence_number)
    except ValueError:
        return _refused(f"sequence number {text[:200]!r} is malformed")


def _same(one: ExtendedSequenceNumber, other: ExtendedSequenceNumber) -> bool:
    return one.sort_key == other.sort_key


def _refused(reason: str) -> Refused:
    return Refused(ILLEGAL_ARGUMENT, reason)
