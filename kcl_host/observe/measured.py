"""A stream that tells how its requests go."""

from __future__ import annotations

from kcl_host.errors import ExpiredIterator
from kcl_host.instruments import ShardInstruments
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import Shard, ShardFilter, StreamSummary
from kcl_host.ports import Stream


class MeasuredStream:
    """Implements ports.Stream for the source of one shard, with what KCL measures of polling."""

    def __init__(self, stream: Stream, instruments: ShardInstruments) -> None:
        self._stream = stream
        self._instruments = instruments

    def __repr__(self) -> str:
        return f"<MeasuredStream {self._stream!r}>"

    def describe(self) -> StreamSummary:
        return self._stream.describe()

    def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
        return self._stream.list_shards(shard_filter)

    def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
        with self._instruments.getting_iterator():
            return self._stream.get_shard_iterator(shard_id, position)

    def get_records(self, iterator: str, limit: int) -> RecordsPage:
        try:
            with self._instruments.getting_records():
                return self._stream.get_records(iterator, limit)
        except ExpiredIterator:
            self._instruments.iterator_expired()
            raise
