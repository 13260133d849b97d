"""A small HTTP server on 127.0.0.1, one thread, keep-alive, for requests with a JSON body.

HTTP/1.1 here; a connection that begins as HTTP/2 does, without upgrade, goes on in http2.py. Both also within TLS.
Handlers run one after the other on the server's thread, so what they do is never interleaved with another request of
the same server. What a handler returns is not the answer but an Exchange: what to apply, when, and what becomes of the
answer. So faults like an answer that never arrives need no thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Literal, Protocol

import msgspec

_log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
LOOPBACK: Final = "127.0.0.1"
_HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class HttpRequest(msgspec.Struct, frozen=True):
    """`headers` by lower-case name; of a repeated header the last one."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Outlet(Protocol):
    """The way back to the client for an answer that goes on; used on the server's thread only."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def backlog_bytes(self) -> int:
        """Bytes that were written and have not left yet, because the client does not read them."""

    def write(self, data: bytes) -> None: ...

    def end(self) -> None:
        """The answer is complete."""

    def reset(self) -> None:
        """Breaks this answer off: a stream of HTTP/2 alone, else the connection."""

    def abort(self) -> None:
        """Breaks the connection off."""

    def go_away(self) -> None:
        """Tells an HTTP/2 client to make no further requests on this connection; nothing else otherwise."""


class Pusher(Protocol):
    """What writes an answer that goes on."""

    def pump(self) -> None:
        """The backlog is gone."""

    def close(self) -> None:
        """The answer has ended, or the client has left. May be called again."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """`push`, if any, begins to write the answer once its head has been sent; `body` is not used then."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    push: Callable[[Outlet], Pusher] | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How one request goes. `apply` runs after `before_s`, its answer leaves `after_s` later, if it is sent at all."""

    apply: Callable[[], HttpAnswer] | None
    before_s: float = 0.0
    after_s: float = 0.0
    fate: Literal["send", "close", "hang"] = "send"


Handler = Callable[[HttpRequest], Exchange]


class Connection(Protocol):
    def abort(self) -> None: ...


def exchange_of(handler: Handler, request: HttpRequest) -> Exchange:
    """What the handler says, 500 when it fails."""
    try:
        return handler(request)
    except Exception:
        _log.exception("the handler failed", extra={"action": "request_failed"})
        return Exchange(apply=lambda: HttpAnswer(500, b"{}"))


def carry_out(
    exchange: Exchange,
    loop: asyncio.AbstractEventLoop,
    send: Callable[[HttpAnswer], None],
    abort: Callable[[], None],
) -> None:
    """Lets the exchange happen; after the fate `hang` neither `send` nor `abort` is ever called."""

    def apply() -> None:
        answer = exchange.apply() if exchange.apply else None
        if exchange.fate == "hang":
            return
        if exchange.fate == "close" or answer is None:
            abort()
        elif exchange.after_s:
            loop.call_later(exchange.after_s, send, answer)
        else:
            send(answer)

    if exchange.before_s:
        loop.call_later(exchange.before_s, apply)
    else:
        apply()


class HttpServer:
    """Serves `handler` between `start()` and `stop()`; usable once."""

    def __init__(
        self,
        handler: Handler,
        *,
        port: int,
        name: str,
        warm_up: Callable[[], object] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`port` 0: any free one. The port is taken here; raises OSError when it is not to be had.

        `warm_up` runs on the server's thread before the first request.
        """
        self._handler = handler
        self._tls = tls
        self.max_streams = 128
        """How many requests an HTTP/2 client may have under way on one connection; for those made after a change."""
        self._warm_up = warm_up
        self._socket = socket.create_server((LOOPBACK, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._connections: set[Connection] = set()
        self._thread = threading.Thread(target=self._run, name=name)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{LOOPBACK}:{self.port}"

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
            lambda: _Connection(self._handler, self._connections, self._loop, self.max_streams),
            sock=self._socket,
            ssl=self._tls,
        )
        await self._stopping.wait()
        server.close()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # the transports close their sockets in the loop's next turn


class _Connection(asyncio.Protocol):
    """One connection: requests are answered one at a time, in order."""

    def __init__(
        self, handler: Handler, connections: set[Connection], loop: asyncio.AbstractEventLoop, max_streams: int
    ) -> None:
        self._handler = handler
        self._connections = connections
        self.loop = loop
        self._max_streams = max_streams
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._busy = False
        self._pusher: Pusher | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        self._stop_pushing()

    def resume_writing(self) -> None:
        if self._pusher is not None:
            self._pusher.pump()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received[:3] == _HTTP2[:3] and not self._busy:
            if len(self._received) >= len(_HTTP2):
                self._speak_http2()
        elif len(self._received) > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            self.abort()  # more than one whole request was pushed at us while one is being answered
        elif not self._busy:
            self._next_request()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _speak_http2(self) -> None:
        from kcl_host.local.http2 import Http2Connection  # It needs what is declared here.

        assert self._transport is not None
        self._connections.discard(self)
        connection = Http2Connection(self._handler, self._connections, self.loop, self._transport, self._max_streams)
        self._transport.set_protocol(connection)
        connection.data_received(bytes(self._received))

    def _next_request(self) -> None:
        try:
            request = self._take_request()
        except _Refused as refused:
            self._send(HttpAnswer(refused.status, refused.reason.encode()), keep_alive=False)
            return
        if request is None:
            return
        self._busy = True  # Stays so after the fate `hang`: nothing more happens until the client closes.
        carry_out(exchange_of(self._handler, request), self.loop, self._finish, self.abort)

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

    def _finish(self, answer: HttpAnswer) -> None:
        if answer.push is not None and self._transport is not None:
            self._write(_head(answer, "Transfer-Encoding: chunked"))
            self._pusher = answer.push(self)
            return
        self._send(answer, keep_alive=True)
        self._go_on()

    def _go_on(self) -> None:
        self._busy = False
        if self._received and self._transport is not None:
            self._next_request()

    def _send(self, answer: HttpAnswer, *, keep_alive: bool) -> None:
        length = f"Content-Length: {len(answer.body)}"
        self._write(_head(answer, length if keep_alive else f"Connection: close\r\n{length}") + answer.body)
        if not keep_alive and self._transport is not None:
            self._transport.close()

    # Outlet

    @property
    def backlog_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._write(b"0\r\n\r\n")
        self._stop_pushing()
        self._go_on()

    def reset(self) -> None:
        self.abort()

    def go_away(self) -> None:
        pass

    def _stop_pushing(self) -> None:
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _head(answer: HttpAnswer, length: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    return f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n{lines}{length}\r\n\r\n".encode("latin-1")


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
