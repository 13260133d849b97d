"""The endpoint's HTTP server against clients that are slow, huge, malformed, deaf or many. Turn by turn."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kcl_host.endpoint.http import Answer, HttpServer, Limits, Request
from tests.fakes.clock import FakeClock

LIMITS = Limits(connections=4)
GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = b"x" * 8_000_000
"""More than the sockets of both ends take while nobody reads."""


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.requests: list[Request] = []
        self.server = HttpServer(self._handle, "127.0.0.1", 0, self.clock, LIMITS)
        self._clients: list[socket.socket] = []

    def _handle(self, request: Request) -> Answer:
        self.requests.append(request)
        if request.path == "/broken":
            raise KeyError("a bug")
        return Answer(body=BIG if request.path == "/big" else f"this is {request.path}".encode())

    def client(self, sends: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=5)
        self._clients.append(client)
        self.server.turn(5)
        if sends:
            self.send(client, sends)
        return client

    def send(self, client: socket.socket, data: bytes) -> None:
        client.sendall(data)
        self.server.turn(5)

    def turns(self) -> None:
        for _ in range(20):
            self.server.turn(0)

    def answer(self, client: socket.socket) -> str:
        """What the client has got by now."""
        self.turns()
        client.setblocking(False)
        got = []
        try:
            while data := client.recv(1_000_000):
                got.append(data)
                self.server.turn(0)
        except BlockingIOError:
            pass
        return b"".join(got).decode()

    def is_closed(self, client: socket.socket) -> bool:
        """Whether the server has closed, once everything it sent has been read."""
        self.answer(client)
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.server.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def status(answer: str) -> int:
    return int(answer.split(" ", 2)[1]) if answer else 0


def test_requests_on_one_connection(rig: Rig) -> None:
    client = rig.client(GET)
    answer = rig.answer(client)
    assert answer.startswith("HTTP/1.1 200 OK\r\n") and answer.endswith("\r\n\r\nthis is /a")
    assert "Content-Length: 10\r\n" in answer and "Date: " in answer and "Connection: close" not in answer
    rig.send(client, b"HEAD /b?x=1 HTTP/1.1\r\nHost: localhost:9400\r\n\r\n")
    answer = rig.answer(client)
    assert status(answer) == 200 and "Content-Length: 10\r\n" in answer and answer.endswith("\r\n\r\n")
    assert rig.requests[1] == Request(path="/b", query="x=1", host="localhost:9400")
    assert not rig.is_closed(client)


def test_a_client_of_http_1_0_and_one_that_wants_no_more_are_closed(rig: Rig) -> None:
    for head in (b"GET /a HTTP/1.0\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n"):
        client = rig.client(head)
        assert "Connection: close" in rig.answer(client)
        assert rig.is_closed(client)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"POST /a HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /" + b"a" * 3000, 414),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 2000, 431),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 9000, 431),
        (b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\nHost: x\n\n", 400),
        (b"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /a\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_what_is_no_request_for_us_is_refused_and_closed(rig: Rig, sent: bytes, expected: int) -> None:
    client = rig.client(sent)
    rig.turns()
    answer = rig.answer(client)
    assert status(answer) == expected and "Connection: close" in answer
    assert ("Allow: GET, HEAD" in answer) is (expected == 405)
    assert rig.is_closed(client) and not rig.requests


def test_a_refused_client_that_goes_on_sending_still_gets_the_answer(rig: Rig) -> None:
    client = rig.client(b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n")
    for _ in range(10):
        rig.send(client, b"x" * 4000)
    assert status(rig.answer(client)) == 405
    rig.clock.advance(LIMITS.linger_s)
    rig.turns()
    assert not rig.server.connections


def test_a_head_that_comes_too_slowly(rig: Rig) -> None:
    client = rig.client()
    for byte in GET[:4]:
        rig.send(client, bytes([byte]))
        rig.clock.advance(LIMITS.head_s / 4 - 0.1)
    assert rig.answer(client) == ""
    rig.clock.advance(1)
    rig.turns()
    assert status(rig.answer(client)) == 408
    assert rig.is_closed(client)


def test_who_says_nothing_is_dropped(rig: Rig) -> None:
    silent, idle = rig.client(), rig.client(GET)
    rig.answer(idle)
    rig.clock.advance(LIMITS.head_s)
    assert rig.is_closed(silent) and not rig.is_closed(idle)
    rig.clock.advance(LIMITS.idle_s)
    assert rig.is_closed(idle)


def test_who_does_not_take_an_answer_holds_nobody_up_and_is_dropped(rig: Rig) -> None:
    deaf = rig.client(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    rig.turns()
    assert len(rig.server.connections) == 1
    assert rig.answer(rig.client(GET)).endswith("this is /a")
    rig.clock.advance(LIMITS.answer_s)
    rig.turns()
    assert not [c for c in rig.server.connections.values() if c.phase == "writing"]
    assert not rig.answer(deaf).endswith("xx\r\n\r\n")


def test_who_takes_it_slowly_gets_all_of_it(rig: Rig) -> None:
    client = rig.client(b"GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    got = rig.answer(client)
    assert len(got) > len(BIG) and got.endswith("\r\n\r\n" + BIG.decode())
    assert rig.is_closed(client)


def test_slow_clients_keep_nobody_out(rig: Rig) -> None:
    slow = [rig.client(b"GET /slow") for _ in range(LIMITS.connections)]
    for _ in range(3):
        rig.clock.advance(0.1)
        assert rig.answer(rig.client(GET)).endswith("this is /a")
        assert len(rig.server.connections) <= LIMITS.connections
    assert rig.is_closed(slow[0])


def test_a_request_sent_ahead_is_not_answered(rig: Rig) -> None:
    client = rig.client(GET * 500)
    rig.turns()
    answer = rig.answer(client)
    assert answer.count("HTTP/1.1 ") == 1 and "Connection: close" in answer
    assert len(rig.requests) == 1


def test_a_handler_that_fails(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    client = rig.client(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = rig.answer(client)
    assert status(answer) == 500 and "a bug" not in answer
    assert [record.action for record in caplog.records] == ["endpoint_failed"]  # type: ignore[attr-defined]
    rig.send(client, GET)
    assert status(rig.answer(client)) == 200


def test_a_client_that_leaves_in_the_middle(rig: Rig) -> None:
    client = rig.client(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # Closes with a reset.
    client.close()
    rig.turns()
    assert not rig.server.connections
    assert status(rig.answer(rig.client(GET))) == 200
