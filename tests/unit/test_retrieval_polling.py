"""One shard read by polling, on a fake shard and a fake clock (retrieval 3; DESIGN.md 4 and 4.1)."""

from __future__ import annotations

import logging
import random
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable

import pytest

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.position import drop_delivered
from kcl_host.errors import (
    AccessError,
    ExpiredIterator,
    InvalidPosition,
    KclHostError,
    StreamNotFound,
    Throttled,
    Unavailable,
)
from kcl_host.model.records import Batch, Record, RecordsPage
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber, InitialPosition, IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard, ShardFilter, StreamSummary
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.polling import PollingSource
from kcl_host.retrieval.source import REST_S
from tests.fakes.clock import FakeClock
from tests.kpl import User, aggregate
from tests.unit.retrieval_rig import CHILD, LATEST, START_S, TRIM_HORIZON, new_clock, shard_0

AT_TIMESTAMP = ExtendedSequenceNumber("AT_TIMESTAMP")


class Shard0:
    """A stream of one shard. An iterator is (index of the next record, when it was given out), as text."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.records: list[Record] = []
        self.first_number = 0
        self.closed_with: tuple[ChildShard, ...] | None = None
        self.latency_s = 0.0
        self.max_page = 10_000
        self.failures: list[KclHostError] = []
        """Raised by the next calls, one each."""
        self.failing: KclHostError | None = None
        """Raised by every call."""
        self.invalid_pages = 0
        self.during_read: Callable[[], None] = lambda: None
        self.reads: list[float] = []
        self.positions: list[IteratorPosition] = []
        self.listings = 0

    def put(self, *numbers: int, size_bytes: int = 8) -> None:
        arrival_ms = int(self.clock.wall() * 1000)
        self.records += [
            Record(
                data="x" * size_bytes,
                partition_key="p",
                sequence_number=str(n),
                approximate_arrival_timestamp=arrival_ms,
            )
            for n in numbers
        ]

    def put_aggregate(self, number: int, *users: User | bytes, keys: tuple[str, ...] = ("k",)) -> None:
        data = aggregate([user if isinstance(user, User) else User(user) for user in users], keys)
        self.put(number)
        self.records[-1].data = b64encode(data).decode()

    def _maybe_fail(self) -> None:
        self.clock.now_s += self.latency_s
        if self.failures:
            raise self.failures.pop(0)
        if self.failing:
            raise self.failing

    def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
        assert shard_id == "shardId-0"
        self.positions.append(position)
        self._maybe_fail()
        records, timestamp_s = self.records, position.timestamp_s
        number = int(position.sequence_number or self.first_number)
        if number < self.first_number:
            raise InvalidPosition
        below = {
            "TRIM_HORIZON": lambda r: False,
            "LATEST": lambda r: True,
            "AT_TIMESTAMP": lambda r: r.approximate_arrival_timestamp < (timestamp_s or 0) * 1000,
            "AT_SEQUENCE_NUMBER": lambda r: int(r.sequence_number) < number,
            "AFTER_SEQUENCE_NUMBER": lambda r: int(r.sequence_number) <= number,
        }[position.type]
        return f"{sum(map(below, records))}@{self.clock.now_s}"

    def get_records(self, iterator: str, limit: int) -> RecordsPage:
        self.reads.append(self.clock.now_s)
        self._maybe_fail()
        index, given_s = int(iterator.split("@")[0]), float(iterator.split("@")[1])
        if self.clock.now_s - given_s > 300:
            raise ExpiredIterator
        page = self.records[index : index + min(limit, self.max_page)]
        end = index + len(page)
        self.during_read()
        if self.invalid_pages:
            self.invalid_pages -= 1
            return RecordsPage(records=page, next_iterator=None, millis_behind_latest=0)
        ended = self.closed_with is not None and end == len(self.records)
        return RecordsPage(
            records=page,
            next_iterator=None if ended else f"{end}@{self.clock.now_s}",
            millis_behind_latest=1000 * (len(self.records) - end),
            child_shards=(self.closed_with or ()) if ended else (),
            payload_bytes=sum(len(r.data) for r in page),
        )

    def describe(self) -> StreamSummary:
        raise AssertionError("not asked for")

    def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
        self.listings += 1
        self._maybe_fail()
        return [shard_0(self.first_number)]


class Rig:
    """A source, its shard and a consumer that takes what is there."""

    def __init__(
        self,
        initial: InitialPosition | None = None,
        *,
        idle_s: float = 1.5,
        max_records: int = 10_000,
        bounds: tuple[int, int, int] = (4, 30_000, 8 * 2**20),
        hash_key_range: HashKeyRange | None = None,
    ) -> None:
        self.clock = new_clock()
        self.shard = Shard0(self.clock)
        self.handoff = Handoff(max_batches=bounds[0], max_records=bounds[1], max_bytes=bounds[2])
        self.settings = RetrievalSettings(
            mode="POLLING", mode_reason="test", idle_between_reads_s=idle_s, max_records=max_records
        )
        self.source = PollingSource(
            self.shard,
            "shardId-0",
            self.handoff,
            self.settings,
            initial or InitialPosition(kind="LATEST"),
            self.clock,
            random.Random(1),
            {"worker": "w"},
            hash_key_range,
        )

    def turn(self) -> float:
        pause_s = self.source.run_once()
        assert pause_s is not None
        return pause_s

    def run(self, seconds: float) -> None:
        """Turns for so long, as the runtime gives them."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s + (pause_s := self.turn()) <= until_s:
            self.clock.now_s += pause_s
        self.clock.now_s = max(until_s, self.clock.now_s)

    def take(self) -> list[Batch]:
        batches = []
        while (batch := self.handoff.get(0.0)) is not None:
            batches.append(batch)
        return batches

    def take_numbers(self) -> list[int]:
        return [int(r.sequence_number) for batch in self.take() for r in batch.records]

    def take_above(self, checkpoint: ExtendedSequenceNumber) -> list[str]:
        """Positions of the user records, as a consumer at this checkpoint passes them on."""
        return [str(r.position) for batch in self.take() for r in drop_delivered(batch.records, checkpoint)]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def at(number: int, sub: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), sub)


# Positions


@pytest.mark.parametrize(
    ("checkpoint", "asked", "numbers"),
    [
        (TRIM_HORIZON, IteratorPosition(type="TRIM_HORIZON"), [1, 2, 3, 9]),
        (LATEST, IteratorPosition(type="LATEST"), [9]),
        (AT_TIMESTAMP, IteratorPosition(type="AT_TIMESTAMP", timestamp_s=START_S + 150), [3, 9]),
        (at(2), IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="2"), [2, 3, 9]),
    ],
)
def test_every_position(checkpoint: ExtendedSequenceNumber, asked: IteratorPosition, numbers: list[int]) -> None:
    rig = Rig(InitialPosition(kind="AT_TIMESTAMP", timestamp_s=START_S + 150))
    rig.shard.put(1, 2)
    rig.clock.now_s = 200.0
    rig.shard.put(3)
    rig.source.open(checkpoint)
    rig.shard.put(9)
    rig.run(3)
    assert rig.shard.positions == [asked]
    assert rig.take_numbers() == numbers
    assert rig.source.first_obtained == str(numbers[0])


def test_a_timestamp_that_the_configuration_lost_is_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.shard.put(1)
    rig.source.open(AT_TIMESTAMP)
    assert rig.shard.positions == [IteratorPosition(type="TRIM_HORIZON")]
    assert [r.__dict__["action"] for r in caplog.records] == ["timestamp_missing"]


def test_open_raises_what_the_consumer_must_repeat(rig: Rig) -> None:
    rig.shard.failures = [Throttled(), Unavailable(), AccessError(), InvalidPosition()]
    for error in list(rig.shard.failures):
        with pytest.raises(type(error)):
            rig.source.open(LATEST)
        assert rig.turn() == REST_S
    rig.source.open(LATEST)
    rig.shard.put(1)
    rig.run(0)
    assert rig.take_numbers() == [1]


# Pacing


def test_the_idle_time_lies_between_answer_and_request(rig: Rig) -> None:
    rig.shard.latency_s = 0.5
    rig.source.open(TRIM_HORIZON)
    rig.run(7)
    assert rig.shard.reads == pytest.approx([100.5, 102.5, 104.5, 106.5])


def test_a_turn_that_comes_early_reads_nothing(rig: Rig) -> None:
    rig.source.open(TRIM_HORIZON)
    assert rig.turn() == 1.5
    rig.clock.now_s += 1.0
    assert rig.turn() == 0.5
    assert len(rig.shard.reads) == 1


def test_slow_answers_change_nothing_but_the_time(rig: Rig) -> None:
    rig.source.open(TRIM_HORIZON)
    rig.shard.latency_s = 29.0
    rig.shard.put(1, 2)
    rig.run(100)
    rig.shard.put(3)
    rig.run(100)
    assert rig.take_numbers() == [1, 2, 3]


def test_empty_reads_travel_as_the_latest_lag_and_do_not_stop_the_reading(rig: Rig) -> None:
    rig.source.open(LATEST)
    rig.run(60)
    assert len(rig.shard.reads) == 41
    assert rig.take() == [Batch(records=[], millis_behind_latest=0)]


# Prefetch


@pytest.mark.parametrize(
    ("bounds", "size_bytes", "page", "reads"),
    [
        ((4, 10**6, 10**9), 1, 10, 4),
        ((100, 30, 10**9), 1, 10, 3),
        ((100, 25, 10**9), 1, 10, 3),
        ((100, 10**6, 1000), 50, 10, 2),
        ((100, 10**6, 1001), 50, 10, 3),
        ((100, 10**6, 10), 5000, 1, 1),
    ],
    ids=["batches", "records", "records, overshoot", "bytes", "bytes, overshoot", "a large record"],
)
def test_prefetch_bounds(bounds: tuple[int, int, int], size_bytes: int, page: int, reads: int) -> None:
    rig = Rig(bounds=bounds, max_records=page)
    rig.shard.put(*range(1, 1001), size_bytes=size_bytes)
    rig.source.open(TRIM_HORIZON)
    rig.run(120)
    assert len(rig.shard.reads) == reads
    assert rig.turn() == 1.5
    assert rig.handoff.get(0.0) is not None
    rig.run(0)
    assert len(rig.shard.reads) == reads + 1
    assert rig.take_numbers()[-1] == (reads + 1) * page


def test_a_batch_says_what_it_is() -> None:
    rig = Rig(max_records=2)
    rig.shard.put(1, 2, 3, size_bytes=7)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    batch = rig.handoff.get(0.0)
    assert batch == Batch(
        records=rig.shard.records[:2], millis_behind_latest=1000, payload_bytes=14, last_sequence_number="2"
    )


# Failures


def test_an_expired_iterator_is_replaced_after_the_last_record_fetched() -> None:
    rig = Rig(bounds=(1, 10**6, 10**9), max_records=2)
    rig.shard.put(1, 2, 3)
    rig.source.open(TRIM_HORIZON)
    rig.run(400)
    assert len(rig.shard.reads) == 1
    assert rig.take_numbers() == [1, 2]
    rig.run(1)
    assert rig.shard.positions[1:] == [IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number="2")]
    assert rig.take_numbers() == [3]


@pytest.mark.parametrize("refusal", [ExpiredIterator, InvalidPosition])
def test_a_refused_first_read_begins_at_the_checkpoint_again(rig: Rig, refusal: type[KclHostError]) -> None:
    """Java goes AFTER the checkpoint and loses the rest of the aggregate that the checkpoint lies in."""
    rig.shard.put(5, 6)
    rig.source.open(at(5, 1))
    rig.shard.failures = [refusal()]
    rig.run(1)
    assert rig.shard.positions == [IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="5")] * 2
    assert rig.take_numbers() == [5, 6]


def test_latest_that_expires_before_the_first_record_loses_nothing(rig: Rig) -> None:
    rig.shard.put(1)
    rig.clock.now_s += 360
    rig.source.open(LATEST)
    rig.shard.failing = Unavailable()
    rig.run(100)
    rig.shard.put(2)
    rig.run(250)
    rig.shard.failing = None
    rig.run(30)
    rig.shard.put(3)
    rig.run(5)
    assert rig.take_numbers() == [2, 3]
    assert [p.type for p in rig.shard.positions] == ["LATEST", "AT_TIMESTAMP"]


def test_iterators_that_are_refused_again_and_again_are_not_asked_for_in_a_storm(rig: Rig) -> None:
    rig.source.open(LATEST)
    rig.shard.failing = InvalidPosition()
    rig.run(60)
    assert len(rig.shard.positions) + len(rig.shard.reads) < 15
    rig.shard.failing = None
    rig.shard.put(1)
    rig.run(20)
    assert rig.take_numbers() == [1]


@pytest.mark.parametrize("idle_s", [0.2, 1.5])
def test_throttled_for_a_minute(idle_s: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(idle_s=idle_s)
    rig.source.open(TRIM_HORIZON)
    rig.shard.put(*range(1, 11))
    rig.shard.failing = Throttled("slow down")
    rig.run(60)
    gaps = [b - a for a, b in zip(rig.shard.reads, rig.shard.reads[1:], strict=False)]
    assert len(rig.shard.reads) <= 14
    assert gaps[0] < gaps[2] < gaps[3]
    assert min(gaps) >= idle_s - 1e-6
    assert max(gaps) <= 15
    assert [r.__dict__["action"] for r in caplog.records] == ["reads_throttled"]

    rig.shard.failing = None
    rig.run(16)
    assert rig.take_numbers() == list(range(1, 11))
    rig.run(12)
    tail = [b - a for a, b in zip(rig.shard.reads, rig.shard.reads[1:], strict=False)][-3:]
    assert tail == pytest.approx([idle_s] * 3)
    facts = caplog.records[-1].__dict__
    assert len(caplog.records) == 2
    assert (facts["action"], facts["after"], facts["shard"], facts["worker"]) == (
        "reads_recovered", "throttled", "shardId-0", "w",
    )  # fmt: skip
    assert facts["failures"] == len(gaps) + 1


@pytest.mark.parametrize(
    ("error", "level"), [(AccessError("denied"), logging.ERROR), (Unavailable("500"), logging.WARNING)]
)
def test_long_trouble_is_said_when_it_begins_and_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture, error: KclHostError, level: int
) -> None:
    rig.source.open(TRIM_HORIZON)
    rig.shard.failing = error
    rig.run(600)
    assert 8 <= len(caplog.records) <= 11
    assert {r.levelno for r in caplog.records} == {level}
    assert caplog.records[-1].__dict__["failures"] > 30


def test_trouble_that_comes_and_goes_is_one_story(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.source.open(TRIM_HORIZON)
    for _ in range(12):
        rig.shard.failures = [Throttled()]
        rig.run(5)
    rig.run(20)
    actions = [r.__dict__["action"] for r in caplog.records]
    assert actions == ["reads_throttled", "reads_recovered"]
    assert caplog.records[-1].__dict__["failures"] == 12


def test_faults_lose_nothing_and_repeat_nothing(rig: Rig) -> None:
    rng = random.Random(7)
    rig.source.open(TRIM_HORIZON)
    kinds = [Throttled, Unavailable, ExpiredIterator, InvalidPosition, AccessError]
    produced = 0
    seen: list[int] = []
    for _ in range(300):
        produced += 1
        rig.shard.put(produced)
        if rng.random() < 0.5:
            rig.shard.failures = [rng.choice(kinds)() for _ in range(rng.randrange(4))]
        rig.run(rng.random() * 10)
        if rng.random() < 0.7:
            seen += rig.take_numbers()
    rig.shard.failures = []
    rig.run(30)
    seen += rig.take_numbers()
    rig.run(30)
    seen += rig.take_numbers()
    assert seen == list(range(1, produced + 1))


def test_an_answer_that_makes_no_sense_is_asked_for_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.shard.put(1)
    rig.source.open(TRIM_HORIZON)
    rig.shard.invalid_pages = 3
    rig.run(60)
    assert rig.take_numbers() == [1]
    assert len(rig.shard.positions) == 1
    assert [r.__dict__["action"] for r in caplog.records] == ["reads_invalid"]


def test_a_fault_of_our_own_is_not_hidden(rig: Rig) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    rig.shard.during_read = broken
    rig.source.open(TRIM_HORIZON)
    with pytest.raises(ZeroDivisionError):
        rig.source.run_once()


# A stream that was made anew


@pytest.mark.parametrize("iterator", [ExpiredIterator, InvalidPosition])
def test_a_stream_made_anew_is_not_read_under_the_lease_of_the_old_one(
    rig: Rig, iterator: type[KclHostError], caplog: pytest.LogCaptureFixture
) -> None:
    """Its shards have the same ids, and its numbers are higher. Java asks for the old position for ever."""
    rig.shard.put(1, 2)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    assert rig.take_numbers() == [1, 2]
    rig.shard.first_number, rig.shard.records = 50, []
    rig.shard.put(51, 52)
    rig.shard.failures = [iterator()]
    rig.run(60)
    assert rig.take() == [Batch(records=[], millis_behind_latest=None, shard_end=True)]
    assert [r.__dict__["action"] for r in caplog.records if r.levelno >= logging.WARNING][-1] == "shard_gone"
    rig.source.reopen(at(2))
    rig.run(60)
    assert rig.take() == [Batch(records=[], millis_behind_latest=None, shard_end=True)]


def test_a_first_position_that_is_refused_does_not_end_the_shard(rig: Rig) -> None:
    """The configuration may name another stream by mistake, and the end would cost the right one its checkpoints."""
    rig.shard.first_number = 50
    with pytest.raises(InvalidPosition):
        rig.source.open(at(2))
    assert rig.take() == [] and rig.turn() == REST_S and rig.shard.listings == 0


@pytest.mark.parametrize("fate", [StreamNotFound, Throttled])
def test_a_listing_that_fails_decides_only_if_the_stream_is_gone(rig: Rig, fate: type[KclHostError]) -> None:
    rig.shard.put(1)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    rig.take()
    rig.shard.failures = [InvalidPosition(), fate()]
    rig.shard.put(2)
    rig.run(10)
    batches = rig.take()
    assert batches[0].shard_end == (fate is StreamNotFound) and rig.shard.listings == 1


# Shard end


def test_the_last_batch_names_the_child_shards_and_no_read_follows(rig: Rig) -> None:
    rig.shard.put(1)
    rig.shard.closed_with = (CHILD,)
    rig.source.open(TRIM_HORIZON)
    rig.run(60)
    (last,) = rig.take()
    assert (last.shard_end, last.child_shards, len(last.records)) == (True, (CHILD,), 1)
    rig.run(600)
    assert len(rig.shard.reads) == 1
    assert rig.take() == []


@pytest.mark.parametrize("when", ["open", "read", "reposition"])
def test_a_shard_that_is_gone_ends_without_child_shards(rig: Rig, when: str) -> None:
    if when == "open":
        rig.shard.failures = [StreamNotFound()]
    rig.source.open(LATEST)
    rig.shard.failures = {
        "open": [],
        "read": [StreamNotFound()],
        "reposition": [ExpiredIterator(), StreamNotFound()],
    }[when]
    rig.run(60)
    assert rig.take() == [Batch(records=[], millis_behind_latest=None, shard_end=True)]
    assert rig.turn() == REST_S


def test_a_lease_at_shard_end_has_nothing_to_read(rig: Rig) -> None:
    rig.source.open(AT_SHARD_END)
    rig.run(60)
    assert [b.shard_end for b in rig.take()] == [True]
    assert not rig.shard.positions


# Restarts (DESIGN.md 4.1)


def test_restart_under_latest_before_the_first_record_keeps_the_live_iterator(rig: Rig) -> None:
    rig.source.open(LATEST)
    rig.run(10)
    rig.source.reopen(LATEST)
    rig.shard.put(1)
    rig.source.reopen(LATEST)
    rig.run(10)
    assert len(rig.shard.positions) == 1
    assert rig.take_numbers() == [1]


def test_the_live_iterator_stays_alive_while_no_child_takes_anything(rig: Rig) -> None:
    rig.source.open(LATEST)
    rig.run(3600)
    rig.source.reopen(LATEST)
    rig.shard.put(1)
    rig.run(10)
    assert len(rig.shard.positions) == 1
    assert rig.take_numbers() == [1]


def test_restart_under_latest_after_the_first_record_delivers_it_again(rig: Rig) -> None:
    rig.shard.put(1)
    rig.source.open(LATEST)
    rig.shard.put(2, 3)
    rig.run(2)
    assert rig.take_numbers() == [2, 3]
    rig.shard.put(4)
    rig.run(2)
    for _ in range(2):
        rig.source.reopen(LATEST)
        rig.run(2)
        assert rig.take_numbers() == [2, 3, 4]
    assert rig.source.first_obtained == "2"


def test_restart_from_a_checkpoint_repeats_only_what_lies_above_it() -> None:
    rig = Rig(max_records=1)
    rig.shard.put(1, 2, 3, 4)
    rig.source.open(TRIM_HORIZON)
    rig.run(10)
    assert rig.take_numbers() == [1, 2, 3, 4]
    rig.source.reopen(at(2))
    rig.run(20)
    batches = rig.take()
    kept = [r for b in batches for r in drop_delivered(b.records, at(2))]
    assert [int(r.sequence_number) for r in kept] == [3, 4]


def test_what_was_fetched_for_the_old_child_never_reaches_the_new_one(rig: Rig) -> None:
    """The consumer re-opens the source while a read is under way."""
    rig.shard.put(1, 2)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    rig.shard.put(3)
    rig.clock.now_s += 2
    rig.shard.during_read = lambda: rig.source.reopen(TRIM_HORIZON)
    assert rig.turn() == 0.0
    rig.shard.during_read = lambda: None
    assert rig.take() == []
    rig.run(5)
    assert rig.take_numbers() == [1, 2, 3]


def test_a_read_under_way_is_kept_when_the_live_iterator_is(rig: Rig) -> None:
    rig.source.open(LATEST)
    rig.shard.put(1)
    rig.shard.during_read = lambda: rig.source.reopen(LATEST)
    rig.turn()
    assert rig.take_numbers() == [1]


@pytest.mark.parametrize("fate", [Throttled, Unavailable, ExpiredIterator, StreamNotFound])
def test_a_failure_of_the_old_read_does_not_touch_the_new_one(rig: Rig, fate: type[KclHostError]) -> None:
    rig.shard.put(1)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)

    def reopen_and_fail() -> None:
        rig.source.reopen(TRIM_HORIZON)
        raise fate

    rig.clock.now_s += 2
    rig.shard.during_read = reopen_and_fail
    assert rig.turn() == 0.0
    rig.shard.during_read = lambda: None
    rig.run(1)
    assert rig.take_numbers() == [1]


def test_a_restart_waits_for_nothing_but_the_read_budget(rig: Rig) -> None:
    rig.shard.put(1)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    rig.source.reopen(TRIM_HORIZON)
    assert rig.turn() == 0.0
    assert rig.turn() == pytest.approx(0.2)
    rig.clock.now_s += 0.2
    rig.turn()
    assert rig.take_numbers() == [1]


def test_a_restart_does_not_cut_the_back_off_short(rig: Rig) -> None:
    rig.source.open(TRIM_HORIZON)
    rig.shard.failing = Throttled()
    rig.run(20)
    reads = len(rig.shard.reads)
    for _ in range(50):
        rig.source.reopen(TRIM_HORIZON)
        rig.turn()
    assert len(rig.shard.reads) == reads


def test_a_child_restarted_at_shard_end_comes_to_the_end_again(rig: Rig) -> None:
    rig.shard.put(1)
    rig.shard.closed_with = (CHILD,)
    rig.source.open(TRIM_HORIZON)
    for _ in range(2):
        rig.run(5)
        (last,) = rig.take()
        assert last.shard_end and last.child_shards == (CHILD,) and len(last.records) == 1
        rig.source.reopen(TRIM_HORIZON)


@pytest.mark.parametrize("checkpoint", [LATEST, AT_SHARD_END])
def test_an_end_without_records_is_told_again(rig: Rig, checkpoint: ExtendedSequenceNumber) -> None:
    rig.shard.closed_with = (CHILD,)
    rig.source.open(LATEST)
    rig.run(5)
    end = Batch(records=[], millis_behind_latest=None, shard_end=True, child_shards=(CHILD,))
    assert [(b.shard_end, b.child_shards) for b in rig.take()] == [(True, (CHILD,))]
    rig.source.reopen(checkpoint)
    assert rig.take() == [end]


# Life


def test_a_closed_handoff_ends_the_source(rig: Rig) -> None:
    rig.source.open(TRIM_HORIZON)
    assert not rig.source.closed
    rig.handoff.close()
    assert rig.source.closed
    assert rig.source.run_once() is None
    assert "closed" in repr(rig.source)


def test_a_handoff_closed_during_a_read(rig: Rig) -> None:
    rig.shard.put(1)
    rig.source.open(TRIM_HORIZON)
    rig.shard.during_read = rig.handoff.close
    assert rig.source.run_once() == 0.0
    assert rig.source.run_once() is None
    assert rig.source.first_obtained is None


def test_restarts_at_any_moment_from_another_thread_lose_nothing() -> None:
    """Real threads: the consumer re-opens under LATEST again and again while the source reads."""
    rig = Rig(idle_s=0.2, bounds=(2, 10**6, 10**9), max_records=3)
    rig.source.open(LATEST)
    rig.shard.put(*range(1, 51))
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set() and rig.source.run_once() is not None:
            rig.clock.now_s += 0.25

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(30):
            seen: list[int] = []
            while len(seen) < 20:
                batch = rig.handoff.get(20.0)
                assert batch is not None
                seen += [int(r.sequence_number) for r in batch.records]
            assert seen == list(range(1, len(seen) + 1))
            rig.source.reopen(LATEST)
    finally:
        stop.set()
        thread.join(20.0)
        rig.handoff.close()


# KPL aggregates (retrieval 5, consumer-lifecycle 10)


def test_user_records_come_in_place_of_their_aggregate(rig: Rig) -> None:
    rig.shard.put(1)
    rig.shard.put_aggregate(2, b"a", b"bc")
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    (batch,) = rig.take()
    assert [str(r.position) for r in batch.records] == ["1", "2", "2:1"]
    assert [r.data for r in batch.records[1:]] == ["YQ==", "YmM="]
    arrived_ms = rig.shard.records[1].approximate_arrival_timestamp
    assert {r.approximate_arrival_timestamp for r in batch.records} == {arrived_ms}
    assert batch.payload_bytes == len(b64decode("x" * 8)) + len(b"abc")
    assert batch.last_sequence_number == "2"


def test_the_bounds_of_the_handoff_count_user_records() -> None:
    rig = Rig(bounds=(100, 30, 10**9), max_records=1)
    for number in range(1, 11):
        rig.shard.put_aggregate(number, *[b"x"] * 12)
    rig.source.open(TRIM_HORIZON)
    rig.run(60)
    assert len(rig.shard.reads) == 3


def test_an_aggregate_with_nothing_for_this_shard_is_left_behind() -> None:
    rig = Rig(hash_key_range=HashKeyRange(0, 0))
    rig.shard.put_aggregate(1, b"a", b"b")
    rig.source.open(at(1, 1))
    rig.run(2)
    assert rig.take() == [Batch(records=[], millis_behind_latest=0)]
    rig.shard.failures = [ExpiredIterator()]
    rig.shard.put(2)
    rig.run(5)
    assert rig.shard.positions[1:] == [IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number="1")]
    assert rig.take_numbers() == [2]


def test_user_records_that_cannot_be_told_are_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.shard.put_aggregate(7, b"a", User(b"b", key=5), b"c")
    rig.shard.put(8)
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    assert rig.take_above(TRIM_HORIZON) == ["7", "8"]
    (line,) = caplog.records
    facts = line.__dict__
    assert line.levelno == logging.ERROR
    assert (facts["action"], facts["sequence_number"], facts["kept"], facts["lost"], facts["shard"]) == (
        "aggregate_unreadable", "7", 1, 2, "shardId-0",
    )  # fmt: skip


def huge(rig: Rig) -> list[str]:
    """The positions of an answer that expands to 25,002 user records in three pieces, the shard's last."""
    rig.shard.put_aggregate(1, *[b"x"] * 12_500)
    rig.shard.put(2)
    rig.shard.put_aggregate(3, *[b"x"] * 12_501)
    rig.shard.closed_with = (CHILD,)
    return [str(at(1, n)) for n in range(12_500)] + ["2"] + [str(at(3, n)) for n in range(12_501)]


def test_an_answer_that_expands_hugely_is_handed_over_in_pieces_as_there_is_room() -> None:
    rig = Rig(bounds=(4, 15_000, 10**9))
    positions = huge(rig)
    rig.source.open(TRIM_HORIZON)
    rig.run(1)  # less than the idle time between reads
    first = rig.take()
    assert [len(b.records) for b in first] == [10_000, 10_000]
    rig.run(0)
    (last,) = rig.take()
    assert len(last.records) == 5_002
    assert [b.shard_end for b in (*first, last)] == [False, False, True]
    assert [b.child_shards for b in (*first, last)] == [(), (), (CHILD,)]
    assert [str(r.position) for b in (*first, last) for r in b.records] == positions
    assert sum(b.payload_bytes for b in (*first, last)) == 25_001 + 6
    assert len(rig.shard.reads) == 1


def test_pieces_that_wait_longer_than_an_iterator_lives_are_followed_by_what_comes_after_them() -> None:
    rig = Rig(bounds=(1, 10**6, 10**9))
    positions = huge(rig)
    rig.shard.closed_with = None
    rig.source.open(TRIM_HORIZON)
    taken = []
    for _ in range(3):
        rig.run(400)
        taken += rig.take_above(TRIM_HORIZON)
    rig.shard.put(4)
    rig.run(10)
    assert rig.shard.positions[1:] == [IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number="3")]
    assert taken + rig.take_above(TRIM_HORIZON) == [*positions, "4"]


@pytest.mark.parametrize("checkpoint", [TRIM_HORIZON, at(1, 9_998), at(1, 10_007), at(3, 3)])
def test_a_child_restarted_between_two_pieces_gets_everything_above_its_checkpoint(
    checkpoint: ExtendedSequenceNumber,
) -> None:
    rig = Rig(bounds=(1, 10**6, 10**9))
    positions = huge(rig)
    rig.source.open(TRIM_HORIZON)
    rig.run(1)
    rig.take()
    rig.source.reopen(checkpoint)
    seen = []
    for _ in range(4):
        rig.run(10)
        seen += rig.take_above(checkpoint)
    start = 0 if checkpoint == TRIM_HORIZON else positions.index(str(checkpoint)) + 1
    assert seen == positions[start:]


@pytest.mark.parametrize("refusal", [ExpiredIterator, InvalidPosition])
def test_an_iterator_that_expires_before_its_first_read_keeps_the_rest_of_the_aggregate(
    rig: Rig, refusal: type[KclHostError]
) -> None:
    rig.shard.put_aggregate(5, b"a", b"b", b"c", b"d")
    rig.shard.put(6)
    rig.source.open(at(5, 1))
    rig.shard.failures = [refusal()]
    rig.run(1)
    assert rig.take_above(at(5, 1)) == ["5:2", "5:3", "6"]


def test_a_child_that_ends_inside_an_aggregate_gets_its_rest_however_often_the_iterator_expires(rig: Rig) -> None:
    """The batch was fetched and taken, the next one fetched ahead; only a part of the first is checkpointed."""
    rig.shard.put_aggregate(5, b"a", b"b", b"c")
    rig.source.open(TRIM_HORIZON)
    rig.run(0)
    assert rig.take_above(TRIM_HORIZON) == ["5", "5:1", "5:2"]
    rig.shard.put_aggregate(6, b"d", b"e")
    rig.run(2)
    rig.source.reopen(at(5, 0))
    rig.shard.failures = [Throttled(), ExpiredIterator(), Unavailable(), ExpiredIterator()]
    rig.run(60)
    assert rig.take_above(at(5, 0)) == ["5:1", "5:2", "6", "6:1"]
    at_the_aggregate = IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="5")
    assert set(rig.shard.positions[1:]) == {at_the_aggregate}
    rig.shard.failures = [ExpiredIterator()]
    rig.shard.put(7)
    rig.run(20)
    assert rig.take_above(at(5, 0)) == ["7"]


@pytest.mark.parametrize("seed", range(5))
def test_faults_and_restarts_inside_aggregates_lose_nothing_and_repeat_nothing(seed: int) -> None:
    """Children checkpoint at any user record and end; iterators expire at any moment."""
    rng = random.Random(seed)
    rig = Rig(max_records=3)
    checkpoint = TRIM_HORIZON
    rig.source.open(checkpoint)
    produced: list[str] = []
    seen: list[str] = []
    kinds = [Throttled, Unavailable, ExpiredIterator, InvalidPosition]
    for number in range(1, 201):
        if rng.random() < 0.3:
            rig.shard.put(number)
            produced.append(str(number))
        else:
            users = rng.randrange(1, 5)
            rig.shard.put_aggregate(number, *[b"x"] * users)
            produced += [str(at(number, sub)) for sub in range(users)]
        rig.shard.failures = [rng.choice(kinds)() for _ in range(rng.randrange(4))] if rng.random() < 0.5 else []
        rig.run(rng.choice([1, 10, 400]))
        for batch in rig.take()[: rng.randrange(4)] if (dies := rng.random() < 0.3) else rig.take():
            seen += [str(r.position) for r in drop_delivered(batch.records, checkpoint)]
        if dies:
            done = seen.index(str(checkpoint)) if str(checkpoint) in seen else -1
            reached = rng.randrange(done, len(seen))
            if reached >= 0:
                sequence_number, _, sub = seen[reached].partition(":")
                checkpoint = at(int(sequence_number), int(sub or 0))
            seen = seen[: reached + 1]
            rig.source.reopen(checkpoint)
    rig.shard.failures = []
    for _ in range(80):
        rig.run(20)
        seen += rig.take_above(checkpoint)
    assert seen == produced
