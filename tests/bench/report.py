"""What every measurement says of itself: machine, versions, spread; results of paired runs, and their Markdown."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

import msgspec

import kcl_host

Kind = Literal["kcl-host", "java"]
KINDS: Final[tuple[Kind, ...]] = ("kcl-host", "java")


def versions() -> str:
    return f"kcl-host {kcl_host.__version__}, Python {platform.python_version()}"


def machine() -> str:
    return f"{versions()}, {os.cpu_count()} cores"


class Spread(NamedTuple):
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(statistics.median(values), min(values), max(values))

    def texts(self, form: str) -> list[str]:
        """Each by the same format specification."""
        return [format(value, form) for value in self]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that so many percent do not exceed (nearest rank). `ordered` is sorted and not empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


# Paired runs


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One host in one run of a cell; a line of JSON in a file of results. What does not apply is not in `figures`."""

    bench: str
    cell: str
    run: int
    host: Kind
    figures: dict[str, float]
    versions: str
    taken: str


class Column(NamedTuple):
    """A figure of the results; `form` is its format specification."""

    title: str
    figure: str
    form: str = ".2f"
    has_ratio: bool = True


def read(file: Path) -> list[Result]:
    """Empty when there is no such file."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def append(file: Path, result: Result) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as out:
        out.write(msgspec.json.encode(result) + b"\n")


def cells(results: Iterable[Result]) -> list[str]:
    """In the order in which they were measured first."""
    return list(dict.fromkeys(result.cell for result in results))


def values(results: Iterable[Result], cell: str, host: Kind, figure: str) -> dict[int, float]:
    """By run."""
    found = (r for r in results if r.cell == cell and r.host == host and figure in r.figures)
    return {r.run: r.figures[figure] for r in found}


def ratios(results: Sequence[Result], cell: str, figure: str) -> list[float]:
    """kcl-host to Java within each run that has both; what is 0 for Java has no ratio."""
    ours, theirs = (values(results, cell, host, figure) for host in KINDS)
    return [ours[run] / theirs[run] for run in ours if theirs.get(run)]


def table(results: Sequence[Result], columns: Sequence[Column]) -> list[str]:
    """Markdown: medians with their range; under them kcl-host to Java within a run."""
    lines = [
        f"| cell | host | runs | {' | '.join(column.title for column in columns)} |",
        f"| --- | --- | ---: |{' ---: |' * len(columns)}",
    ]
    for cell in cells(results):
        for host in reversed(KINDS):
            runs = {result.run for result in results if (result.cell, result.host) == (cell, host)}
            if runs:
                texts = [spread(list(values(results, cell, host, c.figure).values()), c.form) for c in columns]
                lines.append(f"| {cell} | {host} | {len(runs)} | {' | '.join(texts)} |")
        of_pairs = {column: ratios(results, cell, column.figure) for column in columns if column.has_ratio}
        if any(of_pairs.values()):
            count = max(map(len, of_pairs.values()))
            texts = [spread(of_pairs.get(column, []), ".3g") for column in columns]
            lines.append(f"| {cell} | **ratio** | {count} | {' | '.join(texts)} |")
    return lines


def spread(found: Sequence[float], form: str) -> str:
    """Median and range; empty for nothing."""
    if not found:
        return ""
    median, low, high = Spread.of(found).texts(form)
    return median if low == high else f"{median} ({low} - {high})"
