"""UpdateItem past botocore's client: every write looks as if the client itself had made it, and is sent once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials

from kcl_host.aws.clients import dynamodb_client
from kcl_host.aws.direct_calls import UPDATE_ITEM, Signing, call_directly, target_of
from kcl_host.aws.items import lease_item
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.aws.request_count import count_dynamodb
from kcl_host.config.settings import ServiceSettings, TableSettings
from kcl_host.errors import AccessError, KclHostError, TableMissing, Throttled, Unavailable
from kcl_host.model.sequence import ExtendedSequenceNumber
from tests.unit.coordination_rig import OTHER, lease, settings_of
from tests.unit.scripted_server import Close, Hang, Serve, Step, answer, serving

CONTENT_TYPE = "application/x-amz-json-1.0"
DONE = b"{}"
MODELS = botocore.session.Session().get_component("data_loader")


@pytest.fixture(autouse=True)
def no_proxies_and_bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda *steps: stack.enter_context(serving(*steps))


def client_of(url: str, *, direct: bool = True, **config: Any) -> Any:
    session = botocore.session.Session()
    session.register_component("data_loader", MODELS)
    session.set_credentials("key", "secret", "token")
    options = {"retries": {"total_max_attempts": 1}, "connect_timeout": 2, "read_timeout": 5, **config}
    client = session.create_client("dynamodb", region_name="us-east-1", endpoint_url=url, config=Config(**options))
    if direct:
        call_directly(client, session, UPDATE_ITEM)
    return client


def table_of(client: Any) -> DynamoDbLeaseTable:
    return DynamoDbLeaseTable(client, TableSettings(name="app"))


def test_the_first_write_is_botocores_and_all_others_are_ours(serve: Serve) -> None:
    server = serve(answer(DONE))
    client = client_of(server.url)
    table = table_of(client)
    for _ in range(3):
        assert table.renew(lease(), 1.5).applied
    assert table.prepare_checkpoint(lease(), ExtendedSequenceNumber("5"), b"\x00\xffstate").applied
    assert table.assign(lease(), OTHER).applied
    assert [asked.by_botocore for asked in server.asked] == [True, False, False, False, False]
    first, *others = server.asked
    of_an_attempt = {"amz-sdk-request", "amz-sdk-invocation-id"}
    for asked in others:
        assert asked.headers.keys() == first.headers.keys() - of_an_attempt
        for name in asked.headers.keys() - {"x-amz-date", "authorization", "content-length"}:
            assert asked.headers[name] == first.headers[name]
    assert others[0].body == others[1].body == first.body
    assert [asked.connection for asked in others] == [2, 2, 2, 2], "connections are kept"
    client.close()


@pytest.mark.parametrize("direct", [True, False])
def test_the_client_of_the_host_writes_directly_and_is_counted(
    serve: Serve, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = serve(answer(b'{"ConsumedCapacity": {"TableName": "app", "CapacityUnits": 1.0}}'))
    service = ServiceSettings(region="us-east-1", endpoint_url=server.url)
    client = dynamodb_client(settings_of("w", dynamodb=service), direct_calls=direct)
    counted: list[tuple[str, str, float, float]] = []
    count_dynamodb(client, lambda *request: counted.append(request))
    for _ in range(2):
        assert table_of(client).renew(lease(), None).applied
    assert [asked.by_botocore for asked in server.asked] == [True, not direct]
    assert counted == [("UpdateItem", "app", 0.0, 1.0)] * 2
    client.close()


def test_what_is_sent_is_what_botocore_would_send(serve: Serve) -> None:
    server = serve(answer(DONE))
    for direct in (True, False):
        client = client_of(server.url, direct=direct)
        table = table_of(client)
        if direct:
            table.renew(lease(), None)
        held = lease("shardId-é", hash_key_range=None, child_shard_ids=frozenset({"b", "a"}))
        table.renew(held, 0.25)
        table.checkpoint(held, ExtendedSequenceNumber("7", 3))
        table.prepare_checkpoint(held, ExtendedSequenceNumber("5"), bytes(range(256)))
        table.evict(lease(owner=None))
        client.close()
    assert [asked.by_botocore for asked in server.asked] == [True, *[False] * 4, *[True] * 4]
    assert [asked.body for asked in server.asked[1:5]] == [asked.body for asked in server.asked[5:]]


def test_another_table_is_learned_on_its_own(serve: Serve) -> None:
    server = serve(answer(DONE))
    client = client_of(server.url)
    for name in ("app", "app", "other", "other"):
        DynamoDbLeaseTable(client, TableSettings(name=name)).renew(lease(), None)
    assert [asked.by_botocore for asked in server.asked] == [True, False, True, False]
    client.close()


@pytest.mark.parametrize("token", [None, "token"])
def test_signatures_are_botocores(token: str | None) -> None:
    credentials, body = ReadOnlyCredentials("key", "secret", token), b'{"TableName": "app"}'
    headers = {"Content-Type": CONTENT_TYPE, "X-Amz-Target": UPDATE_ITEM.target, "X-Amz-Date": "20260102T030405Z"}
    if token:
        headers["X-Amz-Security-Token"] = token
    request: Any = AWSRequest("POST", "https://123456789012.ddb.us-east-1.amazonaws.com/", headers, body)
    request.context["timestamp"] = "20260102T030405Z"
    signer = SigV4Auth(credentials, "dynamodb", "us-east-1")
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    signed = signer.signed_headers(signer.headers_to_sign(request))
    expected = f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={signed}, Signature={signature}"
    request.headers["Authorization"] = expected
    target = target_of(request.prepare(), UPDATE_ITEM)
    assert target is not None
    assert Signing().authorization(target, credentials, "20260102T030405Z", body) == expected


def refusal(code: str, status: str = "400 Bad Request", **fields: Any) -> bytes:
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "as scripted", **fields}
    return answer(json.dumps(body).encode(), status, "x-amzn-RequestId: r1")


def test_a_refused_condition_shows_the_row(serve: Serve) -> None:
    row = lease(owner=OTHER, counter=9)
    step = refusal("ConditionalCheckFailedException", Item=lease_item(row))
    server = serve(answer(DONE), step)
    client = client_of(server.url)
    table = table_of(client)
    table.renew(lease(), None)
    outcome = table.renew(lease(), None)
    assert (outcome.applied, outcome.row) == (False, row)
    assert [asked.by_botocore for asked in server.asked] == [True, False], "the row is not asked for"
    client.close()


def test_a_row_is_returned(serve: Serve) -> None:
    row = lease(owner=OTHER, counter=4)
    server = serve(answer(DONE), answer(json.dumps({"Attributes": lease_item(row)}).encode()))
    client = client_of(server.url)
    table = table_of(client)
    table.renew(lease(), None)
    assert table.assign(lease(), OTHER).row == row
    client.close()


def failure(table: DynamoDbLeaseTable) -> tuple[type[Exception], str]:
    with pytest.raises(KclHostError) as raised:
        table.renew(lease(), None)
    return type(raised.value), str(raised.value)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (refusal("ProvisionedThroughputExceededException"), Throttled),
        (refusal("ThrottlingException"), Throttled),
        (refusal("ResourceNotFoundException"), TableMissing),
        (refusal("AccessDeniedException"), AccessError),
        (refusal("InternalServerError", "500 Internal Server Error"), Unavailable),
        (answer(b"busy", "503 Service Unavailable"), Unavailable),
        (Hang, Unavailable),
        (Close, Unavailable),
    ],
)
def test_failures_are_those_of_the_other_way(serve: Serve, step: Step, error: type[Exception]) -> None:
    failures = []
    for direct in (True, False):
        server = serve(answer(DONE), step)
        client = client_of(server.url, direct=direct, read_timeout=0.5)
        table = table_of(client)
        table.renew(lease(), None)
        raised, message = failure(table)
        failures.append((raised, message.replace(server.url, "")))
        assert len(server.asked) == 2, "nothing is asked twice"
        assert server.asked[-1].by_botocore is not direct
        client.close()
    assert failures[0] == failures[1]
    assert failures[0][0] is error


def test_a_write_is_not_sent_again_when_a_kept_connection_breaks(serve: Serve) -> None:
    """It may have taken effect: a second one would be refused by the counter that it moved itself."""
    server = serve(answer(DONE), answer(DONE), Close, answer(DONE))
    client = client_of(server.url)
    table = table_of(client)
    table.renew(lease(), None)
    table.renew(lease(), None)
    assert failure(table)[0] is Unavailable
    assert [(asked.connection, asked.by_botocore) for asked in server.asked] == [(1, True), (2, False), (2, False)]
    assert table.renew(lease(), None).applied
    assert (server.asked[-1].connection, server.asked[-1].by_botocore) == (3, False)
    client.close()


def test_a_write_whose_answer_is_not_understood_is_in_doubt_and_all_others_are_botocores(serve: Serve) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    server = serve(answer(DONE), chunked)
    client = client_of(server.url)
    table = table_of(client)
    table.renew(lease(), None)
    assert failure(table)[0] is Unavailable
    assert len(server.asked) == 2
    assert table.renew(lease(), None).applied
    assert [asked.by_botocore for asked in server.asked] == [True, False, True]
    client.close()


def test_text_that_utf_8_cannot_carry_is_left_to_botocore(serve: Serve) -> None:
    server = serve(answer(DONE))
    client = client_of(server.url)
    table = table_of(client)
    table.assign(lease(), OTHER)
    table.assign(lease(), "host-\udcff")
    assert [asked.by_botocore for asked in server.asked] == [True, True]
    client.close()
