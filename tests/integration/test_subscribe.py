"""SubscribeToShard between our client and the embedded Kinesis, over HTTP/2, HTTP/2 in TLS, and HTTP/1.1."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import hyperframe.frame
import pytest

from kcl_host.aws.clients import kinesis_client
from kcl_host.aws.http2 import WINDOW_BYTES, Http2Transport, NoAnswer, NotConnected
from kcl_host.aws.kinesis import KinesisStream
from kcl_host.aws.subscribe import Subscribers, Subscription
from kcl_host.config.settings import (
    ChildSettings,
    CredentialsProvider,
    RetrievalSettings,
    ServiceSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.errors import (
    AccessError,
    ConsumerGone,
    InvalidPosition,
    KclHostError,
    StreamNotFound,
    SubscriptionEnded,
    SubscriptionInUse,
    Throttled,
    Unavailable,
)
from kcl_host.local.certificate import Certificate
from kcl_host.local.faults import FaultKind
from kcl_host.local.http import LOOPBACK
from kcl_host.local.kinesis import KinesisEngine
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import InitialPosition, IteratorPosition

pytestmark = [pytest.mark.integration, pytest.mark.interop]  # .ci/run has it.

TRIM_HORIZON = IteratorPosition(type="TRIM_HORIZON")
LATEST = IteratorPosition(type="LATEST")
SHARD_0 = "shardId-000000000000"
EVENT = "SubscribeToShardEvent"


class Clock:
    """The service's clock, which the rules of one and five seconds go by."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.skipped_s


class Rig:
    def __init__(self, engine: KinesisEngine, clock: Clock, transport: str, **retrieval: Any) -> None:
        self.engine = engine
        self.clock = clock
        self.threads: list[threading.Thread] = []
        service = ServiceSettings(
            region="us-east-1",
            endpoint_url=engine.endpoint,
            credentials=(CredentialsProvider(name="EnvironmentVariableCredentialsProvider"),),
        )
        table = TableSettings(name="unused")
        retrieval = {"consumer_name": "readers", "registration_backoff_s": 0.01, **retrieval}
        settings = Settings(
            application_name="app",
            worker_id="worker",
            streams=(StreamSettings(name="numbers"),),
            initial_position=InitialPosition(kind="TRIM_HORIZON"),
            child=ChildSettings(command=("child",)),
            kinesis=service,
            dynamodb=service,
            cloudwatch=service,
            lease_table=table,
            coordinator_table=table,
            worker_metrics_table=table,
            retrieval=RetrievalSettings(
                mode="FANOUT",
                mode_reason="",
                fanout_transport="http1" if transport == "http1" else "http2",
                **retrieval,
            ),
        )
        client = kinesis_client(settings)
        self.subscribers = Subscribers(
            settings, client, start_thread=self._start_thread, jitter=lambda: 0.0, sleep=time.sleep
        )
        self.subscriber = self.subscribers.of(KinesisStream(client, "numbers"), "numbers", settings.retrieval)
        self._open: list[Subscription] = []

    def _start_thread(self, name: str, body: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=body, name=name))
        self.threads[-1].start()

    def subscribe(self, shard_id: str = SHARD_0, position: IteratorPosition = TRIM_HORIZON) -> Subscription:
        """Five seconds after any earlier call."""
        self.clock.skipped_s += 5.1
        subscription = self.subscriber.subscribe(shard_id, position)
        self._open.append(subscription)
        return subscription

    def fault(self, kind: FaultKind, operation: str = EVENT, **more: Any) -> None:
        self.engine.faults.add(operation, kind, times=1, **more)

    def put(self, *data: bytes) -> list[str]:
        return self.engine.put_records("numbers", [(str(n), one) for n, one in enumerate(data)])

    def close(self) -> None:
        for subscription in self._open:
            subscription.close()
        self.subscribers.close()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


@contextmanager
def serving(transport: str, monkeypatch: pytest.MonkeyPatch, folder: Path, shards: int = 1) -> Iterator[Rig]:
    clock = Clock()
    certificate = Certificate() if transport == "tls" else None
    if certificate is not None:
        (folder / "ca.pem").write_bytes(certificate.pem)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(folder / "ca.pem"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    engine = KinesisEngine(clock=clock, certificate=certificate)
    engine.subscriptions.empty_event_s = 0.1
    engine.start()
    try:
        engine.create_stream("numbers", shards)
        rig = Rig(engine, clock, transport)
        try:
            yield rig
        finally:
            rig.close()
    finally:
        engine.stop()


@pytest.fixture(params=["h2c", *(pytest.param(one, marks=pytest.mark.interop) for one in ("tls", "http1"))])
def any_rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    with serving(request.param, monkeypatch, tmp_path) as rig:
        yield rig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    with serving("h2c", monkeypatch, tmp_path, shards=3) as rig:
        yield rig


def pages(subscription: Subscription, enough: Callable[[list[RecordsPage]], bool]) -> list[RecordsPage]:
    """Events until there are enough of them."""
    got: list[RecordsPage] = []
    deadline_s = time.monotonic() + 20
    while not enough(got):
        assert time.monotonic() < deadline_s, f"only {len(got)} events"
        if (page := subscription.next(0.5)) is not None:
            got.append(page)
    return got


def has(records: int) -> Callable[[list[RecordsPage]], bool]:
    return lambda got: count(got) == records


def count(got: list[RecordsPage]) -> int:
    return sum(len(page.records) for page in got)


def failure_of(subscription: Subscription) -> KclHostError:
    with pytest.raises(KclHostError) as raised:
        pages(subscription, lambda got: len(got) > 1000)
    return raised.value


# Every transport


def test_records_arrive_and_the_last_event_names_the_children(any_rig: Rig) -> None:
    numbers = any_rig.put(*(b"%d" % n for n in range(3000)))
    subscription = any_rig.subscribe()
    before = pages(subscription, lambda got: count(got) == 3000)
    numbers += any_rig.put(b"x" * 1_000_000, b"y")
    any_rig.engine.split_shard("numbers", SHARD_0)
    after = pages(subscription, lambda got: bool(got) and got[-1].next_iterator is None)
    got = before + after
    assert [record.sequence_number for page in got for record in page.records] == numbers
    assert [child.parent_shard_ids for child in got[-1].child_shards] == [(SHARD_0,)] * 2
    assert all(page.next_iterator and not page.child_shards for page in got[:-1])
    assert sum(page.payload_bytes for page in after) == 1_000_001
    assert isinstance(failure_of(subscription), SubscriptionEnded)


def test_reading_goes_on_behind_a_continuation_number(any_rig: Rig) -> None:
    any_rig.put(b"1", b"2")
    first = pages(any_rig.subscribe(), lambda got: count(got) == 2 and not got[-1].records)
    any_rig.put(b"3")
    position = IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number=first[-1].next_iterator)
    got = pages(any_rig.subscribe(position=position), lambda got: count(got) == 1)
    assert [record.data for page in got for record in page.records] == ["Mw=="]


def test_a_subscription_is_closed_at_once_though_its_read_waits(any_rig: Rig) -> None:
    any_rig.engine.subscriptions.empty_event_s = 60
    subscription = any_rig.subscribe()
    pages(subscription, lambda got: len(got) == 1)
    closed_s: list[float] = []

    def close() -> None:
        closed_s.append(time.monotonic())
        subscription.close()

    timer = threading.Timer(0.2, close)
    timer.start()
    with pytest.raises(Unavailable):
        subscription.next(30)
    assert time.monotonic() - closed_s[0] < 0.5
    timer.join()


def test_what_the_service_refuses(any_rig: Rig) -> None:
    for kind, error in [
        ("throttle", Throttled),
        ("in_use", SubscriptionInUse),
        ("deny", AccessError),
        ("error", Unavailable),
        ("drop", Unavailable),
    ]:
        any_rig.fault(kind, "SubscribeToShard")
        with pytest.raises(error):
            any_rig.subscribe()
    with pytest.raises(InvalidPosition):
        any_rig.subscribe(position=IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number="12"))
    any_rig.subscribe()


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("drop", Unavailable, ""),
        ("reset", Unavailable, ""),
        ("corrupt", Unavailable, "damaged: ChecksumMismatch"),
        ("in_use", SubscriptionInUse, "ResourceInUseException"),
        ("not_found", StreamNotFound, "ResourceNotFoundException"),
        ("throttle", Throttled, "KMSThrottlingException"),
        ("deny", AccessError, "KMSAccessDeniedException"),
        ("error", Unavailable, "InternalFailureException"),
        ("end", SubscriptionEnded, ""),
    ],
)
def test_what_ends_a_subscription(any_rig: Rig, kind: FaultKind, error: type[KclHostError], says: str) -> None:
    subscription = any_rig.subscribe()
    pages(subscription, lambda got: len(got) == 2)
    any_rig.fault(kind)
    failure = failure_of(subscription)
    assert type(failure) is error and says in str(failure)


def test_five_hundred_empty_events_and_one_that_makes_no_sense(any_rig: Rig) -> None:
    subscription = any_rig.subscribe()
    any_rig.fault("empty")
    any_rig.fault("invalid")
    got = pages(subscription, lambda got: bool(got) and got[-1].next_iterator is None)
    assert 501 <= len(got) < 510


# The rules of the service


def test_five_seconds_and_one_call_a_second(rig: Rig) -> None:
    first = rig.subscribe()
    with pytest.raises(Throttled, match="LimitExceeded"):
        rig.subscriber.subscribe(SHARD_0, LATEST)
    rig.clock.skipped_s += 1.0
    with pytest.raises(SubscriptionInUse, match="ResourceInUse"):
        rig.subscriber.subscribe(SHARD_0, LATEST)
    rig.clock.skipped_s += 5.0
    second = rig.subscriber.subscribe(SHARD_0, LATEST)
    assert isinstance(failure_of(first), SubscriptionInUse)
    pages(second, lambda got: len(got) == 2)
    second.close()


def test_a_subscription_ends_when_its_time_is_over(rig: Rig) -> None:
    rig.engine.subscriptions.lifetime_s = 0.3
    assert isinstance(failure_of(rig.subscribe()), SubscriptionEnded)


def test_two_mebibytes_a_second_for_each_consumer_and_shard(rig: Rig) -> None:
    rig.engine.enforce_quotas()
    rig.put(*[b"x" * 1_000_000] * 15)
    shard, stored = max(rig.engine.stored_records("numbers").items(), key=lambda item: len(item[1]))
    assert len(stored) >= 5
    subscription, began_s = rig.subscribe(shard), time.monotonic()
    pages(subscription, lambda got: count(got) == 5)
    assert 0.8 < time.monotonic() - began_s < 3


# HTTP/2


def test_silence_in_the_middle_of_an_event(rig: Rig) -> None:
    subscription = rig.subscribe()
    pages(subscription, lambda got: len(got) == 1)
    rig.fault("half")
    while subscription.next(0.3) is not None:
        pass
    received = subscription.bytes_received
    assert subscription.next(0.3) is None and subscription.bytes_received == received


def test_one_connection_for_all_shards_within_the_servers_limit(rig: Rig) -> None:
    for number in range(3):
        rig.subscribe(f"shardId-{number:012d}")
    assert len(rig.threads) == 1


def test_more_connections_beyond_the_servers_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving("h2c", monkeypatch, tmp_path, shards=4) as rig:
        rig.engine.max_streams = 2
        subscriptions = [rig.subscribe(f"shardId-{number:012d}") for number in range(4)]
        assert len(rig.threads) == 2
        for subscription in subscriptions:
            pages(subscription, lambda got: len(got) == 2)
        subscriptions[0].close()
        rig.subscribe(SHARD_0)
        assert len(rig.threads) == 2, "there was room again"


def test_a_reset_ends_one_subscription_and_a_cut_all_of_the_connection(rig: Rig) -> None:
    one, other = rig.subscribe(), rig.subscribe("shardId-000000000001")
    rig.fault("reset", key=SHARD_0)
    assert isinstance(failure_of(one), Unavailable)
    pages(other, lambda got: len(got) == 2)
    third = rig.subscribe("shardId-000000000002")
    rig.fault("drop", key="shardId-000000000002")
    assert isinstance(failure_of(third), Unavailable) and isinstance(failure_of(other), Unavailable)
    pages(rig.subscribe(), lambda got: len(got) == 2)
    assert len(rig.threads) == 2


def test_after_goaway_subscriptions_go_on_and_new_ones_take_another_connection(rig: Rig) -> None:
    one = rig.subscribe()
    rig.fault("goaway", key=SHARD_0)
    rig.put(b"0", b"1", b"2", b"3")
    pages(one, lambda got: len(got) >= 3)
    other = rig.subscribe("shardId-000000000001")
    assert len(rig.threads) == 2
    pages(other, lambda got: len(got) == 2)
    pages(one, lambda got: len(got) == 2)


def test_the_embedded_kinesis_answers_a_client_that_has_sent_goaway(rig: Rig) -> None:
    """As AWS's SDK for JavaScript does right after SubscribeToShard: no further requests, but these answers."""
    rig.subscriber.prepare()
    (consumer,) = consumers(rig)
    host, port = rig.engine.endpoint.removeprefix("http://").split(":")
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    head = [(":method", "POST"), (":scheme", "http"), (":authority", host), (":path", "/")]
    client.send_headers(1, [*head, ("x-amz-target", "Kinesis_20131202.SubscribeToShard")])
    position = {"Type": "TRIM_HORIZON"}
    request = {"ConsumerARN": consumer["ConsumerARN"], "ShardId": SHARD_0, "StartingPosition": position}
    client.send_data(1, json.dumps(request).encode(), end_stream=True)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(client.data_to_send() + hyperframe.frame.GoAwayFrame(0).serialize())
        received = b""
        while received.count(b"MillisBehindLatest") < 3:
            piece = connection.recv(65536)
            assert piece, "the connection was closed"
            received += piece


def test_a_stream_that_is_reset_with_data_waiting_takes_no_other_with_it(rig: Rig) -> None:
    """Its window is opened and the stream is reset in one segment."""
    rig.subscriber.prepare()
    (consumer,) = consumers(rig)
    host, port = rig.engine.endpoint.removeprefix("http://").split(":")
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.local_settings = h2.settings.Settings(
        client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000}
    )
    client.initiate_connection()
    rig.put(*[b"x" * 5000] * 20)
    head = [(":method", "POST"), (":scheme", "http"), (":authority", host), (":path", "/")]
    for stream_id, shard in ((1, SHARD_0), (3, "shardId-000000000001")):
        client.send_headers(stream_id, [*head, ("x-amz-target", "Kinesis_20131202.SubscribeToShard")])
        position = {"Type": "TRIM_HORIZON"}
        request = {"ConsumerARN": consumer["ConsumerARN"], "ShardId": shard, "StartingPosition": position}
        client.send_data(stream_id, json.dumps(request).encode(), end_stream=True)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(client.data_to_send())
        received = {1: 0, 3: 0}

        def receive(stream_id: int, least: int) -> None:
            while received[stream_id] < least:
                data = connection.recv(65536)
                assert data, "the connection was closed"
                for event in client.receive_data(data):
                    if isinstance(event, h2.events.DataReceived):
                        received[event.stream_id] += len(event.data)

        receive(1, 1000)
        client.increment_flow_control_window(100_000, 1)
        client.reset_stream(1)
        client.increment_flow_control_window(20_000, 3)
        connection.sendall(client.data_to_send())
        receive(3, 5000)


def test_a_subscription_that_nobody_reads_holds_up_no_other(rig: Rig) -> None:
    rig.put(*[b"x" * 100_000] * 120)
    unread = rig.subscribe()
    for shard in ("shardId-000000000001", "shardId-000000000002"):
        stored = rig.engine.stored_records("numbers")[shard]
        assert len(stored) > 20
        got = pages(rig.subscribe(shard), has(len(stored)))
        assert [r.sequence_number for page in got for r in page.records] == [s.sequence_number for s in stored]
    unread.next(1.0)
    assert unread.bytes_received <= WINDOW_BYTES
    stored = rig.engine.stored_records("numbers")[SHARD_0]
    pages(unread, has(len(stored)))


def test_a_record_of_ten_mebibytes(rig: Rig) -> None:
    rig.engine.call("UpdateMaxRecordSize", StreamARN=arn(rig.engine), MaxRecordSizeInKiB=10240)
    size = 10 * 2**20 - 100
    rig.put(b"x" * size)
    shard = next(shard for shard, stored in rig.engine.stored_records("numbers").items() if stored)
    (page,) = [p for p in pages(rig.subscribe(shard), lambda got: count(got) == 1) if p.records]
    assert page.payload_bytes == size


def arn(engine: KinesisEngine) -> str:
    summary = engine.call("DescribeStreamSummary", StreamName="numbers")["StreamDescriptionSummary"]
    return str(summary["StreamARN"])


def start_thread(name: str, body: Callable[[], None]) -> None:
    threading.Thread(target=body, name=name).start()


@contextmanager
def transport_to(serve: Callable[[socket.socket], None], **more: Any) -> Iterator[tuple[Http2Transport, str]]:
    """A transport, and the address of a server that does as told with each connection."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        transport = Http2Transport(start_thread=start_thread, connect_timeout_s=1.0, **more)
        try:
            yield transport, f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            transport.close()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in connections:
                connection.close()


def test_a_server_without_http2() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with transport_to(serve) as (transport, url), pytest.raises(NotConnected, match="does not speak HTTP/2"):
        transport.request("POST", url, {}, b"", 1.0)


def test_a_connection_on_which_nothing_comes_is_dead() -> None:
    """Such as one that a firewall has forgotten: there is no error and no end, only silence."""

    def serve(connection: socket.socket) -> None:
        server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        server.initiate_connection()
        connection.sendall(server.data_to_send())

    with transport_to(serve, ping_after_s=0.1, dead_after_s=0.4) as (transport, url):
        began_s = time.monotonic()
        with pytest.raises(NoAnswer, match="dead"):
            transport.request("POST", url, {}, b"{}", 20.0)
        assert time.monotonic() - began_s < 5


def test_padding_of_the_last_frame_does_not_end_the_connection() -> None:
    """h2 opens no window for a stream that has ended; the other streams of the connection go on."""

    def serve(connection: socket.socket) -> None:
        server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        server.initiate_connection()
        connection.sendall(server.data_to_send())
        while data := connection.recv(65536):
            for event in server.receive_data(data):
                if isinstance(event, h2.events.StreamEnded):
                    server.send_headers(event.stream_id, [(":status", "200")])
                    server.send_data(event.stream_id, b"end", pad_length=10, end_stream=True)
            connection.sendall(server.data_to_send())

    with transport_to(serve) as (transport, url):
        for _ in range(3):
            answer = transport.request("POST", url, {}, b"{}", 5.0)
            assert (answer.status, answer.body.read(5.0), answer.body.read(5.0)) == (200, b"end", b"")


def test_an_unused_connection_is_given_up() -> None:
    def serve(connection: socket.socket) -> None:
        server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        server.initiate_connection()
        connection.sendall(server.data_to_send())

    with transport_to(serve, idle_s=0.2) as (transport, url):
        with pytest.raises(NoAnswer, match="no answer within"):
            transport.request("POST", url, {}, b"{}", 0.1)
        deadline_s = time.monotonic() + 10
        while any(thread.name == f"http2-{LOOPBACK}" for thread in threading.enumerate()):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_through_a_proxy(rig: Rig) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        asked.append(connection.recv(1000))
        host, port = rig.engine.endpoint.removeprefix("http://").split(":")
        onward = socket.create_connection((host, int(port)))
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for source, target in ((connection, onward), (onward, connection)):
            threading.Thread(target=relay, args=(source, target)).start()

    def relay(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        target.close()

    with transport_to(serve, proxy_of=lambda url: proxy) as (transport, address):
        proxy = address.replace("http://", "http://me:secret%21@")
        answer = transport.request(
            "POST", rig.engine.endpoint, {"X-Amz-Target": "Kinesis_20131202.ListStreams"}, b"{}", 5
        )
        assert answer.status == 200
    (request,) = asked
    assert request.startswith(b"CONNECT 127.0.0.1:") and b"Proxy-Authorization: Basic bWU6c2VjcmV0IQ==" in request


def test_a_certificate_that_nobody_trusts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving("tls", monkeypatch, tmp_path) as rig:
        transport = Http2Transport(start_thread=start_thread, connect_timeout_s=2.0)
        with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
            transport.request("POST", rig.engine.endpoint, {}, b"", 1.0)


def test_an_endpoint_that_is_away(rig: Rig) -> None:
    rig.engine.stop()
    with pytest.raises(Unavailable, match="could not connect"):
        rig.subscriber.prepare()


# The consumer


def test_a_consumer_is_registered_once_and_found_afterwards(rig: Rig) -> None:
    rig.engine.durations.register_s = 0.05
    rig.subscriber.prepare()
    rig.subscriber.prepare()
    (consumer,) = consumers(rig)
    assert (consumer["ConsumerName"], consumer["ConsumerStatus"]) == ("readers", "ACTIVE")
    another = Rig(rig.engine, rig.clock, "h2c")
    another.subscriber.prepare()
    assert consumers(rig) == [consumer] and consumer["ConsumerARN"] in repr(another.subscriber)


def test_limits_are_waited_out_and_others_may_be_faster(rig: Rig) -> None:
    for operation in ("DescribeStreamSummary", "DescribeStreamConsumer", "RegisterStreamConsumer"):
        rig.engine.faults.add(operation, "throttle", times=9)
    rig.subscriber.prepare()
    (consumer,) = consumers(rig)
    rig.engine.call("DeregisterStreamConsumer", ConsumerARN=consumer["ConsumerARN"])
    rig.engine.faults.add("DescribeStreamConsumer", "not_found", times=1)
    rig.engine.call("RegisterStreamConsumer", StreamARN=arn(rig.engine), ConsumerName="readers")
    Rig(rig.engine, rig.clock, "h2c").subscriber.prepare()
    assert len(consumers(rig)) == 1


def test_a_limit_that_lasts_and_a_consumer_that_does_not_become_active(rig: Rig) -> None:
    fault = rig.engine.faults.add("RegisterStreamConsumer", "throttle")
    with pytest.raises(Throttled):
        rig.subscriber.prepare()
    assert fault.hits == 10
    rig.engine.faults.clear()
    rig.engine.durations.register_s = 60
    with pytest.raises(Unavailable, match="not ACTIVE yet but CREATING"):
        rig.subscriber.prepare()


def test_a_consumer_that_was_deregistered_is_registered_anew(rig: Rig) -> None:
    subscription = rig.subscribe()
    (consumer,) = consumers(rig)
    rig.engine.call("DeregisterStreamConsumer", ConsumerARN=consumer["ConsumerARN"])
    assert isinstance(failure_of(subscription), StreamNotFound)
    rig.clock.skipped_s += 1
    with pytest.raises(Unavailable, match="registered anew"):
        rig.subscribe()
    rig.subscribe()


def test_a_configured_consumer_is_never_looked_for_and_never_replaced(rig: Rig) -> None:
    rig.subscriber.prepare()
    (consumer,) = consumers(rig)
    faults = [rig.engine.faults.add(name, "error") for name in ("DescribeStreamSummary", "DescribeStreamConsumer")]
    configured = Rig(rig.engine, rig.clock, "h2c", consumer_arn=consumer["ConsumerARN"], consumer_name=None)
    configured.subscribe()
    assert [fault.hits for fault in faults] == [0, 0]
    rig.engine.faults.clear()
    rig.engine.call("DeregisterStreamConsumer", ConsumerARN=consumer["ConsumerARN"])
    with pytest.raises(ConsumerGone, match=r"fanoutConfig\.consumerArn"):
        configured.subscribe()
    assert consumers(rig) == []
    configured.close()


def test_gone_is_only_what_is_gone(rig: Rig) -> None:
    rig.subscriber.prepare()
    rig.fault("not_found", "SubscribeToShard")
    with pytest.raises(Unavailable, match="there all the same"):
        rig.subscribe()
    with pytest.raises(StreamNotFound):
        rig.subscribe("shardId-000000000009")
    rig.engine.call("DeleteStream", StreamName="numbers", EnforceConsumerDeletion=True)
    with pytest.raises(StreamNotFound):
        rig.subscribe()


def consumers(rig: Rig) -> list[dict[str, Any]]:
    return list(rig.engine.call("ListStreamConsumers", StreamARN=arn(rig.engine))["Consumers"])
