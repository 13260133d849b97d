"""Numbered records into a stream of the embedded Kinesis, continuously."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from kcl_host.local.service_error import ServiceError

_TURN_S: Final = 0.02


class Sink(Protocol):
    def put_records(self, stream_name: str, records: list[tuple[str, bytes]]) -> list[str]: ...


class Producer:
    """Writes `{"number":0,"at_ms":...}`, 1, 2, ... from `start()` to `stop()`, spread over the shards by number.

    A stream that is away for a while (being created, or deleted) costs time, never a number.
    """

    def __init__(
        self, sink: Sink, stream_name: str, *, records_per_s: float, limit: int | None = None, aggregate: int = 1
    ) -> None:
        """`limit`: stop after so many records. `aggregate`: put so many into each KPL aggregate; 1: plain records."""
        self.produced = 0
        self._sink = sink
        self._stream_name = stream_name
        self._records_per_s = records_per_s
        self._limit = limit
        self._aggregate = aggregate
        self._new_aggregate = _aggregate_class() if aggregate > 1 else None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="local-producer")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread; `produced` is final afterwards. Fine when it was never started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the limit; False when it was not reached in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def put(self, count: int) -> None:
        """The next `count` records at once. Raises ServiceError; then none of them counts."""
        at_ms = int(time.time() * 1000)
        numbers = range(self.produced, self.produced + count)
        records = [(str(number), msgspec.json.encode({"number": number, "at_ms": at_ms})) for number in numbers]
        self._sink.put_records(self._stream_name, self._aggregated(records))
        self.produced += count

    def _aggregated(self, records: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """All records of an aggregate have the same key, since they must belong to one shard, now and later."""
        if self._new_aggregate is None:
            return records
        packed = []
        for first in range(0, len(records), self._aggregate):
            key, aggregate = records[first][0], self._new_aggregate()
            for _, data in records[first : first + self._aggregate]:
                aggregate.add_user_record(key, data)
            packed.append((key, aggregate.get_contents()[2]))
        return packed

    def _run(self) -> None:
        started_s = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - started_s) * self._records_per_s) + 1
            if self._limit is not None and due >= self._limit:
                due = self._limit
            else:
                due -= due % self._aggregate  # The last aggregate waits until it is full.
            try:
                if due > self.produced:
                    self.put(due - self.produced)
            except ServiceError:
                pass  # the same numbers are tried again at the next turn
            if self.produced == self._limit:
                return
            self._stopping.wait(max(_TURN_S, 1 / self._records_per_s))


def _aggregate_class() -> Callable[[], Any]:
    """AggRecord of aws-kinesis-agg, whose import puts two folders in front of sys.path."""
    path = list(sys.path)
    try:
        from aws_kinesis_agg.aggregator import AggRecord
    finally:
        sys.path[:] = path
    found: Callable[[], Any] = AggRecord
    return found
