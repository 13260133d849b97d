"""One shard read by enhanced fan-out, on a fake subscriber and a fake clock (retrieval 4; DESIGN.md 4 and 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise

import pytest

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.decisions.deaggregation import MAX_USER_RECORDS
from kcl_host.errors import (
    AccessError,
    ConsumerGone,
    InvalidPosition,
    KclHostError,
    StreamNotFound,
    SubscriptionEnded,
    SubscriptionInUse,
    Throttled,
    Unavailable,
)
from kcl_host.model.records import Batch, Record, RecordsPage
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber, InitialPosition, IteratorPosition
from kcl_host.model.shard import ChildShard
from kcl_host.retrieval.fanout import FULL_S, FanoutSource
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.source import REST_S
from tests.fakes.clock import FakeClock
from tests.unit.retrieval_rig import CHILD, LATEST, START_S, TRIM_HORIZON, new_clock, packed, shard_0

AFTER = "AFTER_SEQUENCE_NUMBER"


class Dice:
    """No jitter."""

    def random(self) -> float:
        return 0.0

    def shuffle(self, x: object, /) -> None:
        raise AssertionError("not asked for")


def event(
    *numbers: int, to: int | None = None, children: tuple[ChildShard, ...] = (), size_bytes: int = 8
) -> RecordsPage:
    """Records with these numbers; reading goes on behind `to`, the last of them by default."""
    records = [
        Record(data="x" * size_bytes, partition_key="p", sequence_number=str(n), approximate_arrival_timestamp=0)
        for n in numbers
    ]
    continuation = to if to is not None else numbers[-1] if numbers else None
    return RecordsPage(
        records=records,
        next_iterator=None if children or continuation is None else str(continuation),
        millis_behind_latest=0,
        child_shards=children,
        payload_bytes=size_bytes * len(records),
    )


class Subscription:
    """Gives out what it was told to; then nothing arrives, WAIT_S at a time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.coming: list[RecordsPage | KclHostError | None] = []
        self.bytes_received = 0
        self.closed = 0
        self.while_waiting: Callable[[], None] = lambda: None

    def next(self, timeout_s: float) -> RecordsPage | None:
        self.while_waiting()
        if self.closed:
            raise Unavailable("closed")
        if not self.coming:
            self.clock.now_s += timeout_s
            return None
        came = self.coming.pop(0)
        self.bytes_received += 100
        if isinstance(came, KclHostError):
            raise came
        return came

    def close(self) -> None:
        self.closed += 1


class Rig:
    """A source, what it subscribes to, and a consumer that takes what is there."""

    def __init__(self, initial: InitialPosition | None = None, *, max_batches: int = 4) -> None:
        self.clock = new_clock()
        self.handoff = Handoff(max_batches=max_batches, max_records=1000, max_bytes=10_000)
        self.calls: list[tuple[float, IteratorPosition]] = []
        self.refusals: list[KclHostError] = []
        """Raised by the next calls, one each."""
        self.subscriptions: list[Subscription] = []
        self.while_subscribing: Callable[[], None] = lambda: None
        self.first_number = 0
        self.source = FanoutSource(
            self,
            "shardId-0",
            self.handoff,
            RetrievalSettings(mode="FANOUT", mode_reason=""),
            initial or InitialPosition(kind="TRIM_HORIZON"),
            self.clock,
            Dice(),
            list_shards=lambda: [shard_0(self.first_number)],
        )

    def subscribe(self, shard_id: str, position: IteratorPosition) -> Subscription:
        assert shard_id == "shardId-0"
        self.calls.append((self.clock.now_s, position))
        self.while_subscribing()
        if self.refusals:
            raise self.refusals.pop(0)
        self.subscriptions.append(Subscription(self.clock))
        return self.subscriptions[-1]

    @property
    def live(self) -> Subscription:
        return self.subscriptions[-1]

    @property
    def positions(self) -> list[tuple[str, str | None]]:
        return [(position.type, position.sequence_number) for _, position in self.calls]

    def turn(self) -> float | None:
        """One turn, and the pause after it."""
        pause_s = self.source.run_once()
        if pause_s:
            self.clock.now_s += pause_s
        return pause_s

    def turn_until_call(self, number: int) -> float:
        """Turns until that call is made; when that was."""
        for _ in range(100):
            if len(self.calls) >= number:
                return self.calls[number - 1][0]
            self.turn()
        raise AssertionError(f"only {len(self.calls)} calls")

    def get(self) -> list[Batch]:
        batches = []
        while (batch := self.handoff.get(0.0)) is not None:
            batches.append(batch)
        return batches

    def numbers(self) -> list[int]:
        return [int(record.sequence_number) for batch in self.get() for record in batch.records]


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.source.open(TRIM_HORIZON)
    return rig


# Where it begins


@pytest.mark.parametrize(
    ("checkpoint", "asked"),
    [
        (TRIM_HORIZON, ("TRIM_HORIZON", None)),
        (LATEST, ("LATEST", None)),
        (ExtendedSequenceNumber("17", 3), ("AT_SEQUENCE_NUMBER", "17")),
    ],
)
def test_open_subscribes_where_the_lease_stands(checkpoint: ExtendedSequenceNumber, asked: tuple[str, str]) -> None:
    rig = Rig()
    rig.source.open(checkpoint)
    assert rig.positions == [asked]
    rig.live.coming = [event(18)]
    rig.turn()
    assert rig.numbers() == [18] and len(rig.calls) == 1


def test_a_lease_at_its_end_is_not_subscribed_to() -> None:
    rig = Rig()
    rig.source.open(AT_SHARD_END)
    (batch,) = rig.get()
    assert batch.shard_end and batch.child_shards == () and rig.calls == [] and rig.turn() == REST_S


@pytest.mark.parametrize("refusal", [Unavailable(), AccessError(), InvalidPosition(), ConsumerGone()], ids=type)
def test_open_raises_what_it_cannot_wait_for_and_may_be_repeated(refusal: KclHostError) -> None:
    rig = Rig()
    rig.refusals = [refusal]
    with pytest.raises(type(refusal)):
        rig.source.open(TRIM_HORIZON)
    with pytest.raises(Throttled, match="once a second"):
        rig.source.open(TRIM_HORIZON)
    assert rig.turn() == REST_S and len(rig.calls) == 1
    rig.clock.now_s += 1.0
    rig.source.open(TRIM_HORIZON)
    assert len(rig.subscriptions) == 1


@pytest.mark.parametrize("refusal", [SubscriptionInUse(), Throttled()], ids=type)
def test_a_subscription_of_the_previous_owner_does_not_hold_up_the_child(refusal: KclHostError) -> None:
    rig = Rig()
    rig.refusals = [refusal]
    rig.source.open(TRIM_HORIZON)
    assert rig.turn_until_call(2) == pytest.approx(101.0)
    assert rig.positions == [("TRIM_HORIZON", None)] * 2


def test_latest_that_was_refused_means_the_moment_of_the_first_call() -> None:
    """Asked for later, LATEST would skip what arrived in between."""
    rig = Rig()
    rig.refusals = [SubscriptionInUse(), Unavailable()]
    rig.source.open(LATEST)
    rig.turn_until_call(3)
    for _, position in rig.calls[1:]:
        assert (position.type, position.timestamp_s) == ("AT_TIMESTAMP", START_S + 100.0 - 300.0)


def test_a_shard_that_is_gone_ends_without_child_shards() -> None:
    rig = Rig()
    rig.refusals = [StreamNotFound()]
    rig.source.open(TRIM_HORIZON)
    (batch,) = rig.get()
    assert batch.shard_end and batch.child_shards == () and rig.turn() == REST_S


# Events


def test_events_become_batches_in_order(rig: Rig) -> None:
    rig.live.coming = [event(1, 2), event(to=5), event(6)]
    for _ in range(3):
        assert rig.turn() == 0.0
    batches = rig.get()
    assert [[r.sequence_number for r in b.records] for b in batches] == [["1", "2"], [], ["6"]]
    assert [b.last_sequence_number for b in batches] == ["2", None, "6"]
    assert rig.source.first_obtained == "1"


def test_the_last_event_names_the_child_shards(rig: Rig) -> None:
    rig.live.coming = [event(1), event(2, children=(CHILD,))]
    rig.turn()
    assert rig.turn() == REST_S
    assert [(b.shard_end, b.child_shards) for b in rig.get()] == [(False, ()), (True, (CHILD,))]
    assert rig.live.closed and rig.turn() == REST_S and len(rig.calls) == 1


def test_a_full_handoff_is_not_read_into() -> None:
    rig = Rig(max_batches=2)
    rig.source.open(TRIM_HORIZON)
    rig.live.coming = [event(n) for n in (1, 2, 3)]
    assert [rig.turn() for _ in range(3)] == [0.0, 0.0, FULL_S]
    assert len(rig.live.coming) == 1
    assert rig.numbers() == [1, 2]
    rig.turn()
    assert rig.numbers() == [3]


def test_a_record_above_the_bounds_is_delivered_alone(rig: Rig) -> None:
    rig.live.coming = [event(1, size_bytes=50_000), event(2)]
    assert [rig.turn(), rig.turn()] == [0.0, FULL_S]
    assert rig.numbers() == [1]
    rig.turn()
    assert rig.numbers() == [2]


def test_five_hundred_events_without_records_take_one_place(rig: Rig) -> None:
    rig.live.coming = [event(to=n) for n in range(500)] + [Unavailable()]
    for _ in range(501):
        rig.turn()
    assert len(rig.get()) == 1
    rig.turn_until_call(2)
    assert rig.positions[1] == (AFTER, "499")


def test_a_large_aggregate_is_handed_over_piece_by_piece(rig: Rig) -> None:
    """Reading goes on behind it only when all of it was."""
    count = 2 * MAX_USER_RECORDS + 5
    page = RecordsPage(records=[packed(count, 7)], next_iterator="7", millis_behind_latest=0)
    rig.live.coming = [page, event(8)]
    got: list[Batch] = []
    for _ in range(2):
        rig.turn()
        got += rig.get()
    assert [len(batch.records) for batch in got] == [MAX_USER_RECORDS] * 2 and len(rig.live.coming) == 1
    rig.source.reopen(ExtendedSequenceNumber("7", MAX_USER_RECORDS))
    rig.turn_until_call(2)
    assert rig.positions[1] == ("AT_SEQUENCE_NUMBER", "7")
    rig.live.coming = [page, event(8)]
    got = []
    for _ in range(4):
        rig.turn()
        got += rig.get()
    records = [record.position for batch in got for record in batch.records]
    assert records == [ExtendedSequenceNumber("7", n) for n in range(count)] + [ExtendedSequenceNumber("8")]


# The end of a subscription, and its renewal


def test_at_its_end_a_subscription_is_made_anew_at_once_behind_the_last_event(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.live.coming = [event(1), event(to=4)]
    rig.turn()
    rig.turn()
    rig.clock.now_s += 250
    rig.live.coming = [SubscriptionEnded()]
    before_s = rig.clock.now_s
    with caplog.at_level(logging.INFO):
        assert rig.turn_until_call(2) == before_s
    assert rig.positions[1] == (AFTER, "4") and caplog.records == []


def test_a_subscription_is_renewed_before_its_end(rig: Rig) -> None:
    first = rig.live
    first.coming = [event(1)]
    rig.turn()
    while len(rig.calls) == 1 and rig.clock.now_s < 500:
        first.coming.append(event(to=int(rig.clock.now_s)))
        rig.turn()
        rig.clock.now_s += 1
    (_, (at_s, position)) = rig.calls
    assert at_s == pytest.approx(100 + 295, abs=2) and position.type == AFTER
    assert position.sequence_number == str(int(at_s) - 1)
    assert first.closed and not rig.live.closed


def test_a_subscription_that_ends_at_once_is_made_again_by_the_rules(rig: Rig) -> None:
    for number in range(2, 6):
        rig.live.coming = [SubscriptionEnded()]
        rig.turn_until_call(number)
    assert [at_s for at_s, _ in rig.calls] == [100, 105, 110, 115, 120]


# Failures


@pytest.mark.parametrize(
    ("error", "after_s"),
    [
        (Unavailable(), 0),
        (StreamNotFound(), 0),
        (Throttled(), 1),
        (SubscriptionInUse(), 5),
        (AccessError(), 5),
    ],
    ids=repr,
)
def test_a_subscription_that_breaks_is_made_anew_behind_the_last_event(
    rig: Rig, error: KclHostError, after_s: float
) -> None:
    rig.live.coming = [event(1, 2, to=3)]
    rig.turn()
    rig.clock.now_s = 200.0
    rig.live.coming = [error]
    assert rig.turn_until_call(2) == pytest.approx(200 + after_s)
    assert rig.positions[1] == (AFTER, "3") and rig.subscriptions[0].closed
    assert rig.numbers() == [1, 2]


def test_a_subscription_that_breaks_early_waits_for_the_rule_of_five_seconds(rig: Rig) -> None:
    rig.clock.now_s += 2
    rig.live.coming = [Unavailable()]
    assert rig.turn_until_call(2) == pytest.approx(105.0)


def test_refusals_in_a_row_are_waited_out_longer_each_time(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.clock.now_s = 200.0
    rig.live.coming = [Unavailable()]
    rig.refusals = [Throttled() for _ in range(5)]
    with caplog.at_level(logging.INFO):
        rig.turn_until_call(7)
    at = [at_s for at_s, _ in rig.calls[1:]]
    assert [b - a for a, b in pairwise(at)] == pytest.approx([2, 4, 8, 10, 10])
    assert [r.action for r in caplog.records] == ["subscription_lost", "subscription_throttled"]  # type: ignore[attr-defined]
    rig.clock.now_s += 10
    rig.live.coming = [event(1)]
    with caplog.at_level(logging.INFO):
        rig.turn()
    assert caplog.records[-1].action == "reads_recovered"  # type: ignore[attr-defined]


def test_an_event_that_makes_no_sense_is_asked_for_again(rig: Rig) -> None:
    rig.live.coming = [event(1), event()]
    rig.turn()
    assert rig.turn_until_call(2) >= 105.0
    assert rig.positions[1] == (AFTER, "1") and rig.numbers() == [1]


def test_a_continuation_that_is_refused_gives_way_to_the_last_record(rig: Rig) -> None:
    rig.live.coming = [event(1), event(to=9), Unavailable()]
    for _ in range(3):
        rig.turn()
    rig.refusals = [InvalidPosition()]
    rig.turn_until_call(3)
    assert rig.positions[1:] == [(AFTER, "9"), (AFTER, "1")]


def test_a_stream_made_anew_is_not_read_under_the_lease_of_the_old_one(rig: Rig) -> None:
    """A consumer is registered with it, and it accepts no number of the old one."""
    rig.live.coming = [event(1), event(to=9), Unavailable()]
    for _ in range(3):
        rig.turn()
    assert rig.numbers() == [1]
    rig.first_number = 50
    rig.refusals = [Unavailable("the consumer was registered anew"), InvalidPosition()]
    rig.turn_until_call(3)
    (end,) = rig.get()
    assert end.shard_end and end.child_shards == () and end.records == [] and rig.turn() == REST_S


@pytest.mark.parametrize("before", [[], [SubscriptionInUse()]])
def test_a_first_position_that_is_refused_does_not_end_the_shard(before: list[KclHostError]) -> None:
    """The configuration may name another stream by mistake, and the end would cost the right one its checkpoints."""
    rig = Rig()
    rig.first_number, rig.refusals = 50, [*before, InvalidPosition(), InvalidPosition()]
    if before:
        rig.source.open(ExtendedSequenceNumber("1"))
        rig.turn_until_call(3)
    else:
        with pytest.raises(InvalidPosition):
            rig.source.open(ExtendedSequenceNumber("1"))
    assert rig.get() == []


def test_silence_ends_a_subscription_after_a_minute(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.live.coming = [event(1)]
    rig.turn()
    with caplog.at_level(logging.INFO):
        assert rig.turn_until_call(2) == pytest.approx(160.0)
    assert rig.subscriptions[0].closed and rig.positions[1] == (AFTER, "1")
    assert [r.action for r in caplog.records] == ["subscription_silent"]  # type: ignore[attr-defined]


def test_half_an_event_and_silence(rig: Rig) -> None:
    rig.live.coming = [None]
    rig.turn()
    assert rig.turn_until_call(2) == pytest.approx(160.0)


def test_what_arrives_slowly_is_not_silence(rig: Rig) -> None:
    for _ in range(5):
        rig.live.coming = [None]  # A piece of an event.
        rig.turn()
        rig.clock.now_s += 50
    assert len(rig.calls) == 1


def test_a_handoff_that_was_full_for_minutes_is_not_silence() -> None:
    rig = Rig(max_batches=1)
    rig.source.open(TRIM_HORIZON)
    rig.live.coming = [event(1)]
    rig.turn()
    for _ in range(120):
        assert rig.turn() == FULL_S
    assert rig.numbers() == [1]
    rig.turn()
    assert not rig.live.closed and len(rig.calls) == 1


# The stop


@pytest.mark.parametrize("reason", list(ShutdownReason))
def test_a_stop_ends_the_subscription_at_once_though_a_read_waits(rig: Rig, reason: ShutdownReason) -> None:
    """The next owner of the lease would be refused for as long as this one goes on subscribing."""
    rig.live.while_waiting = lambda: rig.handoff.stop(reason)
    assert rig.turn() == 0.0
    assert rig.live.closed and rig.turn() == REST_S and len(rig.calls) == 1


def test_the_close_ends_the_subscription_and_the_turns(rig: Rig) -> None:
    rig.live.while_waiting = rig.handoff.close
    rig.turn()
    assert rig.live.closed and rig.source.closed and rig.turn() is None


def test_a_subscription_accepted_after_the_stop_is_ended(rig: Rig) -> None:
    rig.clock.now_s += 10
    rig.live.coming = [Unavailable()]
    rig.while_subscribing = lambda: rig.handoff.stop(ShutdownReason.LEASE_LOST)
    rig.turn()
    rig.turn()
    assert len(rig.subscriptions) == 2 and rig.live.closed == 1 and rig.turn() == REST_S


# A new child


def test_reopen_reads_again_from_the_checkpoint(rig: Rig) -> None:
    rig.live.coming = [event(1, 2), event(3)]
    rig.turn()
    rig.turn()
    rig.source.reopen(ExtendedSequenceNumber("2"))
    assert rig.get() == [] and rig.subscriptions[0].closed
    assert rig.turn_until_call(2) == pytest.approx(105.0)
    assert rig.positions[1] == ("AT_SEQUENCE_NUMBER", "2")
    rig.live.coming = [event(2, 3)]
    rig.turn()
    assert rig.numbers() == [2, 3]


def test_reopen_at_a_sentinel_begins_at_the_first_record_obtained() -> None:
    rig = Rig()
    rig.source.open(LATEST)
    rig.live.coming = [event(7), event(8)]
    rig.turn()
    rig.turn()
    rig.source.reopen(LATEST)
    rig.turn_until_call(2)
    assert rig.positions[1] == ("AT_SEQUENCE_NUMBER", "7")


def test_reopen_before_any_record_keeps_the_subscription() -> None:
    rig = Rig()
    rig.source.open(LATEST)
    rig.source.reopen(LATEST)
    rig.live.coming = [event(7)]
    rig.turn()
    assert rig.numbers() == [7] and len(rig.calls) == 1


def test_what_a_read_brings_after_reopen_does_not_count(rig: Rig) -> None:
    rig.live.coming = [event(1)]
    rig.turn()
    rig.live.coming = [event(2)]
    rig.live.while_waiting = lambda: rig.source.reopen(TRIM_HORIZON)
    rig.turn()
    assert rig.get() == []
    rig.turn_until_call(2)
    assert rig.positions[1] == ("AT_SEQUENCE_NUMBER", "1")


def test_reopen_of_a_shard_that_was_read_to_its_end(rig: Rig) -> None:
    rig.live.coming = [event(1), event(children=(CHILD,))]
    rig.turn()
    rig.turn()
    rig.source.reopen(ExtendedSequenceNumber("1"))
    rig.turn_until_call(2)
    rig.live.coming = [event(1, children=(CHILD,))]
    rig.turn()
    (batch,) = rig.get()
    assert batch.shard_end and batch.child_shards == (CHILD,)
