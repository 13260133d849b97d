"""What every exactly-once sink keeps: one suite over all of them."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from moto import mock_aws

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

from kcl_host.spark import ArrowEngine, Batch
from kcl_host.spark.commit_chain import Rewound
from tests.spark import postgres_server
from tests.spark.places import (
    DeltaPlace,
    IcebergPlace,
    ParquetPlace,
    Place,
    PostgresPlace,
    Process,
    S3Place,
    position,
    record,
    transform,
)
from tests.spark.world import KEY

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    yield from postgres_server.needed()


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    import boto3

    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        client.create_bucket(Bucket="lake")
        yield client


@pytest.fixture(params=["parquet", "s3", "postgres", "delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place: Place
    if request.param == "parquet":
        place = ParquetPlace(tmp_path)
    elif request.param == "delta":
        pytest.importorskip("deltalake", reason="needs deltalake: pip install 'kcl-host[spark-delta]'")
        place = DeltaPlace(tmp_path)
    elif request.param == "iceberg":
        pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'kcl-host[spark-iceberg]'")
        place = IcebergPlace(tmp_path)
    elif request.param == "postgres":
        place = PostgresPlace(request.getfixturevalue("database"), f"t{uuid.uuid4().hex}")
    else:
        place = S3Place(request.getfixturevalue("s3"), tmp_path.name)
    yield place
    place.close()


@pytest.fixture
def start(place: Place) -> Callable[..., Process]:
    """Starts a process on the place."""
    return functools.partial(Process, place)


def assert_each_once(place: Place, count: int) -> None:
    assert sorted(place.numbers("table")) == list(range(0, count, 2))
    assert sorted(place.numbers("other")) == list(range(1, count, 2))


def test_commits_and_checkpoints(place: Place, start: Any) -> None:
    process = start().receive(0, 4).flush().receive(5, 9).flush()
    assert_each_once(place, 10)
    assert process.checkpoint == position(9)
    head = place.sink().head(KEY)
    assert (head.position, head.generation, head.has_history) == (position(9), 0, True)


def test_the_same_batch_again(place: Place, start: Any) -> None:
    start().receive(0, 4).flush()
    again = start().receive(0, 4).flush()  # killed before its checkpoint
    assert_each_once(place, 5)
    assert again.checkpoint == position(4)


def test_a_replay_that_cuts_otherwise(place: Place, start: Any) -> None:
    start().receive(0, 4).flush().receive(5, 9).flush()
    start().receive(0, 6).receive(7, 12).flush()  # inside a batch, and inside an aggregate
    assert_each_once(place, 13)


def test_a_zombie_loses(place: Place, start: Any) -> None:
    zombie = start().receive(0, 5)
    start().receive(0, 9).flush()
    zombie.owner = False
    zombie.flush()
    assert_each_once(place, 10)
    assert zombie.checkpoint is None


def test_a_zombie_wins(place: Place, start: Any) -> None:
    zombie, owner = start().receive(0, 5), start().receive(0, 9)
    zombie.owner = False
    zombie.flush()
    owner.flush()
    assert_each_once(place, 10)
    assert (zombie.checkpoint, owner.checkpoint) == (None, position(9))


def test_only_one_of_two_that_wrote_for_the_same_head_commits(place: Place, start: Any) -> None:
    one, other = start().sink, start().sink
    batch = Batch(end=position(3), records=4, arrived_ms=None)
    table = place.engine.columns([record(number) for number in range(4)], KEY.stream, KEY.shard)
    heads = [sink.head(KEY) for sink in (one, other)]
    written = [sink.write(KEY, place.engine, transform(table), batch) for sink in (one, other)]
    after = one.commit(KEY, heads[0], batch, written[0])
    assert after is not None and after.position == position(3)
    assert other.commit(KEY, heads[1], batch, written[1]) is None
    assert_each_once(place, 4)


def test_a_commit_that_covers_nothing_new_is_refused(start: Any) -> None:
    process = start().receive(0, 4).flush()
    batch = Batch(end=position(4), records=1, arrived_ms=None)
    head = process.sink.head(KEY)
    with pytest.raises(ValueError, match="on the head"):
        process.sink.commit(KEY, head, batch, process.sink.write(KEY, ArrowEngine(), {}, batch))


def test_a_transform_that_drops_everything_commits_all_the_same(place: Place, start: Any) -> None:
    process = start(transform=lambda batch: {n: t.slice(0, 0) for n, t in transform(batch).items()})
    process.receive(0, 4).flush()
    assert process.checkpoint == position(4)
    start().receive(0, 9).flush()
    assert sorted(place.numbers("table") + place.numbers("other")) == [5, 6, 7, 8, 9]


def test_a_batch_without_frames(place: Place, start: Any) -> None:
    start().receive(0, 4).flush()
    start(transform=lambda batch: {}).receive(0, 9).flush()
    start().receive(0, 12).flush()
    assert sorted(place.numbers("table") + place.numbers("other")) == [0, 1, 2, 3, 4, 10, 11, 12]


def test_rows_for_one_table_only(place: Place, start: Any) -> None:
    only = start(transform=lambda batch: {"table": transform(batch)["table"]})
    only.receive(0, 4).flush()
    start().receive(0, 9).flush()
    assert (sorted(place.numbers("table")), sorted(place.numbers("other"))) == ([0, 2, 4, 6, 8], [5, 7, 9])


def test_a_rewind_begins_a_generation(place: Place, start: Any) -> None:
    running = start().receive(0, 4).flush().receive(5, 9).flush().receive(10, 12)
    place.rewind(KEY, position(4))
    with pytest.raises(Rewound):
        running.flush()
    assert_each_once(place, 5)
    process = start(checkpoint=4).receive(5, 12).flush()
    assert_each_once(place, 13)
    assert (process.sink.head(KEY).generation, process.checkpoint) == (1, position(12))


def test_a_rewind_to_the_beginning(place: Place, start: Any) -> None:
    start().receive(0, 4).flush()
    place.rewind(KEY, None)
    assert (place.numbers("table"), place.numbers("other")) == ([], [])
    with pytest.raises(ValueError, match="above the head"):
        start(checkpoint=4)
    start().receive(0, 4).flush()
    assert_each_once(place, 5)


def test_a_rewind_is_not_forward(place: Place, start: Any) -> None:
    start().receive(0, 4).flush()
    with pytest.raises(ValueError, match="above the head"):
        place.rewind(KEY, position(5))


def test_a_gap_is_refused(start: Any) -> None:
    start().receive(0, 4).flush()
    with pytest.raises(ValueError, match="above the head"):
        start(checkpoint=5)


def test_shards_do_not_meet(place: Place, start: Any) -> None:
    start().receive(0, 4).flush()
    for other in ({"shard": "shardId-2"}, {"stream": "x"}, {"application": "y"}):
        assert not place.sink().head(msgspec.structs.replace(KEY, **other)).has_history


def test_a_stream_with_and_without_its_creation_time(place: Place, start: Any) -> None:
    start().receive(0, 4).flush()
    sink = place.sink()
    key = msgspec.structs.replace(KEY, stream_created_s=1700000000)
    assert "creation time" in str(sink.problem(key, sink.head(key), None))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
