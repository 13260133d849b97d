"""`spark.server = local`: one Spark Connect server on this machine for all children of a host.

What runs the JVM is `python -m kcl_host.spark.server`, which ends when its stdin does. That is a pipe, the write end of
which the host and its worker processes hold: however they end, the server ends after the last of them. Should that
process itself die, it is started again on the same port with the same pipe; the children then open a new session.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Final

from kcl_host.child.stderr import StderrLines, level_of
from kcl_host.config.settings import SparkSettings
from kcl_host.decisions.start_pacing import start_pause_s
from kcl_host.errors import ConfigurationError, SparkServerFailed
from kcl_host.ports import Clock, Thread
from kcl_host.runtime.threads import start_thread

_log = logging.getLogger(__name__)

REMOTE: Final = "SPARK_REMOTE"
TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
READY_LIMIT_S: Final = 240.0
RESTART_MAX_S: Final = 30.0
SETTLED_S: Final = 60.0
"""A server that was up for so long starts again without a growing pause."""
STOP_LIMIT_S: Final = 10.0


def what_is_missing() -> str | None:
    """Why this machine cannot run a local server; None when it can."""
    from kcl_host.spark.server import ServerFailed, spark_home

    try:
        spark_home()
    except ServerFailed as error:
        return f"spark.server = local: {error}"
    return None


def starts_here(settings: SparkSettings, environ: Mapping[str, str]) -> bool:
    """Whether the host has to start a server: SPARK_REMOTE of the environment is the user's, or our parent's."""
    return settings.server == "local" and REMOTE not in environ


@contextlib.contextmanager
def spark_for_children(
    settings: SparkSettings, environ: Mapping[str, str], clock: Clock, rng: random.Random
) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """The environment in which children find Spark, and the descriptors that worker processes have to keep open.

    Returns when Spark accepts clients. Raises ConfigurationError when it is not installed, SparkServerFailed.
    """
    found = dict(environ)
    if settings.remote is not None:
        found[REMOTE] = settings.remote
    if not starts_here(settings, found):
        yield found, ()
        return
    if problem := what_is_missing():
        raise ConfigurationError(problem)
    found.setdefault(TOKEN, secrets.token_hex(16))
    with contextlib.closing(LocalSparkServer(settings, found, clock, rng)) as server:
        server.start()
        yield found | {REMOTE: server.remote}, (server.lifeline,)


class LocalSparkServer:
    """`start` and `close` belong to one thread; a thread of its own watches the process between them."""

    def __init__(self, settings: SparkSettings, environ: Mapping[str, str], clock: Clock, rng: random.Random) -> None:
        self._command = [sys.executable, "-m", "kcl_host.spark.server", "--memory", settings.server_memory]
        self._port = settings.server_port
        self._environ = environ
        self._clock = clock
        self._rng = rng
        self._stdin, self.lifeline = os.pipe()
        self._ready: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Gets the address each time the server is ready, None when its process has ended."""
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Thread | None = None
        self.remote = ""

    def start(self) -> None:
        """Returns once it accepts clients."""
        _log.info("the local Spark server starts", extra={"action": "spark_starts"})
        self._watch = start_thread("spark-server", self._keep_running, daemon=True)
        try:
            remote = self._ready.get(timeout=READY_LIMIT_S)
        except queue.Empty:
            remote = None
        if remote is None:
            raise SparkServerFailed("the local Spark server could not be started: see the log above")
        self.remote = remote

    def close(self) -> None:
        """Ends it, unless worker processes still live. May be called again."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.close(self.lifeline)
        if self._watch is not None:
            self._watch.join(STOP_LIMIT_S)
            if self._watch.is_alive() and self._process is not None:
                self._process.terminate()
                self._watch.join(STOP_LIMIT_S)
        os.close(self._stdin)

    def _keep_running(self) -> None:
        deaths = 0
        while True:
            began_s = self._clock.monotonic()
            status = self._run_once()
            self._ready.put(None)
            if self._closing.is_set() or not self.remote:
                return
            if self._clock.monotonic() - began_s > SETTLED_S:
                deaths = 0
            deaths += 1
            pause_s = start_pause_s(deaths, throttled=False, backoff_s=RESTART_MAX_S, rng=self._rng)
            _log.error(
                "what looks after the local Spark server ended, it is started again",
                extra={"action": "spark_died", "status": status, "next_start_s": round(pause_s, 1)},
            )
            if self._closing.wait(pause_s):
                return

    def _run_once(self) -> int:
        port = [] if self._port is None else ["--port", str(self._port)]
        # A session of its own: Ctrl-C of a terminal is for the host, whose children still need Spark to end in order.
        process = self._process = subprocess.Popen(
            [*self._command, *port],
            stdin=self._stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environ,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        stderr = process.stderr
        logs = start_thread("spark-server-log", lambda: _pass_on(stderr), daemon=True)
        for line in process.stdout:
            remote = line.decode().strip()
            self._port = int(remote.rpartition(":")[2])
            _log.info("the local Spark server is ready", extra={"action": "spark_ready", "remote": remote})
            self._ready.put(remote)
        status = process.wait()
        logs.join(STOP_LIMIT_S)
        process.stdout.close()
        stderr.close()
        return status


def _pass_on(stderr: IO[bytes]) -> None:
    """What Spark says, into the host's log."""
    log = logging.getLogger("kcl_host.spark_server")
    lines = StderrLines(lambda line: log.log(level_of(line), line, extra={"action": "spark_stderr"}))
    while data := os.read(stderr.fileno(), 65536):
        lines.feed(data)
    lines.close()
