"""What arrives at the endpoint's port."""

from __future__ import annotations

import socket
import struct
from functools import cache
from random import Random
from typing import NamedTuple

from kcl_host.endpoint.answers import Answers, Host
from kcl_host.endpoint.http import HttpServer, Limits
from kcl_host.endpoint.recent import Recent
from tests.fakes.clock import FakeClock
from tests.fuzz.driver import Target
from tests.fuzz.mutation import mutated, nasty_text

LIMITS = Limits(connections=8)
TURNS = 200
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a million connections must not wait for their ends."""


class Sent(NamedTuple):
    pieces: tuple[bytes, ...]


def make(rng: Random) -> Sent:
    data = b"".join(_request(rng) for _ in range(rng.choice((1, 1, 2))))
    if rng.random() < 0.5:
        data = mutated(rng, data)
    size = rng.choice((len(data), len(data), 1000, 100)) or 1
    return Sent(tuple(data[start : start + size] for start in range(0, len(data), size))[:20])


def _request(rng: Random) -> bytes:
    method = rng.choice(("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", nasty_text(rng)[:40]))
    target = rng.choice(("/", "/live", "/status?fleet=1", "/status?" + nasty_text(rng), "/%00", "*", "http://x/"))
    version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ""))
    headers = ["Host: " + rng.choice(("localhost", "localhost:80", "evil.example", "127.0.0.1", nasty_text(rng)))]
    while rng.random() < 0.4:
        spaces = " " * rng.choice((1, 10, 3900))
        headers.append(
            rng.choice((f"X:{spaces}y{spaces}z", f"{nasty_text(rng)[:60]}: {nasty_text(rng)}", "Content-Length: 0"))
        )
    return ("\r\n".join([f"{method} {target} {version}", *headers]) + "\r\n\r\n").encode()


@cache
def _server() -> HttpServer:
    clock = FakeClock()
    host = Host(status=lambda: None, metrics=lambda: b"", fleet=lambda: (None, None), recent=Recent(clock), pid=1)
    return HttpServer(Answers(host, clock), "127.0.0.1", 0, clock, LIMITS)


def run(sent: Sent) -> None:
    """The server takes what one client sends, and is left without it once the client has gone."""
    server = _server()
    heard = b""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        client.setblocking(False)
        server.turn(None)
        for piece in sent.pieces:
            try:
                client.sendall(piece)
                server.turn(0)
                server.turn(0)
                heard += client.recv(1 << 20)
            except (BlockingIOError, ConnectionError):
                pass
            for connection in server.connections.values():
                assert len(connection.received) <= LIMITS.head_bytes + 4096, "more is kept than a head may have"
    assert not heard or heard.startswith(b"HTTP/1.1 "), heard[:40]
    assert not heard.startswith(b"HTTP/1.1 500"), "no answer could be made"
    for _ in range(TURNS):
        if not server.connections:
            return
        server.turn(0)
    raise AssertionError("a client that has gone is still there")


TARGET = Target("requests", make, run)
