"""Where the metrics of a worker go: CloudWatch, as of Java's daemon; lines in its embedded format; or OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_host.aws.clients import Clients
from kcl_host.aws.cloudwatch import CloudWatchMetrics
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


NO_METRICS: Final = Metrics()


def metrics_of(settings: Settings, clients: Clients, clock: Clock, new_lock: NewLock) -> Metrics:
    """Raises ConfigurationError when the packages of OpenTelemetry are asked for and missing."""
    own = settings.metrics
    if own.level == "NONE":
        return NO_METRICS
    if own.backend == "OTEL":
        from kcl_host.observe.otel import connect

        recorders, shutdown = connect(own)
        registry = Registry(settings.worker_id, own.max_queue_size, recorders)
        return Metrics(instruments=Published(registry, clock), flush=lambda within_s: shutdown())
    registry = Registry(settings.worker_id, own.max_queue_size)
    sink: MetricSink = (
        EmfLines(lambda line: os.write(STDOUT, line), settings.application_name, clock)
        if own.backend == "EMF"
        else CloudWatchMetrics(clients.new_cloudwatch, settings.application_name)
    )
    publisher = MetricsPublisher(registry, sink, own, clock, new_lock())
    return Metrics(instruments=Published(registry, clock), publish=publisher.run_once, flush=publisher.flush)
