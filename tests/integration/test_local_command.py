"""`kcl-host local` as a user runs it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import boto3
import pytest
from botocore.config import Config

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "kcl_host", "local"]


def properties_of(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    lines: dict[str, str] = {}
    for line in process.stdout:
        if line.startswith("#   export"):
            return lines
        if not line.startswith("#"):
            name, _, value = line.partition(" = ")
            lines[name] = value.strip()
    raise AssertionError("the command ended early")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_a_signal(stop: signal.Signals) -> None:
    command = [*COMMAND, "--stream", "demo", "--shards", "2", "--produce", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = properties_of(process)
            assert set(lines) == {
                "streamName", "kinesisEndpoint", "dynamoDBEndpoint", "regionName", "metricsLevel",
                "AwsCredentialsProvider",
            }  # fmt: skip
            client = boto3.client(
                "kinesis",
                endpoint_url=lines["kinesisEndpoint"],
                region_name=lines["regionName"],
                aws_access_key_id="local",
                aws_secret_access_key="local",
                config=Config(retries={"total_max_attempts": 1}),
            )
            shards = client.list_shards(StreamName=lines["streamName"])["Shards"]
            assert len(shards) == 2
            deadline_s = time.monotonic() + 10
            records: list[object] = []
            while not records and time.monotonic() < deadline_s:
                for shard in shards:
                    position = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
                    token = client.get_shard_iterator(StreamName="demo", **position)["ShardIterator"]
                    records += client.get_records(ShardIterator=token)["Records"]
            assert records
            client.close()
        finally:
            process.send_signal(stop)
            _, errors = process.communicate(timeout=10)
        assert (process.returncode, errors) == (0, "")


def test_a_port_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*COMMAND, "--dynamodb-port", str(taken.getsockname()[1])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "kcl-host: cannot listen on 127.0.0.1: Address already in use; choose another port"
    ]


def test_producing_needs_a_stream() -> None:
    ended = subprocess.run([*COMMAND, "--produce", "5"], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (2, "kcl-host: --produce needs --stream NAME\n")


def test_a_missing_extra_is_one_line_and_exit_code_2() -> None:
    without_moto = "import sys; sys.modules['moto'] = None; from kcl_host.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", without_moto, "local"], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1 and "pip install 'kcl-host[local]'" in ended.stderr


def test_aggregates_need_a_rate() -> None:
    ended = subprocess.run([*COMMAND, "--aggregate", "5"], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (2, "kcl-host: --aggregate needs --produce RATE\n")
