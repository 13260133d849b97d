"""The worker's own row of metric stats, and how a twin shows in it (spec coordination 3.2, DESIGN.md 4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.coordination.worker_report import WorkerReport
from kcl_host.decisions.worker_activity import judge_worker, moving_average
from kcl_host.errors import Throttled, TwinWorker, Unavailable
from kcl_host.observe.load import LoadSampler
from tests.fakes.clock import FakeClock
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable
from tests.unit.coordination_rig import ME, befall, reporting


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
    assert (row.support_code, row.support_code_update_s) == (1, row.last_update_s)
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


def test_an_hour_costs_one_write_per_period(worker: Reporting) -> None:
    """As in Java: a twin shows in what the write replaces, and no read is made for it."""
    worker.loads = [{} for _ in range(120)]
    for _ in range(120):
        worker.turn()
    assert worker.table.requests == {"put": 120}


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


# From the samples to what the leader makes of the row

ALL_METRICS = WorkerMetricsSettings(
    metrics=("CPU", "NETWORK_IN", "NETWORK_OUT"),
    network_max_mb_per_s=10.0,
    persisted_values=3,
    cpu_operating_range_percent=80,
    network_in_operating_range_percent=70,
    network_out_operating_range_percent=1,
)


class MeasuringWorker:
    """Samples a host twice in each reporting period and writes its row."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.table = InMemoryWorkerMetricsTable(self.clock)
        self._root = root
        self._total = self._busy = self._received = 0
        (root / "proc/net").mkdir(parents=True)
        self._write(interface="eth0")
        self._load = LoadSampler(ALL_METRICS, environ={}, root=root, now_s=self.clock.monotonic)
        self.report = WorkerReport(self.table, ME, ALL_METRICS, self.clock, self._load.drain_average)
        self._load.sample()

    def period(self, *, busy: int, received_mb: int, interface: str = "eth0") -> str:
        """`busy` percent of CPU, `received_mb` in a second, nothing sent; what the leader thinks of us then."""
        self._total += 100
        self._busy += busy
        self._received += received_mb
        self.clock.advance(1.0)
        self._write(interface)
        self._load.sample()
        self.clock.advance(29.0)
        self.report.run_once()
        return judge_worker(self.table.rows[ME], self.clock.wall(), ALL_METRICS)

    def _write(self, interface: str) -> None:
        (self._root / "proc/stat").write_text(f"cpu {self._busy} 0 0 {self._total - self._busy} 0 0 0 0 0 0\n")
        row = f"{interface}: {self._received * 1048576} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        (self._root / "proc/net/dev").write_text(f"Inter-|\n face |\n{row}")

    @property
    def values(self) -> dict[str, list[float]]:
        return self.table.rows[ME].metric_stats


def test_a_metric_that_fails_makes_the_worker_failing_until_it_is_back(tmp_path: Path) -> None:
    worker = MeasuringWorker(tmp_path)
    # The first value of all is 0, as there is nothing to compare with: half of the first average.
    assert worker.period(busy=40, received_mb=2) == "active"
    assert worker.period(busy=10, received_mb=9, interface="gone") == "failing"
    assert worker.values == {"C": [20.0, 10.0], "NI": [10.0, -1.0], "NO": [0.0, -1.0]}
    # The bytes of the lost period are spread over it: 11 MB in 60 s.
    assert worker.period(busy=60, received_mb=2) == "active"
    assert worker.values == {"C": [20.0, 10.0, 60.0], "NI": [10.0, -1.0, 1.833333], "NO": [0.0, -1.0, 0.0]}
    assert worker.table.rows[ME].operating_range == {"C": [80], "NI": [70], "NO": [1]}
    assert moving_average(worker.values["C"], 0.5) == 37.5
    assert moving_average(worker.values["NI"], 0.5) == pytest.approx((10 + 1.833333) / 2)


def test_the_oldest_value_goes_the_failed_ones_too(tmp_path: Path) -> None:
    worker = MeasuringWorker(tmp_path)
    worker.period(busy=0, received_mb=0, interface="gone")
    for _ in range(3):
        assert worker.period(busy=50, received_mb=0) == "active"
    assert worker.values == {"C": [50.0] * 3, "NI": [0.0] * 3, "NO": [0.0] * 3}


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


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST])
def test_what_an_earlier_process_left_is_no_twin_when_the_first_report_fails(worker: Reporting, fault: Fault) -> None:
    worker.table.rows[ME] = reporting(ME, worker.clock)
    worker.clock.advance(5.0)
    worker.table.faults = befall("put", fault)
    with pytest.raises((Throttled, Unavailable)):
        worker.report.run_once()
    worker.clock.advance(1.0)
    worker.turn()
    worker.turn()


def test_a_twin_that_writes_in_the_same_second_is_noticed(worker: Reporting) -> None:
    worker.turn()
    worker.process().run_once()
    with pytest.raises(TwinWorker):
        worker.report.run_once()


def test_who_gives_way_to_a_twin_says_nothing_in_its_row(worker: Reporting) -> None:
    worker.turn()
    twin = worker.process()
    twin.run_once()
    of_the_twin = worker.table.rows[ME].last_update_s
    worker.clock.advance(1.0)
    with pytest.raises(TwinWorker):
        worker.report.run_once()
    worker.report.announce_leaving()
    worker.report.expire()
    assert worker.report.run_once() is None
    assert worker.table.rows[ME].last_update_s == of_the_twin
    assert worker.activity == "active"


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
