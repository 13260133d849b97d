"""`kcl-host status` and `top` as commands against the embedded engines, with and without a real host at work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kcl_host.cli.main import cli
from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

TABLE, STATE, REPORTS = "counting", "counting-CoordinatorState", "counting-WorkerMetricStats"


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


@pytest.fixture
def counting(engines: Engines, tmp_path: Path) -> Counting:
    engines.create_stream("numbers", 2)
    return Counting(engines, tmp_path, workerId="host-1")


def status(counting: Counting, *args: str, command: str = "status") -> tuple[int, str]:
    result = CliRunner().invoke(cli, [command, "-p", str(counting.properties), *args], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout


def status_json(counting: Counting, *args: str) -> tuple[int, dict[str, Any]]:
    code, text = status(counting, "--json", *args)
    document: dict[str, Any] = json.loads(text)
    assert document["ok"] is (code == 0) and document["schema"] == 1
    return code, document


def kinds(document: dict[str, Any], severity: str = "problem") -> list[str]:
    return [finding["kind"] for finding in document["findings"] if finding["severity"] == severity]


def rows(engines: Engines, table: str = TABLE) -> list[dict[str, Any]]:
    items = engines.dynamodb.call("Scan", TableName=table, ConsistentRead=True)["Items"]
    return sorted(items, key=lambda item: str(item))


def put(engines: Engines, count: int) -> None:
    engines.put_records("numbers", [(str(number), str(number).encode()) for number in range(count)])


def test_an_application_that_never_started(counting: Counting) -> None:
    code, document = status_json(counting)
    assert (code, kinds(document), document["metadata"]["form"]) == (1, ["no_lease_table"], "none")
    code, text = status(counting)
    assert code == 1 and "1 PROBLEM" in text


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_it_shows_the_truth_of_a_host_at_work_and_after_it(counting: Counting, engines: Engines) -> None:
    put(engines, 50)
    with Running(counting) as host:
        counting.wait_for_numbers(50, 30)
        engines.split_shard("numbers", "shardId-000000000000")
        for shard in ("shardId-000000000002", "shardId-000000000003"):
            host.wait_for("child_initialized", shard=shard)
        host.wait_for("leader_acquired")
        code, document = status_json(counting, "--observe", "1", "--lag")
        assert (code, kinds(document)) == (0, [])
        by_key = {item["leaseKey"]["S"]: item for item in rows(engines)}
        assert [lease["lease_key"] for lease in document["leases"]] == sorted(by_key)
        for lease in document["leases"]:
            item = by_key[lease["lease_key"]]
            assert (lease["owner"], lease["checkpoint"]) == ("host-1", item["checkpoint"]["S"])
            assert lease["hash_key_range"] == [item["startingHashKey"]["S"], item["endingHashKey"]["S"]]
        states = {lease["shard_id"][-1]: lease["state"] for lease in document["leases"]}
        assert states == {"0": "ended", "1": "reading", "2": "reading", "3": "reading"}
        lagging = {lease["shard_id"][-1]: lease["lag_ms"] for lease in document["leases"]}
        assert lagging == {"0": None, "1": 0, "2": 0, "3": 0}
        ages = [lease["checkpoint_age_s"] for lease in document["leases"] if lease["checkpoint"].isdigit()]
        assert ages and all(0 < age < 60 for age in ages)
        assert document["leader"]["worker_id"] == "host-1" and document["metadata"]["form"] == "three_tables"
        (worker,) = document["workers"]
        assert (worker["leases"], worker["standing"], worker["is_leader"]) == (3, "active", True)
        assert document["looks"] == 2 and document["summary"]["writes_per_s"] > 0

        host.process.kill()
        host.process.wait()
        code, document = status_json(counting, "--observe", "2.5")
        assert code == 1 and set(kinds(document)) == {"leader_silent", "owner_silent"}
        assert [lease["state"] for lease in document["leases"]].count("silent") == 3

    with Running(counting) as host:
        counting.wait_until(lambda: len(host.log("leader_acquired")) == 2, 20)
        assert stop(host.process) == 0
    before = {table: rows(engines, table) for table in (TABLE, STATE, REPORTS)}
    code, text = status(counting, "--lag")
    assert code == 1 and "!! no_owner" in text
    assert {table: rows(engines, table) for table in (TABLE, STATE, REPORTS)} == before, "status only reads"


def started_and_stopped(counting: Counting) -> None:
    with Running(counting) as host:
        host.wait_for("child_initialized", shard="shardId-000000000001")
        assert stop(host.process) == 0


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_what_may_not_be_read_is_named_and_the_rest_is_shown(counting: Counting, engines: Engines) -> None:
    started_and_stopped(counting)
    faults = engines.dynamodb.faults
    faults.add("Scan", "deny", key=REPORTS)
    faults.add("GetItem", "deny", key=(STATE, "Migration3.0"))
    code, document = status_json(counting)
    assert code == 1 and kinds(document)[:2] == ["not_read", "not_read"]
    assert [failure["part"] for failure in document["failures"]] == ["Migration3.0", "worker metrics"]
    assert "dynamodb:Scan on table counting-WorkerMetricStats" in document["failures"][1]["error"]
    assert len(document["leases"]) == 2

    faults.clear()
    engines.kinesis.faults.add("GetShardIterator", "deny")
    code, document = status_json(counting, "--lag")
    assert {failure["part"] for failure in document["failures"]} == {"lag"}
    assert len(document["leases"]) == 2
    engines.kinesis.faults.clear()

    faults.add("*", "deny")
    done = subprocess.run(
        [sys.executable, "-m", "kcl_host", "status", "-p", str(counting.properties)], capture_output=True, timeout=60
    )
    assert done.returncode == 3 and b"DescribeTable" in done.stderr


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_fleet_in_the_middle_of_the_move_into_one_table(counting: Counting, engines: Engines) -> None:
    started_and_stopped(counting)
    now_s = int(time.time())
    item: dict[str, Any] = {
        "key": {"S": "TableMigration3.5"},
        "entityType": {"S": "TABLE_MIGRATION"},
        "tm": {"S": "TABLE_MIGRATION_STATUS_DEPLOYED"},
        "mb": {"S": "java-1"},
        "mts": {"N": str(now_s * 1000)},
    }
    lock = {"ownerName": "java-1", "leaseDuration": "120000", "recordVersionNumber": "v"}
    engines.dynamodb.call("PutItem", TableName=STATE, Item=item)
    engines.dynamodb.call(
        "PutItem",
        TableName=STATE,
        Item={"key": {"S": "Leader"}, **{name: {"S": value} for name, value in lock.items()}},
    )
    report = {"lut": {"N": str(now_s)}, "sts": {"M": {}}, "opr": {"M": {}}}
    engines.dynamodb.call("PutItem", TableName=REPORTS, Item={"wid": {"S": "java-1"}, **report})
    moved = {"leaseKey": {"S": "java-2"}, "entityType": {"S": "WORKER_METRIC_STATS"}, **report}
    engines.dynamodb.call("PutItem", TableName=TABLE, Item=moved)
    for shard, owner in (("shardId-000000000000", "java-1"), ("shardId-000000000001", "java-2")):
        engines.dynamodb.call(
            "UpdateItem",
            TableName=TABLE,
            Key={"leaseKey": {"S": shard}},
            UpdateExpression="SET leaseOwner = :owner",
            ExpressionAttributeValues={":owner": {"S": owner}},
        )
    code, document = status_json(counting)
    assert (code, kinds(document)) == (0, []) and "table_migration" in kinds(document, "notice")
    places = {worker["worker_id"]: worker["reports_to"] for worker in document["workers"] if worker["leases"]}
    assert places == {"java-1": "worker_metrics_table", "java-2": "lease_table"}
    assert document["metadata"]["migration_note"].endswith("1 of 2 lease owners report in the lease table")
    assert document["leader"]["worker_id"] == "java-1"


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_several_streams_in_a_single_table(engines: Engines, tmp_path: Path) -> None:
    for stream, shards in (("orders", 2), ("clicks", 1)):
        engines.create_stream(stream, shards)
    several = Counting(
        engines,
        tmp_path,
        streamName=None,
        streamNames="orders, clicks",
        workerId="host-1",
        metadataTableFormat="single",
    )
    engines.put_records("clicks", [("1", b"1")])
    with Running(several) as host:
        several.wait_until(lambda: len(host.log("child_initialized")) == 3, 20)
        several.wait_for_numbers(1, 20)
        host.wait_for("leader_acquired")
        code, document = status_json(several, "--observe", "1", "--lag", "--cost", "--price", "write_million=1000000")
        assert (code, kinds(document)) == (0, [])
        cost = document["cost"]
        measured = sum(line["write_units"] for line in cost["lines"] if line["is_measured"])
        assert measured == pytest.approx(document["summary"]["writes_per_s"] * 3600)
        assert cost["usd_a_day"] > measured * 24 and cost["missing"] == []
        assert document["metadata"]["form"] == "single_table"
        assert (document["leader"]["worker_id"], document["leader"]["place"]) == ("host-1", "lease_table")
        assert {name.split(":")[1]: of["leases"] for name, of in document["streams"].items()} == {
            "orders": 2,
            "clicks": 1,
        }
        assert [(worker["leases"], worker["reports_to"]) for worker in document["workers"]] == [(3, "lease_table")]
        assert len(status_json(several, "--stream", "clicks")[1]["leases"]) == 1
        assert stop(host.process) == 0


@pytest.mark.interop
@pytest.mark.stress
def test_ten_thousand_leases_are_a_page_however_slow_the_table_is(counting: Counting, engines: Engines) -> None:
    """moto takes seconds for a page of this scan, longer than a worker would wait for any answer."""
    started_and_stopped(counting)
    row = rows(engines)[0]
    for first in range(2, 10_000, 25):
        puts = []
        for number in range(first, min(first + 25, 10_000)):
            own = {
                "leaseKey": {"S": f"shardId-{number:012d}"},
                "leaseOwner": {"S": f"host-{number % 50}"},
                "checkpoint": {"S": str(number)},
            }
            puts.append({"PutRequest": {"Item": {**row, **own}}})
        engines.dynamodb.call("BatchWriteItem", RequestItems={TABLE: puts})
    began_s = time.monotonic()
    code, text = status(counting)
    print(f"{time.monotonic() - began_s:.1f} s for 10,000 leases")
    assert code == 1 and "leases  10,000: 9,998 reading 2 no owner" in text and "not_read" not in text
    lines = text.splitlines()
    assert len(lines) < 60 and "10,000" in "".join(lines[:5]) and "9,998 leases more" in text
    assert len(status_json(counting, "--worker", "host-7")[1]["leases"]) == 200


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_filters_choose_leases_and_leave_the_verdict(counting: Counting, engines: Engines) -> None:
    started_and_stopped(counting)
    code, document = status_json(counting, "--shard", "0001", "--state", "no_owner")
    assert code == 1 and [lease["lease_key"] for lease in document["leases"]] == ["shardId-000000000001"]
    (unowned,) = (finding for finding in document["findings"] if finding["kind"] == "no_owner")
    assert unowned["leases"] == ["shardId-000000000000", "shardId-000000000001"]
    assert status_json(counting, "--worker", "nobody")[1]["leases"] == []
    put(engines, 10)
    code, document = status_json(counting, "--max-lag", "3600")
    assert "lag" not in kinds(document) and document["summary"]["lag_known"] == 2
    code, document = status_json(counting, "--max-lag", "0")
    assert "lag" in kinds(document)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_top_goes_on_through_an_outage_and_ends_with_what_it_saw_last(counting: Counting, engines: Engines) -> None:
    with Running(counting) as host:
        host.wait_for("leader_acquired")
        host.wait_for("child_initialized", shard="shardId-000000000001")
        top = subprocess.Popen(
            [sys.executable, "-m", "kcl_host", "top", "-p", str(counting.properties), "--watch", "0.3", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        with top:
            assert top.stdout is not None
            looks = [json.loads(top.stdout.readline()) for _ in range(2)]
            assert [look["looks"] for look in looks] == [1, 2] and len(looks[1]["leases"]) == 2
            outage = engines.dynamodb.faults.add("*", "throttle")
            while (look := json.loads(top.stdout.readline()))["ok"]:
                pass
            assert kinds(look)[0] == "not_read" and len(look["leases"]) == 2, "the last picture stays"
            engines.dynamodb.faults.remove(outage)
            counting.wait_until(lambda: json.loads(top.stdout.readline())["ok"], 20)  # type: ignore[union-attr]
            top.send_signal(signal.SIGINT)
            top.stdout.read()
            assert top.wait(10) == 0


def test_text_on_a_pipe_repeats_below_itself(counting: Counting) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "kcl_host", "status", "-p", str(counting.properties), "--watch", "0.2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with watching:
        assert watching.stdout is not None
        verdicts = 0
        while verdicts < 2:
            verdicts += "PROBLEM" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(10) == 1
