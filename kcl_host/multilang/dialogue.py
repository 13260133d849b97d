"""The exchange with one child, from the host's end: bytes in, events and lines out; no I/O.

Theory of operation. One action is open at a time. The host opens it by a line, the child answers with any number of
checkpoint requests, each answered by the host, and then one status that names the action. TRANSITIONS holds every
state and everything that may happen in it; whatever is absent is a mistake: the host's own (LocalProtocolError) or
the child's (RemoteProtocolError), after which the state is FAILED and the child is of no use any more.

Source: KCL 3.5.1 MultiLangProtocol, MultiLangShardRecordProcessor; protocol/PROTOCOL.md section 5.
Where we differ from Java on purpose: stdout is read between actions too. A checkpoint request found there is answered
at once, and a status found there is a breach instead of the answer to the next action.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final, TypeAlias, cast, get_args

import msgspec

from kcl_host.errors import ChildExited, ChildMisbehaved, KclHostError
from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber, PreparedCheckpoint
from kcl_host.multilang.lines import LineSplitter
from kcl_host.multilang.messages import (
    PREPARE_CHECKPOINT,
    Action,
    CheckpointAnswer,
    CheckpointError,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    PrepareCheckpointRequest,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
    Status,
    decode_child_line,
    encode_line,
    with_prepared,
)

NOISE_CHARACTERS: Final = 500
"""How much of a skipped line is kept for the log."""


class State(enum.StrEnum):
    NEW = "new"
    INITIALIZING = "initializing"
    READY = "ready"
    PROCESSING = "processing"
    SHUTDOWN_REQUESTED = "shutdown requested"
    SHUTDOWN_ANSWERED = "shutdown answered"
    LOSING_LEASE = "losing lease"
    ENDING_SHARD = "ending shard"
    FINISHED = "finished"
    CLOSED = "closed"
    FAILED = "failed"


class Happening(enum.StrEnum):
    """What can happen to a dialogue. The first five are the host's actions, by their names on the wire."""

    INITIALIZE = "initialize"
    PROCESS_RECORDS = "processRecords"
    SHUTDOWN_REQUESTED = "shutdownRequested"
    LEASE_LOST = "leaseLost"
    SHARD_ENDED = "shardEnded"
    CHECKPOINT = "checkpoint"
    """A request for a checkpoint, prepared or not."""
    STATUS = "status"
    """The status of the open action; every other status is a BREACH."""
    EOF = "eof"
    BREACH = "breach"


_H = Happening


def _open(state: State, then: State) -> dict[Happening, State]:
    """The row of a state in which an action is open."""
    return {_H.CHECKPOINT: state, _H.STATUS: then, _H.EOF: State.FAILED, _H.BREACH: State.FAILED}


def _idle(state: State, actions: dict[Happening, State]) -> dict[Happening, State]:
    """The row of a state in which no action is open. A background thread of the child may ask for a checkpoint."""
    return {**actions, _H.CHECKPOINT: state, _H.EOF: State.CLOSED, _H.BREACH: State.FAILED}


TRANSITIONS: Final[dict[State, dict[Happening, State]]] = {
    State.NEW: _idle(State.NEW, {_H.INITIALIZE: State.INITIALIZING}),
    State.INITIALIZING: _open(State.INITIALIZING, then=State.READY),
    State.READY: _idle(
        State.READY,
        {
            _H.PROCESS_RECORDS: State.PROCESSING,
            _H.SHUTDOWN_REQUESTED: State.SHUTDOWN_REQUESTED,
            _H.LEASE_LOST: State.LOSING_LEASE,
            _H.SHARD_ENDED: State.ENDING_SHARD,
        },
    ),
    State.PROCESSING: _open(State.PROCESSING, then=State.READY),
    State.SHUTDOWN_REQUESTED: _open(State.SHUTDOWN_REQUESTED, then=State.SHUTDOWN_ANSWERED),
    State.SHUTDOWN_ANSWERED: _idle(
        State.SHUTDOWN_ANSWERED,
        {_H.LEASE_LOST: State.LOSING_LEASE, _H.SHARD_ENDED: State.ENDING_SHARD},
    ),
    State.LOSING_LEASE: _open(State.LOSING_LEASE, then=State.FINISHED),
    State.ENDING_SHARD: _open(State.ENDING_SHARD, then=State.FINISHED),
    State.FINISHED: _idle(State.FINISHED, {}),
    State.CLOSED: {_H.EOF: State.CLOSED},
    State.FAILED: {},
}

AWAITED: Final[dict[State, Happening]] = {
    next_state: action
    for row in TRANSITIONS.values()
    for action, next_state in row.items()
    if _H.STATUS in TRANSITIONS[next_state] and action is not _H.CHECKPOINT
}
"""State in which an action is open -> the action whose status ends it."""

_CHECKPOINTS_ALLOWED: Final = frozenset(
    {State.READY, State.PROCESSING, State.SHUTDOWN_REQUESTED, State.SHUTDOWN_ANSWERED, State.ENDING_SHARD}
)


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", rename="camel"):
    """Something the host has to look at."""


class CheckpointRequested(_Event, frozen=True, kw_only=True, tag="checkpointRequested"):
    """The child waits for `answer_checkpoint`. Not `allowed`: there is no checkpointer (InvalidStateException)."""

    sequence_number: str | None
    sub_sequence_number: int | None
    allowed: bool


class PrepareCheckpointRequested(CheckpointRequested, frozen=True, kw_only=True, tag="prepareCheckpointRequested"):
    """The same, but nothing is to be checkpointed yet. `application_state` is what the child sent, base64 or not.

    Only in a dialogue with the extension prepareCheckpoint.
    """

    application_state: str | None


class ActionDone(_Event, frozen=True, kw_only=True, tag="actionDone"):
    """The status of the open action has arrived."""

    action: str


class Noise(_Event, frozen=True, kw_only=True, tag="noise"):
    """A line that is no message for us; `line` is its beginning, `size_bytes` its whole length."""

    line: str
    size_bytes: int


Event: TypeAlias = CheckpointRequested | ActionDone | Noise


class LocalProtocolError(KclHostError):
    """The host itself used the dialogue in a wrong order."""


class RemoteProtocolError(ChildMisbehaved):
    """The child broke the protocol. `events` are those of the same chunk that came before the breach."""

    events: tuple[Event, ...] = ()


class ActionUnanswered(ChildExited):
    """The child closed its stdout before it answered. `events` are those of its last, unterminated line."""

    events: tuple[Event, ...] = ()


class Dialogue:
    """The host's end. A method named for an action returns the line to write, and opens that action.

    They raise LocalProtocolError when the action is out of order, ActionUnanswered when the child has closed its
    stdout since, and the failure again once there was one. `extensions` are those that the user has switched on.
    """

    def __init__(self, max_line_bytes: int = 64 * 1024 * 1024, extensions: Collection[str] = ()) -> None:
        self.state = State.NEW
        self._extensions = frozenset(extensions)
        self._lines = LineSplitter(max_line_bytes)
        self._failure: RemoteProtocolError | ActionUnanswered | None = None

    def __repr__(self) -> str:
        return f"<Dialogue {self.state}{f', awaiting {self.awaiting}' if self.awaiting else ''}>"

    @property
    def awaiting(self) -> str | None:
        """The open action, None when there is none."""
        action = AWAITED.get(self.state)
        return None if action is None else action.value

    @property
    def is_idle(self) -> bool:
        """No action is open and the child is still there."""
        return self.awaiting is None and self.state not in (State.CLOSED, State.FAILED)

    def initialize(
        self, shard_id: str, checkpoint: ExtendedSequenceNumber, prepared: PreparedCheckpoint | None = None
    ) -> bytes:
        """What was `prepared` and never made is told only under the extension prepareCheckpoint."""
        message = Initialize(
            shard_id=shard_id,
            sequence_number=checkpoint.sequence_number,
            sub_sequence_number=checkpoint.sub_sequence_number,
        )
        if PREPARE_CHECKPOINT in self._extensions:
            message = with_prepared(message, prepared)
        return self.send(message)

    def process_records(self, records: list[Record], millis_behind_latest: int | None) -> bytes:
        return self.send(ProcessRecords(records=records, millis_behind_latest=millis_behind_latest))

    def lease_lost(self) -> bytes:
        return self.send(LeaseLost())

    def shard_ended(self) -> bytes:
        return self.send(ShardEnded())

    def shutdown_requested(self) -> bytes:
        return self.send(ShutdownRequested())

    def send(self, action: Action) -> bytes:
        """The same for any action."""
        if self._failure:
            raise self._failure
        if self.state is State.CLOSED:
            raise ActionUnanswered(f"the child had closed its stdout before {action.action} was sent")
        line = encode_line(action)
        self._step(Happening(action.action))
        return line

    def answer_checkpoint(self, request: CheckpointRequested, error: str | None) -> bytes:
        """The line that answers `request`, prepared or not: its numbers, and None or an exception the child knows."""
        if error is not None and error not in get_args(CheckpointError):
            raise LocalProtocolError(f"{error!r} is not a name that children know of checkpoint errors")
        return encode_line(
            CheckpointAnswer(
                sequence_number=request.sequence_number,
                sub_sequence_number=request.sub_sequence_number,
                error=cast("CheckpointError | None", error),
            )
        )

    def receive(self, data: bytes) -> list[Event]:
        """What the child wrote, as events in order; `b""` is the end of its stdout.

        Raises RemoteProtocolError and, for an end while an action is open, ActionUnanswered; either carries the
        events that came before it in `data`. Once failed it raises that failure again. An end between actions
        raises nothing: the state is CLOSED then.
        """
        if self._failure:
            raise self._failure
        if data and self.state is State.CLOSED:
            raise LocalProtocolError("bytes after the end of the child's stdout")
        events: list[Event] = []
        for line in self._lines.feed(data):
            events.append(self._receive_line(line, events))
        if self._lines.overflowed:
            limit = self._lines.max_line_bytes
            raise self._breach(f"the child wrote a line of more than {limit} bytes", events)
        if not data:
            awaited = self.awaiting
            self._step(_H.EOF)
            if awaited:
                self._failure = ActionUnanswered(f"the child closed its stdout before it answered {awaited}")
                self._failure.events = tuple(events)
                raise self._failure
        return events

    def _receive_line(self, line: bytes, before: Sequence[Event]) -> Event:
        match decode_child_line(line):
            case PrepareCheckpointRequest() as request if PREPARE_CHECKPOINT in self._extensions:
                self._step(_H.CHECKPOINT)
                return PrepareCheckpointRequested(
                    sequence_number=request.sequence_number,
                    sub_sequence_number=request.sub_sequence_number,
                    allowed=self.state in _CHECKPOINTS_ALLOWED,
                    application_state=request.application_state,
                )
            case CheckpointRequest() as request:
                self._step(_H.CHECKPOINT)
                return CheckpointRequested(
                    sequence_number=request.sequence_number,
                    sub_sequence_number=request.sub_sequence_number,
                    allowed=self.state in _CHECKPOINTS_ALLOWED,
                )
            case Status(response_for=action):
                # A second answer to the same action must not wait for the next one: if the names agreed, every later
                # status would be one action early, and a checkpoint without a number would cover records that the
                # child has never seen. So there is no time at which a status may come unasked.
                if self.awaiting is None:
                    raise self._breach(f"the child sent a status that nobody asked for: {_shown(line)}", before)
                if action != self.awaiting:
                    raise self._breach(
                        f"the child answered {self.awaiting} with another status: {_shown(line)}", before
                    )
                self._step(_H.STATUS)
                return ActionDone(action=action)
        return Noise(line=_shown(line), size_bytes=len(line))

    def _step(self, happening: Happening) -> None:
        after = TRANSITIONS[self.state].get(happening)
        if after is None:
            raise LocalProtocolError(f"{happening} must not happen while the dialogue is {self.state}")
        self.state = after

    def _breach(self, message: str, before: Sequence[Event]) -> RemoteProtocolError:
        self._step(_H.BREACH)
        self._failure = RemoteProtocolError(message)
        self._failure.events = tuple(before)
        return self._failure


def _shown(line: bytes) -> str:
    return line[: 4 * NOISE_CHARACTERS].decode(errors="replace")[:NOISE_CHARACTERS]
