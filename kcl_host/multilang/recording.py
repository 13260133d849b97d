"""A dialogue that is written down as it happens, as a transcript that `kcl-host verify --replay` can play.

Payloads, partition keys, prepared states and whatever a child prints are of the user's data: unless they are asked for,
only their lengths are written. A partition key becomes a keyed hash, so that equal keys stay equal and nobody can guess
them. What is not of the grammar (protocol/transcripts/README.md) is escaped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from typing import Final, Protocol

import msgspec

from kcl_host.errors import ChildError
from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.multilang.dialogue import (
    ActionDone,
    ActionUnanswered,
    CheckpointRequested,
    Dialogue,
    Event,
    Noise,
    PrepareCheckpointRequested,
    RemoteProtocolError,
)
from kcl_host.multilang.messages import (
    Action,
    CheckpointRequest,
    ChildMessage,
    HostMessage,
    Initialize,
    PrepareCheckpointRequest,
    ProcessRecords,
    Status,
    decode_host_line,
    encode_line,
)

MAX_ACTION_CHARACTERS: Final = 2 * 1024 * 1024
"""Of a batch that would be longer the last records are written, which are those that a child checkpoints."""
NOISE_LINES: Final = 20
"""Of the lines that are no messages, so many are written per action."""

_RECORD_CHARACTERS: Final = 250
"""About what a record has beside payload and partition key."""
_KNOWN_POSITION: Final = re.compile(r"[0-9]{1,128}|TRIM_HORIZON|LATEST|AT_TIMESTAMP|SHARD_END")
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class TranscriptSink(Protocol):
    """Where a transcript goes. Neither method raises: the dialogue goes on whatever becomes of its record."""

    def begin(self, text: str, resume: Callable[[], str] | None) -> None:
        """The lines that open an action. With `resume` a new file may start here, by the lines that it returns."""

    def add(self, text: str) -> None:
        """Further lines of the open action."""


class RecordedDialogue(Dialogue):
    """`secret` makes the hashes of partition keys; with `payloads` everything is written as it is."""

    def __init__(
        self,
        sink: TranscriptSink,
        secret: bytes,
        *,
        payloads: bool,
        max_line_bytes: int = 64 * 1024 * 1024,
        extensions: Collection[str] = (),
    ) -> None:
        super().__init__(max_line_bytes, extensions)
        self._sink = sink
        self._secret = secret
        self._payloads = payloads
        self._noise_lines = 0
        self._initialize: Initialize | None = None
        self._delivered: ExtendedSequenceNumber | None = None
        self._checkpointed: ExtendedSequenceNumber | None = None

    def send(self, action: Action) -> bytes:
        line = super().send(action)
        self._noise_lines = 0
        if isinstance(action, ProcessRecords):
            self._sink.begin(self._batch(action), self._resume)
            if action.records:
                self._delivered = action.records[-1].position
        else:
            if isinstance(action, Initialize):
                self._initialize = action
            self._sink.begin(self._host(action), None)
        return line

    def answer_checkpoint(self, request: CheckpointRequested, error: str | None) -> bytes:
        line = super().answer_checkpoint(request, error)
        if error is None and not isinstance(request, PrepareCheckpointRequested):
            number = request.sequence_number
            position = ExtendedSequenceNumber(number, request.sub_sequence_number or 0) if number else self._delivered
            self._checkpointed = position or self._checkpointed
        answer = msgspec.structs.replace(decode_host_line(line), sequence_number=self._number(request))
        self._sink.add(self._host(answer))
        return line

    def receive(self, data: bytes) -> list[Event]:
        try:
            events = super().receive(data)
        except (RemoteProtocolError, ActionUnanswered) as failure:
            lines = [self._child(event) for event in failure.events]
            lines.append(f"# {self._shown(failure)}\n" if data else "child> <eof>\n")
            self._sink.add("".join(lines))
            raise
        if events:
            self._sink.add("".join([self._child(event) for event in events]))
        return events

    def _shown(self, failure: ChildError) -> str:
        """What is wrong; the line to blame, which follows a colon, only together with payloads."""
        text = str(failure) if self._payloads else str(failure).partition(": ")[0]
        return _CONTROL.sub("\ufffd", text)

    def _host(self, message: HostMessage) -> str:
        if isinstance(message, Initialize) and isinstance(message.pending_checkpoint_state, str):
            state = self._payload(message.pending_checkpoint_state)
            message = msgspec.structs.replace(message, pending_checkpoint_state=state)
        return f"host> {_line(message)}"

    def _child(self, event: Event) -> str:
        match event:
            case ActionDone(action=action):
                return f"child> {_line(Status(response_for=action))}"
            case PrepareCheckpointRequested(application_state=state):
                request = PrepareCheckpointRequest(
                    sequence_number=self._number(event),
                    sub_sequence_number=event.sub_sequence_number,
                    application_state=None if state is None else self._payload(state),
                )
                return f"child> {_line(request)}"
            case CheckpointRequested(sub_sequence_number=sub):
                line = _line(CheckpointRequest(sequence_number=self._number(event), sub_sequence_number=sub))
                return f"child> {line}"
            case Noise(line=line, size_bytes=size_bytes):
                self._noise_lines += 1
                if self._noise_lines > NOISE_LINES:
                    return "# and further lines that are no messages\n" * (self._noise_lines == NOISE_LINES + 1)
                text = _escape(_CONTROL.sub("\ufffd", line)) if self._payloads else f"<text {size_bytes}B>"
                return f"child> {text}\n"

    def _number(self, request: CheckpointRequested) -> str | None:
        """As the child sent it. It may have sent anything: what is no position is told by its length only."""
        number = request.sequence_number
        if number is None or _KNOWN_POSITION.fullmatch(number):
            return number
        return _escape(number) if self._payloads else f"<text {len(number)}B>"

    def _batch(self, action: ProcessRecords) -> str:
        """Its line, after a comment when not all of its records fit."""
        records: list[Record] = []
        left = MAX_ACTION_CHARACTERS
        for record in reversed(action.records):
            data = self._payload(record.data)
            if len(data) > left:  # the largest records alone would fill several files
                data = _length_of_payload(record.data)
            key = _escape(record.partition_key) if self._payloads else self._stand_in(record.partition_key)
            left -= len(data) + len(key) + _RECORD_CHARACTERS
            if left < 0 and records:
                break
            kept = Record(
                data=data,
                partition_key=key,
                sequence_number=record.sequence_number,
                approximate_arrival_timestamp=record.approximate_arrival_timestamp,
                sub_sequence_number=record.sub_sequence_number,
            )
            records.append(kept)
        records.reverse()
        batch = ProcessRecords(records=records, millis_behind_latest=action.millis_behind_latest)
        left_out = len(action.records) - len(records)
        comment = f"# the first {left_out} records of this batch are left out\n" if left_out else ""
        return f"{comment}host> {_line(batch)}"

    def _stand_in(self, key: str) -> str:
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), key=self._secret, digest_size=4).hexdigest()
        return f"<key {len(key)} {digest}>"

    def _payload(self, base64: str) -> str:
        return _escape(base64) if self._payloads else _length_of_payload(base64)

    def _resume(self) -> str:
        """The beginning of a transcript that goes on in the middle: the child starts where it had checkpointed."""
        assert self._initialize is not None
        message = self._initialize
        if self._checkpointed is not None:
            message = msgspec.structs.replace(
                message,
                sequence_number=self._checkpointed.sequence_number,
                sub_sequence_number=self._checkpointed.sub_sequence_number,
            )
        status = f"child> {_line(Status(response_for=message.action))}"
        return f"# the session goes on; these two lines were not exchanged here\n{self._host(message)}{status}"


def _escape(text: str) -> str:
    return text.replace("<", "<lt>")


def _line(message: HostMessage | ChildMessage) -> str:
    return encode_line(message).decode("ascii")


def _length_of_payload(base64: str) -> str:
    """The placeholder for a payload of the same length."""
    return f"<payload {max(len(base64) * 3 // 4 - base64[-2:].count('='), 0)}B>"
