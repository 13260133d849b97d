"""What the tests of both record sources share, and one rig in which either reads the same shard."""

from __future__ import annotations

import random
import sys
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Literal, cast

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.decisions.position import drop_delivered
from kcl_host.model.records import Batch, Record
from kcl_host.model.sequence import ExtendedSequenceNumber, InitialPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard
from kcl_host.retrieval.fanout import FanoutSource
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.polling import PollingSource
from tests.fakes.clock import FakeClock
from tests.fakes.stream import InMemoryStream
from tests.fakes.subscriber import FanoutService, InMemorySubscriber
from tests.kpl import User, aggregate

LATEST = ExtendedSequenceNumber("LATEST")
TRIM_HORIZON = ExtendedSequenceNumber("TRIM_HORIZON")
START_S = 1_700_000_000.0
CHILD = ChildShard(shard_id="shardId-1", parent_shard_ids=("shardId-0",), hash_key_range=HashKeyRange(0, 1))
SHARD_0 = "shardId-000000000000"
Mode = Literal["POLLING", "FANOUT"]
MODES: tuple[Mode, ...] = ("POLLING", "FANOUT")
Bounds = tuple[int, int, int]


def new_clock() -> FakeClock:
    return FakeClock(100.0, START_S + 100.0)


def shard_0(first_number: int) -> Shard:
    return Shard(shard_id="shardId-0", hash_key_range=HashKeyRange(0, 1), starting_sequence_number=str(first_number))


def at(text: str) -> ExtendedSequenceNumber:
    """The position that `str` wrote."""
    number, _, sub = text.partition(":")
    return ExtendedSequenceNumber(number, int(sub or 0))


def packed(users: int, sequence_number: int = 1) -> Record:
    """An aggregate of so many user records of one byte."""
    data = b64encode(aggregate([User(b"x")] * users)).decode()
    return Record(data, "p", str(sequence_number), 0)


class HostClock:
    """The clock of a host that is `skew_s` ahead of Kinesis."""

    def __init__(self, kinesis: FakeClock, skew_s: float) -> None:
        self._kinesis = kinesis
        self._skew_s = skew_s

    def monotonic(self) -> float:
        return self._kinesis.monotonic()

    def wall(self) -> float:
        return self._kinesis.wall() + self._skew_s


class _Event:
    """Waiting for it is all that lets the time pass."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            assert timeout is not None, "nobody else could set it"
            self._clock.advance(max(timeout, 0.0))
        return self._is_set


class _Threads:
    """As much of ports.Threads as a subscriber needs."""

    def __init__(self, clock: FakeClock) -> None:
        self.event: Callable[[], _Event] = lambda: _Event(clock)
        self.lock = threading.Lock


class Reader:
    """The first shard, who reads it now, and a child that has seen what `seen` lists.

    What was produced, and seen, is text of positions in order: sequence number, and sub-sequence number unless 0.
    """

    def __init__(self, mode: Mode, *, skew_s: float = 0.0, bounds: Bounds = (4, 30_000, 8 * 2**20)) -> None:
        self.clock = FakeClock()
        self.stream = InMemoryStream(self.clock)
        self.fanout = FanoutService(self.stream, self.clock)
        self.produced: list[str] = []
        self.seen: list[str] = []
        self.turns = 0
        self.is_at_end = False
        self.children: tuple[ChildShard, ...] = ()
        self.mode: Mode = mode
        self._checkpoint = TRIM_HORIZON
        self._bounds = bounds
        self._host_clock = HostClock(self.clock, skew_s)
        self._handoff = self._new_handoff()

    def _new_handoff(self) -> Handoff:
        return Handoff(max_batches=self._bounds[0], max_records=self._bounds[1], max_bytes=self._bounds[2])

    # The producer

    def put(self, users: int = 0, data: bytes = b"plain") -> None:
        """A plain record, or an aggregate of so many user records."""
        _, number = self.stream.put(aggregate([User(b"x")] * users) if users else data)
        self.produced += [str(ExtendedSequenceNumber(number, sub)) for sub in range(users or 1)]

    # The worker

    def open(self, checkpoint: ExtendedSequenceNumber = TRIM_HORIZON, mode: Mode | None = None) -> None:
        """A new owner of the lease, or the first one, which begins at `checkpoint`. Raises as the source does."""
        self._handoff.stop(ShutdownReason.LEASE_LOST)
        self._handoff.close()
        self.mode, self._handoff = mode or self.mode, self._new_handoff()
        self._forget_above(checkpoint)
        settings = RetrievalSettings(mode=self.mode, mode_reason="test", consumer_name="readers")
        common: Any = (
            SHARD_0, self._handoff, settings, InitialPosition(kind="LATEST"), self._host_clock, random.Random(1),
        )  # fmt: skip
        if self.mode == "POLLING":
            self.source: PollingSource | FanoutSource = PollingSource(self.stream, *common)
        else:
            threads = cast(Any, _Threads(self.clock))
            subscriber = InMemorySubscriber(self.fanout, settings, threads, lambda: 0.0)
            self.source = FanoutSource(subscriber, *common, list_shards=self.stream.list_shards)
        self.source.open(checkpoint)

    def restart_child(self, checkpoint: ExtendedSequenceNumber) -> None:
        self._forget_above(checkpoint)
        self.source.reopen(checkpoint)

    def run(self, seconds: float, *, taking: bool = True) -> None:
        """Turns for so long, or a little longer; with `taking` the child gets each batch as it comes."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s <= until_s:
            pause_s = self.source.run_once()
            assert pause_s is not None
            self.clock.advance(pause_s)
            self.turns += 1
            if taking:
                self.take()

    def take(self, most: int = sys.maxsize) -> list[Batch]:
        """The child gets what is there, or so many batches of it."""
        batches: list[Batch] = []
        while len(batches) < most and (batch := self._handoff.get(0.0)) is not None:
            self.seen += [str(record.position) for record in drop_delivered(batch.records, self._checkpoint)]
            if batch.shard_end:
                self.is_at_end, self.children = True, batch.child_shards
            batches.append(batch)
        return batches

    def _forget_above(self, checkpoint: ExtendedSequenceNumber) -> None:
        self._checkpoint, self.is_at_end = checkpoint, False
        kept = self.seen.index(str(checkpoint)) + 1 if str(checkpoint) in self.seen else 0
        self.seen = self.seen[:kept]

    @property
    def reads(self) -> int:
        """Requests that Kinesis has got."""
        return self.stream.requests["get_records"] + self.fanout.requests["subscribe"]
