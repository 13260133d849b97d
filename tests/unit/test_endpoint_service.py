"""The endpoint as a part of the process: it answers before there is a worker, and never stops one."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from kcl_host.config.settings import EndpointSettings
from kcl_host.endpoint.service import Endpoint, is_loopback
from kcl_host.runtime.clock import SystemClock
from tests.unit.coordination_rig import settings_of


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def endpoint(port: int, process: int | None = None, address: str = "127.0.0.1") -> Endpoint:
    settings = settings_of("me", endpoint=EndpointSettings(port=port, address=address))
    return Endpoint(settings, SystemClock(), 1, process)


class Said(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self._action = action
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == self._action:
            self.heard.set()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[logging.Logger]:
    logger = logging.getLogger("kcl_host.endpoint.service")
    with caplog.at_level(logging.INFO):
        yield logger


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_answers_before_there_is_a_worker_and_leaves_the_port_free(
    listener: socket.socket, log: logging.Logger
) -> None:
    port = listener.getsockname()[1]
    listener.close()
    started = Said("endpoint_started")
    log.addHandler(started)
    before = set(threading.enumerate())
    with endpoint(port):
        assert started.heard.wait(5)
        assert get(port, "/live") == (200, b"live\n")
        assert get(port, "/ready")[0] == 503
        logging.getLogger("kcl_host.x").warning("reads are throttled", extra={"action": "reads_throttled"})
        assert b'"action":"reads_throttled"' in get(port, "/status")[1]
    log.removeHandler(started)
    assert set(threading.enumerate()) == before
    socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_is_said_and_does_not_stop_the_host(listener: socket.socket, log: logging.Logger) -> None:
    failed = Said("endpoint_failed")
    log.addHandler(failed)
    with endpoint(listener.getsockname()[1]):
        assert failed.heard.wait(5)
    log.removeHandler(failed)


def test_the_port_of_one_of_several_processes_and_what_loopback_is() -> None:
    assert endpoint(9400, None, "::1").url == "http://[::1]:9400/"
    assert endpoint(9400, 3).url == "http://127.0.0.1:9403/"
    assert is_loopback("127.0.0.1") and is_loopback("::1") and not is_loopback("0.0.0.0")
