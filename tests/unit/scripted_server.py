"""A server that answers HTTP by script, for what lies below botocore."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

CONTENT_TYPE = "application/x-amz-json-1.1"
PAGE = b'{"Records": [], "NextShardIterator": "n", "MillisBehindLatest": 7}'


class Hang:
    """No answer, until the server ends."""


class Close:
    """The connection is closed without an answer."""


class Wait:
    """The rest of the answer comes when the server is told to `go_on`."""


class Cut(msgspec.Struct, frozen=True):
    """The connection is closed after these bytes."""

    raw: bytes


Step = bytes | list[bytes | type[Wait]] | type[Hang] | type[Close] | Cut


class Asked(msgspec.Struct, frozen=True):
    connection: int
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def by_botocore(self) -> bool:
        return "amz-sdk-request" in self.headers


def answer(body: bytes = PAGE, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {CONTENT_TYPE}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Server(socketserver.ThreadingTCPServer):
    """Answers with `steps`, in order, on whichever connection asks; afterwards always with the last of them."""

    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True

    def __init__(self, *steps: Step, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.context = context
        self.steps = list(steps)
        self.asked: list[Asked] = []
        self.connections = 0
        self.ending = threading.Event()
        self.go_on = threading.Event()
        self.done = threading.Semaphore(0)
        """Counts the steps that were taken completely."""
        self.open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave as they like."""


class _Handler(socketserver.StreamRequestHandler):
    server: Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.server.connections += 1
        self.number = self.server.connections
        self.server.open.append(self.request)
        if self.server.context is not None:
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
            self.server.open.append(self.request)
        super().setup()

    def handle(self) -> None:
        while line := self.rfile.readline():
            headers = {}
            while (header := self.rfile.readline().strip()) != b"":
                name, _, value = header.decode().partition(":")
                headers[name.lower()] = value.strip()
            body = self.rfile.read(int(headers["content-length"]))
            self.server.asked.append(Asked(self.number, line.decode().split()[1], headers, json.loads(body)))
            steps = self.server.steps
            step = steps.pop(0) if len(steps) > 1 else steps[0]
            if isinstance(step, Cut):
                self.wfile.write(step.raw)
            if isinstance(step, (Cut, type)):
                if step is Hang:
                    self.server.ending.wait()
                self.request.shutdown(socket.SHUT_WR)
                self.server.done.release()
                return
            for piece in step if isinstance(step, list) else [step]:
                if isinstance(piece, bytes):
                    self.wfile.write(piece)
                else:
                    assert self.server.go_on.wait(10)
            self.server.done.release()


Serve = Callable[..., Server]


@contextlib.contextmanager
def serving(*steps: Step, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(*steps, context=context)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        for opened in server.open:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        server.server_close()
        for opened in server.open:
            opened.close()
        thread.join()
