"""`spark.server = local`: one server for all children, that is there before them and ends with the host, however.

Real processes, but a stand-in for Spark: what it listens with is a few lines of Python. With Spark: test_with_spark.py.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kcl_host.cli.spark_server import LocalSparkServer, spark_for_children
from kcl_host.config.settings import SparkSettings
from kcl_host.errors import ConfigurationError, SparkServerFailed
from kcl_host.local.engines import Engines
from kcl_host.runtime.clock import SystemClock
from tests.integration.counting import Counting, Running

pytestmark = [pytest.mark.integration, pytest.mark.interop]  # .ci/run has it.

STAND_IN = """\
#!{python}
import os, re, signal, socket, sys
if "{memory}" in sys.argv:
    sys.exit("ERROR no such heap")
port = int(re.search(r"spark.connect.grpc.binding.port=(\\d+)", " ".join(sys.argv))[1])
print("WARN token " + os.environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN", "-"), file=sys.stderr, flush=True)
listener = socket.create_server(("127.0.0.1", port))
while True:
    listener.accept()[0].close()
"""
CHILD = """\
import os, runpy
with open(os.environ["KCL_DEMO_OUT"] + ".spark", "a") as file:
    file.write(os.environ["SPARK_REMOTE"] + " " + os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] + "\\n")
runpy.run_module("kcl_host.processor.demo", run_name="__main__")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SPARK_HOME."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "jars").mkdir()
    (home / "jars" / "spark-connect_2.13-0.jar").touch()
    program = home / "bin" / "spark-submit"
    program.write_text(STAND_IN.format(python=sys.executable, memory="77g"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    for name, value in {"SPARK_HOME": str(home), "JAVA_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_AUTHENTICATE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def server(home: Path) -> Iterator[LocalSparkServer]:
    server = LocalSparkServer(SparkSettings(server="local"), os.environ, SystemClock(), random.Random(1))
    server.start()
    yield server
    server.close()


def stand_ins(home: Path) -> list[psutil.Process]:
    return [
        p for p in psutil.process_iter(["cmdline"]) if str(home / "bin" / "spark-submit") in (p.info["cmdline"] or ())
    ]


def wait_until(condition: Callable[[], object], limit_s: float = 15.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def accepts(remote: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(remote.rpartition(":")[2])), timeout=1).close()
    except OSError:
        return False
    return True


def test_what_dies_is_started_again_at_the_same_address(home: Path, server: LocalSparkServer) -> None:
    assert accepts(server.remote)
    [spark] = stand_ins(home)
    spark.kill()
    wait_until(lambda: [p for p in stand_ins(home) if p != spark] and accepts(server.remote))
    [spark] = stand_ins(home)
    spark.parent().kill()  # what looks after it
    wait_until(lambda: [p for p in stand_ins(home) if p != spark] and accepts(server.remote))
    server.close()
    assert stand_ins(home) == []


@pytest.mark.interop  # Too long for the default tests: .ci/run has it, and the last one.
def test_it_ends_with_its_owner_also_before_it_is_ready(home: Path, tmp_path: Path) -> None:
    program = home / "bin" / "spark-submit"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 60 {program}\n")
    owner = subprocess.Popen(
        [sys.executable, "-m", "kcl_host.spark.server"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    wait_until((tmp_path / "started").exists)
    assert owner.stdin is not None
    owner.stdin.close()
    assert owner.wait(10) == 0
    assert stand_ins(home) == []


def test_a_port_that_is_taken_is_not_taken_for_spark(home: Path) -> None:
    """The server of a host that was killed may need a moment to end: what listens there is not ours."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "kcl_host.spark.server", "--port", str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            other.accept()[0].close()  # it looks
            assert stand_ins(home) == []
            other.close()
            assert process.stdout.readline() == f"sc://localhost:{port}\n".encode()
            process.stdin.close()
            assert process.wait(10) == 0


def test_children_get_the_address_and_a_secret(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = SparkSettings(server="local", server_port=None)
    with spark_for_children(settings, {**os.environ, "A": "b"}, SystemClock(), random.Random(1)) as (environ, _):
        assert environ["A"] == "b" and accepts(environ["SPARK_REMOTE"])
        token = environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
        wait_until(lambda: f"WARN token {token}" in caplog.text)
    assert stand_ins(home) == []
    assert len(token) == 32


def test_a_server_of_the_users_is_used(home: Path) -> None:
    given = {**os.environ, "SPARK_REMOTE": "sc://theirs"}
    with spark_for_children(SparkSettings(server="local"), given, SystemClock(), random.Random(1)) as (environ, kept):
        assert (environ, kept) == (given, ())
    with spark_for_children(SparkSettings(remote="sc://r"), given, SystemClock(), random.Random(1)) as (environ, _):
        assert environ == {**given, "SPARK_REMOTE": "sc://r"}
    assert stand_ins(home) == []


def test_a_server_that_cannot_start(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = SparkSettings(server="local", server_memory="77g")
    with pytest.raises(SparkServerFailed, match="could not be started"):
        with spark_for_children(settings, os.environ, SystemClock(), random.Random(1)):
            pass
    assert "ERROR no such heap" in caplog.text
    (home / "jars" / "spark-connect_2.13-0.jar").unlink()
    with pytest.raises(ConfigurationError, match=r"kcl-host\[spark-local\]"):
        with spark_for_children(settings, os.environ, SystemClock(), random.Random(1)):
            pass


@pytest.mark.interop
@pytest.mark.parametrize("processes", [1, 2])
def test_it_ends_with_the_host_that_is_killed(processes: int, home: Path, tmp_path: Path) -> None:
    """Of several worker processes, with the last: they stop in order, for which their children need Spark."""
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    with Engines() as engines:
        engines.create_stream("numbers", 2)
        command = f"{sys.executable} {child}"
        keys = {"executableName": command, "spark.server": "local", "processes": processes, "workerId": "host"}
        counting = Counting(engines, tmp_path, **keys)
        seen = Path(f"{counting.out}.spark")
        with Running(counting) as host:
            wait_until(lambda: seen.exists() and len(seen.read_text().splitlines()) == 2, 30)
            assert len(set(seen.read_text().splitlines())) == 1, "one server for all"
            assert len(stand_ins(home)) == 1
            host.process.send_signal(signal.SIGKILL)
            wait_until(lambda: stand_ins(home) == [], 30)
