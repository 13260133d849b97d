"""The catalogue says what docs/spec/metrics.md says, row by row."""

from __future__ import annotations

import re
from pathlib import Path

from kcl_host.config.settings import MetricsSettings
from kcl_host.observe.catalogue import CATALOGUE, CHECKPOINT_KINDS
from kcl_host.observe.metrics import Selection

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "metrics.md"
LEVELS = {"S": "SUMMARY", "D": "DETAILED"}
UNITS = {"C": "Count", "ms": "Milliseconds", "B": "Bytes", "N": "None"}
SEEN = {"p": "always", "l": "leader", "m": "migration", "x": "multi_stream", "g": "onboarding"}

Row = tuple[str, str, str, str, frozenset[str], str]
"""Operation, name, unit, level, dimensions beside Operation, who publishes it."""


def names_in(cell: str) -> list[str]:
    """`A.Success / .Time, B` stands for A.Success, A.Time and B; `A (B when...)` for A and B."""
    names: list[str] = []
    for word in re.findall(r"[\w.:<>]+", cell.replace("`", "").replace(" when it writes", "").replace(" or ", ", ")):
        names.append(names[-1].rpartition(".")[0] + word if word.startswith(".") else word)
    return [n.replace("<kind>", kind) for n in names for kind in (CHECKPOINT_KINDS if "<kind>" in n else [""])]


def rows_of_spec() -> set[Row]:
    rows: set[Row] = set()
    text = SPEC.read_text()
    header: list[str] = []
    for line in text[text.index("### 3.1") : text.index("## 4.")].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" |")] if line.startswith("|") else []
        cells = [cell.lstrip("| ").strip() for cell in cells]
        if not cells or set("".join(cells)) <= set("- |"):
            continue
        if cells[0] == "Operation":
            header = [cell or "mark" for cell in cells]
            continue
        row = dict(zip(header, cells, strict=False))
        row["mark"] = cells[-1]
        dims = row.get("Dims", "none")
        dimensions = {
            name for name in ("ShardId", "StreamId", "WorkerIdentifier") if f"no {name}" not in dims and name in dims
        }
        if "ShardId" in dimensions:
            dimensions.add("StreamId")
        for operation in row["Operation"].split(" or "):
            for name in names_in(row["Metric"]):
                unit = (
                    "ms" if name.split(".")[-1] == "Time" or row["Unit"] == "ms" else row["Unit"].split()[0].strip(",")
                )
                mark = SEEN[row["mark"]]
                if name == "DeterministicShuffleShardSyncLeaderDecider":
                    mark = "migration"
                rows.add((operation, name, UNITS[unit], LEVELS[row["Level"]], frozenset(dimensions), mark))
    return rows


def rows_of_catalogue() -> set[Row]:
    return {(m.operation, m.name, m.unit, m.level, frozenset(m.dimensions), m.seen) for m in CATALOGUE if not m.ours}


def test_the_table_of_the_spec_is_read_whole() -> None:
    rows = rows_of_spec()
    assert len(rows) > 110
    assert ("ProcessTask", "ExpiredIterator", "Count", "SUMMARY", frozenset({"StreamId"}), "always") in rows
    assert (
        "ShutdownTask",
        "UpdateLease.Time",
        "Milliseconds",
        "DETAILED",
        frozenset({"ShardId", "StreamId"}),
        "always",
    ) in rows


def test_every_metric_of_kcl_with_its_unit_level_dimensions() -> None:
    spec, ours = rows_of_spec(), rows_of_catalogue()
    assert sorted(spec - ours, key=str) == []
    assert sorted(ours - spec, key=str) == []


def test_what_each_level_publishes_is_what_the_spec_marks() -> None:
    for level, kept in (("SUMMARY", {"SUMMARY"}), ("DETAILED", {"SUMMARY", "DETAILED"})):
        selection = Selection(MetricsSettings(level=level))  # type: ignore[arg-type]
        published = {(m.operation, m.name) for m in CATALOGUE if selection.wants(m)}
        assert published == {(row[0], row[1]) for row in rows_of_spec() if row[3] in kept}
