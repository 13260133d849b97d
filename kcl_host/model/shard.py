"""Shards, their hash key ranges and the names of streams."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

MIN_HASH_KEY: Final = 0
MAX_HASH_KEY: Final = 2**128 - 1


class HashKeyRange(msgspec.Struct, frozen=True):
    """Inclusive range of 128-bit hash keys; tables and the wire carry the two as decimal strings."""

    start: int
    end: int

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a ListShards listing. `ending_sequence_number` None means that the shard is open."""

    shard_id: str
    hash_key_range: HashKeyRange
    starting_sequence_number: str
    ending_sequence_number: str | None = None
    parent_shard_id: str | None = None
    adjacent_parent_shard_id: str | None = None

    @property
    def is_open(self) -> bool:
        return self.ending_sequence_number is None

    @property
    def parent_shard_ids(self) -> tuple[str, ...]:
        """Parent and adjacent parent without repetition, listed or not; empty for a first generation."""
        ids = (self.parent_shard_id, self.adjacent_parent_shard_id)
        return tuple(dict.fromkeys(i for i in ids if i is not None))


class ChildShard(msgspec.Struct, frozen=True, kw_only=True):
    """A child named by the last answer of a closed shard."""

    shard_id: str
    parent_shard_ids: tuple[str, ...]
    hash_key_range: HashKeyRange


class ShardFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of a ListShards call; `timestamp_s` (epoch seconds) only with AT_TIMESTAMP."""

    type: Literal["AT_LATEST", "AT_TRIM_HORIZON", "AT_TIMESTAMP"]
    timestamp_s: float | None = None


_MULTI_STREAM: Final = re.compile(r"(?P<account>\d+):(?P<name>[^:]+):(?P<epoch>\d+)")


class StreamIdentifier(msgspec.Struct, frozen=True, kw_only=True):
    """A stream: its name alone, or `account:name:creation epoch` in multi-stream mode (spec shard-sync 8.1)."""

    name: str
    account: str | None = None
    epoch: int | None = None

    @classmethod
    def parse(cls, text: str) -> StreamIdentifier:
        """Reads either form; raises ValueError for an empty name or an epoch of zero."""
        if match := _MULTI_STREAM.fullmatch(text):
            if not int(match["epoch"]):
                raise ValueError(f"stream identifier {text!r}: the creation epoch must be above 0")
            return cls(name=match["name"], account=match["account"], epoch=int(match["epoch"]))
        if not text or ":" in text:
            raise ValueError(f"stream identifier {text!r} is neither a stream name nor account:stream:epoch")
        return cls(name=text)

    @property
    def is_multi_stream(self) -> bool:
        return self.epoch is not None

    def lease_key(self, shard_id: str) -> str:
        """The key of the shard's lease: the shard id, prefixed in multi-stream mode."""
        return f"{self}:{shard_id}" if self.is_multi_stream else shard_id

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.epoch}" if self.is_multi_stream else self.name


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What DescribeStreamSummary says. `status` is CREATING, DELETING, ACTIVE or UPDATING."""

    name: str
    arn: str
    status: str
    open_shard_count: int
    retention_hours: int
    creation_s: float

    @property
    def identifier(self) -> StreamIdentifier:
        """What leases of this incarnation of the stream bear in multi-stream mode; the creation in whole seconds."""
        return StreamIdentifier(name=self.name, account=self.arn.split(":")[4], epoch=int(self.creation_s))
