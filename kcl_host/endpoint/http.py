"""HTTP/1.1 for small answers to GET and HEAD: one thread, and nothing a client does holds it up.

A connection reads one request head, then writes one answer, and so on; it never does both at once, so what a client
sends ahead is not read. Everything has a bound: connections, bytes of a head, and the time of each phase.
Where all connections are taken, the one that has been in its phase for longest makes room, so that slow clients keep
nobody out. An answer is not copied for those who read it.

Not from `http.server`, which has a thread per connection and bounds none of this; and not asyncio, which copies what
it sends and costs the host some megabytes.
"""

from __future__ import annotations

import logging
import re
import selectors
import socket
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from kcl_host.ports import Clock

_log = logging.getLogger(__name__)

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/(\d\.\d)")
_HEADER: Final = re.compile(rb"(" + _TOKEN + rb"+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
"""What cannot be in a head: control characters (a TLS handshake, say) and line ends that are not CR LF."""
READ_BYTES: Final = 4096
DEAF_S: Final = 1.0
"""So long no connection is accepted after the system had none to give."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`head_s` is for the whole head of a request, `answer_s` for the client to take the answer."""

    connections: int = 64
    head_bytes: int = 8192
    target_bytes: int = 2048
    head_s: float = 5.0
    idle_s: float = 30.0
    answer_s: float = 30.0
    linger_s: float = 1.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`host` as the header says it, empty when there is none. `query` is what follows the question mark."""

    path: str
    query: str = ""
    host: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`headers` beside Content-Type, Content-Length, Date and Connection."""

    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Answer]
"""Called on the server's thread: it must not wait for anything."""


class HttpServer:
    """Answers on `address`:`port` while `run` runs; `stop` may be called by any thread, the rest by one."""

    def __init__(self, handler: Handler, address: str, port: int, clock: Clock, limits: Limits | None = None) -> None:
        """Takes the port (0: any free one). Raises OSError when it is not to be had."""
        self._handler = handler
        self._clock = clock
        self._limits = limits or Limits()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=self._limits.connections)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waker, self._wakened = socket.socketpair()
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._deaf_until_s: float | None = None
        self._stopped = False
        self.connections: dict[int, _Connection] = {}
        """By descriptor."""

    def __repr__(self) -> str:
        return f"<HttpServer {self.port}, {len(self.connections)} connections>"

    def run(self) -> None:
        try:
            while not self._stopped:
                self.turn(self._until_next_deadline_s())
        finally:
            self.close()

    def stop(self) -> None:
        self._stopped = True
        self._waker.send(b"x")

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self._drop(connection)
        self._selector.close()
        for one in (self._listener, self._waker, self._wakened):
            one.close()

    def turn(self, timeout_s: float | None) -> None:
        """Waits until something is to be done, does it, and drops those whose time is over."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wakened:
                self._wakened.recv(READ_BYTES)
            elif key.fd in self.connections:
                self._serve(self.connections[key.fd])
        now_s = self._clock.monotonic()
        for connection in [c for c in self.connections.values() if c.deadline_s <= now_s]:
            self._out_of_time(connection)
        if self._deaf_until_s is not None and self._deaf_until_s <= now_s:
            self._deaf_until_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _until_next_deadline_s(self) -> float | None:
        deadlines_s = [connection.deadline_s for connection in self.connections.values()]
        if self._deaf_until_s is not None:
            deadlines_s.append(self._deaf_until_s)
        return max(0.0, min(deadlines_s) - self._clock.monotonic()) if deadlines_s else None

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            _log.warning("no connection accepted", extra={"action": "endpoint_deaf", "error": str(error)})
            self._selector.unregister(self._listener)
            self._deaf_until_s = self._clock.monotonic() + DEAF_S
            return
        accepted.setblocking(False)
        if len(self.connections) >= self._limits.connections:
            self._drop(min(self.connections.values(), key=lambda connection: connection.since_s))
        connection = _Connection(accepted)
        self.connections[accepted.fileno()] = connection
        self._enter(connection, "reading", self._limits.head_s, selectors.EVENT_READ)

    def _enter(self, connection: _Connection, phase: _Phase, for_s: float, events: int) -> None:
        connection.phase, connection.since_s = phase, self._clock.monotonic()
        connection.deadline_s = connection.since_s + for_s
        if connection.events != events:
            change = self._selector.modify if connection.events else self._selector.register
            change(connection.socket, events)
            connection.events = events

    def _drop(self, connection: _Connection) -> None:
        del self.connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _out_of_time(self, connection: _Connection) -> None:
        if connection.phase != "reading" or not connection.received:
            self._drop(connection)
            return
        try:
            self._refuse(connection, _Refused(408, "the request took too long"))
        except OSError:
            self._drop(connection)

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.phase == "writing":
                self._write(connection)
                return
            data = connection.socket.recv(READ_BYTES)
            if not data:
                self._drop(connection)
            elif connection.phase != "lingering":
                if connection.phase == "idle":
                    self._enter(connection, "reading", self._limits.head_s, selectors.EVENT_READ)
                connection.received += data
                self._read(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            head = self._take_head(connection.received)
            if head is None:
                return
            method, request, keeps_alive = _parse(head)
            # Who sends the next request without waiting for this answer may send it again: nobody does.
            connection.keeps_alive = keeps_alive and not connection.received
        except _Refused as refused:
            self._refuse(connection, refused)
            return
        try:
            answer = self._handler(request)
        except Exception:
            _log.exception("no answer could be made", extra={"action": "endpoint_failed", "path": request.path})
            answer = Answer(status=500, body=b"no answer could be made, the log says why\n")
        self._answer(connection, answer, with_body=method == "GET")

    def _take_head(self, received: bytearray) -> bytes | None:
        """The head of the next request, taken off what was received; None when it is not there yet."""
        while received[:2] == b"\r\n":
            del received[:2]
        end = received.find(b"\r\n\r\n")
        so_far = received if end < 0 else received[: end + 2]
        if _NO_TEXT.search(so_far):
            raise _Refused(400, "not HTTP")
        if (so_far.find(b"\r\n") + 1 or len(so_far)) > self._limits.target_bytes:
            raise _Refused(414, "the target is too long")
        if len(so_far) > self._limits.head_bytes:
            raise _Refused(431, "the header is too long")
        if end < 0:
            return None
        head = bytes(received[:end])
        del received[: end + 4]
        return head

    def _refuse(self, connection: _Connection, refused: _Refused) -> None:
        connection.keeps_alive = False
        headers = (("Allow", "GET, HEAD"),) if refused.status == 405 else ()
        self._answer(connection, Answer(status=refused.status, body=f"{refused}\n".encode(), headers=headers))

    def _answer(self, connection: _Connection, answer: Answer, *, with_body: bool = True) -> None:
        headers = (
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Date", formatdate(self._clock.wall(), usegmt=True)),
            *answer.headers,
            *(() if connection.keeps_alive else (("Connection", "close"),)),
        )
        status = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        head = status + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
        connection.unsent = [memoryview(head.encode("latin-1"))]
        if with_body and answer.body:
            connection.unsent.append(memoryview(answer.body))
        self._enter(connection, "writing", self._limits.answer_s, selectors.EVENT_WRITE)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        """As much as the socket takes now. Raises OSError when the client has left."""
        try:
            sent = connection.socket.sendmsg(connection.unsent)
        except BlockingIOError:
            return
        while connection.unsent and sent >= len(connection.unsent[0]):
            sent -= len(connection.unsent.pop(0))
        if connection.unsent:
            connection.unsent[0] = connection.unsent[0][sent:]
        elif connection.keeps_alive:
            self._enter(connection, "idle", self._limits.idle_s, selectors.EVENT_READ)
        else:
            # What the client still sends is read for a while: closing on it would take the answer away with it.
            connection.socket.shutdown(socket.SHUT_WR)
            self._enter(connection, "lingering", self._limits.linger_s, selectors.EVENT_READ)


_Phase = Literal["reading", "idle", "writing", "lingering"]


class _Connection:
    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.phase: _Phase = "reading"
        self.since_s = self.deadline_s = 0.0
        self.events = 0
        self.received = bytearray()
        self.unsent: list[memoryview] = []
        self.keeps_alive = False


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _parse(head: bytes) -> tuple[str, Request, bool]:
    """Method, request, and whether the connection stays. Raises _Refused."""
    first, *lines = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise _Refused(400, "not an HTTP/1.1 request")
    method, target, version = (part.decode("ascii") for part in line.groups())
    headers: dict[bytes, bytes] = {}
    for one in lines:
        header = _HEADER.fullmatch(one)
        if header is None:
            raise _Refused(400, "a header is malformed")
        name = header[1].lower()
        if name in headers and name in (b"host", b"content-length"):
            raise _Refused(400, "a header is there twice")
        headers[name] = header[2].strip(b" \t")
    if version not in ("1.0", "1.1"):
        raise _Refused(505, "HTTP/1.0 and HTTP/1.1 only")
    if b"host" not in headers and version == "1.1":
        raise _Refused(400, "the Host header is missing")
    if method not in ("GET", "HEAD"):
        raise _Refused(405, "GET and HEAD only")
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise _Refused(413, "no request here has a body")
    if not target.startswith("/"):
        raise _Refused(400, "the target must be a path")
    path, _, query = target.partition("?")
    keeps_alive = version == "1.1" and b"close" not in headers.get(b"connection", b"").lower()
    return method, Request(path=path, query=query, host=headers.get(b"host", b"").decode("latin-1")), keeps_alive
