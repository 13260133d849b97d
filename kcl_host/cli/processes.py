"""Several worker processes under one: each a worker of the application in its own right, on a core of its own.

One process uses one core of Python. The parent starts the others, passes signals on, starts a process again that died,
and ends when all have ended. A worker learns by an environment variable which one it is, and that its parent has gone
by the end of its stdin: it then stops in order, as at TERM.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from kcl_host.decisions.start_pacing import start_pause_s
from kcl_host.ports import Clock
from kcl_host.runtime.service_manager import VARIABLES as SERVICE_VARIABLES
from kcl_host.runtime.service_manager import ServiceManager
from kcl_host.runtime.signals import watch_signals
from kcl_host.runtime.threads import start_thread

_log = logging.getLogger(__name__)

NUMBER: Final = "KCL_HOST_PROCESS"
"""0, 1, ... in the environment of a worker process; not there in that of the parent."""
SETTLED_S: Final = 60.0
"""A process that lived so long starts again without a growing pause."""
RESTART_MAX_S: Final = 30.0
WORTH_A_RESTART: Final = (1,)
"""Exit codes that may be another one next time, and any signal. The rest is an answer: all stop."""


GO_ON_AFTER: Final = (signal.SIGHUP, signal.SIGUSR1)


class _Event(msgspec.Struct, frozen=True):
    """A signal that the parent got, or the exit of a process, or that it is time to start it."""

    number: int = -1
    signal: int = 0
    status: int | None = None


class WorkerProcesses:
    """`run` blocks until all have ended. Belongs to the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        environ: Mapping[str, str],
        clock: Clock,
        rng: random.Random,
        lifelines: tuple[int, ...] = (),
    ) -> None:
        """`command` starts a worker; its number is in its environment. `lifelines` are descriptors that stay open in
        each, so that whoever reads their other end knows when the last has gone."""
        self._lifelines = lifelines
        self._command = command
        self._count = count
        self._service_manager = ServiceManager(environ)
        self._environ = {name: value for name, value in environ.items() if name not in SERVICE_VARIABLES}
        self._clock = clock
        self._rng = rng
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._started_s: dict[int, float] = {}
        self._due_s: dict[int, float] = {}
        """When a process that died is started again."""
        self._deaths = dict.fromkeys(range(count), 0)
        self._is_stopping = False

    def run(self) -> int:
        """The exit code: 0 when all stopped as asked, else that of the first that did not."""
        watched = (signal.SIGTERM, signal.SIGINT, *GO_ON_AFTER)
        watch_signals(watched, lambda n: self._events.put(_Event(signal=n)))
        for number in range(self._count):
            self._start(number)
        self._service_manager.ready(f"{self._count} worker processes")
        code = 0
        while self._running or (self._due_s and not self._is_stopping):
            event = self._next_event()
            if event is None:
                continue
            if event.signal:
                self._pass_on(event.signal)
            else:
                ended_with = self._has_ended(event.number, event.status or 0)
                code = code or ended_with
        return code

    def _next_event(self) -> _Event | None:
        """None when the time of a process has come, which is started."""
        due_s = [] if self._is_stopping else [due_s - self._clock.monotonic() for due_s in self._due_s.values()]
        if (alive_s := self._service_manager.alive_interval_s) is not None:
            self._service_manager.alive()
            due_s.append(alive_s)
        try:
            return self._events.get(timeout=max(min(due_s), 0.0) if due_s else None)
        except queue.Empty:
            now_s = self._clock.monotonic()
            for number in [number for number, due_s in self._due_s.items() if due_s <= now_s]:
                del self._due_s[number]
                self._start(number)
            return None

    def _start(self, number: int) -> None:
        # In a session of its own, so that Ctrl-C of a terminal comes once, through us. Its stdin is never written to.
        process = self._running[number] = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**self._environ, NUMBER: str(number)},
            start_new_session=True,
            pass_fds=self._lifelines,
        )
        self._started_s[number] = self._clock.monotonic()
        start_thread(
            f"process-{number}",
            lambda: self._events.put(_Event(number=number, status=process.wait())),
            daemon=True,
        )
        _log.info(
            "worker process started",
            extra={"action": "process_started", "worker_process": number, "process_id": process.pid},
        )

    def _pass_on(self, number: int) -> None:
        if number not in GO_ON_AFTER:
            self._is_stopping = True
            self._service_manager.stopping("stops")
        for process in self._running.values():
            process.send_signal(number)

    def _has_ended(self, number: int, status: int) -> int:
        """The exit code that this makes of the whole; 0 while there is nothing to say against it."""
        process = self._running.pop(number)
        if process.stdin is not None:
            process.stdin.close()
        code = 128 - status if status < 0 else status
        extra = {"action": "process_ended", "worker_process": number, "status": code}
        if self._is_stopping or status == 0:
            _log.info("worker process ended", extra=extra)
            return code
        if status > 0 and status not in WORTH_A_RESTART:
            _log.error("a worker process cannot go on, all stop", extra=extra)
            self._pass_on(signal.SIGTERM)
            return code
        now_s = self._clock.monotonic()
        if now_s - self._started_s[number] >= SETTLED_S:
            self._deaths[number] = 0
        self._deaths[number] += 1
        pause_s = start_pause_s(self._deaths[number], throttled=False, backoff_s=RESTART_MAX_S, rng=self._rng)
        self._due_s[number] = now_s + pause_s
        _log.error("a worker process died, it is started again", extra={**extra, "next_start_s": round(pause_s, 1)})
        return 0


def number_of_this_process(environ: Mapping[str, str]) -> int | None:
    """Which worker process this is; None: it has no parent that looks after it."""
    number = environ.get(NUMBER)
    return None if number is None else int(number)


def watch_parent(act: Callable[[], object]) -> None:
    """Calls `act` when the parent process has gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        act()

    start_thread("parent", watch, daemon=True)
