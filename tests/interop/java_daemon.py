"""A real Java MultiLangDaemon (KCL 3.1.3 or 3.5.1) on loopback: its jars, its properties file, its process, its log.

The Java SDK speaks HTTP/2 to Kinesis, which the engines do not, so nghttpx stands before them (`Http2Front`); DynamoDB
is spoken plain. The jars come once, by package name, into .kcl-host/java: 3.1.3 from PyPI, 3.5.1 from Maven Central.
`java_daemon_parts` skips the calling test by the name of what is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec
import pytest

from tests.interop.maven import Artifact, NotFound, libraries

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".kcl-host" / "java"
PACKAGE = "kclpy-ext==3.1.3.post4"
"""amazon_kclpy for KCL 3.1.3 with the jars inside; unpacked, not installed."""
KINESIS = "software.amazon.kinesis"
DAEMON_OF_3_5_1 = [Artifact(group=KINESIS, name="amazon-kinesis-client-multilang", version="3.5.1")]
KCL_3_5_1_UNDER_AN_OLDER_DAEMON = [
    Artifact(group=KINESIS, name="amazon-kinesis-client", version="3.5.1"),
    Artifact(group=KINESIS, name="amazon-kinesis-client-multilang", version="3.1.3"),
]
"""Where a registry has no daemon of 3.5.1. All coordination is in the client; the daemon only reads properties, without
the keys that are new since, and talks to children."""
Version = Literal["3.1.3", "3.5.1"]
"""The newest with three metadata tables that a package brings, and one that starts with a single table."""
MAIN_CLASS = "software.amazon.kinesis.multilang.MultiLangDaemon"

FAST = {
    "failoverTimeMillis": "3000",
    "leaseAssignmentIntervalMillis": "1000",
    "shardSyncIntervalMillis": "1000",
    "idleTimeBetweenReadsInMillis": "200",
    "parentShardPollIntervalMillis": "500",
    "inMemoryWorkerMetricsCaptureFrequencyMillis": "200",
    "workerMetricsReporterFreqInMillis": "2000",
}
"""Intervals that a test can wait for. What stays: the random 1-30 s before a new application's first shard sync."""


class JavaParts(msgspec.Struct, frozen=True, kw_only=True):
    java: str
    nghttpx: str
    class_path: str


def java_daemon_parts(version: Version = "3.1.3") -> JavaParts:
    """What a Java daemon needs; skips the test when java, mvn or nghttpx is missing and cannot be had."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("java is not installed")
    jars = _jars_of_package() if version == "3.1.3" else _jars_from_maven()
    return JavaParts(java=java, nghttpx=_nghttpx(), class_path=f"{jars}/*")


def _jars_from_maven() -> Path:
    folder = CACHE / "kcl-3.5.1"
    try:
        return libraries(folder, DAEMON_OF_3_5_1)
    except NotFound:
        return libraries(folder, KCL_3_5_1_UNDER_AN_OLDER_DAEMON)


def _jars_of_package() -> Path:
    folder = CACHE / PACKAGE
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", made, PACKAGE)
            (wheel,) = Path(made).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(made) / "unpacked")
            with contextlib.suppress(OSError):  # another test process was faster
                os.rename(Path(made) / "unpacked", folder)
    return folder / "amazon_kclpy" / "jars"


def _nghttpx() -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    if shutil.which("nghttpx", path=path) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with contextlib.suppress(RuntimeError):
            _run("apt-get", "update", "-qq")
            _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "nghttp2-proxy")
    nghttpx = shutil.which("nghttpx", path=path)
    if nghttpx is None:
        pytest.skip("nghttpx (Debian: nghttp2-proxy) is not installed")
    return nghttpx


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")


class LoggedProcess:
    """One process whose output goes to `log`; `with` ends it by its own process id."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command, self.log = command, log
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self.process is not None, "not started"
        return self.process.poll()

    def start(self) -> None:
        assert self.process is None, "already started"
        self.started_at = time.monotonic()
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.env
            )

    def stop(self, timeout_s: float = 60) -> int:
        """TERM, then its exit code (negative: ended by that signal). TimeoutExpired leaves it running."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int:
        return self._end(signal.SIGKILL, 10)

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Seconds from the start until `predicate` held. AssertionError with the log's end: too late, or it ended."""
        give_up = time.monotonic() + timeout_s
        while not predicate():
            assert self.process is not None and self.process.poll() is None, f"ended before {what}:\n{self.log_end()}"
            assert time.monotonic() < give_up, f"not within {timeout_s:g} s: {what}\n{self.log_end()}"
            time.sleep(0.1)
        return time.monotonic() - self.started_at

    def log_end(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        assert self.process is not None, "not started"
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


class Http2Front(LoggedProcess):
    """Cleartext HTTP/2 on 127.0.0.1:`port` before an HTTP/1.1 engine on 127.0.0.1:`backend_port`."""

    def __init__(self, parts: JavaParts, backend_port: int, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        super().__init__(
            [
                parts.nghttpx,
                "--conf=/dev/null",
                "--single-process",
                "--workers=1",
                f"--frontend=127.0.0.1,{self.port};no-tls",
                f"--backend=127.0.0.1,{backend_port}",
            ],
            folder / "nghttpx.log",
        )
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        super().start()
        self.wait_for(self._answers, 10, "nghttpx listening")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False


class JavaDaemon(LoggedProcess):
    """One start of the daemon on `properties`, written to `folder`/`name`.properties; the log is `folder`/`name`.log.

    Give `kinesisEndpoint` the URL of an `Http2Front`. `env` reaches the children too. Not graceful at TERM unless
    `shutdownGraceMillis` is given: the daemon's default is 0.
    """

    def __init__(
        self, parts: JavaParts, folder: Path, name: str, properties: Mapping[str, str], env: Mapping[str, str]
    ) -> None:
        file = write_properties(folder / f"{name}.properties", properties)
        command = [
            parts.java,
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Daws.cborEnabled=false",
            "-cp",
            parts.class_path,
            MAIN_CLASS,
            "--properties-file",
            str(file),
        ]
        super().__init__(command, folder / f"{name}.log", env)

    def complaints(self, *levels: str) -> set[str]:
        """Distinct logged lines at `levels`, such as ERROR, without their time, thread, ids and numbers."""
        pattern = re.compile(rf"^[\d: ,.-]+ \[[^\]]*\] +({'|'.join(levels)}) +(.*)$", re.MULTILINE)
        text = self.log.read_text(errors="replace")
        return {re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+", "#", match[2]) for match in pattern.finditer(text)}


def write_properties(file: Path, properties: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()))
    return file


def child_command(module: str) -> str:
    """`executableName` of a Python module under this interpreter. The daemon splits it at blanks, without quoting."""
    assert shlex.quote(sys.executable) == sys.executable, "the daemon knows no quoting"
    return f"{sys.executable} -m {module}"
