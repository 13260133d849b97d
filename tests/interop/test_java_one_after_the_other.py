"""One application on the same tables, run by Java's MultiLangDaemon (KCL 3.1.3) and by kcl-host, one after the other.

A stream of numbered records grows all the time. Each worker's children write what they got to a file of that run, so
a test can say, shard by shard, where each run went on and what came twice. Both kinds of worker get the same file, with
the intervals of `java_daemon.FAST`. Alone: `pytest -m stress tests/interop/test_java_one_after_the_other.py`.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
import msgspec
import pytest

from kcl_host.local.engines import Engines
from tests.interop.java_daemon import (
    FAST,
    Http2Front,
    JavaDaemon,
    JavaParts,
    LoggedProcess,
    child_command,
    java_daemon_parts,
    write_properties,
)

pytestmark = pytest.mark.interop

SHARDS = 3
JAVA_NEW_S, JAVA_KNOWN_S, KCL_HOST_S = 120, 60, 30
"""Longest waits for a start. Measured: Java 14-34 s for a new application, 10 s for a known one."""
JAVA_LOCK_S = 240
"""Java's leader lock outlives a killed owner by 120-180 s (coordination spec 2.6)."""
JAVA_LOCK_POLL_S = 30
"""How often Java looks at a lock that it does not hold."""
TERMINATED_JVM = 143
ERRORS_OF_JAVA_ALONE = (
    "s.a.k.multilang.DrainChildSTDERRTask [NONE] - Received error line from subprocess ",  # a line of a child's stderr
    "s.a.k.multilang.MultiLangDaemon [NONE] - Encountered an error during shutdown. ",  # shutdownGraceMillis = 0
)

Positions = dict[str, list[int]]
"""Sequence numbers by shard id."""


class Numbers(threading.Thread):
    """Puts numbers into `stream`, about 50 a second, until stopped; `put` is all that was accepted, by shard."""

    def __init__(self, kinesis: Any, stream: str) -> None:
        super().__init__(name="numbers")
        self.kinesis, self.stream = kinesis, stream
        self.put: Positions = {}
        self._stopping = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            data = str(number)
            answer = self.kinesis.put_record(StreamName=self.stream, Data=data.encode(), PartitionKey=data)
            self.put.setdefault(answer["ShardId"], []).append(int(answer["SequenceNumber"]))
            if self._stopping.wait(0.02):
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join()


class Fleet(msgspec.Struct, frozen=True):
    """What all tests share: the engines, clients of them, HTTP/2 before their Kinesis, the keys that say where."""

    engines: Engines
    parts: JavaParts
    front: Http2Front
    where: dict[str, str]
    kinesis: Any
    dynamodb: Any


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    parts = java_daemon_parts()
    with Engines() as engines:
        where = {}
        for line in engines.properties_lines():
            key, _, value = line.partition("=")
            where[key.strip()] = value.strip()
        session = boto3.Session("interop", "interop", region_name=where["regionName"])
        kinesis = session.client("kinesis", endpoint_url=where["kinesisEndpoint"])
        dynamodb = session.client("dynamodb", endpoint_url=where["dynamoDBEndpoint"])
        port = int(where["kinesisEndpoint"].rpartition(":")[2])
        with Http2Front(parts, port, tmp_path_factory.mktemp("http2")) as front:
            yield Fleet(engines, parts, front, where, kinesis, dynamodb)


class Run:
    """One worker from start to end, and what its children got."""

    def __init__(self, application: Application, worker: LoggedProcess, out: Path) -> None:
        self.application, self.worker, self.out = application, worker, out
        self.found: dict[str, int] = {}
        """The checkpoints when the run began; -1: at the start of the shard."""

    def __enter__(self) -> Run:
        self.found = self.application.checkpoints()
        self.worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.worker.kill()

    def delivered(self) -> Positions:
        positions: Positions = {}
        for line in self.out.read_text().splitlines(keepends=True) if self.out.exists() else ():
            if line.endswith("\n"):
                shard_id, sequence_number, _ = line.split(" ", 2)
                positions.setdefault(shard_id, []).append(int(sequence_number))
        return positions

    def wait_until_records_flow(self, timeout_s: float) -> float:
        """Seconds from the start of the worker until each shard has got 20 records."""

        def flow() -> bool:
            got = self.delivered()
            return len(got) == SHARDS and min(map(len, got.values())) >= 20

        took_s = self.worker.wait_for(flow, timeout_s, "records from every shard")
        print(f"{self.worker.log.stem}: records from every shard after {took_s:.1f} s")
        return took_s

    def assert_content(self) -> None:
        """Its log has no error, but what Java alone also logs."""
        if isinstance(self.worker, JavaDaemon):
            errors = {line for line in self.worker.complaints("ERROR") if not line.startswith(ERRORS_OF_JAVA_ALONE)}
        else:
            lines = self.worker.log.read_text().splitlines()
            errors = {line for line in lines if " ERROR " in line or "Traceback" in line}
        assert errors == set(), self.worker.log.name


class Application:
    """One application with a stream of its own, run by several workers in turn; `runs` are those, oldest first."""

    def __init__(self, fleet: Fleet, folder: Path, name: str) -> None:
        self.fleet, self.folder, self.name = fleet, folder, name
        self.runs: list[Run] = []
        self.intervals = dict(FAST)
        fleet.engines.create_stream(name, SHARDS)
        self.numbers = Numbers(fleet.kinesis, name)

    def java(self, shutdown_grace_ms: int = 20_000) -> Run:
        number, out, properties, env = self._next_run()
        properties |= {"kinesisEndpoint": self.fleet.front.url, "shutdownGraceMillis": str(shutdown_grace_ms)}
        return self._run(JavaDaemon(self.fleet.parts, self.folder, f"{number}-java", properties, env), out)

    def kcl_host(self) -> Run:
        number, out, properties, env = self._next_run()
        file = write_properties(self.folder / f"{number}-kcl-host.properties", properties)
        command = [sys.executable, "-m", "kcl_host", "-p", str(file)]
        return self._run(LoggedProcess(command, file.with_suffix(".log"), env), out)

    def rows(self, table: str = "") -> dict[str, dict[str, Any]]:
        """The rows of the lease table, or of the table with that suffix, by key; none when there is no such table."""
        try:
            items = self.fleet.dynamodb.scan(TableName=self.name + table, ConsistentRead=True)["Items"]
        except self.fleet.dynamodb.exceptions.ResourceNotFoundException:
            return {}
        return {next(item[key]["S"] for key in ("leaseKey", "key", "wid") if key in item): item for item in items}

    def checkpoints(self) -> dict[str, int]:
        found = {shard_id: row["checkpoint"]["S"] for shard_id, row in self.rows().items()}
        return {shard_id: -1 if text == "TRIM_HORIZON" else int(text) for shard_id, text in found.items()}

    def wait_for_the_rest(self) -> None:
        """Ends the numbers and waits until the last run has delivered what was still missing."""
        self.numbers.stop()
        self.runs[-1].worker.wait_for(lambda: not self.missing(), 30, "every number delivered")

    def missing(self) -> set[tuple[str, int]]:
        got = {(s, n) for run in self.runs for s, of_shard in run.delivered().items() for n in of_shard}
        return {(s, n) for s, of_shard in self.numbers.put.items() for n in of_shard} - got

    def assert_each_run_went_on_from_the_checkpoints(self) -> None:
        """Shard by shard what came right after the checkpoint, in order: no gap, nothing from before it."""
        for run in self.runs:
            for shard_id, got in run.delivered().items():
                after = [n for n in self.numbers.put[shard_id] if n > run.found.get(shard_id, -1)]
                assert got == after[: len(got)], f"{run.worker.log.name} {shard_id}"

    def _next_run(self) -> tuple[int, Path, dict[str, str], dict[str, str]]:
        number = len(self.runs) + 1
        out = self.folder / f"{number}.out"
        properties = {
            "executableName": child_command("kcl_host.processor.demo"),
            "applicationName": self.name,
            "streamName": self.name,
            "AWSCredentialsProvider": "EnvironmentVariableCredentialsProvider",
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            "metricsLevel": "NONE",
            "disableWorkerMetrics": "true",  # Java would ask the EC2 instance metadata service
            **self.intervals,
            **self.fleet.where,
        }
        env = {"AWS_ACCESS_KEY_ID": "interop", "AWS_SECRET_ACCESS_KEY": "interop", "KCL_DEMO_OUT": str(out)}
        return number, out, properties, env

    def _run(self, worker: LoggedProcess, out: Path) -> Run:
        self.runs.append(Run(self, worker, out))
        return self.runs[-1]


@pytest.fixture
def application(fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Application]:
    made = Application(fleet, tmp_path, request.node.name.removeprefix("test_"))
    made.numbers.start()
    yield made
    made.numbers.stop()


def last_of(run: Run) -> dict[str, int]:
    return {shard_id: got[-1] for shard_id, got in run.delivered().items()}


@pytest.mark.stress
def test_kcl_host_goes_on_after_java_and_java_after_kcl_host(application: Application) -> None:
    with application.java() as java:
        java.wait_until_records_flow(JAVA_NEW_S)
        assert java.worker.stop() == TERMINATED_JVM
    left_by_java, migration = application.rows(), application.rows("-CoordinatorState")["Migration3.0"]
    assert all("leaseOwner" in row for row in left_by_java.values()), "Java leaves its name on the leases"

    with application.kcl_host() as kcl_host:
        kcl_host.wait_until_records_flow(KCL_HOST_S)
        assert kcl_host.worker.stop() == 0
    assert application.checkpoints() == last_of(kcl_host), "none will come twice"
    left_by_kcl_host = application.rows()
    assert not any("leaseOwner" in row for row in left_by_kcl_host.values())
    for shard_id, row in left_by_kcl_host.items():
        assert set(left_by_java[shard_id]) - set(row) == {"leaseOwner"}
    assert application.rows("-CoordinatorState") == {"Migration3.0": migration}

    with application.java() as java_again:
        java_again.wait_until_records_flow(JAVA_KNOWN_S)
        application.wait_for_the_rest()
        java_again.worker.stop()
    application.assert_each_run_went_on_from_the_checkpoints()
    for run in application.runs:
        run.assert_content()


def test_java_goes_on_in_the_tables_of_kcl_host(application: Application) -> None:
    with application.kcl_host() as kcl_host:
        kcl_host.wait_until_records_flow(KCL_HOST_S)
        assert kcl_host.worker.stop() == 0
    assert application.checkpoints() == last_of(kcl_host)

    with application.java() as java:
        java.wait_until_records_flow(JAVA_KNOWN_S)
        assert java.worker.stop() == TERMINATED_JVM

    with application.kcl_host() as kcl_host_again:
        kcl_host_again.wait_until_records_flow(KCL_HOST_S)
        application.wait_for_the_rest()
        assert kcl_host_again.worker.stop() == 0
    application.assert_each_run_went_on_from_the_checkpoints()
    for run in application.runs:
        run.assert_content()


@pytest.mark.stress
def test_each_takes_over_what_the_other_left_without_a_word(application: Application) -> None:
    with application.kcl_host() as killed:
        killed.wait_until_records_flow(KCL_HOST_S)
        killed.worker.kill()

    with application.java(shutdown_grace_ms=0) as java:  # the daemon's default: TERM releases nothing
        java.wait_until_records_flow(JAVA_KNOWN_S + JAVA_LOCK_POLL_S)
        java.worker.stop()
    assert "Leader" in application.rows("-CoordinatorState")

    with application.kcl_host() as kcl_host:
        kcl_host.wait_until_records_flow(JAVA_LOCK_S)
        application.wait_for_the_rest()
        assert kcl_host.worker.stop() == 0
    application.assert_each_run_went_on_from_the_checkpoints()
    for run in application.runs:
        run.assert_content()


@pytest.mark.stress
def test_a_java_worker_that_has_stopped_is_given_no_leases(application: Application) -> None:
    """Its metrics row stays fresh for up to a minute at the default interval, and nobody is there any more."""
    application.intervals["workerMetricsReporterFreqInMillis"] = "30000"
    with application.kcl_host() as first:  # saves Java's long first start
        first.wait_until_records_flow(KCL_HOST_S)
        first.worker.stop()
    with application.java() as java:
        java.wait_until_records_flow(JAVA_KNOWN_S)
        java.worker.stop()
    (stopped,) = {row["leaseOwner"]["S"] for row in application.rows().values()}

    with application.kcl_host() as kcl_host:
        kcl_host.wait_until_records_flow(KCL_HOST_S)
        until = time.monotonic() + 10 * int(FAST["leaseAssignmentIntervalMillis"]) / 1000
        while time.monotonic() < until:
            owners = {row["leaseOwner"]["S"] for row in application.rows().values() if "leaseOwner" in row}
            assert stopped not in owners
            time.sleep(0.2)
        application.wait_for_the_rest()
        kcl_host.worker.stop()
    assert not any("leaseOwner" in row for row in application.rows().values())
    application.assert_each_run_went_on_from_the_checkpoints()
