"""The request to CloudWatch: made late, with our time-outs, its errors ours, its values such as CloudWatch takes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from kcl_host.aws.clients import clients_for, cloudwatch_client
from kcl_host.aws.cloudwatch import CloudWatchMetrics
from kcl_host.config.settings import ServiceSettings
from kcl_host.errors import AccessError, ConfigurationError, KclHostError, Throttled, Unavailable
from kcl_host.model.metric import MetricDatum, StatisticSet
from tests.unit.test_aws_clients import make, no_aws_environment

__all__ = ["no_aws_environment"]

ONE = StatisticSet(1, 1, 1, 1)


class Client:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.sent: list[dict[str, Any]] = []

    def put_metric_data(self, **request: Any) -> None:
        self.sent.append(request)
        if self.error is not None:
            raise self.error


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "as told"}}, "PutMetricData")


def test_the_client_is_made_with_the_first_request_and_kept() -> None:
    client, connected = Client(), []

    def connect() -> Client:
        connected.append(True)
        return client

    sink = CloudWatchMetrics(connect, "orders-app")
    assert connected == []
    for _ in range(2):
        sink.put([MetricDatum("Success", "Count", (("Operation", "ProcessTask"),), ONE)])
    assert connected == [True]
    assert client.sent[0] == {
        "Namespace": "orders-app",
        "MetricData": [
            {
                "MetricName": "Success",
                "Unit": "Count",
                "Dimensions": [{"Name": "Operation", "Value": "ProcessTask"}],
                "StatisticValues": {"Minimum": 1, "Maximum": 1, "Sum": 1, "SampleCount": 1.0},
            }
        ],
    }


@pytest.mark.parametrize(
    ("error", "ours", "says"),
    [
        (refused("AccessDenied"), AccessError, "grant cloudwatch:PutMetricData on metrics namespace orders-app"),
        (refused("Throttling"), Throttled, "as told"),
        (refused("InternalFailure"), Unavailable, "as told"),
        (ReadTimeoutError(endpoint_url="https://monitoring"), Unavailable, "Read timeout"),
    ],
)
def test_errors_are_ours(error: Exception, ours: type[KclHostError], says: str) -> None:
    with pytest.raises(ours, match=says):
        CloudWatchMetrics(lambda: Client(error), "orders-app").put([MetricDatum("Success", "Count", (), ONE)])


def test_a_client_that_cannot_be_made_is_tried_again() -> None:
    clients: list[Client] = []

    def connect() -> Client:
        clients.append(Client())
        if len(clients) == 1:
            raise ConfigurationError("no AWS region for cloudwatch")
        return clients[-1]

    sink = CloudWatchMetrics(connect, "orders-app")
    with pytest.raises(ConfigurationError):
        sink.put([MetricDatum("Success", "Count", (), ONE)])
    sink.put([MetricDatum("Success", "Count", (), ONE)])
    assert len(clients[1].sent) == 1


@pytest.mark.parametrize(
    ("value", "sent"),
    [("worker-1", "worker-1"), ("größe\n", "gr??e"), ("", "?"), (":a:b", "a:b"), ("x" * 2000, "x" * 1024), ("é", "?")],
)
def test_a_worker_id_that_cloudwatch_would_refuse_does_not_cost_the_request(value: str, sent: str) -> None:
    client = Client()
    CloudWatchMetrics(lambda: client, "app").put([MetricDatum("Success", "Count", (("WorkerIdentifier", value),), ONE)])
    assert client.sent[0]["MetricData"][0]["Dimensions"] == [{"Name": "WorkerIdentifier", "Value": sent}]


def test_metrics_may_go_to_another_region_than_the_stream() -> None:
    settings = make()
    assert clients_for(settings).new_cloudwatch().meta.region_name == "eu-west-1"
    elsewhere = ServiceSettings(region="us-west-2", endpoint_url="http://127.0.0.1:4567")
    client = clients_for(msgspec.structs.replace(settings, cloudwatch=elsewhere)).new_cloudwatch()
    assert (client.meta.region_name, client.meta.endpoint_url) == ("us-west-2", "http://127.0.0.1:4567")


def test_the_client_gives_up_soon() -> None:
    client = cloudwatch_client(make())
    config = client.meta.config
    assert (config.connect_timeout, config.read_timeout) == (1.0, 5.0)
    assert config.retries["total_max_attempts"] == 2
    assert client.meta.region_name == "eu-west-1"
