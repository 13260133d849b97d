"""A Kinesis stream in memory: lineage, resharding, retention, iterators that expire. Deterministic, one thread."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable

import msgspec

from kcl_host.errors import ExpiredIterator, InvalidPosition, StreamNotFound
from kcl_host.model.records import Record, RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import MAX_HASH_KEY, ChildShard, HashKeyRange, Shard, ShardFilter, StreamSummary
from tests.fakes.clock import FakeClock
from tests.fakes.fault import FaultPlan, Requests

ITERATOR_LIFE_S = 300.0
PAGE_BYTES = 10 * 1024 * 1024
_FIRST_SEQUENCE_NUMBER = 496 * 10**53  # 56 digits
_STEP = 2**24


class StoredRecord(msgspec.Struct, frozen=True):
    sequence_number: int
    partition_key: str
    data: bytes
    arrival_s: float


class StoredShard(msgspec.Struct):
    """`parents` are in the order in which ListShards names them."""

    shard_id: str
    hash_key_range: HashKeyRange
    starting: int
    opened_s: float
    parents: tuple[str, ...] = ()
    ending: int | None = None
    closed_s: float | None = None
    records: list[StoredRecord] = []


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What is there to be read at a place of a shard, and where the next reading begins; None: that was the end."""

    records: list[Record]
    behind_ms: int
    payload_bytes: int
    following: int | None
    is_rest: bool
    """More is there already."""
    child_shards: tuple[ChildShard, ...] = ()


class InMemoryStream:
    """Satisfies ports.Stream. Times are of the clock's wall; sequence numbers are unique and grow over all shards."""

    def __init__(
        self, clock: FakeClock, name: str = "orders", shard_count: int = 1, retention_s: float = 86400.0
    ) -> None:
        self._requests = Requests("stream", clock)
        self._clock = clock
        self._name = name
        self._retention_s = retention_s
        self._created_s = clock.wall()
        self._trimmed_s = -math.inf
        self._last_sequence_number = _FIRST_SEQUENCE_NUMBER
        self._shards: dict[str, StoredShard] = {}
        self._next_shard = 0
        self.status = "ACTIVE"
        """What describe says; ListShards works while it is ACTIVE or UPDATING."""
        self.deleted = False
        self.page_records = 10_000
        """GetRecords never returns more than this."""
        self.on_change: Callable[[str], None] = lambda shard_id: None
        """Called when a shard has got a record, or was closed."""
        width = (MAX_HASH_KEY + 1) // shard_count
        for n in range(shard_count):
            end = MAX_HASH_KEY if n == shard_count - 1 else (n + 1) * width - 1
            self._open(HashKeyRange(n * width, end), ())

    @property
    def faults(self) -> FaultPlan:
        return self._requests.plan

    @faults.setter
    def faults(self, plan: FaultPlan) -> None:
        self._requests.plan = plan

    @property
    def requests(self) -> dict[str, int]:
        return self._requests.counts

    # What producers and operators do

    @property
    def open_shard_ids(self) -> list[str]:
        return [shard.shard_id for shard in self._shards.values() if shard.closed_s is None]

    def put(self, data: bytes, partition_key: str = "key", shard_id: str | None = None) -> tuple[str, str]:
        """Returns shard id and sequence number. `shard_id` names an open shard, otherwise the partition key decides."""
        hash_key = int.from_bytes(hashlib.md5(partition_key.encode()).digest(), "big")
        shard = next(
            s
            for s in self._shards.values()
            if s.closed_s is None and (s.shard_id == shard_id if shard_id else hash_key in s.hash_key_range)
        )
        record = StoredRecord(self._sequence_number(), partition_key, data, self._clock.wall())
        shard.records.append(record)
        self.on_change(shard.shard_id)
        return shard.shard_id, str(record.sequence_number)

    def split(self, shard_id: str, at_hash_key: int | None = None) -> tuple[str, str]:
        """`at_hash_key` is the first key of the second child; the middle by default."""
        parent = self._close(shard_id)
        start, end = parent.hash_key_range.start, parent.hash_key_range.end
        middle = at_hash_key if at_hash_key is not None else (start + end) // 2 + 1
        children = (
            self._open(HashKeyRange(start, middle - 1), (shard_id,)),
            self._open(HashKeyRange(middle, end), (shard_id,)),
        )
        self.on_change(shard_id)
        return children

    def merge(self, shard_id: str, adjacent_shard_id: str) -> str:
        first, second = self._close(shard_id), self._close(adjacent_shard_id)
        ranges = sorted((first.hash_key_range, second.hash_key_range), key=lambda r: r.start)
        assert ranges[0].end + 1 == ranges[1].start, "only adjacent shards can be merged"
        child = self._open(HashKeyRange(ranges[0].start, ranges[1].end), (shard_id, adjacent_shard_id))
        self.on_change(shard_id)
        self.on_change(adjacent_shard_id)
        return child

    def trim(self, age_s: float) -> None:
        """What is older leaves the stream now, as when the retention is shortened for a moment."""
        self._trimmed_s = max(self._trimmed_s, self._clock.wall() - age_s)

    def records_of(self, shard_id: str) -> list[StoredRecord]:
        """Every record ever put, trimmed or not."""
        return self._shards[shard_id].records

    # The port

    def describe(self) -> StreamSummary:
        with self._requests.request("describe"):
            self._require_stream()
            return StreamSummary(
                name=self._name,
                arn=f"arn:aws:kinesis:us-east-1:123456789012:stream/{self._name}",
                status=self.status,
                open_shard_count=len(self.open_shard_ids),
                retention_hours=int(self._retention_s // 3600),
                creation_s=self._created_s,
            )

    def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
        with self._requests.request("list_shards"):
            self._require_stream()
            if self.status not in ("ACTIVE", "UPDATING"):
                return None
            return [_listed(s) for s in self._retained() if shard_filter is None or self._passes(s, shard_filter)]

    def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
        with self._requests.request("get_shard_iterator", shard_id):
            shard = self._shard(shard_id)
            return self._iterator(shard, self._first_sequence_number(shard, position))

    def get_records(self, iterator: str, limit: int) -> RecordsPage:
        shard_id, first, issued_s = self._parse(iterator)
        with self._requests.request("get_records", shard_id):
            shard = self._shard(shard_id)
            if self._clock.wall() - issued_s > ITERATOR_LIFE_S:
                raise ExpiredIterator(f"iterator of {shard_id} is older than five minutes")
            read = self._read(shard, first, min(limit, self.page_records))
            return RecordsPage(
                records=read.records,
                next_iterator=None if read.following is None else self._iterator(shard, read.following),
                millis_behind_latest=read.behind_ms,
                child_shards=read.child_shards,
                payload_bytes=read.payload_bytes,
            )

    # What the service of fan-out asks (tests/fakes/subscriber.py)

    @property
    def last_sequence_number(self) -> int:
        """Every record put so far has this number or a lower one, every later one a higher."""
        return self._last_sequence_number

    def place_of(self, shard_id: str, position: IteratorPosition) -> int:
        """The least sequence number that is to be read. Raises StreamNotFound, InvalidPosition."""
        return self._first_sequence_number(self._shard(shard_id), position)

    def read(self, shard_id: str, place: int, limit: int, until: int | None = None) -> Reading:
        """At most `limit` records from `place` on, up to that with the number `until`. Raises StreamNotFound."""
        return self._read(self._shard(shard_id), place, limit, until)

    # Shards

    def _open(self, hash_key_range: HashKeyRange, parents: tuple[str, ...]) -> str:
        shard_id = f"shardId-{self._next_shard:012d}"
        self._next_shard += 1
        self._shards[shard_id] = StoredShard(
            shard_id, hash_key_range, self._sequence_number(), self._clock.wall(), parents, records=[]
        )
        return shard_id

    def _close(self, shard_id: str) -> StoredShard:
        shard = self._shards[shard_id]
        assert shard.closed_s is None, f"{shard_id} is closed already"
        shard.ending, shard.closed_s = self._sequence_number(), self._clock.wall()
        return shard

    def _shard(self, shard_id: str) -> StoredShard:
        self._require_stream()
        shard = self._shards.get(shard_id)
        if shard is not None and (shard.closed_s is None or shard.closed_s > self._horizon_s()):
            return shard
        raise StreamNotFound(f"shard {shard_id} of stream {self._name} does not exist")

    def _retained(self) -> list[StoredShard]:
        horizon_s = self._horizon_s()
        return [s for s in self._shards.values() if s.closed_s is None or s.closed_s > horizon_s]

    def _children(self, shard_id: str) -> tuple[ChildShard, ...]:
        return tuple(
            ChildShard(shard_id=s.shard_id, parent_shard_ids=s.parents, hash_key_range=s.hash_key_range)
            for s in self._shards.values()
            if shard_id in s.parents
        )

    def _passes(self, shard: StoredShard, shard_filter: ShardFilter) -> bool:
        if shard_filter.type == "AT_LATEST":
            return shard.closed_s is None
        at_s = max(self._horizon_s(), self._created_s)
        if shard_filter.type == "AT_TIMESTAMP":
            assert shard_filter.timestamp_s is not None
            at_s = max(at_s, shard_filter.timestamp_s)
        return shard.opened_s <= at_s and (shard.closed_s is None or at_s < shard.closed_s)

    def _require_stream(self) -> None:
        if self.deleted:
            raise StreamNotFound(f"stream {self._name} does not exist")

    # Records

    def _horizon_s(self) -> float:
        return max(self._clock.wall() - self._retention_s, self._trimmed_s)

    def _untrimmed(self, shard: StoredShard) -> list[StoredRecord]:
        horizon_s = self._horizon_s()
        return [r for r in shard.records if r.arrival_s > horizon_s]

    def _read(self, shard: StoredShard, first: int, limit: int, until: int | None = None) -> Reading:
        readable = [
            r
            for r in self._untrimmed(shard)
            if r.sequence_number >= first and (until is None or r.sequence_number <= until)
        ]
        page = _page(readable, limit)
        rest = readable[len(page) :]
        if rest:
            behind_ms, following = (self._clock.wall() - rest[0].arrival_s) * 1000, rest[0].sequence_number
        else:
            behind_ms, following = 0.0, max(first, page[-1].sequence_number + 1 if page else first)
        ended = not rest and shard.ending is not None and (until is None or shard.ending <= until)
        return Reading(
            records=[_delivered(r) for r in page],
            behind_ms=round(behind_ms),
            payload_bytes=sum(len(r.data) for r in page),
            following=None if ended else following,
            is_rest=bool(rest),
            child_shards=self._children(shard.shard_id) if ended else (),
        )

    def _sequence_number(self) -> int:
        self._last_sequence_number += _STEP
        return self._last_sequence_number

    def _first_sequence_number(self, shard: StoredShard, position: IteratorPosition) -> int:
        """The least sequence number that is to be read."""
        match position.type:
            case "TRIM_HORIZON":
                return shard.starting
            case "LATEST":
                return self._last_sequence_number + 1
            case "AT_TIMESTAMP":
                assert position.timestamp_s is not None
                if position.timestamp_s > self._clock.wall():
                    raise InvalidPosition("the time stamp is in the future")
                later = [r for r in shard.records if r.arrival_s >= position.timestamp_s]
                return later[0].sequence_number if later else self._last_sequence_number + 1
        assert position.sequence_number is not None
        number = int(position.sequence_number)
        if not shard.starting <= number <= (shard.ending or self._last_sequence_number):
            raise InvalidPosition(f"sequence number {number} is not one of {shard.shard_id}")
        return number + (position.type == "AFTER_SEQUENCE_NUMBER")

    def _iterator(self, shard: StoredShard, first: int) -> str:
        return f"{shard.shard_id}/{first}/{self._clock.wall()!r}"

    def _parse(self, iterator: str) -> tuple[str, int, float]:
        try:
            shard_id, first, issued_s = iterator.split("/")
            return shard_id, int(first), float(issued_s)
        except ValueError:
            raise InvalidPosition(f"invalid iterator {iterator!r}") from None


def _listed(shard: StoredShard) -> Shard:
    parent, adjacent = (*shard.parents, None, None)[:2]
    return Shard(
        shard_id=shard.shard_id,
        hash_key_range=shard.hash_key_range,
        starting_sequence_number=str(shard.starting),
        ending_sequence_number=None if shard.ending is None else str(shard.ending),
        parent_shard_id=parent,
        adjacent_parent_shard_id=adjacent,
    )


def _page(readable: Iterable[StoredRecord], limit: int) -> list[StoredRecord]:
    page: list[StoredRecord] = []
    size = 0
    for record in readable:
        size += len(record.data) + len(record.partition_key)
        if len(page) == limit or (page and size > PAGE_BYTES):
            break
        page.append(record)
    return page


def _delivered(record: StoredRecord) -> Record:
    return Record(
        base64.b64encode(record.data).decode(),
        record.partition_key,
        str(record.sequence_number),
        round(record.arrival_s * 1000),
    )
