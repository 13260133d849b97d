"""The bounded queue between the source thread and the consumer thread of one shard, and the reasons to stop.

Shared state: everything below, guarded by `_changed` (one condition, notified on every change). One thread puts, one
thread gets; any thread may stop. The level of the eventfd is part of that state and only changes under the lock, so it
cannot disagree with the queue: it is readable exactly while a batch, a stop reason or a failure is there.

Room is judged before a fetch, not after it, so the queue may hold one answer more than the bounds say, and an empty
queue always has room: a single answer above the bounds must pass, or the shard would stand still for ever.
Source: KCL 3.5.1 PrefetchRecordsPublisher.PrefetchCounters; spec retrieval 3.5. Where we differ: an empty batch carries
nothing but the lag, so it does not count, and a newer one takes its place at the tail. A shard whose child is being
restarted goes on reading until there is something to keep, so its iterator stays young (DESIGN.md 4.1).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from kcl_host.decisions.consumer_state import ShutdownReason, stronger
from kcl_host.model.records import Batch
from kcl_host.ports import Signal


class EventFd:
    """A Signal by the kernel."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class Handoff:
    """`signal` is set exactly while there is something for the consumer; the handoff owns and closes it.

    Memory of one shard. Queued is at most the bounds and one answer; another answer is with the consumer. An answer of
    Kinesis has at most 10,000 records and 10 MiB. `max_bytes` counts payload as Kinesis does; here it is base64 text,
    4/3 of it, and 0.3 KB for each record beside. So with the defaults (8 MiB, 30,000 records) 18 MiB of payload and
    40,000 records are queued at most, which is 37 MB, and 17 MB are with the consumer. While aggregates are taken apart
    there is the answer itself too, 14 MB, and what is parsed of one aggregate: its bytes, and 70 for each user record,
    so 128 MB where 10 MiB hold 1.7 million user records without data.
    """

    def __init__(
        self, *, max_batches: int, max_records: int, max_bytes: int, new_signal: Callable[[], Signal] = EventFd
    ) -> None:
        self._max_batches = max_batches
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._queue: deque[Batch] = deque()
        self._batches = 0
        self._records = 0
        self._bytes = 0
        self._stop_reason: ShutdownReason | None = None
        self._failure: BaseException | None = None
        self._clears = 0
        self._closed = False
        self._readable = False
        self._signal = new_signal()
        self.on_stop: Callable[[], None] = lambda: None
        """Called after each `stop` and after the close, without the lock, by whoever said so: to end a read."""

    def __repr__(self) -> str:
        reason = self._stop_reason.name if self._stop_reason else "-"
        return f"<Handoff batches={self._batches} records={self._records} bytes={self._bytes} stop={reason}>"

    @property
    def wake_fd(self) -> int:
        """Readable while there is something for the consumer; poll it, never read it. Gone after `close`."""
        return self._signal.fd

    # The source

    def may_fetch(self) -> bool:
        """True when another batch may be fetched: nothing is queued, or all three bounds are free."""
        with self._changed:
            return self._has_room()

    def offer(self, batch: Batch) -> bool:
        """Queues the batch without waiting; False when there is no room, or the handoff is closed."""
        with self._changed:
            if self._closed or not (self._has_room() or _carries_nothing(batch)):
                return False
            self._append(batch)
            return True

    def put(self, batch: Batch) -> bool:
        """Waits for room, then queues the batch; False when the handoff was closed or cleared meanwhile."""
        with self._changed:
            clears = self._clears
            self._changed.wait_for(lambda: self._closed or self._has_room())
            if self._closed or self._clears != clears:
                return False
            self._append(batch)
            return True

    def fail(self, error: BaseException) -> None:
        """The source has died and no batch will follow; the first failure stays."""
        with self._changed:
            self._failure = self._failure or error
            self._tell()

    # The consumer

    def get(self, timeout_s: float) -> Batch | None:
        """The next batch, which leaves the bounds at once. Waits for it, or for any other reason to wake.

        None: there is none within the time, or a stop reason, a failure or the close came instead.
        """
        with self._changed:
            if timeout_s > 0:
                self._changed.wait_for(lambda: self._has_news() or self._closed, timeout_s)
            if not self._queue:
                return None
            batch = self._queue.popleft()
            self._count(batch, -1)
            self._tell()
            return batch

    def peek_ready(self) -> bool:
        """True when `get` has a batch to give."""
        with self._changed:
            return bool(self._queue)

    def clear(self) -> None:
        """Throws away what was fetched, and the failure of the source: a new source begins. Stop reasons stay."""
        with self._changed:
            self._drop_all()
            self._failure = None
            self._clears += 1
            self._tell()

    def close(self) -> None:
        """The consumer's last act: nothing can be put any more, whoever waits is woken, the descriptor is closed."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._drop_all()
            self._tell()
            self._signal.close()
        self.on_stop()

    # Anybody

    @property
    def closed(self) -> bool:
        with self._changed:
            return self._closed

    @property
    def stop_reason(self) -> ShutdownReason | None:
        """The strongest reason so far."""
        with self._changed:
            return self._stop_reason

    @property
    def failure(self) -> BaseException | None:
        """Why the source died; None while it lives."""
        with self._changed:
            return self._failure

    def stop(self, reason: ShutdownReason) -> None:
        """Asks the consumer to end. What is queued stays; the consumer does not take it any more."""
        with self._changed:
            self._stop_reason = stronger(self._stop_reason, reason)
            self._tell()
        self.on_stop()

    # Under the lock

    def _has_room(self) -> bool:
        return self._batches == 0 or (
            self._batches < self._max_batches and self._records < self._max_records and self._bytes < self._max_bytes
        )

    def _has_news(self) -> bool:
        return bool(self._queue) or self._stop_reason is not None or self._failure is not None

    def _append(self, batch: Batch) -> None:
        if self._queue and _carries_nothing(batch) and _carries_nothing(self._queue[-1]):
            self._queue[-1] = batch
        else:
            self._queue.append(batch)
            self._count(batch, 1)
        self._tell()

    def _count(self, batch: Batch, sign: int) -> None:
        if not _carries_nothing(batch):
            self._batches += sign
            self._records += sign * len(batch.records)
            self._bytes += sign * batch.payload_bytes

    def _drop_all(self) -> None:
        self._queue.clear()
        self._batches = self._records = self._bytes = 0

    def _tell(self) -> None:
        """Brings the level of the eventfd in line with the state, and wakes whoever waits."""
        readable = self._has_news()
        if readable != self._readable and not self._closed:
            self._readable = readable
            if readable:
                self._signal.set()
            else:
                self._signal.clear()
        self._changed.notify_all()


def _carries_nothing(batch: Batch) -> bool:
    return not batch.records and not batch.shard_end
