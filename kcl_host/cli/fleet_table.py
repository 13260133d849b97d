"""The fleet on a terminal: first whether it is well, then the workers, then the leases worth looking at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kcl_host.cli.terminal import printable
from kcl_host.decisions.fleet_looks import STATES, LeaseState
from kcl_host.decisions.fleet_report import (
    Finding,
    FleetView,
    LeaseView,
    MetadataView,
    MoveView,
    Summary,
    WorkerView,
    seconds,
)
from kcl_host.decisions.fleet_selection import Selection, age_s, interesting, select

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE: Final = 120
"""From so many columns on names are not shortened and all columns are shown."""
ROWS: Final = 60
WORKER_ROWS: Final = 20
BUSIEST: Final = 5
NAMED: Final = 3
"""So many leases or workers are named with a finding."""

STATE_STYLE: Final[Mapping[LeaseState, str]] = {
    "reading": "green",
    "waits_for_parent": "cyan",
    "handover": "yellow",
    "shard_end": "yellow",
    "silent": "bold red",
    "no_owner": "bold red",
    "no_checkpoint": "bold red",
    "ended": "dim",
}
_LONG: Final = re.compile(r"shardId-0*(\d+)")
_METRIC: Final = {"C": "cpu", "M": "mem", "NI": "in", "NO": "out"}


def page(view: FleetView, selection: Selection, width: int) -> RenderableType:
    """Everything for a terminal that scrolls."""
    view = printable(view)
    rows = None if selection.all else ROWS
    workers = None if selection.all else WORKER_ROWS
    return Group(*_top(view, selection, width, workers), *_lease_tables(view, selection, width, rows))


def screen(view: FleetView, selection: Selection, console: Console) -> RenderableType:
    """As much as fits on a screen that is drawn again and again."""
    view = printable(view)
    workers = max(3, min(WORKER_ROWS, console.height // 4))
    top = Group(*_top(view, selection, console.width, workers))
    left = console.height - len(console.render_lines(top)) - 4
    return Group(top, *_lease_tables(view, selection, console.width, max(3, left)))


def shard_name(lease_key: str, width: int) -> str:
    """`12` for shardId-000000000012 where space is dear."""
    if width >= WIDE:
        return lease_key
    stream, _, shard_id = lease_key.rpartition(":")
    number = shard_id.removeprefix("shardId-")
    short = (number.lstrip("0") or "0") if number.isdigit() else shard_id
    return f"{stream.split(':')[1]}:{short}" if stream.count(":") == 2 else short


def worker_name(worker_id: str | None, width: int) -> str:
    """Shortened in the middle: what tells workers of one fleet apart is at the end."""
    room = 40 if width >= WIDE else 18
    if worker_id is None:
        return "-"
    if len(worker_id) <= room:
        return worker_id
    return f"{worker_id[: room // 2 - 1]}…{worker_id[-(room // 2) :]}"


# What comes first


def _top(view: FleetView, selection: Selection, width: int, worker_rows: int | None) -> list[RenderableType]:
    parts: list[RenderableType] = [_verdict(view), *_facts(view)]
    parts += [_finding(finding, width) for finding in view.findings]
    parts += [_move(move, width) for move in view.moves[:NAMED]]
    workers = [worker for worker in view.workers if _is_wanted(worker, selection)]
    if workers:
        parts += [Text(), *_worker_table(workers, width, worker_rows)]
    return parts


def _is_wanted(worker: WorkerView, selection: Selection) -> bool:
    return not selection.workers or any(part in worker.worker_id for part in selection.workers)


def _verdict(view: FleetView) -> Text:
    problems = sum(finding.severity == "problem" for finding in view.findings)
    at = datetime.fromtimestamp(view.taken_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    words = f" {problems} PROBLEM{'S' if problems > 1 else ''} " if problems else " FINE "
    line = Text.assemble((words, "bold white on red" if problems else "bold black on green"), "  ")
    line.append(view.application, "bold")
    line.append(f"  {at}", "dim")
    many = f"{view.looks} looks in {seconds(view.observed_s)}"
    line.append(f"  {many if view.looks > 1 else '1 look: silent owners need two (--observe 15)'}", "dim")
    return line


def _facts(view: FleetView) -> Iterable[Text]:
    summary, leader = view.summary, view.leader
    active = sum(worker.standing == "active" for worker in view.workers)
    yield _fact("streams", ", ".join(view.streams) or "-")
    yield _fact("leases", _states(summary))
    load = [f"{active:,} active of {len(view.workers):,}", f"{_kbps(summary.throughput_kbps)} KB/s together"]
    if summary.writes_per_s is not None:
        load.append(f"{summary.writes_per_s:.1f} lease writes/s")
    yield _fact("workers", ", ".join(load))
    if summary.worst_lag_ms is not None:
        of = f"worst {lag(summary.worst_lag_ms)} ({summary.worst_lag_lease}), {summary.lag_known:,} leases asked"
        yield _fact("lag", of)
    if leader is not None:
        place = "" if leader.place == "coordinator_table" else ", lock in the lease table"
        yield _fact("leader", f"{leader.worker_id}{' (released)' if leader.is_released else ''}{place}")
    yield _fact("tables", _tables(view.metadata))


def _fact(name: str, value: str | Text) -> Text:
    return Text.assemble((f"{name:8}", "dim"), value)


def _states(summary: Summary) -> Text:
    line = Text(f"{summary.leases:,}:" if summary.leases else "none")
    for state in STATES:
        if count := summary.by_state.get(state):
            line.append(f" {count:,} ")
            line.append(state.replace("_", " "), STATE_STYLE[state])
    return line


def _tables(metadata: MetadataView) -> str:
    form = {
        "three_tables": "three tables (KCL 3.0 - 3.4)",
        "single_table": "one table (KCL 3.5)",
        "none": "none",
        "unknown": "format not known",
    }
    words = [form[metadata.form]]
    if metadata.client_version is not None:
        words.append(metadata.client_version.removeprefix("CLIENT_VERSION_").replace("_", " ").lower())
    if metadata.index not in (None, "ACTIVE"):
        words.append(f"index {metadata.index}")
    if metadata.table_migration is not None:
        words.append(f"move into one table: {metadata.table_migration.removeprefix('TABLE_MIGRATION_STATUS_')}")
    return ", ".join(words)


def _finding(finding: Finding, width: int) -> Text:
    style, mark = ("bold red", "!!") if finding.severity == "problem" else ("cyan", "--")
    line = Text.assemble((f"{mark} {finding.kind} ", style), finding.message)
    for names, shorten, word in (
        (finding.leases, shard_name, "lease"),
        (finding.workers, worker_name, "worker"),
    ):
        if names:
            shown = ", ".join(shorten(name, width) for name in names[:NAMED])
            more = ", …" if len(names) > NAMED else ""
            line.append(f" [{len(names):,} {word}{'s' if len(names) > 1 else ''}: {shown}{more}]", "dim")
    return line


def _move(move: MoveView, width: int) -> Text:
    before, after = worker_name(move.before, width), worker_name(move.after, width)
    ago = f"{seconds(move.ago_s)} ago: " if move.ago_s >= 1 else "just now: "
    return Text.assemble(("-> ", "yellow"), f"{ago}{shard_name(move.lease_key, width)} from {before} to {after}")


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for name, is_number in columns:
        # Of a narrow table names are cut, never numbers.
        if is_number:
            table.add_column(name, justify="right", min_width=6, no_wrap=True)
        else:
            table.add_column(name, no_wrap=True, overflow="ellipsis")
    return table


def _worker_table(workers: Sequence[WorkerView], width: int, limit: int | None) -> list[RenderableType]:
    """Troubled ones first, then the busiest; of more than `limit` hardly any that are well."""

    def is_well(worker: WorkerView) -> bool:
        return worker.standing == "active" and not worker.silent_leases

    ordered = sorted(workers, key=lambda worker: (is_well(worker), -worker.throughput_kbps, worker.worker_id))
    if limit is not None and len(ordered) > limit:
        limit = min(limit, sum(not is_well(worker) for worker in ordered) + BUSIEST)
    moving = width >= WIDE and any(worker.incoming or worker.outgoing for worker in workers)
    columns = [("worker", False), ("leases", True), ("KB/s", True), ("load", False), ("seen", True)]
    table = _table(*columns, *[("in/out", True)] * moving, ("standing", False))
    for worker in ordered[:limit]:
        standing = worker.standing.replace("_", " ")
        if worker.silent_leases:
            standing += f", {worker.silent_leases:,} silent"
        cells: list[RenderableType] = [
            Text(worker_name(worker.worker_id, width) + (" *" if worker.is_leader else "")),
            f"{worker.leases:,}",
            _kbps(worker.throughput_kbps),
            _load(worker),
            "-" if worker.last_seen_s is None else f"{seconds(worker.last_seen_s)} ago",
            *([f"{worker.incoming}/{worker.outgoing}"] if moving else []),
            Text(standing, "green" if standing == "active" else "yellow" if worker.standing == "leaving" else "red"),
        ]
        table.add_row(*cells)
    left = len(ordered) - table.row_count
    return [table, *([Text(f"… {left:,} workers more; --all shows them", "dim")] if left else [])]


def _load(worker: WorkerView) -> Text:
    line = Text()
    for name, metric in worker.metrics.items():
        over = metric.limit is not None and metric.average > metric.limit
        limit = "" if metric.limit is None else f"/{metric.limit:.0f}"
        line.append(f"{_METRIC.get(name, name)} {metric.average:.0f}{limit} % ", "red" if over else "")
    line.rstrip()
    return line if line.plain else Text("-")


# Leases


def _lease_tables(view: FleetView, selection: Selection, width: int, limit: int | None) -> Iterable[RenderableType]:
    matching = len(select(view, selection))
    shown = interesting(view, selection)
    left = limit
    by_stream: dict[str, list[LeaseView]] = {}
    for lease in shown[:limit]:
        by_stream.setdefault(lease.stream, []).append(lease)
    for stream, leases in sorted(by_stream.items()):
        yield Text()
        if len(view.streams) > 1:
            yield Text.assemble(("stream ", "dim"), (stream, "bold"), "  ", _states(view.streams[stream]))
        yield _lease_table(leases, shown, width)
        left = None if left is None else left - len(leases)
    hidden = matching - min(len(shown), limit or len(shown))
    if hidden:
        rest = f"… {hidden:,} leases more" + ("" if len(shown) > (limit or len(shown)) else ", all reading or ended")
        yield Text(f"{rest}; --all shows them" if not selection.all else rest, "dim")
    if selection.is_filtered and not matching:
        yield Text("no lease matches", "yellow")


def _lease_table(leases: Sequence[LeaseView], all_shown: Sequence[LeaseView], width: int) -> Table:
    wide = width >= WIDE
    with_lag = any(lease.lag_ms is not None for lease in all_shown)
    with_age = any(age_s(lease) is not None for lease in all_shown)
    with_trend = any(lease.lag_ms_per_s is not None for lease in all_shown)
    with_writes = wide and any(lease.writes_per_s is not None for lease in all_shown)
    with_switches = wide or any(lease.owner_switches for lease in all_shown)
    columns = [("shard", False), ("owner", False)]
    columns += [("lag", True)] * with_lag + [("lag per s", True)] * (with_trend and wide)
    columns += [("checkpoint", True)] * wide + [("age", True)] * with_age + [("KB/s", True)]
    columns += [("writes/s", True)] * with_writes + [("moves", True)] * with_switches
    table = _table(*columns)
    table.add_column("state", overflow="fold")
    for lease in leases:
        cells: list[RenderableType] = [
            Text(shard_name(lease.shard_id, width)),
            Text(worker_name(lease.owner, width), "" if lease.owner else "red"),
        ]
        if with_lag:
            cells.append("-" if lease.lag_ms is None else lag(lease.lag_ms))
        if with_trend and wide:
            cells.append("-" if lease.lag_ms_per_s is None else f"{lease.lag_ms_per_s / 1000:+.2f} s")
        if wide:
            cells.append(_position(lease.checkpoint))
        if with_age:
            cells.append(_age(lease))
        cells.append("-" if lease.throughput_kbps is None else _kbps(lease.throughput_kbps))
        if with_writes:
            cells.append("-" if lease.writes_per_s is None else f"{lease.writes_per_s:.1f}")
        if with_switches:
            cells.append(str(lease.owner_switches) if lease.owner_switches else "-")
        table.add_row(*cells, _state(lease, width))
    return table


def _state(lease: LeaseView, width: int) -> Text:
    """The reason says the state too, except for a lease that is simply being read."""
    words = lease.reason or lease.state.replace("_", " ")
    if lease.next_owner is not None:
        words = words.replace(lease.next_owner, worker_name(lease.next_owner, width))
    if width < WIDE:
        words = _LONG.sub(r"\1", words)
    if lease.state == "reading" and lease.reason:
        words = f"reading; {words}"
    elif lease.state == "ended":
        words = f"ended; {words}"
    if lease.pending_checkpoint is not None:
        words += f"; prepared {_position(lease.pending_checkpoint)}"
    return Text(words, STATE_STYLE[lease.state])


def _position(checkpoint: str | None) -> str:
    """Sequence numbers of one shard differ at their end."""
    if checkpoint is None:
        return "-"
    return checkpoint if len(checkpoint) <= 16 else f"…{checkpoint[-13:]}"


def _age(lease: LeaseView) -> str:
    if lease.checkpoint_age_s is not None:
        return seconds(lease.checkpoint_age_s)
    return f">{seconds(lease.unchanged_s)}" if lease.unchanged_s and lease.state != "ended" else "-"


def lag(behind_ms: int) -> str:
    return f"{behind_ms / 1000:.1f} s" if behind_ms < 60_000 else seconds(behind_ms / 1000)


def _kbps(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
