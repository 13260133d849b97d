"""SubscribeToShard: the call, and its events as they arrive.

Endpoint, signature, credentials and errors are botocore's, which speaks only HTTP/1.1 (spec environment 2). So over
HTTP/2 the finished, signed request is taken from botocore by its event `before-send`, and what http2.py brings back is
given to it as the answer. By HTTP/1.1 (fanoutTransport = http1) botocore sends it itself; AWS does not support that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import urllib3.exceptions
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from botocore.utils import get_environ_proxies

from kcl_host.aws.clients import KINESIS_CONNECT_TIMEOUT_S, kinesis_client
from kcl_host.aws.faults import Resource, translated
from kcl_host.aws.http2 import Http2Stream, Http2Transport, NoAnswer, NotConnected, Response, StartThread
from kcl_host.aws.kinesis import DAMAGE, RAW_EVENTS, KinesisStream, WirePage, damage, page_of
from kcl_host.aws.stream_consumer import StreamConsumer
from kcl_host.config.settings import RetrievalSettings, Settings
from kcl_host.errors import (
    InvalidPosition,
    KclHostError,
    StreamNotFound,
    SubscriptionEnded,
    SubscriptionInUse,
    Unavailable,
)
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import Shard

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

EVENT: Final = "before-send.kinesis.SubscribeToShard"
MAX_FRAME_BYTES: Final = 25 * 2**20
"""botocore accepts 24 MiB of payload."""
HTTP1_READ_TIMEOUT_S: Final = 70.0
"""Longer than a subscription may be silent, which is noticed over HTTP/2 by the clock instead."""
_LENGTH_BYTES: Final = 4
_MEANT: Final[dict[str, type[KclHostError]]] = {
    "ResourceInUseException": SubscriptionInUse,
    "InvalidArgumentException": InvalidPosition,
    "ValidationException": InvalidPosition,
}
_decode: Final = msgspec.json.Decoder(WirePage).decode


class Body(Protocol):
    """Bytes of an answer as they arrive."""

    def read(self, timeout_s: float) -> bytes | None:
        """None: nothing within the time; empty: the end. Raises Unavailable."""

    def close(self) -> None:
        """Ends a read under way at once, from any thread."""


class Subscriber:
    """Subscribes to the shards of one stream through its registered consumer. Thread-safe."""

    def __init__(
        self,
        client: KinesisClient,
        stream_name: str,
        consumer: StreamConsumer,
        list_shards: Callable[[], list[Shard] | None],
    ) -> None:
        self._client = client
        self._list_shards = list_shards
        self._consumer = consumer
        self._resource = Resource("kinesis", stream_name)

    def __repr__(self) -> str:
        return f"<Subscriber {self._resource} by {self._consumer!r}>"

    def prepare(self, stream_arn: str | None = None) -> None:
        """Finds or registers the consumer; `stream_arn` and errors as of StreamConsumer.prepare."""
        self._consumer.prepare(stream_arn)

    def subscribe(self, shard_id: str, position: IteratorPosition) -> Subscription:
        """Returns once the service has accepted; what it refuses later comes from the subscription.

        Raises SubscriptionInUse, InvalidPosition; ConsumerGone; StreamNotFound only if the shard, or the stream, is
        really gone: the service says the same of a consumer that somebody deregistered.
        """
        arn = self._consumer.arn()
        starting: dict[str, Any] = {"Type": position.type}
        if position.sequence_number is not None:
            starting["SequenceNumber"] = position.sequence_number
        if position.timestamp_s is not None:
            starting["Timestamp"] = datetime.fromtimestamp(position.timestamp_s, UTC)
        try:
            with translated(self._resource, _MEANT):
                answer: Any = self._client.subscribe_to_shard(
                    ConsumerARN=arn,
                    ShardId=shard_id,
                    StartingPosition=starting,  # type: ignore[arg-type]
                )
        except StreamNotFound as error:
            if not self._consumer.is_there(arn):
                raise Unavailable(f"{error}; the consumer was registered anew") from error
            shards = self._list_shards()
            if shards is None or shard_id in {shard.shard_id for shard in shards}:
                raise Unavailable(f"{error}; consumer and shard are there all the same") from error
            raise
        raw = answer[RAW_EVENTS]
        return Subscription(raw.stream_of if isinstance(raw, _Http2Raw) else _Http1Body(raw), self._resource)


class Subscription:
    """The events of one subscription; `next` is for one thread, `close` for any."""

    def __init__(self, body: Body, resource: Resource) -> None:
        self._body = body
        self._resource = resource
        self._received = bytearray()
        self.bytes_received = 0
        """So far; it stands still when nothing arrives."""

    def next(self, timeout_s: float) -> RecordsPage | None:
        """The next event; waits for it. None: something else has come, or nothing within the time.

        Raises SubscriptionEnded at the regular end, StreamNotFound, SubscriptionInUse, Throttled, AccessError or
        Unavailable when the service, the network or `close` broke it off.
        """
        frame = self._take_frame()
        if frame is None:
            data = self._body.read(timeout_s)
            if data is None:
                return None
            if not data:
                raise Unavailable(f"{self._resource}: ended inside an event") if self._received else SubscriptionEnded()
            self._received += data
            self.bytes_received += len(data)
            frame = self._take_frame()
        return None if frame is None else self._page(frame)

    def close(self) -> None:
        """Ends the subscription, and a read under way. May be called again."""
        self._body.close()

    def _take_frame(self) -> bytes | None:
        """botocore's buffer copies everything it has for each piece that is added: it gets whole frames only."""
        if len(self._received) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._received[:_LENGTH_BYTES], "big")
        if not 0 < length <= MAX_FRAME_BYTES:
            raise Unavailable(f"{self._resource}: the event stream is damaged: a frame of {length} bytes")
        if len(self._received) < length:
            return None
        frame = bytes(self._received[:length])
        del self._received[:length]
        return frame

    def _page(self, frame: bytes) -> RecordsPage | None:
        buffer = EventStreamBuffer()
        try:
            buffer.add_data(frame)
            message = buffer.next()
            headers: Any = message.headers
            kind = headers.get(":message-type")
            if kind != "event":
                raise self._refusal(message)
            if headers.get(":event-type") != "SubscribeToShardEvent":
                return None  # initial-response, or something that does not concern us.
            return page_of(_decode(message.payload))
        except (*DAMAGE, ParserError, StopIteration, struct.error) as error:
            raise Unavailable(f"{self._resource}: the event stream is damaged: {damage(error)}") from error

    def _refusal(self, message: EventStreamMessage) -> KclHostError:
        headers: Any = message.headers
        code = headers.get(":exception-type") or headers.get(":error-code") or "InternalFailureException"
        said = headers.get(":error-message")
        if said is None:
            try:
                said = msgspec.json.decode(message.payload, type=dict[str, Any]).get("message")
            except msgspec.MsgspecError:
                said = None
        error = ClientError({"Error": {"Code": str(code), "Message": str(said or "")}}, "SubscribeToShard")
        try:
            with translated(self._resource, _MEANT):
                raise error
        except KclHostError as ours:
            return ours


def send_by_http2(client: KinesisClient, transport: Http2Transport, head_timeout_s: float) -> None:
    """From now on the client's SubscribeToShard goes through `transport`, everything else as before."""

    def send(request: AWSPreparedRequest, **_: Any) -> Any:
        url, body = request.url, request.body or b""
        headers = {name: value if isinstance(value, str) else value.decode() for name, value in request.headers.items()}
        try:
            answer = transport.request(
                request.method, url, headers, body if isinstance(body, bytes) else str(body).encode(), head_timeout_s
            )
        except NotConnected as error:
            raise EndpointConnectionError(endpoint_url=url, error=error) from error
        except NoAnswer as error:
            raise ConnectionClosedError(endpoint_url=url, request=request, response=None) from error
        headers_of_answer: Any = answer.headers
        return AWSResponse(url, answer.status, headers_of_answer, _Http2Raw(answer, head_timeout_s))

    client.meta.events.register(EVENT, send)


class Subscribers:
    """Makes the subscribers of the host's streams, by the configured transport; they share its connections.

    `client` is that for polling. `start_thread(name, body)` starts the threads of the HTTP/2 connections; `jitter` and
    `sleep` as of StreamConsumer. Makes no request.
    """

    def __init__(
        self,
        settings: Settings,
        client: KinesisClient,
        *,
        start_thread: StartThread,
        jitter: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> None:
        self._client = self._subscribing = client
        self._jitter = jitter
        self._sleep = sleep
        self.close: Callable[[], None] = lambda: None
        """Breaks every subscription off."""
        if settings.retrieval.fanout_transport == "http1":
            patient = msgspec.structs.replace(settings.retrieval, request_timeout_s=HTTP1_READ_TIMEOUT_S)
            self._subscribing = kinesis_client(msgspec.structs.replace(settings, retrieval=patient))
        else:
            transport = transport_for(Session(), start_thread, KINESIS_CONNECT_TIMEOUT_S)
            send_by_http2(client, transport, settings.retrieval.request_timeout_s)
            self.close = transport.close

    def of(self, stream: KinesisStream, name: str, retrieval: RetrievalSettings) -> Subscriber:
        """`name` is that of the stream, for messages."""
        consumer = StreamConsumer(
            self._client, name, stream.describe, retrieval, jitter=self._jitter, sleep=self._sleep
        )
        return Subscriber(self._subscribing, name, consumer, stream.list_shards)


def transport_for(session: Session, start_thread: StartThread, connect_timeout_s: float) -> Http2Transport:
    """A transport that trusts whom botocore trusts, and uses the proxies it would use."""
    ca_file = session.get_config_variable("ca_bundle") or get_cert_path(True)

    def proxy_of(url: str) -> str | None:
        proxies: dict[str, str] = get_environ_proxies(url)
        return proxies.get(url.partition(":")[0])

    return Http2Transport(
        start_thread=start_thread, connect_timeout_s=connect_timeout_s, ca_file=ca_file, proxy_of=proxy_of
    )


class _Http2Raw:
    """What botocore takes for a response of urllib3: it reads the body of a refusal, never that of an event stream."""

    def __init__(self, answer: Response, timeout_s: float) -> None:
        self.stream_of: Http2Stream = answer.body
        self._timeout_s = timeout_s

    def stream(self) -> Iterator[bytes]:
        while data := self.stream_of.read(self._timeout_s):
            yield data
        self.stream_of.close()


class _Http1Body:
    """A response of urllib3. A read waits for as long as the client's own time-out says."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._chunks: Iterator[bytes] = raw.stream(2**16)

    def read(self, timeout_s: float) -> bytes | None:
        try:
            return next(self._chunks, b"")
        except (urllib3.exceptions.HTTPError, OSError, AttributeError, ValueError) as error:
            # The last two come from inside http.client when the connection is closed underneath it.
            self._raw.close()
            raise Unavailable(f"the connection was lost: {error}") from error

    def close(self) -> None:
        """Closing would wait for a read under way; shutting the socket down underneath ends it."""
        try:
            self._raw.shutdown()
        except (AttributeError, OSError, RuntimeError, ValueError):
            pass  # An older urllib3, which waits for its time-out, or no connection any more.
