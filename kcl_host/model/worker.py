"""Workers as the fleet sees them: rows of worker metric stats (spec coordination 3)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

WorkerMetric = Literal["CPU", "NETWORK_IN", "NETWORK_OUT"]
"""What a worker of ours can measure of itself; Java has MEMORY too, which is about its heap."""
SHORT_NAMES: Final[dict[WorkerMetric, str]] = {"CPU": "C", "NETWORK_IN": "NI", "NETWORK_OUT": "NO"}
"""Names of the metrics in the row (Java: WorkerMetricType)."""


class WorkerMetricStats(msgspec.Struct, frozen=True, kw_only=True):
    """`metric_stats`: short name (C, M, NI, NO) -> averages, oldest first, -1 for a failed period.

    `operating_range`: short name -> [maximum utilisation percent]. Both empty: balanced by throughput alone.
    `last_update_s` and `support_code_update_s` are epoch seconds of the writer's wall clock.
    """

    worker_id: str
    last_update_s: int | None
    metric_stats: dict[str, list[float]] = {}
    operating_range: dict[str, list[float]] = {}
    support_code: int | None = None
    support_code_update_s: int | None = None
    properties: dict[str, str] = {}


class WorkerListing(msgspec.Struct, frozen=True, kw_only=True):
    """Every worker a scan found; `undecodable` are the ids of rows that are no valid worker metric stats."""

    workers: tuple[WorkerMetricStats, ...] = ()
    undecodable: tuple[str, ...] = ()
