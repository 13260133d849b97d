"""Dead letters in a folder, a queue and a bucket: durable, whole, and nobody else's to read."""

from __future__ import annotations

import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from moto import mock_aws

from kcl_host.aws.clients import dead_letter_client
from kcl_host.aws.dead_letter import FileDeadLetters, SqsDeadLetters, dead_letters_of
from kcl_host.config.settings import DeadLetterTarget, PoisonSettings, ServiceSettings, Settings
from kcl_host.errors import ConfigurationError, Unavailable
from kcl_host.model.dead_letter import DeadLetter
from tests.unit.consumer_rig import SETTINGS


def letter(number: int = 1, **changes: Any) -> DeadLetter:
    fields: dict[str, Any] = {
        "application": "app", "stream": "123456789012:orders:1700000000", "shard": "shardId-000000000000",
        "sequence_number": str(number), "sub_sequence_number": 3, "partition_key": "käse\uffff",
        "approximate_arrival_timestamp": 1, "data": "eA==", "error": "died", "failures": 4, "stderr": ("one", "two"),
        "worker": "w", "time": "2025-01-31T03:04:05.678Z", **changes,
    }  # fmt: skip
    return DeadLetter(**fields)


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


def to(kind: Any, place: str, prefix: str = "") -> Settings:
    service = ServiceSettings(region="eu-west-1")
    target = DeadLetterTarget(kind, place, prefix)
    return msgspec.structs.replace(SETTINGS, kinesis=service, poison=PoisonSettings(after_failures=3, target=target))


# Files


def test_a_line_for_each_in_a_file_for_each_day(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    letters = dead_letters_of(to("file", str(folder)))
    assert letters is not None
    for number in (1, 2):
        letters.put(letter(number))
    assert [line["sequenceNumber"] for line in lines(folder)] == ["1", "2"]
    letters.put(letter(3, time="2025-02-01T00:00:00.000Z"))
    assert sorted(os.listdir(folder)) == ["dead-letters-2025-01-31.jsonl", "dead-letters-2025-02-01.jsonl"]


def test_everything_that_is_known_of_the_record_is_there(tmp_path: Path) -> None:
    FileDeadLetters(str(tmp_path)).put(letter())
    assert lines(tmp_path) == [
        {
            "application": "app", "stream": "123456789012:orders:1700000000", "shard": "shardId-000000000000",
            "sequenceNumber": "1", "subSequenceNumber": 3, "partitionKey": "käse\uffff",
            "approximateArrivalTimestamp": 1, "data": "eA==", "error": "died", "failures": 4,
            "stderr": ["one", "two"], "worker": "w", "time": "2025-01-31T03:04:05.678Z",
        }
    ]  # fmt: skip


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FileDeadLetters(str(tmp_path / "new")).put(letter())
    finally:
        os.umask(before)
    (path,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_a_crash_has_left_is_ended_first(tmp_path: Path) -> None:
    letters = FileDeadLetters(str(tmp_path))
    letters.put(letter(1))
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"application":"a')
    letters.put(letter(2))
    texts = path.read_text().splitlines()
    assert len(texts) == 3 and json.loads(texts[2])["sequenceNumber"] == "2"


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    letters = FileDeadLetters(str(tmp_path))
    letters.put(letter(1))
    (path,) = tmp_path.iterdir()
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(Unavailable):
            letters.put(letter(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    letters.put(letter(2))
    assert [line["sequenceNumber"] for line in lines(tmp_path)] == ["1", "2"]


def test_a_folder_that_cannot_be_is_tried_again_later(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(Unavailable, match="dead letter not written"):
        FileDeadLetters(str(tmp_path / "taken")).put(letter())


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "dead-letters-2025-01-31.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        FileDeadLetters(str(tmp_path)).put(letter())
    assert not (tmp_path / "elsewhere").exists()


def test_several_write_at_once(tmp_path: Path) -> None:
    def write(first: int) -> None:
        letters = FileDeadLetters(str(tmp_path))
        for number in range(first, first + 10):
            letters.put(letter(number, data="x" * 20_000))

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(line["sequenceNumber"]) for line in lines(tmp_path)) == list(range(30))


# SQS and S3


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws():
        yield


def test_a_queue(aws: None) -> None:
    settings = to("sqs", "https://sqs.us-east-2.amazonaws.com/123456789012/dead")
    client = dead_letter_client("sqs", settings, "us-east-2")
    letters = dead_letters_of(settings)
    assert letters is not None
    with pytest.raises(Unavailable, match="sqs:SendMessage on queue"):
        letters.put(letter())
    url = client.create_queue(QueueName="dead")["QueueUrl"]
    letters.put(letter())
    (got,) = client.receive_message(QueueUrl=url)["Messages"]
    assert json.loads(got["Body"])["partitionKey"] == "käse\uffff"


def test_a_fifo_queue_drops_repetitions(aws: None) -> None:
    client = dead_letter_client("sqs", to("sqs", "https://unused/123456789012/q"), "us-east-2")
    url = client.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    letters = SqsDeadLetters(lambda: client, url)
    for number in (1, 1, 2):
        letters.put(letter(number))
    got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    assert [json.loads(message["Body"])["sequenceNumber"] for message in got] == ["1", "2"]
    assert {message["Attributes"]["MessageGroupId"] for message in got} == {"shardId-000000000000"}


def test_a_bucket(aws: None) -> None:
    settings = to("s3", "bucket", "app/dead")
    client = dead_letter_client("s3", settings)
    letters = dead_letters_of(settings)
    assert letters is not None
    with pytest.raises(ConfigurationError, match="NoSuchBucket"):
        letters.put(letter())
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for text in ("first", "second"):
        letters.put(letter(error=text))
    (entry,) = client.list_objects_v2(Bucket="bucket")["Contents"]
    assert entry["Key"] == "app/dead/123456789012-orders-1700000000/shardId-000000000000/1-3.json"
    body = client.get_object(Bucket="bucket", Key=entry["Key"])["Body"].read()
    assert json.loads(body)["error"] == "second"


def test_no_target() -> None:
    assert dead_letters_of(SETTINGS) is None
