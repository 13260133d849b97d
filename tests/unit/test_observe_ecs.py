"""The ECS task metadata endpoint over HTTP: a real server on loopback (coordination 3.7, 3.8)."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kcl_host.observe.cpu import fetch_link_local
from kcl_host.observe.load import LoadSampler

RECORDING = Path(__file__).parents[1] / "data" / "load" / "ecs-task-limit.json"
SLOW, CUT = "slow", "cut"
Answer = bytes | int | str
"""A body, a status of an error, or how the server misbehaves."""


class Endpoint:
    """Answers each path of a task; `answers` may be changed, `asked` are the paths asked for so far."""

    def __init__(self) -> None:
        recording = json.loads(RECORDING.read_bytes())
        self._snapshots = iter(recording["snapshots"])
        self.answers: dict[str, Answer] = {path: json.dumps(a).encode() for path, a in recording["answers"].items()}
        self.next_second()
        self.asked: list[str] = []
        self._over = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked.append(self.path)
                endpoint._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v4/me"

    def next_second(self) -> None:
        for path, answer in next(self._snapshots)["answers"].items():
            self.answers[path] = json.dumps(answer).encode()

    def sampler(self, timeout_s: float = 20.0, **environ: str) -> LoadSampler:
        return LoadSampler(
            environ=environ or {"ECS_CONTAINER_METADATA_URI_V4": self.url},
            fetch=functools.partial(fetch_link_local, timeout_s=timeout_s),
        )

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        answer = self.answers[handler.path]
        if answer == SLOW:
            self._over.wait(20)
        elif isinstance(answer, int):
            handler.send_error(answer)
        else:
            body = answer if isinstance(answer, bytes) else b"{"
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body) + (answer == CUT)))
            handler.end_headers()
            handler.wfile.write(body)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def test_each_sample_asks_for_stats_and_the_limit_is_asked_for_once(endpoint: Endpoint) -> None:
    load, averages = endpoint.sampler(), []
    for _ in range(3):
        load.sample()
        averages.append(load.drain_average())
        endpoint.next_second()
    assert averages == [{"C": 0.0}, {"C": 75.0}, {"C": 30.0}]
    stats, task, me = "/v4/me/stats", "/v4/me/task", "/v4/me"
    assert endpoint.asked == [stats, stats, task, me, stats]


def test_a_proxy_is_not_asked(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    endpoint.next_second()
    assert endpoint.sampler().drain_average() == {"C": 75.0}


BROKEN: list[Answer] = [500, 404, SLOW, CUT, b"", b"{", b"[]", b"null", b"{}", b'{"cpu_stats": null}', b"\xff"]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_stats_that_cannot_be_had_fail_the_period_and_are_asked_for_again(
    endpoint: Endpoint, broken: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.next_second()
    good = endpoint.answers["/v4/me/stats"]
    endpoint.answers["/v4/me/stats"] = broken
    load = endpoint.sampler(timeout_s=0.02 if broken == SLOW else 20.0)
    load.sample()
    assert load.drain_average() == {"C": -1.0}
    assert [r.__dict__["action"] for r in caplog.records] == ["load_failed"]
    assert (broken == SLOW) == ("timed out" in caplog.records[0].__dict__["error"])
    if broken != SLOW:  # 20 ms are too few for an answer that a test relies on
        endpoint.answers["/v4/me/stats"] = good
        load.sample()
        assert load.drain_average() == {"C": 75.0}


@pytest.mark.parametrize("path", ["/v4/me/task", "/v4/me"])
@pytest.mark.parametrize("broken", [500, b"{", b"[]", CUT], ids=str)
def test_without_the_limit_there_is_no_value_and_it_is_asked_for_again(
    endpoint: Endpoint, path: str, broken: Answer
) -> None:
    endpoint.next_second()
    good = endpoint.answers[path]
    endpoint.answers[path] = broken
    load = endpoint.sampler()
    assert load.drain_average() == {"C": -1.0}
    endpoint.answers[path] = good
    assert load.drain_average() == {"C": 75.0}


def test_a_container_that_the_task_does_not_list(endpoint: Endpoint) -> None:
    """Its share is 2 of the 768 of the others: any use is all of that."""
    endpoint.next_second()
    endpoint.answers["/v4/me"] = b'{"DockerId": "another"}'
    assert endpoint.sampler().drain_average() == {"C": 100.0}


def test_a_refused_connection_fails_the_period() -> None:
    endpoint = Endpoint()
    endpoint.close()
    assert endpoint.sampler().drain_average() == {"C": -1.0}


def test_version_3_alone_is_not_asked(endpoint: Endpoint) -> None:
    load = endpoint.sampler(ECS_CONTAINER_METADATA_URI=endpoint.url)
    load.sample()
    assert load.drain_average() == {}
    assert endpoint.asked == []
