"""The embedded Kinesis through boto3: every operation in the shape that botocore's model expects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError
from botocore.validate import ParamValidator

from kcl_host.local.engines import Engines
from kcl_host.local.producer import Producer

pytestmark = pytest.mark.integration

ROOT = "shardId-000000000000"


def kinesis_client(engines: Engines, access_key: str = "local", **config: Any) -> Any:
    return boto3.client(
        "kinesis",
        endpoint_url=engines.kinesis_endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with Engines() as engines:
        yield engines


@pytest.fixture(scope="module")
def shared_client(engines: Engines) -> Iterator[Any]:
    client = kinesis_client(engines)
    yield client
    client.close()


@pytest.fixture
def client(engines: Engines, shared_client: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client, with a stream `s` of two shards that is new for each test."""
    shared_client.create_stream(StreamName="s", ShardCount=2)
    yield shared_client
    engines.kinesis.faults.clear()
    engines.kinesis.faults.require_authorization = False
    if "s" in shared_client.list_streams()["StreamNames"]:
        shared_client.delete_stream(StreamName="s", EnforceConsumerDeletion=True)


def error_code(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    response = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def iterator(client: Any, shard_id: str = ROOT, kind: str = "TRIM_HORIZON") -> str:
    answer = client.get_shard_iterator(StreamName="s", ShardId=shard_id, ShardIteratorType=kind)
    return str(answer["ShardIterator"])


def test_records_there_and_back(client: Any) -> None:
    payload = bytes(range(256))
    for key in ('é"\\ ', "k" * 256):
        put = client.put_record(StreamName="s", Data=payload, PartitionKey=key)
        answer = client.get_records(ShardIterator=iterator(client, put["ShardId"]))
        record = answer["Records"][-1]
        assert (record["Data"], record["PartitionKey"]) == (payload, key)
        assert record["SequenceNumber"] == put["SequenceNumber"]
        assert abs(record["ApproximateArrivalTimestamp"].timestamp() - time.time()) < 60
    records = [{"Data": b"%d" % i, "PartitionKey": str(i)} for i in range(500)]
    assert client.put_records(StreamName="s", Records=records)["FailedRecordCount"] == 0


def test_a_shard_that_ends(client: Any) -> None:
    token = iterator(client)
    client.split_shard(StreamName="s", ShardToSplit=ROOT, NewStartingHashKey="10")
    answer = client.get_records(ShardIterator=token)
    assert "NextShardIterator" not in answer and len(answer["ChildShards"]) == 2


def test_every_answer_has_the_shape_of_the_service_model(client: Any) -> None:
    """Required members are there with the right types, and no member is there that the model does not know."""
    model = client.meta.service_model
    arn = client.describe_stream(StreamName="s")["StreamDescription"]["StreamARN"]
    of_s = {"StreamName": "s"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("CreateStream", {"StreamName": "other", "ShardCount": 1, "Tags": {"a": "b"}}),
        ("AddTagsToStream", {**of_s, "Tags": {"team": "x"}}),
        ("ListTagsForStream", of_s),
        ("RemoveTagsFromStream", {**of_s, "TagKeys": ["team"]}),
        ("IncreaseStreamRetentionPeriod", {**of_s, "RetentionPeriodHours": 48}),
        ("DecreaseStreamRetentionPeriod", {**of_s, "RetentionPeriodHours": 24}),
        ("PutRecord", {"StreamARN": arn, "Data": b"x", "PartitionKey": "k"}),
        ("PutRecords", {**of_s, "Records": [{"Data": b"x", "PartitionKey": "k"}]}),
        ("DescribeStream", {**of_s, "Limit": 1}),
        ("DescribeStreamSummary", {"StreamARN": arn}),
        ("ListStreams", {"Limit": 1}),
        ("ListShards", {"StreamARN": arn, "MaxResults": 1}),
        ("GetRecords", {"ShardIterator": iterator(client), "Limit": 1}),
        ("UpdateShardCount", {**of_s, "TargetShardCount": 4, "ScalingType": "UNIFORM_SCALING"}),
        ("SplitShard", {**of_s, "ShardToSplit": "shardId-000000000002", "NewStartingHashKey": "10"}),
        (
            "MergeShards",
            {**of_s, "ShardToMerge": "shardId-000000000006", "AdjacentShardToMerge": "shardId-000000000007"},
        ),
        ("GetRecords", {"ShardIterator": iterator(client)}),
        ("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "c"}),
        ("DescribeStreamConsumer", {"StreamARN": arn, "ConsumerName": "c"}),
        ("ListStreamConsumers", {"StreamARN": arn}),
        ("DeregisterStreamConsumer", {"StreamARN": arn, "ConsumerName": "c"}),
        ("DeleteStream", {"StreamName": "other"}),
    ]
    methods = {operation: method for method, operation in client.meta.method_to_api_mapping.items()}
    for operation, parameters in calls:
        answer = getattr(client, methods[operation])(**parameters)
        del answer["ResponseMetadata"]
        shape = model.operation_model(operation).output_shape
        if shape is None:
            assert answer == {}, operation
        else:
            assert set(answer) <= set(shape.members), operation
            report = ParamValidator().validate(answer, shape).generate_report().splitlines()
            # Lower bounds are for input: the service itself answers FailedRecordCount 0 and empty ShardLevelMetrics.
            assert [line for line in report if "valid min" not in line] == [], operation
    statuses = client.describe_stream(StreamName="s")["StreamDescription"]
    assert statuses["StreamStatus"] == "ACTIVE" and statuses["RetentionPeriodHours"] == 24


def test_describe_stream_walks_the_pages(client: Any) -> None:
    client.update_shard_count(StreamName="s", TargetShardCount=4, ScalingType="UNIFORM_SCALING")
    pages = client.get_paginator("describe_stream").paginate(StreamName="s", PaginationConfig={"PageSize": 4})
    found = pages.search("StreamDescription.Shards[]")
    assert [shard["ShardId"] for shard in found] == [f"shardId-{i:012d}" for i in range(6)]


@pytest.mark.parametrize(
    ("method", "parameters", "code"),
    [
        ("get_records", {"ShardIterator": "x"}, "InvalidArgumentException"),
        ("list_shards", {"StreamName": "none"}, "ResourceNotFoundException"),
        ("create_stream", {"StreamName": "s", "ShardCount": 1}, "ResourceInUseException"),
        ("start_stream_encryption", {"StreamName": "s", "EncryptionType": "KMS", "KeyId": "k"}, None),
    ],
)
def test_errors_are_those_of_the_service(
    client: Any, method: str, parameters: dict[str, Any], code: str | None
) -> None:
    with pytest.raises(ClientError) as error:
        getattr(client, method)(**parameters)
    assert error_code(error) == (400, code or "UnknownOperationException")
    if code:
        assert isinstance(error.value, getattr(client.exceptions, code))


def test_credentials_are_not_checked_unless_asked_for(engines: Engines, client: Any) -> None:
    unsigned = kinesis_client(engines, signature_version=UNSIGNED)
    assert unsigned.list_shards(StreamName="s")["Shards"]
    engines.kinesis.faults.require_authorization = True
    with pytest.raises(ClientError) as error:
        unsigned.list_shards(StreamName="s")
    assert error_code(error) == (400, "MissingAuthenticationTokenException")
    unsigned.close()
    denied = kinesis_client(engines, "DENIED")
    with pytest.raises(ClientError) as error:
        denied.list_shards(StreamName="s")
    assert error_code(error) == (400, "AccessDeniedException")
    denied.close()


def test_faults_of_one_shard(engines: Engines, client: Any) -> None:
    second = iterator(client, "shardId-000000000001")
    first = iterator(client)
    engines.kinesis.faults.add("GetRecords", "throttle", times=1, key=("s", ROOT))
    engines.kinesis.faults.add("GetRecords", "error", times=1, key=ROOT)
    engines.kinesis.faults.add("GetRecords", "expired", times=1, key=ROOT)
    assert client.get_records(ShardIterator=second)["Records"] == []
    for expected in (
        (400, "ProvisionedThroughputExceededException"),
        (500, "InternalFailure"),
        (400, "ExpiredIteratorException"),
    ):
        with pytest.raises(ClientError) as error:
            client.get_records(ShardIterator=first)
        assert error_code(error) == expected
    assert client.get_records(ShardIterator=first)["Records"] == []


def test_an_answer_that_is_lost_was_applied_all_the_same(engines: Engines, client: Any) -> None:
    engines.kinesis.faults.add("PutRecord", "drop", times=1)
    engines.kinesis.faults.add("PutRecord", "lost_answer", times=1)
    for data in (b"dropped", b"applied"):
        with pytest.raises(ConnectionClosedError):
            client.put_record(StreamName="s", Data=data, PartitionKey="k")
    stored = [record.data for records in engines.kinesis.stored_records("s").values() for record in records]
    assert stored == [b"applied"]


def test_an_answer_that_comes_too_late_or_never(engines: Engines, client: Any) -> None:
    impatient = kinesis_client(engines, read_timeout=0.5)  # As long as a busy machine may take.
    for kind in ("hang", "slow"):
        fault = engines.kinesis.faults.add("ListShards", kind, times=1, delay_s=5)
        with pytest.raises(ReadTimeoutError):
            impatient.list_shards(StreamName="s")
        assert fault.hits == 1
        assert impatient.list_shards(StreamName="s")["Shards"]
    impatient.close()


def test_the_producer_numbers_its_records_without_a_gap(engines: Engines, client: Any) -> None:
    producer = Producer(engines, "s", records_per_s=5000, limit=50)
    producer.start()
    assert producer.join(10)
    stored = engines.kinesis.stored_records("s")
    numbers = [int(record.partition_key) for records in stored.values() for record in records]
    assert producer.produced == 50 and sorted(numbers) == list(range(50))
    assert all(stored.values())  # every shard has some


def test_the_producer_waits_for_its_stream(engines: Engines) -> None:
    producer = Producer(engines, "later", records_per_s=1000, limit=3)
    producer.start()
    engines.create_stream("later", 1)
    assert producer.join(10)
    assert [record.data[:11] for record in engines.kinesis.stored_records("later")[ROOT]] == [
        b'{"number":%d' % i for i in range(3)
    ]
    engines.kinesis.call("DeleteStream", StreamName="later")
    producer.stop()
