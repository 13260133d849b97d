"""`kcl-host migrate-leases` as a process on the embedded engines: the rows as DynamoDB holds them, and what is said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

OLD, NEW = "counting", "counting-multi"
S0, S1, S2 = (f"shardId-{n:012d}" for n in range(3))
NUMBER = "99000000000000000000000000000000000000000000000000000001"
"""Beyond the beginning of every shard."""


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", 2)
        yield running


@pytest.fixture
def dynamodb(engines: Engines) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=engines.dynamodb_endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


@pytest.fixture
def app(engines: Engines, tmp_path: Path, dynamodb: Any) -> Counting:
    """A stopped application: rows as Java 3.4 and 3.5 write them, in three tables."""
    for table, key in ((OLD, "leaseKey"), (f"{OLD}-CoordinatorState", "key"), (f"{OLD}-WorkerMetricStats", "wid")):
        dynamodb.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    version = {"key": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}, "mb": {"S": "w"}, "mts": {"N": "1"}}
    dynamodb.put_item(TableName=f"{OLD}-CoordinatorState", Item=version)
    for item in OLD_ROWS:
        dynamodb.put_item(TableName=OLD, Item=item)
    return Counting(engines, tmp_path, failoverTimeMillis=1000)


OLD_ROWS: list[dict[str, Any]] = [
    {
        "leaseKey": {"S": S0},
        "leaseOwner": {"S": "java-1"},
        "leaseCounter": {"N": "512"},
        "checkpoint": {"S": "SHARD_END"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "170141183460469231731687303715884105727"},
        "childShardIds": {"SS": [S1, S2]},
        "somethingElse": {"S": "unknown"},
    },
    {
        "leaseKey": {"S": S1},
        "entityType": {"S": "LEASE"},
        "leaseOwner": {"S": "java-1"},
        "checkpointOwner": {"S": "java-2"},
        "leaseCounter": {"N": "17"},
        "checkpoint": {"S": NUMBER},
        "checkpointSubSequenceNumber": {"N": "7"},
        "ownerSwitchesSinceCheckpoint": {"N": "3"},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "1"},
        "parentShardId": {"SS": [S0]},
        "pendingCheckpoint": {"S": NUMBER},
        "pendingCheckpointSubSequenceNumber": {"N": "9"},
        "pendingCheckpointState": {"B": b"state"},
        "throughputKBps": {"N": "12.345678"},
    },
    {
        "leaseKey": {"S": S2},
        "leaseCounter": {"N": "0"},
        "checkpoint": {"S": "LATEST"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "parentShardId": {"SS": [S0]},
    },
]


def new_rows(identifier: str) -> dict[str, dict[str, Any]]:
    """What has to be in the new table, to the attribute."""
    rows = {}
    for row in OLD_ROWS:
        shard_id = row["leaseKey"]["S"]
        kept = {
            name: value for name, value in row.items() if name not in ("leaseOwner", "checkpointOwner", "somethingElse")
        }
        rows[f"{identifier}:{shard_id}"] = {
            **kept,
            "leaseKey": {"S": f"{identifier}:{shard_id}"},
            "leaseCounter": {"N": "0"},
            "entityType": {"S": "LEASE"},
            "streamName": {"S": identifier},
            "shardId": {"S": shard_id},
        }
    return rows


def rows_of(dynamodb: Any, table: str) -> dict[str, dict[str, Any]]:
    items = dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
    for item in items:
        for value in item.values():
            if "SS" in value:
                value["SS"] = sorted(value["SS"])
    return {item["leaseKey"]["S"]: item for item in items}


def tables(dynamodb: Any) -> set[str]:
    return set(dynamodb.list_tables()["TableNames"])


def identifier_of(engines: Engines) -> str:
    client = boto3.client(
        "kinesis",
        endpoint_url=engines.kinesis_endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    summary = client.describe_stream_summary(StreamName="numbers")["StreamDescriptionSummary"]
    account = summary["StreamARN"].split(":")[4]
    return f"{account}:numbers:{int(summary['StreamCreationTimestamp'].timestamp())}"


def migrate(app: Counting, *args: str, to: str = NEW) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kcl_host", "migrate-leases", "-p", str(app.properties), "--to-table", to, *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "250"},
    )


def test_a_dry_run_shows_everything_and_writes_nothing(app: Counting, engines: Engines, dynamodb: Any) -> None:
    before = tables(dynamodb)
    done = migrate(app)
    assert (done.returncode, done.stderr) == (0, "")
    for key in new_rows(identifier_of(engines)):
        (line,) = [line for line in done.stdout.splitlines() if key in line]
        assert line.startswith(key.rpartition(":")[2]) and line.rstrip().endswith("to be written")
    assert f"{NUMBER}:7" in done.stdout and "SHARD_END" in done.stdout
    assert "Nothing was written" in done.stdout
    assert f"    streamNames = numbers\n    tableName = {NEW}\n" in done.stdout
    assert tables(dynamodb) == before


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_the_new_table_has_exactly_these_rows_and_the_old_one_is_untouched(
    app: Counting, engines: Engines, dynamodb: Any
) -> None:
    old, others = rows_of(dynamodb, OLD), tables(dynamodb)
    done = migrate(app, "--apply")
    assert done.returncode == 0, done.stderr
    assert "leases written: 3 of 3" in done.stderr and "seconds without a sign of a worker" in done.stderr
    expected = new_rows(identifier_of(engines))
    assert rows_of(dynamodb, NEW) == expected
    assert rows_of(dynamodb, OLD) == old
    assert tables(dynamodb) == others | {NEW}
    (index,) = dynamodb.describe_table(TableName=NEW)["Table"]["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "LeaseOwnerToLeaseKeyIndex"

    # Killed after the second row: the rest is completed.
    missing = sorted(expected)[2]
    dynamodb.delete_item(TableName=NEW, Key={"leaseKey": {"S": missing}})
    again = migrate(app, "--apply")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("there already") == 2 and "leases written: 1 of 1" in again.stderr
    assert rows_of(dynamodb, NEW) == expected

    # A worker has begun to use the new table.
    dynamodb.update_item(
        TableName=NEW,
        Key={"leaseKey": {"S": missing}},
        UpdateExpression="SET leaseCounter = :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
    )
    refused = migrate(app, "--apply")
    assert refused.returncode == 6
    assert missing in refused.stderr and len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.interop  # Long: .ci/run has it.
def test_a_worker_on_the_new_table_goes_on_where_the_old_one_stopped(engines: Engines, tmp_path: Path) -> None:
    app = Counting(engines, tmp_path, failoverTimeMillis=1000)

    def deliver(numbers: range) -> None:
        engines.put_records("numbers", [(str(number), str(number).encode()) for number in numbers])
        with Running(app) as host:
            app.wait_for_numbers(numbers.stop, 30)
            assert stop(host.process) == 0

    deliver(range(100))
    engines.split_shard("numbers", S0)
    done = migrate(app, "--apply")
    assert done.returncode == 0, done.stderr
    lines = app.properties.read_text().replace("streamName =", "streamNames =")
    app.properties.write_text(f"{lines}tableName = {NEW}\n")
    deliver(range(100, 200))
    assert Counter(int(d.data) for d in app.delivered()) == Counter(range(200)), "each once"
    app.check_order()


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_running_worker_is_noticed(app: Counting, dynamodb: Any) -> None:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.2):
            dynamodb.update_item(
                TableName=OLD,
                Key={"leaseKey": {"S": S1}},
                UpdateExpression="ADD leaseCounter :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
            )

    worker = threading.Thread(target=renew)
    worker.start()
    try:
        done = migrate(app, "--apply")
    finally:
        ended.set()
        worker.join()
    assert done.returncode == 6
    assert f"workers are running on table {OLD}: lease {S1} was written (held by java-2)" in done.stderr
    assert NEW not in tables(dynamodb)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_single_table_application_takes_migration_3_0_along(app: Counting, dynamodb: Any) -> None:
    """No CoordinatorState, and in the lease table what KCL 3.5 keeps there."""
    for suffix in ("CoordinatorState", "WorkerMetricStats"):
        dynamodb.delete_table(TableName=f"{OLD}-{suffix}")
    version = {
        "leaseKey": {"S": "Migration3.0"},
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": "CLIENT_VERSION_3X"},
        "mb": {"S": "w"},
        "mts": {"N": "1"},
    }
    worker = {
        "leaseKey": {"S": "java-1"},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "1"},
        "sts": {"M": {}},
        "opr": {"M": {}},
    }
    for item in (version, worker):
        dynamodb.put_item(TableName=OLD, Item=item)
    done = migrate(app, "--apply")
    assert done.returncode == 0, done.stderr
    assert "item Migration3.0 (CLIENT_VERSION_3X): copied" in done.stdout
    assert "rows of type WORKER_METRIC_STATS" in done.stdout
    rows = rows_of(dynamodb, NEW)
    assert rows.pop("Migration3.0") == version
    assert [row["shardId"]["S"] for row in rows.values()] == [S0, S1, S2]
    assert tables(dynamodb) == {OLD, NEW}


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_what_is_wrong_ends_in_one_line_and_the_documented_exit_code(
    app: Counting, engines: Engines, dynamodb: Any, tmp_path: Path
) -> None:
    def said(code: int, *args: str, **options: str) -> str:
        done = migrate(app, *args, **options)
        assert done.returncode == code, done.stderr
        (line,) = done.stderr.strip().splitlines()
        return line

    assert "is a table of the application already" in said(2, to=OLD)
    engines.dynamodb.faults.add("PutItem", "deny")
    refused = migrate(app, "--apply")
    assert refused.returncode == 3 and f"grant dynamodb:PutItem on table {NEW}" in refused.stderr
    engines.dynamodb.faults.clear()
    lines = app.properties.read_text()
    for changed, code, expected in (
        ("tableName = nowhere", 2, "lease table nowhere is missing"),
        ("streamName = nowhere", 4, "stream nowhere"),
    ):
        app.properties.write_text(f"{lines}{changed}\n")
        assert expected in said(code, "--apply")
    app.properties.write_text(lines.replace("streamName =", "streamNames ="))
    assert "give the file of the single-stream application" in said(2)
