"""`kcl-host verify CMD...`: is this program a record processor that keeps to the MultiLang protocol?

Plays the host's part of protocol/transcripts to it, or that of recorded sessions, one process per session, without AWS.
What breaks the protocol, or would stall a shard, is a deviation; what is only worth knowing is a note.
"""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click
import msgspec

import kcl_host
from kcl_host.cli.verify_report import badge, junit, print_session, print_summary, summary
from kcl_host.cli.verify_session import SessionReport, steps_of, verify_command
from kcl_host.errors import ChildStartFailed
from kcl_host.multilang.messages import PREPARE_CHECKPOINT
from kcl_host.multilang.transcript import Transcript, TranscriptError, parse_transcript

__all__ = ["load_sessions", "steps_of", "stress_session", "verify", "verify_command"]

OPTIONAL: Final = "optional"
"""The folder of the sessions that not every child has to pass."""
STRESS: Final = "stress"
_STRESS_RECORDS: Final = "100 x 1KB"
_MAX_TRANSCRIPT_BYTES: Final = 256 * 1024 * 1024


def protocol_folder() -> Traversable:
    """The protocol's files: part of an installed package, beside the package in a working copy."""
    installed = importlib.resources.files(kcl_host) / "protocol_data"
    return installed if installed.is_dir() else Path(kcl_host.__file__).parents[1] / "protocol"


def load_sessions(extensions: Sequence[str] = ()) -> list[Transcript]:
    """The transcripts to play, in the order of their files' numbers, which are not part of their names.

    Those of an extension (or of `OPTIONAL`) are in a folder of its name and come last.
    """
    folder = protocol_folder() / "transcripts"
    return [
        parse_transcript(f.name.removesuffix(".txt").partition("-")[2], f.read_text("utf-8"))
        for place in (folder, *(folder / extension for extension in extensions))
        for f in sorted(place.iterdir(), key=lambda f: f.name)
        if f.name.endswith(".txt")
    ]


def recorded_sessions(path: Path) -> list[Transcript]:
    """The transcripts of a file, or of the files *.txt in a folder, by name. Raises TranscriptError, OSError."""
    files = sorted(f for f in path.iterdir() if f.suffix == ".txt" and f.is_file()) if path.is_dir() else [path]
    if not files:
        raise TranscriptError(f"{path}: no transcript (*.txt) in this folder")
    sessions = []
    for file in files:
        if file.stat().st_size > _MAX_TRANSCRIPT_BYTES:
            raise TranscriptError(f"{file}: larger than any transcript")
        try:
            sessions.append(parse_transcript(file.stem, file.read_text("utf-8")))
        except UnicodeDecodeError as e:
            raise TranscriptError(f"{file}: not a transcript: {e}") from e
    return sessions


def stress_session(batches: int) -> Transcript:
    """Many batches, one after the other without a pause."""
    lines = [
        f"# {batches} batches of {_STRESS_RECORDS}.",
        'host> {"action":"initialize","shardId":"shardId-000000000000","sequenceNumber":"TRIM_HORIZON",'
        '"subSequenceNumber":0}',
        *[f'host> {{"action":"processRecords","records":<records {_STRESS_RECORDS}>,"millisBehindLatest":0}}']
        * batches,
        'host> {"action":"shutdownRequested"}',
        'host> {"action":"leaseLost"}',
    ]
    return parse_transcript(STRESS, "\n".join(lines))


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
@click.option("--optional", is_flag=True, help="The sessions too that not every child has to pass: empty batches.")
@click.option(
    "--stress",
    type=click.IntRange(min=1, max=1_000_000),
    metavar="N",
    help=f"One session more, of N batches of {_STRESS_RECORDS.replace('x', 'records of')} each, and how fast it was.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE|DIR",
    help="Instead of the sessions that come along, what a host recorded: `kcl-host run --transcript DIR`.",
)
@click.option("--times", is_flag=True, help="How long each kind of action took.")
@click.option("--list", "list_only", is_flag=True, help="List the sessions and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON report instead of text.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML, too.")
@click.option(
    "--badge", "badge_file", type=click.Path(path_type=Path, dir_okay=False), help="Write a badge (SVG), too."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def verify(
    timeout_s: float,
    only: tuple[str, ...],
    extensions: tuple[str, ...],
    optional: bool,
    stress: int | None,
    replay: Path | None,
    times: bool,
    list_only: bool,
    as_json: bool,
    junit_file: Path | None,
    badge_file: Path | None,
    command: tuple[str, ...],
) -> None:
    """Check that CMD is a record processor that keeps to the MultiLang protocol.

    CMD is started once per session, without AWS, and led through it as by a host. Exit status: 0 when all is well,
    1 when there are deviations, 2 when CMD cannot be started.
    """
    extensions = tuple(dict.fromkeys(extensions))
    try:
        if replay is not None:
            sessions = recorded_sessions(replay)
        else:
            sessions = load_sessions((*extensions, *([OPTIONAL] if optional else [])))
    except (TranscriptError, OSError) as e:
        raise click.UsageError(str(e)) from e
    if stress is not None:
        sessions.append(stress_session(stress))
    sessions = _selected(sessions, only)
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
                    print_session(report, times=times or report.session == STRESS)
    except (ChildStartFailed, TranscriptError) as e:
        raise click.UsageError(str(e)) from e
    result = summary(command, reports)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        print_summary(result)
    for file, text in ((junit_file, junit), (badge_file, badge)):
        if file is not None:
            try:
                file.write_text(text(result), "utf-8")
            except OSError as e:
                raise click.UsageError(f"cannot write {file}: {e.strerror}") from e
    if not result.ok:
        raise click.exceptions.Exit(1)


def _selected(sessions: list[Transcript], only: tuple[str, ...]) -> list[Transcript]:
    if unknown := sorted(set(only) - {s.name for s in sessions}):
        raise click.UsageError(f"No session {', '.join(unknown)}; --list shows them.")
    return [s for s in sessions if not only or s.name in only]
