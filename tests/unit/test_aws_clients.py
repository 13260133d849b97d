"""Clients: time-outs, attempts, region, endpoint."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import pytest

from kcl_host import __version__
from kcl_host.aws.clients import clients_for, dynamodb_client, kinesis_client
from kcl_host.config.settings import (
    ChildSettings,
    CredentialsProvider,
    LeaseSettings,
    RetrievalSettings,
    ServiceSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.errors import ConfigurationError
from kcl_host.model.sequence import InitialPosition
from tests.fakes.wire import Reply, Wire

ANONYMOUS = (CredentialsProvider(name="AnonymousCredentialsProvider"),)


@pytest.fixture(autouse=True)
def no_aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def make(dynamodb: ServiceSettings | None = None, **kinesis: Any) -> Settings:
    service = ServiceSettings(**{"region": "eu-west-1", **kinesis})
    return Settings(
        application_name="app",
        worker_id="w",
        streams=(StreamSettings(name="orders"),),
        initial_position=InitialPosition(kind="LATEST"),
        child=ChildSettings(command=("true",)),
        kinesis=service,
        dynamodb=dynamodb or service,
        cloudwatch=service,
        lease_table=TableSettings(name="app"),
        coordinator_table=TableSettings(name="app-CoordinatorState"),
        worker_metrics_table=TableSettings(name="app-WorkerMetricStats"),
        retrieval=RetrievalSettings(mode="POLLING", mode_reason="test", request_timeout_s=25.0),
        lease=LeaseSettings(request_timeout_s=2.5),
    )


def test_time_outs_fence_and_nothing_is_retried() -> None:
    clients = clients_for(make())
    dynamodb, kinesis = clients.dynamodb.meta.config, clients.kinesis.meta.config
    assert (dynamodb.connect_timeout, dynamodb.read_timeout) == (1.0, 2.5)
    assert (kinesis.connect_timeout, kinesis.read_timeout) == (2.0, 25.0)
    for config in (dynamodb, kinesis):
        assert config.retries["total_max_attempts"] == 1
        assert config.max_pool_connections >= 32
        assert config.tcp_keepalive is True


@pytest.mark.parametrize(
    "failure",
    [
        Reply(error="ProvisionedThroughputExceededException"),
        Reply(error="InternalServerError", status=500),
        botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"),
        botocore.exceptions.ConnectionClosedError(endpoint_url="http://x"),
    ],
    ids=["throttled", "500", "time-out", "closed"],
)
def test_one_request_is_one_attempt(failure: Reply | Exception) -> None:
    client: Any = dynamodb_client(make())
    wire = Wire(client, failure)
    with pytest.raises((botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError)):
        client.describe_table(TableName="orders-app")
    assert len(wire.requests) == 1


def test_requests_carry_our_name() -> None:
    client: Any = kinesis_client(make())
    wire = Wire(client, Reply({"Shards": []}))
    client.list_shards(StreamName="orders")
    assert f"kcl-host/{__version__}" in wire.headers[0]["user-agent"]
    assert "Credential=key/" in wire.headers[0]["authorization"]


def test_each_service_has_its_own_region_and_endpoint() -> None:
    local = ServiceSettings(region="us-east-1", endpoint_url="http://127.0.0.1:4567")
    clients = clients_for(make(dynamodb=local))
    assert clients.kinesis.meta.region_name == "eu-west-1"
    assert clients.kinesis.meta.endpoint_url == "https://kinesis.eu-west-1.amazonaws.com"
    assert clients.dynamodb.meta.region_name == "us-east-1"
    assert clients.dynamodb.meta.endpoint_url == "http://127.0.0.1:4567"


def test_dualstack_and_fips() -> None:
    assert kinesis_client(make(use_dualstack=True)).meta.endpoint_url == "https://kinesis.eu-west-1.api.aws"
    fips = kinesis_client(make(region="us-east-1", use_fips=True))
    assert fips.meta.endpoint_url == "https://kinesis-fips.us-east-1.amazonaws.com"


def test_no_region_anywhere_names_the_key() -> None:
    for make_client in (dynamodb_client, kinesis_client, clients_for):
        with pytest.raises(ConfigurationError, match="regionName"):
            make_client(make(region=None))


def test_the_region_of_the_profile_serves(tmp_path: Any) -> None:
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    assert kinesis_client(make(region=None)).meta.region_name == "ap-south-1"


def test_a_region_that_cannot_be_one() -> None:
    with pytest.raises(ConfigurationError, match="client cannot be made"):
        kinesis_client(make(region="eu west"))


def test_an_endpoint_that_cannot_be_one() -> None:
    with pytest.raises(ConfigurationError, match="client cannot be made"):
        kinesis_client(make(endpoint_url="nonsense"))


def test_anonymous_requests_are_not_signed() -> None:
    client: Any = kinesis_client(make(credentials=ANONYMOUS))
    wire = Wire(client, Reply({"Shards": []}))
    client.list_shards(StreamName="orders")
    assert "authorization" not in wire.headers[0]
