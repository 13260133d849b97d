"""The host under systemd, and as process 1 of a container."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from kcl_host.runtime.service_manager import ServiceManager
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration


class Manager:
    """Reads all the time, as systemd does."""

    def __init__(self, address: Path) -> None:
        self.address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while told := self._socket.recv(4096).decode():
            self._told.put(told)

    def next(self) -> str:
        return self._told.get(timeout=20)

    def next_but_alive(self) -> str:
        while (told := self.next()) == "WATCHDOG=1":
            pass
        return told

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto(b"", self.address)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.interop)])
def test_a_host_tells_that_it_is_ready_lives_and_stops(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with Engines() as engines:
        engines.create_stream("numbers", 1)
        engines.put_records("numbers", [("key", b"1")])
        with Running(Counting(engines, tmp_path, processes=processes)) as host:
            ready = "reads numbers" if processes == 1 else "2 worker processes"
            assert manager.next_but_alive() == f"READY=1\nSTATUS={ready}"
            assert [manager.next() for _ in range(5)] == ["WATCHDOG=1"] * 5
            host.wait_for("child_initialized")
            assert stop(host.process) == 0
            assert manager.next_but_alive() == "STOPPING=1\nSTATUS=stops"


def test_nothing_is_told_where_nobody_asked(manager: Manager) -> None:
    assert ServiceManager({"WATCHDOG_USEC": "1000"}).alive_interval_s is None
    address = manager.address
    watched = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000"}
    assert ServiceManager(watched).alive_interval_s == 1.5
    assert ServiceManager(watched | {"WATCHDOG_PID": "1"}).alive_interval_s is None
    assert ServiceManager(watched | {"WATCHDOG_USEC": "often"}).alive_interval_s is None
    ServiceManager({"NOTIFY_SOCKET": address + "-gone"}).ready("nobody listens, and nothing happens")


def test_a_manager_with_an_abstract_address_is_told() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + f"kcl-host-{os.getpid()}")
        ServiceManager({"NOTIFY_SOCKET": f"@kcl-host-{os.getpid()}"}).alive()
        assert listening.recv(100) == b"WATCHDOG=1"


INIT = """
import ctypes, os, signal, subprocess, sys, time
from kcl_host.cli.init_process import fork_from_init

ctypes.CDLL(None).prctl(36, 1)  # Orphans come to this process, as they come to process 1.
if (code := fork_from_init()) is None:
    signal.signal(signal.SIGHUP, lambda *_: print("told to read again", flush=True))
    signal.signal(signal.SIGTERM, lambda *_: {end})
    # The shell ends at once, what it started goes on for a moment.
    subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"])
    print("runs", flush=True)
    while True:
        signal.pause()
sys.exit(code)
"""


@pytest.mark.parametrize(("end", "code"), [("os._exit(5)", 5), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_process_1_passes_signals_on_and_reaps_what_is_left_behind(end: str, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", INIT.format(end=end)], stdout=subprocess.PIPE, text=True) as init:
        assert init.stdout is not None
        orphan, runs = init.stdout.readline(), init.stdout.readline()
        assert runs == "runs\n"
        os.kill(init.pid, signal.SIGHUP)
        assert init.stdout.readline() == "told to read again\n"
        pid = int(orphan)
        gone = subprocess.run(
            ["sh", "-c", f"while kill -0 {pid} 2>/dev/null; do sleep 0.05; done"], timeout=20, check=True
        )
        assert gone.returncode == 0, "a zombie would still be there"
        os.kill(init.pid, signal.SIGTERM)
        assert init.wait(20) == code
