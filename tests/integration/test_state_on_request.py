"""Signals that ask a running host for something: USR1 for its state, HUP to read its file again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = [pytest.mark.integration, pytest.mark.interop]

PAYLOAD = "a-payload-that-nobody-logs"
SHARDS = ("shardId-000000000000", "shardId-000000000001")


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", 2)
        yield running


def test_the_state_and_the_file_on_request(engines: Engines, tmp_path: Path) -> None:
    counting = Counting(engines, tmp_path, workerId="host-1")
    engines.put_records("numbers", [(str(number), f"{PAYLOAD} {number}".encode()) for number in range(20)])
    with Running(counting) as host:
        counting.wait_for_numbers(20, 20)
        for shard in SHARDS:
            host.wait_for("child_initialized", shard=shard)
        host.process.send_signal(signal.SIGUSR1)
        host.wait_for("state_of_thread", thread_of="MainThread")
        (worker,) = host.log("state_of_worker")
        assert (worker["phase"], worker["leases_held"], worker["consumers"]) == ("RUNNING", 2, 2)
        leases = {line["lease_key"]: line for line in host.log("state_of_lease")}
        assert set(leases) == set(SHARDS)
        pids = {line["shard"]: line["child_pid"] for line in host.log("child_initialized")}
        for key, line in leases.items():
            assert (line["held"], line["state"], line["child"], line["child_pid"]) == (
                True,
                "PROCESSING",
                "RUNNING",
                pids[key],
            )
            assert line["renewed_ago_s"] < 30 and line["queue"].startswith("<Handoff batches=")
        threads = {line["thread_of"]: line["stack"] for line in host.log("state_of_thread")}
        assert {"MainThread", "renewal", "signals", f"shard-{SHARDS[0]}"} <= set(threads)
        assert "supervisor.py" in threads["MainThread"] and "threads.py" in threads["renewal"]

        text = counting.properties.read_text()
        counting.properties.write_text(text + "failoverTimeMillis = 4000\nlogLevel = DEBUG\n")
        host.process.send_signal(signal.SIGHUP)
        host.wait_for("configuration", keys=["failoverTimeMillis"])
        host.wait_for("configuration", log_level="DEBUG")
        counting.wait_until(lambda: '"level":"DEBUG"' in counting.log.read_text(), 20)

        counting.properties.write_text("maxRecords = many\n")
        host.process.send_signal(signal.SIGHUP)
        counting.wait_until(lambda: any("error" in line for line in host.log("configuration")), 20)
        assert host.process.poll() is None, "a wrong file stops nobody"
        assert stop(host.process) == 0
    assert PAYLOAD not in counting.log.read_text()
    assert PAYLOAD in counting.out.read_text()
