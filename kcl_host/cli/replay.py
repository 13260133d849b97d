"""`kcl-host replay`: sets where shards are read from, while the fleet runs, Java workers included."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from kcl_host.cli.properties_file import takes_properties_file
from kcl_host.cli.run import read_settings
from kcl_host.decisions.replay import FILE_VERSION, LeaseChange, ReplayTarget, SavedPositions, TargetKind
from kcl_host.errors import ConfigurationError
from kcl_host.log import one_line
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import StreamIdentifier

if TYPE_CHECKING:
    from kcl_host.config.settings import Settings
    from kcl_host.coordination.replay import Replay, ReplayOutcome
    from kcl_host.coordination.replay_preview import ReplayPlanner, ReplayPreview

PARALLEL: Final = 16
UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WHAT: Final = {
    "create": ("made anew", "green"),
    "back": ("back", "cyan"),
    "forward": ("forward, skips records", "yellow"),
    "again": ("the same, read again", "cyan"),
    "finish": ("finished, skips the rest", "yellow"),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_properties_file
@click.option("--ago", metavar="AGE", help="From records that arrived this long ago: 90s, 2h, 1d12h.")
@click.option("--at", metavar="TIME", help="From records that arrived at this time: ISO 8601, UTC unless it says else.")
@click.option("--from-sequence-number", "at_number", metavar="N[:SUB]", help="From this record on. One --shard.")
@click.option("--after-sequence-number", "after_number", metavar="N[:SUB]", help="Past this record. One --shard.")
@click.option("--trim-horizon", is_flag=True, help="From the oldest record that the stream still holds.")
@click.option("--latest", is_flag=True, help="Past every record that is there now.")
@click.option("--undo", type=click.Path(path_type=Path, exists=True), metavar="FILE", help="Back to where FILE says.")
@click.option("--shard", "shards", multiple=True, metavar="ID", help="Only this shard; may be repeated. Default: all.")
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME", help="Only this stream of several; may be repeated."
)
@click.option("--take", is_flag=True, help="Do not ask live owners: take the leases. For workers of KCL 2.x.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Where old positions are saved first.")
@click.option("--apply", is_flag=True, help="Do it. Without this nothing is written.")
def replay(
    file: Path | None,
    properties_file: Path | None,
    ago: str | None,
    at: str | None,
    at_number: str | None,
    after_number: str | None,
    trim_horizon: bool,
    latest: bool,
    undo: Path | None,
    shards: tuple[str, ...],
    streams: tuple[str, ...],
    take: bool,
    save: Path | None,
    apply: bool,
) -> None:
    """Set where shards are read from, back or forward, while the workers run. Java's KCL 3.x workers may be among them.

    \b
      kcl-host replay -p app.properties --ago 2h                 what would be changed?
      kcl-host replay -p app.properties --ago 2h --apply         read the last two hours again
      kcl-host replay -p app.properties --at 2026-11-21T09:30Z --shard shardId-000000000003 --apply
      kcl-host replay -p app.properties --after-sequence-number 4957... --shard shardId-000000000003 --apply
      kcl-host replay -p app.properties --undo replay-app-20261121T103000Z.json --apply

    Positions become checkpoints: that of the record before the first one wanted, so every record from there on is
    delivered, in order, and none is skipped. Where no record has arrived since the time given, it is the last one that
    there is: the next to come is delivered. To find them, shards are read at up to three requests a second each.

    A time means the same in all shards: those that were open then start within, their parents are finished, and their
    child shards start anew after them; leases that clean-up has deleted are made again. With --shard, the child shards
    of a shard that is read again are set back too, since what is in them comes after it.

    With --apply, old positions are saved to a file first. Then each lease is handed over to this command, as a leader
    hands leases to a worker: the child gets shutdownRequested and may checkpoint, and whatever the old owner tries to
    write later is refused. An owner that does not hand over in gracefulLeaseHandoffTimeoutMillis + failoverTimeMillis
    (40 s) loses the lease all the same, at once with --take; a dead one after failoverTimeMillis. Shards that descend
    from each other stand still together, until all their positions are written; then the leader gives the leases to
    workers again. Whatever interrupts this, nothing is skipped, and workers go on after failoverTimeMillis: run it
    again, or --undo.

    \b
    Exit codes: 0 done, or shown what would be; 1 failed on the way (run it again, or --undo), 2 wrong configuration
    or usage, 3 credentials or permissions, 4 the stream does not exist, 6 the table holds broken rows, or a lease
    could not be got.
    """
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host replay -p FILE --ago 2h")
    settings = read_settings(path).settings
    target = None if undo else read_target(time.time(), ago, at, at_number, after_number, trim_horizon, latest)
    if undo and any((ago, at, at_number, after_number, trim_horizon, latest, shards, streams)):
        raise ConfigurationError("--undo takes a whole replay back: no position, no --shard, no --stream beside it")
    if target is not None and target.sequence_number is not None and len(shards) != 1:
        raise ConfigurationError("a sequence number lies in one shard: name it by --shard")
    if target is not None and target.sequence_number is not None and settings.multi_stream and len(streams) != 1:
        raise ConfigurationError("a sequence number lies in one stream: name it by --stream")
    planner, carrier = _connect(settings, ask_owners=not take)
    if undo:
        said = f"where {undo} says"
        preview = planner.preview_undo(read_saved(undo))
    else:
        assert target is not None
        said = _said(target)
        preview = planner.preview(target, shards, streams)
    _print_plan(preview, said)
    if not preview.changes:
        click.echo("Nothing to change.")
    elif not apply:
        click.echo("Nothing was written. Run this again with --apply.")
    else:
        at_utc = datetime.now(UTC)
        table = settings.lease_table.name
        saved = save or Path(f"replay-{table}-{at_utc:%Y%m%dT%H%M%SZ}.json")
        write_saved(saved, preview.saved(table, f"{at_utc:%Y-%m-%dT%H:%M:%SZ}", said))
        click.echo(f"old positions saved: {saved}")
        try:
            outcome = carrier.apply(preview, _Progress())
        except BaseException:
            click.echo(
                f"not finished: what is set is set, workers go on. Run this again, or take it back: --undo {saved}",
                err=True,
            )
            raise
        _print_outcome(preview, outcome, saved)


def read_target(
    now_s: float,
    ago: str | None,
    at: str | None,
    at_number: str | None,
    after_number: str | None,
    trim_horizon: bool,
    latest: bool,
) -> ReplayTarget:
    """Raises ConfigurationError unless exactly one position is given, and not one to come."""
    given = [bool(one) for one in (ago, at, at_number, after_number, trim_horizon, latest)]
    if sum(given) != 1:
        raise ConfigurationError(
            "give one position: --ago, --at, --from-sequence-number, --after-sequence-number, --trim-horizon or "
            "--latest"
        )
    if trim_horizon:
        return ReplayTarget(kind="TRIM_HORIZON")
    if latest:
        return ReplayTarget(kind="LATEST")
    if at_number:
        return _at_number("AT_SEQUENCE_NUMBER", at_number)
    if after_number:
        return _at_number("AFTER_SEQUENCE_NUMBER", after_number)
    timestamp_s = now_s - _age_s(ago) if ago else _time_s(at or "")
    if timestamp_s > now_s:
        raise ConfigurationError("that time is still to come; --latest skips what is there now")
    return ReplayTarget(kind="AT_TIMESTAMP", timestamp_s=math.floor(timestamp_s * 1000) / 1000)


def _age_s(text: str) -> float:
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise ConfigurationError(f"--ago {text}: a number with s, m, h or d, as 90s, 2h or 1d12h")
    return sum(float(number) * UNITS_S[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))


def _time_s(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"--at {text}: not a time as 2026-11-21T09:30:00Z") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _at_number(kind: TargetKind, text: str) -> ReplayTarget:
    match = re.fullmatch(r"([0-9]{1,129})(?::([0-9]{1,18}))?", text)
    if match is None:
        raise ConfigurationError(f"{text} is no sequence number; a user record of an aggregate is NUMBER:SUB")
    return ReplayTarget(
        kind=kind, sequence_number=match[1], sub_sequence_number=None if match[2] is None else int(match[2])
    )


def read_saved(path: Path) -> SavedPositions:
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=SavedPositions)
        for one in saved.leases:
            StreamIdentifier.parse(one.stream)
            if one.checkpoint is not None:
                ExtendedSequenceNumber(one.checkpoint, one.sub_sequence_number)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} does not hold the positions of a replay: {error}") from None
    if saved.version != FILE_VERSION:
        raise ConfigurationError(f"{path} was written by another version of kcl-host")
    return saved


def write_saved(path: Path, saved: SavedPositions) -> None:
    """On disk when it returns. Never over another file: that one is needed to get back to where it all began."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already; --save names another file") from None
    except OSError as error:
        raise ConfigurationError(f"old positions cannot be saved: {error}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(saved)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _connect(settings: Settings, *, ask_owners: bool) -> tuple[ReplayPlanner, Replay]:
    from kcl_host.aws.clients import clients_for
    from kcl_host.coordination.replay import Replay
    from kcl_host.coordination.replay_preview import ReplayPlanner
    from kcl_host.coordination.streams import StreamAccess, Streams
    from kcl_host.runtime.clock import SystemClock
    from kcl_host.runtime.services import lease_table_of, metadata_tables_of, stream_of
    from kcl_host.runtime.threads import SystemThreads

    clients = clients_for(settings)
    leases, tables = lease_table_of(clients.dynamodb, settings), metadata_tables_of(clients.dynamodb, settings)
    streams = Streams(settings, lambda stream, own: StreamAccess(stream_of(clients.kinesis, stream, own)))
    clock, threads = SystemClock(), SystemThreads(PARALLEL)
    replayer_id = f"kcl-host-replay-{socket.gethostname()}-{secrets.token_hex(4)}"
    return (
        ReplayPlanner(streams, leases, tables, settings, clock, threads, ask_owners=ask_owners),
        Replay(leases, tables, settings, clock, threads, replayer_id),
    )


class _Progress:
    """A line on stderr when something is new."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, done: int, total: int, note: str) -> None:
        line = f"leases set: {done} of {total}" + (f", {note}" if note else "")
        if line != self._said:
            click.echo(one_line(line), err=True)
            self._said = line


def _said(target: ReplayTarget) -> str:
    match target.kind:
        case "TRIM_HORIZON":
            return "the oldest record of the stream"
        case "LATEST":
            return "after what is there now"
        case "AT_TIMESTAMP":
            at = datetime.fromtimestamp(target.timestamp_s or 0, UTC)
            return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case "AT_SEQUENCE_NUMBER":
            return f"record {_numbers(target)}"
        case _:
            return f"after record {_numbers(target)}"


def _numbers(target: ReplayTarget) -> str:
    sub = target.sub_sequence_number
    return f"{target.sequence_number}" + ("" if sub is None else f":{sub}")


def _print_plan(preview: ReplayPreview, said: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from kcl_host.cli.terminal import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("lease", "checkpoint now", "checkpoint then", "", "held by"):
        table.add_column(column, overflow="fold")
    for change in sorted(preview.changes, key=lambda change: change.lease_key):
        what, style = WHAT[change.kind]
        table.add_row(
            Text(change.lease_key),
            Text(_now(change), style="dim"),
            Text(str(change.to)),
            Text(what, style=style),
            Text((change.row and change.row.actual_owner) or "-", style="dim"),
        )
        if change.note:
            table.add_row("", "", "", Text(change.note, style="yellow"), "")
    click.echo(f"position: {said}\n")
    console(width=None).print(table)
    for stream in preview.streams:
        if stream.plan.ended:
            click.echo(
                f"shards of {stream.identifier} that end before that, and are left alone: {len(stream.plan.ended)}"
            )
    if preview.horizon_is_nearer:
        click.echo("the stream does not hold records as old as that: it begins with the oldest")
    if preview.changes and not preview.asks_owners:
        click.echo("owners are not asked: their leases are taken")


def _now(change: LeaseChange) -> str:
    return "no lease" if change.row is None else str(change.row.checkpoint or "-")


def _print_outcome(preview: ReplayPreview, outcome: ReplayOutcome, saved: Path) -> None:
    click.echo(
        f"leases set: {len(preview.changes)}, of which {len(outcome.handed_over)} were handed over by their owners"
    )
    if outcome.taken:
        click.echo(
            f"taken from owners that did not hand them over: {len(outcome.taken)}. Their children may have been given "
            "records after the last checkpoint, and may go on with them for a moment; what they checkpoint is refused"
        )
    click.echo(f"To take it back: --undo {saved} --apply")
