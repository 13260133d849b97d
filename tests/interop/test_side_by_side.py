"""Fleets of two to four workers, half real Java KCL (MultiLangDaemon) and half real kcl-host, on the same tables.

The stories are in cases.py. They are told two at a time, whatever the order of the tests: a test waits for its own.
`scripts/interop` runs them all and prints a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.cases import CASES, Case
from tests.interop.java_daemon import java_daemon_parts
from tests.interop.mixed_fleet import Fleet, Java, Site, site
from tests.interop.schedule import Schedule, Story

pytestmark = pytest.mark.interop

Told = dict[tuple[str, Java], Story]


def begin(case: Case, java: Java, on: Site, schedule: Schedule, logs: Path) -> Story:
    """The story, told as soon as there is room for it; skipped by the name of what its Java needs."""
    name = f"{case.name}-{java}".replace(" ", "-").replace("_", "-")

    def tell() -> None:
        java_daemon_parts(java.version)
        with Fleet(on, logs / name, name, java, shards=case.shards, cancelled=schedule.cancelled) as fleet:
            case.tell(fleet)

    return schedule.add(case.java_workers, tell)


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """The stories of all tests that were chosen; skips by the name of what is missing for all of them."""
    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    stories = [(given["case"], given["java"]) for given in chosen if isinstance(given.get("case"), Case)]
    logs = tmp_path_factory.getbasetemp()
    with site(tmp_path_factory.mktemp("site")) as on:
        schedule = Schedule()
        try:
            yield {(case.name, java): begin(case, java, on, schedule, logs) for case, java in stories}
        finally:
            schedule.cancel()


@pytest.mark.parametrize(
    ("case", "java"),
    [
        pytest.param(case, java, id=f"{case.name}-{java}", marks=() if case.short else pytest.mark.stress)
        for case in CASES
        for java in case.javas
    ],
)
def test_side_by_side(case: Case, java: Java, told: Told, record_property: Callable[[str, object], None]) -> None:
    try:
        told[case.name, java].result()
    finally:
        record_property("seconds", told[case.name, java].seconds)
