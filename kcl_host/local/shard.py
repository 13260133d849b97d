"""One shard of the stand-in: an append-only log of records that are kept as the JSON text in which they are answered.

A record's counter (1, 2, 3, ...) is its place in the shard and part of its sequence number. Iterators are counters: the
next record to read. Nothing here is locked or reads a clock; KinesisService does both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

import msgspec

from kcl_host.local.quota import ShardQuota
from kcl_host.local.sequence_number import LAST_COUNTER, SequenceNumber
from kcl_host.local.service_error import ServiceError, invalid_argument
from kcl_host.model.shard import HashKeyRange

MAX_ANSWER_BYTES: Final = 10 * 1024 * 1024
_DROP_IN_PIECES_OF: Final = 1024


class ShardPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records as JSON objects; `next_counter` None means that the shard has ended and was read to its end."""

    fragments: list[bytes]
    size_bytes: int
    next_counter: int | None
    millis_behind_latest: int


class StoredRecord(msgspec.Struct, frozen=True, rename="pascal"):
    """A record as the stream holds it, for tests that count what was delivered."""

    sequence_number: str
    approximate_arrival_timestamp: float
    data: bytes
    partition_key: str


class LocalShard:
    def __init__(
        self, number: int, hash_key_range: HashKeyRange, opened_s: float, number_s: int, parents: tuple[str, ...] = ()
    ) -> None:
        """`opened_s` is the real (or fake) instant; `number_s` the creation second inside the sequence numbers."""
        self.number = number
        self.shard_id = f"shardId-{number:012d}"
        self.hash_key_range = hash_key_range
        self.opened_s = opened_s
        self.closed_s: float | None = None
        self.number_s = number_s
        self.parents = parents
        self.children: tuple[LocalShard, ...] = ()
        self.quota = ShardQuota()
        self.watchers: set[Callable[[], None]] = set()
        """Called, under the lock, after each record and at the end; they must not wait."""
        self.starting_sequence_number = str(self._sequence_number(0, opened_s))
        self.ending_sequence_number: str | None = None
        # Parallel lists; _first is the counter of index 0 of all three. Records before `first_counter` are trimmed
        # away for readers, though they may still be in the lists.
        self._fragments: list[bytes] = []
        self._arrivals_s: list[float] = []
        self._bytes_up_to: list[int] = []
        self._first = 1
        self._dropped_bytes = 0
        self.first_counter = 1

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    @property
    def end_counter(self) -> int:
        """The counter that the next record gets."""
        return self._first + len(self._fragments)

    def append(self, partition_key: str, data_base64: str, size_bytes: int, now_s: float) -> str:
        """Stores one record and returns its sequence number. Arrival times never go back within a shard."""
        arrival_s = max(now_s, self._arrivals_s[-1] if self._arrivals_s else self.opened_s)
        sequence_number = str(self._sequence_number(self.end_counter, arrival_s))
        self._fragments.append(
            b'{"SequenceNumber":"%b","ApproximateArrivalTimestamp":%.3f,"Data":"%b","PartitionKey":%b}'
            % (sequence_number.encode(), arrival_s, data_base64.encode(), msgspec.json.encode(partition_key))
        )
        self._arrivals_s.append(arrival_s)
        self._bytes_up_to.append(self._bytes_before(len(self._bytes_up_to)) + size_bytes)
        self._tell()
        return sequence_number

    def close(self, now_s: float, children: tuple[LocalShard, ...]) -> None:
        self.closed_s = now_s
        self.ending_sequence_number = str(self._sequence_number(LAST_COUNTER, now_s))
        self.children = children
        self._tell()

    def trim(self, horizon_s: float) -> None:
        """Hides the records that arrived before the horizon, and lets go of them in larger pieces."""
        gone = bisect_left(self._arrivals_s, horizon_s)
        self.first_counter = max(self.first_counter, self._first + gone)
        if gone >= _DROP_IN_PIECES_OF:
            self._dropped_bytes = self._bytes_before(gone)
            for column in (self._fragments, self._arrivals_s, self._bytes_up_to):
                del column[:gone]
            self._first += gone

    def read(self, counter: int, limit: int, now_s: float, max_bytes: int = MAX_ANSWER_BYTES) -> ShardPage:
        """At most `limit` records and `max_bytes` of data from `counter` on, but one record at least."""
        start = max(counter, self.first_counter) - self._first
        read_before = self._bytes_before(start)
        end = min(start + limit, bisect_right(self._bytes_up_to, read_before + max_bytes))
        end = min(max(end, start + 1), len(self._fragments))
        caught_up = end >= len(self._fragments)
        return ShardPage(
            fragments=self._fragments[start:end],
            size_bytes=self._bytes_before(end) - read_before if end > start else 0,
            next_counter=None if caught_up and not self.is_open else self._first + max(start, end),
            millis_behind_latest=0 if caught_up else max(1, int((now_s - self._arrivals_s[end - 1]) * 1000)),
        )

    def counter_at_timestamp(self, timestamp_s: float) -> int:
        return max(self.first_counter, self._first + bisect_left(self._arrivals_s, timestamp_s))

    def counter_of(self, sequence_number: str, stream_name: str) -> int:
        """The counter of the record with this number. Below the trim horizon: reading starts at the horizon.

        Raises ServiceError for text that is no number, and for a number that this shard never gave out.
        """
        try:
            parsed = SequenceNumber.parse(sequence_number)
        except ValueError:
            raise ServiceError(
                "ValidationException",
                f"Value '{sequence_number}' at 'startingSequenceNumber' failed to satisfy constraint: Member must "
                "satisfy regular expression pattern: 0|([1-9]\\d{0,128})",
            ) from None
        known = parsed is not None and (parsed.shard_number, parsed.shard_created_s) == (self.number, self.number_s)
        if known and parsed is not None:
            if parsed.counter < self.end_counter:
                return parsed.counter
            if sequence_number == self.ending_sequence_number:
                return self.end_counter
        raise invalid_argument(
            f"StartingSequenceNumber {sequence_number} used in GetShardIterator on shard {self.shard_id} in stream "
            f"{stream_name} is invalid because it did not come from this stream."
        )

    def continuation(self, next_counter: int, now_s: float) -> str:
        """The number after which reading goes on at `next_counter`, whether there is a record yet or not."""
        return str(self._sequence_number(next_counter - 1, now_s))

    def stored(self) -> list[StoredRecord]:
        """Every record within the retention, in order."""
        decoder = msgspec.json.Decoder(StoredRecord)
        return [decoder.decode(fragment) for fragment in self._fragments[self.first_counter - self._first :]]

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed -> {', '.join(child.shard_id for child in self.children)}"
        return f"<{self.shard_id} {state}, {self.end_counter - self.first_counter} records>"

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher()

    def _bytes_before(self, index: int) -> int:
        return self._bytes_up_to[index - 1] if index else self._dropped_bytes

    def _sequence_number(self, counter: int, time_s: float) -> SequenceNumber:
        return SequenceNumber(
            shard_created_s=self.number_s, shard_number=self.number, counter=counter, time_s=int(time_s)
        )
