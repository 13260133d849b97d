"""`processes = N`: several workers under one process, which share the leases, and stop together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

SHARDS = 4


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", SHARDS)
        yield running


def put(engines: Engines, numbers: range) -> None:
    engines.put_records("numbers", [(str(n), str(n).encode()) for n in numbers])


def owners(engines: Engines) -> dict[str, str]:
    items = engines.dynamodb.call("Scan", TableName="counting", ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item.get("leaseOwner", {}).get("S", "") for item in items}


def share(counting: Counting, *workers: str) -> bool:
    found = list(owners(counting.engines).values())
    return len(found) == SHARDS and all(found.count(worker) == SHARDS // len(workers) for worker in workers)


def process_ids(host: Running) -> dict[int, int]:
    """The last process id of each number."""
    return {line["worker_process"]: line["process_id"] for line in host.log("process_started")}


def wait_until_gone(counting: Counting, process_ids: list[int]) -> None:
    counting.wait_until(lambda: not any(psutil.pid_exists(one) for one in process_ids), 20)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it, and the next one.
def test_they_share_the_leases_and_one_that_dies_is_started_again(engines: Engines, tmp_path: Path) -> None:
    counting = Counting(engines, tmp_path, processes=2, workerId="host", leaseAssignmentStrategy="LEASE_COUNT_BASED")
    put(engines, range(100))
    with Running(counting) as host:
        counting.wait_for_numbers(100, 30)
        counting.wait_until(lambda: share(counting, "host-0", "host-1"), 30)
        first = process_ids(host)
        os.kill(first[1], signal.SIGKILL)
        counting.wait_until(lambda: process_ids(host)[1] != first[1], 20)
        put(engines, range(100, 200))
        counting.wait_for_numbers(200, 40)
        assert process_ids(host)[0] == first[0]
        assert stop(host.process) == 0
        assert {line["worker_process"] for line in host.log("process_ended", status=0)} == {0, 1}
        wait_until_gone(counting, [*first.values(), *process_ids(host).values()])
    assert {int(one.data) for one in counting.delivered()} == set(range(200))
    counting.check_order()
    assert set(owners(engines).values()) == {""}, "all leases were given back"


@pytest.mark.interop
def test_workers_stop_in_order_when_the_parent_is_killed(engines: Engines, tmp_path: Path) -> None:
    counting = Counting(engines, tmp_path, processes=2)
    put(engines, range(50))
    with Running(counting) as host:
        counting.wait_for_numbers(50, 30)
        workers = list(process_ids(host).values())
        host.process.send_signal(signal.SIGUSR1)
        counting.wait_until(lambda: len(host.log("state_of_worker")) == 2, 20)
        host.process.kill()
        host.process.wait()
        wait_until_gone(counting, workers)
        assert len(host.log("stop_requested")) == 2
    assert set(owners(engines).values()) == {""}


def test_what_no_worker_can_go_on_with_ends_all(engines: Engines, tmp_path: Path) -> None:
    counting = Counting(engines, tmp_path, processes=2, stream="nowhere")
    assert counting.start().wait(30) == 4
