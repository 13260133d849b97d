"""The Kinesis stand-in without HTTP, under a fake clock."""

from __future__ import annotations

from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.local.kinesis_service import KinesisService
from kcl_host.local.service_error import ServiceError
from kcl_host.model.shard import MAX_HASH_KEY

START_S = 1_750_000_000.0
ROOT = "shardId-000000000000"
HOUR_S = 3600


class FakeClock:
    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def kinesis(clock: FakeClock) -> KinesisService:
    service = KinesisService(clock)
    service.create_stream("s", 1)
    return service


def refused(kinesis: KinesisService, operation: str, **parameters: Any) -> str:
    with pytest.raises(ServiceError) as refusal:
        kinesis.call(operation, **parameters)
    return refusal.value.code


def iterator(kinesis: KinesisService, shard_id: str = ROOT, kind: str = "TRIM_HORIZON", **more: Any) -> str:
    answer = kinesis.call("GetShardIterator", StreamName="s", ShardId=shard_id, ShardIteratorType=kind, **more)
    return str(answer["ShardIterator"])


def read(kinesis: KinesisService, token: str, **more: Any) -> dict[str, Any]:
    return kinesis.call("GetRecords", ShardIterator=token, **more)


def keys(answer: dict[str, Any]) -> list[str]:
    return [record["PartitionKey"] for record in answer["Records"]]


def put(kinesis: KinesisService, *names: str) -> list[str]:
    return kinesis.put_records("s", [(name, name.encode()) for name in names])


def listed(kinesis: KinesisService, kind: str | None = None, **more: Any) -> list[int]:
    """Shard numbers of one listing."""
    shard_filter = {"ShardFilter": {"Type": kind, **more}} if kind else {}
    shards = kinesis.call("ListShards", StreamName="s", **shard_filter)["Shards"]
    return [int(shard["ShardId"][-12:]) for shard in shards]


# Reading


def test_records_come_back_in_order_as_they_were_put(kinesis: KinesisService, clock: FakeClock) -> None:
    numbers = put(kinesis, "a", 'é"\n', "c")
    answer = read(kinesis, iterator(kinesis))
    assert [r["SequenceNumber"] for r in answer["Records"]] == numbers
    assert keys(answer) == ["a", 'é"\n', "c"]
    assert answer["Records"][1]["Data"] == b64encode('é"\n'.encode()).decode()
    assert answer["Records"][0]["ApproximateArrivalTimestamp"] == clock.now_s
    assert answer["MillisBehindLatest"] == 0
    assert read(kinesis, answer["NextShardIterator"])["Records"] == []


def test_a_limit_cuts_the_answer_and_shows_how_far_behind_it_is(kinesis: KinesisService, clock: FakeClock) -> None:
    put(kinesis, "a")
    clock.pass_s(2)
    put(kinesis, "b", "c")
    clock.pass_s(3)
    first = read(kinesis, iterator(kinesis), Limit=1)
    assert keys(first) == ["a"] and first["MillisBehindLatest"] == 5000
    second = read(kinesis, first["NextShardIterator"], Limit=2)
    assert keys(second) == ["b", "c"] and second["MillisBehindLatest"] == 0


def test_every_iterator_type(kinesis: KinesisService, clock: FakeClock) -> None:
    first, second = put(kinesis, "a", "b")
    clock.pass_s(10)
    put(kinesis, "c")
    assert keys(read(kinesis, iterator(kinesis, kind="TRIM_HORIZON"))) == ["a", "b", "c"]
    latest = iterator(kinesis, kind="LATEST")
    at, after = "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"
    assert keys(read(kinesis, iterator(kinesis, kind=at, StartingSequenceNumber=second))) == ["b", "c"]
    assert keys(read(kinesis, iterator(kinesis, kind=after, StartingSequenceNumber=first))) == ["b", "c"]
    for timestamp, expected in ((START_S, ["a", "b", "c"]), (START_S + 0.5, ["c"]), (START_S - 1e6, ["a", "b", "c"])):
        assert keys(read(kinesis, iterator(kinesis, kind="AT_TIMESTAMP", Timestamp=timestamp))) == expected
    put(kinesis, "d")
    assert keys(read(kinesis, latest)) == ["d"]


def test_the_number_that_starts_the_shard_is_a_position(kinesis: KinesisService) -> None:
    shard = kinesis.call("ListShards", StreamName="s")["Shards"][0]
    put(kinesis, "a")
    start = shard["SequenceNumberRange"]["StartingSequenceNumber"]
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert keys(read(kinesis, iterator(kinesis, kind=kind, StartingSequenceNumber=start))) == ["a"]


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"ShardIteratorType": "AT_SEQUENCE_NUMBER"}, "InvalidArgumentException"),
        ({"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "x"}, "ValidationException"),
        ({"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": "17"}, "InvalidArgumentException"),
        ({"ShardIteratorType": "AT_TIMESTAMP"}, "ValidationException"),
        ({"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": START_S + 1}, "InvalidArgumentException"),
        ({"ShardIteratorType": "SOMEWHERE"}, "ValidationException"),
        ({"ShardIteratorType": "LATEST", "ShardId": "shardId-000000000009"}, "ResourceNotFoundException"),
        ({"ShardIteratorType": "LATEST", "StreamName": "other"}, "ResourceNotFoundException"),
    ],
    ids=str,
)
def test_positions_that_do_not_exist(kinesis: KinesisService, parameters: dict[str, Any], code: str) -> None:
    assert refused(kinesis, "GetShardIterator", **{"StreamName": "s", "ShardId": ROOT, **parameters}) == code


def test_a_number_of_another_shard_or_not_yet_given_is_no_position(kinesis: KinesisService) -> None:
    put(kinesis, "a")
    kinesis.split_shard("s", ROOT)
    (of_child,) = put(kinesis, "b")
    at = {"StreamName": "s", "ShardId": ROOT, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
    assert refused(kinesis, "GetShardIterator", **at, StartingSequenceNumber=of_child) == "InvalidArgumentException"
    ahead = str(int(kinesis.stored_records("s")[ROOT][0].sequence_number) + (1 << 80))
    assert refused(kinesis, "GetShardIterator", **at, StartingSequenceNumber=ahead) == "InvalidArgumentException"


def test_an_iterator_expires_after_five_minutes(kinesis: KinesisService, clock: FakeClock) -> None:
    token = iterator(kinesis)
    clock.pass_s(300)
    following = read(kinesis, token)["NextShardIterator"]
    clock.pass_s(0.1)
    assert refused(kinesis, "GetRecords", ShardIterator=token) == "ExpiredIteratorException"
    assert read(kinesis, following)["Records"] == []


def test_iterators_expire_on_request(kinesis: KinesisService) -> None:
    token = iterator(kinesis)
    kinesis.expire_iterators("s")
    assert refused(kinesis, "GetRecords", ShardIterator=token) == "ExpiredIteratorException"
    assert read(kinesis, iterator(kinesis))["Records"] == []


def test_an_altered_or_foreign_iterator_is_invalid(kinesis: KinesisService, clock: FakeClock) -> None:
    token = iterator(kinesis)
    other = KinesisService(clock)
    other.create_stream("s", 1)
    for bad in ("", "xyz", "AAAA" * 20, token[:-4], token[4:], iterator(other)):
        assert refused(kinesis, "GetRecords", ShardIterator=bad) == "InvalidArgumentException"


def test_an_iterator_does_not_outlive_its_stream(kinesis: KinesisService, clock: FakeClock) -> None:
    token = iterator(kinesis)
    kinesis.call("DeleteStream", StreamName="s")
    assert refused(kinesis, "GetRecords", ShardIterator=token) == "ResourceNotFoundException"
    clock.pass_s(1)
    kinesis.create_stream("s", 1)
    assert refused(kinesis, "GetRecords", ShardIterator=token) == "InvalidArgumentException"


def test_an_answer_carries_at_most_10_mib_but_always_one_record(kinesis: KinesisService) -> None:
    kinesis.call("UpdateMaxRecordSize", StreamName="s", MaxRecordSizeInKiB=10240)
    mib = 1024 * 1024
    kinesis.put_records("s", [(str(i), b"x" * (4 * mib)) for i in range(3)])
    kinesis.put_records("s", [("large", b"x" * (10 * mib))])
    answer = read(kinesis, iterator(kinesis))
    assert keys(answer) == ["0", "1"]
    answer = read(kinesis, answer["NextShardIterator"])
    assert keys(answer) == ["2"]
    answer = read(kinesis, answer["NextShardIterator"])
    assert keys(answer) == ["large"] and answer["MillisBehindLatest"] == 0


# Retention


def test_records_beyond_the_retention_are_gone(kinesis: KinesisService, clock: FakeClock) -> None:
    (old,) = put(kinesis, "old")
    clock.pass_s(HOUR_S)
    put(kinesis, *(f"k{i}" for i in range(2000)))
    clock.pass_s(23 * HOUR_S + 1)
    (young,) = put(kinesis, "young")
    token = iterator(kinesis, kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=old)
    assert keys(read(kinesis, token, Limit=1)) == ["k0"]  # below the horizon: from the horizon on
    clock.pass_s(HOUR_S)
    for token in (iterator(kinesis), iterator(kinesis, kind="AT_TIMESTAMP", Timestamp=START_S)):
        assert [r["SequenceNumber"] for r in read(kinesis, token)["Records"]] == [young]
    (number,) = put(kinesis, "next")
    token = iterator(kinesis, kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=young)
    assert [r["SequenceNumber"] for r in read(kinesis, token)["Records"]] == [number]


def test_a_longer_retention_keeps_records(kinesis: KinesisService, clock: FakeClock) -> None:
    put(kinesis, "old")
    kinesis.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=48)
    clock.pass_s(30 * HOUR_S)
    assert keys(read(kinesis, iterator(kinesis))) == ["old"]
    kinesis.call("DecreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=24)
    assert keys(read(kinesis, iterator(kinesis))) == []


def test_a_shard_closed_longer_than_the_retention_disappears(kinesis: KinesisService, clock: FakeClock) -> None:
    put(kinesis, "a")
    clock.pass_s(10)
    kinesis.split_shard("s", ROOT)
    clock.pass_s(24 * HOUR_S - 1)
    assert listed(kinesis) == [0, 1, 2]
    ended = read(kinesis, iterator(kinesis))
    assert ended["Records"] == [] and len(ended["ChildShards"]) == 2
    clock.pass_s(2)
    assert listed(kinesis) == [1, 2]
    child = kinesis.call("ListShards", StreamName="s")["Shards"][0]
    assert child["ParentShardId"] == ROOT  # still named
    position = {"StreamName": "s", "ShardId": ROOT, "ShardIteratorType": "LATEST"}
    assert refused(kinesis, "GetShardIterator", **position) == "ResourceNotFoundException"


# Resharding


def test_a_split_ends_the_parent_once_it_is_read(kinesis: KinesisService, clock: FakeClock) -> None:
    put(kinesis, "a", "b")
    idle = iterator(kinesis, kind="LATEST")
    token = iterator(kinesis)
    kinesis.split_shard("s", ROOT)
    put(kinesis, "c")
    first = read(kinesis, token, Limit=1)
    assert first["NextShardIterator"] is not None and "ChildShards" not in first
    for ended, records in ((read(kinesis, first["NextShardIterator"]), ["b"]), (read(kinesis, idle), [])):
        assert keys(ended) == records
        assert ended["NextShardIterator"] is None
        half = (MAX_HASH_KEY + 1) // 2
        assert ended["ChildShards"] == [
            {
                "ShardId": "shardId-000000000001",
                "ParentShards": [ROOT],
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(half - 1)},
            },
            {
                "ShardId": "shardId-000000000002",
                "ParentShards": [ROOT],
                "HashKeyRange": {"StartingHashKey": str(half), "EndingHashKey": str(MAX_HASH_KEY)},
            },
        ]


def test_a_merge_names_both_parents(kinesis: KinesisService) -> None:
    kinesis.split_shard("s", ROOT, 100)
    left, right = kinesis.open_shard_ids("s")
    kinesis.merge_shards("s", right, left)
    merged = kinesis.call("ListShards", StreamName="s")["Shards"][-1]
    assert (merged["ParentShardId"], merged["AdjacentParentShardId"]) == (right, left)
    assert merged["HashKeyRange"] == {"StartingHashKey": "0", "EndingHashKey": str(MAX_HASH_KEY)}
    ended = read(kinesis, iterator(kinesis, shard_id=left))
    assert [child["ParentShards"] for child in ended["ChildShards"]] == [[right, left]]


@pytest.mark.parametrize("hash_key", ["0", str(2**128)])
def test_a_split_outside_the_range_is_refused(kinesis: KinesisService, hash_key: str) -> None:
    split = {"StreamName": "s", "ShardToSplit": ROOT, "NewStartingHashKey": hash_key}
    assert refused(kinesis, "SplitShard", **split) == "InvalidArgumentException"


def test_closed_or_distant_shards_are_not_resharded(kinesis: KinesisService) -> None:
    kinesis.create_stream("t", 3)
    first, _, last = kinesis.open_shard_ids("t")
    merge = {"StreamName": "t", "ShardToMerge": first, "AdjacentShardToMerge": last}
    assert refused(kinesis, "MergeShards", **merge) == "InvalidArgumentException"
    kinesis.split_shard("t", first)
    split = {"StreamName": "t", "ShardToSplit": first, "NewStartingHashKey": "7"}
    assert refused(kinesis, "SplitShard", **split) == "InvalidArgumentException"


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 2), (4, 6), (4, 3), (5, 7), (3, 3)])
def test_update_shard_count_ends_in_uniform_ranges(clock: FakeClock, before: int, after: int) -> None:
    kinesis = KinesisService(clock)
    kinesis.create_stream("s", before)
    answer = kinesis.call("UpdateShardCount", StreamName="s", TargetShardCount=after, ScalingType="UNIFORM_SCALING")
    assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (before, after)
    ranges = open_ranges(kinesis)
    assert [start for start, _ in ranges] == [i * 2**128 // after for i in range(after)]


def test_update_shard_count_goes_no_further_than_double(kinesis: KinesisService) -> None:
    scale = {"StreamName": "s", "TargetShardCount": 3, "ScalingType": "UNIFORM_SCALING"}
    assert refused(kinesis, "UpdateShardCount", **scale) == "InvalidArgumentException"


def open_ranges(kinesis: KinesisService) -> list[tuple[int, int]]:
    shards = kinesis.call("ListShards", StreamName="s", ShardFilter={"Type": "AT_LATEST"})["Shards"]
    return sorted((int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"])) for s in shards)


def assert_whole_hash_space(shards: list[dict[str, Any]]) -> None:
    ranges = sorted(
        (int(s["HashKeyRange"]["StartingHashKey"]), int(s["HashKeyRange"]["EndingHashKey"])) for s in shards
    )
    assert ranges[0][0] == 0 and ranges[-1][1] == MAX_HASH_KEY
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(ranges))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["split", "merge", "put", "wait"]), st.integers(0, 1000)), max_size=25))
def test_any_history_of_reshards_keeps_the_promises(steps: list[tuple[str, int]]) -> None:
    clock = FakeClock()
    kinesis = KinesisService(clock)
    kinesis.create_stream("s", 2)
    put_count = 0
    for step, choice in steps:
        open_ids = kinesis.open_shard_ids("s")
        if step == "split":
            kinesis.split_shard("s", open_ids[choice % len(open_ids)])
        elif step == "merge" and len(open_ids) > 1:
            place = choice % (len(open_ids) - 1)
            kinesis.merge_shards("s", open_ids[place], open_ids[place + 1])
        elif step == "put":
            put(kinesis, *(str(choice + i) for i in range(5)))
            put_count += 5
        else:
            clock.pass_s(choice / 500)

    shards = {shard["ShardId"]: shard for shard in kinesis.call("ListShards", StreamName="s")["Shards"]}
    # Every instant is covered by exactly one set of shards, the fresh horizon included.
    clock.pass_s(1)
    for kind, more in (("AT_LATEST", {}), ("AT_TRIM_HORIZON", {}), ("AT_TIMESTAMP", {"Timestamp": clock.now_s})):
        chosen = kinesis.call("ListShards", StreamName="s", ShardFilter={"Type": kind, **more})["Shards"]
        assert_whole_hash_space(chosen)
    # Sequence numbers: strictly growing in a shard, inside its range, and a child's above its parents' end.
    stored = kinesis.stored_records("s")
    assert sum(len(records) for records in stored.values()) == put_count
    for shard_id, shard in shards.items():
        start = int(shard["SequenceNumberRange"]["StartingSequenceNumber"])
        end = int(shard["SequenceNumberRange"].get("EndingSequenceNumber", 2**186))
        numbers = [start, *(int(record.sequence_number) for record in stored[shard_id]), end]
        assert all(low < high for low, high in pairwise(numbers))
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            if parent is not None:
                assert int(shards[parent]["SequenceNumberRange"]["EndingSequenceNumber"]) < start
    # A reader that follows ChildShards from the first shards gets every record exactly once.
    delivered: list[str] = []
    to_read, done = ["shardId-000000000000", "shardId-000000000001"], set()
    while to_read:
        shard_id = to_read.pop()
        if shard_id in done:
            continue
        done.add(shard_id)
        token: str | None = iterator(kinesis, shard_id)
        while token is not None:
            answer = read(kinesis, token, Limit=3)
            delivered += [record["SequenceNumber"] for record in answer["Records"]]
            token = answer["NextShardIterator"]
            if token is None:
                assert answer["ChildShards"]
                to_read += [child["ShardId"] for child in answer["ChildShards"]]
            elif not answer["Records"]:
                break
    assert sorted(delivered) == sorted(r.sequence_number for records in stored.values() for r in records)
    assert done == set(shards)


# Listing


def test_shard_filters(kinesis: KinesisService, clock: FakeClock) -> None:
    clock.pass_s(100)
    kinesis.split_shard("s", ROOT)  # 0 -> 1, 2 at 100 s
    clock.pass_s(100)
    kinesis.split_shard("s", "shardId-000000000001")  # 1 -> 3, 4 at 200 s
    clock.pass_s(100)
    assert listed(kinesis) == [0, 1, 2, 3, 4]
    assert listed(kinesis, "AT_LATEST") == [2, 3, 4]
    assert listed(kinesis, "AT_TRIM_HORIZON") == [0]
    assert listed(kinesis, "AT_TIMESTAMP", Timestamp=START_S + 150) == [1, 2]
    assert listed(kinesis, "AT_TIMESTAMP", Timestamp=START_S + 100) == [1, 2]
    assert listed(kinesis, "AT_TIMESTAMP", Timestamp=START_S - 5) == [0]
    assert listed(kinesis, "AT_TIMESTAMP", Timestamp=START_S + 300) == [2, 3, 4]
    assert listed(kinesis, "FROM_TRIM_HORIZON") == [0, 1, 2, 3, 4]
    assert listed(kinesis, "FROM_TIMESTAMP", Timestamp=START_S + 150) == [1, 2, 3, 4]
    assert listed(kinesis, "AFTER_SHARD_ID", ShardId="shardId-000000000002") == [3, 4]
    clock.pass_s(24 * HOUR_S - 150)  # the horizon is at 150 s
    assert listed(kinesis) == [1, 2, 3, 4]
    assert listed(kinesis, "AT_TRIM_HORIZON") == [1, 2]


@pytest.mark.parametrize(
    ("shard_filter", "code"),
    [
        ({"Type": "AT_NOON"}, "InvalidArgumentException"),
        ({"Type": "AT_TIMESTAMP"}, "ValidationException"),
        ({"Type": "AT_TIMESTAMP", "Timestamp": START_S + 1}, "InvalidArgumentException"),
        ({"Type": "AFTER_SHARD_ID"}, "ValidationException"),
    ],
    ids=str,
)
def test_wrong_shard_filters(kinesis: KinesisService, shard_filter: dict[str, Any], code: str) -> None:
    assert refused(kinesis, "ListShards", StreamName="s", ShardFilter=shard_filter) == code


def test_a_listing_in_pages_by_arn(kinesis: KinesisService, clock: FakeClock) -> None:
    kinesis.create_stream("many", 7)
    arn = kinesis.call("DescribeStreamSummary", StreamName="many")["StreamDescriptionSummary"]["StreamARN"]
    page = kinesis.call("ListShards", StreamARN=arn, MaxResults=3, ShardFilter={"Type": "AT_LATEST"})
    ids, sizes, first_token = [], [], page["NextToken"]
    while True:
        sizes.append(len(page["Shards"]))
        ids += [shard["ShardId"] for shard in page["Shards"]]
        if "NextToken" not in page:
            break
        page = kinesis.call("ListShards", NextToken=page["NextToken"], MaxResults=3)
    assert sizes == [3, 3, 1] and ids == [f"shardId-{i:012d}" for i in range(7)]
    both = {"NextToken": first_token, "StreamName": "many"}
    assert refused(kinesis, "ListShards", **both) == "InvalidArgumentException"
    assert refused(kinesis, "ListShards", NextToken=iterator(kinesis)) == "InvalidArgumentException"
    clock.pass_s(301)
    assert refused(kinesis, "ListShards", NextToken=first_token) == "ExpiredNextTokenException"


# Writing


def test_records_go_to_the_open_shard_of_their_hash_key(kinesis: KinesisService) -> None:
    kinesis.split_shard("s", ROOT)
    left, right = kinesis.open_shard_ids("s")
    data = b64encode(b"x").decode()
    for hash_key, shard_id in ((0, left), (2**127 - 1, left), (2**127, right), (MAX_HASH_KEY, right)):
        put_record = {"StreamName": "s", "Data": data, "PartitionKey": "k", "ExplicitHashKey": str(hash_key)}
        assert kinesis.call("PutRecord", **put_record)["ShardId"] == shard_id
    by_md5 = [{"Data": data, "PartitionKey": key} for key in ("a", "b")]
    answer = kinesis.call("PutRecords", StreamName="s", Records=by_md5)
    # md5("a") = 0cc1..., md5("b") = 92eb...
    assert [record["ShardId"] for record in answer["Records"]] == [left, right]
    assert answer["FailedRecordCount"] == 0


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"Data": "not base64!", "PartitionKey": "k"}, "SerializationException"),
        ({"Data": "", "PartitionKey": ""}, "ValidationException"),
        ({"Data": "", "PartitionKey": "k" * 257}, "ValidationException"),
        ({"Data": "", "PartitionKey": "k", "ExplicitHashKey": str(2**128)}, "InvalidArgumentException"),
        ({"Data": "", "PartitionKey": "k", "ExplicitHashKey": "-1"}, "InvalidArgumentException"),
        ({"Data": "A" * (4 * 400_000), "PartitionKey": "k"}, "ValidationException"),
    ],
    ids=["base64", "no key", "long key", "large hash key", "negative hash key", "too large"],
)
def test_wrong_records(kinesis: KinesisService, record: dict[str, str], code: str) -> None:
    assert refused(kinesis, "PutRecord", StreamName="s", **record) == code
    assert refused(kinesis, "PutRecords", StreamName="s", Records=[record]) == code


# Quotas


def test_quotas_are_off_until_asked_for(kinesis: KinesisService) -> None:
    for _ in range(20):
        token = iterator(kinesis)
        read(kinesis, token)


def test_five_reads_a_second_per_shard(kinesis: KinesisService, clock: FakeClock) -> None:
    token = iterator(kinesis)
    kinesis.enforce_quotas()
    for _ in range(5):
        token = read(kinesis, token)["NextShardIterator"]
    assert refused(kinesis, "GetRecords", ShardIterator=token) == "ProvisionedThroughputExceededException"
    clock.pass_s(1)
    assert read(kinesis, token)["Records"] == []


def test_ten_mib_in_one_answer_cost_five_seconds(kinesis: KinesisService, clock: FakeClock) -> None:
    kinesis.put_records("s", [(str(i), b"x" * (1024 * 1024 - 10)) for i in range(11)])
    kinesis.enforce_quotas()
    answer = read(kinesis, iterator(kinesis))
    assert len(answer["Records"]) == 10
    for waited_s in (0.0, 4.9):
        clock.pass_s(waited_s)
        code = refused(kinesis, "GetRecords", ShardIterator=answer["NextShardIterator"])
        assert code == "ProvisionedThroughputExceededException"
    clock.pass_s(0.2)
    assert len(read(kinesis, answer["NextShardIterator"])["Records"]) == 1


def test_a_thousand_writes_a_second_per_shard(kinesis: KinesisService, clock: FakeClock) -> None:
    kinesis.enforce_quotas()
    records = [{"Data": "", "PartitionKey": str(i)} for i in range(500)]
    assert [kinesis.call("PutRecords", StreamName="s", Records=records)["FailedRecordCount"] for _ in range(3)] == [
        0,
        0,
        500,
    ]
    one = {"StreamName": "s", "Data": "", "PartitionKey": "k"}
    assert refused(kinesis, "PutRecord", **one) == "ProvisionedThroughputExceededException"
    clock.pass_s(1)
    kinesis.call("PutRecord", **one)


# Streams and consumers


def status(kinesis: KinesisService) -> str:
    return str(kinesis.call("DescribeStreamSummary", StreamName="s")["StreamDescriptionSummary"]["StreamStatus"])


def test_passing_states_take_the_time_they_are_given(clock: FakeClock) -> None:
    kinesis = KinesisService(clock)
    kinesis.durations.create_s = 5
    kinesis.durations.reshard_s = 3
    kinesis.durations.delete_s = 2
    kinesis.create_stream("s", 1)
    assert status(kinesis) == "CREATING"
    assert refused(kinesis, "ListShards", StreamName="s") == "ResourceInUseException"
    assert refused(kinesis, "PutRecord", StreamName="s", Data="", PartitionKey="k") == "ResourceNotFoundException"
    clock.pass_s(5)
    assert status(kinesis) == "ACTIVE"
    kinesis.split_shard("s", ROOT)
    assert status(kinesis) == "UPDATING"
    split = {"StreamName": "s", "ShardToSplit": ROOT, "NewStartingHashKey": "9"}
    assert refused(kinesis, "SplitShard", **split) == "ResourceInUseException"
    (number,) = put(kinesis, "still into the parent")
    assert kinesis.stored_records("s")[ROOT][0].sequence_number == number
    assert listed(kinesis) == [0]
    clock.pass_s(3)
    assert status(kinesis) == "ACTIVE" and listed(kinesis) == [0, 1, 2]
    kinesis.call("DeleteStream", StreamName="s")
    assert status(kinesis) == "DELETING"
    assert refused(kinesis, "CreateStream", StreamName="s", ShardCount=1) == "ResourceInUseException"
    clock.pass_s(2)
    assert refused(kinesis, "DescribeStreamSummary", StreamName="s") == "ResourceNotFoundException"


def test_a_registered_consumer_becomes_active(kinesis: KinesisService, clock: FakeClock) -> None:
    kinesis.durations.register_s = 2
    arn = kinesis.call("DescribeStreamSummary", StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    consumer = kinesis.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="app")["Consumer"]
    assert consumer["ConsumerARN"] == f"{arn}/consumer/app:{int(START_S)}"
    again = {"StreamARN": arn, "ConsumerName": "app"}
    assert refused(kinesis, "RegisterStreamConsumer", **again) == "ResourceInUseException"
    by_arn = {"ConsumerARN": consumer["ConsumerARN"]}
    for expected in ("CREATING", "ACTIVE"):
        description = kinesis.call("DescribeStreamConsumer", **by_arn)["ConsumerDescription"]
        assert (description["ConsumerStatus"], description["StreamARN"]) == (expected, arn)
        clock.pass_s(2)
    assert refused(kinesis, "DeleteStream", StreamName="s") == "ResourceInUseException"
    kinesis.call("DeregisterStreamConsumer", **again)
    assert refused(kinesis, "DescribeStreamConsumer", **again) == "ResourceNotFoundException"


def test_operations_that_are_not_served_say_so(kinesis: KinesisService) -> None:
    assert refused(kinesis, "SubscribeToShard") == "UnknownOperationException", "its answer needs HTTP"
    assert refused(kinesis, "MakeCoffee") == "UnknownOperationException"
    with pytest.raises(ServiceError, match="SerializationException"):
        kinesis.serve("ListShards", b"{")
    assert refused(kinesis, "GetRecords", ShardIterator="x", Limit=10001) == "ValidationException"
