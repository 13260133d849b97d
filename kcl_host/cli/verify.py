"""`kcl-host verify CMD...`: is this program a record processor that keeps to the MultiLang protocol?

Plays the host's part of protocol/transcripts to it, one process per session, without AWS. What breaks the protocol, or
would stall a shard, is a deviation; what is only worth knowing is a note.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import time
from collections import deque
from collections.abc import Generator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import click
import msgspec

import kcl_host
from kcl_host.child.process import child_environment, describe_exit, start_child
from kcl_host.config.settings import ChildSettings
from kcl_host.decisions import checkpoint
from kcl_host.errors import ChildError, ChildExited, ChildStartFailed
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
from kcl_host.multilang.transcript import Transcript, parse_transcript
from kcl_host.ports import Child, Reply

_STRAY_OUTPUT_S = 0.05
"""How long to listen after an answer for output that nobody asked for."""
_STDERR_LINES = 5


class Deviation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`action` is the open action, or the last one; `line` what the child wrote, where a line is to blame."""

    action: str
    message: str
    line: str | None = None


class SessionReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One session; `ok` without deviations. `stderr` is the end of what the child said there."""

    session: str
    title: str
    ok: bool
    duration_s: float
    checkpoints: int
    deviations: tuple[Deviation, ...]
    notes: tuple[str, ...]
    stderr: tuple[str, ...]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    command: tuple[str, ...]
    ok: bool
    notes: tuple[str, ...]
    sessions: tuple[SessionReport, ...]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """An action, and how the transcript answers the checkpoint requests within it, in their order."""

    action: Action
    answers: tuple[str | None, ...]


def protocol_folder() -> Traversable:
    """The protocol's files: part of an installed package, beside the package in a working copy."""
    installed = importlib.resources.files(kcl_host) / "protocol_data"
    return installed if installed.is_dir() else Path(kcl_host.__file__).parents[1] / "protocol"


def load_sessions(extensions: Sequence[str] = ()) -> list[Transcript]:
    """The transcripts to play, in the order of their files' numbers, which are not part of their names.

    Those of an extension are in a folder of its name and come last.
    """
    folder = protocol_folder() / "transcripts"
    return [
        parse_transcript(f.name.removesuffix(".txt").partition("-")[2], f.read_text("utf-8"))
        for place in (folder, *(folder / extension for extension in extensions))
        for f in sorted(place.iterdir(), key=lambda f: f.name)
        if f.name.endswith(".txt")
    ]


def steps_of(transcript: Transcript, extensions: Sequence[str] = ()) -> list[Step]:
    """The host's part: what it sends by itself. The end of the session closes stdin."""
    steps: list[Step] = []
    for entry in transcript.entries:
        if entry.who == "host" and entry.text is not None:
            message = decode_host_line(entry.text)
            if (
                PREPARE_CHECKPOINT in extensions
                and isinstance(message, Initialize)
                and message.pending_checkpoint_sequence_number is msgspec.UNSET
            ):
                message = with_prepared(message, None)
            if isinstance(message, CheckpointAnswer):
                steps[-1] = msgspec.structs.replace(steps[-1], answers=(*steps[-1].answers, message.error))
            else:
                steps.append(Step(action=message, answers=()))
    return steps


class Session:
    """One process of the command, led through one transcript. `run` is called once."""

    def __init__(
        self, transcript: Transcript, command: Sequence[str], timeout_s: float, extensions: Sequence[str] = ()
    ) -> None:
        self._transcript = transcript
        self._extensions = extensions
        self._settings = ChildSettings(
            command=tuple(command),
            close_deadline_s=min(timeout_s, ChildSettings(command=()).close_deadline_s),
            term_deadline_s=1.0,
        )
        self._timeout_s = timeout_s
        self._dialogue = Dialogue(extensions=extensions)
        self._action = ""
        self._answers: deque[str | None] = deque()
        self._position = checkpoint.started(ExtendedSequenceNumber("TRIM_HORIZON"))
        self._checkpoints = 0
        self._deviations: list[Deviation] = []
        self._notes: list[str] = []
        self._noise: list[Noise] = []
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
        if self._noise:
            self._notes.append(f"noise on stdout, {len(self._noise)} line(s), first {self._noise[0].line[:100]!r}")
        return SessionReport(
            session=self._transcript.name,
            title=self._transcript.title,
            ok=not self._deviations,
            duration_s=round(time.monotonic() - started, 3),
            checkpoints=self._checkpoints,
            deviations=tuple(self._deviations),
            notes=tuple(dict.fromkeys(self._notes)),
            stderr=tuple(self._stderr),
        )

    def _play(self, child: Child) -> None:
        for step in steps_of(self._transcript, self._extensions):
            self._action = step.action.action
            self._answers = deque(step.answers)
            match step.action:
                case Initialize(sequence_number=number, sub_sequence_number=sub) if number:
                    self._position = checkpoint.started(ExtendedSequenceNumber(number, sub or 0))
                case ProcessRecords(records=records):
                    self._position = checkpoint.delivered(self._position, records[-1].position)
                case ShardEnded():
                    self._position = checkpoint.entering_shard_end(self._position)
            child.exchange(self._dialogue.send(step.action), self._receive, self._timeout_s)
            if isinstance(step.action, ShardEnded) and not self._position.last.is_shard_end:
                self._deviate("no checkpoint of the end of the shard: its child shards would never be read")
            try:
                child.idle(None, self._receive, _STRAY_OUTPUT_S)
            except ChildExited:
                if not isinstance(step.action, LeaseLost | ShardEnded):  # after these two it may go
                    raise

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
                return self._dialogue.answer_checkpoint(event, self._judge(event))
            case Noise(line=line):
                if line.lstrip().startswith("{") and '"action"' in line:
                    self._deviate("a line that looks like a message and is none", line)
                self._noise.append(event)
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
            self._notes.append(f"asks for a checkpoint in {self._action}, where it is always refused")
            return "InvalidStateException"
        decision = checkpoint.resolve(self._position, request.sequence_number, request.sub_sequence_number)
        if isinstance(state, checkpoint.Refused):
            decision = state
        if isinstance(decision, checkpoint.Refused):
            if request.sub_sequence_number is None and request.sequence_number == self._position.last.sequence_number:
                # Most clients have no way to say more; Java refuses it as well, and a later record makes up for it.
                self._notes.append("names its position inside a KPL aggregate without sub-sequence number: refused")
                return decision.error
            self._deviate(f"asks for a checkpoint that is refused: {decision.reason}", line.decode().rstrip())
            return decision.error
        error = self._answers.popleft() if self._answers else None
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
            self._notes.append(f"the process {describe_exit(status)}; the host does not mind")

    def _deviate(self, message: str, line: str | None = None) -> None:
        self._deviations.append(Deviation(action=self._action, message=message, line=line))


def verify_command(
    command: Sequence[str], sessions: Sequence[Transcript], timeout_s: float, extensions: Sequence[str] = ()
) -> Generator[SessionReport, None, None]:
    """Reports as the sessions end. Raises ChildStartFailed."""
    for transcript in sessions:
        yield Session(transcript, command, timeout_s, extensions).run()


def summary(command: Sequence[str], sessions: Sequence[SessionReport]) -> VerifyReport:
    notes = []
    if all(s.ok for s in sessions) and not any(s.checkpoints for s in sessions):
        notes.append("never asks for a checkpoint: after a restart everything would be delivered again")
    return VerifyReport(
        command=tuple(command), ok=all(s.ok for s in sessions), notes=tuple(notes), sessions=tuple(sessions)
    )


@click.command(
    "verify", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, no_args_is_help=True
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for each message, and at most for the end after EOF.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only this session. May be repeated.")
@click.option(
    "--extension",
    "extensions",
    multiple=True,
    type=click.Choice([PREPARE_CHECKPOINT]),
    help="Switch this addition to the protocol on, in all sessions, and play its own ones too.",
)
@click.option("--list", "list_only", is_flag=True, help="List the sessions and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON report instead of text.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def verify(
    timeout_s: float,
    only: tuple[str, ...],
    extensions: tuple[str, ...],
    list_only: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Check that CMD is a record processor that keeps to the MultiLang protocol.

    CMD is started once per session, without AWS, and led through it as by a host. Exit status: 0 when all is well,
    1 when there are deviations, 2 when CMD cannot be started.
    """
    extensions = tuple(dict.fromkeys(extensions))
    sessions = _selected(load_sessions(extensions), only)
    if list_only:
        for transcript in sessions:
            click.echo(f"{transcript.name:<26} {transcript.title}")
        return
    if not command:
        raise click.UsageError("Missing CMD, the program to verify.")
    reports: list[SessionReport] = []
    try:
        with contextlib.closing(verify_command(command, sessions, timeout_s, extensions)) as running:
            for report in running:
                reports.append(report)
                if not as_json:
                    _print_session(report)
    except ChildStartFailed as e:
        raise click.UsageError(str(e)) from e
    result = summary(command, reports)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        _print_summary(result)
    if not result.ok:
        raise click.exceptions.Exit(1)


def _selected(sessions: list[Transcript], only: tuple[str, ...]) -> list[Transcript]:
    if unknown := sorted(set(only) - {s.name for s in sessions}):
        raise click.UsageError(f"No session {', '.join(unknown)}; --list shows them.")
    return [s for s in sessions if not only or s.name in only]


def _print_session(report: SessionReport) -> None:
    verdict = click.style("ok       ", fg="green") if report.ok else click.style("deviation", fg="red", bold=True)
    click.echo(f"{verdict}  {report.session:<26} {report.duration_s:7.2f} s")
    for deviation in report.deviations:
        click.echo(f"    {deviation.action}: {deviation.message}")
        if deviation.line is not None:
            click.echo(f"      child> {deviation.line}")
    for note in report.notes:
        click.echo(f"    note: {note}")
    if not report.ok:
        for line in report.stderr:
            click.echo(f"    stderr: {line}")


def _print_summary(result: VerifyReport) -> None:
    for note in result.notes:
        click.echo(f"note: {note}")
    failed = [s.session for s in result.sessions if not s.ok]
    if failed:
        click.echo(f"{len(failed)} of {len(result.sessions)} sessions deviate from the protocol: {', '.join(failed)}")
    else:
        click.echo(f"{len(result.sessions)} sessions without a deviation")
