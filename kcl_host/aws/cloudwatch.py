"""The one request to CloudWatch: PutMetricData."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from kcl_host.aws.faults import Resource, translated
from kcl_host.model.metric import MetricDatum

_NOT_ALLOWED: Final = re.compile(r"[^\x20-\x7e]")
VALUE_LENGTH: Final = 1024


class CloudWatchMetrics:
    """Satisfies observe.cloudwatch.MetricSink. Not thread-safe.

    `connect` makes the client at the first request: a worker that starts need not wait for that, and one without
    metrics has none at all.
    """

    def __init__(self, connect: Callable[[], Any], namespace: str) -> None:
        self._connect = connect
        self._namespace = namespace
        self._client: Any = None

    def put(self, data: Sequence[MetricDatum]) -> None:
        """Statistic sets without time stamps and storage resolution, as Java's. At most 1,000, and 1 MB.

        Raises AccessError, Throttled, Unavailable, ConfigurationError. The permission is cloudwatch:PutMetricData.
        """
        with translated(Resource("cloudwatch", self._namespace)):
            if self._client is None:
                self._client = self._connect()
            self._client.put_metric_data(Namespace=self._namespace, MetricData=[_as_sent(datum) for datum in data])


def _as_sent(datum: MetricDatum) -> dict[str, Any]:
    statistics = datum.statistics
    return {
        "MetricName": datum.name,
        "Unit": datum.unit,
        "Dimensions": [{"Name": name, "Value": _value(value)} for name, value in datum.dimensions],
        "StatisticValues": {
            "Minimum": statistics.minimum,
            "Maximum": statistics.maximum,
            "Sum": statistics.sum,
            "SampleCount": float(statistics.count),
        },
    }


def _value(value: str) -> str:
    """CloudWatch takes printable ASCII; one worker id with other characters would cost a whole request."""
    return _NOT_ALLOWED.sub("?", value.strip())[:VALUE_LENGTH].lstrip(":") or "?"
