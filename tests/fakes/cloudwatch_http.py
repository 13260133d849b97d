"""A CloudWatch on 127.0.0.1 that keeps what PutMetricData brings, in each protocol that SDKs speak, or fails as told.

Java's SDK speaks the query protocol up to 2.33 and Smithy's RPC with CBOR in 2.41, botocore JSON; the body may be
compressed. Nothing but PutMetricData is served.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import parse_qsl

from botocore.parsers import RpcV2CBORParser

Behaviour = Literal["well", "error", "throttle", "deny", "hang"]
_ERRORS = {
    "error": (500, "InternalServiceFault"),
    "throttle": (400, "ThrottlingException"),
    "deny": (403, "AccessDeniedException"),
}


class MetricPoint(NamedTuple):
    """A statistic set as it was sent. `other` are keys of the datum that kcl-host never sends, such as Timestamp."""

    namespace: str
    name: str
    unit: str
    dimensions: tuple[tuple[str, str], ...]
    minimum: float
    maximum: float
    sum: float
    count: float
    other: frozenset[str] = frozenset()

    @property
    def operation(self) -> str:
        return dict(self.dimensions).get("Operation", "")


class CloudWatchServer:
    """A context. `behaviour` may be changed at any time; one that hangs is let go by `close`."""

    def __init__(self, port: int = 0) -> None:
        self.behaviour: Behaviour = "well"
        self.points: list[MetricPoint] = []
        """Of the requests that were answered well."""
        self.requests: Counter[str] = Counter()
        """By the behaviour that answered them."""
        self.protocols: set[str] = set()
        self.largest_request = 0
        """Data in it."""
        self.failures: list[str] = []
        """Requests that this fake could not read."""
        self._released = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                owner._serve(self, body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                error = sys.exception()
                if not isinstance(error, OSError):  # A client may go away while it is made to wait.
                    owner.failures.append(repr(error))

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="cloudwatch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def of(self, namespace: str) -> list[MetricPoint]:
        return [point for point in list(self.points) if point.namespace == namespace]

    def _serve(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        behaviour, content_type = self.behaviour, handler.headers["Content-Type"]
        protocol = next((name for name in ("cbor", "json") if name in content_type), "query")
        self.requests[behaviour] += 1
        self.protocols.add(protocol)
        if behaviour == "hang":
            self._released.wait()
            handler.close_connection = True
            return
        if behaviour != "well":
            status, code = _ERRORS[behaviour]
            answer = _error(protocol, code)
        else:
            points = list(_READERS[protocol](body))
            self.largest_request = max(self.largest_request, len(points))
            self.points += points
            status, answer = 200, _DONE[protocol]
        handler.send_response(status)
        handler.send_header("Content-Type", content_type if protocol != "query" else "text/xml")
        if protocol == "cbor":
            handler.send_header("smithy-protocol", "rpc-v2-cbor")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)


def _from_cbor(body: bytes) -> Iterable[MetricPoint]:
    parser: Any = RpcV2CBORParser()
    return _from_document(parser.parse_data_item(parser.get_peekable_stream_from_bytes(body)))


def _from_json(body: bytes) -> Iterable[MetricPoint]:
    return _from_document(json.loads(body))


def _from_document(document: dict[str, Any]) -> Iterable[MetricPoint]:
    for datum in document["MetricData"]:
        yield _point(document["Namespace"], datum, datum.get("Dimensions", []))


def _from_query(body: bytes) -> Iterable[MetricPoint]:
    fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
    assert fields["Action"] == "PutMetricData"
    data: dict[int, dict[str, Any]] = {}
    for key, value in fields.items():
        match key.split("."):
            case ["MetricData", "member", number, "Dimensions", "member", which, part]:
                data.setdefault(int(number), {}).setdefault("Dimensions", {}).setdefault(int(which), {})[part] = value
            case ["MetricData", "member", number, "StatisticValues", part]:
                data.setdefault(int(number), {}).setdefault("StatisticValues", {})[part] = value
            case ["MetricData", "member", number, part]:
                data.setdefault(int(number), {})[part] = value
    for _, datum in sorted(data.items()):
        yield _point(fields["Namespace"], datum, [of for _, of in sorted(datum.get("Dimensions", {}).items())])


def _point(namespace: str, datum: dict[str, Any], dimensions: Iterable[dict[str, str]]) -> MetricPoint:
    statistics = datum["StatisticValues"]
    return MetricPoint(
        namespace,
        datum["MetricName"],
        datum["Unit"],
        tuple((of["Name"], of["Value"]) for of in dimensions),
        *(float(statistics[part]) for part in ("Minimum", "Maximum", "Sum", "SampleCount")),
        frozenset(datum) - {"MetricName", "Unit", "Dimensions", "StatisticValues"},
    )


_READERS = {"cbor": _from_cbor, "json": _from_json, "query": _from_query}
_DONE = {
    "cbor": b"\xa0",  # an empty map
    "json": b"{}",
    "query": b"<PutMetricDataResponse/>",
}


def _error(protocol: str, code: str) -> bytes:
    name = f"com.amazonaws.cloudwatch#{code}"
    if protocol == "cbor":
        # {"__type": name}, by hand: a map of one.
        return b"\xa1\x66__type\x78" + bytes([len(name)]) + name.encode()
    if protocol == "json":
        return json.dumps({"__type": name}).encode()
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>{code}</Message></Error></ErrorResponse>".encode()
