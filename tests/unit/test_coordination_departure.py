"""Where the leases of a worker that stops should go (DESIGN.md 4.2)."""

from __future__ import annotations

import pytest

from kcl_host.coordination.departure import Departure
from kcl_host.errors import Throttled
from tests.fakes.fault import THROTTLED
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable
from tests.unit.coordination_rig import ME, OTHER, THIRD, Worker, befall, lease, reporting, settings_of


class Leaving(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.metrics = InMemoryWorkerMetricsTable(self.clock)
        self.doubtful: frozenset[str] = frozenset()
        self.departure = Departure(
            self.table, self.metrics, ME, settings_of(ME), self.clock, doubtful=lambda: self.doubtful
        )
        self.alive(ME)

    def alive(self, *worker_ids: str, age_s: float = 0.0, **fields: object) -> None:
        for worker_id in worker_ids:
            self.clock.wall_skew_s = -age_s
            self.metrics.rows[worker_id] = reporting(worker_id, self.clock, **fields)
            self.clock.wall_skew_s = 0.0

    def targets(self, *doubtful: str) -> dict[str, str]:
        self.doubtful = frozenset(doubtful)
        return {held.lease_key: to for held, to in self.departure.targets(self.held_leases.all())}


@pytest.fixture
def worker() -> Leaving:
    return Leaving()


def test_leases_are_spread_over_the_live_workers(worker: Leaving) -> None:
    worker.alive(OTHER, THIRD)
    for n in range(4):
        worker.hold(lease(f"s{n}"))
    assert sorted(worker.targets().values()) == [OTHER, OTHER, THIRD, THIRD]


def test_nobody_else_is_alive(worker: Leaving) -> None:
    worker.hold()
    worker.alive(OTHER, age_s=61.0)
    worker.alive(THIRD, properties={"state": "TERMINATING"})
    assert worker.targets() == {}


def test_a_worker_that_looks_alive_in_its_stats_only_is_no_target(worker: Leaving) -> None:
    worker.alive(OTHER, THIRD)
    worker.hold()
    assert worker.targets(OTHER) == {"s1": THIRD}
    assert worker.targets(OTHER, THIRD) == {}


def test_the_leases_of_others_and_those_handed_over_already_are_left_out(worker: Leaving) -> None:
    worker.alive(OTHER)
    worker.hold(lease("s1"))
    handed_over = worker.hold(lease("s2"))
    worker.held_leases.initiate_handover(handed_over, THIRD)
    worker.table.put(lease("s3", owner=THIRD))
    worker.table.put(lease("s4", owner=ME))
    assert worker.targets() == {"s1": OTHER}


def test_a_failure_is_the_callers_to_judge(worker: Leaving) -> None:
    worker.hold()
    worker.metrics.faults = befall("list_workers", THROTTLED)
    with pytest.raises(Throttled):
        worker.targets()
