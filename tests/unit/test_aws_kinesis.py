"""KinesisStream: what it asks, and what it makes of the answers."""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from kcl_host.aws.kinesis import KinesisStream, install_fast_get_records
from kcl_host.errors import AccessError, ExpiredIterator, InvalidPosition, StreamNotFound, Throttled, Unavailable
from kcl_host.model.records import Record, RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard, ShardFilter, StreamSummary
from tests.fakes.wire import Reply, Wire

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
NUMBER = "49640000000000000000000000000000000000000000000000000001"


@cache
def session(fast: bool) -> botocore.session.Session:
    made = botocore.session.Session()
    if fast:
        install_fast_get_records(made)
    return made


def make(
    *replies: Reply | Exception, arn: str | None = None, fast: bool = True, **settings: Any
) -> tuple[KinesisStream, Wire, list[float]]:
    client = session(fast).create_client(
        "kinesis",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )
    slept: list[float] = []
    return KinesisStream(client, "orders", arn, sleep=slept.append, **settings), Wire(client, *replies), slept


def wire_shard(shard_id: str, **more: Any) -> dict[str, Any]:
    return {
        "ShardId": shard_id,
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "340282366920938463463374607431768211455"},
        "SequenceNumberRange": {"StartingSequenceNumber": NUMBER},
        **more,
    }


def wire_record(data: bytes, key: str = "k", arrival_s: float = 1_700_000_000.123) -> dict[str, Any]:
    return {
        "SequenceNumber": NUMBER,
        "PartitionKey": key,
        "Data": base64.b64encode(data).decode(),
        "ApproximateArrivalTimestamp": arrival_s,
        "EncryptionType": "KMS",
    }


# Describe and list


def test_describe() -> None:
    summary = {
        "StreamName": "orders",
        "StreamARN": ARN,
        "StreamStatus": "UPDATING",
        "RetentionPeriodHours": 48,
        "StreamCreationTimestamp": 1_700_000_000.0,
        "EnhancedMonitoring": [],
        "OpenShardCount": 3,
    }
    stream, wire, _ = make(Reply({"StreamDescriptionSummary": summary}))
    assert stream.describe() == StreamSummary(
        name="orders", arn=ARN, status="UPDATING", open_shard_count=3, retention_hours=48, creation_s=1_700_000_000
    )
    assert wire.requests == [("DescribeStreamSummary", {"StreamName": "orders"})]


def test_later_pages_of_a_listing_are_asked_for_by_token_alone() -> None:
    closed = {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"}
    stream, wire, _ = make(
        Reply({"Shards": [wire_shard("s0", SequenceNumberRange=closed)], "NextToken": "t1"}),
        Reply({"Shards": [], "NextToken": "t2"}),
        Reply({"Shards": [wire_shard("s2", ParentShardId="s0", AdjacentParentShardId="s1")]}),
    )
    whole = HashKeyRange(0, 2**128 - 1)
    assert stream.list_shards(ShardFilter(type="AT_TIMESTAMP", timestamp_s=1_700_000_000.0)) == [
        Shard(shard_id="s0", hash_key_range=whole, starting_sequence_number="1", ending_sequence_number="2"),
        Shard(
            shard_id="s2",
            hash_key_range=whole,
            starting_sequence_number=NUMBER,
            parent_shard_id="s0",
            adjacent_parent_shard_id="s1",
        ),
    ]
    assert wire.requests == [
        ("ListShards", {"StreamName": "orders", "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": 1_700_000_000}}),
        ("ListShards", {"NextToken": "t1"}),
        ("ListShards", {"NextToken": "t2"}),
    ]


def test_a_listing_waits_when_it_is_limited_page_by_page() -> None:
    limited = Reply(error="LimitExceededException")
    stream, wire, slept = make(
        limited, limited, Reply({"Shards": [], "NextToken": "t"}), limited, Reply({"Shards": []}),
        list_shards_backoff_s=0.5, list_shards_max_attempts=3,
    )  # fmt: skip
    assert stream.list_shards() == []
    assert slept == [0.5, 0.5, 0.5]
    assert [body for _, body in wire.requests] == [{"StreamName": "orders"}] * 3 + [{"NextToken": "t"}] * 2


def test_a_listing_gives_up_at_last() -> None:
    stream, _, slept = make(*[Reply(error="LimitExceededException")] * 3, list_shards_max_attempts=3)
    with pytest.raises(Throttled, match="kinesis:ListShards on stream orders"):
        stream.list_shards()
    assert slept == [1.5, 1.5]


def test_a_stream_that_is_not_ready_has_no_listing() -> None:
    stream, _, _ = make(Reply(error="ResourceInUseException"))
    assert stream.list_shards() is None


def test_with_an_arn_requests_name_the_stream_by_it() -> None:
    stream, wire, _ = make(
        Reply({"Shards": []}), Reply({"ShardIterator": "i"}), Reply({"Records": [], "MillisBehindLatest": 0}), arn=ARN
    )
    stream.list_shards()
    stream.get_shard_iterator("s0", IteratorPosition(type="LATEST"))
    stream.get_records("i", 5)
    assert [body for _, body in wire.requests] == [
        {"StreamARN": ARN},
        {"StreamARN": ARN, "ShardId": "s0", "ShardIteratorType": "LATEST"},
        {"StreamARN": ARN, "ShardIterator": "i", "Limit": 5},
    ]


# Iterators


@pytest.mark.parametrize(
    ("position", "sent"),
    [
        (IteratorPosition(type="TRIM_HORIZON"), {}),
        (IteratorPosition(type="LATEST"), {}),
        (IteratorPosition(type="AT_TIMESTAMP", timestamp_s=1_700_000_000.0), {"Timestamp": 1_700_000_000}),
        (IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=NUMBER), {"StartingSequenceNumber": NUMBER}),
        (IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number=NUMBER), {"StartingSequenceNumber": NUMBER}),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_every_kind_of_iterator(position: IteratorPosition, sent: dict[str, Any]) -> None:
    stream, wire, _ = make(Reply({"ShardIterator": "AAA"}))
    assert stream.get_shard_iterator("s0", position) == "AAA"
    common = {"StreamName": "orders", "ShardId": "s0", "ShardIteratorType": position.type}
    assert wire.requests == [("GetShardIterator", common | sent)]


# Records


PAGE = {
    "Records": [wire_record(data, f'ключ " {n}') for n, data in enumerate((b"", b"1", b"12", b"123", b"\x00" * 100))],
    "NextShardIterator": "next",
    "MillisBehindLatest": 2500,
    "SomethingNew": {"a": 1},
}


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "stock"])
def test_records_have_the_shape_of_multilang(fast: bool) -> None:
    stream, wire, _ = make(Reply(PAGE), fast=fast)
    page = stream.get_records("i", 10)
    assert wire.requests == [("GetRecords", {"ShardIterator": "i", "Limit": 10})]
    assert (page.next_iterator, page.millis_behind_latest, page.child_shards) == ("next", 2500, ())
    assert page.payload_bytes == 106
    assert page.records[3] == Record("MTIz", 'ключ " 3', NUMBER, 1_700_000_000_123, 0)
    assert [base64.b64decode(r.data) for r in page.records] == [b"", b"1", b"12", b"123", b"\x00" * 100]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "stock"])
def test_the_last_page_of_a_shard_names_its_children(fast: bool) -> None:
    child = {
        "ShardId": "s1",
        "ParentShards": ["s0"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "170141183460469231731687303715884105727"},
    }
    stream, _, _ = make(Reply({"Records": [], "MillisBehindLatest": 0, "ChildShards": [child]}), fast=fast)
    assert stream.get_records("i", 10) == RecordsPage(
        records=[],
        next_iterator=None,
        millis_behind_latest=0,
        child_shards=(ChildShard(shard_id="s1", parent_shard_ids=("s0",), hash_key_range=HashKeyRange(0, 2**127 - 1)),),
    )


def test_arrival_is_rounded_to_the_millisecond() -> None:
    # 1_700_000_000.0005 has no exact double; whole seconds arrive as integers
    arrivals = (1_700_000_000, 1_700_000_000.001, 1_700_000_000.9996)
    stream, _, _ = make(Reply({"Records": [wire_record(b"x", arrival_s=a) for a in arrivals]}))
    assert [r.approximate_arrival_timestamp for r in stream.get_records("i", 10).records] == [
        1_700_000_000_000,
        1_700_000_000_001,
        1_700_000_001_000,
    ]


def test_what_the_fast_parser_does_not_understand_goes_to_the_stock_one() -> None:
    odd = {**PAGE, "Records": [wire_record(b"1") | {"ApproximateArrivalTimestamp": "2023-11-14T22:13:20Z"}]}
    stream, _, _ = make(Reply(odd))
    page = stream.get_records("i", 10)
    assert page.records == [Record("MQ==", "k", NUMBER, 1_700_000_000_000, 0)]
    assert page.payload_bytes == 1


@pytest.mark.parametrize("body", [b'{"Records": [', b"<html>busy</html>"])
def test_half_an_answer_is_none(body: bytes) -> None:
    stream, _, _ = make(Reply(body))
    with pytest.raises(Unavailable):
        stream.get_records("i", 10)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(error="ExpiredIteratorException"), ExpiredIterator),
        (Reply(error="InvalidArgumentException"), InvalidPosition),
        (Reply(error="ProvisionedThroughputExceededException"), Throttled),
        (Reply(error="LimitExceededException"), Throttled),
        (Reply(error="ResourceNotFoundException"), StreamNotFound),
        (Reply(error="AccessDeniedException"), AccessError),
        (Reply(error="KMSAccessDeniedException"), AccessError),
        (Reply(error="KMSThrottlingException"), Throttled),
        (Reply(error="KMSDisabledException"), Unavailable),
        (Reply(error="InternalFailure", status=500), Unavailable),
        (Reply(b"", status=503), Unavailable),
    ],
    ids=lambda value: getattr(value, "error", ""),
)
def test_reads_that_fail(reply: Reply, error: type[Exception]) -> None:
    stream, wire, slept = make(reply, reply)
    with pytest.raises(error):
        stream.get_records("i", 10)
    with pytest.raises(error):
        stream.get_shard_iterator("s0", IteratorPosition(type="LATEST"))
    assert len(wire.requests) == 2, "pacing is ours: nothing retries below us"
    assert slept == []


def test_the_two_parsers_agree_on_a_large_page() -> None:
    records = [wire_record(bytes([n % 256]) * (n % 7), f"k{n}", 1_700_000_000 + n / 1000) for n in range(500)]
    body = json.dumps({"Records": records, "NextShardIterator": "n", "MillisBehindLatest": 1}).encode()
    (fast, _, _), (stock, _, _) = make(Reply(body)), make(Reply(body), fast=False)
    assert fast.get_records("i", 500) == stock.get_records("i", 500)
