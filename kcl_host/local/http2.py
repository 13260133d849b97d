"""HTTP/2 for the embedded server, by the h2 library: many requests on one connection, answers that go on.

Without upgrade (prior knowledge) in cleartext, or chosen by ALPN within TLS. What a request means is http.py's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hyperframe.frame

from kcl_host.local.http import (
    MAX_BODY_BYTES,
    Connection,
    Handler,
    HttpAnswer,
    HttpRequest,
    Pusher,
    carry_out,
    exchange_of,
)

_WINDOW_BYTES: Final = 2**31 - 1
"""Requests are bounded by MAX_BODY_BYTES, not by the window."""


class _StaysOpen(h2.connection.H2ConnectionStateMachine):
    """h2 takes a connection for closed when the other side has sent GOAWAY; what is under way goes on all the same.

    RFC 9113 section 6.8. AWS's SDK for JavaScript sends it right after SubscribeToShard.
    """

    _transitions = {  # noqa: RUF012, as it is declared there
        **h2.connection.H2ConnectionStateMachine._transitions,
        (h2.connection.ConnectionState.SERVER_OPEN, h2.connection.ConnectionInputs.RECV_GOAWAY): (
            None,
            h2.connection.ConnectionState.SERVER_OPEN,
        ),
    }


class Http2Connection(asyncio.Protocol):
    """One connection. Requests are handled as they become complete, in any order of their streams."""

    def __init__(
        self,
        handler: Handler,
        connections: set[Connection],
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        max_streams: int,
    ) -> None:
        self._handler = handler
        self._connections = connections
        self.loop = loop
        self._transport: asyncio.Transport | None = transport
        self._requests: dict[int, _Stream] = {}
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.state_machine = _StaysOpen()
        self.h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
            },
        )
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_WINDOW_BYTES - 65535)
        connections.add(self)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        for stream in list(self._requests.values()):
            stream.forget()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.flush()  # h2 has written GOAWAY.
            self.abort()
            return
        # A stream that is reset takes no more data, though a window was opened for it in the same breath.
        for event in sorted(events, key=lambda event: not isinstance(event, h2.events.StreamReset)):
            self._on(event)
        self.flush()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def send_raw(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def resume_writing(self) -> None:
        for stream in list(self._requests.values()):
            stream.send_pending()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def remove(self, stream_id: int) -> None:
        self._requests.pop(stream_id, None)

    def _on(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream_id), headers=headers):
                self._requests[stream_id] = _Stream(self, stream_id, headers or [])
            case h2.events.DataReceived(stream_id=int(stream_id), data=bytes(data), flow_controlled_length=int(length)):
                self.h2.acknowledge_received_data(length, stream_id)
                if stream_id in self._requests:
                    self._requests[stream_id].receive(data)
            case h2.events.StreamEnded(stream_id=int(stream_id)) if stream_id in self._requests:
                stream = self._requests[stream_id]
                carry_out(exchange_of(self._handler, stream.request()), self.loop, stream.send, self.abort)
            case h2.events.StreamReset(stream_id=int(stream_id)) if stream_id in self._requests:
                self._requests[stream_id].forget()
            case h2.events.WindowUpdated(stream_id=stream_id):
                for stream in list(self._requests.values()):
                    if stream_id in (0, None, stream.id):
                        stream.send_pending()
            case h2.events.RemoteSettingsChanged():
                self.resume_writing()


class _Stream:
    """One request and its answer; the Outlet of an answer that goes on."""

    def __init__(self, connection: Http2Connection, stream_id: int, headers: Sequence[tuple[Any, Any]]) -> None:
        self._connection = connection
        self.id = stream_id
        self._headers: dict[str, str] = dict(headers)
        self._body = bytearray()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._ended = self._gone = self._writing = False
        self._pusher: Pusher | None = None

    def receive(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > MAX_BODY_BYTES:
            self.reset()

    def request(self) -> HttpRequest:
        method, path = self._headers.get(":method", ""), self._headers.get(":path", "")
        return HttpRequest(method, path, self._headers, bytes(self._body))

    def send(self, answer: HttpAnswer) -> None:
        if self._gone:
            return
        headers = [(name.lower(), value) for name, value in answer.headers.items()]
        self._connection.h2.send_headers(self.id, [(":status", str(answer.status)), *headers])
        if answer.push is not None:
            self._connection.flush()
            self._pusher = answer.push(self)
            return
        self.write(answer.body)
        self.end()

    def forget(self) -> None:
        """The client has reset the stream, or has left."""
        self._gone = True
        self._pending.clear()
        self._pending_bytes = 0
        self._connection.remove(self.id)
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.close()

    def send_pending(self) -> None:
        """As much as the client's window and the socket take."""
        connection = self._connection.h2
        while self._pending and self._connection.unsent_bytes < 2**20:
            room = min(connection.local_flow_control_window(self.id), connection.max_outbound_frame_size)
            if room <= 0:
                break
            piece = self._pending.popleft()
            if len(piece) > room:
                self._pending.appendleft(piece[room:])
                piece = piece[:room]
            self._pending_bytes -= len(piece)
            connection.send_data(self.id, piece)
            self._connection.flush()
        if self._pending or self._gone:
            return
        if self._ended:
            connection.end_stream(self.id)
            self._connection.flush()
            self.forget()
        elif self._pusher is not None and not self._writing:
            self._pusher.pump()

    # Outlet

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._connection.loop

    @property
    def backlog_bytes(self) -> int:
        return self._pending_bytes + self._connection.unsent_bytes

    def write(self, data: bytes) -> None:
        if data and not self._gone:
            self._pending.append(data)
            self._pending_bytes += len(data)
            self._writing = True  # By the pusher, which needs no call to go on.
            self.send_pending()
            self._writing = False

    def end(self) -> None:
        self._ended = True
        if not self._gone:
            self.send_pending()

    def reset(self) -> None:
        if not self._gone:
            self._connection.h2.reset_stream(self.id, h2.errors.ErrorCodes.INTERNAL_ERROR)
            self._connection.flush()
            self.forget()

    def abort(self) -> None:
        self._connection.abort()

    def go_away(self) -> None:
        """By hand: h2 would take the connection for closed, though the requests under way are answered."""
        last_stream_id = self._connection.h2.highest_inbound_stream_id
        frame = hyperframe.frame.GoAwayFrame(0, last_stream_id=last_stream_id)
        self._connection.send_raw(frame.serialize())
