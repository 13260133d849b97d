"""SubscribeToShard: records of a shard pushed to a registered consumer until its five minutes are over.

The rules are those of the service (spec retrieval 4.6 and 7): one subscription per consumer and shard; one call a
second; a call within five seconds of a successful one is refused, a later one takes the subscription over. Events are
written as records arrive, and without records once in a while. Everything here runs on the server's thread, except
what a shard's watcher does: it only asks that thread to look.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import msgspec

from kcl_host.local.account import Account
from kcl_host.local.consumer_operations import ConsumerOperations
from kcl_host.local.event_stream import CONTENT_TYPE, event, exception
from kcl_host.local.faults import Fault, Faults
from kcl_host.local.http import HttpAnswer, Outlet
from kcl_host.local.kinesis_request import KinesisRequest, need, parse_request
from kcl_host.local.record_operations import child_shard, start_counter
from kcl_host.local.service_error import ServiceError, in_use, not_found
from kcl_host.local.shard import LocalShard
from kcl_host.local.stream import LocalStream, StreamConsumer

EVENT: Final = "SubscribeToShardEvent"
"""The event's name, and the operation of faults that befall an event instead of the call."""
TAKE_OVER_AFTER_S: Final = 5.0
LEAST_INTERVAL_S: Final = 1.0
MAX_EVENT_RECORDS: Final = 2000
MAX_EVENT_BYTES: Final = 2**20
MAX_BACKLOG_BYTES: Final = 2**18
PUSHED_BYTES_PER_S: Final = 2 * 2**20
_EXCEPTIONS: Final = {
    "throttle": "KMSThrottlingException",
    "error": "InternalFailureException",
    "deny": "KMSAccessDeniedException",
    "in_use": "ResourceInUseException",
    "not_found": "ResourceNotFoundException",
}


class _Calls(msgspec.Struct):
    """What one consumer has asked of one shard; epoch seconds."""

    last_s: float = float("-inf")
    succeeded_s: float = float("-inf")
    live: _Subscription | None = None


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Who subscribes to what, and how the request said so."""

    stream: LocalStream
    shard: LocalShard
    consumer: StreamConsumer
    body: bytes


class Subscriptions:
    """Every subscription. `lifetime_s` and `empty_event_s` may be changed; those made afterwards go by them."""

    def __init__(
        self,
        account: Account,
        consumers: ConsumerOperations,
        faults: Faults,
        keys_of: Callable[[str, bytes], frozenset[str]],
    ) -> None:
        self.lifetime_s = 300.0
        self.empty_event_s = 1.0
        self.account = account
        self._consumers = consumers
        self._faults = faults
        self._keys_of = keys_of
        self._calls: dict[tuple[str, str], _Calls] = {}
        self.succeeded = 0
        """Calls so far that were accepted."""

    def answer(self, body: bytes) -> HttpAnswer:
        """The answer to SubscribeToShard, which goes on. Raises ServiceError."""
        request = parse_request(body)
        with self.account.at_now() as now_s:
            stream, consumer = self._consumers.consumer_of(request)
            shard = self.account.live(stream).shard(need(request.shard_id, "shardId"))
            calls = self._calls.setdefault((consumer.arn, shard.shard_id), _Calls())
            since_call_s, calls.last_s = now_s - calls.last_s, now_s
            if since_call_s < LEAST_INTERVAL_S:
                raise ServiceError("LimitExceededException", f"Rate exceeded for {consumer.arn} and {shard.shard_id}")
            if now_s < consumer.active_s:
                raise in_use(f"Consumer {consumer.name} is not ACTIVE.")
            if now_s - calls.succeeded_s < TAKE_OVER_AFTER_S:
                raise in_use(f"Another active subscription exists for consumer {consumer.name}: {shard.shard_id}")
            counter = start_counter(_as_iterator(request), stream, shard, now_s)
            calls.succeeded_s = now_s
            self.succeeded += 1
        previous, calls.live = calls.live, None
        if previous is not None:
            previous.refuse("ResourceInUseException", "Another subscription has taken over.")
        place = _Place(stream=stream, shard=shard, consumer=consumer, body=body)

        def push(outlet: Outlet) -> _Subscription:
            calls.live = _Subscription(self, place, counter, outlet)
            calls.live.start()
            return calls.live

        return HttpAnswer(200, b"", {"Content-Type": CONTENT_TYPE, "x-amzn-RequestId": str(uuid4())}, push)

    def next_fault(self, body: bytes) -> Fault | None:
        return self._faults.take(EVENT, body, lambda _, body: self._keys_of("SubscribeToShard", body))


class _Subscription:
    """The Pusher of one subscription. `_counter` is the next record to push, None after the last event."""

    def __init__(self, all_: Subscriptions, place: _Place, counter: int, outlet: Outlet) -> None:
        self._all = all_
        self._place = place
        self._counter: int | None = counter
        self._outlet = outlet
        self._loop = outlet.loop
        self._ends_s = self._loop.time() + all_.lifetime_s
        self._empty_due_s = self._paid_until_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._closed = self._silent = False

    def start(self) -> None:
        self._outlet.write(event("initial-response", b"{}"))
        self._place.shard.watchers.add(self._watch)
        self._loop.call_soon(self.pump)

    def close(self) -> None:
        self._closed = True
        self._place.shard.watchers.discard(self._watch)
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self, code: str, message: str) -> None:
        """The last event is an exception."""
        if self._silent:
            self.close()
        else:
            self._end_with(exception(code, message))

    def pump(self) -> None:
        """Writes what there is, as long as the client takes it, and looks again in time."""
        self._asked = False
        try:
            while not (self._closed or self._silent):
                now_s = self._loop.time()
                if now_s >= self._ends_s:
                    self._end_with(b"")
                elif self._outlet.backlog_bytes > MAX_BACKLOG_BYTES:
                    self._look_again_at(self._ends_s)
                    return
                elif now_s < self._paid_until_s - 1:
                    self._look_again_at(self._paid_until_s - 1)
                    return
                elif (payload := self._next_payload(now_s)) is None:
                    self._look_again_at(min(self._empty_due_s, self._ends_s))
                    return
                else:
                    self._empty_due_s = now_s + self._all.empty_event_s
                    self._push(payload)
        except ServiceError as error:
            self.refuse(error.code, error.message)

    def _watch(self) -> None:
        """Called by whoever puts a record or ends the shard, on its thread."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self.pump)

    def _look_again_at(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self.pump)

    def _next_payload(self, loop_s: float) -> bytes | None:
        """The next event, moving on behind it; None while there is nothing to say. Raises ServiceError at the end."""
        place, shard, counter = self._place, self._place.shard, self._counter
        assert counter is not None
        with self._all.account.at_now() as now_s:
            if self._all.account.live_stream(place.stream.name) is not place.stream:
                raise not_found(f"Stream {place.stream.name} not found.")
            if place.stream.consumers.get(place.consumer.name) is not place.consumer:
                raise not_found(f"Consumer {place.consumer.arn} not found.")
            place.stream.shard(shard.shard_id)
            page = shard.read(counter, MAX_EVENT_RECORDS, now_s, MAX_EVENT_BYTES)
            if not page.fragments and page.next_counter is not None and loop_s < self._empty_due_s:
                return None
            if self._all.account.enforce_quotas:
                self._paid_until_s = max(self._paid_until_s, loop_s) + page.size_bytes / PUSHED_BYTES_PER_S
            self._counter = page.next_counter
            if page.next_counter is None:
                children = [child_shard(child) for child in shard.children]
                rest = b',"ChildShards":' + msgspec.json.encode(children)
            else:
                rest = b',"ContinuationSequenceNumber":"%b"' % shard.continuation(page.next_counter, now_s).encode()
        return b'{"Records":[%b],"MillisBehindLatest":%d%b}' % (
            b",".join(page.fragments),
            page.millis_behind_latest,
            rest,
        )

    def _push(self, payload: bytes) -> None:
        fault = self._all.next_fault(self._place.body)
        frame = event(EVENT, payload)
        if fault is None:
            self._outlet.write(frame)
        else:
            self._push_disturbed(fault, frame, payload)
        if self._counter is None:
            self._end_with(b"")

    def _push_disturbed(self, fault: Fault, frame: bytes, payload: bytes) -> None:
        outlet = self._outlet
        match fault.kind:
            case "throttle" | "error" | "deny" | "in_use" | "not_found":
                self.refuse(_EXCEPTIONS[fault.kind], "as was asked for")
            case "hang":
                self._silent = True
            case "half":
                outlet.write(frame[: len(frame) // 2])
                self._silent = True
            case "corrupt":
                outlet.write(frame[:-1] + bytes([frame[-1] ^ 1]))
            case "invalid":
                outlet.write(event(EVENT, payload[: payload.rindex(b',"C')] + b"}"))
            case "end":
                self._end_with(b"")
            case "reset":
                outlet.reset()
            case "drop" | "lost_answer":
                outlet.abort()
                self.close()
            case "empty":
                empty = b'{"Records":[],"MillisBehindLatest":0,"ContinuationSequenceNumber":"%b"}'
                number = self._place.shard.starting_sequence_number.encode()
                for _ in itertools.repeat(None, 500):
                    outlet.write(event(EVENT, empty % number))
                outlet.write(frame)
            case _:
                outlet.go_away()
                outlet.write(frame)

    def _end_with(self, last: bytes) -> None:
        if not self._closed:
            self.close()
            if last:
                self._outlet.write(last)
            self._outlet.end()


def _as_iterator(request: KinesisRequest) -> KinesisRequest:
    """The same position, as GetShardIterator asks for it."""
    position = need(request.starting_position, "startingPosition")
    return KinesisRequest(
        shard_iterator_type=position.type,
        starting_sequence_number=position.sequence_number,
        timestamp=position.timestamp,
    )
