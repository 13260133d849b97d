"""Answers of Kinesis: bodies of GetRecords by both parsers, HTTP/1.1 answers, event-stream frames of fan-out."""

from __future__ import annotations

import base64
import json
import struct
from binascii import crc32
from functools import cache
from random import Random
from typing import Any, NamedTuple

import botocore.session
from botocore.model import ServiceModel

from kcl_host.aws.direct_calls import GET_RECORDS, DirectCall
from kcl_host.aws.faults import Resource
from kcl_host.aws.http1 import Answer as HttpAnswer
from kcl_host.aws.http1 import Origin, Unusual, _Connection, _NothingCame
from kcl_host.aws.kinesis import KinesisStream, install_fast_get_records
from kcl_host.aws.subscribe import Subscription
from kcl_host.errors import KclHostError
from kcl_host.model.records import RecordsPage
from kcl_host.multilang.messages import ProcessRecords, encode_line
from kcl_host.retrieval.answer import Answer, InvalidAnswer
from tests.fuzz.driver import Target
from tests.fuzz.mutation import disturbed, mutated, nasty_text

NUMBER = "49640000000000000000000000000000000000000000000000000001"


def _page(rng: Random, *, event: bool = False) -> dict[str, Any]:
    page: dict[str, Any] = {
        "Records": [
            {
                "SequenceNumber": NUMBER,
                "PartitionKey": rng.choice(("k", nasty_text(rng))),
                "Data": base64.b64encode(rng.randbytes(rng.randrange(20))).decode(),
                "ApproximateArrivalTimestamp": rng.choice((1_700_000_000.123, 1_700_000_000, 0, -1, 1e9)),
            }
            for _ in range(rng.randrange(4))
        ],
        "MillisBehindLatest": rng.choice((0, 5, 2**31)),
    }
    page["ContinuationSequenceNumber" if event else "NextShardIterator"] = rng.choice((NUMBER, "AAAA", None))
    if rng.random() < 0.3:
        whole = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
        page["ChildShards"] = [{"ShardId": "s-2", "ParentShards": ["s-1"], "HashKeyRange": whole}]
    return page


def _json(rng: Random, *, event: bool = False) -> bytes:
    page: Any = _page(rng, event=event)
    kind = rng.randrange(4)
    if kind:
        page = disturbed(rng, page)
    body = json.dumps(page, ensure_ascii=rng.random() < 0.7).encode("utf-8", "replace")
    return mutated(rng, body) if kind > 1 else body


@cache
def _fast_parser() -> tuple[Any, Any]:
    session = botocore.session.Session()
    install_fast_get_records(session)
    service = ServiceModel(session.get_service_data("kinesis"), "kinesis")
    return session.get_component("response_parser_factory").create_parser("json"), service.operation_model(
        "GetRecords"
    ).output_shape


@cache
def _direct_call() -> DirectCall:
    session = botocore.session.Session()
    install_fast_get_records(session)
    client = session.create_client("kinesis", "us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
    return DirectCall(client, session, GET_RECORDS)


class _Client:
    """A Kinesis that answers GetRecords with this body, through our parser and the stock one behind it."""

    body: bytes = b""
    answer: HttpAnswer | None = None
    """Of a connection of our own, status and head included."""

    def get_records(self, **request: Any) -> Any:
        if self.answer is not None:
            return _direct_call()._parsed(self.answer)
        parser, shape = _fast_parser()
        return parser.parse({"status_code": 200, "headers": {}, "body": self.body, "context": {}}, shape)


CLIENT: Any = _Client()
STREAM = KinesisStream(CLIENT, "orders")


def run_body(body: bytes) -> None:
    CLIENT.body = body
    try:
        page = STREAM.get_records("iterator", 10)
    except KclHostError:
        return
    _use(page)


def _use(page: RecordsPage) -> None:
    """Whatever is accepted can be handed over, checkpointed and sent to a child."""
    for record in page.records:
        assert record.position.sort_key is not None
    encode_line(ProcessRecords(records=page.records, millis_behind_latest=page.millis_behind_latest))
    try:
        answer = Answer(page, None)
    except InvalidAnswer:
        return
    users = answer.expand()
    answer.batch(users)


# HTTP/1.1


class Heard(NamedTuple):
    """What comes over a connection, in the pieces it comes in."""

    pieces: tuple[bytes, ...]


_HEADERS = (
    b"Connection: close", b"Connection: " + b"a" * 3000, b"Transfer-Encoding: chunked", b"content-length: 2", b"\r\n",
    b"X: " + b" " * 3000 + b"y", b"Content-Encoding: gzip", b":", b"a" * 17_000, b"x: \xff\0", b"a: b\r\n" * 120,
)  # fmt: skip


def make_answer(rng: Random) -> Heard:
    body = _json(rng) if rng.random() < 0.5 else b"{}"
    status = rng.choice((b"200 OK", b"400 Bad Request", b"500", b"503 x", b"199 x", b"2000 x", b"204 None"))
    length = rng.choice((len(body), len(body), len(body), len(body) + 1, 0, 10**9, 70 * 2**20, -1))
    if rng.random() < 0.001:
        length = 64 * 2**20
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % length, b"x-amzn-RequestId: 1"]
    while rng.random() < 0.4:
        lines.append(rng.choice(_HEADERS))
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    if rng.random() < 0.5:
        data = mutated(rng, data)
    size = rng.choice((len(data), len(data), 4096, 700)) or 1
    return Heard(tuple(data[start : start + size] for start in range(0, len(data), size)))


class _Wire:
    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self._pieces = list(pieces)

    def send(self, data: bytes) -> None:
        pass

    def receive_into(self, view: memoryview) -> int:
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        size = min(len(piece), len(view))
        view[:size] = piece[:size]
        if size < len(piece):
            self._pieces.insert(0, piece[size:])
        return size

    def has_more(self) -> bool:
        return bool(self._pieces)


def run_answer(heard: Heard) -> None:
    socket: Any = None
    try:
        answer, _ = _Connection(Origin("http", "localhost", 80), socket, _Wire(heard.pieces)).exchange(b"request")
    except (Unusual, OSError, _NothingCame):
        return
    assert 200 <= answer.status < 600 and len(answer.body) <= 64 * 2**20
    CLIENT.answer = answer
    run_body(b"")
    CLIENT.answer = None


# Event stream


class Frames(NamedTuple):
    pieces: tuple[bytes, ...]


def make_frames(rng: Random) -> Frames:
    data = b"".join(_frame(rng) for _ in range(rng.randrange(1, 4)))
    if rng.random() < 0.4:
        data = mutated(rng, data)
    size = rng.choice((len(data), len(data), 1000, 3)) or 1
    return Frames(tuple(data[start : start + size] for start in range(0, len(data), size)))


def _frame(rng: Random) -> bytes:
    kind = rng.choice(("event", "event", "event", "exception", "error", nasty_text(rng)))
    headers = {":message-type": kind, ":event-type": rng.choice(("SubscribeToShardEvent", "initial-response"))}
    if kind != "event":
        name = rng.choice((":exception-type", ":error-code"))
        headers[name] = rng.choice(("ResourceInUseException", nasty_text(rng)))
        headers[":error-message"] = nasty_text(rng)
    if rng.random() < 0.3:
        headers.pop(rng.choice(list(headers)))
    encoded = b"".join(_header(rng, name, value) for name, value in headers.items())
    payload = rng.choice((_json(rng, event=True), b"", json.dumps({"message": nasty_text(rng)}).encode()))
    if rng.random() < 0.2:
        encoded = mutated(rng, encoded)
    prelude = struct.pack("!II", len(encoded) + len(payload) + 16, len(encoded))
    prelude += struct.pack("!I", crc32(prelude))
    whole = prelude + encoded + payload
    return whole + struct.pack("!I", crc32(whole))


_HEADER_VALUES = (
    (7, None), (7, None), (7, None), (7, None), (0, b""), (2, b"\1"), (4, b"\1\2\3\4"), (8, b"\xff" * 8),
    (9, b"\0" * 16), (11, b""),
)  # fmt: skip


def _header(rng: Random, name: str, value: str) -> bytes:
    kind, content = rng.choice(_HEADER_VALUES)
    encoded = value.encode()[:30_000]
    raw_name = name.encode()
    body = struct.pack("!H", len(encoded)) + encoded if content is None else content
    return bytes([len(raw_name)]) + raw_name + bytes([kind]) + body


class _Body:
    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self._pieces = list(pieces)

    def read(self, timeout_s: float) -> bytes | None:
        return self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        pass


def run_frames(frames: Frames) -> None:
    subscription = Subscription(_Body(frames.pieces), Resource("kinesis", "orders"))
    try:
        while True:
            if page := subscription.next(1.0):
                _use(page)
    except KclHostError:
        pass


BODIES = Target("get-records", lambda rng: _json(rng), run_body)
ANSWERS = Target("http1-answers", make_answer, run_answer)
FRAMES = Target("fan-out-frames", make_frames, run_frames)
