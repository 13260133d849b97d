"""The per-shard quotas of Kinesis (spec retrieval section 7), checked only when a test or the user asks for them."""

from __future__ import annotations

from collections import deque
from typing import Final

from kcl_host.local.service_error import throttled

READS_PER_S: Final = 5
ITERATORS_PER_S: Final = 5
READ_BYTES_PER_S: Final = 2 * 1024 * 1024
WRITE_RECORDS_PER_S: Final = 1000
WRITE_BYTES_PER_S: Final = 1_000_000


class _Window:
    """Sum of what happened within the last second."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[tuple[float, int]] = deque()
        self._sum = 0

    def has_room(self, now_s: float, amount: int) -> bool:
        while self._events and self._events[0][0] <= now_s - 1:
            self._sum -= self._events.popleft()[1]
        return self._sum + amount <= self._limit

    def add(self, now_s: float, amount: int) -> None:
        self._events.append((now_s, amount))
        self._sum += amount


class ShardQuota:
    """What one shard still allows. `now_s` may be any clock, the same one for every call."""

    def __init__(self) -> None:
        self._reads = _Window(READS_PER_S)
        self._iterators = _Window(ITERATORS_PER_S)
        self._read_bytes = _Window(READ_BYTES_PER_S)
        self._write_records = _Window(WRITE_RECORDS_PER_S)
        self._write_bytes = _Window(WRITE_BYTES_PER_S)
        self._reads_blocked_until_s = float("-inf")

    def take_iterator(self, now_s: float) -> None:
        if not self._iterators.has_room(now_s, 1):
            raise throttled("Rate exceeded for GetShardIterator")
        self._iterators.add(now_s, 1)

    def start_read(self, now_s: float) -> None:
        """A refused call counts for nothing and returns no data."""
        if now_s < self._reads_blocked_until_s or not self._reads.has_room(now_s, 1):
            raise throttled("Rate exceeded for GetRecords")
        if not self._read_bytes.has_room(now_s, 1):
            self._reads_blocked_until_s = now_s + 1
            raise throttled("Read throughput exceeded")
        self._reads.add(now_s, 1)

    def finish_read(self, now_s: float, size_bytes: int) -> None:
        """An answer above two seconds' worth blocks the shard until it is paid for: 10 MiB for 5 s."""
        self._read_bytes.add(now_s, size_bytes)
        if size_bytes > READ_BYTES_PER_S:
            self._reads_blocked_until_s = now_s + size_bytes / READ_BYTES_PER_S

    def write(self, now_s: float, size_bytes: int) -> bool:
        """False when the record is refused."""
        if not (self._write_records.has_room(now_s, 1) and self._write_bytes.has_room(now_s, size_bytes)):
            return False
        self._write_records.add(now_s, 1)
        self._write_bytes.add(now_s, size_bytes)
        return True
