"""HTTP/2 requests whose answers go on: few connections, many streams, by the h2 library and our own sockets.

Each connection has one thread, which alone touches its socket; others change the state of h2 under the connection's
lock and wake that thread. The socket never blocks, so the lock is held for moments only and `close` of a stream takes
effect at once, whoever reads it. The lock order is transport, connection, stream.

Back-pressure is per stream: what was received and not yet read is bounded by WINDOW_BYTES, since the server may send
more only as it is read. The window of the connection is never the limit, or one slow reader would stop all others.

Why h2 and not awscrt: it does no I/O, so that connecting, time-outs, proxies and closing are plain sockets and Python;
no native threads; small and pure; and the embedded Kinesis needs the same on the server's side.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import selectors
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import msgspec

from kcl_host.errors import Unavailable

WINDOW_BYTES: Final = 512 * 1024
"""As Java's client has it."""
FRAME_BYTES: Final = 256 * 1024
PING_AFTER_S: Final = 15.0
"""So long nothing at all arrives on a connection before it is asked whether it lives."""
DEAD_AFTER_S: Final = 30.0
IDLE_S: Final = 30.0
"""So long a connection without streams is kept."""
_MAX_WINDOW: Final = 2**31 - 1
_CHUNK: Final = 256 * 1024
_NOT_ALLOWED: Final = frozenset({"host", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "expect"})
"""Headers of HTTP/1.1 that HTTP/2 has not (RFC 9113 section 8.2.2), or has elsewhere."""

StartThread = Callable[[str, Callable[[], None]], object]


class NotConnected(Exception):
    """There is no connection to the endpoint; the request has not left."""


class NoAnswer(Exception):
    """The request was sent, and no head of an answer came in time, or the connection was lost before it."""


class _Life(msgspec.Struct, frozen=True):
    """When a connection is asked whether it lives, given up as dead, and given up as unused."""

    ping_after_s: float
    dead_after_s: float
    idle_s: float


class Response(msgspec.Struct, frozen=True):
    """The head of an answer, and its body as it arrives."""

    status: int
    headers: dict[str, str]
    body: Http2Stream


class Http2Stream:
    """One request and its answer. Shared state: what has arrived, guarded by `_changed`."""

    def __init__(self, connection: _Connection, stream_id: int) -> None:
        self._connection = connection
        self.id = stream_id
        self._changed = threading.Condition()
        self._head: dict[str, str] | None = None
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._broken: str | None = None
        self._unacknowledged = 0

    def read(self, timeout_s: float) -> bytes | None:
        """What has arrived since the last read; waits for it. None: nothing within the time; empty: the end.

        Raises Unavailable when the stream was broken off, by us or by the other side; what arrived before comes first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._ended or self._broken, timeout_s)
            data = b"".join(self._chunks)
            self._chunks.clear()
            if not data:
                if self._broken:
                    raise Unavailable(self._broken)
                return b"" if self._ended else None
            self._unacknowledged += len(data)
            due = self._unacknowledged if self._unacknowledged >= WINDOW_BYTES // 4 else 0
            self._unacknowledged -= due
        if due:
            self._connection.acknowledge(self.id, due)
        return data

    def close(self) -> None:
        """Gives the stream up, and wakes its reader at once. From any thread, any number of times."""
        self.break_off("closed")
        self._connection.reset(self.id)

    def await_head(self, timeout_s: float) -> dict[str, str]:
        """Raises NoAnswer; the stream is of no use then."""
        with self._changed:
            self._changed.wait_for(lambda: self._head is not None or self._broken, timeout_s)
            if self._head is not None:
                return self._head
            broken = self._broken
        self.close()
        raise NoAnswer(broken or f"no answer within {timeout_s:.0f} s")

    # The connection's thread

    def arrived(self, *, head: dict[str, str] | None = None, data: bytes = b"", ended: bool = False) -> None:
        with self._changed:
            self._head = self._head or head
            if data:
                self._chunks.append(data)
            self._ended = self._ended or ended
            self._changed.notify_all()

    def break_off(self, reason: str) -> None:
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()


class Http2Transport:
    """The connections, by origin. Shared state: `_connections`, `_closed` and the last failure, guarded by `_lock`.

    The lock is held while connecting, on purpose: whoever else wants a stream of the same endpoint waits for that
    connection instead of making one more, and shares its failure.
    """

    def __init__(
        self,
        *,
        start_thread: StartThread,
        connect_timeout_s: float,
        ca_file: str | None = None,
        proxy_of: Callable[[str], str | None] = lambda url: None,
        monotonic: Callable[[], float] = time.monotonic,
        ping_after_s: float = PING_AFTER_S,
        dead_after_s: float = DEAD_AFTER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """`ca_file` None: the system's certificates. `proxy_of` gives the proxy's URL for a URL, None without one."""
        self._start_thread = start_thread
        self._connect_timeout_s = connect_timeout_s
        self._ca_file = ca_file
        self._proxy_of = proxy_of
        self._monotonic = monotonic
        self._life = _Life(ping_after_s, dead_after_s, idle_s)
        self._lock = threading.Lock()
        self._connections: dict[str, list[_Connection]] = {}
        self._failed: tuple[float, str] = (float("-inf"), "")
        self._closed = False

    def __repr__(self) -> str:
        return f"<Http2Transport {[c for connections in self._connections.values() for c in connections]}>"

    def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, head_timeout_s: float
    ) -> Response:
        """Sends the request and waits for the head of the answer. Raises NotConnected, NoAnswer."""
        parts = urlsplit(url)
        path = parts.path or "/"
        head = [
            (":method", method),
            (":scheme", parts.scheme),
            (":authority", parts.netloc.rpartition("@")[2]),
            (":path", f"{path}?{parts.query}" if parts.query else path),
            *((name.lower(), value) for name, value in headers.items() if name.lower() not in _NOT_ALLOWED),
        ]
        stream = self._open(f"{parts.scheme}://{parts.netloc}", head, body)
        answer = stream.await_head(head_timeout_s)
        return Response(int(answer.get(":status", "0")), answer, stream)

    def close(self) -> None:
        """Breaks every stream off; no request afterwards. The threads end by themselves, soon."""
        with self._lock:
            self._closed = True
            connections = [c for connections in self._connections.values() for c in connections]
        for connection in connections:
            connection.close()

    def _open(self, origin: str, head: Sequence[tuple[str, str]], body: bytes) -> Http2Stream:
        asked_s = self._monotonic()
        with self._lock:
            if self._closed:
                raise NotConnected("the transport is closed")
            alive = [c for c in self._connections.get(origin, ()) if not c.is_gone]
            self._connections[origin] = alive
            for connection in alive:
                if stream := connection.open(head, body):
                    return stream
            failed_s, error = self._failed
            if failed_s > asked_s:
                raise NotConnected(error)
            try:
                connection = self._connect(origin)
                alive.append(connection)
                if stream := connection.open(head, body):
                    return stream
                raise NotConnected(connection.gone_because or "the endpoint accepts no request")
            except (OSError, http.client.HTTPException, NotConnected) as failure:
                self._failed = self._monotonic(), str(failure)
                raise NotConnected(str(failure)) from failure

    def _connect(self, origin: str) -> _Connection:
        parts = urlsplit(origin)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        sock = self._socket(origin, host, port)
        try:
            if parts.scheme == "https":
                sock = self._tls().wrap_socket(sock, server_hostname=host)
                if sock.selected_alpn_protocol() != "h2":
                    raise NotConnected(f"{host} does not offer HTTP/2; fanoutTransport = http1 does without it")
            sock.setblocking(False)
            connection = _Connection(sock, self._monotonic, self._life)
        except BaseException:
            sock.close()
            raise
        self._start_thread(f"http2-{host}", connection.run)
        if not connection.ready.wait(self._connect_timeout_s) or connection.is_gone:
            connection.close()
            because = connection.gone_because or "no settings came"
            raise NotConnected(
                f"{host}:{port} does not speak HTTP/2 ({because}); fanoutTransport = http1 does without it"
            )
        return connection

    def _socket(self, origin: str, host: str, port: int) -> socket.socket:
        proxy = self._proxy_of(origin)
        if proxy is None:
            sock = socket.create_connection((host, port), self._connect_timeout_s)
        else:
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            tunnel = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self._connect_timeout_s)
            credentials = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
            authorization = {"Proxy-Authorization": f"Basic {b64encode(credentials).decode()}"}
            tunnel.set_tunnel(host, port, authorization if parts.username else {})
            tunnel.connect()
            assert tunnel.sock is not None
            sock = tunnel.sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca_file)
        context.set_alpn_protocols(["h2"])
        return context


class _StaysOpen(h2.connection.H2ConnectionStateMachine):
    """h2 takes a connection for closed after GOAWAY; the streams under way go on all the same (RFC 9113 6.8)."""

    _transitions = {  # noqa: RUF012, as it is declared there
        **h2.connection.H2ConnectionStateMachine._transitions,
        (h2.connection.ConnectionState.CLIENT_OPEN, h2.connection.ConnectionInputs.RECV_GOAWAY): (
            None,
            h2.connection.ConnectionState.CLIENT_OPEN,
        ),
    }


class _Connection:
    """Shared state: h2, the streams, what is to be sent, and why the connection is gone; guarded by `_lock`."""

    def __init__(self, sock: socket.socket, monotonic: Callable[[], float], life: _Life) -> None:
        self._socket = sock
        self._life = life
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._streams: dict[int, Http2Stream] = {}
        self._out = bytearray()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._heard_s = self._used_s = monotonic()
        self._pinged = self._refuses = False
        self.gone_because: str | None = None
        self.ready = threading.Event()
        """Set when the other side has sent its settings, or the connection is gone."""
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_inbound_headers=False)
        )
        self._h2.state_machine = _StaysOpen()
        codes = h2.settings.SettingCodes
        # Set before the connection begins: changed ones would go out only after the defaults.
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.ENABLE_PUSH: 0,
                codes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                codes.MAX_FRAME_SIZE: FRAME_BYTES,
            },
        )
        self._h2.max_inbound_frame_size = FRAME_BYTES
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_MAX_WINDOW - 65535)
        self._out += self._h2.data_to_send()

    def __repr__(self) -> str:
        return f"<{self.gone_because or 'connected'}, {len(self._streams)} streams>"

    @property
    def is_gone(self) -> bool:
        return self.gone_because is not None

    # Any thread

    def open(self, head: Sequence[tuple[str, str]], body: bytes) -> Http2Stream | None:
        """None when the connection takes no further stream."""
        with self._lock:
            limit = self._h2.remote_settings.max_concurrent_streams
            if self.is_gone or self._refuses or len(self._streams) >= limit:
                return None
            try:
                stream_id = self._h2.get_next_available_stream_id()
                self._h2.send_headers(stream_id, head)
                for start in range(0, len(body), piece := self._h2.max_outbound_frame_size):
                    self._h2.send_data(stream_id, body[start : start + piece])
                self._h2.end_stream(stream_id)
            except h2.exceptions.ProtocolError:
                # No further ids, or the request is larger than a new stream's window, which ours never are.
                self._refuses = True
                return None
            stream = self._streams[stream_id] = Http2Stream(self, stream_id)
            self._used_s = self._monotonic()
            self._send_soon()
        return stream

    def acknowledge(self, stream_id: int, count: int) -> None:
        """The reader has taken so many bytes: the server may send as many more."""
        with self._lock:
            if stream_id in self._streams and not self.is_gone:
                self._h2.increment_flow_control_window(count, stream_id)
                self._send_soon()

    def reset(self, stream_id: int) -> None:
        with self._lock:
            if self._streams.pop(stream_id, None) is not None and not self.is_gone:
                self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
                self._used_s = self._monotonic()
                self._send_soon()

    def close(self) -> None:
        with self._lock:
            self._give_up("closed")
            self._wake()

    # Its own thread

    def run(self) -> None:
        """Sends and receives until the connection is gone, for whatever reason."""
        reason = "the connection's thread has failed"
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                selector.register(self._socket, selectors.EVENT_READ)
                while not self.is_gone:
                    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
                    selector.modify(self._socket, events)
                    ready = {key.fd: mask for key, mask in selector.select(self._turn_s())}
                    if self._woken in ready:
                        os.eventfd_read(self._woken)
                    if ready.get(self._socket.fileno(), 0) & selectors.EVENT_READ:
                        self._receive()
                    self._send()
        except (OSError, h2.exceptions.H2Error) as error:
            reason = f"the connection was lost: {error or type(error).__name__}"
        finally:
            with self._lock:
                self._give_up(reason)
                woken, self._woken = self._woken, -1
                os.close(woken)
            self._socket.close()

    def _turn_s(self) -> float:
        """Looks after the life of the connection; seconds until that is due again."""
        now_s, life = self._monotonic(), self._life
        with self._lock:
            quiet_s = now_s - self._heard_s
            if quiet_s >= life.dead_after_s:
                self._give_up(f"the connection is dead: nothing came for {quiet_s:.0f} s")
                return 0.0
            if not self._streams and (self._refuses or now_s - self._used_s >= life.idle_s):
                self._h2.close_connection()
                self._out += self._h2.data_to_send()
                self._give_up("no longer used")
                return 0.0
            if quiet_s >= life.ping_after_s and not self._pinged:
                self._pinged = True
                self._h2.ping(b"kcl-host")
                self._out += self._h2.data_to_send()
            idle_s = life.idle_s if self._streams else life.idle_s - (now_s - self._used_s)
            return max(0.01, min((life.dead_after_s if self._pinged else life.ping_after_s) - quiet_s, idle_s))

    def _receive(self) -> None:
        """Everything that is there; TLS may have more of it than the socket shows."""
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                raise ConnectionResetError("the other side has closed it")
            with self._lock:
                self._heard_s, self._pinged = self._monotonic(), False
                for event in self._h2.receive_data(data):
                    self._on(event)
                self._out += self._h2.data_to_send()
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return

    def _send(self) -> None:
        with self._lock:
            while self._out:
                try:
                    sent = self._socket.send(self._out)
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    return
                del self._out[:sent]

    # Under the lock

    def _on(self, event: h2.events.Event) -> None:
        stream: Http2Stream | None = self._streams.get(getattr(event, "stream_id", None) or 0)
        match event:
            case h2.events.RemoteSettingsChanged():
                self.ready.set()
            case h2.events.ConnectionTerminated(last_stream_id=last):
                self._refuses = True
                for one in [s for s in self._streams.values() if s.id > (last or 0)]:
                    self._forget(one, "the server accepts no further requests on this connection")
            case h2.events.DataReceived(data=bytes(data), flow_controlled_length=int(length)):
                if length:
                    self._h2.increment_flow_control_window(length)
                if stream is not None:
                    if length > len(data):  # Padding. A stream that has ended with this frame needs no window.
                        with contextlib.suppress(h2.exceptions.StreamClosedError):
                            self._h2.increment_flow_control_window(length - len(data), stream.id)
                    stream.arrived(data=data)
            case h2.events.ResponseReceived(headers=headers) if stream is not None:
                stream.arrived(head=_as_dict(headers or ()))
            case h2.events.StreamEnded() if stream is not None:
                stream.arrived(ended=True)
                del self._streams[stream.id]
                self._used_s = self._monotonic()
            case h2.events.StreamReset(error_code=code) if stream is not None:
                self._forget(stream, f"the server has reset the stream: {code!r}")

    def _forget(self, stream: Http2Stream, reason: str) -> None:
        stream.break_off(reason)
        del self._streams[stream.id]
        self._used_s = self._monotonic()

    def _give_up(self, reason: str) -> None:
        self.gone_because = self.gone_because or reason
        for stream in list(self._streams.values()):
            self._forget(stream, self.gone_because)
        self.ready.set()

    def _send_soon(self) -> None:
        self._out += self._h2.data_to_send()
        self._wake()

    def _wake(self) -> None:
        if self._woken >= 0:
            os.eventfd_write(self._woken, 1)


def _as_dict(headers: Sequence[Any]) -> dict[str, str]:
    return {name: value for name, value in headers}
