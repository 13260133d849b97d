"""One stream of the stand-in: its shards, their lineage, and the listing rules of ListShards.

A reshard closes parents and opens children at one instant, which is always later than the parents' opening, also when
the clock stands still; so `opened_s <= t < closed_s` cuts a gapless set of shards at every t. Shards closed for longer
than the retention are forgotten. Nothing here is locked or reads a clock; KinesisService does both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Final, Literal

import msgspec

from kcl_host.local.service_error import ServiceError, in_use, invalid_argument, not_found
from kcl_host.local.shard import LocalShard
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange

DEFAULT_RETENTION_HOURS: Final = 24
_INSTANT_S: Final = 0.001

StreamStatus = Literal["CREATING", "ACTIVE", "UPDATING", "DELETING"]


class StreamConsumer(msgspec.Struct, kw_only=True):
    """A registered fan-out consumer; ACTIVE from `active_s` on."""

    name: str
    arn: str
    created_s: float
    active_s: float


class LocalStream:
    def __init__(self, name: str, arn: str, incarnation: int, shard_count: int, now_s: float, active_s: float) -> None:
        """`incarnation` tells this stream from an earlier one of the same name; CREATING until `active_s`."""
        self.name = name
        self.arn = arn
        self.incarnation = incarnation
        self.created_s = now_s
        self.retention_hours = DEFAULT_RETENTION_HOURS
        self.max_record_bytes = 1024 * 1024
        self.mode = "PROVISIONED"
        self.status: StreamStatus = "CREATING"
        self.tags: dict[str, str] = {}
        self.consumers: dict[str, StreamConsumer] = {}
        self.iterator_generation = 0
        self._due_s = active_s
        self._when_due: Callable[[float], None] = lambda now_s: None
        self._next_number = 0
        self._shards: dict[str, LocalShard] = {}
        self._open: list[LocalShard] = []
        for range_ in uniform_ranges(shard_count):
            self._add(range_, now_s, int(now_s), ())
        self._sort_open()

    # Time

    def advance(self, now_s: float) -> None:
        """Finishes what is due, trims records, forgets shards beyond the retention. Called before every request."""
        if self.status != "ACTIVE" and now_s >= self._due_s:
            self.status = "ACTIVE"
            self._when_due(now_s)
            self._when_due = lambda now_s: None
        horizon_s = now_s - self.retention_hours * 3600
        if horizon_s > self.created_s:
            for shard in list(self._shards.values()):
                shard.trim(horizon_s)
                if shard.closed_s is not None and shard.closed_s < horizon_s:
                    del self._shards[shard.shard_id]

    def delete_at(self, due_s: float, forget: Callable[[float], None]) -> None:
        self.status, self._due_s, self._when_due = "DELETING", due_s, forget

    def trim_horizon_s(self, now_s: float) -> float:
        return max(self.created_s, now_s - self.retention_hours * 3600)

    # Shards

    @property
    def open_shards(self) -> list[LocalShard]:
        """Ordered by hash key range."""
        return list(self._open)

    @property
    def shards(self) -> list[LocalShard]:
        """Every shard within the retention, in the order of the shard ids."""
        return list(self._shards.values())

    def shard(self, shard_id: str) -> LocalShard:
        if found := self._shards.get(shard_id):
            return found
        raise not_found(f"Shard {shard_id} in stream {self.name} under account {self.account} does not exist")

    @property
    def account(self) -> str:
        return self.arn.split(":")[4]

    def open_shard_for(self, hash_key: int) -> LocalShard:
        return self._open[bisect_right(self._open, hash_key, key=lambda shard: shard.hash_key_range.start) - 1]

    def list_shards(self, kind: str | None, now_s: float, *, at_s: float = 0.0, after: str = "") -> list[LocalShard]:
        """The shards that a ShardFilter of this type selects, in the order of the shard ids; None selects all.

        `at_s` counts for AT_TIMESTAMP and FROM_TIMESTAMP (before the horizon it means the horizon), `after` for
        AFTER_SHARD_ID.
        """
        horizon_s = self.trim_horizon_s(now_s)
        at_s = max(at_s, horizon_s)

        def open_at(shard: LocalShard, instant_s: float) -> bool:
            return shard.opened_s <= instant_s and (shard.closed_s is None or shard.closed_s > instant_s)

        filters: dict[str | None, Callable[[LocalShard], bool]] = {
            None: lambda shard: True,
            "AT_LATEST": lambda shard: shard.is_open,
            "AT_TRIM_HORIZON": lambda shard: open_at(shard, horizon_s),
            "AT_TIMESTAMP": lambda shard: open_at(shard, at_s),
            "FROM_TRIM_HORIZON": lambda shard: shard.closed_s is None or shard.closed_s >= horizon_s,
            "FROM_TIMESTAMP": lambda shard: shard.closed_s is None or shard.closed_s >= at_s,
            "AFTER_SHARD_ID": lambda shard: shard.shard_id > after,
        }
        return [shard for shard in self._shards.values() if filters[kind](shard)]

    # Reshards: asked for now, done at `due_s`; UPDATING in between

    def split(self, shard_id: str, new_starting_hash_key: int | None, now_s: float, due_s: float) -> None:
        """`new_starting_hash_key` None: in the middle."""
        shard = self._eligible(shard_id)
        start, end = shard.hash_key_range.start, shard.hash_key_range.end
        middle = (start + end + 1) // 2 if new_starting_hash_key is None else new_starting_hash_key
        if not start < middle <= end:
            raise invalid_argument(
                f"NewStartingHashKey {middle} used in SplitShard() on shard {shard_id} in stream {self.name} is not "
                f"both greater than one plus the shard's StartingHashKey {start} and less than the shard's "
                f"EndingHashKey {end}."
            )
        self._reshard(now_s, due_s, lambda at_s: self._split(shard, middle, at_s))

    def merge(self, shard_id: str, adjacent_shard_id: str, now_s: float, due_s: float) -> None:
        shard, adjacent = self._eligible(shard_id), self._eligible(adjacent_shard_id)
        low, high = sorted((shard, adjacent), key=lambda s: s.hash_key_range.start)
        if low.hash_key_range.end + 1 != high.hash_key_range.start:
            raise invalid_argument(
                f"Shards {shard_id} and {adjacent_shard_id} in stream {self.name} are not an adjacent pair of shards "
                "eligible for merging"
            )
        self._reshard(now_s, due_s, lambda at_s: self._merge(shard, adjacent, at_s))

    def update_shard_count(self, target: int, now_s: float, due_s: float) -> None:
        """Splits at every wanted boundary, then merges what lies between two of them."""
        current = len(self._open)
        if not 1 <= target <= 2 * current or 2 * target < current:
            raise invalid_argument(
                f"UpdateShardCount cannot go from {current} to {target} open shards: between half and double only."
            )
        self._reshard(now_s, due_s, lambda at_s: self._scale(target, at_s))

    def _reshard(self, now_s: float, due_s: float, act: Callable[[float], None]) -> None:
        if self.status != "ACTIVE":
            raise in_use(f"Stream {self.name} under account {self.account} not ACTIVE, instead in state {self.status}")
        self.status, self._due_s, self._when_due = "UPDATING", due_s, act
        self.advance(now_s)

    def _eligible(self, shard_id: str) -> LocalShard:
        shard = self.shard(shard_id)
        if not shard.is_open:
            raise invalid_argument(
                f"Shard {shard_id} in stream {self.name} under account {self.account} has already been merged or "
                "split, and thus is not eligible for merging or splitting."
            )
        return shard

    def _split(self, shard: LocalShard, middle: int, now_s: float) -> None:
        start, end = shard.hash_key_range.start, shard.hash_key_range.end
        self._replace((shard,), (HashKeyRange(start, middle - 1), HashKeyRange(middle, end)), now_s)

    def _merge(self, shard: LocalShard, adjacent: LocalShard, now_s: float) -> None:
        ranges = (shard.hash_key_range, adjacent.hash_key_range)
        merged = HashKeyRange(min(range_.start for range_ in ranges), max(range_.end for range_ in ranges))
        self._replace((shard, adjacent), (merged,), now_s)

    def _scale(self, target: int, now_s: float) -> None:
        wanted = uniform_ranges(target)
        for range_ in wanted:
            shard = self.open_shard_for(range_.start)
            if shard.hash_key_range.start != range_.start:
                self._split(shard, range_.start, now_s)
        for range_ in wanted:
            while (shard := self.open_shard_for(range_.start)).hash_key_range.end < range_.end:
                self._merge(shard, self.open_shard_for(shard.hash_key_range.end + 1), now_s)

    def _replace(self, parents: tuple[LocalShard, ...], ranges: tuple[HashKeyRange, ...], now_s: float) -> None:
        at_s = max(now_s, *(parent.opened_s + _INSTANT_S for parent in parents))
        number_s = max(int(at_s), *(parent.number_s + 1 for parent in parents))
        parent_ids = tuple(parent.shard_id for parent in parents)
        children = tuple(self._add(range_, at_s, number_s, parent_ids) for range_ in ranges)
        for parent in parents:
            parent.close(at_s, children)
            self._open.remove(parent)
        self._sort_open()

    def _add(self, range_: HashKeyRange, opened_s: float, number_s: int, parents: tuple[str, ...]) -> LocalShard:
        shard = LocalShard(self._next_number, range_, opened_s, number_s, parents)
        self._next_number += 1
        self._shards[shard.shard_id] = shard
        self._open.append(shard)
        return shard

    def _sort_open(self) -> None:
        self._open.sort(key=lambda shard: shard.hash_key_range.start)

    def __repr__(self) -> str:
        return f"<stream {self.name} {self.status}, {len(self._open)} open of {len(self._shards)} shards>"


def uniform_ranges(count: int) -> list[HashKeyRange]:
    """The whole hash space in `count` ranges of the same size."""
    if count < 1:
        raise ServiceError("ValidationException", f"Value '{count}' at 'shardCount' must be at least 1")
    starts = [i * (MAX_HASH_KEY + 1) // count for i in range(count)] + [MAX_HASH_KEY + 1]
    return [HashKeyRange(start, end - 1) for start, end in pairwise(starts)]
