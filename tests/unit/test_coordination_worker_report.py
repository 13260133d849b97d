"""The worker's own row of metric stats, and how a twin shows in it (spec coordination 3.2, DESIGN.md 4)."""

from __future__ import annotations

import pytest

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.coordination.worker_report import WorkerReport
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.errors import Throttled, TwinWorker, Unavailable
from tests.fakes.clock import FakeClock
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault, no_faults
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable
from tests.unit.coordination_rig import ME, always, befall, reporting


class Reporting:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.table = InMemoryWorkerMetricsTable(self.clock)
        self.loads = [{"C": float(n)} for n in range(100)]
        self.report = self.process()

    def process(self) -> WorkerReport:
        """A process with our worker id."""
        return WorkerReport(self.table, ME, WorkerMetricsSettings(), self.clock, lambda: self.loads.pop(0))

    def turn(self) -> None:
        pause_s = self.report.run_once()
        assert pause_s == 30.0
        self.clock.advance(pause_s)

    @property
    def activity(self) -> str:
        return judge_worker(self.table.rows[ME], self.clock.wall(), WorkerMetricsSettings())


@pytest.fixture
def worker() -> Reporting:
    return Reporting()


def test_the_first_report_makes_the_worker_eligible(worker: Reporting) -> None:
    worker.report.run_once()
    row = worker.table.rows[ME]
    assert row.last_update_s == int(worker.clock.wall())
    assert row.metric_stats == {"C": [0.0]}
    assert row.operating_range == {"C": [100.0]}
    assert row.support_code is None
    assert worker.activity == "active"
    assert worker.table.requests == {"put": 1}


def test_ten_values_are_kept_oldest_first(worker: Reporting) -> None:
    for _ in range(12):
        worker.turn()
    assert worker.table.rows[ME].metric_stats == {"C": [float(n) for n in range(2, 12)]}


def test_a_worker_without_metrics_reports_all_the_same(worker: Reporting) -> None:
    worker.loads = [{}]
    worker.report.run_once()
    assert worker.table.rows[ME].metric_stats == worker.table.rows[ME].operating_range == {}
    assert worker.activity == "active"


def test_an_hour_costs_one_read_and_one_write_per_period(worker: Reporting) -> None:
    worker.loads = [{} for _ in range(120)]
    for _ in range(120):
        worker.turn()
    assert worker.table.requests == {"put": 120, "get": 119}


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_a_failed_report_is_repeated_with_the_same_values(worker: Reporting, fault: Fault) -> None:
    worker.turn()
    worker.table.faults = befall("put", fault, fault)
    for _ in range(2):
        with pytest.raises((Throttled, Unavailable)):
            worker.report.run_once()
        worker.clock.advance(1.0)
    worker.turn()
    assert worker.table.rows[ME].metric_stats == {"C": [0.0, 1.0]}


# Twins


def test_a_twin_is_noticed_by_the_one_that_was_there_first(worker: Reporting) -> None:
    worker.turn()
    twin = worker.process()
    twin.run_once()
    worker.clock.advance(1.0)
    with pytest.raises(TwinWorker, match="'me'"):
        worker.report.run_once()
    worker.clock.advance(29.0)
    assert twin.run_once() == 30.0


def test_what_an_earlier_process_left_is_no_twin(worker: Reporting) -> None:
    worker.table.rows[ME] = reporting(ME, worker.clock)
    worker.clock.advance(5.0)
    worker.turn()
    worker.turn()


def test_a_row_deleted_by_a_leader_is_no_twin(worker: Reporting) -> None:
    worker.turn()
    del worker.table.rows[ME]
    worker.turn()
    assert worker.activity == "active"


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_no_trouble_of_the_table_looks_like_a_twin(worker: Reporting, fault: Fault) -> None:
    """Two minutes without an answer; the row may bear any of the attempts, the first as well as the last."""
    worker.turn()
    faults = iter([ANSWER_LOST, *[fault] * 119])
    worker.table.faults = lambda operation, key: next(faults, None) if operation == "put" else None
    for _ in range(120):
        with pytest.raises((Throttled, Unavailable)):
            worker.report.run_once()
        worker.clock.advance(1.0)
    worker.turn()
    worker.turn()


def test_a_late_write_of_our_own_is_no_twin(worker: Reporting) -> None:
    worker.turn()
    worker.table.faults = befall("put", TIMED_OUT)
    with pytest.raises(Unavailable):
        worker.report.run_once()
    late = reporting(ME, worker.clock)
    worker.clock.advance(1.0)
    worker.report.run_once()
    worker.table.rows[ME] = late
    worker.clock.advance(30.0)
    worker.turn()


def test_a_wall_clock_set_back_is_no_twin(worker: Reporting) -> None:
    for _ in range(10):
        worker.turn()
    worker.clock.wall_skew_s = -7200.0
    for _ in range(3):
        worker.turn()
        worker.table.faults = befall("put", TIMED_OUT)
        with pytest.raises(Unavailable):
            worker.report.run_once()
        worker.clock.advance(1.0)


def test_a_row_that_cannot_be_read_is_written_all_the_same(worker: Reporting) -> None:
    """Otherwise no leader gives this worker a lease after a minute."""
    worker.turn()
    worker.table.faults = always("get", THROTTLED)
    worker.turn()
    assert worker.table.rows[ME].last_update_s == int(worker.clock.wall()) - 30
    worker.process().run_once()
    worker.table.faults = no_faults
    worker.clock.advance(1.0)
    with pytest.raises(TwinWorker):
        worker.report.run_once()


# Leaving


def test_leaving_is_told_and_stays_told_by_later_reports(worker: Reporting) -> None:
    worker.turn()
    worker.report.announce_leaving()
    assert worker.activity == "leaving"
    worker.turn()
    assert worker.activity == "leaving"


def test_after_the_farewell_no_report_makes_the_worker_look_alive(worker: Reporting) -> None:
    """Its thread may be about to take its turn just now."""
    worker.turn()
    worker.report.announce_leaving()
    worker.report.expire()
    assert worker.activity == "inactive"
    assert worker.report.run_once() is None
    assert worker.activity == "inactive"


def test_a_worker_that_starts_again_under_the_same_id_has_not_left(worker: Reporting) -> None:
    worker.turn()
    worker.report.announce_leaving()
    worker.report.expire()
    worker.report = worker.process()
    worker.turn()
    worker.clock.advance(-0.0)
    assert worker.activity == "active"
