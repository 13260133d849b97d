"""A small HTTP/1.1 server on 127.0.0.1, one thread, keep-alive, for requests with a JSON body.

Handlers run one after the other on the server's thread, so what they do is never interleaved with another request of
the same server. What a handler returns is not the answer but an Exchange: what to apply, when, and what becomes of the
answer. So faults like an answer that never arrives need no thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Literal

import msgspec

_log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
LOOPBACK: Final = "127.0.0.1"


class HttpRequest(msgspec.Struct, frozen=True):
    """`headers` by lower-case name; of a repeated header the last one."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: dict[str, str] = {}


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How one request goes. `apply` runs after `before_s`, its answer leaves `after_s` later, if it is sent at all."""

    apply: Callable[[], HttpAnswer] | None
    before_s: float = 0.0
    after_s: float = 0.0
    fate: Literal["send", "close", "hang"] = "send"


Handler = Callable[[HttpRequest], Exchange]


class HttpServer:
    """Serves `handler` between `start()` and `stop()`; usable once."""

    def __init__(self, handler: Handler, *, port: int, name: str, warm_up: Callable[[], object] = lambda: None) -> None:
        """`port` 0: any free one. The port is taken here; raises OSError when it is not to be had.

        `warm_up` runs on the server's thread before the first request.
        """
        self._handler = handler
        self._warm_up = warm_up
        self._socket = socket.create_server((LOOPBACK, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._thread = threading.Thread(target=self._run, name=name)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Connections made before this call already wait in the backlog."""
        self._thread.start()

    def stop(self) -> None:
        """Closes every connection, requests in flight included, and waits for the thread. May be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._socket.close()
        self._loop.close()

    def _run(self) -> None:
        self._warm_up()
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await self._loop.create_server(
            lambda: _Connection(self._handler, self._connections, self._loop), sock=self._socket
        )
        await self._stopping.wait()
        server.close()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # the transports close their sockets in the loop's next turn


class _Connection(asyncio.Protocol):
    """One connection: requests are answered one at a time, in order."""

    def __init__(self, handler: Handler, connections: set[_Connection], loop: asyncio.AbstractEventLoop) -> None:
        self._handler = handler
        self._connections = connections
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            self.abort()  # more than one whole request was pushed at us while one is being answered
        elif not self._busy:
            self._next_request()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _next_request(self) -> None:
        try:
            request = self._take_request()
        except _Refused as refused:
            self._send(HttpAnswer(refused.status, refused.reason.encode()), keep_alive=False)
            return
        if request is None:
            return
        self._busy = True
        try:
            exchange = self._handler(request)
        except Exception:
            _log.exception("the handler failed", extra={"action": "request_failed"})
            exchange = Exchange(apply=lambda: HttpAnswer(500, b"{}"))
        if exchange.before_s:
            self._loop.call_later(exchange.before_s, self._apply, exchange)
        else:
            self._apply(exchange)

    def _take_request(self) -> HttpRequest | None:
        """The next whole request, taken off the buffer; None when it is not there yet."""
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0 or head_end > MAX_HEAD_BYTES:
            if len(self._received) > MAX_HEAD_BYTES:
                raise _Refused(431, "header too large")
            return None
        first_line, *lines = self._received[:head_end].decode("latin-1").split("\r\n")
        parts = first_line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise _Refused(400, "not an HTTP/1.1 request")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise _Refused(411, "a Content-Length is required")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise _Refused(400, "bad Content-Length")
        if int(length) > MAX_BODY_BYTES:
            raise _Refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        end = head_end + 4 + int(length)
        if len(self._received) < end:
            if headers.get("expect", "").lower() == "100-continue" and len(self._received) == head_end + 4:
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        body = bytes(self._received[head_end + 4 : end])
        del self._received[:end]
        return HttpRequest(parts[0], parts[1], headers, body)

    def _apply(self, exchange: Exchange) -> None:
        answer = exchange.apply() if exchange.apply else None
        if exchange.fate == "hang":
            return  # _busy stays set: nothing more happens on this connection until the client closes it
        if exchange.fate == "close" or answer is None:
            self.abort()
        elif exchange.after_s:
            self._loop.call_later(exchange.after_s, self._finish, answer)
        else:
            self._finish(answer)

    def _finish(self, answer: HttpAnswer) -> None:
        self._send(answer, keep_alive=True)
        self._busy = False
        if self._received and self._transport is not None:
            self._next_request()

    def _send(self, answer: HttpAnswer, *, keep_alive: bool) -> None:
        headers = answer.headers if keep_alive else {**answer.headers, "Connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n{lines}"
            f"Content-Length: {len(answer.body)}\r\n\r\n"
        )
        self._write(head.encode("latin-1") + answer.body)
        if not keep_alive and self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
