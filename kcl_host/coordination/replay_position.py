"""Finds the checkpoint after which the first record of a position comes: that of the record before it.

Kinesis reads forward only, so the record before is looked for from moments before: further and further back until one
leads to an earlier record, then between the two by halves, and the last second is read through. A shard that is
written to all the time answers at once, a gap of a day takes about twenty reads. Order is that of sequence numbers;
arrival times, which Kinesis calls approximate, only say where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from kcl_host.decisions.deaggregation import deaggregate_in_pieces
from kcl_host.errors import ExpiredIterator, InvalidPosition, Throttled, Unavailable
from kcl_host.model.records import Record
from kcl_host.model.sequence import AT_TRIM_HORIZON, TRIM_HORIZON, ExtendedSequenceNumber, IteratorPosition
from kcl_host.ports import Clock, Stream

PAUSE_S: Final = 0.3
"""Before each read: of the five a second that a shard allows, some are left to those who consume it."""
ATTEMPTS: Final = 10
RETRY_S: Final = 1.0
FIRST_STEP_MS: Final = 1000
STEP_FACTOR: Final = 8
WINDOW_MS: Final = 1000
"""Not halved any more, but read through."""
PAGE: Final = 10_000

Sleep = Callable[[float], object]
_Answer = TypeVar("_Answer")


def insist(request: Callable[[], _Answer], sleep: Sleep) -> _Answer:
    """The answer of a request that only reads, made again while it fails for the moment."""
    for attempt in range(1, ATTEMPTS):
        try:
            return request()
        except (Throttled, Unavailable):
            sleep(RETRY_S * attempt)
    return request()


class PositionFinder:
    """Of one stream. Any number of threads, each for another shard."""

    def __init__(self, stream: Stream, clock: Clock, sleep: Sleep) -> None:
        self._stream = stream
        self._clock = clock
        self._sleep = sleep

    def checkpoint_before(self, shard_id: str, position: IteratorPosition) -> ExtendedSequenceNumber:
        """What the application would have checkpointed just before the first record at or after `position`.

        Where none is there yet, it is the last record that there is, so that the next one to come is the first.
        TRIM_HORIZON when nothing that the stream still holds comes before. After an aggregate: all of it. Raises
        InvalidPosition for a sequence number that is not of this shard, StreamNotFound when the shard is gone.
        """
        first = None if position.type == "LATEST" else self._first(shard_id, position)
        oldest = self._first(shard_id, IteratorPosition(type=TRIM_HORIZON))
        if oldest is None or not _is_before(oldest, first):
            return AT_TRIM_HORIZON
        end_ms = int(self._clock.wall() * 1000) if first is None else first.approximate_arrival_timestamp
        start = self._near(shard_id, oldest, first, end_ms)
        last = None
        for record in self._read(shard_id, _at(start), PAGE):
            if not _is_before(record, first) or (first is None and record.approximate_arrival_timestamp > end_ms):
                break
            last = record
        # None: all of it has left the stream meanwhile.
        return AT_TRIM_HORIZON if last is None else _after(last)

    def _near(self, shard_id: str, oldest: Record, first: Record | None, end_ms: int) -> Record:
        """A record before `first`, close to it by its arrival."""
        earlier, low_ms, high_ms, step_ms = oldest, oldest.approximate_arrival_timestamp, end_ms, FIRST_STEP_MS
        while high_ms - low_ms > WINDOW_MS:
            # From the end backwards while that is nearer than the middle, and as long as nothing was found there.
            back_ms = end_ms - step_ms
            at_ms = max(back_ms, (low_ms + high_ms) // 2) if earlier is oldest else (low_ms + high_ms) // 2
            step_ms *= STEP_FACTOR
            try:
                record = self._first(shard_id, IteratorPosition(type="AT_TIMESTAMP", timestamp_s=at_ms / 1000))
            except InvalidPosition:  # A moment to come, by the clock of Kinesis.
                record = None
            if record is not None and _is_before(record, first):
                earlier, low_ms = record, max(at_ms, record.approximate_arrival_timestamp)
            else:
                high_ms = at_ms
        return earlier

    def _first(self, shard_id: str, position: IteratorPosition) -> Record | None:
        return next(self._read(shard_id, position, 1), None)

    def _read(self, shard_id: str, position: IteratorPosition, limit: int) -> Iterator[Record]:
        """Records from `position` on, to the end of the shard or of what is there."""
        iterator = self._open(shard_id, position)
        while iterator is not None:
            self._sleep(PAUSE_S)
            try:
                page = insist(partial(self._stream.get_records, iterator, limit), self._sleep)
            except ExpiredIterator:
                iterator = self._open(shard_id, position)
                continue
            yield from page.records
            if page.records:
                last = page.records[-1].sequence_number
                position = IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number=last)
            iterator = page.next_iterator if page.records or page.millis_behind_latest else None

    def _open(self, shard_id: str, position: IteratorPosition) -> str | None:
        return insist(partial(self._stream.get_shard_iterator, shard_id, position), self._sleep)


def _at(record: Record) -> IteratorPosition:
    return IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=record.sequence_number)


def _is_before(record: Record, first: Record | None) -> bool:
    """None: everything is."""
    return first is None or int(record.sequence_number) < int(first.sequence_number)


def _after(record: Record) -> ExtendedSequenceNumber:
    """The record itself, or the last user record in it; those of other shards count (decisions/deaggregation.py)."""
    last = None
    for piece in deaggregate_in_pieces([record], 0, None):
        last = piece.records[-1] if piece.records else last
    return last.position if last is not None else record.position
