"""One host process on several streams of the embedded Kinesis; every record of each is counted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = [pytest.mark.integration, pytest.mark.interop]  # .ci/run has it.

AUTO = "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION"


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("orders", 2)
        running.create_stream("clicks", 1)
        yield running


def host_of(engines: Engines, folder: Path, streams: str, **keys: object) -> Counting:
    return Counting(engines, folder, streamName=None, streamNames=streams, **keys)


def put(engines: Engines, stream: str, numbers: range) -> set[str]:
    data = [f"{stream}-{number}" for number in numbers]
    engines.put_records(stream, [(one, one.encode()) for one in data])
    return set(data)


def wait_for(counting: Counting, records: set[str], limit_s: float = 20.0) -> None:
    counting.wait_until(lambda: records <= {one.data for one in counting.delivered()}, limit_s)


def identifier(engines: Engines, stream: str) -> str:
    summary = engines.kinesis.call("DescribeStreamSummary", StreamName=stream)["StreamDescriptionSummary"]
    return f"{summary['StreamARN'].split(':')[4]}:{stream}:{int(summary['StreamCreationTimestamp'])}"


def rows(engines: Engines) -> dict[str, dict[str, Any]]:
    items = engines.dynamodb.call("Scan", TableName="counting", ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


def test_each_stream_in_its_own_way_with_rows_as_java_writes_them(engines: Engines, tmp_path: Path) -> None:
    """One is polled, one read by fan-out with a child of its own; a reshard of one does not touch the other."""
    clicked = tmp_path / "clicked.txt"
    own = f"/usr/bin/env KCL_DEMO_OUT={clicked} {sys.executable} -m kcl_host.processor.demo"
    counting = host_of(
        engines, tmp_path, "orders, clicks", **{"retrievalMode.clicks": "FANOUT", "executableName.clicks": own}
    )
    orders, clicks = identifier(engines, "orders"), identifier(engines, "clicks")
    ordered = put(engines, "orders", range(50))
    put(engines, "clicks", range(30))
    with Running(counting) as host:
        wait_for(counting, ordered)
        engines.split_shard("orders", shard_id(0))
        host.wait_for("shard_ended", stream=orders)
        ordered |= put(engines, "orders", range(50, 100))
        wait_for(counting, ordered)
        counting.wait_until(lambda: clicked.exists() and len(clicked.read_text().splitlines()) == 30, 20)
        assert stop(host.process) == 0
        assert {(line["stream"], line["shard"]) for line in host.log("child_initialized")} == {
            *((orders, shard_id(n)) for n in range(4)),
            (clicks, shard_id(0)),
        }
    assert sorted(one.data for one in counting.delivered()) == sorted(ordered), "each once"
    table = rows(engines)
    assert set(table) == {*(f"{orders}:{shard_id(n)}" for n in range(4)), f"{clicks}:{shard_id(0)}"}
    for key, row in table.items():
        assert (row["streamName"]["S"], row["shardId"]["S"]) == tuple(key.rsplit(":", 1))
        assert row["checkpoint"]["S"] != "TRIM_HORIZON" or key.endswith(shard_id(3)) or key.endswith(shard_id(2))
    ended, child = table[f"{orders}:{shard_id(0)}"], table[f"{orders}:{shard_id(2)}"]
    assert ended["checkpoint"]["S"] == "SHARD_END" and set(ended["childShardIds"]["SS"]) == {shard_id(2), shard_id(3)}
    assert child["parentShardId"]["SS"] == [shard_id(0)], "bare, as Java's"


def test_streams_come_and_go_while_the_host_runs(engines: Engines, tmp_path: Path) -> None:
    keys = {"formerStreamsLeasesDeletionStrategy": AUTO, "waitPeriodToDeleteFormerStreamsMillis": 0}
    counting = host_of(engines, tmp_path, "orders", **keys)
    records = put(engines, "orders", range(20)) | put(engines, "clicks", range(20))
    with Running(counting) as host:
        wait_for(counting, {one for one in records if one.startswith("orders")})
        before = counting.properties.read_text()
        counting.properties.write_text(before.replace("streamNames = orders", "streamNames = orders,clicks"))
        host.process.send_signal(signal.SIGHUP)
        wait_for(counting, records)
        without = before.replace("streamNames = orders", "streamNames = clicks")
        counting.properties.write_text(without)
        host.process.send_signal(signal.SIGHUP)
        host.wait_for("former_stream_deleted", stream=identifier(engines, "orders"), leases=2)
        counting.wait_until(lambda: len(host.log("child_ended")) == 2, 20)
        more = put(engines, "clicks", range(20, 40))
        wait_for(counting, more)
        counting.properties.write_text(without.replace("failoverTimeMillis = 2000", "failoverTimeMillis = 3000"))
        host.process.send_signal(signal.SIGHUP)
        host.wait_for("configuration", keys=["failoverTimeMillis"])
        counting.properties.write_text("streamNames = orders\n")
        host.process.send_signal(signal.SIGHUP)
        counting.wait_until(lambda: any("goes on" in line["message"] for line in host.log("configuration")), 10)
        assert stop(host.process) == 0
    assert sorted(one.data for one in counting.delivered()) == sorted(records | more), "each once"


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_stream_created_anew_under_its_name_is_another_one(engines: Engines, tmp_path: Path) -> None:
    counting = host_of(engines, tmp_path, "orders,clicks")
    wait_for_first = put(engines, "orders", range(20)) | put(engines, "clicks", range(20))
    with Running(counting) as host:
        wait_for(counting, wait_for_first)
        old = identifier(engines, "orders")
        engines.kinesis.call("DeleteStream", StreamName="orders")
        counting.wait_until(lambda: not engines.kinesis.call("ListStreams").get("StreamNames", []).count("orders"), 20)
        counting.wait_until(lambda: _created_later(engines, old), 20)
        again = put(engines, "orders", range(100, 120))
        host.process.send_signal(signal.SIGHUP)
        wait_for(counting, again)
        host.wait_for("former_stream_deleted", stream=old)
        assert stop(host.process) == 0
    new = identifier(engines, "orders")
    assert {key for key in rows(engines) if ":orders:" in key} == {f"{new}:{shard_id(n)}" for n in range(2)}


def _created_later(engines: Engines, old: str) -> bool:
    """The creation time has whole seconds: created until it is another one."""
    names = engines.kinesis.call("ListStreams")["StreamNames"]
    if "orders" not in names:
        engines.create_stream("orders", 2)
    if identifier(engines, "orders") != old:
        return True
    engines.kinesis.call("DeleteStream", StreamName="orders")
    return False


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_missing_stream_does_not_keep_the_others_from_being_read(engines: Engines, tmp_path: Path) -> None:
    counting = host_of(engines, tmp_path, "nowhere,clicks")
    records = put(engines, "clicks", range(20))
    with Running(counting) as host:
        wait_for(counting, records)
        assert host.log("stream_sync_failed", stream="nowhere")
        engines.create_stream("nowhere", 1)
        records |= put(engines, "nowhere", range(20))
        wait_for(counting, records)
        assert stop(host.process) == 0
    none_there = host_of(engines, tmp_path, "no,never", applicationName="another")
    assert none_there.start().wait(30) == 4


def test_the_tables_of_one_stream_and_of_several_are_kept_apart(engines: Engines, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = Counting(engines, tmp_path / "one", stream="orders")
    records = put(engines, "orders", range(20))
    with Running(one) as host:
        wait_for(one, records)
        assert stop(host.process) == 0
    before = rows(engines)
    several = host_of(engines, tmp_path, "orders,clicks")
    assert several.start().wait(30) == 6
    assert "kcl-host migrate-leases" in several.log.read_text()
    assert rows(engines) == before
