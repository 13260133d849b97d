"""A real host and a CloudWatch on loopback: what it publishes, and what it does when CloudWatch is down or refuses."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kcl_host.local.engines import Engines
from tests.fakes.cloudwatch_http import Behaviour, CloudWatchServer
from tests.integration.counting import Counting, Running, stop
from tests.interop.dynamodb_local import free_port
from tests.metric_kinds import BY_CHANCE, LEVELS, MetricKind, kinds_of, read_golden

pytestmark = [pytest.mark.integration, pytest.mark.interop]

AFTER_A_MINUTE = "PeriodicShardSyncManager"
"""The operation of audits, of which this does not wait for the first."""
OUTAGES: tuple[Behaviour, ...] = ("error", "throttle")
GROWTH_BYTES = 16 << 20


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


def put(engines: Engines, numbers: range) -> None:
    engines.put_records("numbers", [(str(number), str(number).encode()) for number in numbers])


def test_the_metrics_of_java_on_the_same_work(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 4)
    with CloudWatchServer() as cloudwatch:
        counting = Counting(
            engines,
            tmp_path,
            **LEVELS["detailed"],
            metadataTableFormat="single",
            cloudWatchEndpoint=cloudwatch.url,
            shardSyncIntervalMillis=1000,
            varianceBalancingFrequency=1,
            endpointPort=(port := free_port()),
        )
        put(engines, range(100))
        with Running(counting) as host:
            counting.wait_for_numbers(100, 30)
            engines.split_shard("numbers", "shardId-000000000000")
            for shard in ("shardId-000000000004", "shardId-000000000005"):
                host.wait_for("child_initialized", shard=shard)
            put(engines, range(100, 200))
            counting.wait_for_numbers(200, 30)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                text = answer.read().decode()
            for request in ('api="UpdateItem",resource="counting"', 'api="GetRecords",resource='):
                assert f'kcl_host_aws_requests_total{{operation="Aws",{request}' in text
            assert 'kcl_host_dynamodb_write_units_total{operation="Aws",api="UpdateItem",resource="counting"}' in text
            assert stop(host.process) == 0
    kinds = kinds_of(cloudwatch.points)
    assert kinds - BY_CHANCE - read_golden("detailed") == set()
    assert {kind.operation for kind in read_golden("detailed") - kinds} == {AFTER_A_MINUTE}
    assert {point.namespace for point in cloudwatch.points} == {"counting"}
    processed = [point.sum for point in cloudwatch.points if point.name == "RecordsProcessed"]
    assert sum(processed) == len(counting.delivered()) == 200, "the last ones were published at the stop"
    assert MetricKind("ProcessTask", "RecordsProcessed", "Count", ("ShardId",)) in kinds


def test_records_flow_whatever_cloudwatch_does(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 2)
    port = free_port()
    counting = Counting(
        engines,
        tmp_path,
        metricsLevel="DETAILED",
        metricsBufferTimeMillis=100,
        cloudWatchEndpoint=f"http://127.0.0.1:{port}",
    )
    sent = 0

    def deliver(count: int = 50) -> None:
        nonlocal sent
        put(engines, range(sent, sent + count))
        sent += count
        counting.wait_for_numbers(sent, 20)

    with Running(counting) as host:
        deliver()  # Nothing listens there.
        host.wait_for("metrics_lost")
        memory = psutil.Process(host.process.pid).memory_info().rss
        with CloudWatchServer(port) as cloudwatch:
            for behaviour in OUTAGES:
                cloudwatch.behaviour = behaviour
                counting.wait_until(lambda of=behaviour: cloudwatch.requests[of] >= 2, 20)
                deliver()
            cloudwatch.behaviour = "well"
            host.wait_for("metrics_published_again")
            (lost,) = host.log("metrics_lost")  # Once a minute, however many requests fail.
            (again,) = host.log("metrics_published_again")
            assert lost["level"] == "WARNING" and "127.0.0.1" in lost["error"]
            assert again["lost"] > lost["metrics"] > 0
            cloudwatch.behaviour = "hang"
            counting.wait_until(lambda: cloudwatch.requests["hang"], 20)
            for _ in range(5):
                deliver(200)
            assert psutil.Process(host.process.pid).memory_info().rss - memory < GROWTH_BYTES
            assert stop(host.process, 20) == 0, "the last flush does not wait for an answer that never comes"
    assert len(counting.delivered()) == sent, "every record once"
    counting.check_order()
