"""Workers as the leader judges them (coordination 3.3 - 3.5; KCL 3.5.1 WorkerMetricStats)."""

from __future__ import annotations

from typing import Any

import pytest

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.decisions.worker_activity import judge_worker, judge_workers, moving_average, stale_workers
from kcl_host.model.worker import WorkerMetricStats

SETTINGS = WorkerMetricsSettings()
WALL_S = 1_800_000_000.9


def stats(**fields: Any) -> WorkerMetricStats:
    return WorkerMetricStats(**{"worker_id": "w", "last_update_s": int(WALL_S)} | fields)


@pytest.mark.parametrize(
    "values, alpha, average",
    [
        ([10, 20, 30], 0.5, 22.5),
        ([40, -1, 60], 0.5, 50),
        ([80, 90, -1, 70], 0.5, 77.5),
        ([-1], 0.5, 0),
        ([], 0.5, 0),
        ([10, 20, 30], 0.2, 15.6),
    ],
)
def test_smoothing(values: list[float], alpha: float, average: float) -> None:
    assert moving_average(values, alpha) == pytest.approx(average)


@pytest.mark.parametrize(
    "fields, activity",
    [
        ({}, "active"),
        ({"metric_stats": {"C": [5]}, "operating_range": {"C": [80]}}, "active"),
        ({"metric_stats": {"C": [-1, 5]}, "operating_range": {"C": [80], "M": [50]}}, "active"),
        ({"metric_stats": {"C": [5, -1.0]}, "operating_range": {"C": [80]}}, "failing"),
        ({"last_update_s": None}, "invalid"),
        ({"metric_stats": {"C": [5]}}, "invalid"),
        ({"operating_range": {"C": [80]}}, "invalid"),
        ({"metric_stats": {"C": [5]}, "operating_range": {"M": [80]}}, "invalid"),
        ({"metric_stats": {"C": [5]}, "operating_range": {"C": []}}, "invalid"),
        ({"metric_stats": {"C": [5]}, "operating_range": {"C": [0]}}, "invalid"),
        ({"metric_stats": {"C": []}, "operating_range": {"C": [80]}}, "invalid"),
        ({"last_update_s": int(WALL_S) - 59}, "active"),
        ({"last_update_s": int(WALL_S) - 60}, "inactive"),
        ({"last_update_s": int(WALL_S) + 20}, "active"),
        ({"properties": {"state": "TERMINATING"}}, "leaving"),
        ({"properties": {"state": "RUNNING"}}, "active"),
    ],
)
def test_judgement_of_one_row(fields: dict[str, Any], activity: str) -> None:
    assert judge_worker(stats(**fields), WALL_S, SETTINGS) == activity


def test_of_two_rows_of_one_worker_the_newer_counts() -> None:
    old, new = stats(last_update_s=int(WALL_S) - 90), stats()
    for rows in ([old, new], [new, old]):
        assert judge_workers(rows, WALL_S, SETTINGS).active == (new,)


def test_rows_of_more_than_a_day_are_stale() -> None:
    rows = [stats(last_update_s=int(WALL_S) - age) for age in (86_399, 86_401)] + [stats(last_update_s=None)]
    assert stale_workers(rows, WALL_S, SETTINGS) == [rows[1]]
