"""Enhanced fan-out in memory: registered consumers, and what a stream pushes to them, by the service's rules.

One subscription per consumer and shard; one call a second; a call within five seconds of a successful one is refused, a
later one takes the subscription over; five minutes are its end; events without records come once in a while; the number
with which an event continues moves on without records too (spec retrieval 4 and 7; kcl_host/local/subscribe.py has the
same rules on the wire). An event is made when it is read: nothing is pushed after a subscription has come to its end,
but what was pushed before can still be read.

`FanoutService` is there once for each stream, `InMemorySubscriber` in each worker, with the real StreamConsumer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec

from kcl_host.aws.stream_consumer import StreamConsumer
from kcl_host.config.settings import RetrievalSettings
from kcl_host.errors import (
    AccessError,
    KclHostError,
    StreamNotFound,
    SubscriptionEnded,
    SubscriptionInUse,
    Throttled,
    Unavailable,
)
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.ports import Event, Threads
from tests.fakes.clock import FakeClock
from tests.fakes.fault import FaultPlan, Requests
from tests.fakes.stream import InMemoryStream

LEAST_INTERVAL_S = 1.0
TAKE_OVER_AFTER_S = 5.0
LIFETIME_S = 300.0
EVENT_BYTES = 120
"""Of what an event has around its records."""
_ROUNDING_S = 1e-5

EventFault = Literal["throttled", "refused", "lost", "silent", "invalid", "ended", "empty"]
"""lost: the connection, with the event; silent: nothing arrives any more; ended: before its time; empty: 500 times."""
EVENT_FAULTS: tuple[EventFault, ...] = ("throttled", "refused", "lost", "silent", "invalid", "ended", "empty")
EMPTY_EVENTS = 500
_FAULTS: dict[EventFault, type[KclHostError]] = {
    "throttled": Throttled,
    "refused": AccessError,
    "lost": Unavailable,
    "ended": SubscriptionEnded,
}


class Consumer(msgspec.Struct):
    """A registered consumer; `active_s` is epoch seconds."""

    name: str
    arn: str
    active_s: float
    gone_s: float = math.inf
    """It is being deleted until then."""


class Calls(msgspec.Struct):
    """What one consumer has asked of one shard; epoch seconds."""

    last_s: float = -math.inf
    succeeded_s: float = -math.inf
    live: InMemorySubscription | None = None


class FanoutService:
    """The consumers of `stream`, with the calls of a boto3 client that concern them, and every subscription."""

    def __init__(
        self,
        stream: InMemoryStream,
        clock: FakeClock,
        *,
        creating_s: float = 2.0,
        empty_event_s: float = 20.0,
        event_records: int = 4,
        count: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`event_records` bounds an event; `count` is told what happened to subscriptions."""
        self.stream = stream
        self.creating_s = creating_s
        self.empty_event_s = empty_event_s
        self.event_records = event_records
        self.count = count
        self.event_faults: Callable[[str], EventFault | None] = lambda shard_id: None
        """What befalls the event that the current task is about to get of that shard."""
        self.consumers: dict[str, Consumer] = {}
        """By name."""
        self.calls: dict[tuple[str, str], Calls] = defaultdict(Calls)
        """By consumer ARN and shard."""
        self._clock = clock
        self._requests = Requests("fanout", clock)
        stream.on_change = self._changed

    @property
    def faults(self) -> FaultPlan:
        return self._requests.plan

    @faults.setter
    def faults(self, plan: FaultPlan) -> None:
        self._requests.plan = plan

    @property
    def requests(self) -> dict[str, int]:
        return self._requests.counts

    def now_s(self) -> float:
        return self._clock.wall()

    # Consumers

    def describe_stream_consumer(
        self, *, StreamARN: str = "", ConsumerName: str = "", ConsumerARN: str = ""
    ) -> dict[str, Any]:
        with self._requests.request("describe_consumer"):
            for consumer in self._registered():
                if consumer.arn == ConsumerARN or (not ConsumerARN and consumer.name == ConsumerName):
                    return {"ConsumerDescription": self._described(consumer)}
            raise StreamNotFound(f"consumer {ConsumerARN or ConsumerName} not found")

    def register_stream_consumer(self, *, StreamARN: str, ConsumerName: str) -> dict[str, Any]:
        with self._requests.request("register_consumer"):
            if any(consumer.name == ConsumerName for consumer in self._registered()):
                raise SubscriptionInUse(f"consumer {ConsumerName} exists")
            now_s = self.now_s()
            arn = f"{StreamARN}/consumer/{ConsumerName}:{int(now_s)}"
            consumer = self.consumers[ConsumerName] = Consumer(ConsumerName, arn, now_s + self.creating_s)
            return {"Consumer": self._described(consumer)}

    def deregister(self, name: str, deleting_s: float = 1.0) -> None:
        """Somebody deletes the consumer: its subscriptions end, and it is gone after `deleting_s`."""
        if name in self.consumers:
            self.consumers[name].gone_s = self.now_s() + deleting_s
            for calls in self.calls.values():
                if calls.live is not None and calls.live.arn == self.consumers[name].arn:
                    calls.live.end(StreamNotFound(f"consumer {name} not found"))

    def _registered(self) -> list[Consumer]:
        return [consumer for consumer in self.consumers.values() if consumer.gone_s > self.now_s()]

    def _described(self, consumer: Consumer) -> dict[str, Any]:
        status = "ACTIVE" if self.now_s() >= consumer.active_s else "CREATING"
        if consumer.gone_s != math.inf:
            status = "DELETING"
        return {"ConsumerName": consumer.name, "ConsumerARN": consumer.arn, "ConsumerStatus": status}

    # Subscriptions

    def subscribe(self, arn: str, shard_id: str, position: IteratorPosition, news: Event) -> InMemorySubscription:
        """`news` is the new subscription's own. Raises what the service answers: StreamNotFound of the consumer too."""
        with self._requests.request("subscribe", shard_id):
            consumer = next((c for c in self._registered() if c.arn == arn), None)
            if consumer is None or consumer.gone_s != math.inf:
                raise StreamNotFound(f"consumer {arn} not found")
            first = self.stream.place_of(shard_id, position)
            now_s, calls = self.now_s(), self.calls[arn, shard_id]
            since_call_s, calls.last_s = now_s - calls.last_s, now_s
            if since_call_s < LEAST_INTERVAL_S - _ROUNDING_S:
                self.count("subscribe within a second")
                raise Throttled(f"{shard_id}: one call a second")
            if now_s < consumer.active_s:
                raise SubscriptionInUse(f"consumer {consumer.name} is not ACTIVE")
            if now_s - calls.succeeded_s < TAKE_OVER_AFTER_S - _ROUNDING_S:
                self.count("subscribe within five seconds")
                raise SubscriptionInUse(f"{shard_id}: another active subscription exists")
            calls.succeeded_s = now_s
            if calls.live is not None:
                self.count("subscription taken over")
                calls.live.end(SubscriptionInUse(f"{shard_id}: another subscription has taken over"))
            calls.live = subscription = InMemorySubscription(self, arn, shard_id, first, news)
        return subscription

    def forget(self, subscription: InMemorySubscription) -> None:
        calls = self.calls[subscription.arn, subscription.shard_id]
        if calls.live is subscription:
            calls.live = None

    def _changed(self, shard_id: str) -> None:
        for (_, of_shard), calls in self.calls.items():
            if of_shard == shard_id and calls.live is not None:
                calls.live.look()


class InMemorySubscription:
    """Satisfies ports.Subscription. `next` waits in the time of its event."""

    def __init__(self, service: FanoutService, arn: str, shard_id: str, place: int, news: Event) -> None:
        self.arn = arn
        self.shard_id = shard_id
        self.bytes_received = 0
        self._service = service
        self._place: int | None = place
        """Where the next event begins; None after the last one of the shard."""
        self._least = service.stream.place_of(shard_id, IteratorPosition(type="TRIM_HORIZON"))
        self._news = news
        self._ends_s = service.now_s() + LIFETIME_S
        self._empty_due_s = service.now_s()
        """The first event comes at once."""
        self.is_closed = self._is_silent = False
        self._end: KclHostError | None = None
        self._pushed_until = 0
        """The last number that was pushed before the end."""
        self._empty_events = 0
        self._is_news = True

    def __repr__(self) -> str:
        return f"<InMemorySubscription {self.shard_id} from {self._place} {self._end or ''}>"

    # ports.Subscription

    def next(self, timeout_s: float) -> RecordsPage | None:
        service, until_s = self._service, self._service.now_s() + timeout_s
        while True:
            if self.is_closed:
                raise Unavailable("closed by this side")
            now_s = service.now_s()
            if now_s >= self._ends_s and self._end is None:
                service.count("subscription ended after five minutes")
                self.end(SubscriptionEnded())
            page = None if self._is_silent else self._event(now_s)
            if page is not None:
                self.bytes_received += EVENT_BYTES + page.payload_bytes
                return page
            if now_s >= until_s:
                return None
            due_s = until_s if self._is_silent else min(until_s, self._ends_s, self._empty_due_s)
            self._news.clear()
            self._news.wait(due_s - now_s)

    def close(self) -> None:
        if not self.is_closed and self._ends_s - self._service.now_s() < LIFETIME_S / 5 and self._end is None:
            self._service.count("subscription renewed")
        self.is_closed = True
        self._service.forget(self)
        self._news.set()

    # The service

    def end(self, why: KclHostError) -> None:
        """The service ends it: what was pushed so far can be read, then `why` is raised."""
        if self._end is None:
            records = self._service.stream.records_of(self.shard_id)
            pushed = (r.sequence_number for r in reversed(records) if r.arrival_s <= self._ends_s)
            self._end, self._pushed_until = why, next(pushed, self._least)
            self._service.forget(self)
            self.look()

    def look(self) -> None:
        """There may be something new to read."""
        self._is_news = True
        self._news.set()

    def _event(self, now_s: float) -> RecordsPage | None:
        """The next one, if there is one by now."""
        stream, place = self._service.stream, self._place
        if place is None:
            raise self._end or SubscriptionEnded()
        if self._empty_events:
            self._empty_events -= 1
            return self._empty(place)
        if not self._is_news and now_s < self._empty_due_s - _ROUNDING_S:
            return None
        last = stream.last_sequence_number if self._end is None else self._pushed_until
        read = stream.read(self.shard_id, place, self._service.event_records, last)
        if not read.records and read.following is not None:
            if self._end is not None:
                raise self._end
            self._is_news = False
            if now_s < self._empty_due_s - _ROUNDING_S:
                return None
        match self._service.event_faults(self.shard_id):
            case None:
                pass
            case "silent":
                self._is_silent = True
                return None
            case "invalid":
                return RecordsPage(records=read.records, next_iterator=None, millis_behind_latest=0)
            case "empty":
                self._empty_events = EMPTY_EVENTS - 1
                return self._empty(place)
            case fault:
                self._service.forget(self)
                self._end = _FAULTS[fault](f"{self.shard_id}: {fault}, as was asked for")
                raise self._end
        self._empty_due_s = now_s + self._service.empty_event_s
        if read.following is None:
            self._service.count("subscription ended with its shard")
            self._place = None
            self._service.forget(self)
        else:
            self._place = read.following if read.is_rest else max(read.following, last + 1)
        return RecordsPage(
            records=read.records,
            next_iterator=None if self._place is None else str(self._place - 1),
            millis_behind_latest=read.behind_ms,
            child_shards=read.child_shards,
            payload_bytes=read.payload_bytes,
        )

    def _empty(self, place: int) -> RecordsPage:
        return RecordsPage(records=[], next_iterator=str(max(place - 1, self._least)), millis_behind_latest=0)


class InMemorySubscriber:
    """Satisfies retrieval.fanout.Subscriber, for one worker; `threads` are that worker's."""

    def __init__(
        self, service: FanoutService, settings: RetrievalSettings, threads: Threads, jitter: Callable[[], float]
    ) -> None:
        self._service = service
        self._threads = threads
        self._lock = threads.lock()
        """Held while the consumer is asked about: its own lock is not one of simulated time."""
        self._consumer = StreamConsumer(
            cast(Any, service),
            "orders",
            service.stream.describe,
            settings,
            jitter=jitter,
            sleep=threads.event().wait,
        )
        self._subscriptions: list[InMemorySubscription] = []

    def prepare(self, stream_arn: str | None = None) -> None:
        """Finds or registers the consumer, as aws.subscribe.Subscriber."""
        with self._lock:
            self._consumer.prepare(stream_arn)

    def subscribe(self, shard_id: str, position: IteratorPosition) -> InMemorySubscription:
        """StreamNotFound only if the shard, or the stream, is really gone; again as aws.subscribe.Subscriber."""
        with self._lock:
            arn = self._consumer.arn()
        try:
            subscription = self._service.subscribe(arn, shard_id, position, self._threads.event())
        except StreamNotFound as error:
            with self._lock:
                is_there = self._consumer.is_there(arn)
            if not is_there:
                raise Unavailable(f"{error}; the consumer was registered anew") from error
            shards = self._service.stream.list_shards()
            if shards is None or shard_id in {shard.shard_id for shard in shards}:
                raise Unavailable(f"{error}; consumer and shard are there all the same") from error
            raise
        self._subscriptions = [other for other in self._subscriptions if not other.is_closed]
        self._subscriptions.append(subscription)
        return subscription

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
