"""What a fleet costs a day, estimated: requests and units by table, from what a look shows and from the configuration.

The estimate is that of a fleet of kcl-host at rest, with the file at hand for every worker; tests hold it against the
requests that real workers send in simulated time. What the tables do not show, checkpoints, is known when a fleet was
looked at twice: both a renewal and a checkpoint move the counter of a lease. A Java worker renews as often, and reads
less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.decisions.election import LOOKS_PER_HEARTBEAT
from kcl_host.decisions.fleet_report import FleetView
from kcl_host.decisions.heartbeat_watch import SCANNED_ROWS, watch_interval_s

HOUR_S: Final = 3600.0
DAY_H: Final = 24.0
MONTH_H: Final = 730.0
READ_BYTES: Final = 4096
ROW_BYTES: Final = 370
"""Of a lease with worker ids as long as host names of EC2; a write unit holds it."""
INDEX_ROW_BYTES: Final = 90
WORKER_ROW_BYTES: Final = 330
DISCOVERY_S: Final = 1.0
"""How often each of several workers asks the index; one that is alone does as Java does."""
KINDS: Final[Mapping[str, tuple[int, int, int]]] = {"DETAILED": (12, 13, 37), "SUMMARY": (6, 8, 22)}
"""Metrics that CloudWatch bills, by metricsLevel: of each shard, of each worker, and of the fleet."""
METRICS_PER_REQUEST: Final = 1000


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars in us-east-1, as AWS published them in 2025: DynamoDB on demand, Kinesis enhanced fan-out, CloudWatch.

    Free tiers and discounts for much are left out. Polling costs nothing beyond the stream itself.
    """

    write_million: float = 0.625
    read_million: float = 0.125
    fan_out_shard_hour: float = 0.015
    fan_out_gb: float = 0.013
    metric_month: float = 0.30
    metric_requests_thousand: float = 0.01


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """Something that costs, an hour. `is_measured`: counted by looks at the tables, not derived."""

    service: str
    what: str
    requests: float = 0.0
    read_units: float = 0.0
    write_units: float = 0.0
    usd_a_day: float
    is_measured: bool = False


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """`missing` says what the estimate does not hold."""

    lines: tuple[CostLine, ...]
    usd_a_day: float
    missing: tuple[str, ...]
    prices: Prices


def estimate_cost(view: FleetView, settings: Settings, prices: Prices) -> Cost:
    """Of the fleet that `view` shows. Raises nothing; an empty fleet costs nothing."""
    workers = sum(worker.standing not in ("inactive", "no_report") for worker in view.workers)
    if not workers:
        return Cost(lines=(), usd_a_day=0.0, missing=("no worker is active",), prices=prices)
    lines = (
        *_dynamodb(view, settings, workers, prices),
        *_kinesis(view, settings, prices),
        *_cloudwatch(view, settings, workers, prices),
    )
    missing = [] if view.summary.writes_per_s is not None else ["checkpoints: they need two looks (--observe 60)"]
    if settings.metrics.backend == "EMF" and settings.metrics.level != "NONE":
        missing.append("the log lines that carry the metrics (EMF)")
    return Cost(lines=lines, usd_a_day=sum(line.usd_a_day for line in lines), missing=tuple(missing), prices=prices)


def _dynamodb(view: FleetView, settings: Settings, workers: int, prices: Prices) -> Iterable[CostLine]:
    def line(what: str, a_hour: float, *, read: float = 0.0, write: float = 0.0, is_measured: bool = False) -> CostLine:
        """`read` and `write`: units of each request."""
        usd = (a_hour * read * prices.read_million + a_hour * write * prices.write_million) / 1e6 * DAY_H
        return CostLine(
            service="DynamoDB",
            what=what,
            requests=a_hour,
            read_units=a_hour * read,
            write_units=a_hour * write,
            usd_a_day=usd,
            is_measured=is_measured,
        )

    leases, held = len(view.leases), sum(lease.owner is not None for lease in view.leases)
    scan = 0.5 * max(1, math.ceil(leases * ROW_BYTES / READ_BYTES))
    scan_workers = 0.5 * max(1, math.ceil(workers * WORKER_ROW_BYTES / READ_BYTES))
    renewals = held * HOUR_S / settings.lease.renewal_interval_s
    measured = view.summary.writes_per_s
    if measured is None:
        yield line("renewals of leases", renewals, write=1)
    else:
        yield line("renewals and checkpoints of leases", measured * HOUR_S, write=1, is_measured=True)
    yield line("worker metric stats", workers * HOUR_S / settings.worker_metrics.report_interval_s, write=1)
    yield line("heartbeats of the leader lock", HOUR_S / settings.lock.heartbeat_s, write=1)
    index = 0.5 * max(1, math.ceil(held / workers * INDEX_ROW_BYTES / READ_BYTES))
    every_s = DISCOVERY_S if workers > 1 else settings.assignment.interval_s / 2
    yield line("discovery of leases by the index", workers * HOUR_S / every_s, read=index)
    passes, audits = HOUR_S / settings.assignment.interval_s, HOUR_S / settings.shard_sync.audit_interval_s
    yield line("leases, by the leader", passes + audits, read=scan)
    yield line("worker metric stats, by the leader", passes, read=scan_workers)
    if workers > 1:
        looks = HOUR_S * LOOKS_PER_HEARTBEAT / settings.lock.heartbeat_s
        yield line("leader lock, by followers", (workers - 1) * looks, read=1)
        watches = HOUR_S / watch_interval_s(settings.lease)
        by_scan = leases <= SCANNED_ROWS
        yield line("heartbeats, by the leader", watches, read=scan if by_scan else 0.5 * (workers - 1))


def _kinesis(view: FleetView, settings: Settings, prices: Prices) -> Iterable[CostLine]:
    by_fan_out = {one.name for one in settings.streams if settings.of_stream(one).retrieval.mode == "FANOUT"}
    leases = [one for one in view.leases if one.state != "ended" and _name_of(one.stream) in by_fan_out]
    if leases:
        gb_a_day = sum(lease.throughput_kbps or 0.0 for lease in leases) * 86400 / 2**20
        usd = len(leases) * DAY_H * prices.fan_out_shard_hour + gb_a_day * prices.fan_out_gb
        what = f"fan-out of {len(leases):,} shards, {gb_a_day:,.1f} GB a day"
        yield CostLine(service="Kinesis", what=what, usd_a_day=usd)


def _name_of(stream: str) -> str:
    """Leases of several streams have account:name:epoch."""
    return stream.split(":")[1] if stream.count(":") == 2 else stream


def _cloudwatch(view: FleetView, settings: Settings, workers: int, prices: Prices) -> Iterable[CostLine]:
    own = settings.metrics
    if own.level == "NONE" or own.backend == "OTEL":
        return
    of_shard, of_worker, of_fleet = KINDS[own.level]
    shards = sum(lease.state != "ended" for lease in view.leases)
    # Without its dimension a metric is one for all.
    each = {"ShardId": shards, "WorkerIdentifier": workers}
    many = {name: n if {name, "ALL"} & set(own.enabled_dimensions) else 1 for name, n in each.items()}
    metrics = of_shard * many["ShardId"] + of_worker * many["WorkerIdentifier"] + of_fleet
    usd = metrics * prices.metric_month / MONTH_H * DAY_H
    yield CostLine(service="CloudWatch", what=f"{metrics:,} metrics at level {own.level}", usd_a_day=usd)
    if own.backend == "CLOUDWATCH":
        a_flush = workers * math.ceil(metrics / workers / METRICS_PER_REQUEST)
        requests = a_flush * HOUR_S / own.buffer_time_s
        usd = requests * DAY_H / 1000 * prices.metric_requests_thousand
        yield CostLine(service="CloudWatch", what="PutMetricData", requests=requests, usd_a_day=usd)
