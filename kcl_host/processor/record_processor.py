"""The child's end of the MultiLang protocol (protocol/PROTOCOL.md), for processors written in Python.

Every child imports it when it starts, once per shard and restart, so it imports little itself (no typing, no
dataclasses).
"""

from __future__ import annotations

import json
import os
import sys
from binascii import a2b_base64, b2a_base64
from select import select
from time import sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any


class CheckpointError(Exception):
    """The host refused a checkpoint; `value` is the name of the Java exception.

    ThrottlingException and KinesisClientLibDependencyException may pass: try again after a pause, or leave it to the
    next batch. ShutdownException: the lease is gone, lease_lost follows. InvalidStateException: not allowed now.
    IllegalArgumentException: the number is malformed, behind the last checkpoint or beyond the last record.
    """

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    @property
    def may_pass(self) -> bool:
        """Whether the same checkpoint may succeed later."""
        return self.value in ("ThrottlingException", "KinesisClientLibDependencyException")


class ExtensionNotEnabled(RuntimeError):
    """The host does not offer the addition to the protocol that was asked for; the message says how to switch it on."""


class Record:
    """One user record; those of a KPL aggregate share the sequence number and differ in the sub-sequence number."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __repr__(self) -> str:
        return f"<Record {self.sequence_number}/{self.sub_sequence_number} {self.partition_key!r}>"

    @property
    def data(self) -> bytes:
        """The payload, decoded from base64 at each access."""
        return a2b_base64(self._fields["data"] or "")

    @property
    def partition_key(self) -> str:
        key: str = self._fields["partitionKey"]
        return key

    @property
    def sequence_number(self) -> str:
        number: str = self._fields["sequenceNumber"]
        return number

    @property
    def sub_sequence_number(self) -> int:
        number: int = self._fields["subSequenceNumber"]
        return number

    @property
    def approximate_arrival_ms(self) -> int | None:
        """Epoch milliseconds at which Kinesis received the record."""
        arrival: int | None = self._fields["approximateArrivalTimestamp"]
        return arrival


class PendingCheckpoint:
    """A checkpoint that was prepared before this process started, and never made; where it was to be made."""

    __slots__ = ("application_state", "sequence_number", "sub_sequence_number")

    def __init__(self, sequence_number: str, sub_sequence_number: int, application_state: bytes | None) -> None:
        self.sequence_number = sequence_number
        self.sub_sequence_number = sub_sequence_number
        self.application_state = application_state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence_number}/{self.sub_sequence_number} {self.application_state!r}>"


class PreparedCheckpointer(PendingCheckpoint):
    """The second phase of a checkpoint; the first one stands in the lease."""

    __slots__ = ("_checkpointer",)

    def __init__(
        self,
        checkpointer: Checkpointer,
        sequence_number: str,
        sub_sequence_number: int,
        application_state: bytes | None,
    ) -> None:
        super().__init__(sequence_number, sub_sequence_number, application_state)
        self._checkpointer = checkpointer

    def checkpoint(self) -> None:
        """Makes the checkpoint that was prepared; in a later method too. Raises as Checkpointer.checkpoint."""
        self._checkpointer.checkpoint(self.sequence_number, self.sub_sequence_number)


class Checkpointer:
    """Asks the host to remember how far this shard is processed. Valid only inside the method it was given to."""

    def __init__(self, conversation: _Conversation) -> None:
        self._conversation = conversation

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        """Everything up to and including this position is done and will not be delivered again.

        Without a number: all records delivered so far, or the end of the shard in shard_ended. A number without a
        sub-sequence number stands for sub-sequence number 0, the first record of an aggregate. Returns once the host
        has stored it; raises CheckpointError.
        """
        self._request("checkpoint", sequenceNumber=sequence_number, subSequenceNumber=sub_sequence_number)

    def checkpoint_with_retry(
        self,
        sequence_number: str | None = None,
        sub_sequence_number: int | None = None,
        *,
        attempts: int = 3,
        pause_s: float = 1.0,
    ) -> bool:
        """As `checkpoint`, and again after a pause of `pause_s`, then twice that, and so on, while a refusal may pass.

        False: not stored, since the lease is gone or the last attempt was refused too. Nothing is lost by that, the
        next checkpoint makes up for it. Raises CheckpointError when the request itself was wrong. The host waits
        meanwhile: all pauses together have to stay below its timeoutInSeconds, if that is set.
        """
        for attempt in range(attempts):
            try:
                self.checkpoint(sequence_number, sub_sequence_number)
                return True
            except CheckpointError as e:
                if e.value == "ShutdownException":
                    return False
                if not e.may_pass:
                    raise
                print(f"WARN checkpoint refused: {e.value}", file=sys.stderr, flush=True)
                if attempt + 1 < attempts:
                    sleep(pause_s * 2**attempt)
        return False

    @property
    def can_prepare(self) -> bool:
        """Whether the host offers prepare_checkpoint: protocolExtensions = prepareCheckpoint."""
        return "prepareCheckpoint" in self._conversation.extensions

    def prepare_checkpoint(
        self,
        sequence_number: str | None = None,
        sub_sequence_number: int | None = None,
        application_state: bytes | None = None,
    ) -> PreparedCheckpointer:
        """The first phase of a checkpoint at this position, which is chosen as in `checkpoint`.

        The host stores it with up to 4096 bytes of `application_state` beside the checkpoint, which stays where it is.
        Who goes on with the shard before it is made finds it as `pending_checkpoint` and starts at the checkpoint. Any
        checkpoint that moves ends it, another one prepared takes its place. Raises CheckpointError, and
        ExtensionNotEnabled when the host does not offer it.
        """
        if not self.can_prepare:
            raise ExtensionNotEnabled(
                "the host does not offer prepared checkpoints: set protocolExtensions = prepareCheckpoint in the "
                ".properties file of kcl-host; Amazon's MultiLangDaemon has no such thing"
            )
        if sequence_number is None:
            sequence_number, sub_sequence_number = self._conversation.position
        state = application_state
        self._request(
            "prepareCheckpoint",
            sequenceNumber=sequence_number,
            subSequenceNumber=sub_sequence_number,
            applicationState=None if state is None else b2a_base64(state, newline=False).decode(),
        )
        return PreparedCheckpointer(self, sequence_number, sub_sequence_number or 0, state)

    def _request(self, action: str, **fields: object) -> None:
        self._conversation.write({"action": action, **fields})
        line = self._conversation.read()
        if not line:  # the host is gone or gave us up; somebody else goes on from the last checkpoint
            raise CheckpointError("ShutdownException")
        answer = json.loads(line)
        if answer["action"] != "checkpoint":
            raise CheckpointError("InvalidStateException")
        if answer.get("error") is not None:
            raise CheckpointError(answer["error"])


class RecordProcessor:
    """Base of a processor. Its methods are called one at a time; an exception ends the process.

    The host then starts a new one, which begins at the last checkpoint: records after it are delivered again, none is
    lost. (The processors of amazon_kclpy differ: there an exception is printed and the batch counts as processed.)
    """

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        """Called first. The position is the shard's checkpoint: digits, TRIM_HORIZON, LATEST or AT_TIMESTAMP."""

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        """Called for each batch, in order. `self.millis_behind_latest` says how far behind the tip the batch is."""
        raise NotImplementedError

    def lease_lost(self) -> None:
        """Another worker has the shard; nothing can be checkpointed any more. stdin ends after this."""

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        """Every record of the closed shard was delivered. Must checkpoint, or its child shards cannot start."""
        checkpointer.checkpoint_with_retry()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """The worker is about to give the shard away: the last opportunity to checkpoint. lease_lost follows."""
        checkpointer.checkpoint_with_retry()

    def while_idle(self) -> float | None:
        """Called before each wait for the host, the host being idle or busy elsewhere: a place for work of one's own.

        Returns after how many seconds to call again should the host still say nothing; None: not before it did. While
        it runs the host waits. There is no checkpointer: a checkpoint has to wait for the next method.
        """
        return None

    def parse_line(self, line: bytes) -> dict[str, Any]:
        """The message in a line of the host; what stands under "records" is what process_records gets.

        To be overridden by a processor that reads records faster, or as something else than `Record`; they need to
        have a `sequence_number` and a `sub_sequence_number`.
        """
        message: dict[str, Any] = json.loads(line)
        if message["action"] == "processRecords":
            message["records"] = [Record(fields) for fields in message["records"]]
        return message

    millis_behind_latest: int | None = None
    """Of the current batch; None when the host does not know."""
    pending_checkpoint: PendingCheckpoint | None = None
    """What a process before this one prepared and did not checkpoint; set before `initialize` is called, where the host
    offers prepared checkpoints. Records start after the checkpoint all the same."""


class _Conversation:
    """Lines, one at a time: the host writes no line before the last one was answered, so none waits in a buffer."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self.extensions = os.environ.get("KCL_HOST_PROTOCOL_EXTENSIONS", "").split(",")
        self.position = ("TRIM_HORIZON", 0)
        """Where a checkpoint without a number would be made now."""

    def waits(self, seconds: float) -> bool:
        """Whether the host says nothing for so long."""
        return not select([self._stdin], [], [], seconds)[0]

    def read(self) -> bytes:
        """The next line; empty at EOF."""
        return self._stdin.readline()

    def write(self, message: dict[str, Any]) -> None:
        self._stdout.write(json.dumps(message).encode() + b"\n")
        self._stdout.flush()


def run(processor: RecordProcessor, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Serves the host until it closes our stdin, the normal end.

    Without arguments the process's own stdin and stdout are used, and taken away from everybody else: afterwards
    print() and the output of subprocesses go to stderr, and reading stdin finds it empty.
    """
    if stdin is None or stdout is None:
        stdin, stdout = _take_standard_streams()
    conversation = _Conversation(stdin, stdout)
    while True:
        while (pause_s := processor.while_idle()) is not None and conversation.waits(pause_s):
            pass
        line = conversation.read()
        if not line:
            return
        message = processor.parse_line(line)
        _perform(processor, message, conversation)
        conversation.write({"action": "status", "responseFor": message["action"]})


def _perform(processor: RecordProcessor, message: dict[str, Any], conversation: _Conversation) -> None:
    action = message["action"]
    if action == "initialize":
        conversation.position = message["sequenceNumber"], message["subSequenceNumber"]
        processor.pending_checkpoint = _pending_checkpoint(message)
        processor.initialize(message["shardId"], message["sequenceNumber"], message["subSequenceNumber"])
    elif action == "processRecords":
        records = message["records"]
        if records:
            conversation.position = records[-1].sequence_number, records[-1].sub_sequence_number
        processor.millis_behind_latest = message["millisBehindLatest"]
        processor.process_records(records, Checkpointer(conversation))
    elif action == "leaseLost":
        processor.lease_lost()
    elif action == "shardEnded":
        conversation.position = "SHARD_END", 0
        processor.shard_ended(Checkpointer(conversation))
    elif action == "shutdownRequested":
        processor.shutdown_requested(Checkpointer(conversation))
    else:
        raise ValueError(f"the host sent an action that does not exist: {action!r}")


def _pending_checkpoint(message: dict[str, Any]) -> PendingCheckpoint | None:
    sequence_number = message.get("pendingCheckpointSequenceNumber")
    if sequence_number is None:
        return None
    state = message["pendingCheckpointState"]
    return PendingCheckpoint(
        sequence_number,
        message["pendingCheckpointSubSequenceNumber"],
        None if state is None else a2b_base64(state),
    )


def _take_standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes of the conversation under new descriptors; 0 becomes /dev/null and 1 the same as 2."""
    sys.stdout.flush()
    stdin = os.fdopen(os.dup(0), "rb", buffering=1024 * 1024)
    stdout = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return stdin, stdout
