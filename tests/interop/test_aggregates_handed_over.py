"""A checkpoint inside a KPL aggregate, left by kcl-host for Java and by Java for kcl-host: nothing lost or repeated."""

from __future__ import annotations

import sys
from pathlib import Path

import boto3
import pytest

from kcl_host.local.engines import Engines
from tests.interop.java_daemon import (
    FAST,
    Http2Front,
    JavaDaemon,
    LoggedProcess,
    Version,
    child_command,
    java_daemon_parts,
    write_properties,
)
from tests.kpl import by_producer

pytestmark = pytest.mark.interop

IN_AN_AGGREGATE, AGGREGATES, STEP = 5, 12, 7
STREAM = APPLICATION = "aggregates"
START_S = 90


@pytest.mark.parametrize("version", ["3.1.3", pytest.param("3.5.1", marks=pytest.mark.stress)])
def test_each_kind_goes_on_inside_the_aggregate(version: Version, tmp_path: Path) -> None:
    parts = java_daemon_parts(version)
    with Engines() as engines:
        engines.create_stream(STREAM, 1)
        data = [str(number) for number in range(AGGREGATES * IN_AN_AGGREGATE)]
        for first in range(0, len(data), IN_AN_AGGREGATE):
            users = [("key", number.encode(), None) for number in data[first : first + IN_AN_AGGREGATE]]
            engines.put_records(STREAM, [("key", by_producer(users))])
        with Http2Front(parts, int(engines.kinesis_endpoint.rpartition(":")[2]), tmp_path) as front:

            def run(kind: str, number: int, stop_at: int) -> list[str]:
                """What the children of one worker got, from its start to its graceful end."""
                out = tmp_path / f"{number}.out"
                properties = {
                    "executableName": child_command("tests.interop.stops_inside"),
                    "applicationName": APPLICATION,
                    "streamName": STREAM,
                    "AWSCredentialsProvider": "EnvironmentVariableCredentialsProvider",
                    "regionName": "us-east-1",
                    "initialPositionInStream": "TRIM_HORIZON",
                    "retrievalMode": "POLLING",
                    "metricsLevel": "NONE",
                    "disableWorkerMetrics": "true",
                    "shutdownGraceMillis": "20000",
                    **FAST,
                    "dynamoDBEndpoint": engines.dynamodb_endpoint,
                    "kinesisEndpoint": front.url if kind == "java" else engines.kinesis_endpoint,
                }
                env = {**engines.environment(), "STOP_AT": str(stop_at), "STOP_OUT": str(out)}
                if kind == "java":
                    worker: LoggedProcess = JavaDaemon(parts, tmp_path, f"{number}-java", properties, env)
                else:
                    file = write_properties(tmp_path / f"{number}-kcl-host.properties", properties)
                    worker = LoggedProcess(
                        [sys.executable, "-m", "kcl_host", "-p", str(file)], tmp_path / f"{number}.log", env
                    )

                def got() -> list[str]:
                    return out.read_text().splitlines() if out.exists() else []

                with worker:
                    worker.wait_for(
                        lambda: got()[-1:] and got()[-1].endswith(f" {data[-1]}"), START_S, "the last record"
                    )
                    if not stop_at:
                        worker.wait_for(
                            lambda: place(engines) == tuple(got()[-1].split()[:2]), START_S, "its checkpoint"
                        )
                    worker.stop()
                return got()

            started = 0
            for number, kind in enumerate(("kcl-host", "java", "kcl-host", "java", "kcl-host")):
                stop_at = STEP if number < 4 else 0
                got = run(kind, number, stop_at)
                assert [line.split()[2] for line in got] == data[started:], f"{kind}, after {started} records"
                assert [int(line.split()[1]) for line in got] == [
                    n % IN_AN_AGGREGATE for n in range(started, len(data))
                ]
                if stop_at:
                    assert place(engines) == tuple(got[STEP - 1].split()[:2])
                    started += STEP


def place(engines: Engines) -> tuple[str, str]:
    client = boto3.client(
        "dynamodb",
        endpoint_url=engines.dynamodb_endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    row = client.get_item(TableName=APPLICATION, Key={"leaseKey": {"S": "shardId-000000000000"}})["Item"]
    return row["checkpoint"]["S"], row["checkpointSubSequenceNumber"]["N"]
