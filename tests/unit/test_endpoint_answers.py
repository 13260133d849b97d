"""What each path of the endpoint answers, from a host that is at work without any."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from kcl_host.endpoint.answers import PATHS, SHARE, TOTAL_LINES, Answers
from kcl_host.endpoint.http import Answer, Request
from kcl_host.endpoint.recent import LINE_CHARS, LINES, SHARDS, TROUBLES, Recent, TroubleHandler
from kcl_host.endpoint.report import NAMED, lag_of, notes_of, readiness
from kcl_host.observe.metrics import Registry
from kcl_host.observe.prometheus import PrometheusText
from kcl_host.observe.published import Published
from kcl_host.runtime.supervisor import WorkerStatus
from tests.fakes.clock import FakeClock
from tests.fakes.running_host import RunningHost, shard_id


class Rig:
    def __init__(self, **fields: Any) -> None:
        self.clock = FakeClock()
        self.host = RunningHost(self.clock, **fields)
        self.answers = Answers(self.host.host(), self.clock)

    def get(self, target: str, host: str = "localhost:9400") -> Answer:
        path, _, query = target.partition("?")
        return self.answers(Request(path=path, query=query, host=host))

    def json(self, target: str) -> dict[str, Any]:
        answer = self.get(target)
        assert answer.content_type == "application/json"
        document: dict[str, Any] = json.loads(answer.body)
        return document


def test_live_and_what_is_not_there() -> None:
    rig = Rig()
    assert rig.get("/live").status == 200
    missing = rig.get("/metrics/")
    assert missing.status == 404 and all(path in missing.body.decode() for path in PATHS)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9400", "127.9.9.9", "[::1]:9400"])
def test_names_of_this_machine(host: str) -> None:
    assert Rig().get("/live", host).status == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "x@localhost"]
)
def test_a_page_of_somebody_else_that_made_its_name_point_here_learns_nothing(host: str) -> None:
    rig = Rig()
    assert [rig.get(path, host).status for path in PATHS] == [421] * len(PATHS)
    assert rig.host.statuses_made == 0
    open_to_all = Answers(rig.host.host(only_local=False), rig.clock)
    assert open_to_all(Request(path="/live", host=host)).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_is_stored_or_guessed_about_or_read_by_other_pages(path: str) -> None:
    headers = dict(Rig().get(path).headers)
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert not any(name.startswith("Access-Control") for name in headers)


def test_the_page_runs_its_own_script_only_and_needs_nothing_else() -> None:
    answer = Rig().get("/")
    policy = dict(answer.headers)["Content-Security-Policy"]
    assert answer.content_type == "text/html; charset=utf-8"
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), answer.body, re.S)
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy and "*" not in policy
    text = answer.body.decode()
    assert not re.search(r"""(?:src|href)=["'](?!data:)|url\(|@import|\son\w+=|\sstyle=""", text), (
        "nothing from outside"
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", text), "text only"


# /ready


def test_ready() -> None:
    rig = Rig()
    rig.host.split(0)
    answer = rig.get("/ready")
    assert (answer.status, json.loads(answer.body)) == (200, {"ready": True, "reasons": []})


def test_not_ready_before_there_is_a_worker_and_after_it() -> None:
    assert readiness(None).reasons == ("the worker is being made",)
    rig = Rig()
    rig.host.phase, rig.host.waits_for = "STARTING", "stream orders is CREATING"
    answer = rig.get("/ready")
    assert answer.status == 503
    assert json.loads(answer.body)["reasons"] == ["the worker is STARTING: stream orders is CREATING"]
    rig.clock.advance(1)
    rig.host.phase, rig.host.waits_for = "STOPPING", ""
    assert json.loads(rig.get("/ready").body)["reasons"] == ["the worker is STOPPING"]


def status_of(shards: int, **fields: Any) -> WorkerStatus:
    """All shards are this worker's."""
    status = RunningHost(FakeClock(), shards=shards, workers=1).status()
    return replace(status, **fields)


def with_consumers(status: WorkerStatus, **fields: Any) -> WorkerStatus:
    return replace(status, consumers=tuple(replace(consumer, **fields) for consumer in status.consumers))


def test_not_ready_until_leases_are_known_and_children_initialised() -> None:
    assert readiness(status_of(0)).ready, "a worker that got no lease is ready: others have them all"
    assert readiness(status_of(0, leases_known=False)).reasons == ("its leases are not known yet",)
    starting = with_consumers(status_of(2), state="INITIALIZING", child="STARTING")
    assert readiness(starting).reasons == (f"the child is not initialised of {shard_id(0)}, {shard_id(1)}",)
    failing = with_consumers(status_of(1), state="INITIALIZING", child="BACKOFF")
    assert readiness(failing).reasons == (f"the child fails of {shard_id(0)}",)
    for state in ("WAITING_ON_PARENT_SHARDS", "PROCESSING", "SHUTDOWN_REQUESTED", "SHUTDOWN_COMPLETE"):
        assert readiness(with_consumers(status_of(1), state=state, child="")).ready, state


def test_a_reason_stays_short() -> None:
    (reason,) = readiness(with_consumers(status_of(1000), child="FATAL")).reasons
    assert reason.endswith(f"and {1000 - NAMED} more") and len(reason) < 400


# /lag


def test_lag() -> None:
    rig = Rig(shards=4, workers=1)
    rig.host.lag_ms = {0: 0, 1: 1500, 2: 90_000, 3: 10}
    rig.host.child[2] = "BACKOFF"
    assert rig.json("/lag") == {
        "max_millis_behind": 90_000, "sum_millis_behind": 91_510, "shards": 4, "unknown": 0, "failing": 1,
    }  # fmt: skip
    unread = with_consumers(status_of(2), millis_behind_latest=None)
    assert lag_of(unread.consumers).unknown == 2 and lag_of(unread.consumers).max_millis_behind == 0
    for state in ("WAITING_ON_PARENT_SHARDS", "SHUTDOWN_COMPLETE"):
        assert lag_of(with_consumers(status_of(2), state=state).consumers).shards == 0, state


# /metrics


def test_metrics() -> None:
    rig = Rig()
    registry = Registry("me")
    Published(registry, rig.clock).leases_renewed(lost=0, held=7)
    text = PrometheusText(registry, rig.clock)
    answer = Answers(rig.host.host(metrics=text.text), rig.clock)(Request(path="/metrics", host="localhost"))
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    samples = [s for family in text_string_to_metric_families(answer.body.decode()) for s in family.samples]
    assert [s.value for s in samples if s.name == "kcl_host_current_leases"] == [7]
    nothing = Answers(rig.host.host(metrics=lambda: None), rig.clock)(Request(path="/metrics", host="localhost"))
    assert nothing.status == 200 and not list(text_string_to_metric_families(nothing.body.decode()))


# /status


def test_status() -> None:
    rig = Rig(shards=4, workers=2)
    rig.host.says(0, "INFO opened")
    rig.host.says(0, "\x1b[31mpassword=hunter2", logging.ERROR)
    rig.host.child[2] = "BACKOFF"
    rig.host.fails("child failed", shard=shard_id(2), error="status 1")
    document = rig.json("/status")
    assert document["schema"] == 1 and document["worker_id"] == rig.host.name and document["pid"] == 4711
    assert [c["lease_key"] for c in document["consumers"]] == [shard_id(0), shard_id(2)]
    first, failing = document["consumers"]
    assert (first["child"], first["child_pid"], first["checkpoint_age_s"]) == ("RUNNING", 1000, 1.5)
    assert [line["text"] for line in first["stderr"]] == ["INFO opened", "\\x1b[31mpassword=***"]
    assert [line["level"] for line in first["stderr"]] == ["INFO", "ERROR"]
    assert (failing["child"], failing["child_pid"], failing["last_error"]) == (
        "BACKOFF", None, "the child ended with status 1",
    )  # fmt: skip
    assert [(e["action"], e["facts"]["shard"]) for e in document["errors"]] == [("child_failed", shard_id(2))]
    assert [lease["owner"] for lease in document["fleet"]["leases"]] == [rig.host.owner[n] for n in range(4)]
    assert document["ready"]["ready"] is False and document["lag"]["failing"] == 1


def test_the_fleet_is_not_sent_again_to_who_has_it() -> None:
    rig = Rig()
    document = rig.json("/status")
    again = rig.json(f"/status?fleet={document['fleet_taken_s']}")
    assert again["fleet"] is None and again["fleet_taken_s"] == document["fleet_taken_s"]
    assert rig.json("/status?fleet=17")["fleet"] is not None
    rig.clock.advance(2)
    assert rig.json(f"/status?fleet={document['fleet_taken_s']}")["fleet"] is not None


def test_without_a_fleet_and_without_a_worker() -> None:
    rig = Rig()
    rig.host.has_fleet, rig.host.fleet_error = False, "dynamodb:Scan is not allowed"
    document = rig.json("/status")
    assert (document["fleet"], document["fleet_error"]) == (None, "dynamodb:Scan is not allowed")
    assert len(document["consumers"]) == 2
    none = Answers(rig.host.host(status=lambda: None), rig.clock)(Request(path="/status", host="localhost"))
    assert json.loads(none.body)["phase"] == "STARTING"


def test_a_hundred_scrapes_a_second_cost_one() -> None:
    rig = Rig()
    for path in ("/status", "/ready", "/lag", "/metrics"):
        for _ in range(100):
            rig.get(path)
    assert rig.host.statuses_made == 2, "one for the status, one for the others"
    rig.clock.advance(1)
    rig.get("/status")
    assert rig.host.statuses_made == 3


def test_what_takes_long_to_make_is_kept_longer() -> None:
    rig = Rig()
    made = 0

    def slow() -> WorkerStatus:
        nonlocal made
        made += 1
        rig.clock.advance(0.5)
        return rig.host.status()

    answers = Answers(rig.host.host(status=slow), rig.clock)
    began_s = rig.clock.monotonic()
    for _ in range(200):
        answers(Request(path="/status", host="localhost"))
        rig.clock.advance(0.1)
    spent_s = made * 0.5
    assert made > 1 and spent_s <= (rig.clock.monotonic() - began_s) / SHARE + 0.5


def test_lines_of_many_shards_are_fewer_of_each_but_all_of_those_that_fail() -> None:
    rig = Rig(shards=1000, workers=1)
    rig.host.child[3] = "FATAL"
    for shard in range(1000):
        for line in range(LINES + 2):
            rig.host.says(shard, f"line {line}")
    consumers = rig.json("/status")["consumers"]
    assert sum(len(c["stderr"]) for c in consumers) <= max(TOTAL_LINES, 1000) + LINES
    assert [line["text"] for line in consumers[0]["stderr"]] == [f"line {LINES + 1}"]
    assert len(consumers[3]["stderr"]) == LINES


# What was said last


def test_memory_is_bounded() -> None:
    recent = Recent(FakeClock())
    for shard in range(SHARDS + 10):
        for _ in range(LINES + 5):
            recent.note_line(shard_id(shard), 1, logging.INFO, "x" * 10_000)
    recent.note_line(shard_id(20), 1, logging.INFO, "again")
    assert repr(recent).startswith(f"<Recent {SHARDS} shards")
    assert recent.lines_of(shard_id(0)) == ()
    lines = recent.lines_of(shard_id(20))
    assert len(lines) == LINES and lines[-1].text == "again" and len(lines[0].text) == LINE_CHARS


@pytest.fixture
def recent() -> Iterator[Recent]:
    recent = Recent(FakeClock())
    handler = TroubleHandler(recent)
    logging.getLogger("kcl_host").addHandler(handler)
    yield recent
    logging.getLogger("kcl_host").removeHandler(handler)


def test_warnings_and_errors_of_the_host_are_kept_and_those_of_children_are_not(recent: Recent) -> None:
    log = logging.getLogger("kcl_host.somewhere")
    log.info("lifecycle")
    logging.getLogger("kcl_host.child").error("a line of a child", extra={"shard": "s"})
    log.warning("reads are throttled", extra={"action": "reads_throttled", "shard": "s", "failures": 3})
    try:
        raise ValueError("secretKey=abc")
    except ValueError:
        log.exception("broken secretKey=abc", extra={"action": "fatal", "error": "password=x"})
    broken, throttled = recent.troubles()
    assert (throttled.action, throttled.facts) == ("reads_throttled", {"shard": "s"})
    assert broken.message == "broken secretKey=*** (ValueError)" and broken.facts == {"error": "password=***"}
    for number in range(TROUBLES + 10):
        log.warning("again", extra={"action": str(number)})
    assert len(recent.troubles()) == TROUBLES and recent.troubles()[0].action == str(TROUBLES + 9)


def test_notes_for_the_view_of_the_fleet() -> None:
    rig = Rig(shards=2, workers=1)
    rig.host.child[1] = "FATAL"
    assert notes_of(rig.host.status()) == {shard_id(1): "child in FATAL, 4 failures"}
    assert notes_of(None) == {}
