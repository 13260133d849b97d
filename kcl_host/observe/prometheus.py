"""The registry as Prometheus text (exposition format 0.0.4).

Written by hand: the format is a few lines, our registry holds the numbers already, and prometheus-client would be one
more dependency with a second registry. Its parser reads this in the tests.

A metric of KCL becomes one in snake case with the unit that Prometheus wants (seconds), what adds up a counter, what is
a state a gauge, durations and successes a summary: `_sum` and `_count`. Labels are dimensions, and their values come
from leases that are held, so they are bounded; a shard that was given away has no lines any more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from kcl_host.model.metric import Dimensions
from kcl_host.observe.catalogue import API, OPERATION, RESOURCE, SHARD_ID, STREAM_ID, WORKER_IDENTIFIER, Metric
from kcl_host.observe.metrics import Registry, Total
from kcl_host.ports import Clock

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "kcl_host_"
FRESH_S: Final = 1.0

_LABELS: Final = {OPERATION: "operation", SHARD_ID: "shard", STREAM_ID: "stream", WORKER_IDENTIFIER: "worker",
           API: "api", RESOURCE: "resource"}  # fmt: skip
_TYPES: Final = {"counter": "counter", "gauge": "gauge", "distribution": "summary"}
_SUFFIXES: Final = {"counter": "_total", "gauge": "", "distribution": ""}
_NAMES: Final = {
    "Time": "task_seconds",
    "Success": "task_success",
    "Fault": "faults",
    "DataBytesProcessed": "processed_bytes",
    "MillisBehindLatest": "behind_latest_seconds",
    "Published": "metrics_published",
    "Requests": "aws_requests",
    "ReadUnits": "dynamodb_read_units",
    "WriteUnits": "dynamodb_write_units",
    "Shed": "metrics_shed",
    "HeadLag": "micro_batch_lag_seconds",
    "Retries": "micro_batch_retries",
    "BytesCommitted": "committed_bytes",
    "WorkerLeases": "fleet_leases",
    "UnclaimedLeases": "fleet_unclaimed_leases",
    "TotalLeases": "fleet_total_leases",
    "NumWorkers": "fleet_workers",
    "ExpiredLeases": "fleet_expired_or_unassigned_leases",
}
"""Names that would not say enough in snake case."""
_LEFT_OUT: Final = {("ApplicationTracker", "MillisBehindLatest")}
"""The lags of all shards mixed: max(kcl_host_behind_latest_seconds) is what it is meant for."""
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class PrometheusText:
    """Makes the text no more often than once a second, however often it is asked for. One thread at a time."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._made_s = -math.inf
        self._text = b""

    def text(self) -> bytes:
        now_s = self._clock.monotonic()
        if now_s - self._made_s >= FRESH_S:
            self._text, self._made_s = render(self._registry.totals()).encode(), now_s
        return self._text


def render(totals: Iterable[Total]) -> str:
    """Lines by name, then labels; totals with equal labels are added up, of gauges the last one counts."""
    families: dict[str, tuple[Metric, dict[str, tuple[float, int]]]] = {}
    for total in totals:
        metric = total.metric
        if (metric.operation, metric.name) in _LEFT_OUT:
            continue
        scale = 0.001 if metric.unit == "Milliseconds" else 1.0
        _, lines = families.setdefault(name_of(metric), (metric, {}))
        labels = _labels(total.dimensions)
        if metric.kind == "gauge":
            lines[labels] = (total.last * scale, 1)
        else:
            before_sum, before_count = lines.get(labels, (0.0, 0))
            lines[labels] = (before_sum + total.sum * scale, before_count + total.count)
    text = []
    for name, (metric, lines) in sorted(families.items()):
        text.append(f"# HELP {name} {metric.help}\n# TYPE {name} {_TYPES[metric.kind]}\n")
        for labels, (value, count) in sorted(lines.items()):
            if metric.kind == "distribution":
                text.append(f"{name}_sum{labels} {_number(value)}\n{name}_count{labels} {count}\n")
            else:
                text.append(f"{name}{labels} {_number(value)}\n")
    return "".join(text)


def name_of(metric: Metric) -> str:
    """The name of the family; that of a counter ends with `_total`, as its lines do."""
    name = _NAMES.get(metric.name)
    if name is None:
        # GetLease:Error, RecordProcessor.initialize.Time, ActiveStreams.Count
        stem, _, last = metric.name.replace(":", ".").rpartition(".")
        words = [stem, {"Time": "Seconds", "Count": ""}.get(last, last)]
        name = "_".join(_WORD.sub("_", word).replace(".", "_").lower() for word in words if word)
    return f"{PREFIX}{name}{_SUFFIXES[metric.kind]}"


def _labels(dimensions: Dimensions) -> str:
    return "{" + ",".join(f'{_LABELS[name]}="{value.translate(_ESCAPES)}"' for name, value in dimensions) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
