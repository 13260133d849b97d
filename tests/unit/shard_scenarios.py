"""Reads the scenario files about shards (tests/scenarios/README.md), and the fakes that their cases are loaded into."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kcl_host.errors import StreamNotFound
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import ExtendedSequenceNumber, IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard, ShardFilter, StreamIdentifier

FOLDER = Path(__file__).parents[1] / "scenarios"
Case = dict[str, Any]


def read_cases(file: str, kind: str | None = None) -> list[Case]:
    cases: list[Case] = json.loads((FOLDER / file).read_text())
    assert len({case["name"] for case in cases}) == len(cases)
    return [case for case in cases if kind is None or case["kind"] == kind]


def shard_of(row: Case) -> Shard:
    return Shard(
        shard_id=row["shard_id"],
        hash_key_range=HashKeyRange(int(row["starting_hash"]), int(row["ending_hash"])),
        starting_sequence_number=row.get("starting_seq", "1"),
        ending_sequence_number=row.get("ending_seq"),
        parent_shard_id=row.get("parent"),
        adjacent_parent_shard_id=row.get("adjacent_parent"),
    )


def child_of(row: Case) -> ChildShard:
    return ChildShard(
        shard_id=row["shard_id"],
        parent_shard_ids=tuple(row["parent_shards"]),
        hash_key_range=HashKeyRange(int(row["starting_hash"]), int(row["ending_hash"])),
    )


def lease_of(row: Case, identifier: str | None = None) -> Lease:
    """`identifier` completes rows of multi-stream cases that do not name their stream."""
    stream_name, shard_id = row.get("stream_name"), row.get("shard_id")
    if identifier is not None and stream_name is None:
        stream_name, _, shard_id = row["lease_key"].rpartition(":")
    has_range = row.get("starting_hash_key") is not None
    return Lease(
        lease_key=row["lease_key"],
        checkpoint=None if row["checkpoint"] is None else ExtendedSequenceNumber(row["checkpoint"]),
        parent_shard_ids=frozenset(row.get("parent_shard_ids", ())),
        child_shard_ids=frozenset(row.get("child_shard_ids", ())),
        hash_key_range=HashKeyRange(int(row["starting_hash_key"]), int(row["ending_hash_key"])) if has_range else None,
        stream_name=stream_name or None,
        multi_stream_shard_id=shard_id if stream_name else None,
    )


class Table:
    """The lease table as far as shards are concerned; every write is recorded, refused ones too."""

    def __init__(self, leases: Iterable[Lease] = (), *, undecodable: Sequence[str] = ()) -> None:
        self.rows = {lease.lease_key: lease for lease in leases}
        self.undecodable = tuple(undecodable)
        self.appearing: list[Lease] = []
        """Rows that another worker creates just before our next create."""
        self.created: list[Lease] = []
        self.child_shards_written: list[tuple[str, frozenset[str]]] = []
        self.ranges_written: list[tuple[str, HashKeyRange]] = []
        self.deleted: list[str] = []
        self.reads: list[str] = []
        self.error: Callable[[str], Exception | None] = lambda operation: None

    def _meet(self, operation: str) -> None:
        if error := self.error(operation):
            raise error

    def is_empty(self) -> bool:
        self._meet("is_empty")
        return not self.rows

    def list_leases(self, stream: StreamIdentifier | None = None) -> LeaseListing:
        self._meet("list_leases")
        leases = (row for row in self.rows.values() if stream is None or row.stream_name == str(stream))
        return LeaseListing(leases=tuple(leases), undecodable=self.undecodable)

    def get(self, lease_key: str) -> Lease | None:
        self._meet("get")
        self.reads.append(lease_key)
        return self.rows.get(lease_key)

    def create(self, lease: Lease) -> bool:
        self._meet("create")
        self.rows |= {row.lease_key: row for row in self.appearing}
        self.appearing = []
        if lease.lease_key in self.rows or lease.lease_key in self.undecodable:
            return False
        self.rows[lease.lease_key] = lease
        self.created.append(lease)
        return True

    def write_child_shards(self, lease_key: str, child_shard_ids: frozenset[str]) -> bool:
        self._meet("write_child_shards")
        self.child_shards_written.append((lease_key, child_shard_ids))
        return self._update(lease_key, child_shard_ids=child_shard_ids)

    def write_hash_key_range(self, lease_key: str, hash_key_range: HashKeyRange) -> bool:
        self._meet("write_hash_key_range")
        self.ranges_written.append((lease_key, hash_key_range))
        return self._update(lease_key, hash_key_range=hash_key_range)

    def delete(self, lease_key: str) -> None:
        self._meet("delete")
        self.deleted.append(lease_key)
        self.rows.pop(lease_key, None)

    def _update(self, lease_key: str, **changes: Any) -> bool:
        if lease_key in self.rows:
            self.rows[lease_key] = msgspec.structs.replace(self.rows[lease_key], **changes)
        return lease_key in self.rows


class Shards:
    """A stream that knows its shards and answers a listing as Kinesis does, filters included.

    `times` is (start, end) of each shard, end None while it is open. `trimmed` shards are past the retention.
    """

    def __init__(
        self, shards: Iterable[Shard] = (), times: dict[str, tuple[float, float | None]] | None = None
    ) -> None:
        self.shards = list(shards)
        self.times = times or {}
        self.trimmed: set[str] = set()
        self.prepared: list[list[Shard] | None] | None = None
        """Answers to give instead, one per listing."""
        self.filters: list[ShardFilter | None] = []
        self.asked: list[str] = []
        self.children: dict[str, tuple[ChildShard, ...] | Exception] = {}
        """What the last answer of a shard names, or the error that asking for it meets."""

    def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
        self.filters.append(shard_filter)
        if self.prepared is not None:
            return self.prepared.pop(0)
        retained = [s for s in self.shards if s.shard_id not in self.trimmed]
        return retained if shard_filter is None else [s for s in retained if self._passes(s, shard_filter)]

    def _passes(self, shard: Shard, shard_filter: ShardFilter) -> bool:
        if shard_filter.type == "AT_LATEST":
            return shard.is_open
        if shard_filter.type == "AT_TRIM_HORIZON":
            retained = {s.shard_id for s in self.shards} - self.trimmed
            return retained.isdisjoint(shard.parent_shard_ids)
        assert shard_filter.timestamp_s is not None
        start, end = self.times[shard.shard_id]
        return start <= shard_filter.timestamp_s and (end is None or shard_filter.timestamp_s <= end)

    def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
        assert position == IteratorPosition(type="LATEST")
        self.asked.append(shard_id)
        if isinstance(self.children.get(shard_id), StreamNotFound):
            raise StreamNotFound(f"shard {shard_id} is gone")
        return shard_id

    def get_records(self, iterator: str, limit: int) -> RecordsPage:
        children = self.children.get(iterator, ())
        if isinstance(children, Exception):
            raise children
        return RecordsPage(
            records=[],
            next_iterator=None if children else "next",
            millis_behind_latest=0,
            child_shards=children,
        )


class Now:
    """A clock that moves only by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now_s
