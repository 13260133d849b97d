"""The queue between source and consumer: bounds, stop reasons, and the level of its eventfd under races."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.model.records import Batch, Record
from kcl_host.retrieval.handoff import Handoff

RECORD = Record(data="", partition_key="p", sequence_number="1", approximate_arrival_timestamp=0)
PATIENCE_S = 20.0


def batch(records: int = 1, payload_bytes: int = 0, lag_ms: int | None = 0, shard_end: bool = False) -> Batch:
    return Batch(
        records=[RECORD] * records, payload_bytes=payload_bytes, millis_behind_latest=lag_ms, shard_end=shard_end
    )


def readable(handoff: Handoff, timeout_ms: float = 0) -> bool:
    poll = select.poll()
    poll.register(handoff.wake_fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


@pytest.fixture
def handoff() -> Iterator[Handoff]:
    made = Handoff(max_batches=4, max_records=30, max_bytes=1000)
    yield made
    made.close()


def test_order_is_kept(handoff: Handoff) -> None:
    batches = [batch(1, lag_ms=n) for n in range(4)]
    assert all(handoff.offer(b) for b in batches)
    assert [handoff.get(0.0) for _ in range(5)] == [*batches, None]


@pytest.mark.parametrize(
    "full",
    [[batch()] * 4, [batch(29), batch(1)], [batch(1, 999), batch(1, 1)], [batch(5000)], [batch(1, 10**7)]],
    ids=["batches", "records", "bytes", "one answer beyond records", "one answer beyond bytes"],
)
def test_each_bound_ends_the_room_and_taking_a_batch_gives_it_back(handoff: Handoff, full: list[Batch]) -> None:
    for b in full:
        assert handoff.may_fetch()
        assert handoff.offer(b)
    assert not handoff.may_fetch()
    assert not handoff.offer(batch())
    assert handoff.get(0.0) is full[0]
    assert handoff.may_fetch()


def test_an_empty_queue_takes_an_answer_of_any_size(handoff: Handoff) -> None:
    assert handoff.offer(batch(10**4, 10 * 2**20))
    assert not handoff.may_fetch()


def test_even_without_prefetch_one_answer_passes() -> None:
    handoff = Handoff(max_batches=0, max_records=0, max_bytes=0)
    assert handoff.put(batch(1, 1))
    assert not handoff.may_fetch()
    handoff.close()


def test_empty_batches_do_not_count_and_the_newest_stands_for_all_at_the_tail(handoff: Handoff) -> None:
    for lag_ms in range(100):
        assert handoff.may_fetch()
        assert handoff.offer(batch(0, lag_ms=lag_ms))
    with_records = batch(3, lag_ms=100)
    handoff.offer(with_records)
    handoff.offer(batch(0, lag_ms=101))
    handoff.offer(batch(0, lag_ms=102))
    end = batch(0, lag_ms=None, shard_end=True)
    handoff.offer(end)
    assert handoff.get(0.0) == batch(0, lag_ms=99)
    assert handoff.get(0.0) is with_records
    assert handoff.get(0.0) == batch(0, lag_ms=102)
    assert handoff.get(0.0) is end
    assert handoff.get(0.0) is None


def test_the_strongest_stop_reason_stays(handoff: Handoff) -> None:
    assert handoff.stop_reason is None
    for given, expected in [
        (ShutdownReason.REQUESTED, ShutdownReason.REQUESTED),
        (ShutdownReason.LEASE_LOST, ShutdownReason.LEASE_LOST),
        (ShutdownReason.SHARD_END, ShutdownReason.LEASE_LOST),
    ]:
        handoff.stop(given)
        assert handoff.stop_reason is expected
    assert readable(handoff)


def test_a_failure_is_told_once_and_forgotten_by_a_restart(handoff: Handoff) -> None:
    first = OSError("first")
    handoff.fail(first)
    handoff.fail(OSError("second"))
    assert handoff.failure is first
    assert readable(handoff)
    assert handoff.get(PATIENCE_S) is None
    handoff.clear()
    assert handoff.failure is None
    assert not readable(handoff)


def test_clear_keeps_the_stop_reason(handoff: Handoff) -> None:
    handoff.offer(batch(30))
    handoff.stop(ShutdownReason.REQUESTED)
    handoff.clear()
    assert handoff.may_fetch()
    assert not handoff.peek_ready()
    assert handoff.stop_reason is ShutdownReason.REQUESTED
    assert readable(handoff)


def test_a_closed_handoff_takes_nothing_and_harms_nobody() -> None:
    handoff = Handoff(max_batches=1, max_records=1, max_bytes=1)
    handoff.offer(batch())
    handoff.close()
    handoff.close()
    assert handoff.closed
    assert not handoff.offer(batch())
    assert not handoff.put(batch())
    assert handoff.get(PATIENCE_S) is None
    handoff.stop(ShutdownReason.LEASE_LOST)
    handoff.fail(OSError())
    handoff.clear()
    assert handoff.stop_reason is ShutdownReason.LEASE_LOST
    assert "LEASE_LOST" in repr(handoff)


def in_thread(body: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=body, args=args)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_put_waits_for_room_and_nothing_is_lost_between_threads() -> None:
    handoff = Handoff(max_batches=2, max_records=10**9, max_bytes=10**9)
    put = []

    def produce() -> None:
        for n in range(500):
            assert handoff.put(batch(1, lag_ms=n))
            put.append(n)

    producer = in_thread(produce)
    for n in range(500):
        taken = handoff.get(PATIENCE_S)
        assert taken is not None
        assert taken.millis_behind_latest == n
        # Taken so far, two in the queue, and one that was put while we looked.
        assert len(put) <= n + 1 + 2 + 1
    producer.join(PATIENCE_S)
    assert len(put) == 500
    handoff.close()


@pytest.mark.parametrize("end", ["close", "clear"])
def test_a_waiting_put_gives_up(end: str) -> None:
    handoff = Handoff(max_batches=1, max_records=1, max_bytes=1)
    handoff.offer(batch())
    answers: list[bool] = []
    entered = threading.Event()

    def produce() -> None:
        entered.set()
        answers.append(handoff.put(batch()))

    producer = in_thread(produce)
    entered.wait(PATIENCE_S)
    # The put may not have begun to wait yet; then it meets the same state a moment later.
    getattr(handoff, end)()
    producer.join(PATIENCE_S)
    assert not producer.is_alive()
    assert answers == [False] or (end == "clear" and answers == [True])
    handoff.close()


def test_a_waiting_get_is_woken_by_a_stop() -> None:
    handoff = Handoff(max_batches=1, max_records=1, max_bytes=1)
    answers: list[Batch | None] = []
    consumer = in_thread(lambda: answers.append(handoff.get(PATIENCE_S)))
    handoff.stop(ShutdownReason.REQUESTED)
    consumer.join(PATIENCE_S / 2)
    assert answers == [None]
    handoff.close()


def test_the_descriptor_never_misses_a_batch_between_threads() -> None:
    """A consumer that looks only when the descriptor says so gets everything, and then finds it quiet."""
    handoff = Handoff(max_batches=3, max_records=10**9, max_bytes=10**9)
    producers = [
        in_thread(lambda base=base: [handoff.put(batch(1, lag_ms=base + n)) for n in range(400)])
        for base in (0, 1000, 2000)
    ]
    seen = []
    while len(seen) < 1200:
        assert readable(handoff, PATIENCE_S * 1000), f"lost wake-up after {len(seen)} batches"
        while (taken := handoff.get(0.0)) is not None:
            seen.append(taken.millis_behind_latest)
    for producer in producers:
        producer.join(PATIENCE_S)
    assert not readable(handoff)
    assert sorted(n for n in seen if n is not None) == [base + n for base in (0, 1000, 2000) for n in range(400)]
    handoff.close()


class HandoffMachine(RuleBasedStateMachine):
    """One thread against the obvious model: a list."""

    def __init__(self) -> None:
        super().__init__()
        self.handoff = Handoff(max_batches=2, max_records=10, max_bytes=100)
        self.queue: list[Batch] = []
        self.reasons: list[ShutdownReason] = []
        self.failed = False
        self.open = True

    def has_room(self) -> bool:
        counted = [b for b in self.queue if b.records or b.shard_end]
        return not counted or (
            len(counted) < 2
            and sum(len(b.records) for b in counted) < 10
            and sum(b.payload_bytes for b in counted) < 100
        )

    @rule(records=st.integers(0, 12), payload_bytes=st.integers(0, 120), end=st.booleans())
    def offer(self, records: int, payload_bytes: int, end: bool) -> None:
        new = batch(records, payload_bytes, shard_end=end)
        empty = not records and not end
        accepted = self.open and (empty or self.has_room())
        assert self.handoff.offer(new) is accepted
        if accepted:
            if empty and self.queue and not self.queue[-1].records and not self.queue[-1].shard_end:
                self.queue.pop()
            self.queue.append(new)

    @rule()
    def get(self) -> None:
        expected = self.queue.pop(0) if self.queue else None
        assert self.handoff.get(0.0) is expected

    @rule(reason=st.sampled_from(ShutdownReason))
    def stop(self, reason: ShutdownReason) -> None:
        self.handoff.stop(reason)
        self.reasons.append(reason)

    @rule()
    def fail(self) -> None:
        self.handoff.fail(OSError())
        self.failed = True

    @rule()
    def clear(self) -> None:
        self.handoff.clear()
        self.queue, self.failed = [], False

    @precondition(lambda self: len(self.reasons) > 2)
    @rule()
    def close(self) -> None:
        self.handoff.close()
        self.queue, self.open = [], False

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.handoff.peek_ready() == bool(self.queue)
        assert self.handoff.may_fetch() == self.has_room()
        assert self.handoff.stop_reason == max(self.reasons, default=None)
        assert (self.handoff.failure is not None) == self.failed
        assert self.handoff.closed == (not self.open)
        if self.open:
            assert readable(self.handoff) == bool(self.queue or self.reasons or self.failed)

    def teardown(self) -> None:
        self.handoff.close()


TestHandoffMachine = HandoffMachine.TestCase
TestHandoffMachine.settings = settings(max_examples=60, stateful_step_count=30)
