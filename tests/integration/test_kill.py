"""kill -9 of hosts and children at random moments: every number delivered, in order, no checkpoint beyond the child.

A short run in the default tests; KCL_HOST_STRESS_SECONDS=600 pytest -m stress for the long one.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest

from kcl_host.local.engines import Engines
from kcl_host.local.producer import Producer
from tests.integration.counting import Counting, stop

pytestmark = pytest.mark.integration
STRESS_S = float(os.environ.get("KCL_HOST_STRESS_SECONDS", "600"))


@pytest.mark.stress
@pytest.mark.parametrize("position", ["TRIM_HORIZON", "LATEST"])
def test_kills_at_random_moments(tmp_path: Path, position: str) -> None:
    kill_for(STRESS_S / 2, tmp_path, position, seed=random.randrange(2**32))


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
@pytest.mark.parametrize("position", ["TRIM_HORIZON", "LATEST"])
def test_a_few_kills(tmp_path: Path, position: str) -> None:
    kill_for(4, tmp_path, position, seed=1)


def kill_for(seconds: float, folder: Path, position: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Engines() as engines:
        engines.create_stream("numbers", 3)
        counting = Counting(engines, folder, initialPositionInStream=position, workerId="always-me")
        host = counting.start()
        try:
            before = _first_checkpoints(engines, counting, position)
            producer = Producer(engines, "numbers", records_per_s=60)
            producer.start()
            kills: Counter[str] = Counter()
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                time.sleep(rng.uniform(0.2, 5.0))
                children = psutil.Process(host.pid).children()
                if children and rng.random() < 0.5:
                    kills["children"] += 1
                    rng.choice(children).kill()
                else:
                    kills["hosts"] += 1
                    host.kill()
                    host.wait()
                    host = counting.start()
            producer.stop()
            counting.wait_for_numbers(before + producer.produced, limit_s=90)
            assert stop(host) == 0
        finally:
            _end(host)
        counting.check_order()
        delivered = counting.delivered()
        records = len({(d.shard_id, d.sequence_number) for d in delivered})
        print(f"{seconds:.0f} s, killed {dict(kills)}, {records} records, {len(delivered) - records} repeated")
        for lease in _dynamodb(engines).scan(TableName="counting")["Items"]:
            largest = max(d.sequence_number for d in delivered if d.shard_id == lease["leaseKey"]["S"])
            assert int(lease["checkpoint"]["S"]) <= largest


def _first_checkpoints(engines: Engines, counting: Counting, position: str) -> int:
    """Under LATEST a host that dies before the first checkpoint of a shard loses what came before: every KCL does."""
    if position != "LATEST":
        return 0
    table = _dynamodb(engines)
    shards, sent = 3, 0

    def all_checkpointed() -> bool:
        nonlocal sent
        if counting.log.read_text().count("child initialized") < shards:
            return False
        items = table.scan(TableName="counting", ConsistentRead=True)["Items"]
        if all(item["checkpoint"]["S"].isdigit() for item in items):
            return True
        if not sent:
            sent = len(engines.put_records("numbers", [(f"key {i}", b"first") for i in range(60)]))
        return False

    counting.wait_until(all_checkpointed, 30)
    return sent


def _dynamodb(engines: Engines) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=engines.dynamodb_endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def _end(host: subprocess.Popen[bytes]) -> None:
    if host.poll() is None:
        host.kill()
        host.wait()
