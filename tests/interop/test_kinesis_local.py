"""The host reads a Kinesis that is not ours: kinesis-local, by polling through reshards, and by fan-out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop
from tests.interop.kinesis_local import kinesis_local

pytestmark = pytest.mark.interop

STREAM = "numbers"


class Rig:
    """DynamoDB is the embedded one."""

    def __init__(self, engines: Engines, endpoint_url: str) -> None:
        self.engines = engines
        self.endpoint_url = endpoint_url
        self.client: Any = boto3.client(
            "kinesis",
            endpoint_url=endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def host(self, folder: Path, **keys: object) -> Counting:
        """A later line of a properties file wins, and the endpoints of the embedded engines come last."""
        counting = Counting(
            self.engines, folder, AwsCredentialsProvider="EnvironmentVariableCredentialsProvider", **keys
        )
        text = counting.properties.read_text()
        own = f"kinesisEndpoint = {self.endpoint_url}"
        lines = [own if line.startswith("kinesisEndpoint") else line for line in text.splitlines()]
        assert own in lines
        counting.properties.write_text("\n".join(lines) + "\n")
        return counting

    def make(self, shards: int) -> None:
        self.client.create_stream(StreamName=STREAM, ShardCount=shards)
        self.until(self.is_active)

    def is_active(self) -> bool:
        summary = self.client.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
        return bool(summary["StreamStatus"] == "ACTIVE")

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def put(self, numbers: range) -> list[str]:
        """Sequence numbers, in the order of the numbers."""
        answer = self.client.put_records(
            StreamName=STREAM, Records=[{"Data": str(n).encode(), "PartitionKey": str(n)} for n in numbers]
        )
        assert answer["FailedRecordCount"] == 0
        return [record["SequenceNumber"] for record in answer["Records"]]

    def split(self, shard_id: str) -> None:
        shards = {shard["ShardId"]: shard for shard in self.client.list_shards(StreamName=STREAM)["Shards"]}
        keys = shards[shard_id]["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2 + 1
        self.client.split_shard(StreamName=STREAM, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.until(self.is_active)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """It wants its requests signed, by whomever."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with Engines() as engines, kinesis_local() as endpoint_url:
        yield Rig(engines, endpoint_url)


def delivered(counting: Counting) -> list[int]:
    return sorted(int(one.data) for one in counting.delivered())


def test_every_record_once_and_in_order_through_splits_and_a_merge(rig: Rig, tmp_path: Path) -> None:
    rig.make(2)
    counting = rig.host(tmp_path)
    rig.put(range(100))
    with Running(counting) as host:
        counting.wait_for_numbers(100, 30)
        rig.split("shardId-000000000000")
        rig.put(range(100, 200))
        counting.wait_for_numbers(200, 30)
        host.wait_for("shard_ended", shard="shardId-000000000000")
        rig.client.merge_shards(
            StreamName=STREAM, ShardToMerge="shardId-000000000002", AdjacentShardToMerge="shardId-000000000003"
        )
        rig.until(rig.is_active)
        rig.put(range(200, 300))
        counting.wait_for_numbers(300, 30)
        assert stop(host.process) == 0
        assert {line["shard"] for line in host.log("shard_ended")} == {f"shardId-00000000000{n}" for n in (0, 2, 3)}
    assert delivered(counting) == list(range(300))
    counting.check_order()


def test_fan_out_by_its_http_1_1(rig: Rig, tmp_path: Path) -> None:
    """An initial-response is not needed; positions, events and the consumer are as documented."""
    rig.make(2)
    keys = {"retrievalMode": "FANOUT", "fanoutTransport": "http1"}
    counting = rig.host(tmp_path, **keys)
    rig.put(range(100))
    with Running(counting) as host:
        counting.wait_for_numbers(100, 30)
        rig.put(range(100, 200))
        counting.wait_for_numbers(200, 30)
        assert stop(host.process) == 0
    with Running(counting) as host:
        rig.put(range(200, 300))
        counting.wait_for_numbers(300, 30)
        assert stop(host.process) == 0
    assert delivered(counting) == list(range(300))
    counting.check_order()
