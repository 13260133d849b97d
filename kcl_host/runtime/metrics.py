"""Where the metrics of a worker go: CloudWatch, as of Java's daemon; lines in its embedded format; or OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_host.aws.clients import Clients
from kcl_host.aws.cloudwatch import CloudWatchMetrics
from kcl_host.aws.request_count import count_dynamodb, count_kinesis
from kcl_host.config.settings import Settings
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.observe.cloudwatch import MetricSink, MetricsPublisher
from kcl_host.observe.emf import EmfLines
from kcl_host.observe.metrics import Registry
from kcl_host.observe.published import Published
from kcl_host.ports import Clock, NewLock

STDOUT: Final = 1


@dataclass(frozen=True, kw_only=True)
class Metrics:
    instruments: Instruments = NOTHING
    publish: Callable[[], float] | None = None
    """One flush; seconds until the next. None where nothing is published so."""
    flush: Callable[[float], object] = lambda within_s: None
    """The last flush, which begins no request after that time."""
    registry: Registry | None = None
    """What the host's endpoint shows; None when nothing is measured."""


NO_METRICS: Final = Metrics()


def metrics_of(settings: Settings, clients: Clients, clock: Clock, new_lock: NewLock) -> Metrics:
    """Raises ConfigurationError when the packages of OpenTelemetry are asked for and missing."""
    metrics = _metrics_of(settings, clients, clock, new_lock)
    # Only these two show what we count beyond KCL's metrics.
    if metrics.registry is not None and (settings.endpoint.port or settings.metrics.backend == "OTEL"):
        count_dynamodb(clients.dynamodb, metrics.instruments.requested)
        count_kinesis(clients.kinesis, metrics.instruments.requested)
    return metrics


def _metrics_of(settings: Settings, clients: Clients, clock: Clock, new_lock: NewLock) -> Metrics:
    own = settings.metrics
    if own.level == "NONE":
        if not settings.endpoint.port:
            return NO_METRICS
        registry = Registry(settings.worker_id, own.max_queue_size)
        return Metrics(instruments=Published(registry, clock), registry=registry)
    if own.backend == "OTEL":
        from kcl_host.observe.otel import connect

        recorders, shutdown = connect(own)
        registry = Registry(settings.worker_id, own.max_queue_size, recorders)
        return Metrics(instruments=Published(registry, clock), flush=lambda within_s: shutdown(), registry=registry)
    registry = Registry(settings.worker_id, own.max_queue_size)
    sink: MetricSink = (
        EmfLines(lambda line: os.write(STDOUT, line), settings.application_name, clock)
        if own.backend == "EMF"
        else CloudWatchMetrics(clients.new_cloudwatch, settings.application_name)
    )
    publisher = MetricsPublisher(registry, sink, own, clock, new_lock())
    return Metrics(
        instruments=Published(registry, clock), publish=publisher.run_once, flush=publisher.flush, registry=registry
    )
