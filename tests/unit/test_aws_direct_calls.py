"""GetRecords past botocore's client: every read looks as if the client itself had made it."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.session
import hypothesis.strategies as st
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials, DeferredRefreshableCredentials, ReadOnlyCredentials
from botocore.exceptions import CredentialRetrievalError
from hypothesis import example, given, settings

from kcl_host.aws.clients import kinesis_client
from kcl_host.aws.credentials import session_for
from kcl_host.aws.direct_calls import GET_RECORDS, Signing, Target, call_directly, target_of
from kcl_host.aws.http1 import Connections, Origin
from kcl_host.aws.kinesis import KinesisStream, install_fast_get_records
from kcl_host.config.settings import (
    ChildSettings,
    CredentialsProvider,
    RetrievalSettings,
    ServiceSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.errors import AccessError, ExpiredIterator, KclHostError, StreamNotFound, Throttled, Unavailable
from kcl_host.local.certificate import Certificate
from kcl_host.local.kinesis import KinesisEngine
from kcl_host.model.sequence import InitialPosition, IteratorPosition
from tests.fakes.wire import Reply, Wire
from tests.unit.scripted_server import CONTENT_TYPE, PAGE, Close, Cut, Hang, Serve, Server, Step, Wait, answer, serving

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
OTHER_ARN = "arn:aws:kinesis:us-east-1:210987654321:stream/orders"


@pytest.fixture(autouse=True)
def no_proxies_and_bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda *steps, **options: stack.enter_context(serving(*steps, **options))


# The two ways


MODELS = botocore.session.Session().get_component("data_loader")
"""Shared, because it keeps what it has read: most of the time a client takes to make."""


def new_session(token: str | None = None, *, fast: bool = True) -> botocore.session.Session:
    session = botocore.session.Session()
    session.register_component("data_loader", MODELS)
    session.set_credentials("key", "secret", token)
    if fast:
        install_fast_get_records(session)
    return session


def anonymous() -> botocore.session.Session:
    session = session_for((CredentialsProvider(name="AnonymousCredentialsProvider"),), "us-east-1")
    install_fast_get_records(session)
    return session


def new_client(url: str | None, session: botocore.session.Session, **config: Any) -> Any:
    options = {"retries": {"total_max_attempts": 1}, "connect_timeout": 2, "read_timeout": 5, **config}
    return session.create_client("kinesis", region_name="us-east-1", endpoint_url=url, config=Config(**options))


def direct(url: str | None, session: botocore.session.Session | None = None, **config: Any) -> Any:
    session = session or new_session()
    client = new_client(url, session, **config)
    call_directly(client, session, GET_RECORDS)
    return client


def stock(url: str | None, session: botocore.session.Session | None = None, **config: Any) -> Any:
    return new_client(url, session or new_session(), **config)


def read(client: Any, arn: str | None = None) -> Any:
    return KinesisStream(client, "orders", arn).get_records("i", 10)


def failure(client: Any) -> tuple[type[Exception], str]:
    with pytest.raises(KclHostError) as raised:
        read(client)
    return type(raised.value), str(raised.value)


def both_failures(serve: Serve, step: Step, **config: Any) -> tuple[tuple[type[Exception], str], Server]:
    """How a read fails by botocore, after the assertion that the direct one, the second of its client, fails alike."""
    server = serve(answer(), answer(), step)
    ours, theirs = direct(server.url, **config), stock(server.url, **config)
    read(ours)
    read(theirs)
    expected = failure(theirs)
    assert failure(ours) == expected
    ours.close()
    return expected, server


def test_the_first_read_is_botocores_and_all_others_are_ours(serve: Serve) -> None:
    server = serve(answer())
    client = direct(server.url)
    pages = [read(client) for _ in range(4)]
    assert {page.millis_behind_latest for page in pages} == {7}
    assert [asked.by_botocore for asked in server.asked] == [True, False, False, False]
    first, *others = server.asked
    of_an_attempt = {"amz-sdk-request", "amz-sdk-invocation-id"}
    changing = {"x-amz-date", "authorization", "content-length"}  # we write no blanks
    for asked in others:
        assert asked.body == first.body == {"ShardIterator": "i", "Limit": 10}
        assert asked.headers.keys() == first.headers.keys() - of_an_attempt
        for name in asked.headers.keys() - changing:
            assert asked.headers[name] == first.headers[name]
        assert asked.path == "/"
    assert [asked.connection for asked in server.asked] == [1, 2, 2, 2], "connections are kept"
    assert repr(client.get_records) == "<DirectCall GetRecords 1, <Connections 1 idle>>"
    client.close()
    assert repr(client.get_records) == "<DirectCall GetRecords 1, <Connections 0 idle>>"
    read(client)
    assert repr(client.get_records).endswith("<Connections 0 idle>>"), "nothing is kept after the end"


@pytest.mark.parametrize("direct_calls", [True, False])
def test_the_client_of_the_host_reads_directly(
    serve: Serve, direct_calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = serve(answer())
    service, table = ServiceSettings(region="us-east-1", endpoint_url=server.url), TableSettings(name="app")
    client = kinesis_client(
        Settings(
            application_name="app",
            worker_id="w",
            streams=(StreamSettings(name="orders"),),
            initial_position=InitialPosition(kind="LATEST"),
            child=ChildSettings(command=("true",)),
            kinesis=service,
            dynamodb=service,
            cloudwatch=service,
            lease_table=table,
            coordinator_table=table,
            worker_metrics_table=table,
            retrieval=RetrievalSettings(mode="POLLING", mode_reason="test"),
        ),
        direct_calls=direct_calls,
    )
    read(client), read(client)
    assert [asked.by_botocore for asked in server.asked] == [True, not direct_calls]
    assert "kcl-host/" in server.asked[1].headers["user-agent"]
    client.close()


def test_every_arn_is_learned_on_its_own() -> None:
    client = direct(None)
    page = json.loads(PAGE)
    wire = Wire(client, Reply(page), Reply(page), Reply(page))
    urls: list[str] = []
    client.meta.events.register("before-send", lambda request, **_: urls.append(request.url))
    for arn in (ARN, OTHER_ARN, None):
        read(client, arn)
    assert urls == [
        "https://123456789012.data-kinesis.us-east-1.amazonaws.com/",
        "https://210987654321.data-kinesis.us-east-1.amazonaws.com/",
        "https://kinesis.us-east-1.amazonaws.com/",
    ]
    assert [body.get("StreamARN") for _, body in wire.requests] == [ARN, OTHER_ARN, None]
    assert repr(client.get_records).startswith("<DirectCall GetRecords 3,")


def test_an_arn_is_sent(serve: Serve) -> None:
    server = serve(answer())
    client = direct(server.url)
    for _ in range(2):
        client.get_records(ShardIterator="i", Limit=10, StreamARN=ARN)
    read(client)
    asked = [(asked.by_botocore, asked.body.get("StreamARN")) for asked in server.asked]
    assert asked == [(True, ARN), (False, ARN), (True, None)], "a URL may depend on the ARN"
    client.close()


# What stays with botocore


def test_an_endpoint_with_a_path_stays_with_botocore(serve: Serve) -> None:
    server = serve(answer())
    for session in (new_session(), anonymous()):
        client = direct(f"{server.url}/below", session)
        read(client), read(client)
    assert [(asked.by_botocore, asked.path) for asked in server.asked] == [(True, "/below")] * 4


def test_a_proxy_stays_with_botocore(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server, proxy = serve(answer()), serve(answer())
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    client = direct(server.url)
    read(client), read(client)
    assert [(asked.by_botocore, asked.path) for asked in proxy.asked] == [(True, f"{server.url}/")] * 2
    assert server.asked == []
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    client = direct(server.url)
    read(client), read(client)
    assert [asked.by_botocore for asked in server.asked] == [True, False]
    client.close()


@pytest.mark.parametrize("name", ["X-Tenant", "X-Amzn-Trace-Id"], ids=["signed", "unsigned"])
def test_headers_that_somebody_adds_stay_with_botocore(serve: Serve, name: str) -> None:
    server = serve(answer())
    client = direct(server.url)

    def add(request: Any, **_: Any) -> None:
        request.headers[name] = "7"

    client.meta.events.register("before-sign.kinesis.GetRecords", add)
    read(client), read(client)
    assert [(asked.by_botocore, asked.headers[name.lower()]) for asked in server.asked] == [(True, "7")] * 2


def test_credentials_of_the_client_alone_stay_with_botocore(serve: Serve) -> None:
    server = serve(answer())
    session = new_session()
    client: Any = session.create_client(
        "kinesis", "us-east-1", endpoint_url=server.url, aws_access_key_id="other", aws_secret_access_key="secret"
    )
    call_directly(client, session, GET_RECORDS)
    read(client), read(client)
    assert [asked.by_botocore for asked in server.asked] == [True, True]
    assert all("Credential=other/" in asked.headers["authorization"] for asked in server.asked)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE)


@pytest.mark.parametrize(
    "unusual",
    [
        CHUNKED,
        Cut(b"HTTP/1.1 200 OK\r\n\r\n" + PAGE),
        Cut(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE)),
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(),
        answer(PAGE, "200 OK", f"X-Long: {'x' * 20_000}"),
        answer(PAGE, "200 OK", f"Content-Length: {len(PAGE)}"),
        answer(PAGE, "200 OK", "Content-Encoding: identity"),
        answer() + b"\n",
    ],
    ids=["chunked", "no-length", "http-1.0", "continue", "long-head", "two-lengths", "encoded", "too-long"],
)
def test_an_answer_we_do_not_understand_is_botocores_and_so_are_all_others(serve: Serve, unusual: Step) -> None:
    server = serve(answer(), unusual, unusual, answer())
    client = direct(server.url)
    assert [read(client).millis_behind_latest for _ in range(3)] == [7, 7, 7]
    assert [asked.by_botocore for asked in server.asked] == [True, False, True, True]
    assert repr(client.get_records).startswith("<DirectCall GetRecords never,")
    client.close()


# Failures are those of the other way


def refusal(code: str, status: str = "400 Bad Request", message: str = '"message": "as scripted"') -> bytes:
    return answer(b'{"__type": "%s", %s}' % (code.encode(), message.encode()), status, "x-amzn-RequestId: r1")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (refusal("ProvisionedThroughputExceededException"), Throttled),
        (refusal("LimitExceededException"), Throttled),
        (refusal("KMSThrottlingException"), Throttled),
        (refusal("ExpiredIteratorException"), ExpiredIterator),
        (refusal("ResourceNotFoundException"), StreamNotFound),
        (refusal("com.amazonaws.kinesis#AccessDeniedException"), AccessError),
        (refusal("AccessDeniedException", message='"Message": "spelt differently"'), AccessError),
        (refusal("InvalidSignatureException", message='"message": "Signature not yet current"'), AccessError),
        (refusal("ExpiredTokenException"), AccessError),
        (refusal("RequestExpired"), Unavailable),
        (refusal("SomethingNew", "418 Teapot"), Unavailable),
        (refusal("InternalFailure", "500 Internal Server Error"), Unavailable),
        (answer(b"", "503 Service Unavailable"), Unavailable),
        (answer(b"<html>busy</html>", "503 Service Unavailable"), Unavailable),
        (answer(b"busy", "502 Bad Gateway", "Connection: close"), Unavailable),
        (answer(b"", "400 Bad Request"), Unavailable),
        (answer(b"", "301 Moved", "Location: http://127.0.0.1:1/"), Unavailable),
        (answer(b'{"Records": ['), Unavailable),
        (answer(b"<html>busy</html>"), Unavailable),
        (answer(b""), Unavailable),
        (Cut(answer()[:-5]), Unavailable),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_the_service_refuses(serve: Serve, step: Step, error: type[Exception]) -> None:
    (raised, message), server = both_failures(serve, step)
    assert raised is error, message
    assert [asked.by_botocore for asked in server.asked] == [True, True, True, False], "nothing is asked twice"


def test_an_answer_that_does_not_come(serve: Serve) -> None:
    (raised, message), server = both_failures(serve, Hang, read_timeout=0.3)
    assert raised is Unavailable
    assert "Read timeout" in message
    assert [asked.by_botocore for asked in server.asked] == [True, True, True, False]


def test_half_an_answer_and_then_silence(serve: Serve) -> None:
    (raised, message), _ = both_failures(serve, answer()[:-3], read_timeout=0.3)
    assert raised is Unavailable
    assert "Read timeout" in message


def test_half_a_head_is_no_answer(serve: Serve) -> None:
    """botocore takes it for a whole one without a body."""
    server = serve(answer(), Cut(b"HTTP/1.1 200 OK\r\nContent-Le"))
    client = direct(server.url)
    read(client)
    raised, message = failure(client)
    assert raised is Unavailable
    assert "Connection was closed" in message
    assert len(server.asked) == 2


def test_nobody_listens() -> None:
    with serving(answer()) as server:
        ours, theirs = direct(server.url), stock(server.url)
        read(ours), read(theirs)
    expected = failure(theirs)
    assert "Connection refused" in expected[1] and "check the endpoint" in expected[1]
    assert failure(ours) == expected


def test_a_certificate_that_is_not_trusted(serve: Serve) -> None:
    server = serve(answer(), context=Certificate().server_context())
    ours, theirs = direct(server.url), stock(server.url)
    expected = failure(theirs)
    assert "CERTIFICATE_VERIFY_FAILED" in expected[1]
    assert [failure(ours) for _ in range(2)] == [expected] * 2
    assert server.asked == []


def test_a_certificate_of_another_host(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = Certificate()
    (tmp_path / "ca.pem").write_bytes(certificate.pem)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    server = serve(answer(), context=certificate.server_context())
    url = server.url.replace("127.0.0.1", "localhost")
    ours, theirs = direct(url), stock(url)
    expected = failure(theirs)
    assert "localhost" in expected[1]
    assert [failure(ours) for _ in range(2)] == [expected] * 2
    assert server.asked == []


@pytest.mark.parametrize("fault", ["throttle", "error", "deny", "expired", "not_found", "drop", "hang"])
def test_faults_of_the_embedded_kinesis(fault: Any) -> None:
    engine = KinesisEngine()
    engine.start()
    try:
        engine.create_stream("orders", 1)
        iterators, streams = [], []
        for client in (direct(engine.endpoint, read_timeout=0.5), stock(engine.endpoint, read_timeout=0.5)):
            streams.append(KinesisStream(client, "orders"))
            iterators.append(streams[-1].get_shard_iterator("shardId-000000000000", IteratorPosition(type="LATEST")))
            streams[-1].get_records(iterators[-1], 10)
        engine.faults.add("GetRecords", fault)
        raised = []
        for stream, iterator in zip(streams, iterators, strict=True):
            with pytest.raises(KclHostError) as error:
                stream.get_records(iterator, 10)
            raised.append((type(error.value), str(error.value)))
        assert raised[0] == raised[1]
        engine.faults.clear()
        assert streams[0].get_records(iterators[0], 10).millis_behind_latest == 0
    finally:
        engine.stop()


# Connections


def test_a_kept_connection_that_the_server_closes_costs_nothing(serve: Serve) -> None:
    server = serve(answer(), answer(), Close, answer())
    client = direct(server.url)
    assert [read(client).millis_behind_latest for _ in range(3)] == [7, 7, 7]
    assert [(asked.connection, asked.by_botocore) for asked in server.asked] == [
        (1, True),
        (2, False),
        (2, False),
        (3, False),
    ]
    client.close()


def test_a_fresh_connection_that_the_server_closes_is_a_failure(serve: Serve) -> None:
    (raised, message), server = both_failures(serve, Close)
    assert raised is Unavailable
    assert "Connection was closed" in message
    assert [asked.by_botocore for asked in server.asked] == [True, True, True, False]


def test_a_connection_that_was_closed_while_it_was_idle_is_not_used(serve: Serve) -> None:
    server = serve(Cut(answer()), Cut(answer()), answer())
    client = direct(server.url)
    for number in (1, 2, 3, 3):
        assert read(client).millis_behind_latest == 7
        assert server.asked[-1].connection == number
        assert server.done.acquire(timeout=5)
    client.close()


@pytest.mark.parametrize("tls", [False, True])
def test_what_comes_unasked_after_an_answer_is_no_answer(
    serve: Serve, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate()
    (tmp_path / "ca.pem").write_bytes(certificate.pem)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    unasked = [answer(), Wait, answer(b"", "408 Request Timeout")]
    server = serve(answer(), unasked, answer(), context=certificate.server_context() if tls else None)
    client = direct(server.url)
    read(client)
    assert server.done.acquire(timeout=5)
    assert read(client).millis_behind_latest == 7
    server.go_on.set()
    assert server.done.acquire(timeout=5)
    assert read(client).millis_behind_latest == 7
    assert [(asked.connection, asked.by_botocore) for asked in server.asked] == [(1, True), (2, False), (3, False)]
    client.close()


def test_more_than_an_answer_within_one_record_of_tls(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate()
    (tmp_path / "ca.pem").write_bytes(certificate.pem)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    body = PAGE + b" " * 40_000
    unasked = answer(body) + answer(b"", "408 Request Timeout")
    server = serve(answer(), unasked, answer(), context=certificate.server_context())
    client = direct(server.url)
    assert [read(client).millis_behind_latest for _ in range(3)] == [7] * 3
    assert [(asked.connection, asked.by_botocore) for asked in server.asked] == [(1, True), (2, False), (3, False)]
    client.close()


def test_the_time_out_of_connecting_is_not_that_of_reading(serve: Serve) -> None:
    server = serve([Wait, answer()])
    connections = Connections(connect_timeout_s=0.2, read_timeout_s=10, keepalive=False, ca_bundle=None, limit=2)
    later = threading.Timer(0.5, server.go_on.set)
    later.start()
    origin = Origin("http", "127.0.0.1", server.server_address[1])
    message = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    assert connections.exchange(origin, message, "url", repeatable=True).body == PAGE
    connections.close()
    later.join()


def test_a_second_try_is_the_last(serve: Serve) -> None:
    server = serve(answer(), answer(), Close)
    client = direct(server.url)
    read(client), read(client)
    assert failure(client)[0] is Unavailable
    assert [asked.connection for asked in server.asked] == [1, 2, 2, 3]


def test_an_answer_that_was_begun_is_not_asked_for_again(serve: Serve) -> None:
    _, server = both_failures(serve, Cut(b"H"))
    assert [asked.by_botocore for asked in server.asked] == [True, True, True, False]


def test_a_connection_that_says_close_is_not_used_again(serve: Serve) -> None:
    server = serve(answer(PAGE, "200 OK", "Connection: close"))
    client = direct(server.url)
    for _ in range(3):
        read(client)
    assert [asked.connection for asked in server.asked][1:] == [2, 3]
    assert repr(client.get_records) == "<DirectCall GetRecords 1, <Connections 0 idle>>"


def test_the_idle_connections_are_bounded(serve: Serve) -> None:
    server = serve(answer())
    connections = Connections(connect_timeout_s=2, read_timeout_s=5, keepalive=True, ca_bundle=None, limit=2)
    origin = Origin("http", "127.0.0.1", server.server_address[1])
    message = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    gate = threading.Barrier(5)

    def work() -> None:
        for _ in range(20):
            gate.wait(5)
            assert connections.exchange(origin, message, server.url, repeatable=True).body == PAGE

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 100
    assert repr(connections) == "<Connections 2 idle>"
    connections.close()
    assert repr(connections) == "<Connections 0 idle>"


@pytest.mark.parametrize("trusted_by", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "config"])
def test_large_pages_over_tls(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted_by: str) -> None:
    certificate, bundle = Certificate(), tmp_path / "ca.pem"
    bundle.write_bytes(certificate.pem)
    if trusted_by == "config":
        (tmp_path / "none").write_text(f"[default]\nca_bundle = {bundle}\n")
    else:
        monkeypatch.setenv(trusted_by, str(bundle))
    records = [wire_record(bytes([n % 256]) * 1500, f"k{n}", 1_700_000_000 + n / 1000) for n in range(400)]
    body = json.dumps({"Records": records, "NextShardIterator": "n", "MillisBehindLatest": 1}).encode()
    server = serve(answer(body), context=certificate.server_context())
    ours, theirs = direct(server.url), stock(server.url, new_session(fast=False))
    expected = read(theirs)
    assert len(expected.records) == 400
    for _ in range(3):
        assert read(ours) == expected
    assert [asked.by_botocore for asked in server.asked] == [True, True, False, False]
    assert len({asked.connection for asked in server.asked}) == 3
    ours.close()


# Credentials


def test_without_credentials_nothing_is_signed(serve: Serve) -> None:
    server = serve(answer())
    client = direct(server.url, anonymous())
    read(client), read(client)
    assert [("authorization" in asked.headers, asked.by_botocore) for asked in server.asked] == [
        (False, True),
        (False, False),
    ]
    client.close()


def test_credentials_are_asked_for_at_every_read(serve: Serve) -> None:
    server = serve(answer())
    session = new_session(token="t1")
    client = direct(server.url, session)
    read(client), read(client)
    credentials = session.get_credentials()
    assert isinstance(credentials, Credentials)
    credentials.access_key, credentials.secret_key, credentials.token = "key2", "secret2", "t2"
    read(client)
    sent = [(asked.headers["x-amz-security-token"], asked.headers["authorization"]) for asked in server.asked]
    assert [token for token, _ in sent] == ["t1", "t1", "t2"]
    assert [signed.partition("Credential=")[2].partition("/")[0] for _, signed in sent] == ["key", "key", "key2"]
    assert [asked.by_botocore for asked in server.asked] == [True, False, False]
    client.close()


def test_credentials_are_renewed_before_they_expire(serve: Serve) -> None:
    now, renewed = [datetime(2026, 1, 2, tzinfo=UTC)], 0

    def renew() -> dict[str, str]:
        nonlocal renewed
        renewed += 1
        if renewed > 2:
            raise CredentialRetrievalError(provider="test", error_msg="gone")
        expiry = (now[0] + timedelta(hours=1)).isoformat()
        return {"access_key": f"key{renewed}", "secret_key": "s", "token": f"t{renewed}", "expiry_time": expiry}

    credentials = DeferredRefreshableCredentials(renew, "test", time_fetcher=lambda: now[0])
    session = botocore.session.Session()
    install_fast_get_records(session)
    session.register_component("credential_provider", SimpleNamespace(load_credentials=lambda: credentials))
    server = serve(answer())
    client = direct(server.url, session)
    for _ in range(2):
        read(client), read(client)
        now[0] += timedelta(hours=1)
    assert [asked.headers["x-amz-security-token"] for asked in server.asked] == ["t1", "t1", "t2", "t2"]
    assert [asked.by_botocore for asked in server.asked] == [True, False, False, False]
    assert failure(client)[0] is AccessError
    assert len(server.asked) == 4
    client.close()


words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
URLS = [
    "https://kinesis.us-east-1.amazonaws.com/",
    "https://Kinesis.local:443",
    "http://localhost:4567/",
    "http://localhost:443/",
    "http://[::1]:80/",
    "http://[::1]:8080/",
]


@given(
    credentials=st.builds(ReadOnlyCredentials, words, words, st.none() | words),
    iterator=st.text(max_size=40),
    at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),
    region=st.sampled_from(["us-east-1", "cn-north-1"]),
    url=st.sampled_from(URLS),
)
@example(ReadOnlyCredentials("A/20260102/x/y/aws4_request", "s/+", "t/+=="), "i", datetime(2026, 1, 2, 3), "x", URLS[0])
def test_signatures_are_botocores(
    credentials: ReadOnlyCredentials, iterator: str, at: datetime, region: str, url: str
) -> None:
    stamp, signing = at.strftime("%Y%m%dT%H%M%SZ"), Signing()
    for body in (json.dumps({"ShardIterator": iterator, "Limit": 1}).encode(), b"{}"):
        headers = {"Content-Type": CONTENT_TYPE, "X-Amz-Target": "Kinesis_20131202.GetRecords", "X-Amz-Date": stamp}
        if credentials.token:
            headers["X-Amz-Security-Token"] = credentials.token
        request: Any = AWSRequest("POST", url, headers, body)
        request.context["timestamp"] = stamp
        signer = SigV4Auth(credentials, "kinesis", region)
        signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        signed = signer.signed_headers(signer.headers_to_sign(request))
        expected = f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={signed}, Signature={signature}"
        request.headers["Authorization"] = expected
        target = target_of(request.prepare(), GET_RECORDS)
        assert target is not None
        assert (target.region, target.service) == (region, "kinesis")
        assert signing.authorization(target, credentials, stamp, body) == expected


def test_a_signing_key_is_kept_for_its_day_and_secret_only() -> None:
    target, kept = Target(GET_RECORDS, "u", Origin("http", "h", 1), "h", "r", "kinesis", "a"), Signing()
    for stamp, secret in (("20260101T235959Z", "s"), ("20260102T000000Z", "s"), ("20260102T000000Z", "t")):
        credentials = ReadOnlyCredentials("key", secret, None)
        fresh = Signing().authorization(target, credentials, stamp, b"{}")
        assert kept.authorization(target, credentials, stamp, b"{}") == fresh


# Pages


records = st.fixed_dictionaries(
    {
        "SequenceNumber": st.from_regex(r"[1-9][0-9]{0,55}", fullmatch=True),
        "PartitionKey": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "Data": st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode()),
    },
    optional={"ApproximateArrivalTimestamp": st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)},
)
child_shards = st.fixed_dictionaries(
    {
        "ShardId": words,
        "ParentShards": st.lists(words, max_size=2),
        "HashKeyRange": st.just({"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}),
    }
)
pages = st.fixed_dictionaries(
    {"Records": st.lists(records, max_size=6)},
    optional={
        "NextShardIterator": words,
        "MillisBehindLatest": st.integers(0, 2**40),
        "ChildShards": st.lists(child_shards, max_size=2),
        "SomethingNew": st.just({"a": [1]}),
    },
)


def test_pages_are_those_of_the_stock_parser_however_they_arrive() -> None:
    with serving(answer()) as server:
        ours, theirs = direct(server.url), stock(server.url, new_session(fast=False))
        read(ours)

        @settings(deadline=None)
        @given(page=pages, ascii=st.booleans(), cuts=st.lists(st.integers(0, 400), max_size=3))
        def check(page: Any, ascii: bool, cuts: list[int]) -> None:
            whole = answer(json.dumps(page, ensure_ascii=ascii).encode())
            edges = [0, *sorted(cuts), len(whole)]
            server.asked.clear()
            server.steps = [[whole[a:b] for a, b in itertools.pairwise(edges)]]
            assert read(ours) == read(theirs)
            assert [asked.by_botocore for asked in server.asked] == [False, True]

        check()
        ours.close()


def wire_record(data: bytes, key: str, arrival_s: float) -> dict[str, Any]:
    return {
        "SequenceNumber": "49640000000000000000000000000000000000000000000000000001",
        "PartitionKey": key,
        "Data": base64.b64encode(data).decode(),
        "ApproximateArrivalTimestamp": arrival_s,
    }
