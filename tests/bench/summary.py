"""From files of results: Markdown tables, the figures to reach, and the plots for docs/.

`python -m tests.bench.summary FILE... [--plots docs]`. Only ratios of a run with both hosts count; a figure that was
not measured is named as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from tests.bench import handover, idle, plan, start, throughput
from tests.bench.handover import DEFAULTS
from tests.bench.plot import Bar, Group, chart
from tests.bench.report import KINDS, Column, Result, Spread, cells, ratios, read, spread, table, values

COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "throughput": throughput.COLUMNS,
    "start": start.COLUMNS,
    "handover": handover.COLUMNS,
    "idle": idle.COLUMNS,
    "plan": plan.COLUMNS,
}


class Goal(NamedTuple):
    """kcl-host to Java: at most `limit`, or at least if `is_least`; `is_ratio` False: kcl-host's own figure."""

    label: str
    bench: str
    cell: str
    figure: str
    limit: float
    is_least: bool = False
    is_ratio: bool = True


_ONE_KB: Final = [
    f"1 KB by {batch}, {shards}, c" for batch in ("1,000", "10,000") for shards in ("1 shard", "16 shards")
]
GOALS: Final = (
    *(Goal(f"CPU per GB: {cell}", "throughput", cell, "host_s_per_gb", 0.3) for cell in _ONE_KB),
    Goal(
        "records/s, 1 shard, nothing else limits",
        "throughput",
        "1 KB by 10,000, 1 shard, c, unpaced",
        "mb_per_s",
        2.0,
        True,
    ),
    Goal("records/s, 16 shards", "throughput", "1 KB by 10,000, 16 shards, c", "mb_per_s", 1.0, True),
    Goal(
        "records/s, 16 shards, 2 processes",
        "throughput",
        "1 KB by 10,000, 16 shards, c, 2 processes",
        "mb_per_s",
        1.0,
        True,
    ),
    *(Goal(f"answer to status, p99: {cell}", "throughput", cell, "p99_ms", 1.0) for cell in _ONE_KB),
    Goal("peak memory, 1 shard", "throughput", "1 KB by 10,000, 1 shard, c", "peak_mb", 0.25),
    Goal("peak memory, 4 shards", "throughput", "1 KB by 10,000, 4 shards, c", "peak_mb", 0.25),
    Goal("peak memory, 128 idle shards", "idle", "128 shards", "peak_mb", 0.5),
    Goal("CPU of 100 idle shards, % of a core", "idle", "100 shards", "cpu_percent", 10.0, is_ratio=False),
    Goal("start of a new application", "start", "default intervals", "new_first_s", 0.05),
    Goal("start of a new application, short intervals", "start", "short intervals", "new_first_s", 0.05),
    Goal("start of a known application", "start", "default intervals", "known_first_s", 0.2),
    Goal("start of a known application, short intervals", "start", "short intervals", "known_first_s", 0.2),
    *(
        Goal(f"TERM of {who} to a record elsewhere{intervals}", "handover", f"TERM of {who}{intervals}", "first_s", 0.1)
        for intervals in ("", DEFAULTS)
        for who in ("a follower", "the leader")
    ),
)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="A folder for bench-*.svg.")
def main(files: tuple[Path, ...], plots: Path | None) -> None:
    """Tables and plots of what was measured."""
    results = [result for file in files for result in read(file)]
    for bench, columns in COLUMNS.items():
        of_bench = [result for result in results if result.bench == bench]
        if of_bench:
            click.echo("\n".join(["", f"### {bench}", "", *about(of_bench), "", *table(of_bench, columns)]))
    click.echo("\n".join(["", "### figures to reach", "", *goals(results)]))
    if plots is not None:
        for name, text in drawn(results).items():
            (plots / f"bench-{name}.svg").write_text(text)
            click.echo(f"\n![{name}]({plots}/bench-{name}.svg)")


def about(results: Sequence[Result]) -> list[str]:
    days = sorted({result.taken[:10] for result in results})
    return [f"{' to '.join(dict.fromkeys((days[0], days[-1])))}; {said}" for said in {r.versions: 0 for r in results}]


def found(results: Sequence[Result], goal: Goal) -> list[float]:
    of_bench = [result for result in results if result.bench == goal.bench]
    if goal.is_ratio:
        return ratios(of_bench, goal.cell, goal.figure)
    return list(values(of_bench, goal.cell, "kcl-host", goal.figure).values())


def goals(results: Sequence[Result]) -> list[str]:
    """Markdown; reached by the median."""
    lines = ["| figure | measured | to reach | |", "| --- | ---: | ---: | --- |"]
    for goal in GOALS:
        measured = found(results, goal)
        verdict = "not measured"
        if measured:
            median = Spread.of(measured).median
            verdict = "reached" if (median >= goal.limit if goal.is_least else median <= goal.limit) else "**missed**"
        limit = f"{'at least' if goal.is_least else 'at most'} {goal.limit:g}{' x' if goal.is_ratio else ''}"
        lines.append(f"| {goal.label} | {spread(measured, '.3g')} | {limit} | {verdict} |")
    return lines


def drawn(results: Sequence[Result]) -> dict[str, str]:
    """SVG by name, of what there is."""
    charts = {}
    groups = [
        Group(label=goal.label, bars=[_of(measured, ".2g")], goal=goal.limit)
        for goal in GOALS
        if goal.is_ratio and (measured := found(results, goal))
    ]
    if groups:
        said = (
            "Java's daemon is 1. Medians and ranges of ratios within a run; goals are at most, for records/s at least."
        )
        charts["ratios"] = chart("kcl-host to Java's MultiLangDaemon", said, [], groups, "log")
    of_bench = [result for result in results if result.bench == "throughput"]
    groups = [
        Group(
            label=cell,
            bars=[
                _of(list(by_run.values()), ",.1f", series)
                for series, host in enumerate(KINDS)
                if (by_run := values(of_bench, cell, host, "mb_per_s"))
            ],
        )
        for cell in cells(of_bench)
    ]
    if groups:
        said = (
            "MB of records a second, medians and ranges; 5 answers a second and shard are the most but where unpaced."
        )
        charts["throughput"] = chart("Throughput into one child per shard", said, KINDS, groups)
    return charts


def _of(measured: Sequence[float], form: str, series: int = 0) -> Bar:
    median, low, high = Spread.of(measured)
    return Bar(median=median, low=low, high=high, text=format(median, form), series=series)


if __name__ == "__main__":
    main()
