"""Errors of AWS, as ours: which kind, and whether the message says what to do."""

from __future__ import annotations

import socket
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.config.settings import TableSettings
from kcl_host.errors import (
    AccessError,
    ConfigurationError,
    KclHostError,
    RetryLater,
    TableMissing,
    Throttled,
    Unavailable,
)
from kcl_host.model.lease import Lease, WriteOutcome
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from kcl_host.model.state import LeaderLock
from tests.fakes.wire import Reply, Wire

LEASE = Lease(lease_key="s1", checkpoint=AT_TRIM_HORIZON, lease_owner="a", lease_counter=4)
ROW = {
    "leaseKey": {"S": "s1"},
    "leaseCounter": {"N": "5"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "LATEST"},
    "leaseOwner": {"S": "a"},
}


@cache
def session() -> botocore.session.Session:
    return botocore.session.Session()


def make_client(**options: Any) -> Any:
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=1)
    defaults = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "config": config}
    return session().create_client("dynamodb", region_name="us-east-1", **(defaults | options))


def make(*replies: Reply | Exception) -> tuple[DynamoDbLeaseTable, Wire]:
    client = make_client()
    return DynamoDbLeaseTable(client, TableSettings(name="orders-app")), Wire(client, *replies)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(error="ProvisionedThroughputExceededException"), Throttled),
        (Reply(error="ThrottlingException"), Throttled),
        (Reply(error="RequestLimitExceeded"), Throttled),
        (Reply(error="InternalServerError", status=500), Unavailable),
        (Reply(b"busy", status=503), Unavailable),
        (Reply(error="ResourceNotFoundException"), TableMissing),
        (Reply(error="AccessDeniedException"), AccessError),
        (Reply(error="UnrecognizedClientException"), AccessError),
        (Reply(error="InvalidSignatureException"), AccessError),
        (Reply(error="ExpiredTokenException"), AccessError),
        (Reply(error="MissingAuthenticationTokenException"), AccessError),
        (Reply(error="SomethingNew"), Unavailable),
        (ReadTimeoutError(endpoint_url="http://x"), Unavailable),
        (ConnectTimeoutError(endpoint_url="http://x"), Unavailable),
        (ConnectionClosedError(endpoint_url="http://x"), Unavailable),
        (SSLError(endpoint_url="https://x", error="certificate verify failed"), Unavailable),
        (NoCredentialsError(), AccessError),
        (CredentialRetrievalError(provider="p", error_msg="m"), AccessError),
    ],
    ids=lambda value: getattr(value, "error", "") or type(value).__name__,
)
def test_a_write_that_fails(reply: Reply | Exception, error: type[KclHostError]) -> None:
    table, wire = make(reply)
    with pytest.raises(error) as caught:
        table.renew(LEASE, 1.0)
    assert type(caught.value) is error
    assert caught.value.__cause__ is not None
    assert "table orders-app" in str(caught.value)
    assert len(wire.requests) == 1, "a write is sent once"


def test_a_missing_permission_is_named() -> None:
    table, _ = make(Reply(error="AccessDeniedException", message="User u is not authorized"))
    with pytest.raises(AccessError) as caught:
        table.checkpoint(LEASE, AT_SHARD_END)
    assert str(caught.value) == (
        "dynamodb:UpdateItem on table orders-app: AccessDeniedException: User u is not authorized; "
        "grant dynamodb:UpdateItem on table orders-app to these credentials"
    )


def test_bad_credentials_say_what_to_check() -> None:
    table, _ = make(Reply(error="UnrecognizedClientException", message="The security token is invalid"))
    with pytest.raises(AccessError, match="check the credentials, their region, and the clock"):
        table.describe()


def test_a_refused_endpoint_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can get the port, connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        table = DynamoDbLeaseTable(make_client(endpoint_url=url), TableSettings(name="orders-app"))
        with pytest.raises(Unavailable) as caught:
            table.get("s1")
    assert f"could not connect to {url}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_no_table_name_is_a_mistake_of_the_configuration() -> None:
    table, _ = make(*[Reply(error="ValidationException", message="1 validation error: 'tableName'")] * 2)
    for request in (table.describe, table.create_table):
        with pytest.raises(ConfigurationError, match="1 validation error"):
            request()
    empty = DynamoDbLeaseTable(make_client(), TableSettings(name=""))
    with pytest.raises(ConfigurationError):
        empty.describe()


@pytest.mark.parametrize("code", ["ValidationException", "ResourceNotFoundException"])
def test_an_index_that_cannot_be_queried_yet(code: str) -> None:
    table, _ = make(Reply(error=code, message="Cannot read from backfilling global secondary index"))
    with pytest.raises(TableMissing):
        table.lease_keys_of("a")


def test_an_engine_that_returns_no_old_row_is_asked_for_it() -> None:
    table, wire = make(Reply(error="ConditionalCheckFailedException"), Reply({"Item": ROW}))
    outcome = table.renew(LEASE, None)
    assert outcome.row is not None and outcome.row.lease_counter == 5
    assert wire.requests[1] == (
        "GetItem",
        {"TableName": "orders-app", "Key": {"leaseKey": {"S": "s1"}}, "ConsistentRead": True},
    )


def test_a_refused_write_on_a_row_that_is_gone() -> None:
    table, _ = make(Reply(error="ConditionalCheckFailedException"), Reply({}))
    assert table.evict(LEASE) == WriteOutcome(applied=False)


def test_pages_are_read_to_the_end() -> None:
    last = {"leaseKey": {"S": "s1"}}
    table, wire = make(
        Reply({"Items": [ROW], "LastEvaluatedKey": last}),
        Reply({"Items": [], "LastEvaluatedKey": last}),
        Reply({"Items": [{**ROW, "leaseKey": {"S": "s2"}}]}),
        Reply({"Items": [last], "LastEvaluatedKey": last}),
        Reply({"Items": [{"leaseKey": {"S": "s2"}}]}),
        Reply({"Items": [{**last, "entityType": {"S": "LEADER"}}], "LastEvaluatedKey": last}),
        Reply({"Items": []}),
    )
    assert [lease.lease_key for lease in table.list_leases().leases] == ["s1", "s2"]
    assert table.lease_keys_of("a") == ["s1", "s2"]
    assert table.is_empty()
    assert [body.get("ExclusiveStartKey") for _, body in wire.requests] == [None, last, last, None, last, None, last]


@pytest.mark.parametrize(
    ("size_bytes", "segments"), [(0, 1), (2**30 // 5, 1), (2**30 // 5 + 1, 2), (2**30, 5), (2**40, 32)]
)
def test_large_tables_are_scanned_in_segments(size_bytes: int, segments: int) -> None:
    description = {"Table": {"TableStatus": "ACTIVE", "TableSizeBytes": size_bytes}}
    table, wire = make(Reply(description), *[Reply({"Items": [ROW]})] * segments)
    table.describe()
    assert len(table.list_leases().leases) == segments
    scans = [body for operation, body in wire.requests if operation == "Scan"]
    assert len(scans) == segments
    if segments > 1:
        assert sorted(scan["Segment"] for scan in scans) == list(range(segments))
        assert {scan["TotalSegments"] for scan in scans} == {segments}


# Waiting for a table that is being created


def make_coordinator(*replies: Reply, **settings: Any) -> tuple[DynamoDbCoordinatorTable, Wire, list[float]]:
    client = make_client()
    slept: list[float] = []
    table = DynamoDbCoordinatorTable(client, TableSettings(name="app-CoordinatorState", **settings), sleep=slept.append)
    return table, Wire(client, *replies), slept


def status(text: str) -> Reply:
    return Reply({"Table": {"TableStatus": text}})


@pytest.mark.parametrize(
    ("answer", "created"), [(Reply({"TableDescription": {}}), True), (Reply(error="ResourceInUseException"), False)]
)
def test_a_created_table_is_awaited_whoever_created_it(answer: Reply, created: bool) -> None:
    creating = [status("CREATING")] * 6
    table, wire, slept = make_coordinator(answer, *creating, status("ACTIVE"), point_in_time_recovery=False)
    assert table.create_table() is created
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert wire.requests[0] == (
        "CreateTable",
        {
            "TableName": "app-CoordinatorState",
            "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
            "DeletionProtectionEnabled": False,
        },
    )


def test_a_table_found_is_never_altered() -> None:
    table, wire, _ = make_coordinator(
        Reply(error="ResourceInUseException"), status("ACTIVE"), point_in_time_recovery=True
    )
    assert not table.create_table()
    assert [operation for operation, _ in wire.requests] == ["CreateTable", "DescribeTable"]


def test_a_table_that_never_comes() -> None:
    table, _, slept = make_coordinator(Reply({"TableDescription": {}}), *[status("CREATING")] * 700)
    with pytest.raises(TableMissing, match="app-CoordinatorState is CREATING after 600 s"):
        table.create_table()
    assert 600 <= sum(slept) < 601


def test_a_lost_answer_to_the_lock_stays_visible() -> None:
    table, wire, _ = make_coordinator()
    wire.replies = [ReadTimeoutError(endpoint_url="http://x")]  # type: ignore[list-item]
    lock = LeaderLock(owner_name="me", lease_duration_ms=1, record_version_number="v")
    with pytest.raises(RetryLater):
        table.acquire_lock(lock, None)
    assert len(wire.requests) == 1
