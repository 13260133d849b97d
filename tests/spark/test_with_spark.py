"""The whole way through Spark: a local Connect server, thin clients, kills of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'kcl-host[spark]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

from kcl_host.spark import SparkEngine, compact, json_rows, read_committed, text_rows
from kcl_host.spark.faults import STEPS
from kcl_host.spark.lines import Record
from kcl_host.spark.parquet import views
from kcl_host.spark.server import ServerFailed, spark_home
from tests.spark.child_host import Child, Shard, payload, serve

try:
    spark_home()
except ServerFailed as missing:
    pytest.skip(str(missing), allow_module_level=True)

# pyspark opens sockets that it leaves to the collector.
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]
RECORDS = 120


class Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kcl_host.spark.server", "--memory", "1g"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.remote = self.process.stdout.readline().strip()

    def java(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def wait_until_ready(self) -> None:
        """After it was killed once since it was ready."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.remote

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def engine(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SparkEngine]:
    monkeypatch.setenv("SPARK_REMOTE", server.remote)
    engine = SparkEngine(spool=tmp_path / "spool")
    yield engine
    engine.reset()


def assert_each_once(engine: SparkEngine, place: Path) -> None:
    rows = read_committed(engine.session, place).select("number").collect()
    rejected = read_committed(engine.session, place, "rejected").count()
    good = [number for number in range(RECORDS) if payload(number) != b"nothing"]
    assert (sorted(row.number for row in rows), rejected) == (good, RECORDS - len(good))


@pytest.mark.parametrize("kind", ["spark", "upload"])
def test_each_number_once(kind: str, engine: SparkEngine, tmp_path: Path) -> None:
    shard = Shard(RECORDS, 7)
    serve(shard, [kind, str(tmp_path / "t"), "60"], {})
    assert_each_once(engine, tmp_path / "t")
    assert (shard.deaths, shard.checkpoint) == (0, shard.places[-1])
    assert not list(tmp_path.glob("t.spool/*"))


@pytest.mark.parametrize("step", [step for step in STEPS if step != "folded"])
def test_a_child_killed_at(step: str, engine: SparkEngine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    shard = Shard(RECORDS, 7)
    environ = {"KCL_HOST_SPARK_FAIL_AT": step, "KCL_HOST_SPARK_FAIL_MARK": str(mark)}
    serve(shard, ["spark", str(tmp_path / "t"), "60"], environ)
    assert mark.exists() and shard.deaths == 1
    assert_each_once(engine, tmp_path / "t")


@pytest.mark.parametrize("after_s", [0.0, 1.0, 2.0])
def test_the_server_is_killed(after_s: float, server: Server, engine: SparkEngine, tmp_path: Path) -> None:
    """The child takes a new session and writes the batch into a new folder, on the same head."""
    report = tmp_path / "report"

    def kill() -> None:
        while not report.exists() or "committed" not in report.read_text():
            time.sleep(0.05)
        time.sleep(after_s)
        server.java().kill()

    killer = threading.Thread(target=kill)
    killer.start()
    shard = Shard(RECORDS, 7)
    serve(shard, ["spark", str(tmp_path / "t"), "14"], {"KCL_HOST_SPARK_REPORT": str(report)})
    killer.join()
    deadline_s = time.monotonic() + 90
    engine.reset()
    while True:
        try:
            assert_each_once(engine, tmp_path / "t")
            break
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            engine.reset()
            time.sleep(1)
    assert shard.deaths == 0, "the child itself goes on"


@pytest.mark.stress
@pytest.mark.parametrize("step", [step for step in STEPS if step != "folded"])
def test_the_server_is_killed_while_a_child_is_at(
    step: str, server: Server, engine: SparkEngine, tmp_path: Path
) -> None:
    """The child stands still meanwhile; it goes on by itself."""
    shard = Shard(RECORDS, 7)
    stops = {"KCL_HOST_SPARK_FAIL_AT": f"{step}:2", "KCL_HOST_SPARK_FAIL_WITH": "STOP"}
    if step == "initialized":
        stops["KCL_HOST_SPARK_FAIL_AT"] = step
    killed = 0
    with Child(shard, ["spark", str(tmp_path / "t"), "30"], stops) as child:
        for message in [
            child.first_message(),
            *shard.lines(),
            {"action": "shutdownRequested"},
            {"action": "leaseLost"},
        ]:
            assert child.say(message)
            while not child.answered(message["action"]):
                assert child.process.poll() is None, "it has ended"
                server.java().kill()
                killed += 1
                child.resume()
    assert (killed, shard.checkpoint) == (1, shard.places[-1])
    server.wait_until_ready()
    engine.reset()
    assert_each_once(engine, tmp_path / "t")


def test_a_record_of_10_mib(engine: SparkEngine, tmp_path: Path) -> None:
    shard = Large(30, 7)
    serve(shard, ["spark", str(tmp_path / "t"), "20"], {})
    rows = read_committed(engine.session, tmp_path / "t").select("number").collect()
    assert sorted(row.number for row in rows) == list(range(30))


class Large(Shard):
    """One of its records is of 10 MiB."""

    def payload(self, number: int) -> bytes:
        padding = "x" * (10 * 1024 * 1024 - 50) if number == 5 else ""
        return json.dumps({"number": number, "padding": padding}).encode()


def record(data: bytes | None) -> Record:
    return Record(sequence_number="1", data=data)


def frame(engine: SparkEngine, *payloads: bytes | None) -> Any:
    records = [
        Record(
            sequence_number=str(10**55 + i), sub_sequence_number=i, partition_key="k", arrived_ms=1735689600123, data=d
        )
        for i, d in enumerate(payloads)
    ]
    return engine.frame([engine.columns(records, "numbers", "shard-1")])


def test_the_frame_of_a_batch(engine: SparkEngine) -> None:
    with frame(engine, b"\x00\xff", None) as batch:
        first, second = batch.orderBy("sub_sequence_number").collect()
    assert (first.stream, first.shard_id, first.sequence_number, first.partition_key, bytes(first.data)) == (
        "numbers", "shard-1", str(10**55), "k", b"\x00\xff"
    )  # fmt: skip
    assert first.approximate_arrival_timestamp.astimezone(UTC) == datetime(2025, 1, 1, 0, 0, 0, 123000, UTC)
    assert (second.sub_sequence_number, second.data) == (1, None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "no data"),
        (b"", "not a JSON object"),
        (b"nothing", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'[{"id":1},{"id":2}]', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"id":1', "does not fit the schema"),
        (b'{"id":"x"}', "does not fit the schema"),
        (b'{"id":1.5}', "does not fit the schema"),
        (b'{"id":1,"at":"yesterday"}', "does not fit the schema"),
        (b'{"id":1,"name":"\xff"}', "not UTF-8"),
        (b'{"id":1}', None),
        (b' {"id":2,"more":[1]}', None),
        (b"{}", None),
        (b'{"id":null}', None),
    ],
)
def test_what_json_is_rejected(data: bytes | None, reason: str | None, engine: SparkEngine) -> None:
    with frame(engine, data) as batch:
        rows = json_rows(batch, "id long, name string, at timestamp")
        accepted, rejected = rows.accepted.collect(), rows.rejected.frame.collect()
    assert rows.rejected.number == len(rejected)
    assert (len(accepted), [row.reason for row in rejected]) == ((1, []) if reason is None else (0, [reason]))
    if reason is not None:
        assert (None if rejected[0].data is None else bytes(rejected[0].data)) == data


def test_text(engine: SparkEngine) -> None:
    with frame(engine, "Grüße".encode(), b"\xff") as batch:
        rows = text_rows(batch)
        assert [row.text for row in rows.accepted.collect()] == ["Grüße"]
        assert [row.reason for row in rows.rejected.frame.collect()] == ["not UTF-8"]


def test_a_compaction_changes_no_row(engine: SparkEngine, tmp_path: Path) -> None:
    place = tmp_path / "t"
    serve(Shard(RECORDS, 7), ["arrow", str(place), "5"], {})
    before = [len(files) for view in views(place).values() for files in view.tables.values()]
    assert compact(engine.session, place, fewest=2) == sum(before) > 15
    assert [len(files) for view in views(place).values() for files in view.tables.values()] == [1, 1]
    assert_each_once(engine, place)
    assert compact(engine.session, place, fewest=2) == 0


def test_an_empty_table(engine: SparkEngine, tmp_path: Path) -> None:
    assert read_committed(engine.session, tmp_path, schema="id long").count() == 0
    assert read_committed(engine.session, tmp_path / "none").columns == []


def test_the_server_ends_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    server = Server()
    java = server.java()
    os.kill(server.process.pid, 9)
    gone, alive = psutil.wait_procs([java], timeout=20)
    server.process.wait()
    server.close()
    assert (gone, alive) == ([java], [])
