"""Frames that are broken, late or cut off, on the way from the wire through the decoder into the fan-out source."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from kcl_host.aws.faults import Resource
from kcl_host.aws.subscribe import Subscription
from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.subscription import SILENCE_S
from kcl_host.local import event_stream
from kcl_host.model.sequence import InitialPosition, IteratorPosition
from kcl_host.retrieval.fanout import FanoutSource
from kcl_host.retrieval.handoff import Handoff
from tests.fakes.clock import FakeClock
from tests.unit.retrieval_rig import TRIM_HORIZON, new_clock

Wire = list[bytes]
"""As it arrives; an empty piece is the end of the stream. After the last piece nothing comes any more."""


def frame_of(number: int) -> bytes:
    record = {"SequenceNumber": str(number), "PartitionKey": "p", "Data": "eA==", "ApproximateArrivalTimestamp": 1.0}
    event = {"Records": [record], "ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0}
    return event_stream.event("SubscribeToShardEvent", json.dumps(event).encode())


def flipped(frame: bytes, place: int) -> bytes:
    return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]


class Body:
    def __init__(self, wire: Wire, clock: FakeClock) -> None:
        self._wire = wire
        self._clock = clock

    def read(self, timeout_s: float) -> bytes | None:
        if self._wire:
            return self._wire.pop(0)
        self._clock.advance(timeout_s)
        return None

    def close(self) -> None:
        self._wire = []


class Shard:
    """Five records, one in each frame. The first subscription's frames go through `damage`."""

    def __init__(self, damage: Callable[[list[bytes]], Wire]) -> None:
        self.clock = new_clock()
        self.calls: list[tuple[float, str | None]] = []
        self._damage = damage

    def prepare(self) -> None:
        raise AssertionError("not asked for")

    def subscribe(self, shard_id: str, position: IteratorPosition) -> Subscription:
        self.calls.append((self.clock.now_s, position.sequence_number))
        frames = [frame_of(n) for n in range(int(position.sequence_number or 0) + 1, 6)]
        wire = frames if len(self.calls) > 1 else self._damage(frames)
        return Subscription(Body(wire, self.clock), Resource("kinesis", "orders"))


@pytest.mark.parametrize(
    ("damage", "waits_s", "behind"),
    [
        (lambda frames: [*frames[:2], flipped(frames[2], -1), *frames[3:]], 5.0, "2"),
        (lambda frames: [*frames[:2], flipped(frames[2], 9), *frames[3:]], 5.0, "2"),
        (lambda frames: [*frames[:2], flipped(frames[2], 40), *frames[3:]], 5.0, "2"),
        (lambda frames: [*frames[:2], b"\xff" + frames[2][1:], *frames[3:]], 5.0, "2"),
        (lambda frames: [*frames[:2], frames[2][:60]], SILENCE_S, "2"),
        (lambda frames: [*frames[:2], frames[2][:2]], SILENCE_S, "2"),
        (lambda frames: [*frames[:2], frames[2][:60], b""], 5.0, "2"),
        (lambda frames: [*frames[:3], b""], 5.0, "3"),
        (lambda frames: [b"".join(frames)[:500]], SILENCE_S, None),
    ],
    ids=["CRC", "CRC of the head", "a byte inside", "length", "half a frame and silence", "half a length and silence",
         "half a frame and the end", "the end", "all in one piece, cut off"],
)  # fmt: skip
def test_what_was_damaged_is_read_again(
    damage: Callable[[list[bytes]], Wire], waits_s: float, behind: str | None
) -> None:
    shard = Shard(damage)
    settings = RetrievalSettings(mode="FANOUT", mode_reason="test")
    handoff = Handoff(max_batches=100, max_records=100, max_bytes=100)
    initial = InitialPosition(kind="TRIM_HORIZON")
    source = FanoutSource(shard, "shardId-0", handoff, settings, initial, shard.clock, random.Random(1))
    source.open(TRIM_HORIZON)
    turns = 0
    while shard.clock.now_s < 200:
        shard.clock.advance(source.run_once() or 0.0)
        turns += 1
    numbers = []
    while (batch := handoff.get(0.0)) is not None:
        numbers += [int(record.sequence_number) for record in batch.records]
    assert numbers == [1, 2, 3, 4, 5]
    (_, first), (again_s, position) = shard.calls[:2]
    assert first is None and waits_s - 1e-6 <= again_s - 100 <= waits_s + 0.75
    if behind is not None:
        assert position == behind
    assert turns < 60
