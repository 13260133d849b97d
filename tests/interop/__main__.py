"""`scripts/interop`: kcl-host beside real Java KCL, story by story; prints a table and keeps the logs."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

LOGS: Final = Path(__file__).parents[2] / ".kcl-host" / "interop"
OUTCOMES: Final = {"passed": "green", "failed": "red", "skipped": "skipped"}


class Table:
    """A plugin of pytest: what became of each case with each Java, and how long it took in seconds."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, str]] = defaultdict(dict)
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        case, java = _case_and_java(report.nodeid)
        seconds = float(dict(report.user_properties).get("seconds", report.duration))  # type: ignore[arg-type]
        self.cells[case][java] = f"{OUTCOMES[report.outcome]} {seconds:.0f} s"
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped.add(report.longrepr[2])

    def __str__(self) -> str:
        javas = sorted({java for cells in self.cells.values() for java in cells})
        rows = [("", *javas), *((case, *(cells.get(java, "") for java in javas)) for case, cells in self.cells.items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *sorted(self.skipped)])


def _case_and_java(node_id: str) -> tuple[str, str]:
    """`file::test[case-java]`, or `file::test`."""
    name, _, parameters = node_id.rpartition("::")[2].partition("[")
    case, _, java = parameters.removesuffix("]").rpartition("-")
    return case or name.removeprefix("test_"), java


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/interop", description=__doc__)
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        default=[],
        help="cases with this in their name, e.g. handovers, 3.5.1, single; given twice: with either",
    )
    parser.add_argument("--short", action="store_true", help="only what the gate runs")
    options, for_pytest = parser.parse_known_args()
    logs = LOGS / f"{datetime.now():%Y-%m-%dT%H-%M-%S}"
    logs.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["-q", "-m", "interop and not stress" if options.short else "interop", f"--basetemp={logs}"]
    if options.only:
        arguments += ["-k", " or ".join(options.only)]
    table = Table()
    result = pytest.main([*arguments, *for_pytest, str(Path(__file__).parent)], plugins=[table])
    print(f"\n{table}\n\nlogs: {logs}")
    return int(result)


if __name__ == "__main__":
    sys.exit(main())
