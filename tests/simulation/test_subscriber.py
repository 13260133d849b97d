"""The fan-out of tests/fakes has the rules of the service, in simulated time (spec retrieval 4 and 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcl_host.config.settings import RetrievalSettings
from kcl_host.errors import (
    InvalidPosition,
    KclHostError,
    StreamNotFound,
    SubscriptionEnded,
    SubscriptionInUse,
    Throttled,
    Unavailable,
)
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.ports import Subscriber
from tests.fakes.fault import ANSWER_LOST, THROTTLED
from tests.fakes.stream import InMemoryStream
from tests.fakes.subscriber import EventFault, FanoutService, InMemorySubscriber, InMemorySubscription
from tests.simulation.hub import Hub, HubClock, Process, ProcessThreads

TRIM_HORIZON = IteratorPosition(type="TRIM_HORIZON")
SETTINGS = RetrievalSettings(mode="FANOUT", mode_reason="", consumer_name="app")
SHARD = "shardId-000000000000"


class Rig:
    """A stream of one shard, and two workers that subscribe to it."""

    def __init__(self) -> None:
        self.hub = Hub()
        clock = HubClock(self.hub)
        self.stream = InMemoryStream(clock, retention_s=3600.0)
        self.service = FanoutService(self.stream, clock, creating_s=0.0, empty_event_s=20.0, event_records=2)
        self.workers = [Process("a"), Process("b")]
        self.subscribers = [
            InMemorySubscriber(self.service, SETTINGS, ProcessThreads(self.hub, worker), lambda: 0.0)
            for worker in self.workers
        ]

    def run(self, *bodies: Callable[[], None], seconds: float = 1000.0) -> None:
        """Each body is a task of its own worker, begun at once."""
        tasks = [self.hub.start(worker, "task", body) for worker, body in zip(self.workers, bodies, strict=False)]
        self.hub.run(self.hub.now_s + seconds)
        for _, error in self.hub.failures:
            raise error
        assert all(task.done for task in tasks)

    def subscribe(self, worker: int = 0, position: IteratorPosition = TRIM_HORIZON) -> InMemorySubscription:
        return self.subscribers[worker].subscribe(SHARD, position)

    def put(self, at_s: float, data: bytes = b"x") -> None:
        self.hub.at(1000.0 + at_s, lambda: self.stream.put(data, shard_id=SHARD) and None)

    def read_all(self, subscription: InMemorySubscription) -> tuple[list[RecordsPage], KclHostError]:
        """Every event with records, and how it ended."""
        pages: list[RecordsPage] = []
        try:
            while True:
                page = subscription.next(5.0)
                if page is not None and (page.records or page.next_iterator is None):
                    pages.append(page)
        except KclHostError as error:
            return pages, error


@pytest.fixture
def rig() -> Rig:
    return Rig()


def numbers(pages: list[RecordsPage]) -> list[str]:
    return [record.sequence_number for page in pages for record in page.records]


def test_it_satisfies_the_port(rig: Rig) -> None:
    port: Subscriber = rig.subscribers[0]
    assert port is not None


def test_a_read_waits_for_the_record_and_an_event_holds_only_so_many(rig: Rig) -> None:
    for at_s in (3.0, 7.0, 7.0, 7.0):
        rig.put(at_s)
    came: list[tuple[float, int]] = []

    def body() -> None:
        subscription = rig.subscribe()
        while rig.hub.now_s < 1010:
            page = subscription.next(5.0)
            came.append((rig.hub.now_s - 1000, -1 if page is None else len(page.records)))

    rig.run(body)
    assert came[:4] == [(0.0, 0), (3.0, 1), (7.0, 2), (7.0, 1)]
    assert came[4] == (12.0, -1), "nothing within the time"


def test_it_ends_after_five_minutes_and_goes_on_behind_the_continuation(rig: Rig) -> None:
    """Which moves on without records, and is accepted as a position."""
    rig.put(299.0)
    rig.put(301.0)

    def body() -> None:
        subscription = rig.subscribe()
        pages, end = rig.read_all(subscription)
        assert rig.hub.now_s == pytest.approx(1300.0, abs=0.01) and isinstance(end, SubscriptionEnded)
        assert len(numbers(pages)) == 1
        last = pages[-1].next_iterator
        assert int(str(last)) >= int(pages[-1].records[-1].sequence_number)
        again = rig.subscribe(position=IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number=last))
        pages, _ = rig.read_all(again)
        assert len(numbers(pages)) == 1

    rig.run(body)


def test_nothing_is_pushed_after_the_end_to_whoever_reads_late(rig: Rig) -> None:
    rig.put(299.0)
    rig.put(301.0)

    def body() -> None:
        subscription = rig.subscribe()
        rig.hub.sleep(400.0)
        pages, end = rig.read_all(subscription)
        assert len(numbers(pages)) == 1 and isinstance(end, SubscriptionEnded)

    rig.run(body)


def test_one_call_a_second_and_five_seconds_after_a_success(rig: Rig) -> None:
    refused: list[tuple[float, str]] = []

    def body() -> None:
        rig.subscribe()
        for at_s in (0.5, 1.0, 2.1, 4.9, 6.0):
            rig.hub.sleep(1000 + at_s - rig.hub.now_s)
            try:
                rig.subscribe(1)
            except KclHostError as error:
                refused.append((at_s, type(error).__name__))

    rig.run(body)
    assert refused == [(0.5, "Throttled"), (1.0, "Throttled"), (2.1, "SubscriptionInUse"), (4.9, "SubscriptionInUse")]


def test_whoever_comes_later_takes_over_and_the_first_one_reads_what_was_pushed(rig: Rig) -> None:
    rig.put(1.0)
    rig.put(7.0)

    def first() -> None:
        subscription = rig.subscribe()
        rig.hub.sleep(8.0)
        pages, end = rig.read_all(subscription)
        assert len(numbers(pages)) == 1 and isinstance(end, SubscriptionInUse)
        with pytest.raises(SubscriptionInUse):
            subscription.next(1.0)

    def second() -> None:
        rig.hub.sleep(6.0)
        subscription = rig.subscribe(1)
        assert subscription.next(5.0) is not None

    rig.run(first, second)


def test_the_last_event_names_the_child_shards(rig: Rig) -> None:
    rig.put(1.0)
    rig.hub.at(1002.0, lambda: rig.stream.split(SHARD) and None)

    def body() -> None:
        pages, end = rig.read_all(rig.subscribe())
        assert isinstance(end, SubscriptionEnded) and rig.hub.now_s == pytest.approx(1002.0)
        assert pages[-1].next_iterator is None
        assert [child.parent_shard_ids for child in pages[-1].child_shards] == [(SHARD,), (SHARD,)]
        assert len(numbers(pages)) == 1

    rig.run(body)


def test_close_from_another_task_ends_a_read_at_once(rig: Rig) -> None:
    def body() -> None:
        subscription = rig.subscribe()
        assert subscription.next(5.0) is not None  # The first event is empty.
        rig.hub.at(1003.0, subscription.close)
        with pytest.raises(Unavailable):
            subscription.next(60.0)
        assert rig.hub.now_s == pytest.approx(1003.0)

    rig.run(body)


def test_a_position_that_is_not_of_the_shard_is_refused_and_one_that_was_trimmed_is_not(rig: Rig) -> None:
    _, number = rig.stream.put(b"old", shard_id=SHARD)

    def body() -> None:
        rig.hub.sleep(4000.0)
        _, later = rig.stream.put(b"new", shard_id=SHARD)
        with pytest.raises(InvalidPosition):
            rig.subscribe(position=IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="1"))
        page = rig.subscribe(position=IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=number)).next(1.0)
        assert page is not None and numbers([page]) == [later]

    rig.run(body, seconds=5000.0)


def test_a_shard_that_is_gone_is_told_from_a_consumer_that_is_gone(rig: Rig) -> None:
    def body() -> None:
        subscription = rig.subscribe()
        before = rig.service.consumers["app"].arn
        rig.hub.sleep(6.0)
        rig.service.deregister("app", deleting_s=3.0)
        _, end = rig.read_all(subscription)
        assert isinstance(end, StreamNotFound), "as the service says"
        with pytest.raises(Unavailable, match="registered anew"):
            rig.subscribe()
        assert rig.service.consumers["app"].arn != before
        rig.hub.sleep(1.0)
        rig.subscribe()
        rig.stream.split(SHARD)
        rig.hub.sleep(3700.0)
        with pytest.raises(StreamNotFound):
            rig.subscribe()

    rig.run(body, seconds=5000.0)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("throttled", Throttled), ("lost", Unavailable), ("ended", SubscriptionEnded), ("silent", None)],
)
def test_events_fail_on_request(rig: Rig, fault: EventFault, error: type[KclHostError] | None) -> None:
    rig.put(1.0)
    rig.service.event_faults = lambda shard_id: fault if rig.hub.now_s > 1000.0 else None

    def body() -> None:
        subscription = rig.subscribe()
        subscription.next(5.0)
        received = subscription.bytes_received
        if error is not None:
            with pytest.raises(error):
                subscription.next(5.0)
        else:
            assert [subscription.next(5.0) for _ in range(12)] == [None] * 12
        assert subscription.bytes_received == received

    rig.run(body)


def test_hundreds_of_empty_events_on_request_and_the_record_after_them(rig: Rig) -> None:
    rig.stream.put(b"x", shard_id=SHARD)
    faults: list[EventFault] = ["empty"]
    rig.service.event_faults = lambda shard_id: faults.pop() if faults else None

    def body() -> None:
        subscription = rig.subscribe()
        pages = [subscription.next(1.0) for _ in range(501)]
        assert [page is not None and len(page.records) for page in pages] == [0] * 500 + [1]

    rig.run(body)


def test_a_call_whose_answer_is_lost_has_subscribed(rig: Rig) -> None:
    rig.subscribers[0].prepare()
    faults = [ANSWER_LOST, THROTTLED]
    rig.service.faults = lambda operation, key: faults.pop() if faults else None

    def body() -> None:
        with pytest.raises(Throttled):
            rig.subscribe()
        with pytest.raises(Unavailable):
            rig.subscribe()
        rig.hub.sleep(2.0)
        with pytest.raises(SubscriptionInUse):
            rig.subscribe()

    rig.run(body)
