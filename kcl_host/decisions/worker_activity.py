"""Which workers may be given leases, judged by the leader from their metric stats.

Source: KCL 3.5.1 MigrationAwareLAMDataManager, WorkerMetricStats; spec coordination 3.3 - 3.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.model.worker import WorkerMetricStats

LEAVING: Final = "TERMINATING"
"""`properties["state"]` of a kcl-host worker that is stopping (DESIGN.md 4.2); Java writes no properties."""

_FAILED: Final = -1

Activity = Literal["active", "invalid", "inactive", "leaving", "failing"]


class WorkerActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Workers by what the leader may do with them; each tuple is sorted by worker id.

    `invalid`: the row contradicts itself. `inactive`: not updated for two report intervals. `leaving`: stopping.
    `failing`: could not measure itself last time. None of these four is a target; all keep their leases.
    """

    active: tuple[WorkerMetricStats, ...]
    invalid: tuple[str, ...]
    inactive: tuple[str, ...]
    leaving: tuple[str, ...]
    failing: tuple[str, ...]


def judge_workers(
    workers: Iterable[WorkerMetricStats], wall_s: float, settings: WorkerMetricsSettings
) -> WorkerActivity:
    """Sorts the rows; of several rows with one worker id only the one updated last counts (Java counts each)."""
    latest: dict[str, WorkerMetricStats] = {}
    for stats in workers:
        other = latest.get(stats.worker_id)
        if other is None or (stats.last_update_s or 0) > (other.last_update_s or 0):
            latest[stats.worker_id] = stats
    ordered = [latest[worker_id] for worker_id in sorted(latest)]
    verdicts = [judge_worker(stats, wall_s, settings) for stats in ordered]

    def ids(activity: Activity) -> tuple[str, ...]:
        return tuple(s.worker_id for s, verdict in zip(ordered, verdicts, strict=True) if verdict == activity)

    return WorkerActivity(
        active=tuple(s for s, verdict in zip(ordered, verdicts, strict=True) if verdict == "active"),
        invalid=ids("invalid"),
        inactive=ids("inactive"),
        leaving=ids("leaving"),
        failing=ids("failing"),
    )


def judge_worker(stats: WorkerMetricStats, wall_s: float, settings: WorkerMetricsSettings) -> Activity:
    """What one row says of its worker, by the reader's wall clock (epoch seconds)."""
    if stats.last_update_s is None or not _is_consistent(stats):
        return "invalid"
    if not is_reporting(stats, wall_s, settings):
        return "inactive"
    if stats.properties.get("state") == LEAVING:
        return "leaving"
    if any(values[-1] == _FAILED for values in stats.metric_stats.values()):
        return "failing"
    return "active"


def is_reporting(stats: WorkerMetricStats, wall_s: float, settings: WorkerMetricsSettings) -> bool:
    """True while the row is no older than two report intervals, whatever it says."""
    return stats.last_update_s is not None and wall_s - stats.last_update_s <= 2 * settings.report_interval_s


def is_throughput_only(stats: WorkerMetricStats) -> bool:
    """True for a worker without metrics: it is judged by the throughput of its leases alone."""
    return not stats.metric_stats and not stats.operating_range


def stale_workers(
    workers: Iterable[WorkerMetricStats], wall_s: float, settings: WorkerMetricsSettings
) -> list[WorkerMetricStats]:
    """Rows that the leader deletes, on condition that they are still as read. A row without a time stays for ever."""
    return [s for s in workers if s.last_update_s is not None and wall_s - s.last_update_s > settings.stale_after_s]


def moving_average(values: Sequence[float], alpha: float) -> float:
    """Exponential moving average, oldest first, failed periods (-1) left out; 0 when nothing is left."""
    average: float | None = None
    for value in values:
        if value != _FAILED:
            average = value if average is None else alpha * value + (1 - alpha) * average
    return average or 0.0


def _is_consistent(stats: WorkerMetricStats) -> bool:
    """Every metric has values and an operating range above 0.

    A range without any metric is invalid here; Java takes it for a worker of endless capacity.
    """
    if bool(stats.metric_stats) != bool(stats.operating_range):
        return False
    return all(
        bool(values) and bool(stats.operating_range.get(name)) for name, values in stats.metric_stats.items()
    ) and all(bool(limits) and limits[0] > 0 for limits in stats.operating_range.values())
