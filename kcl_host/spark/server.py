"""One local Spark Connect server for all children of a host (`spark.server = local`).

    python -m kcl_host.spark.server [--memory 2g] [--cores N] [--port N]

Prints `sc://localhost:PORT` on stdout each time the server is ready, restarts it on the same port when it dies, and
ends with its owner: when stdin is closed, on TERM, or with this process, however that ends. Logs go to stderr.

The server runs code for whoever reaches its port and listens on loopback only: with untrusted users on the machine give
it a token (SPARK_CONNECT_AUTHENTICATE_TOKEN, which the clients find in their environment too).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_log = logging.getLogger("kcl_host.spark.server")

READY_LIMIT_S: Final = 180.0
PORT_LIMIT_S: Final = 15.0
STOP_LIMIT_S: Final = 5.0
LONGEST_PAUSE_S: Final = 30.0
_QUIET_AFTER_S: Final = 60.0
"""A server that ran for so long is restarted at once."""
_LOOPBACK: Final = "127.0.0.1"
_PREFIX: Final = "kcl-host-spark-"
_PR_SET_PDEATHSIG: Final = 1
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex{3}
"""


class ServerFailed(Exception):
    """The local Spark server cannot be started."""


def spark_home() -> Path:
    """SPARK_HOME, else the Spark that is installed beside this Python (kcl-host[spark-local]). Raises ServerFailed."""
    named = os.environ.get("SPARK_HOME")
    if named:
        home = Path(named)
    else:
        spec = importlib.util.find_spec("pyspark")
        if spec is None:
            raise ServerFailed("no Spark is installed here: install kcl-host[spark-local], or name one in SPARK_HOME")
        home = Path(next(iter(spec.submodule_search_locations or [""])))
    if not (home / "bin" / "spark-submit").exists() or not any((home / "jars").glob("spark-connect_*.jar")):
        raise ServerFailed(
            f"no Spark with a Connect server in {home}: install kcl-host[spark-local] or name one in SPARK_HOME "
            "(pyspark-client is only the client)"
        )
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise ServerFailed("no Java on the PATH: Spark 4 needs Java 17 or later")
    return home


class ConnectServer:
    """The server process, on a port of its own. Used by one thread, the one that made it: see `_end_with_parent`."""

    def __init__(self, *, memory: str = "2g", cores: int | None = None, port: int | None = None) -> None:
        self._home = spark_home()
        self._memory = memory
        self._cores = cores or os.cpu_count() or 1
        self.port = port or _free_port()
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> str:
        """For SPARK_REMOTE. Stays the same over restarts. By this name the client sends a token without TLS."""
        return f"sc://localhost:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, told_to_end: Callable[[float], bool]) -> bool:
        """True once it accepts clients; False when `told_to_end`, which waits so many seconds. Raises ServerFailed."""
        deadline_s = time.monotonic() + PORT_LIMIT_S
        while self._accepts():  # the server of a host that was killed a moment ago, perhaps
            if told_to_end(0.1):
                return False
            if time.monotonic() > deadline_s:
                raise ServerFailed(f"port {self.port} is taken by another process")
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            cwd=self._folder,
            env={
                **{
                    name: value
                    for name, value in os.environ.items()
                    if name not in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")
                },
                "SPARK_HOME": str(self._home),
                "SPARK_LOCAL_IP": _LOOPBACK,
            },
            preexec_fn=_end_with_parent,
        )
        deadline_s = time.monotonic() + READY_LIMIT_S
        while not self._accepts():
            if told_to_end(0.1):
                self.stop()
                return False
            if self._process.poll() is not None:
                raise ServerFailed(f"the local Spark server ended with {self._process.returncode} before it was ready")
            if time.monotonic() > deadline_s:
                self.stop()
                raise ServerFailed(f"the local Spark server was not ready after {READY_LIMIT_S:g} s")
        return True

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Ends the process, if need be by force, and waits for it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """`stop`, and the server's files."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> list[str]:
        log_settings = self._folder / "log4j2.properties"
        log_settings.write_text(_LOG4J)
        conf = {
            "spark.master": f"local[{self._cores}]",
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.host": _LOOPBACK,
            "spark.connect.grpc.binding.address": _LOOPBACK,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.local.dir": str(self._folder / "local"),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # Nobody reads the history of old queries, and it would fill the heap of a server that runs for weeks.
            "spark.sql.ui.retainedExecutions": "10",
            "spark.ui.retainedJobs": "50",
            "spark.ui.retainedStages": "50",
            "spark.ui.retainedTasks": "500",
        }
        return [
            str(self._home / "bin" / "spark-submit"),
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--driver-memory",
            self._memory,
            # A JVM that lives on after it ran out of memory leaves its clients waiting; a dead one is restarted.
            "--driver-java-options",
            f"-XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir={self._folder} -Dlog4j2.configurationFile={log_settings}",
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]

    def _accepts(self) -> bool:
        # The port is opened after the Spark context is up, so a connection means that it serves.
        with contextlib.suppress(OSError), socket.create_connection((_LOOPBACK, self.port), timeout=1):
            return True
        return False


def serve(server: ConnectServer, stdin: int, wake: int) -> bool:
    """Keeps the server running until `stdin` is closed or something can be read from `wake`.

    False when it did not even start once, which another try would not change.
    """
    pause_s, was_ready = 1.0, False
    while True:
        started_s = time.monotonic()
        try:
            if not server.start(lambda seconds: _told_to_end(stdin, wake, seconds)):
                return True
            was_ready = True
            print(server.remote, flush=True)
        except ServerFailed as error:
            _log.error("%s", error)
            if not was_ready:
                return False
        while not server.ended():
            if _told_to_end(stdin, wake, 0.2):
                return True
        _log.warning("the local Spark server ended, it is started again on port %s", server.port)
        pause_s = 1.0 if time.monotonic() - started_s > _QUIET_AFTER_S else min(2 * pause_s, LONGEST_PAUSE_S)
        if _told_to_end(stdin, wake, pause_s if pause_s > 2 else 0.1):
            return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kcl_host.spark.server", description="A local Spark Connect server")
    parser.add_argument("--memory", default="2g", help="of the JVM's heap (default 2g)")
    parser.add_argument("--cores", type=int, help="default: all")
    parser.add_argument("--port", type=int, help="default: a free one")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with _signals() as wake:
        try:
            server = ConnectServer(memory=options.memory, cores=options.cores, port=options.port)
        except ServerFailed as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return 2
        try:
            return 0 if serve(server, sys.stdin.fileno(), wake) else 1
        finally:
            server.close()


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that can be read once INT or TERM came."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    try:
        yield told
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)
        os.close(tell)


def _told_to_end(stdin: int, wake: int, seconds: float) -> bool:
    readable = select.select([stdin, wake], [], [], seconds)[0]
    return wake in readable or (stdin in readable and not os.read(stdin, 4096))


def _end_with_parent() -> None:
    # The signal is tied to the thread that forked, here the main one. It outlives the exec from shell to java.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _sweep() -> None:
    """Removes the files of servers whose owner was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
