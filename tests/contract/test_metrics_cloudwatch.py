"""What is put is read back: namespace, names, dimensions, units, statistics; against moto's CloudWatch."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import botocore.session
import pytest

from kcl_host.aws.cloudwatch import CloudWatchMetrics
from kcl_host.config.settings import MetricsSettings
from kcl_host.model.metric import MetricDatum, StatisticSet
from kcl_host.observe.cloudwatch import MetricsPublisher
from kcl_host.observe.metrics import Registry
from kcl_host.observe.published import Published
from tests.fakes.clock import FakeClock
from tests.unit.test_metrics_published import report_everything

_KEYS = {"region_name": "us-east-1", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}


@pytest.fixture
def client(moto_session: botocore.session.Session) -> Any:
    return moto_session.create_client("cloudwatch", **_KEYS)


def listed(client: Any, namespace: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    pages = client.get_paginator("list_metrics").paginate(Namespace=namespace)
    return {
        (metric["MetricName"], frozenset((d["Name"], d["Value"]) for d in metric["Dimensions"]))
        for page in pages
        for metric in page["Metrics"]
    }


def statistics(client: Any, namespace: str, name: str, **dimensions: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    answer = client.get_metric_statistics(
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=now - datetime.timedelta(hours=1),
        EndTime=now + datetime.timedelta(hours=1),
        Period=7200,
        Statistics=["Sum", "Minimum", "Maximum", "SampleCount"],
    )
    (point,) = answer["Datapoints"]
    return dict(point)


def test_a_statistic_set_comes_back_as_it_was_put(client: Any) -> None:
    sink = CloudWatchMetrics(lambda: client, "one-app")
    dimensions = (("Operation", "ProcessTask"), ("ShardId", "shard-0"))
    sink.put([MetricDatum("DataBytesProcessed", "Bytes", dimensions, StatisticSet(1.5, 10, 30.25, 4))])
    point = statistics(client, "one-app", "DataBytesProcessed", **dict(dimensions))
    assert (point["Minimum"], point["Maximum"], point["Sum"], point["SampleCount"]) == (1.5, 10, 30.25, 4)
    assert point["Unit"] == "Bytes"


def test_everything_a_worker_publishes_is_listed_under_the_application(client: Any) -> None:
    clock, registry = FakeClock(), Registry("worker-1")
    report_everything(Published(registry, clock))
    sent: list[MetricDatum] = []
    sink = CloudWatchMetrics(lambda: client, "all-app")

    class Watched:
        def put(self, data: Any) -> None:
            sent.extend(data)
            sink.put(data)

    MetricsPublisher(registry, Watched(), MetricsSettings(), clock, threading.Lock()).run_once()
    assert len(sent) > 90
    assert listed(client, "all-app") == {(datum.name, frozenset(datum.dimensions)) for datum in sent}
    lag = statistics(client, "all-app", "MillisBehindLatest", Operation="ApplicationTracker")
    assert lag["Unit"] == "Milliseconds"
    ordinal = statistics(client, "all-app", "StatusOrdinal", Operation="TableMigration")
    assert (ordinal["Unit"], ordinal["Maximum"]) == ("None", 4)


def test_a_full_request_is_taken(client: Any) -> None:
    data = [
        MetricDatum("Time", "Milliseconds", (("ShardId", f"shard-{number}"),), StatisticSet(1, 1, 1, 1))
        for number in range(1000)
    ]
    CloudWatchMetrics(lambda: client, "full-app").put(data)
    assert len(listed(client, "full-app")) == 1000
