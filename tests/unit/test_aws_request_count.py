"""Requests are counted with their units, and come out as they went in."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_host.aws.request_count import DYNAMODB_READS, DYNAMODB_WRITES, KINESIS, count_dynamodb, count_kinesis


class Client:
    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {}
        self.error: Exception | None = None
        for method in (*DYNAMODB_READS, *DYNAMODB_WRITES, *KINESIS):
            setattr(self, method, self._call)

    def _call(self, **request: Any) -> dict[str, Any]:
        self.got.append(request)
        if self.error is not None:
            raise self.error
        return self.answer


Counted = list[tuple[str, str, float, float]]


@pytest.fixture
def counted() -> Counted:
    return []


def dynamodb(counted: Counted, **answer: Any) -> Any:
    client = Client()
    client.answer = answer
    count_dynamodb(client, lambda *request: counted.append(request))
    return client


def test_reads_and_writes_with_what_they_consumed(counted: Counted) -> None:
    client = dynamodb(counted, ConsumedCapacity={"TableName": "t", "CapacityUnits": 2.5}, Items=[1])
    assert client.scan(TableName="t", Limit=3)["Items"] == [1]
    client.update_item(TableName="t")
    assert counted == [("Scan", "t", 2.5, 0.0), ("UpdateItem", "t", 0.0, 2.5)]
    assert client.got[0] == {"TableName": "t", "Limit": 3, "ReturnConsumedCapacity": "TOTAL"}


def test_several_items_name_their_table_elsewhere(counted: Counted) -> None:
    client = dynamodb(counted, ConsumedCapacity=[{"TableName": "a", "CapacityUnits": 2}, {"CapacityUnits": 1}])
    client.batch_get_item(RequestItems={"t": {}})
    client.transact_write_items(TransactItems=[])
    assert counted == [("BatchGetItem", "t", 3.0, 0.0), ("TransactWriteItems", "a", 0.0, 3.0)]


@pytest.mark.parametrize(("code", "units"), [("ConditionalCheckFailedException", 1.0), ("ThrottlingException", 0.0)])
def test_what_is_refused_counts_and_stays_an_error(counted: Counted, code: str, units: float) -> None:
    client = dynamodb(counted)
    client.error = ClientError({"Error": {"Code": code}}, "UpdateItem")
    with pytest.raises(ClientError):
        client.update_item(TableName="t")
    assert counted == [("UpdateItem", "t", 0.0, units)]


def test_an_engine_that_does_not_tell_units(counted: Counted) -> None:
    dynamodb(counted).get_item(TableName="t")
    assert counted == [("GetItem", "t", 0.0, 0.0)]


def test_kinesis_by_stream_where_the_request_names_it(counted: Counted) -> None:
    client: Any = Client()
    count_kinesis(client, lambda *request: counted.append(request))
    client.get_records(ShardIterator="i")
    client.get_records(ShardIterator="i", StreamARN="arn:aws:kinesis:us-east-1:1:stream/orders")
    client.list_shards(StreamName="clicks")
    assert counted == [
        ("GetRecords", "", 0.0, 0.0),
        ("GetRecords", "orders", 0.0, 0.0),
        ("ListShards", "clicks", 0.0, 0.0),
    ]
    assert client.got[0] == {"ShardIterator": "i"}
