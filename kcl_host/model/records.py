"""Records and batches on their way from Kinesis to a child.

`Record` has the shape of a MultiLang record (spec multilang-protocol 2.2), so that a batch is encoded by one call:
field order and names are Java's, `data` stays the base64 text of the wire.
"""

from __future__ import annotations

import msgspec

from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import ChildShard


class Record(msgspec.Struct, gc=False, rename="camel"):
    data: str
    partition_key: str
    sequence_number: str
    approximate_arrival_timestamp: int
    """Epoch milliseconds."""
    sub_sequence_number: int = 0
    """Index of a user record in its KPL aggregate, whose sequence number and arrival it has; 0 for a plain record."""
    action: str = "record"

    @property
    def position(self) -> ExtendedSequenceNumber:
        return ExtendedSequenceNumber(self.sequence_number, self.sub_sequence_number)


class RecordsPage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer of GetRecords, or one event of SubscribeToShard: `next_iterator` is its continuation sequence number.

    `next_iterator` None together with `child_shards` means the end of the shard; every other mixture is invalid
    (decisions.retrieval judges it). `payload_bytes` is the sum of the decoded data lengths.
    """

    records: list[Record]
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...] = ()
    payload_bytes: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a record source hands to the shard consumer: the user records of one answer. An empty one carries the lag.

    `shard_end` marks the last batch; then `child_shards` is what Kinesis named, empty when the shard or the
    stream is gone. `last_sequence_number` is that of the last Kinesis record fetched, None where there was none; it may
    lie after the last of `records`, since an aggregate may have no user record for this shard. `payload_bytes` is the
    sum of the decoded data lengths of `records`.
    """

    records: list[Record]
    millis_behind_latest: int | None
    shard_end: bool = False
    child_shards: tuple[ChildShard, ...] = ()
    payload_bytes: int = 0
    last_sequence_number: str | None = None
