"""Children of a real host in trouble: a sink that fails, a full disk, a record of 10 MiB, a host that is killed.

Arrow in place of Spark. The Spark server that is killed at each step is in test_with_spark.py, all at once in soak.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

import pyarrow.parquet as pq

from kcl_host.local.engines import Engines
from kcl_host.spark import committed_files
from kcl_host.spark.faults import STEPS
from kcl_host.spark.parquet import views
from tests.integration.counting import Counting, Running, stop
from tests.spark.child_host import DRIVER, Shard, serve

pytestmark = pytest.mark.interop
OF_ARROW = [step for step in STEPS if step not in ("spooled", "folded")]
FAILS_S = float(os.environ.get("KCL_HOST_SINK_FAILS_S", "6"))
"""Longer than the lease of two seconds; scripts/ci-full gives a minute."""


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", 1)
        yield running


def put(engines: Engines, numbers: range) -> None:
    engines.put_records("numbers", [("key", json.dumps({"number": n}).encode()) for n in numbers])


def counting(engines: Engines, folder: Path, table: Path, records: int = 20) -> Counting:
    return Counting(engines, folder, executableName=f"{sys.executable} {DRIVER} arrow {table} {records} 2")


def numbers(table: Path) -> list[int]:
    return sorted(n for path in committed_files(table)[0] for n in pq.read_table(path)["number"].to_pylist())


def wait_for(table: Path, count: int, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while sum(f.rows for view in views(table).values() for files in view.tables.values() for f in files) < count:
        assert time.monotonic() < deadline_s, "the table does not grow"
        time.sleep(0.1)


def children(host: Running) -> set[int]:
    return {line["child_pid"] for line in host.log("child_stderr")}


def owner_and_counter(engines: Engines) -> tuple[str, str]:
    [item] = engines.dynamodb.call("Scan", TableName="counting", ConsistentRead=True)["Items"]
    return item["leaseOwner"]["S"], item["ownerSwitchesSinceCheckpoint"]["N"]


def test_a_sink_that_fails_for_longer_than_a_lease(engines: Engines, tmp_path: Path) -> None:
    """The shard waits, the lease stays, the child too; nothing is lost."""
    table = tmp_path / "table"
    put(engines, range(40))
    with Running(counting(engines, tmp_path, table)) as host:
        wait_for(table, 40)
        before = owner_and_counter(engines)
        table.rename(tmp_path / "away")
        table.touch()  # a file where the folder was: every write fails, also for root
        put(engines, range(40, 90))
        host.wait_for("child_stderr", 20, level="WARNING")
        time.sleep(FAILS_S)
        assert owner_and_counter(engines) == before
        table.unlink()
        (tmp_path / "away").rename(table)
        wait_for(table, 90)
        assert stop(host.process) == 0
        assert len(children(host)) == 1
    assert numbers(table) == list(range(90))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs root to mount a file system of 2 MB: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk(small_disk: Path, engines: Engines, tmp_path: Path) -> None:
    table = small_disk / "table"
    put(engines, range(40))
    with Running(counting(engines, tmp_path, table)) as host:
        wait_for(table, 40)
        with (small_disk / "ballast").open("wb", buffering=0) as ballast:
            with pytest.raises(OSError, match="No space left"):
                while True:
                    ballast.write(bytes(4096))
        put(engines, range(40, 90))
        host.wait_for("child_stderr", 20, level="WARNING")
        time.sleep(1)
        (small_disk / "ballast").unlink()
        wait_for(table, 90)
        assert stop(host.process) == 0
        assert "No space left" in host.counting.log.read_text()
        assert len(children(host)) == 1
    assert numbers(table) == list(range(90))


class Large(Shard):
    """One of its records is of 10 MiB."""

    def payload(self, number: int) -> bytes:
        padding = "x" * (10 * 1024 * 1024 - 50) if number == 5 else ""
        return json.dumps({"number": number, "padding": padding}).encode()


def test_a_record_of_10_mib(tmp_path: Path) -> None:
    shard = Large(30, 7)
    environ = {"KCL_HOST_SPARK_FAIL_AT": "written", "KCL_HOST_SPARK_FAIL_MARK": str(tmp_path / "mark")}
    serve(shard, ["arrow", str(tmp_path / "t"), "20"], environ)
    assert shard.deaths == 1
    assert numbers(tmp_path / "t") == list(range(30))


@pytest.mark.stress
@pytest.mark.parametrize("step", OF_ARROW)
def test_the_host_is_killed_while_its_child_is_at(
    step: str, engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child stands still at the step while its host dies, and goes on when another host has its lease."""
    table, mark = tmp_path / "table", tmp_path / "mark"
    for name, value in {"AT": step, "WITH": "STOP", "MARK": str(mark)}.items():
        monkeypatch.setenv(f"KCL_HOST_SPARK_FAIL_{name}", value)
    put(engines, range(60))
    application = counting(engines, tmp_path, table)
    with Running(application) as host:
        application.wait_until(mark.exists, 30)
        application.wait_until(lambda: _stopped(host), 10)
        [child] = _stopped(host)
        host.process.kill()
        host.process.wait()
    with Running(application) as host:
        wait_for(table, 40)
        child.send_signal(signal.SIGCONT)
        put(engines, range(60, 100))
        wait_for(table, 100)
        assert stop(host.process) == 0
    assert numbers(table) == list(range(100))


def _stopped(host: Running) -> list[psutil.Process]:
    return [p for p in psutil.Process(host.process.pid).children() if p.status() == psutil.STATUS_STOPPED]
