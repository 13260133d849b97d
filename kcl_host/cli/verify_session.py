"""One session of `kcl-host verify`: a process of the command, led through one transcript as by a host."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

import msgspec

from kcl_host.child.process import child_environment, describe_exit, start_child
from kcl_host.config.settings import ChildSettings
from kcl_host.decisions import checkpoint
from kcl_host.errors import ChildError, ChildExited, ChildMisbehaved
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.multilang.dialogue import (
    ActionDone,
    CheckpointRequested,
    Dialogue,
    Event,
    Noise,
    PrepareCheckpointRequested,
)
from kcl_host.multilang.messages import (
    PREPARE_CHECKPOINT,
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    PrepareCheckpointRequest,
    ProcessRecords,
    ShardEnded,
    decode_host_line,
    encode_line,
    with_prepared,
)
from kcl_host.multilang.transcript import Entry, Transcript, TranscriptError
from kcl_host.ports import Child, Reply

STRAY_OUTPUT_S: Final = 0.05
"""How long to listen after an answer for output that nobody asked for."""
_STDERR_LINES: Final = 5
_MAX_DEVIATIONS: Final = 20
_MANY_ENTRIES: Final = 100
_SPARE_REQUESTS: Final = 1000
"""A child may ask for a checkpoint per record and so many more in one action; one that goes on is taken to be stuck."""


class Deviation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`action` is the open action, or the last one; `line` what the child wrote, where a line is to blame."""

    action: str
    message: str
    line: str | None = None


class ActionTime(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How long the child took from an action's line to its status, over all actions of one kind."""

    action: str
    count: int
    mean_s: float
    longest_s: float


class SessionReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One session; `ok` without deviations. `stderr` is the end of what the child said there."""

    session: str
    title: str
    ok: bool
    duration_s: float
    records: int
    checkpoints: int
    actions: tuple[ActionTime, ...]
    deviations: tuple[Deviation, ...]
    notes: tuple[str, ...]
    stderr: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint request is answered; `unknown_keys` are those that only the transcript knows."""

    error: str | None
    unknown_keys: dict[str, Any]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """An action and its line, and the transcript's answers to the checkpoint requests within it, in their order."""

    action: Action
    line: bytes
    answers: tuple[Answer, ...]


def steps_of(transcript: Transcript, extensions: Sequence[str] = ()) -> Iterator[Step]:
    """The host's part: what it sends by itself. The end of the session closes stdin.

    One step at a time, since a line may be large. Raises TranscriptError.
    """
    opened: Step | None = None
    for entry in transcript.entries:
        if entry.who != "host" or entry.raw is None:
            continue
        text = entry.text or ""
        try:
            message = decode_host_line(text)
        except msgspec.MsgspecError as e:
            raise TranscriptError(f"{transcript.name}:{entry.line_number}: not a message of a host: {e}") from e
        if isinstance(message, CheckpointAnswer):
            opened = _with_answer(transcript, entry, opened, message, text)
            continue
        if opened is not None:
            yield opened
        line = text.encode() + b"\n" if text.isascii() else encode_line(message)
        if (
            PREPARE_CHECKPOINT in extensions
            and isinstance(message, Initialize)
            and message.pending_checkpoint_sequence_number is msgspec.UNSET
        ):
            message = with_prepared(message, None)
            line = encode_line(message)
        opened = Step(action=message, line=line, answers=())
    if opened is not None:
        yield opened


def _with_answer(transcript: Transcript, entry: Entry, step: Step | None, answer: CheckpointAnswer, text: str) -> Step:
    if step is None:
        raise TranscriptError(f"{transcript.name}:{entry.line_number}: an answer before the first action")
    known = ("action", *CheckpointAnswer.__struct_encode_fields__)
    unknown = {key: value for key, value in json.loads(text).items() if key not in known}
    return msgspec.structs.replace(step, answers=(*step.answers, Answer(error=answer.error, unknown_keys=unknown)))


class Session:
    """One process of the command, led through one transcript. `run` is called once."""

    def __init__(
        self,
        transcript: Transcript,
        command: Sequence[str],
        timeout_s: float,
        extensions: Sequence[str] = (),
        stray_output_s: float = STRAY_OUTPUT_S,
    ) -> None:
        self._transcript = transcript
        self._extensions = extensions
        self._settings = ChildSettings(
            command=tuple(command),
            close_deadline_s=min(timeout_s, ChildSettings(command=()).close_deadline_s),
            term_deadline_s=1.0,
        )
        self._timeout_s = timeout_s
        self._stray_output_s = stray_output_s
        self._dialogue = Dialogue(extensions=extensions)
        self._action = ""
        self._answers: deque[Answer] = deque()
        self._unknown_keys: dict[str, Any] = {}
        self._requests_left = 0
        self._position = checkpoint.started(ExtendedSequenceNumber("TRIM_HORIZON"))
        self._records = 0
        self._checkpoints = 0
        self._times: dict[str, list[float]] = {}
        """Number, sum and longest, by action."""
        self._deviations: list[Deviation] = []
        self._notes: dict[str, None] = {}
        self._noise_lines = 0
        self._first_noise = ""
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)

    def run(self) -> SessionReport:
        """Raises ChildStartFailed; whatever else goes wrong is in the report."""
        started = time.monotonic()
        child = start_child(
            self._settings.command,
            env=child_environment(
                os.environ,
                application="verify",
                stream="verify",
                shard=self._transcript.name,
                worker="verify",
                extensions=self._extensions,
            ),
            settings=self._settings,
            on_stderr=self._stderr.append,
            name=self._transcript.name,
        )
        try:
            self._play(child)
        except ChildError as e:
            self._deviate(str(e))
            child.kill()
            child.end()
        except BaseException:
            child.kill()
            child.end()
            raise
        else:
            self._end(child)
        if self._noise_lines:
            self._note(f"noise on stdout, {self._noise_lines} line(s), first {self._first_noise[:100]!r}")
        return SessionReport(
            session=self._transcript.name,
            title=self._transcript.title,
            ok=not self._deviations,
            duration_s=round(time.monotonic() - started, 3),
            records=self._records,
            checkpoints=self._checkpoints,
            actions=tuple(
                ActionTime(action=action, count=int(n), mean_s=round(total / n, 6), longest_s=round(longest, 6))
                for action, (n, total, longest) in self._times.items()
            ),
            deviations=tuple(self._deviations),
            notes=tuple(self._notes),
            stderr=tuple(self._stderr),
        )

    def _play(self, child: Child) -> None:
        for step in steps_of(self._transcript, self._extensions):
            self._action = step.action.action
            self._answers = deque(step.answers)
            self._requests_left = _SPARE_REQUESTS
            match step.action:
                case Initialize(sequence_number=number, sub_sequence_number=sub) if number:
                    self._position = checkpoint.started(ExtendedSequenceNumber(number, sub or 0))
                case ProcessRecords(records=records) if records:
                    self._records += len(records)
                    self._requests_left += len(records)
                    self._position = checkpoint.delivered(self._position, records[-1].position)
                case ShardEnded():
                    self._position = checkpoint.entering_shard_end(self._position)
            self._dialogue.send(step.action)
            started = time.monotonic()
            child.exchange(step.line, self._receive, self._timeout_s)
            self._took(time.monotonic() - started)
            if isinstance(step.action, ShardEnded) and not self._position.last.is_shard_end:
                self._deviate("no checkpoint of the end of the shard: its child shards would never be read")
            try:
                child.idle(None, self._receive, self._stray_output_s)
            except ChildExited:
                if not isinstance(step.action, LeaseLost | ShardEnded):  # after these two it may go
                    raise

    def _took(self, seconds: float) -> None:
        n, total, longest = self._times.get(self._action, (0, 0.0, 0.0))
        self._times[self._action] = [n + 1, total + seconds, max(longest, seconds)]

    def _receive(self, data: bytes) -> Reply:
        try:
            events = self._dialogue.receive(data)
        except ChildError as e:
            for event in getattr(e, "events", ()):
                self._look_at(event)
            raise
        to_write = b"".join(self._look_at(event) for event in events)
        return Reply(
            to_write=to_write,
            done=any(isinstance(e, ActionDone) for e in events),
            progressed=any(not isinstance(e, Noise) for e in events),
        )

    def _look_at(self, event: Event) -> bytes:
        """What to write back."""
        match event:
            case CheckpointRequested():
                self._requests_left -= 1
                if self._requests_left < 0:
                    raise ChildMisbehaved("the child asks for checkpoints without end")
                self._unknown_keys = {}
                answer = self._dialogue.answer_checkpoint(event, self._judge(event))
                more = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in self._unknown_keys.items())
                return answer.replace(b"}\n", more.encode() + b"}\n") if more else answer
            case Noise(line=line):
                if line.lstrip().startswith("{") and '"action"' in line:
                    self._deviate("a line that looks like a message and is none", line)
                self._first_noise = self._first_noise or line
                self._noise_lines += 1
        return b""

    def _judge(self, request: CheckpointRequested) -> str | None:
        """The error to answer with; what is wrong with the request goes into the report."""
        state: bytes | checkpoint.Refused | None = None
        line = encode_line(
            CheckpointRequest(sequence_number=request.sequence_number, sub_sequence_number=request.sub_sequence_number)
        )
        if isinstance(request, PrepareCheckpointRequested):
            state = checkpoint.parse_state(request.application_state)
            line = encode_line(
                PrepareCheckpointRequest(
                    sequence_number=request.sequence_number,
                    sub_sequence_number=request.sub_sequence_number,
                    application_state=request.application_state,
                )
            )
        if not request.allowed:
            self._note(f"asks for a checkpoint in {self._action}, where it is always refused")
            return "InvalidStateException"
        decision = checkpoint.resolve(self._position, request.sequence_number, request.sub_sequence_number)
        if isinstance(state, checkpoint.Refused):
            decision = state
        if isinstance(decision, checkpoint.Refused):
            if request.sub_sequence_number is None and request.sequence_number == self._position.last.sequence_number:
                # Most clients have no way to say more; Java refuses it as well, and a later record makes up for it.
                self._note("names its position inside a KPL aggregate without sub-sequence number: refused")
                return decision.error
            self._deviate(f"asks for a checkpoint that is refused: {decision.reason}", line.decode().rstrip())
            return decision.error
        error = None
        if self._answers:
            answer = self._answers.popleft()
            error, self._unknown_keys = answer.error, answer.unknown_keys
        if error is None and not isinstance(request, PrepareCheckpointRequested):
            self._position = checkpoint.written(self._position, decision.position)
            self._checkpoints += 1
        return error

    def _end(self, child: Child) -> None:
        started = time.monotonic()
        status = child.end()
        if time.monotonic() - started >= self._settings.close_deadline_s:
            self._deviate(f"did not end within {self._settings.close_deadline_s:g} s after its stdin was closed")
        elif status is not None and status < 0:
            self._deviate(f"the process {describe_exit(status)} after its stdin was closed")
        elif status:
            self._note(f"the process {describe_exit(status)}; the host does not mind")

    def _deviate(self, message: str, line: str | None = None) -> None:
        deviation = Deviation(action=self._action, message=message, line=line)
        if len(self._deviations) >= _MAX_DEVIATIONS:
            self._note("and further deviations")
        elif deviation not in self._deviations:
            self._deviations.append(deviation)

    def _note(self, text: str) -> None:
        if len(self._notes) < _MAX_DEVIATIONS:
            self._notes.setdefault(text)


def verify_command(
    command: Sequence[str], sessions: Sequence[Transcript], timeout_s: float, extensions: Sequence[str] = ()
) -> Generator[SessionReport, None, None]:
    """Reports as the sessions end. Raises ChildStartFailed, TranscriptError."""
    for transcript in sessions:
        needed = _extension_of(transcript)
        played = extensions if needed is None or needed in extensions else (*extensions, needed)
        # Between many batches nobody listens for long: a surplus status is found with the next one.
        stray_output_s = STRAY_OUTPUT_S if len(transcript.entries) <= _MANY_ENTRIES else 0.0
        yield Session(transcript, command, timeout_s, played, stray_output_s).run()


def _extension_of(transcript: Transcript) -> str | None:
    """A recorded session shows by its first message that the extension was switched on."""
    first = next((entry.raw for entry in transcript.entries if entry.who == "host"), None)
    return PREPARE_CHECKPOINT if first and '"pendingCheckpointSequenceNumber"' in first else None
