"""The paths of the endpoint and what each answers. Everything is made at most once a second, however many ask."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qs

import msgspec

from kcl_host import __version__
from kcl_host.decisions.fleet_report import FleetView
from kcl_host.endpoint.http import Answer, Request
from kcl_host.endpoint.recent import LINES, Recent
from kcl_host.endpoint.report import FAILING, SCHEMA, HostReport, lag_of, readiness, shard_report
from kcl_host.observe.prometheus import CONTENT_TYPE
from kcl_host.ports import Clock
from kcl_host.runtime.supervisor import WorkerStatus

_Made = TypeVar("_Made")

FRESH_S: Final = 1.0
SHARE: Final = 20
"""At most this part of the time goes into one kind of answer, a twentieth: what takes long to make is kept longer."""
TOTAL_LINES: Final = 400
"""So many lines of stderr are in a report, one for each shard and all of failing children at least."""
PATHS: Final = ("/", "/live", "/ready", "/metrics", "/status", "/lag")
_JSON: Final = "application/json"
_COMMON: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_NO_DOCUMENT: Final = "default-src 'none'; frame-ancestors 'none'"
_LOCAL_HOST: Final = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?", re.I)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint shows. The callables must not wait for anything.

    `status` None: there is no worker at the moment. `metrics` None: nothing is measured. `fleet`: the last view, and
    why there is no newer one.
    """

    status: Callable[[], WorkerStatus | None]
    metrics: Callable[[], bytes | None]
    fleet: Callable[[], tuple[FleetView | None, str | None]]
    recent: Recent
    pid: int
    process: int | None = None
    only_local: bool = True
    """Asked under another name than that of this machine, it refuses: a page of somebody else might have made its own
    name point here (DNS rebinding)."""


class Answers:
    """A Handler of the HTTP server. Belongs to its thread."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._started_s = clock.wall()
        self._page = _page()
        self._status = _Kept(host.status, clock)
        self._fleet_json: tuple[FleetView | None, msgspec.Raw | None] = (None, None)
        self._routes: dict[str, Callable[[], Answer]] = {
            "/": lambda: self._page,
            "/live": lambda: _answer(b"live\n", "text/plain; charset=utf-8"),
            "/ready": self._ready,
            "/metrics": _Kept(self._metrics, clock),
            "/status": _Kept(self._report, clock),
            "/lag": self._lag,
        }
        self._without_fleet = _Kept(lambda: self._report(with_fleet=False), clock)

    def __call__(self, request: Request) -> Answer:
        if self._host.only_local and not _LOCAL_HOST.fullmatch(request.host):
            return _answer(b"this answers to localhost and 127.0.0.1 only\n", "text/plain; charset=utf-8", 421)
        route = self._routes.get(request.path)
        if route is None:
            return _answer(f"nothing here; there is {' '.join(PATHS)}\n".encode(), "text/plain; charset=utf-8", 404)
        if request.path == "/status" and request.query:
            view, _ = self._host.fleet()
            if view is not None and parse_qs(request.query).get("fleet") == [str(view.taken_s)]:
                return self._without_fleet()
        return route()

    def _ready(self) -> Answer:
        ready = readiness(self._status())
        return _answer(msgspec.json.encode(ready), _JSON, 200 if ready.ready else 503)

    def _metrics(self) -> Answer:
        text = self._host.metrics()
        if text is None:
            return _answer(b"# nothing is measured yet\n", CONTENT_TYPE)
        return _answer(text, CONTENT_TYPE)

    def _lag(self) -> Answer:
        status = self._status()
        return _answer(msgspec.json.encode(lag_of(status.consumers if status else ())), _JSON)

    def _report(self, *, with_fleet: bool = True) -> Answer:
        # Of now, not of some time within the last second: rates are made of these numbers.
        host, status, now_s, taken_s = self._host, self._host.status(), self._clock.monotonic(), self._clock.wall()
        view, fleet_error = host.fleet()
        consumers = status.consumers if status else ()
        lines = max(1, min(LINES, TOTAL_LINES // max(1, len(consumers))))
        report = HostReport(
            schema=SCHEMA,
            version=__version__,
            taken_s=taken_s,
            started_s=self._started_s,
            application=status.application_name if status else "",
            streams=status.stream_names if status else (),
            worker_id=status.worker_id if status else "",
            pid=host.pid,
            process=host.process,
            phase=status.phase if status else "STARTING",
            waits_for=status.waits_for if status else "",
            is_leader=status is not None and status.is_leader,
            ready=readiness(status),
            lag=lag_of(consumers),
            consumers=tuple(
                shard_report(c, now_s, host.recent.lines_of(c.lease_key, LINES if c.child in FAILING else lines))
                for c in consumers
            ),
            errors=host.recent.troubles(),
            fleet_taken_s=view.taken_s if view else None,
            fleet_error=fleet_error,
            fleet=self._fleet_as_json(view) if with_fleet else None,
        )
        return _answer(msgspec.json.encode(report), _JSON)

    def _fleet_as_json(self, view: FleetView | None) -> msgspec.Raw | None:
        """Encoded once for each look."""
        known, encoded = self._fleet_json
        if view is not known:
            encoded = None if view is None else msgspec.Raw(msgspec.json.encode(view))
            self._fleet_json = view, encoded
        return encoded


class _Kept(Generic[_Made]):
    """What `make` makes, made again when it is asked for and not fresh any more."""

    def __init__(self, make: Callable[[], _Made], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._until_s = -math.inf
        self._made: _Made | None = None

    def __call__(self) -> _Made:
        began_s = self._clock.monotonic()
        made = self._made
        if made is None or began_s >= self._until_s:
            made = self._made = self._make()
            ended_s = self._clock.monotonic()
            self._until_s = max(began_s + FRESH_S, ended_s + (SHARE - 1) * (ended_s - began_s))
        return made


def _answer(body: bytes, content_type: str, status: int = 200, policy: str = _NO_DOCUMENT) -> Answer:
    headers = (*_COMMON, ("Content-Security-Policy", policy))
    return Answer(status=status, content_type=content_type, body=body, headers=headers)


def _page() -> Answer:
    """The page; its policy lets run what stands in it, word for word, and nothing else."""
    html = files("kcl_host.endpoint").joinpath("page.html").read_bytes()
    script, style = (_digest(html, tag) for tag in (b"script", b"style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return _answer(html, "text/html; charset=utf-8", policy=policy)


def _digest(html: bytes, tag: bytes) -> str:
    found = re.search(rb"<%b>(.*)</%b>" % (tag, tag), html, re.S)
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'"
