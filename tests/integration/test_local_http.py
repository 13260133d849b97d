"""The engines' HTTP server, by raw sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kcl_host.local.http import MAX_BODY_BYTES, Exchange, HttpAnswer, HttpRequest, HttpServer

pytestmark = pytest.mark.integration


def echo(request: HttpRequest) -> Exchange:
    return Exchange(apply=lambda: HttpAnswer(200, request.method.encode() + b" " + request.body))


@contextmanager
def serving(handler: Callable[[HttpRequest], Exchange] = echo) -> Iterator[HttpServer]:
    server = HttpServer(handler, port=0, name="test-http")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def connection(server: HttpServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        yield sock


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def receive(sock: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (piece := sock.recv(count - len(received))):
        received += piece
    return received


def receive_all(sock: socket.socket) -> bytes:
    received = b""
    while piece := sock.recv(65536):
        received += piece
    return received


def test_requests_on_one_connection_in_any_pieces() -> None:
    with serving() as server, connection(server) as sock:
        sock.sendall(request(b"one") + request(b"two"))
        expected = answer(b"POST one") + answer(b"POST two")
        assert receive(sock, len(expected)) == expected
        for byte in request(b"three"):
            sock.sendall(bytes([byte]))
        assert receive(sock, len(answer(b"POST three"))) == answer(b"POST three")


def test_a_large_body_after_100_continue() -> None:
    body = b"x" * (MAX_BODY_BYTES - 10)
    with serving(lambda r: Exchange(apply=lambda: HttpAnswer(200, str(len(r.body)).encode()))) as server:
        with connection(server) as sock:
            sock.sendall(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert receive(sock, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body)
            expected = answer(str(len(body)).encode())
            assert receive(sock, len(expected)) == expected


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), b"413"),
        (b"POST / HTTP/1.1\r\nX: " + b"x" * 70_000, b"431"),
    ],
    ids=["nonsense", "length", "chunked", "body", "header"],
)
def test_what_is_refused_closes_the_connection(sent: bytes, status: bytes) -> None:
    with serving() as server, connection(server) as sock:
        sock.sendall(sent)
        assert receive_all(sock).split(b" ")[1] == status


def test_a_failing_handler_is_a_500() -> None:
    def fail(request: HttpRequest) -> Exchange:
        raise RuntimeError("a bug")

    with serving(fail) as server, connection(server) as sock:
        sock.sendall(request(b""))
        assert receive(sock, 12) == b"HTTP/1.1 500"


def test_an_answer_that_waits_does_not_hold_up_others() -> None:
    slow = Exchange(apply=lambda: HttpAnswer(200, b"slow"), after_s=0.2)
    with serving(lambda r: slow if r.body == b"slow" else echo(r)) as server:
        with connection(server) as first, connection(server) as second:
            first.sendall(request(b"slow"))
            second.sendall(request(b"quick"))
            assert receive(second, len(answer(b"POST quick"))) == answer(b"POST quick")
            assert receive(first, len(answer(b"slow"))) == answer(b"slow")


def test_a_late_request_is_applied_though_the_client_has_gone() -> None:
    applied = threading.Event()

    def note() -> HttpAnswer:
        applied.set()
        return HttpAnswer(200, b"")

    with serving(lambda r: Exchange(apply=note, before_s=0.05)) as server:
        with connection(server) as sock:
            sock.sendall(request(b""))
            assert not applied.is_set()
        assert applied.wait(5)


def test_stopping_closes_what_hangs() -> None:
    with serving(lambda r: Exchange(apply=None, fate="hang")) as server:
        with connection(server) as sock:
            sock.sendall(request(b""))
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            server.stop()
            sock.settimeout(5)
            assert sock.recv(1) == b""


def test_a_port_that_is_taken() -> None:
    with serving() as server, pytest.raises(OSError, match="Address already in use"):
        HttpServer(echo, port=server.port, name="test-second")


def test_a_server_that_never_started_can_be_stopped() -> None:
    server = HttpServer(echo, port=0, name="test-unused")
    server.stop()
    server.stop()
