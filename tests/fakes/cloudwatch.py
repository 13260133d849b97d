"""A CloudWatch that keeps what it gets, and is slow, refuses or is down when told so."""

from __future__ import annotations

from collections.abc import Sequence

from kcl_host.model.metric import MetricDatum, StatisticSet
from tests.fakes.clock import FakeClock

Published = tuple[str, frozenset[tuple[str, str]]]


class FakeCloudWatch:
    """Satisfies observe.cloudwatch.MetricSink. Each request takes `takes_s`, then raises `fails_with` if it is set."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.takes_s = 0.0
        self.fails_with: Exception | None = None
        self.requests: list[list[MetricDatum]] = []
        self.refused = 0

    def put(self, data: Sequence[MetricDatum]) -> None:
        self._clock.advance(self.takes_s)
        if self.fails_with is not None:
            self.refused += len(data)
            raise self.fails_with
        self.requests.append(list(data))

    @property
    def data(self) -> list[MetricDatum]:
        return [datum for request in self.requests for datum in request]

    @property
    def published(self) -> set[Published]:
        """Names with their dimensions, as two daemons are compared by."""
        return {(datum.name, frozenset(datum.dimensions)) for datum in self.data}

    def statistics(self, name: str, **dimensions: str) -> StatisticSet | None:
        """Of all data of this metric together, as CloudWatch would answer; None when it has none."""
        found: StatisticSet | None = None
        for datum in self.data:
            if datum.name == name and dict(datum.dimensions) == dimensions:
                found = datum.statistics if found is None else found.merged(datum.statistics)
        return found
