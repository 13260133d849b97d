"""Publishing: batches, a CloudWatch that is slow, refuses or is gone, and the last flush."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from kcl_host.config.settings import MetricsSettings
from kcl_host.errors import AccessError, Throttled, Unavailable
from kcl_host.model.metric import MetricDatum, StatisticSet
from kcl_host.observe.cloudwatch import BYTES_PER_REQUEST, MetricsPublisher
from kcl_host.observe.metrics import Registry, Series
from tests.fakes.clock import FakeClock
from tests.fakes.cloudwatch import FakeCloudWatch


class Rig:
    def __init__(self, **settings: object) -> None:
        self.clock = FakeClock()
        self.registry = Registry("worker-1")
        self.cloudwatch = FakeCloudWatch(self.clock)
        self.lock = threading.Lock()
        self.publisher = MetricsPublisher(
            self.registry,
            self.cloudwatch,
            MetricsSettings(**settings),  # type: ignore[arg-type]
            self.clock,
            self.lock,
        )

    def work(self, shards: int, records: int = 1, first: int = 0) -> None:
        for number in range(first, first + shards):
            scope = self.registry.scope({"ShardId": f"shard-{number}"})
            scope.add("ProcessTask", RecordsProcessed=records)
            self.registry.end(scope)

    def ours(self, name: str) -> float:
        return sum(total.sum for total in self.registry.totals() if total.metric.name == name)

    def run_for(self, seconds: float) -> int:
        turns, until_s = 0, self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.clock.advance(self.publisher.run_once())
            turns += 1
        return turns


def said(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == action]


def test_a_turn_sends_everything_and_says_when_the_next_is_due() -> None:
    rig = Rig(buffer_time_s=7.0)
    rig.work(3, records=4)
    assert rig.publisher.run_once() == 7.0
    assert [len(request) for request in rig.cloudwatch.requests] == [3]
    assert rig.cloudwatch.data[0] == MetricDatum(
        "RecordsProcessed", "Count", (("Operation", "ProcessTask"), ("ShardId", "shard-0")), StatisticSet(4, 4, 4, 1)
    )
    assert rig.ours("Published") == 3


def test_no_request_without_data() -> None:
    rig = Rig()
    rig.publisher.run_once()
    rig.publisher.run_once()
    assert rig.cloudwatch.requests == []


def test_requests_are_full_and_one_after_the_other() -> None:
    rig = Rig()
    rig.work(2500)
    rig.publisher.run_once()
    assert [len(request) for request in rig.cloudwatch.requests] == [1000, 1000, 500]
    assert len(rig.cloudwatch.published) == 2500


def test_a_request_never_gets_too_large() -> None:
    rig = Rig()
    for number in range(800):
        scope = rig.registry.scope({"ShardId": f"{number:0>1000}"})
        scope.add("ProcessTask", RecordsProcessed=1)
    rig.publisher.run_once()
    assert len(rig.cloudwatch.data) == 800
    assert len(rig.cloudwatch.requests) > 1
    for request in rig.cloudwatch.requests:
        assert sum(3 * len(value) for datum in request for _, value in datum.dimensions) < BYTES_PER_REQUEST


def test_level_and_dimensions_are_those_of_the_settings() -> None:
    rig = Rig(level="SUMMARY", enabled_dimensions=("Operation",))
    rig.work(2, records=5)
    rig.registry.worker.add("LeaderDecider", DynamoDBLockBasedLeaderDecider=1)
    rig.publisher.run_once()
    assert rig.cloudwatch.data == [
        MetricDatum("RecordsProcessed", "Count", (("Operation", "ProcessTask"),), StatisticSet(5, 5, 10, 2))
    ]


def test_a_slow_cloudwatch_makes_statistics_coarser_and_loses_nothing() -> None:
    rig = Rig()
    scope = rig.registry.scope({"ShardId": "shard-0"})
    rig.cloudwatch.takes_s = 4.9
    for _ in range(50):
        for _ in range(100):
            scope.add("ProcessTask", RecordsProcessed=1)
        rig.run_for(1.0)
    statistics = rig.cloudwatch.statistics("RecordsProcessed", Operation="ProcessTask", ShardId="shard-0")
    assert statistics == StatisticSet(1, 1, 5000, 5000)
    assert rig.ours("Shed") == 0


def test_an_hour_without_cloudwatch(caplog: pytest.LogCaptureFixture) -> None:
    """Memory stays what it was, each loss is counted, said once a minute, and over when it is over."""
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.cloudwatch.fails_with, rig.cloudwatch.takes_s = Unavailable("no answer"), 6.0
    series_at: list[int] = []
    for minute in range(60):
        rig.work(200, first=200 * minute)
        rig.run_for(60.0)
        if minute % 20 == 0:
            gc.collect()
            series_at.append(sum(isinstance(thing, Series) for thing in gc.get_objects()))
        assert len(said(caplog, "metrics_lost")) <= minute + 2
    assert max(series_at) == min(series_at), "nothing is left of what could not be sent"
    assert rig.ours("Shed") == rig.cloudwatch.refused == 60 * 200
    lines = said(caplog, "metrics_lost")
    assert 45 <= len(lines) <= 61
    assert lines[-1].__dict__["metrics"] > 10_000
    assert lines[-1].__dict__["error"] == "no answer"

    rig.cloudwatch.fails_with, rig.cloudwatch.takes_s = None, 0.0
    rig.work(1, records=9)
    rig.publisher.run_once()
    assert [datum.statistics.sum for datum in rig.cloudwatch.data] == [9], "what is old is not sent as if it were new"
    (line,) = said(caplog, "metrics_published_again")
    assert line.__dict__["lost"] == 12_000
    rig.work(1)
    rig.publisher.run_once()
    assert len(said(caplog, "metrics_published_again")) == 1


@pytest.mark.parametrize("error", [AccessError("not allowed"), Throttled("too fast")])
def test_a_refusal_is_only_said(error: AccessError | Throttled, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.cloudwatch.fails_with = error
    rig.work(2)
    assert rig.publisher.run_once() == 10.0
    rig.work(2)
    rig.publisher.run_once()
    assert len(said(caplog, "metrics_lost")) == 1
    assert rig.ours("Shed") == 4


def test_a_bug_in_the_request_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.cloudwatch.fails_with = ZeroDivisionError("a bug")
    rig.work(2)
    assert rig.publisher.run_once() == 10.0
    (line,) = said(caplog, "metrics_lost")
    assert line.exc_info is not None and line.__dict__["error"] == "ZeroDivisionError('a bug')"
    assert rig.ours("Shed") == 2


def test_one_failed_request_does_not_cost_the_others() -> None:
    rig = Rig()
    rig.work(3000)
    put, asked = rig.cloudwatch.put, []

    def put_but_the_second(data: list[MetricDatum]) -> None:
        asked.append(len(data))
        if len(asked) == 2:
            raise Throttled
        put(data)

    rig.cloudwatch.put = put_but_the_second  # type: ignore[method-assign, assignment]
    rig.publisher.run_once()
    assert asked == [1000, 1000, 1000]
    assert (rig.ours("Published"), rig.ours("Shed")) == (2000, 1000)


# The stop


def test_the_last_flush_sends_what_is_left() -> None:
    rig = Rig()
    rig.publisher.run_once()
    rig.work(1500)
    assert rig.publisher.flush(5.0) is True
    assert [len(request) for request in rig.cloudwatch.requests] == [1000, 500]


def test_the_last_flush_begins_no_request_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.cloudwatch.takes_s = 3.0
    rig.work(9000)
    began_s = rig.clock.now_s
    assert rig.publisher.flush(5.0) is False
    assert rig.clock.now_s - began_s == 6.0, "two requests, of which the second began in time"
    assert (rig.ours("Published"), rig.ours("Shed")) == (2000, 7000)
    (line,) = said(caplog, "metrics_left")
    assert line.__dict__["metrics"] == 7000


def test_the_last_flush_does_not_wait_for_one_that_hangs() -> None:
    rig = Rig()
    rig.work(1)
    with rig.lock:
        assert rig.publisher.flush(0.0) is False
    assert rig.cloudwatch.requests == []


def test_the_publisher_says_how_it_goes() -> None:
    rig = Rig()
    assert repr(rig.publisher) == "<MetricsPublisher publishes>"
    rig.cloudwatch.fails_with = Throttled()
    rig.work(1)
    rig.publisher.run_once()
    assert repr(rig.publisher) == "<MetricsPublisher loses metrics>"
