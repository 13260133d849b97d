"""Where a shard is read from, and which records the child has had already.

A checkpoint says what was processed; a position says what Kinesis is asked for. The two differ by one record on
purpose: a checkpoint may lie inside a KPL aggregate, so the record it names is read once more and what was processed is
filtered out (`drop_delivered`). AFTER a sequence number is safe only for a record that was fetched as a whole by the
same source. Java goes AFTER the checkpoint itself when the first read fails, and loses the rest of the aggregate.

Source: KCL 3.5.1 IteratorBuilder, ProcessTask; spec retrieval 2, consumer-lifecycle 10.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from kcl_host.model.records import Record
from kcl_host.model.sequence import (
    AT_TIMESTAMP,
    LATEST,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    InitialPosition,
    IteratorPosition,
)
from kcl_host.model.shard import Shard

LATEST_MARGIN_S: Final = 300.0
"""How far the clocks of this host and of Kinesis may differ where a moment stands in for LATEST. AWS refuses requests
that were signed more than five minutes off, so whoever gets an answer at all is closer."""


def lacks_timestamp(checkpoint: ExtendedSequenceNumber, initial: InitialPosition) -> bool:
    """True for a lease at AT_TIMESTAMP while the configuration has no timestamp any more; rows never store it."""
    return checkpoint.sequence_number == AT_TIMESTAMP and initial.timestamp_s is None


def first_position(checkpoint: ExtendedSequenceNumber, initial: InitialPosition) -> IteratorPosition:
    """What is asked for when reading starts from a lease's checkpoint.

    A lease at AT_TIMESTAMP uses the timestamp configured now. Without one (`lacks_timestamp`) it is read from
    TRIM_HORIZON, which is earlier and loses nothing; Java fails for ever. Raises ValueError at SHARD_END: there is
    nothing to read.
    """
    match checkpoint.sequence_number:
        case _ if checkpoint.is_shard_end:
            raise ValueError("a lease at SHARD_END has no position to read from")
        case "TRIM_HORIZON" | "LATEST" as sentinel:
            return IteratorPosition(type=sentinel)
        case "AT_TIMESTAMP" if initial.timestamp_s is None:
            return IteratorPosition(type=TRIM_HORIZON)
        case "AT_TIMESTAMP":
            return IteratorPosition(type=AT_TIMESTAMP, timestamp_s=initial.timestamp_s)
        case number:
            return IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=number)


def reposition(start: IteratorPosition, last_fetched: str | None, opened_s: float) -> IteratorPosition:
    """What is asked for when the iterator that began at `start` is no longer accepted.

    `last_fetched` is the last Kinesis record fetched through it, None before any: then it is `start` again. Only LATEST
    would mean a later place by now and skip what arrived meanwhile. In its place stands `opened_s`, when it was first
    asked for (epoch seconds by this host's clock), less the margin: the child may get a few minutes of older records,
    none of them twice, and none is skipped. Java asks for LATEST again.
    """
    if last_fetched is not None:
        return IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number=last_fetched)
    if start.type == LATEST:
        return IteratorPosition(type=AT_TIMESTAMP, timestamp_s=opened_s - LATEST_MARGIN_S)
    return start


def is_of_earlier_stream(position: IteratorPosition, shard_id: str, shards: Iterable[Shard]) -> bool:
    """Whether a position that Kinesis refuses belongs to a stream that was deleted, and created anew under its name.

    No number of a shard is below its first one, so a lower one is not of this shard. That proves it where the stream of
    this name has accepted the position, or an earlier one, before. `shards` is a complete listing. False for a position
    without a number: nothing was read yet that the new stream could be confused with.
    """
    number = position.sequence_number
    return number is not None and any(
        shard.shard_id == shard_id and int(number) < int(shard.starting_sequence_number) for shard in shards
    )


def drop_delivered(records: list[Record], checkpoint: ExtendedSequenceNumber) -> list[Record]:
    """The user records above `checkpoint`, in order; `records` itself when that is all of them.

    `records` ascend, as one shard gives them, so the first one decides in all batches but those after a restart.
    Source: KCL 3.5.1 AggregatorUtil filter; spec consumer-lifecycle 4.3 step 5.
    """
    if not records or (checkpoint.is_sentinel and not checkpoint.is_shard_end):
        return records
    delivered = checkpoint.sort_key
    if records[0].position.sort_key > delivered:
        return records
    return records[bisect_right(records, delivered, key=lambda record: record.position.sort_key) :]
