"""A host whose children die of certain records: they end in a bucket, everything else is delivered in order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop
from tests.kpl import User, aggregate

pytestmark = pytest.mark.interop

CHILD = f"{sys.executable} {Path(__file__).parent / 'children' / 'dies_on_poison.py'}"
BUCKET = "dead-letters"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://{}:{}".format(*server.get_host_and_port()))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        yield boto3.client("s3", region_name="us-east-1")
    finally:
        server.stop()


def letters_in(s3: Any) -> list[dict[str, Any]]:
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    return [json.loads(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in sorted(keys)]


def test_children_that_die_of_some_records(tmp_path: Path, s3: Any) -> None:
    """One inside an aggregate, one at the end of its batch; the bucket is not there at first."""
    with Engines() as engines:
        engines.create_stream("numbers", 2)
        plain = [(f"a{number}", f"n{number}".encode()) for number in range(40)]
        inside = aggregate([User(b"u0"), User(b"u1"), User(b"poison inside"), User(b"u3")])
        engines.put_records("numbers", [*plain[:20], ("k", inside), *plain[20:], ("y", b"poison at the end")])
        counting = Counting(
            engines,
            tmp_path,
            executableName=CHILD,
            AwsCredentialsProvider="DefaultCredentialsProvider",
            poisonRecordAfterFailures=2,
            deadLetterTarget=f"s3://{BUCKET}/app",
        )
        with Running(counting) as host:
            host.wait_for("dead_letter_failed", 40.0)
            assert host.log("record_dead_lettered") == []
            s3.create_bucket(Bucket=BUCKET)
            counting.wait_until(lambda: len({one.data for one in counting.delivered()}) == 43, 60.0)
            counting.wait_until(lambda: len(host.log("record_dead_lettered")) == 2, 60.0)
            assert stop(host.process) == 0
        counting.check_order()
        assert {one.data for one in counting.delivered()} == {
            *(data.decode() for _, data in plain), "u0", "u1", "u3"
        }  # fmt: skip
        letters = letters_in(s3)
        assert sorted(letter["subSequenceNumber"] for letter in letters) == [0, 2]
        assert all("poison" in letter["stderr"][-1] and "status 3" in letter["error"] for letter in letters)
