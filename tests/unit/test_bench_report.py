"""Paired results: what goes on after an interruption, ratios only within a run, and charts that are XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from tests.bench import summary, throughput
from tests.bench.pairs import Options, Pairs
from tests.bench.plot import Bar, Group, Scale, chart
from tests.bench.report import Column, Kind, Result, append, ratios, read, table

COLUMNS = (Column("ms", "ms", ".1f"), Column("moves", "moves", ".0f", has_ratio=False))


def result(run: int, host: Kind, cell: str = "one", bench: str = "plan", **figures: float) -> Result:
    return Result(
        bench=bench, cell=cell, run=run, host=host, figures=figures, versions="v", taken="2026-11-21T00:00:00"
    )


def test_a_ratio_is_of_one_run_and_not_of_medians() -> None:
    results = [
        result(0, "kcl-host", ms=1),
        result(0, "java", ms=2),
        result(1, "kcl-host", ms=9),
        result(2, "java", ms=9),
    ]
    assert ratios(results, "one", "ms") == [0.5]
    results += [result(1, "java", ms=3)]
    assert ratios(results, "one", "ms") == [0.5, 3.0]


def test_the_table_has_both_hosts_and_the_ratio_of_what_has_one() -> None:
    results = [result(0, "kcl-host", ms=1, moves=4), result(0, "java", ms=2, moves=8), result(1, "java", ms=4)]
    assert table(results, COLUMNS)[2:] == [
        "| one | java | 2 | 3.0 (2.0 - 4.0) | 8 |",
        "| one | kcl-host | 1 | 1.0 | 4 |",
        "| one | **ratio** | 1 | 0.5 |  |",
    ]


def test_a_second_start_measures_what_is_missing_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    append(file, result(0, "kcl-host", ms=1))
    append(file, result(0, "kcl-host", "two", bench="idle", ms=1))
    given = Options(runs=2, quick=False, only=(), kinds=("kcl-host",), jvm=(), results=file, listing=False)
    measured: list[tuple[str, int]] = []

    def measure(cell: str, run: int, kind: Kind) -> dict[str, float]:
        measured.append((cell, run))
        return {"ms": 2.0}

    Pairs("plan", given).run(["one", "two"], COLUMNS, measure)
    assert measured == [("two", 0), ("one", 1), ("two", 1)]
    assert len(read(file)) == 5
    assert "| one | kcl-host | 2 | 1.5 (1.0 - 2.0) |" in capsys.readouterr().out


def test_a_host_that_fails_is_told_and_the_rest_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.jsonl"
    given = Options(runs=1, quick=False, only=(), kinds=("kcl-host",), jvm=(), results=file, listing=False)

    def measure(cell: str, run: int, kind: Kind) -> dict[str, float]:
        assert cell != "one", "not within 600 s"
        return {"ms": 2.0}

    with pytest.raises(click.ClickException, match="1 times no result"):
        Pairs("plan", given).run(["one", "two"], COLUMNS, measure)
    assert [found.cell for found in read(file)] == ["two"]
    assert "one, kcl-host: no result: not within 600 s" in capsys.readouterr().out


def test_goals_are_judged_by_the_median_and_what_is_missing_is_named() -> None:
    results = [
        *(result(run, host, "short intervals", "start", new_first_s=s) for run, host, s in STARTS),
        result(0, "kcl-host", "100 shards", "idle", cpu_percent=11.0),
    ]
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in summary.goals(results)}
    assert "| **missed** |" in lines["CPU of 100 idle shards, % of a core"]
    assert "| reached |" in lines["start of a new application, short intervals"]
    assert "| not measured |" in lines["start of a new application"]


STARTS: list[tuple[int, Kind, float]] = [(0, "kcl-host", 1), (0, "java", 50), (1, "kcl-host", 1), (1, "java", 10)]
STARTS += [(2, "kcl-host", 1), (2, "java", 40)]


def test_every_goal_is_a_cell_and_a_figure_that_can_be_measured() -> None:
    for goal in summary.GOALS:
        assert goal.figure in {column.figure for column in summary.COLUMNS[goal.bench]}
        if goal.bench == "throughput":
            assert goal.cell in map(str, throughput.FEW)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_chart_is_xml_with_a_bar_for_each_value_and_both_papers(scale: Scale) -> None:
    bars = [
        Bar(median=0.2, low=0.1, high=0.3, text="<0.2>"),
        Bar(median=40.0, low=30.0, high=50.0, text="40", series=1),
    ]
    root = ElementTree.fromstring(chart("a & b", "", ["one", "two"], [Group(label="c", bars=bars, goal=0.3)], scale))
    name = "{http://www.w3.org/2000/svg}"
    drawn = [node for node in root.iter(f"{name}rect") if node.get("height") == "12"]
    assert [node.get("class") for node in drawn] == ["s0", "s1"]
    assert all(float(node.attrib["width"]) > 0 for node in drawn)
    assert "prefers-color-scheme: dark" in (root.findtext(f"{name}style") or "")
