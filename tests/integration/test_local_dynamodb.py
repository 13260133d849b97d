"""The embedded DynamoDB through boto3: what a lease table needs, atomicity above all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from kcl_host.local.engines import Engines
from kcl_host.local.service_error import ServiceError

pytestmark = pytest.mark.integration

THREADS = 16
LEASE = {"leaseKey": {"S": "shard-1"}, "leaseCounter": {"N": "0"}, "leaseOwner": {"S": "w0"}}


def dynamodb_client(engines: Engines, region: str = "us-east-1", **config: Any) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=engines.dynamodb_endpoint,
        region_name=region,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=THREADS, **config),
    )


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as engines:
        yield engines


@pytest.fixture
def client(engines: Engines) -> Iterator[Any]:
    """A client, with a lease table `leases` like the one of KCL 3.x and one lease in it."""
    client = dynamodb_client(engines)
    client.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "LeaseOwnerToLeaseKeyIndex",
                "KeySchema": [
                    {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                    {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
        DeletionProtectionEnabled=True,
        Tags=[{"Key": "team", "Value": "x"}],
    )
    client.put_item(TableName="leases", Item=LEASE)
    yield client
    client.close()


def renew(client: Any, counter: int, owner: str = "w0", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.update_item(
        TableName="leases",
        Key={"leaseKey": LEASE["leaseKey"]},
        UpdateExpression="SET leaseCounter = :next, leaseOwner = :owner",
        ConditionExpression="leaseCounter = :counter",
        ExpressionAttributeValues={
            ":next": {"N": str(counter + 1)},
            ":counter": {"N": str(counter)},
            ":owner": {"S": owner},
        },
        **more,
    )
    return answer


def stored(engines: Engines) -> dict[str, Any]:
    item: dict[str, Any] = engines.dynamodb.call("GetItem", TableName="leases", Key={"leaseKey": LEASE["leaseKey"]})[
        "Item"
    ]
    return item


def test_the_table_is_as_it_was_asked_for(client: Any) -> None:
    table = client.describe_table(TableName="leases")["Table"]
    assert table["TableStatus"] == "ACTIVE" and table["DeletionProtectionEnabled"] is True
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    (index,) = table["GlobalSecondaryIndexes"]
    assert (index["IndexName"], index["IndexStatus"]) == ("LeaseOwnerToLeaseKeyIndex", "ACTIVE")
    assert client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"] == [{"Key": "team", "Value": "x"}]


def test_the_index_follows_the_owner(client: Any) -> None:
    def leases_of(owner: str) -> list[str]:
        items = client.query(
            TableName="leases",
            IndexName="LeaseOwnerToLeaseKeyIndex",
            KeyConditionExpression="leaseOwner = :owner",
            ExpressionAttributeValues={":owner": {"S": owner}},
        )["Items"]
        return [item["leaseKey"]["S"] for item in items]

    assert leases_of("w0") == ["shard-1"]
    renew(client, 0, "w1")
    assert (leases_of("w0"), leases_of("w1")) == ([], ["shard-1"])


def test_a_failed_condition_returns_the_old_item(client: Any) -> None:
    assert renew(client, 0, ReturnValues="ALL_NEW")["Attributes"]["leaseCounter"] == {"N": "1"}
    with pytest.raises(client.exceptions.ConditionalCheckFailedException) as error:
        renew(client, 0, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    assert error.value.response["Item"] == {**LEASE, "leaseCounter": {"N": "1"}}


def test_every_type_survives(client: Any) -> None:
    item = {
        "leaseKey": {"S": "é"},
        "b": {"B": b"\x00\xff"},
        "bs": {"BS": [b"\x01", b"\x02"]},
        "ss": {"SS": ["a", "b"]},
        "n": {"N": "340282366920938463463374607431768211455"},
        "none": {"NULL": True},
        "map": {"M": {"deep": {"L": [{"BOOL": False}, {"N": "1.5"}]}}},
    }
    client.put_item(TableName="leases", Item=item)
    assert client.get_item(TableName="leases", Key={"leaseKey": {"S": "é"}}, ConsistentRead=True)["Item"] == item
    scanned = client.scan(TableName="leases", FilterExpression="attribute_exists(ss)")
    assert (scanned["Items"], scanned["Count"], scanned["ScannedCount"]) == ([item], 1, 2)
    batch = client.batch_get_item(RequestItems={"leases": {"Keys": [{"leaseKey": {"S": "é"}}]}})
    assert batch["Responses"]["leases"] == [item]


def test_clients_of_every_region_and_key_see_the_same_tables(engines: Engines, client: Any) -> None:
    elsewhere = dynamodb_client(engines, "eu-west-1")
    assert elsewhere.list_tables()["TableNames"] == ["leases"]
    elsewhere.close()


def test_engines_do_not_share_tables(client: Any) -> None:
    with Engines() as others:
        assert others.dynamodb.call("ListTables")["TableNames"] == []


def test_errors_in_this_process(engines: Engines, client: Any) -> None:
    with pytest.raises(ServiceError, match="ResourceNotFoundException"):
        engines.dynamodb.call("DescribeTable", TableName="none")
    with pytest.raises(ServiceError, match="UnknownOperationException"):
        engines.dynamodb.call("MakeCoffee")


def test_one_winner_of_each_race(engines: Engines, client: Any) -> None:
    """16 threads do the same compare-and-set, over HTTP and in process, with threads switched as often as possible."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for counter in range(5):
            winners: list[str] = []
            barrier = threading.Barrier(THREADS)

            def compete(owner: str, through_http: bool, counter: int = counter, barrier: Any = barrier) -> None:
                barrier.wait()
                try:
                    if through_http:
                        renew(client, counter, owner)
                    else:
                        engines.dynamodb.call(
                            "UpdateItem",
                            TableName="leases",
                            Key={"leaseKey": LEASE["leaseKey"]},
                            UpdateExpression="SET leaseCounter = :n, leaseOwner = :o",
                            ConditionExpression="leaseCounter = :c",
                            ExpressionAttributeValues={
                                ":n": {"N": str(counter + 1)},
                                ":c": {"N": str(counter)},
                                ":o": {"S": owner},
                            },
                        )
                except (ClientError, ServiceError):
                    return
                winners.append(owner)  # noqa: B023 - the threads are joined within the round

            threads = [threading.Thread(target=compete, args=(f"w{i}", i % 2 == 0)) for i in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(winners) == 1
            assert stored(engines)["leaseOwner"] == {"S": winners[0]}
    finally:
        sys.setswitchinterval(interval_s)


def test_a_write_whose_answer_is_lost(engines: Engines, client: Any) -> None:
    engines.dynamodb.faults.add("UpdateItem", "lost_answer", times=1, key=("leases", "shard-1"))
    engines.dynamodb.faults.add("UpdateItem", "drop", times=1, key="leases")
    engines.dynamodb.faults.add("UpdateItem", "throttle", times=1)
    with pytest.raises(ConnectionClosedError):
        renew(client, 0)
    assert stored(engines)["leaseCounter"] == {"N": "1"}
    with pytest.raises(ConnectionClosedError):
        renew(client, 1)
    with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
        renew(client, 1)
    assert stored(engines)["leaseCounter"] == {"N": "1"}
    renew(client, 1)


def test_what_is_applied_can_be_observed(engines: Engines, client: Any) -> None:
    seen: list[tuple[str, int]] = []
    engines.dynamodb.front.observe = lambda operation, body, answer: seen.append((operation, answer.status))
    renew(client, 0)
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        renew(client, 0)
    assert seen == [("UpdateItem", 200), ("UpdateItem", 400)]
