"""KPL aggregates through a real host: resumed inside, and shared out by the hash key ranges of the shards."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from kcl_host.local.engines import Engines
from kcl_host.local.producer import Producer
from tests.integration.counting import Counting, Running, stop
from tests.kpl import by_producer

pytestmark = pytest.mark.integration
CHILD = f"{sys.executable} {Path(__file__).parent / 'children' / 'checkpoints_inside.py'}"
HALF = 2**127


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_child_and_host_killed_inside_an_aggregate_and_the_iterators_expire(tmp_path: Path) -> None:
    with Engines() as engines:
        engines.create_stream("numbers", 1)
        produced = _produce(engines, count=30)
        counting = Counting(engines, tmp_path, executableName=CHILD, maxRecords=4, workerId="always-me")
        host = counting.start()
        try:
            counting.wait_until(lambda: _events(counting, "checkpointed", 1), 40)
            host.kill()
            host.wait()
            expired = engines.kinesis.faults.add("GetRecords", "expired", times=2)
            host = counting.start()
            counting.wait_until(lambda: _places(_events(counting, "record", 2))[-1:] == [produced[-1]], 40)
            assert stop(host) == 0
        finally:
            if host.poll() is None:
                host.kill()
                host.wait()
        row = _rows(engines)["shardId-000000000000"]
    assert expired.hits == 2  # The first iterator, at the aggregate, and the one after it.

    start = 0
    for incarnation in (0, 1, 2):
        delivered = _places(_events(counting, "record", incarnation))
        assert delivered == produced[start : start + len(delivered)]
        (initialized,) = _events(counting, "initialized", incarnation)
        if incarnation:
            place = produced[start - 1]
            assert (initialized["sequence_number"], initialized["sub_sequence_number"]) == place[:2]
            assert place[1] == 2
        if incarnation < 2:
            (at,) = _events(counting, "checkpointed", incarnation)
            start = 1 + [p[:2] for p in produced].index((at["sequence_number"], at["sub_sequence_number"]))
    assert start + len(delivered) == len(produced)
    assert (row["checkpoint"]["S"], row["checkpointSubSequenceNumber"]["N"]) == (produced[-1][0], str(produced[-1][1]))
    assert produced[-1][1] > 0


def test_each_shard_delivers_the_user_records_of_its_own_range(tmp_path: Path) -> None:
    """A producer that did not know of a reshard: the same aggregate lands on one shard, then on the other."""
    users = [(f"key {n}", f"{n}".encode(), None) for n in range(40)]
    lower = {n for n in range(40) if int(hashlib.md5(f"key {n}".encode()).hexdigest(), 16) < HALF}
    with Engines() as engines:
        engines.create_stream("numbers", 2)
        data = by_producer(users)
        places = engines.put_records(
            "numbers", [(f"key {min(lower)}", data), (f"key {min(set(range(40)) - lower)}", data)]
        )
        counting = Counting(engines, tmp_path)
        host = counting.start()
        try:
            counting.wait_until(lambda: len(counting.delivered()) >= 40, 40)
            assert stop(host) == 0
        finally:
            if host.poll() is None:
                host.kill()
                host.wait()
        stored = counting.stored()
    assert sorted(numbers for numbers in stored.values()) == sorted([int(p)] for p in places)
    delivered = {(d.shard_id, d.sub_sequence_number, d.data) for d in counting.delivered()}
    assert len(counting.delivered()) == 40
    assert delivered == {(f"shardId-00000000000{0 if n in lower else 1}", n, str(n)) for n in range(40)}


def test_aggregates_of_the_local_producer_through_a_split(tmp_path: Path) -> None:
    with Engines() as engines:
        engines.create_stream("numbers", 2)
        counting = Counting(engines, tmp_path)
        producer = Producer(engines, "numbers", records_per_s=200, aggregate=7)
        with Running(counting) as host:
            producer.put(200)
            counting.wait_until(lambda: len(counting.delivered()) >= 100, 40)
            engines.split_shard("numbers", "shardId-000000000000")
            producer.put(200)
            counting.wait_until(lambda: len(counting.delivered()) >= 400, 40)
            assert stop(host.process) == 0
        stored = counting.stored()
    assert len(stored) == 4
    assert 400 / 7 < sum(map(len, stored.values())) < 400 / 7 + 1
    delivered = counting.delivered()
    assert sorted(json.loads(d.data)["number"] for d in delivered) == list(range(400))
    for shard_id, sequence_numbers in stored.items():
        places = [(d.sequence_number, d.sub_sequence_number) for d in delivered if d.shard_id == shard_id]
        assert list(dict.fromkeys(number for number, _ in places)) == sequence_numbers
        assert places == [(n, sub) for n in sequence_numbers for sub in range(sum(p[0] == n for p in places))]


def _produce(engines: Engines, count: int) -> list[tuple[str, int, str, str]]:
    """Aggregates of five and every third record plain; (sequence number, sub-sequence number, key, data) of each."""
    produced = []
    for number in range(count):
        if number % 3 == 1:
            users = [("plain", f"{number}".encode())]
            data = users[0][1]
        else:
            users = [(f"key {i % 2}", f"{number}/{i}".encode()) for i in range(5)]
            data = by_producer([(key, user, None) for key, user in users])
        (place,) = engines.put_records("numbers", [("plain", data)])
        produced += [(place, i, key, user.decode()) for i, (key, user) in enumerate(users)]
    return produced


def _events(counting: Counting, event: str, incarnation: int) -> list[dict[str, Any]]:
    if not counting.out.exists():
        return []
    text = counting.out.read_text()
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line for line in lines if line["event"] == event and line["incarnation"] == incarnation]


def _places(events: list[dict[str, Any]]) -> list[tuple[str, int, str, str]]:
    return [(e["sequence_number"], e["sub_sequence_number"], e["partition_key"], e["data"]) for e in events]


def _rows(engines: Engines) -> dict[str, Any]:
    client = boto3.client(
        "dynamodb", endpoint_url=engines.dynamodb_endpoint, region_name="us-east-1",
        aws_access_key_id="test", aws_secret_access_key="test",
    )  # fmt: skip
    return {row["leaseKey"]["S"]: row for row in client.scan(TableName="counting", ConsistentRead=True)["Items"]}
