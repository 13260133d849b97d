"""Reads one shard by SubscribeToShard. Threads and lock: source.py.

Besides those two threads, whoever stops the shard ends the subscription through the handoff, though the source waits in
a read. `run_once` makes at most one call or waits for one event. A subscription stands still while the handoff is full:
what has arrived is then held by the transport, within its window, and the service waits.
Source: KCL 3.5.1 FanOutRecordsPublisher; spec retrieval 4. Where we differ: decisions/subscription.py and DESIGN.md
section 4; a shard is taken for gone only when it is, not when the consumer was deregistered.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from kcl_host.decisions.position import reposition
from kcl_host.decisions.subscription import SILENCE_S, Calls, Failure, classify, pause_s, renewal_s
from kcl_host.errors import KclHostError, StreamNotFound, SubscriptionInUse, Throttled
from kcl_host.model.sequence import IteratorPosition
from kcl_host.ports import Subscriber, Subscription
from kcl_host.retrieval.answer import InvalidAnswer
from kcl_host.retrieval.source import NOW_S, REST_S, ShardSource

FULL_S: Final = 1.0
"""The turn of a source whose handoff is full; the consumer gives it a turn with each batch that it takes."""
WAIT_S: Final = 5.0
"""Longest wait for an event in one turn."""


class FanoutSource(ShardSource[Subscriber]):
    """The record source of one lease incarnation. `_next` is the number up to which everything was handed over; it
    moves on without records too."""

    _arrival = "received"
    _subscription: Subscription | None = None
    _renewal_s = math.inf
    _heard_s = -math.inf
    """When something last arrived; infinite while the handoff is full and nobody listens."""
    _heard_bytes = 0
    _calls = Calls()

    def _state(self) -> str:
        return "subscribed" if self._subscription else "not subscribed"

    def _open(self, start: IteratorPosition) -> None:
        """When another worker subscribed just now, the turns try again, while the child starts.

        Raises Throttled also when the last call was less than a second ago.
        """
        self._handoff.on_stop = self._stop
        with self._lock:
            now_s = self._clock.monotonic()
            if self._calls.allowed_s() - now_s > NOW_S:
                raise Throttled(f"shard {self._shard_id} may be subscribed to once a second")
            self._calls = self._calls.called(now_s)
            self._start, self._opened_s = start, self._clock.wall()
            generation = self._generation
        try:
            self._subscribed(generation, self._service.subscribe(self._shard_id, start))
        except (SubscriptionInUse, Throttled) as error:
            self._failed(generation, error, is_open=False)
        except KclHostError:
            with self._lock:
                self._start = None
            raise

    def run_once(self) -> float | None:
        """One call, or one event, or neither; seconds until the next turn, None when the handoff is closed."""
        with self._lock:
            if self._handoff.closed:
                self._drop()
                return None
            if self._start is None or self._end is not None or self._handoff.stop_reason is not None:
                return REST_S
            if not self._handoff.may_fetch():
                self._heard_s = math.inf
                return FULL_S
            now_s = self._clock.monotonic()
            if now_s >= self._renewal_s and self._answer is None:
                self._drop()
            generation, subscription, answer = self._generation, self._subscription, self._answer
            position = reposition(self._start, self._next or self._last_fetched, self._opened_s)
            if subscription is not None:
                self._listen(subscription, now_s)
            else:
                not_before_s = max(self._not_before_s, self._calls.allowed_s())
                if not_before_s - now_s > NOW_S:
                    return not_before_s - now_s
                self._calls = self._calls.called(now_s)
        if answer is not None:
            return self._pass_on(generation, answer)
        try:
            if subscription is None:
                return self._subscribed(generation, self._service.subscribe(self._shard_id, position))
            page = subscription.next(WAIT_S)
            return self._waited(generation, subscription) if page is None else self._accept(generation, page, 0.0)
        except InvalidAnswer as error:
            return self._give_up(generation, "invalid", str(error))
        except KclHostError as error:
            return self._failed(generation, self._meaning(error, position), is_open=subscription is not None)

    def _subscribed(self, generation: int, subscription: Subscription) -> float:
        with self._lock:
            if generation != self._generation or self._handoff.stop_reason is not None or self._handoff.closed:
                subscription.close()
                return 0.0
            now_s = self._clock.monotonic()
            self._calls = self._calls.succeeded(now_s)
            self._subscription, self._was_accepted = subscription, True
            self._renewal_s = renewal_s(now_s, self._rng)
            self._heard_s, self._heard_bytes = now_s, 0
        self._say(logging.DEBUG, "subscribed to the shard", "shard_subscribed")
        return 0.0

    def _waited(self, generation: int, subscription: Subscription) -> float:
        """There is no event yet: whether anything arrives at all."""
        with self._lock:
            if generation != self._generation:
                return 0.0
            now_s = self._clock.monotonic()
            self._listen(subscription, now_s)
            if now_s - self._heard_s < SILENCE_S:
                return 0.0
        return self._give_up(generation, "silent", f"nothing has arrived for {SILENCE_S:.0f} s")

    def _failed(self, generation: int, error: KclHostError, *, is_open: bool) -> float:
        if isinstance(error, StreamNotFound) and not is_open:
            with self._lock:
                if generation == self._generation:
                    self._shard_is_gone()
            return REST_S
        return self._give_up(generation, classify(error, is_open=is_open), str(error))

    def _give_up(self, generation: int, failure: Failure, error: str) -> float:
        """No subscription, or it is of no use: when the next one is made."""
        with self._lock:
            if generation != self._generation:
                return 0.0
            self._drop()
            now_s = self._clock.monotonic()
            if failure == "ended":
                self._not_before_s = now_s
                return max(0.0, self._calls.allowed_s() - now_s)
            if failure == "position_refused":
                self._next = None  # The number of a record is accepted as long as the record is there.
            self._not_before_s = now_s + pause_s(failure, self._suffer(failure, now_s).failures, self._rng)
            next_s = max(self._not_before_s, self._calls.allowed_s()) - now_s
            level = _LEVELS.get(failure, logging.WARNING)
            self._tell(level, _MESSAGES[failure], f"subscription_{failure}", next_try_s=next_s, error=error)
            return next_s

    # Whoever stops the shard

    def _stop(self) -> None:
        """Nothing more is taken from the handoff: the next owner need not wait for our subscription to end."""
        with self._lock:
            self._drop()

    # Under the lock

    def _listen(self, subscription: Subscription, now_s: float) -> None:
        """Notes whether something has arrived."""
        received = subscription.bytes_received
        if received != self._heard_bytes or self._heard_s == math.inf:
            self._heard_s, self._heard_bytes = now_s, received

    def _drop(self) -> None:
        """Ends the subscription, if there is one."""
        super()._drop()
        subscription, self._subscription = self._subscription, None
        self._renewal_s = math.inf
        if subscription is not None:
            subscription.close()


_LEVELS: Final[dict[Failure, int]] = {
    "in_use": logging.INFO,
    "lost": logging.INFO,
    "refused": logging.ERROR,
    "consumer_gone": logging.ERROR,
}
_MESSAGES: Final[dict[Failure, str]] = {
    "ended": "the subscription has ended",
    "in_use": "another subscription to the shard is younger than five seconds: that of the worker which had the lease, "
    "or another application uses the same consumer",
    "taken_over": "another subscription to the shard has taken over: the lease is about to go, or another application "
    "uses the same consumer",
    "throttled": "subscribing is throttled, backing off",
    "refused": "subscribing is refused: the credentials or their permissions (kinesis:SubscribeToShard)",
    "position_refused": "Kinesis does not accept the position, it is asked for again from the last record received",
    "consumer_gone": "the fan-out consumer was deregistered",
    "invalid": "the event makes no sense, it is asked for again",
    "silent": "the subscription is silent, a new one is made",
    "lost": "the subscription was lost, a new one is made",
}
