"""Metrics as lines in CloudWatch's embedded metric format, for hosts whose output goes to CloudWatch Logs anyway.

The same metrics, namespace and dimensions as PutMetricData makes, without that permission and its requests; each flush
writes them with its time. A value is a statistic set as {Max, Min, Count, Sum}: the specification names only numbers
and arrays, but AWS's own OpenTelemetry exporters write it for histograms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from kcl_host.model.metric import Dimensions, MetricDatum
from kcl_host.ports import Clock

METRICS_PER_LINE: Final = 100
"""The most that a directive may name."""


class EmfLines:
    """Satisfies observe.cloudwatch.MetricSink. `write` gets a line with its end, and may raise KclHostError only."""

    def __init__(self, write: Callable[[bytes], object], namespace: str, clock: Clock) -> None:
        self._write = write
        self._namespace = namespace
        self._clock = clock

    def put(self, data: Sequence[MetricDatum]) -> None:
        for line in emf_lines(data, self._namespace, round(self._clock.wall() * 1000)):
            self._write(line)


def emf_lines(data: Sequence[MetricDatum], namespace: str, epoch_ms: int) -> Iterator[bytes]:
    """A line for each set of dimensions, or several when it has more metrics than a line may name."""
    by_dimensions: defaultdict[Dimensions, list[MetricDatum]] = defaultdict(list)
    for datum in data:
        by_dimensions[datum.dimensions].append(datum)
    for dimensions, of_one in by_dimensions.items():
        for first in range(0, len(of_one), METRICS_PER_LINE):
            yield (
                msgspec.json.encode(_line(of_one[first : first + METRICS_PER_LINE], dimensions, namespace, epoch_ms))
                + b"\n"
            )


def _line(data: Sequence[MetricDatum], dimensions: Dimensions, namespace: str, epoch_ms: int) -> dict[str, Any]:
    directive = {
        "Namespace": namespace,
        "Dimensions": [[name for name, _ in dimensions]],
        "Metrics": [{"Name": datum.name, "Unit": datum.unit} for datum in data],
    }
    values = {
        datum.name: {
            "Max": datum.statistics.maximum,
            "Min": datum.statistics.minimum,
            "Count": datum.statistics.count,
            "Sum": datum.statistics.sum,
        }
        for datum in data
    }
    return {"_aws": {"Timestamp": epoch_ms, "CloudWatchMetrics": [directive]}, **dict(dimensions), **values}
