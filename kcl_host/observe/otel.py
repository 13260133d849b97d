"""Each point, as it comes, to OpenTelemetry; needs the extra `otel`.

Names, attributes, units and kinds of instruments are those of KCL's own OTel back end (3.5.0), so that dashboards made
for it go on. One point of ours stands for a batch where KCL's stands for a record: the bytes of its records together.
Source: KCL 3.5.1 OtelMetricsScope, OtelMetricNameTransformer; spec metrics 6.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kcl_host.config.settings import MetricsSettings
from kcl_host.errors import ConfigurationError
from kcl_host.model.metric import Dimensions, Unit
from kcl_host.observe.catalogue import API, OPERATION, RESOURCE, SHARD_ID, STREAM_ID, WORKER_IDENTIFIER, Metric
from kcl_host.observe.metrics import Record, Selection

METER: Final = "software.amazon.kinesis"
PREFIX: Final = "aws.kinesis.client."
NAME_LENGTH: Final = 255

_ATTRIBUTES: Final = {
    OPERATION: "aws.kinesis.operation",
    SHARD_ID: "aws.kinesis.shard.id",
    STREAM_ID: "aws.kinesis.stream_name",
    WORKER_IDENTIFIER: "aws.kinesis.consumer.name",
    API: "rpc.method",
    RESOURCE: "kcl_host.resource",
}
_UNITS: Final[Mapping[Unit, str]] = {"Milliseconds": "ms", "Bytes": "By", "Count": "1", "None": "1"}
_GAUGES: Final = frozenset(
    {
        "CurrentLeases", "TotalLeases", "NumWorkers", "ExpiredLeases", "VeryOldLeases", "ActiveStreams.Count",
        "StreamsPendingDeletion.Count", "QueueSize", "NumStreamsToSync", "NumWorkersWithInvalidEntry",
        "NumWorkersWithFailingWorkerMetric", "GsiReadyStatus", "WorkerMetricsReadyStatus", "CurrentState:3xWorker",
        "CurrentState:2xCompatibleWorker",
    }
)  # fmt: skip
"""KCL's choice, which is not ours in catalogue.py: the lag is a distribution here."""
_RENAMED: Final = {
    "MillisBehindLatest": "consumer.lag.duration",
    "DataBytesProcessed": "records.size",
    "ActiveStreams.Count": "streams.active",
    "StreamsPendingDeletion.Count": "streams.pending_deletion",
    "NonExistingStreamDelete.Count": "streams.deleted_nonexistent",
    "DeletedStreams.Count": "streams.deleted",
    "NumStreamsToSync": "streams.pending_sync",
    "QueueSize": "stream_id_cache.queue.size",
    "NumWorkers": "workers",
    "NumWorkersWithInvalidEntry": "workers.invalid_entry",
    "NumWorkersWithFailingWorkerMetric": "workers.failing_worker_metric",
}
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ILLEGAL: Final = re.compile(r"[^a-z0-9_.\-/]")


class OtelRecorders:
    """A `NewRecorder` for the registry. Instruments are made once for each name."""

    def __init__(self, meter: Any, settings: MetricsSettings) -> None:
        """`meter`: an opentelemetry.metrics.Meter. Level and dimensions are filtered as for CloudWatch."""
        self._meter = meter
        self._selection = Selection(settings, ours=True)
        self._instruments: dict[str, Callable[..., None]] = {}

    def __call__(self, metric: Metric, dimensions: Dimensions) -> Record | None:
        if not self._selection.wants(metric):
            return None
        attributes = {_ATTRIBUTES[name]: value for name, value in self._selection.enabled(dimensions)}
        report = self._instrument(metric)
        return lambda total: report(total, attributes)

    def _instrument(self, metric: Metric) -> Callable[..., None]:
        name = otel_name(metric.name)
        found = self._instruments.get(name)
        if found is None:
            found = self._instruments[name] = self._new_instrument(metric, name)
        return found

    def _new_instrument(self, metric: Metric, name: str) -> Callable[..., None]:
        facts = {"name": name, "unit": _UNITS[metric.unit], "description": metric.help}
        new: Callable[..., None]
        if metric.name in _GAUGES:
            new = self._meter.create_gauge(**facts).set
        elif metric.unit == "Count":
            new = self._meter.create_counter(**facts).add
        else:
            new = self._meter.create_histogram(**facts).record
        return new


def otel_name(name: str) -> str:
    """KCL's rule: fixed renames first, then dots, snake case, and its prefix."""
    renamed = _RENAMED.get(name)
    if renamed is None:
        dotted = re.sub(r"\.Time$", ".duration", name.replace(":", "."))
        renamed = _WORD.sub("_", re.sub(r"\.Count$", "", dotted)).lower()
    return (PREFIX + _ILLEGAL.sub("_", renamed))[:NAME_LENGTH]


def connect(settings: MetricsSettings) -> tuple[OtelRecorders, Callable[[], None]]:
    """Recorders to the exporter that the environment names (OTEL_EXPORTER_OTLP_ENDPOINT ...), and what to call at the
    end. A provider that stands already, as under opentelemetry-instrument, is used, and not ended.

    Raises ConfigurationError when the packages are missing.
    """
    try:
        api = importlib.import_module("opentelemetry.metrics")
        sdk = importlib.import_module("opentelemetry.sdk.metrics")
        export = importlib.import_module("opentelemetry.sdk.metrics.export")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    except ImportError as error:
        raise ConfigurationError(f"OpenTelemetry is not installed ({error}): pip install 'kcl-host[otel]'") from error
    provider = api.get_meter_provider()
    if isinstance(provider, sdk.MeterProvider):
        return OtelRecorders(provider.get_meter(METER), settings), lambda: None
    provider = sdk.MeterProvider([export.PeriodicExportingMetricReader(otlp.OTLPMetricExporter())])
    return OtelRecorders(provider.get_meter(METER), settings), provider.shutdown
