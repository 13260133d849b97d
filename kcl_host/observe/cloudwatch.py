"""Publishes the registry's metrics from time to time, to CloudWatch or as EMF lines.

What comes while a request is under way is merged in the registry, so a slow CloudWatch makes the statistics coarser and
nothing else; a request that fails loses what it carried, as in Java: published later it would bear a wrong time. Both
cost the record path nothing. Source: KCL 3.5.1 CloudWatchPublisherRunnable, CloudWatchMetricsPublisher; spec metrics 5.
Where we differ: a request carries up to 1,000 metrics (as KCL's since 3.5.3) of at most 1 MB, a flush everything there
is, and the last flush is bounded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from kcl_host.config.settings import MetricsSettings
from kcl_host.errors import KclHostError
from kcl_host.model.metric import MetricDatum
from kcl_host.observe.metrics import Registry, Selection
from kcl_host.ports import Clock, Lock

_log = logging.getLogger(__name__)

DATA_PER_REQUEST: Final = 1000
BYTES_PER_REQUEST: Final = 900_000
"""Of the 1 MB that CloudWatch allows, by a count of ours that errs on the side of too much."""
SAY_EVERY_S: Final = 60.0


class MetricSink(Protocol):
    """Where metrics go."""

    def put(self, data: Sequence[MetricDatum]) -> None:
        """One request. Raises KclHostError: the data are lost."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which metrics are lost, as the log tells it: when it begins, once a minute, and when it is over."""

    since_s: float
    said_s: float = -math.inf
    requests: int = 0
    metrics: int = 0
    error: str = ""


class MetricsPublisher:
    """`run_once` is one flush; only one thread calls it, `flush` at the stop may be another.

    `_lock` is held while sending, so that two flushes never mix; guards `_loss`.
    """

    def __init__(
        self, registry: Registry, sink: MetricSink, settings: MetricsSettings, clock: Clock, lock: Lock
    ) -> None:
        """Not to be made with metricsLevel = NONE: there is nothing to publish then."""
        self._registry = registry
        self._sink = sink
        self._selection = Selection(settings)
        self._buffer_time_s = settings.buffer_time_s
        self._clock = clock
        self._lock = lock
        self._loss: Loss | None = None

    def __repr__(self) -> str:
        return f"<MetricsPublisher {'loses metrics' if self._loss else 'publishes'}>"

    def run_once(self) -> float:
        """Sends what has come, request after request; seconds from its end to the next turn, as in Java."""
        with self._lock:
            self._flush(math.inf)
        return self._buffer_time_s

    def flush(self, within_s: float) -> bool:
        """The last flush. No request begins after `within_s`; False when metrics were left that are lost now.

        That includes the wait for a flush under way; a request under way is not broken off, so a caller that cannot
        wait for its time-out runs this in a thread of its own.
        """
        deadline_s = self._clock.monotonic() + within_s
        if not self._lock.acquire(timeout=max(0.0, within_s)):
            return False
        try:
            return self._flush(deadline_s)
        finally:
            self._lock.release()

    def _flush(self, deadline_s: float) -> bool:
        left = 0
        for portion in self._selection.data(self._registry.drain(), DATA_PER_REQUEST):
            for data in _requests(portion):
                if self._clock.monotonic() >= deadline_s:
                    left += len(data)
                else:
                    self._send(data)
        if left:
            self._registry.worker.add("Metrics", Shed=left)
            _log.warning("metrics were not published before the end", extra={"action": "metrics_left", "metrics": left})
        return not left

    def _send(self, data: Sequence[MetricDatum]) -> None:
        try:
            self._sink.put(data)
        except KclHostError as error:
            self._lost(len(data), str(error))
        except Exception as error:
            # Whatever it is: metrics do not end a worker.
            self._lost(len(data), repr(error), exc_info=True)
        else:
            self._registry.worker.add("Metrics", Published=len(data))
            self._recovered()

    def _lost(self, metrics: int, error: str, *, exc_info: bool = False) -> None:
        self._registry.worker.add("Metrics", Shed=metrics)
        now_s = self._clock.monotonic()
        loss = self._loss or Loss(since_s=now_s)
        loss = msgspec.structs.replace(loss, requests=loss.requests + 1, metrics=loss.metrics + metrics, error=error)
        if now_s - loss.said_s >= SAY_EVERY_S:
            loss = msgspec.structs.replace(loss, said_s=now_s)
            _log.warning(
                "metrics could not be published and are lost; records are processed all the same",
                extra={
                    "action": "metrics_lost",
                    "metrics": loss.metrics,
                    "requests": loss.requests,
                    "for_s": round(now_s - loss.since_s),
                    "error": error,
                },
                exc_info=exc_info,
            )
        self._loss = loss

    def _recovered(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            _log.info(
                "metrics are published again",
                extra={
                    "action": "metrics_published_again",
                    "lost": loss.metrics,
                    "for_s": round(self._clock.monotonic() - loss.since_s),
                },
            )


def _requests(data: Sequence[MetricDatum]) -> Iterator[Sequence[MetricDatum]]:
    """Cuts the data so that each request stays below the size that CloudWatch takes."""
    first, size = 0, 0
    for index, datum in enumerate(data):
        datum_size = _size_bytes(datum)
        if size + datum_size > BYTES_PER_REQUEST and index > first:
            yield data[first:index]
            first, size = index, 0
        size += datum_size
    yield data[first:]


def _size_bytes(datum: MetricDatum) -> int:
    """As a form of the query protocol, the most wordy one; a character may take three bytes there."""
    return 400 + 3 * len(datum.name) + sum(100 + 3 * (len(name) + len(value)) for name, value in datum.dimensions)
