"""Numbered records into a stream of the embedded Kinesis, continuously."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

import msgspec

from kcl_host.local.service_error import ServiceError

_TURN_S: Final = 0.02


class Sink(Protocol):
    def put_records(self, stream_name: str, records: list[tuple[str, bytes]]) -> list[str]: ...


class Producer:
    """Writes `{"number":0,"at_ms":...}`, 1, 2, ... from `start()` to `stop()`, spread over the shards by number.

    A stream that is away for a while (being created, or deleted) costs time, never a number.
    """

    def __init__(self, sink: Sink, stream_name: str, *, records_per_s: float, limit: int | None = None) -> None:
        """`limit`: stop after so many records."""
        self.produced = 0
        self._sink = sink
        self._stream_name = stream_name
        self._records_per_s = records_per_s
        self._limit = limit
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
        self._sink.put_records(
            self._stream_name,
            [(str(number), msgspec.json.encode({"number": number, "at_ms": at_ms})) for number in numbers],
        )
        self.produced += count

    def _run(self) -> None:
        started_s = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - started_s) * self._records_per_s) + 1
            if self._limit is not None:
                due = min(due, self._limit)
            try:
                if due > self.produced:
                    self.put(due - self.produced)
            except ServiceError:
                pass  # the same numbers are tried again at the next turn
            if self.produced == self._limit:
                return
            self._stopping.wait(max(_TURN_S, 1 / self._records_per_s))
