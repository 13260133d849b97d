"""HTTP/1.1 requests of one kind, posts whose answers have a length, over connections that are kept.

http.client reads a head by a parser of e-mail, which takes longer than all the rest of a small request; ssl's sockets
make two system calls for each record, a fifth of the time of a large one. So an answer is received in large pieces, TLS
works on memory, and the body goes where it stays. Whatever is not the plain case is Unusual: this is no general client.

Whom to trust and which socket options are botocore's rules (botocore.httpsession, urllib3's `HTTPSConnection`).
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from botocore.exceptions import ConnectionClosedError, ConnectTimeoutError, ReadTimeoutError
from botocore.httpsession import create_urllib3_context, get_cert_path
from urllib3.util import wait_for_read

_HEAD_BYTES: Final = 16 * 1024
"""The longest head that is understood; also the largest record of TLS."""
_PIECE_BYTES: Final = 256 * 1024
"""The most that is received from the network at once. OpenSSL keeps a buffer for what came at once."""
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_HEAD: Final = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\r\n]*)?\r\n")
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n)")
_NOT_PLAIN: Final = re.compile(rb"(?i)\r\n(?:transfer-encoding|content-encoding|trailer|upgrade):")
_CLOSES: Final = re.compile(rb"(?i)\r\nconnection:[^\r\n]*\bclose\b")


class NoConnection(Exception):
    """There is none to be had, and nothing was sent. The cause says why."""


class Unusual(Exception):
    """The answer is none that we understand."""


class Origin(msgspec.Struct, frozen=True):
    """Where connections lead. `host` without brackets."""

    scheme: str
    host: str
    port: int


class Answer(msgspec.Struct, frozen=True):
    """`head` is status line and headers, with the empty line. A `body` that broke off is shorter than it says."""

    status: int
    head: bytes
    body: bytearray


class Connections:
    """The connections of one client. Shared state: the idle ones, newest last, and `_closed`, guarded by `_lock`."""

    def __init__(
        self, *, connect_timeout_s: float, read_timeout_s: float, keepalive: bool, ca_bundle: str | None, limit: int
    ) -> None:
        """Keeps `limit` idle connections. `ca_bundle` None: the certificates that botocore trusts by itself.

        Both time-outs are for one wait, as botocore's: for the connection, and for the next piece of an answer.
        """
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._keepalive = keepalive
        self._ca_bundle = ca_bundle
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<Connections {len(self._idle)} idle>"

    def exchange(self, origin: Origin, message: bytes, url: str, *, repeatable: bool) -> Answer:
        """Sends a whole request and returns the answer. One that changes nothing is `repeatable`: it may be sent twice.

        Twice only if a kept connection breaks before a byte of the answer: the server has closed it meanwhile.
        Raises NoConnection, Unusual; of botocore ConnectTimeoutError, ReadTimeoutError and ConnectionClosedError,
        about `url`.
        """
        kept = self._take(origin)
        try:
            if kept is not None:
                try:
                    return self._use(kept, message, url)
                except _NothingCame:
                    if not repeatable:
                        raise
            return self._use(self._connect(origin, url), message, url)
        except _NothingCame as error:
            raise ConnectionClosedError(error=error.__cause__, request=None, endpoint_url=url) from error

    def close(self) -> None:
        """At once those that are idle; the others when they would be."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _use(self, connection: _Connection, message: bytes, url: str) -> Answer:
        kept = False
        try:
            answer, again = connection.exchange(message)
            kept = again and self._give_back(connection)
            return answer
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=url, error=error) from error
        except OSError as error:
            raise ConnectionClosedError(error=error, request=None, endpoint_url=url) from error
        finally:
            if not kept:
                connection.close()

    def _take(self, origin: Origin) -> _Connection | None:
        while True:
            with self._lock:
                found = next((n for n in reversed(range(len(self._idle))) if self._idle[n].origin == origin), None)
                if found is None:
                    return None
                connection = self._idle.pop(found)
            if not connection.is_readable():
                return connection
            connection.close()  # What arrives unasked is the end, or the answer to nothing.

    def _give_back(self, connection: _Connection) -> bool:
        with self._lock:
            if self._closed or len(self._idle) >= self._limit:
                return False
            self._idle.append(connection)
            return True

    def _connect(self, origin: Origin, url: str) -> _Connection:
        try:
            sock = socket.create_connection((origin.host, origin.port), self._connect_timeout_s)
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=url, error=error) from error
        except OSError as error:
            raise NoConnection(str(error)) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            wire = _Tls(sock, _trusting(self._ca_bundle), origin.host) if origin.scheme == "https" else _Plain(sock)
            sock.settimeout(self._read_timeout_s)
        except TimeoutError as error:  # Of the handshake; botocore names it so, too.
            sock.close()
            raise ReadTimeoutError(endpoint_url=url, error=error) from error
        except OSError as error:
            sock.close()
            raise NoConnection(str(error)) from error
        return _Connection(origin, sock, wire)


_contexts: Final[dict[str | None, ssl.SSLContext]] = {}
"""By bundle, for the whole process: each is a megabyte, and 40 ms of work."""
_loading: Final = threading.Lock()
"""Held while certificates are loaded, which is done once for all who wait."""


def _trusting(ca_bundle: str | None) -> ssl.SSLContext:
    with _loading:
        context = _contexts.get(ca_bundle)
        if context is None:
            context = create_urllib3_context()
            context.check_hostname = True
            context.set_alpn_protocols(["http/1.1"])
            context.load_verify_locations(ca_bundle or get_cert_path(True))
            _contexts[ca_bundle] = context
        return context


class _NothingCame(Exception):
    """The connection broke before a byte of the answer."""


class _Wire(Protocol):
    def send(self, data: bytes) -> None: ...

    def receive_into(self, view: memoryview) -> int:
        """Some bytes, as many as there are; 0 at the end."""

    def has_more(self) -> bool:
        """Whether bytes were received that nobody has read yet; those still in the socket do not count."""


class _Plain:
    def __init__(self, sock: socket.socket) -> None:
        self.send = sock.sendall
        self.receive_into = sock.recv_into

    def has_more(self) -> bool:
        return False


class _Tls:
    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = sock
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)
        self._read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive():
                    raise ConnectionResetError("closed during the TLS handshake") from None
            except ssl.SSLError:
                self._flush()  # The alert, which tells the server why.
                raise

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                return self._read(len(view), view)
            except ssl.SSLWantReadError:
                if not self._receive():
                    return 0

    def has_more(self) -> bool:
        return self._received.pending > 0 or self._tls.pending() > 0

    def _receive(self) -> int:
        data = self._socket.recv(_PIECE_BYTES)
        return self._received.write(data) if data else 0

    def _flush(self) -> None:
        if self._to_send.pending:
            self._socket.sendall(self._to_send.read())


class _Connection:
    """One request after the other."""

    def __init__(self, origin: Origin, sock: socket.socket, wire: _Wire) -> None:
        self.origin = origin
        self._socket = sock
        self._wire = wire

    def is_readable(self) -> bool:
        return wait_for_read(self._socket, 0)

    def close(self) -> None:
        self._socket.close()

    def exchange(self, message: bytes) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again. Raises Unusual, OSError, _NothingCame."""
        received = bytearray(_HEAD_BYTES)
        view = memoryview(received)
        try:
            self._wire.send(message)
            count = self._wire.receive_into(view)
        except TimeoutError:
            raise
        except OSError as error:
            raise _NothingCame from error
        if not count:
            raise _NothingCame from ConnectionResetError("closed without an answer")
        while (end := received.find(b"\r\n\r\n", 0, count)) < 0:
            if count == _HEAD_BYTES:
                raise Unusual(f"the head of an answer has more than {_HEAD_BYTES} bytes")
            if not (more := self._wire.receive_into(view[count:])):
                raise ConnectionResetError("closed within the head of an answer")
            count += more
        head = bytes(view[: end + 4])
        begun = view[end + 4 : count]
        status, size = _plain(head)
        if len(begun) > size:
            raise Unusual("an answer goes on after its end")
        body = self._rest(begun, size)
        again = len(body) == size and not _CLOSES.search(head) and not self._wire.has_more()
        return Answer(status, head, body), again

    def _rest(self, begun: memoryview, size: int) -> bytearray:
        body = bytearray(size)
        count = len(begun)
        body[:count] = begun
        with memoryview(body) as view:
            while count < size:
                if not (more := self._wire.receive_into(view[count:])):
                    return body[:count]
                count += more
        return body


def _plain(head: bytes) -> tuple[int, int]:
    """Status and length of the body. Raises Unusual."""
    status, lengths = _HEAD.match(head), _LENGTH.findall(head)
    if status is None or len(lengths) != 1 or _NOT_PLAIN.search(head) or int(lengths[0]) > _MAX_BODY_BYTES:
        raise Unusual(f"an answer begins {head[:80]!r}")
    return int(status[1]), int(lengths[0])
