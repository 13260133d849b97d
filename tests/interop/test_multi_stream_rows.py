"""Leases of many streams, written by Java's lease refresher (KCL 3.5.1) and by ours, on the same table.

Java's daemon reads one stream only, so its library is called by a program of ours, MultiStreamLeases.java. Rows that
hold checkpoints inside a KPL aggregate (a sub-sequence number) go both ways too. So do those that `kcl-host
migrate-leases` made of the leases of a single-stream application.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.config.settings import TableSettings
from kcl_host.local.kinesis import KinesisEngine
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import StreamIdentifier
from tests.interop.dynamodb_local import dynamodb_local
from tests.interop.java_daemon import java_daemon_parts

pytestmark = pytest.mark.interop

ORDERS = StreamIdentifier(name="orders", account="111111111111", epoch=1_700_000_000)
EVENTS = StreamIdentifier(name="events", account="222222222222", epoch=1_700_000_001)
SHARD, PARENT = "shardId-000000000001", "shardId-000000000000"
TABLE = "many"


class Both:
    """The same table by Java and by us."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._parts = java_daemon_parts("3.5.1")
        self.client = boto3.client(
            "dynamodb",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        self.ours = DynamoDbLeaseTable(self.client, TableSettings(name=TABLE))
        assert self.ours.create_table()

    def java(self, *commands: str, table: str = TABLE) -> list[str]:
        """The answer to each command, of one run of the program."""
        java = shutil.which("java")
        assert java is not None
        program = str(Path(__file__).with_name("MultiStreamLeases.java"))
        done = subprocess.run(
            [java, "-Xmx128m", "-cp", self._parts.class_path, program, self.endpoint, table, "; ".join(commands)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.split(" ")[0] in ANSWERS]


ANSWERS = {"created", "leases", "renewed", "checkpointed", "evicted"}


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with dynamodb_local() as endpoint:
        yield Both(endpoint)


def ours(stream: StreamIdentifier, owner: str) -> Lease:
    return Lease(
        lease_key=stream.lease_key(SHARD),
        checkpoint=ExtendedSequenceNumber("49590338271490256608559692538361571095921575989136588898", 7),
        lease_owner=owner,
        lease_counter=5,
        owner_switches_since_checkpoint=0,
        parent_shard_ids=frozenset({PARENT}),
        stream_name=str(stream),
        multi_stream_shard_id=SHARD,
    )


def test_rows_of_many_streams_go_both_ways(both: Both) -> None:
    mine = ours(ORDERS, "kcl-host-1")
    assert both.ours.create(mine)
    key = f"{EVENTS}:{SHARD}"
    created, listed, renewed, checkpointed, evicted = both.java(
        f"create {EVENTS} {SHARD} {PARENT}",
        "list",
        f"renew {mine.lease_key}",
        f"checkpoint {mine.lease_key} 49590338271490256608559692538361571095921575989136588899 3",
        f"evict {key}",
    )
    assert (created, renewed, checkpointed, evicted) == (
        "created true",
        "renewed true",
        "checkpointed true",
        "evicted true",
    )
    # Java read what we had written, the place inside the aggregate too ...
    number = "49590338271490256608559692538361571095921575989136588898"
    assert f"{mine.lease_key} {ORDERS} {SHARD} kcl-host-1 5 {number} 7 {PARENT}" in listed.split(" | ")
    # ... and we read what it wrote.
    theirs = both.ours.get(key)
    assert theirs is not None
    assert (theirs.stream_name, theirs.shard_id, theirs.lease_owner) == (str(EVENTS), SHARD, None)
    assert (theirs.checkpoint, theirs.parent_shard_ids) == (AT_TRIM_HORIZON, frozenset({PARENT}))
    row = both.ours.get(mine.lease_key)
    assert row is not None
    assert row.checkpoint == ExtendedSequenceNumber("49590338271490256608559692538361571095921575989136588899", 3)
    assert row.lease_counter == 7
    assert both.ours.renew(row, 1.5).applied
    assigned = both.ours.assign(theirs, "kcl-host-1")
    assert assigned.applied and assigned.row is not None and assigned.row.lease_owner == "kcl-host-1"
    assert {lease.lease_key for lease in both.ours.list_leases(EVENTS).leases} == {key}


def test_what_we_wrote_to_a_row_of_java_is_renewed_by_it(both: Both) -> None:
    key = f"{EVENTS}:shardId-000000000002"
    both.java(f"create {EVENTS} shardId-000000000002 {PARENT}")
    lease = both.ours.get(key)
    assert lease is not None
    assert both.ours.assign(lease, "java-1").applied
    renewed, listed = both.java(f"renew {key}", "list")
    assert renewed == "renewed true"
    assert f"{key} {EVENTS} shardId-000000000002 java-1" in listed


def test_leases_of_a_single_stream_are_java_s_after_their_migration(both: Both, tmp_path: Path) -> None:
    single = DynamoDbLeaseTable(both.client, TableSettings(name="single"))
    assert single.create_table()
    number = "99000000000000000000000000000000000000000000000000000001"
    rows = [
        Lease(lease_key=PARENT, checkpoint=AT_SHARD_END, child_shard_ids=frozenset({SHARD}), lease_counter=9),
        Lease(
            lease_key=SHARD,
            checkpoint=ExtendedSequenceNumber(number, 7),
            lease_owner="java-1",
            lease_counter=5,
            parent_shard_ids=frozenset({PARENT}),
        ),
    ]
    assert all(single.create(row) for row in rows)
    properties = tmp_path / "app.properties"
    kinesis = KinesisEngine()
    kinesis.start()
    try:
        kinesis.create_stream("orders", 2)
        lines = ["executableName = cat", "applicationName = single", "streamName = orders", "regionName = us-east-1"]
        lines += [f"kinesisEndpoint = {kinesis.endpoint}", f"dynamoDBEndpoint = {both.endpoint}"]
        lines += ["AwsCredentialsProvider = DefaultCredentialsProvider", "failoverTimeMillis = 1000"]
        properties.write_text("\n".join(lines))
        done = subprocess.run(
            [sys.executable, "-m", "kcl_host", "migrate-leases", str(properties), "--to-table", "migrated", "--apply"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"},
        )
    finally:
        kinesis.stop()
    assert done.returncode == 0, done.stderr
    migrated = DynamoDbLeaseTable(both.client, TableSettings(name="migrated"))
    stream = migrated.list_leases().leases[0].stream_name
    listed, renewed, checkpointed = both.java(
        "list", f"renew {stream}:{SHARD}", f"checkpoint {stream}:{SHARD} {number} 8", table="migrated"
    )
    assert listed.split(" | ")[1:] == [
        f"{stream}:{PARENT} {stream} {PARENT} null 0 SHARD_END 0 ",
        f"{stream}:{SHARD} {stream} {SHARD} null 0 {number} 7 {PARENT}",
    ]
    assert (renewed, checkpointed) == ("renewed true", "checkpointed true")
    row = migrated.get(f"{stream}:{SHARD}")
    assert row is not None and (row.checkpoint, row.lease_counter) == (ExtendedSequenceNumber(number, 8), 2)
