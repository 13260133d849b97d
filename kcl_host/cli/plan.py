"""`kcl-host plan`: which leases the leader would move now and why, and which with more or fewer workers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from kcl_host.cli.properties_file import takes_properties_file
from kcl_host.cli.run import read_settings
from kcl_host.decisions.fleet_looks import FleetSnapshot
from kcl_host.decisions.fleet_plan import FleetPlan, plan_fleet
from kcl_host.decisions.saved_fleet import SavedFleet, lightest_workers, load_fleet, save_fleet
from kcl_host.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA: Final = 1
"""Of --json; grows when a field changes its meaning or goes."""
MOVES_SHOWN: Final = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_properties_file
@click.option("--workers", "change", metavar="+N|-N", help="What if there were N workers more, or fewer?")
@click.option("--without", "removed", multiple=True, metavar="ID", help="What if this worker stopped? May be repeated.")
@click.option("--observe", type=click.FloatRange(min=0), metavar="S", help="Look twice, S seconds apart.")
@click.option("--save", "save_to", type=click.Path(path_type=Path), help="Write what was seen to a file (only yours).")
@click.option("--snapshot", type=click.Path(path_type=Path), help="Plan with a saved fleet instead; AWS is not asked.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of several leases that fit, chance takes one.")
@click.option("--all", "show_all", is_flag=True, help="Every move, however many.")
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
def plan(
    file: Path | None,
    properties_file: Path | None,
    change: str | None,
    removed: tuple[str, ...],
    observe: float | None,
    save_to: Path | None,
    snapshot: Path | None,
    seed: int,
    show_all: bool,
    as_json: bool,
) -> int:
    """Show what the leader would move in its next balancing pass, and why; nothing is written to any table.

    It is decided by the functions that a leader of kcl-host decides by, from the live tables or from a saved fleet,
    whoever the workers are. One look cannot see that an owner is silent; --observe can, with more than
    failoverTimeMillis.

    \b
      kcl-host plan -p app.properties                      what would move now?
      kcl-host plan -p app.properties --workers +2         and with two workers more?
      kcl-host plan -p app.properties --workers -1         and with one fewer? (the one with least to hand over)
      kcl-host plan -p app.properties --without host-7
      kcl-host plan -p app.properties --observe 12 --save fleet.json
      kcl-host plan --snapshot fleet.json --workers -3     later, elsewhere, without AWS

    \b
    Exit codes: 0 planned (whether anything moves or not), 2 wrong configuration or usage, 3 nothing could be read
    for want of credentials or permissions.
    """
    path = properties_file or file
    fleet = _read(snapshot) if snapshot is not None else _look(path, observe, save_to)
    joining, fewer = _change(change)
    gone = {*removed, *lightest_workers(fleet, fewer, beside=removed)}
    planned = plan_fleet(fleet, random.Random(seed), joining=joining, removed=gone)
    if as_json:
        document = {"schema": SCHEMA, **msgspec.structs.asdict(planned)}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        _print(planned, _console(), show_all=show_all)
    return 0


def _change(text: str | None) -> tuple[int, int]:
    """Workers more, and workers fewer."""
    if text is None:
        return 0, 0
    if text[:1] not in "+-" or not text[1:].isdigit():
        raise click.UsageError(f"--workers is +N or -N, not {text!r}")
    count = int(text[1:])
    return (count, 0) if text[0] == "+" else (0, count)


def _look(path: Path | None, observe: float | None, save_to: Path | None) -> SavedFleet:
    """Two looks where more than one was asked for."""
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host plan -p FILE, or --snapshot FILE")
    from kcl_host.cli.status import fleet_reader

    settings = read_settings(path).settings
    reader = fleet_reader(settings)
    looks: list[FleetSnapshot] = [reader.take()]
    if observe:
        time.sleep(observe)
        looks.append(reader.take())
    data = save_fleet(looks, settings)
    if save_to is not None:
        _write(save_to, data)
    return load_fleet(data)


def _read(path: Path) -> SavedFleet:
    try:
        return load_fleet(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    """For its owner's eyes: worker ids are host names."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            os.fchmod(target.fileno(), 0o600)  # A file that was there keeps its mode otherwise.
            target.write(data)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


# What is shown


def _print(planned: FleetPlan, console: Console, *, show_all: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from kcl_host.cli.terminal import printable

    planned = printable(planned)
    console.print(Text(_headline(planned), style="bold"))
    for note in planned.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    console.print()
    workers = Table(box=None, pad_edge=False, header_style="dim")
    for column, justify in (("worker", "left"), ("leases", "right"), ("KB/s", "right"), ("load", "left"), ("", "left")):
        workers.add_column(column, justify=justify)  # type: ignore[arg-type]
    for worker in planned.workers:
        workers.add_row(
            Text(worker.worker_id),
            _from_to(f"{worker.leases_before:,}", f"{worker.leases_after:,}"),
            _from_to(f"{worker.kbps_before:,.1f}", f"{worker.kbps_after:,.1f}"),
            ", ".join(f"{name} {value:.0f} %" for name, value in worker.metrics.items()) or "-",
            "" if worker.standing == "active" else worker.standing,
        )
    console.print(workers)
    if planned.moves:
        console.print()
        _print_moves(planned, console, len(planned.moves) if show_all else MOVES_SHOWN)


def _print_moves(planned: FleetPlan, console: Console, count: int) -> None:
    from rich.table import Table
    from rich.text import Text

    moves = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("lease", "from", "to", "KB/s", "why", "how"):
        moves.add_column(column, justify="right" if column == "KB/s" else "left")
    for move in planned.moves[:count]:
        kbps = "-" if move.throughput_kbps is None else f"{move.throughput_kbps:,.1f}"
        how = "handover" if move.kind == "handoff" else "at once"
        moves.add_row(Text(move.lease_key), Text(move.before or "-"), Text(move.after), kbps, move.reason, how)
    console.print(moves)
    if len(planned.moves) > count:
        console.print(Text(f"and {len(planned.moves) - count:,} more (--all, --json)", style="dim"))


def _headline(planned: FleetPlan) -> str:
    moved = len(planned.moves)
    what = f"{moved:,} of {planned.leases:,} leases would move" if moved else "nothing would move"
    words = [f"{planned.application}: {what}"]
    if planned.joining:
        words.append(f"with {len(planned.joining)} more: {_few(planned.joining)}")
    if planned.removed:
        words.append(f"without {_few(planned.removed)}")
    return ", ".join(words)


def _few(worker_ids: Sequence[str]) -> str:
    return ", ".join(worker_ids[:5]) + (f" and {len(worker_ids) - 5} others" if len(worker_ids) > 5 else "")


def _from_to(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _console() -> Console:
    from kcl_host.cli.terminal import console

    return console()
