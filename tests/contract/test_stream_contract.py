"""What every stream does: the fake, and the embedded Kinesis over the wire (spec retrieval 2, 3.6; shard-sync 2)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import botocore.session
import msgspec
import pytest

from kcl_host.aws.kinesis import KinesisStream, install_fast_get_records
from kcl_host.errors import ExpiredIterator, InvalidPosition, StreamNotFound
from kcl_host.local.kinesis import KinesisEngine
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import MAX_HASH_KEY, ChildShard, HashKeyRange, ShardFilter
from kcl_host.ports import Stream
from tests.fakes.clock import FakeClock
from tests.fakes.stream import InMemoryStream

S0, S1, S2, S3 = (f"shardId-{n:012d}" for n in range(4))
HALF = 2**127
DAY_S = 86400.0
TRIM_HORIZON = IteratorPosition(type="TRIM_HORIZON")
LATEST = IteratorPosition(type="LATEST")


class World(msgspec.Struct):
    """A stream with its operator's controls. `put` stores in the shard of a hash key chosen by MD5."""

    stream: Stream
    clock: FakeClock
    put: Callable[[bytes, str], str]
    split: Callable[[str], object]
    merge: Callable[[str, str], object]
    delete: Callable[[], object]

    def read_all(self, shard_id: str, position: IteratorPosition = TRIM_HORIZON) -> tuple[list[bytes], RecordsPage]:
        """Data up to where the shard ends or has nothing more, and the last page."""
        iterator, found = self.stream.get_shard_iterator(shard_id, position), []
        while True:
            page = self.stream.get_records(iterator, 2)
            assert len(page.records) <= 2
            found += [base64.b64decode(record.data) for record in page.records]
            if page.next_iterator is None or not page.records:
                return found, page
            iterator = page.next_iterator


@pytest.fixture(params=["memory", "embedded"])
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[[int], World]]:
    clock = FakeClock()
    if request.param == "memory":
        yield lambda shard_count: _in_memory(clock, shard_count)
        return
    engine = KinesisEngine(clock=clock.wall)
    engine.start()
    try:
        yield lambda shard_count: _embedded(engine, clock, shard_count)
    finally:
        engine.stop()


def _in_memory(clock: FakeClock, shard_count: int) -> World:
    stream = InMemoryStream(clock, "orders", shard_count)

    def delete() -> None:
        stream.deleted = True

    return World(stream, clock, lambda data, key: stream.put(data, key)[1], stream.split, stream.merge, delete)


def _embedded(engine: KinesisEngine, clock: FakeClock, shard_count: int) -> World:
    engine.create_stream("orders", shard_count)
    session = botocore.session.Session()
    install_fast_get_records(session)
    client = session.create_client(
        "kinesis",
        endpoint_url=engine.endpoint,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    return World(
        KinesisStream(client, "orders"),
        clock,
        lambda data, key: engine.put_records("orders", [(key, data)])[0],
        lambda shard_id: engine.split_shard("orders", shard_id),
        lambda one, other: engine.merge_shards("orders", one, other),
        lambda: engine.call("DeleteStream", StreamName="orders"),
    )


MakeWorld = Callable[[int], World]


# Listing


def test_a_new_stream(make_world: MakeWorld) -> None:
    world = make_world(2)
    summary = world.stream.describe()
    assert (summary.name, summary.status, summary.open_shard_count) == ("orders", "ACTIVE", 2)
    assert summary.retention_hours == 24
    shards = world.stream.list_shards()
    assert shards is not None
    assert [s.shard_id for s in shards] == [S0, S1]
    assert [s.hash_key_range for s in shards] == [HashKeyRange(0, HALF - 1), HashKeyRange(HALF, MAX_HASH_KEY)]
    assert all(s.is_open and not s.parent_shard_ids for s in shards)
    assert all(len(s.starting_sequence_number) == 56 for s in shards)


def test_lineage_of_a_split_and_a_merge(make_world: MakeWorld) -> None:
    world = make_world(1)
    world.clock.advance(10)
    world.split(S0)
    world.clock.advance(10)
    world.merge(S1, S2)
    shards = {s.shard_id: s for s in world.stream.list_shards() or ()}
    assert list(shards) == [S0, S1, S2, S3]
    assert [shards[s].parent_shard_ids for s in (S1, S2, S3)] == [(S0,), (S0,), (S1, S2)]
    assert [shards[s].is_open for s in (S0, S1, S2, S3)] == [False, False, False, True]
    assert shards[S2].hash_key_range == HashKeyRange(HALF, MAX_HASH_KEY)
    assert shards[S3].hash_key_range == HashKeyRange(0, MAX_HASH_KEY)
    for child, parent in ((S1, S0), (S2, S0), (S3, S1), (S3, S2)):
        assert int(shards[child].starting_sequence_number) > int(shards[parent].ending_sequence_number or 0)


def test_filters(make_world: MakeWorld) -> None:
    world = make_world(1)
    start_s = world.clock.wall()
    world.clock.advance(100)
    world.split(S0)
    world.clock.advance(100)

    def listed(shard_filter: ShardFilter) -> list[str]:
        return [s.shard_id for s in world.stream.list_shards(shard_filter) or ()]

    assert listed(ShardFilter(type="AT_LATEST")) == [S1, S2]
    assert listed(ShardFilter(type="AT_TRIM_HORIZON")) == [S0]
    assert listed(ShardFilter(type="AT_TIMESTAMP", timestamp_s=start_s + 50)) == [S0]
    assert listed(ShardFilter(type="AT_TIMESTAMP", timestamp_s=start_s + 150)) == [S1, S2]
    world.clock.advance(DAY_S)
    assert listed(ShardFilter(type="AT_TRIM_HORIZON")) == [S1, S2]


def test_a_closed_shard_goes_with_its_records(make_world: MakeWorld) -> None:
    world = make_world(1)
    world.put(b"old", "k")
    world.clock.advance(10)
    world.split(S0)
    world.clock.advance(DAY_S + 1)
    assert [s.shard_id for s in world.stream.list_shards() or ()] == [S1, S2]
    with pytest.raises(StreamNotFound):
        world.stream.get_shard_iterator(S0, TRIM_HORIZON)


def test_the_time_stamp_of_a_filter_is_not_before_the_trim_horizon(make_world: MakeWorld) -> None:
    world = make_world(1)
    start_s = world.clock.wall()
    world.clock.advance(100)
    world.split(S0)
    world.clock.advance(DAY_S)
    world.merge(S1, S2)
    shards = world.stream.list_shards(ShardFilter(type="AT_TIMESTAMP", timestamp_s=start_s - 1000))
    assert [s.shard_id for s in shards or ()] == [S1, S2], "of the first moment that can still be read"


def test_child_shards_name_parents_that_are_gone(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.clock.advance(10)
    world.merge(S0, S1)
    world.clock.advance(DAY_S + 1)
    (child,) = world.stream.list_shards() or ()
    assert (child.shard_id, set(child.parent_shard_ids), child.is_open) == (S2, {S0, S1}, True)


def test_a_shard_that_goes_while_it_is_read(make_world: MakeWorld) -> None:
    world = make_world(1)
    world.put(b"x", "k")
    world.split(S0)
    world.clock.advance(DAY_S - 10)
    iterator = world.stream.get_shard_iterator(S0, TRIM_HORIZON)
    world.clock.advance(20)
    with pytest.raises(StreamNotFound):
        world.stream.get_records(iterator, 10)


def test_a_stream_that_is_deleted(make_world: MakeWorld) -> None:
    world = make_world(1)
    iterator = world.stream.get_shard_iterator(S0, LATEST)
    world.delete()
    for request in (
        world.stream.describe,
        world.stream.list_shards,
        lambda: world.stream.get_shard_iterator(S0, LATEST),
        lambda: world.stream.get_records(iterator, 1),
    ):
        with pytest.raises(StreamNotFound):
            request()


# Positions


def test_every_position(make_world: MakeWorld) -> None:
    world = make_world(1)
    numbers = []
    for n in range(5):
        world.clock.advance(10)
        numbers.append(world.put(str(n).encode(), f"k{n}"))
    times_s = [world.clock.wall() - 40 + 10 * n for n in range(5)]

    def read(kind: str, **position: object) -> bytes:
        found, _ = world.read_all(S0, IteratorPosition(type=kind, **position))  # type: ignore[arg-type]
        return b"".join(found)

    assert read("TRIM_HORIZON") == b"01234"
    assert read("LATEST") == b""
    assert read("AT_SEQUENCE_NUMBER", sequence_number=numbers[2]) == b"234"
    assert read("AFTER_SEQUENCE_NUMBER", sequence_number=numbers[2]) == b"34"
    assert read("AFTER_SEQUENCE_NUMBER", sequence_number=numbers[4]) == b""
    assert read("AT_TIMESTAMP", timestamp_s=times_s[3]) == b"34"
    assert read("AT_TIMESTAMP", timestamp_s=times_s[3] + 1) == b"4"
    assert read("AT_TIMESTAMP", timestamp_s=world.clock.wall()) == b"4"
    assert read("AT_TIMESTAMP", timestamp_s=1.0) == b"01234"


def test_latest_reads_what_comes_after_the_iterator(make_world: MakeWorld) -> None:
    world = make_world(1)
    world.put(b"before", "k")
    iterator = world.stream.get_shard_iterator(S0, LATEST)
    world.put(b"after", "k")
    page = world.stream.get_records(iterator, 10)
    assert [base64.b64decode(r.data) for r in page.records] == [b"after"]


def test_positions_that_are_refused(make_world: MakeWorld) -> None:
    world = make_world(2)
    for position in (
        IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="1"),
        IteratorPosition(type="AT_TIMESTAMP", timestamp_s=world.clock.wall() + 100),
    ):
        with pytest.raises(InvalidPosition):
            world.stream.get_shard_iterator(S0, position)
    with pytest.raises(StreamNotFound):
        world.stream.get_shard_iterator("shardId-000000000099", LATEST)
    with pytest.raises(InvalidPosition):
        world.stream.get_records("no iterator", 10)


def test_iterators_expire_after_five_minutes(make_world: MakeWorld) -> None:
    world = make_world(1)
    iterator = world.stream.get_shard_iterator(S0, LATEST)
    world.clock.advance(299)
    assert world.stream.get_records(iterator, 10).next_iterator is not None
    world.clock.advance(2)
    with pytest.raises(ExpiredIterator):
        world.stream.get_records(iterator, 10)


# Records


def test_records_arrive_whole_and_in_order(make_world: MakeWorld) -> None:
    world = make_world(1)
    data = [b"", b"a", bytes(range(256))]
    numbers = [world.put(d, f'clé "{n}"') for n, d in enumerate(data)]
    page = world.stream.get_records(world.stream.get_shard_iterator(S0, TRIM_HORIZON), 10)
    assert [base64.b64decode(r.data) for r in page.records] == data
    assert [r.sequence_number for r in page.records] == numbers
    assert numbers == sorted(numbers, key=int)
    assert [r.partition_key for r in page.records] == [f'clé "{n}"' for n in range(3)]
    assert {r.approximate_arrival_timestamp for r in page.records} == {round(world.clock.wall() * 1000)}
    assert page.payload_bytes == 257
    assert page.millis_behind_latest == 0


def test_a_reader_knows_how_far_it_is_behind(make_world: MakeWorld) -> None:
    world = make_world(1)
    for _ in range(3):
        world.put(b"x", "k")
        world.clock.advance(10)
    page = world.stream.get_records(world.stream.get_shard_iterator(S0, TRIM_HORIZON), 1)
    assert page.millis_behind_latest is not None and page.millis_behind_latest > 0
    _, last = world.read_all(S0)
    assert last.millis_behind_latest == 0


def test_what_is_past_the_retention_is_gone(make_world: MakeWorld) -> None:
    world = make_world(1)
    number = world.put(b"old", "k")
    world.clock.advance(DAY_S - 10)
    world.put(b"new", "k")
    world.clock.advance(20)
    assert world.read_all(S0)[0] == [b"new"]
    position = IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=number)
    assert world.read_all(S0, position)[0] == [b"new"]


def test_a_slow_reader_is_overtaken_by_the_retention(make_world: MakeWorld) -> None:
    world = make_world(1)
    for n in range(4):
        world.put(str(n).encode(), "k")
        world.clock.advance(10)
    world.clock.advance(DAY_S - 45)  # The first is trimmed in five seconds, then one each ten.
    iterator = world.stream.get_shard_iterator(S0, TRIM_HORIZON)
    page = world.stream.get_records(iterator, 1)
    assert [base64.b64decode(r.data) for r in page.records] == [b"0"]
    world.clock.advance(20)
    assert page.next_iterator is not None
    rest = world.stream.get_records(page.next_iterator, 10)
    assert [base64.b64decode(r.data) for r in rest.records] == [b"2", b"3"]


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
def test_a_closed_shard_is_read_from_a_trimmed_position_to_its_end(make_world: MakeWorld, kind: str) -> None:
    world = make_world(1)
    number = world.put(b"old", "k")
    world.clock.advance(DAY_S - 10)
    world.put(b"new", "k")
    world.split(S0)
    world.clock.advance(20)
    position = IteratorPosition(type=kind, sequence_number=number)  # type: ignore[arg-type]
    found, last = world.read_all(S0, position)
    assert found == [b"new"]
    assert (last.next_iterator, [child.shard_id for child in last.child_shards]) == (None, [S1, S2])


def test_records_go_to_the_shard_of_their_key_and_after_a_split_to_a_child(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.put(b"1", "k")  # MD5 of "k" begins with 8c: the upper half
    world.split(S1)
    world.put(b"2", "k")
    found = {s.shard_id: world.read_all(s.shard_id)[0] for s in world.stream.list_shards() or ()}
    assert found == {S0: [], S1: [b"1"], S2: [b"2"], S3: []}


# The end of a shard


def test_a_split_shard_ends_after_its_last_record_and_names_its_children(make_world: MakeWorld) -> None:
    world = make_world(1)
    for n in range(3):
        world.put(str(n).encode(), "k")
    world.split(S0)
    found, last = world.read_all(S0)
    assert found == [b"0", b"1", b"2"]
    assert last.next_iterator is None
    assert last.child_shards == (
        ChildShard(shard_id=S1, parent_shard_ids=(S0,), hash_key_range=HashKeyRange(0, HALF - 1)),
        ChildShard(shard_id=S2, parent_shard_ids=(S0,), hash_key_range=HashKeyRange(HALF, MAX_HASH_KEY)),
    )


def test_merged_shards_end_with_the_same_child(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.put(b"x", "k")
    world.merge(S0, S1)
    for shard_id in (S0, S1):
        _, last = world.read_all(shard_id)
        (child,) = last.child_shards
        assert (child.shard_id, set(child.parent_shard_ids)) == (S2, {S0, S1})
        assert child.hash_key_range == HashKeyRange(0, MAX_HASH_KEY)


@pytest.mark.parametrize("position", [TRIM_HORIZON, LATEST], ids=["TRIM_HORIZON", "LATEST"])
def test_an_empty_closed_shard_ends_at_once(make_world: MakeWorld, position: IteratorPosition) -> None:
    world = make_world(1)
    world.split(S0)
    page = world.stream.get_records(world.stream.get_shard_iterator(S0, position), 10)
    assert (page.records, page.next_iterator) == ([], None)
    assert [child.shard_id for child in page.child_shards] == [S1, S2]


def test_an_open_shard_never_ends(make_world: MakeWorld) -> None:
    world = make_world(1)
    iterator = world.stream.get_shard_iterator(S0, TRIM_HORIZON)
    for _ in range(3):
        page = world.stream.get_records(iterator, 10)
        assert page.next_iterator is not None
        assert (page.records, page.child_shards) == ([], ())
        iterator = page.next_iterator
