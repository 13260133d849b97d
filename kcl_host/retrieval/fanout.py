"""Reads one shard by SubscribeToShard and hands the batches over.

Shared state: where the source stands, guarded by `_lock`. The source thread calls `run_once`; the consumer thread calls
`open` and `reopen`; whoever stops the shard ends the subscription through the handoff, though the other thread waits in
a read. The lock is held neither across that read nor across the call: what they bring is accepted only if nobody
re-opened the source meanwhile (`_generation`). The lock order is source, then handoff.

`run_once` makes at most one call or waits for one event. A subscription stands still while the handoff is full: what
has arrived is then held by the transport, within its window, and the service waits.
Source: KCL 3.5.1 FanOutRecordsPublisher; spec retrieval 4. Where we differ: decisions/subscription.py, reposition() and
DESIGN.md section 4; a shard is taken for gone only when it is, not when the consumer was deregistered.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from typing import Final, Protocol

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.child_restart import KeepIterator, ResumeAt, resume_position
from kcl_host.decisions.deaggregation import Deaggregated
from kcl_host.decisions.position import first_position, lacks_timestamp, reposition
from kcl_host.decisions.rng import Rng
from kcl_host.decisions.subscription import SILENCE_S, Calls, Failure, classify, pause_s, renewal_s
from kcl_host.errors import KclHostError, StreamNotFound, SubscriptionInUse, Throttled
from kcl_host.model.records import Batch, RecordsPage
from kcl_host.model.sequence import LATEST, ExtendedSequenceNumber, InitialPosition, IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange
from kcl_host.ports import Clock
from kcl_host.retrieval.answer import Answer, InvalidAnswer
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.trouble import Trouble

_log = logging.getLogger(__name__)

REST_S: Final = 60.0
"""The turn of a source that has nothing to read until it is re-opened."""
FULL_S: Final = 1.0
"""The turn of a source whose handoff is full; the consumer gives it a turn with each batch that it takes."""
WAIT_S: Final = 5.0
"""Longest wait for an event in one turn."""
_NOW_S: Final = 1e-6
"""Waits below this are rounding errors of the clock."""


class Subscription(Protocol):
    @property
    def bytes_received(self) -> int:
        """So far; it stands still when nothing arrives."""

    def next(self, timeout_s: float) -> RecordsPage | None:
        """The next event, whose `next_iterator` is its continuation sequence number. None: none within the time.

        Raises SubscriptionEnded, StreamNotFound, SubscriptionInUse, Throttled, AccessError, Unavailable.
        """

    def close(self) -> None:
        """Ends it, and a `next` under way at once. From any thread, any number of times."""


class Subscriber(Protocol):
    def subscribe(self, shard_id: str, position: IteratorPosition) -> Subscription:
        """Returns once the service has accepted.

        Raises SubscriptionInUse, InvalidPosition, ConsumerGone; StreamNotFound when the shard or the stream is gone;
        Throttled, Unavailable, AccessError.
        """


class FanoutSource:
    """The record source of one lease incarnation; the interface of PollingSource.

    `hash_key_range` is the shard's; None, when it is not known, keeps every user record of an aggregate.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        shard_id: str,
        handoff: Handoff,
        settings: RetrievalSettings,
        initial: InitialPosition,
        clock: Clock,
        rng: Rng,
        log_extra: Mapping[str, object] | None = None,
        hash_key_range: HashKeyRange | None = None,
    ) -> None:
        self._subscriber = subscriber
        self._shard_id = shard_id
        self._handoff = handoff
        self._settings = settings
        self._initial = initial
        self._clock = clock
        self._rng = rng
        self._extra = {"shard": shard_id, **(log_extra or {})}
        self._hash_key_range = hash_key_range
        self._lock = threading.Lock()
        self._generation = 0
        self._start: IteratorPosition | None = None
        self._latest_since_s: float | None = None
        self._continuation: str | None = None
        """Everything up to this number was handed over; it moves on without records too."""
        self._last_fetched: str | None = None
        self._first_obtained: str | None = None
        self._subscription: Subscription | None = None
        self._answer: Answer | None = None
        """What is still to be handed over; nothing is read before that."""
        self._renewal_s = math.inf
        self._heard_s = -math.inf
        self._heard_bytes = 0
        self._end: tuple[ChildShard, ...] | None = None
        """The child shards, once the last batch was handed over."""
        self._calls = Calls()
        self._not_before_s = -math.inf
        self._trouble: Trouble | None = None
        handoff.on_stop = self._stop

    def __repr__(self) -> str:
        state = (
            "closed"
            if self.closed
            else "ended"
            if self._end is not None
            else self._trouble.kind
            if self._trouble
            else "subscribed"
            if self._subscription
            else "not subscribed"
        )
        return f"<FanoutSource {self._shard_id} {state} last={self._last_fetched}>"

    @property
    def first_obtained(self) -> str | None:
        """Sequence number of the first Kinesis record this lease incarnation got, None before any."""
        return self._first_obtained

    @property
    def closed(self) -> bool:
        return self._handoff.closed

    # The consumer's thread

    def open(self, checkpoint: ExtendedSequenceNumber) -> None:
        """Subscribes, so that LATEST means a moment before the child is initialized.

        When another worker subscribed just now, the turns try again, while the child starts. Raises Unavailable,
        AccessError, InvalidPosition, ConsumerGone, and Throttled when that was less than a second ago; it may be called
        again then. A shard or stream that is gone has ended, without child shards, as has one whose checkpoint is
        SHARD_END.
        """
        if checkpoint.is_shard_end:
            with self._lock:
                self._finish(())
            return
        if lacks_timestamp(checkpoint, self._initial):
            self._say(
                logging.WARNING,
                "the lease starts at a timestamp that the configuration does not name any more: reading from "
                "TRIM_HORIZON; set initialPositionInStreamExtended to skip older records",
                "timestamp_missing",
            )
        start = first_position(checkpoint, self._initial)
        with self._lock:
            now_s = self._clock.monotonic()
            if self._calls.allowed_s() - now_s > _NOW_S:
                raise Throttled(f"shard {self._shard_id} may be subscribed to once a second")
            self._calls = self._calls.called(now_s)
            self._start = start
            self._latest_since_s = self._clock.wall() if start.type == LATEST else None
            generation = self._generation
        try:
            self._subscribed(generation, self._subscriber.subscribe(self._shard_id, start))
        except StreamNotFound:
            with self._lock:
                self._shard_is_gone()
        except (SubscriptionInUse, Throttled) as error:
            self._failed(generation, error, is_open=False)
        except KclHostError:
            with self._lock:
                self._start = None
            raise

    def reopen(self, checkpoint: ExtendedSequenceNumber) -> None:
        """Starts over for a new child at the row's `checkpoint`: what was fetched ahead is thrown away.

        The next turn subscribes, which the caller should make soon. Raises nothing.
        """
        with self._lock:
            resume = resume_position(checkpoint, self._first_obtained)
            self._handoff.clear()
            if self._trouble is None or not self._trouble.failures:
                self._not_before_s = -math.inf
            match resume:
                case ResumeAt(position=position):
                    self._drop()
                    self._start, self._latest_since_s = position, None
                    self._continuation = self._last_fetched = self._end = None
                case KeepIterator() if self._end is None:
                    pass
                case _:
                    self._finish(self._end or ())

    # The source's thread

    def run_once(self) -> float | None:
        """One call, or one event, or neither; seconds until the next turn, None when the handoff is closed.

        A turn that comes early does no harm: pauses and the rules of the service are judged by the clock.
        """
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
            if subscription is None:
                not_before_s = max(self._not_before_s, self._calls.allowed_s())
                if not_before_s - now_s > _NOW_S:
                    return not_before_s - now_s
                self._calls = self._calls.called(now_s)
                position = reposition(self._start, self._continuation or self._last_fetched, self._latest_since_s)
            elif self._heard_s == math.inf:
                self._heard_s = now_s  # Nobody listened until now.
        if answer is not None:
            return self._pass_on(generation, answer)
        try:
            if subscription is None:
                return self._subscribed(generation, self._subscriber.subscribe(self._shard_id, position))
            page = subscription.next(WAIT_S)
            if page is None:
                return self._listened(generation, subscription)
            return self._accept(generation, page, subscription)
        except KclHostError as error:
            return self._failed(generation, error, is_open=subscription is not None)

    def _subscribed(self, generation: int, subscription: Subscription) -> float:
        with self._lock:
            if generation != self._generation or self._handoff.stop_reason is not None or self._handoff.closed:
                subscription.close()
                return 0.0
            now_s = self._clock.monotonic()
            self._calls = self._calls.succeeded(now_s)
            self._subscription = subscription
            self._renewal_s = renewal_s(now_s, self._rng)
            self._heard_s, self._heard_bytes = now_s, 0
        self._say(logging.DEBUG, "subscribed to the shard", "shard_subscribed")
        return 0.0

    def _listened(self, generation: int, subscription: Subscription) -> float:
        """There is no event yet: whether anything arrives at all."""
        with self._lock:
            if generation != self._generation:
                return 0.0
            now_s, received = self._clock.monotonic(), subscription.bytes_received
            if received != self._heard_bytes:
                self._heard_s, self._heard_bytes = now_s, received
            if now_s - self._heard_s < SILENCE_S:
                return 0.0
        return self._give_up(generation, "silent", f"nothing has arrived for {SILENCE_S:.0f} s")

    def _accept(self, generation: int, page: RecordsPage, subscription: Subscription) -> float:
        try:
            answer = Answer(page, self._hash_key_range)
        except InvalidAnswer as error:
            return self._give_up(generation, "invalid", str(error))
        with self._lock:
            if generation != self._generation:
                return 0.0
            now_s = self._clock.monotonic()
            self._heard_s, self._heard_bytes = now_s, subscription.bytes_received
            self._recover(now_s)
            self._answer = answer
        return self._pass_on(generation, answer)

    def _pass_on(self, generation: int, answer: Answer) -> float:
        """The next piece of the event, which there is room for."""
        users = answer.expand()
        with self._lock:
            return self._hand_over(answer, users) if generation == self._generation else 0.0

    def _hand_over(self, answer: Answer, users: Deaggregated) -> float:
        page = answer.page
        if not self._handoff.offer(answer.batch(users)):
            return 0.0  # Closed meanwhile; nothing counts as fetched.
        if page.records:
            self._first_obtained = self._first_obtained or page.records[0].sequence_number
        answer.tell(users, self._say, "batch received", "batch_received")
        if not users.is_last:
            return 0.0
        self._answer = None
        self._continuation = page.next_iterator
        self._last_fetched = answer.last_sequence_number or self._last_fetched
        if answer.shard_end:
            self._drop()
            self._end = page.child_shards
            return REST_S
        return 0.0

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
                self._continuation = None  # The number of a record is accepted as long as the record is there.
            trouble = self._trouble = Trouble.after(self._trouble, failure, now_s)
            self._not_before_s = now_s + pause_s(failure, trouble.failures, self._rng)
            next_s = max(self._not_before_s, self._calls.allowed_s()) - now_s
            if trouble.is_to_be_said(now_s):
                self._trouble = trouble.said(now_s)
                self._say(
                    _LEVELS.get(failure, logging.WARNING),
                    _MESSAGES[failure],
                    f"subscription_{failure}",
                    failures=trouble.total,
                    next_try_s=round(next_s, 1),
                    error=error,
                )
            return next_s

    # Whoever stops the shard

    def _stop(self) -> None:
        """Nothing more is taken from the handoff: the next owner need not wait for our subscription to end."""
        with self._lock:
            self._drop()

    # Under the lock

    def _drop(self) -> None:
        """Ends the subscription, if there is one; what it or a call under way still brings does not count."""
        self._generation += 1
        self._answer = None
        subscription, self._subscription = self._subscription, None
        self._renewal_s = math.inf
        if subscription is not None:
            subscription.close()

    def _recover(self, now_s: float) -> None:
        trouble = self._trouble
        if trouble is None:
            return
        if not trouble.is_over(now_s):
            self._trouble = trouble.eased()
            return
        self._trouble = None
        self._say(
            logging.INFO,
            "the shard is read again",
            "reads_recovered",
            after=trouble.kind,
            failures=trouble.total,
            lasted_s=round(trouble.last_s - trouble.since_s, 1),
        )

    def _shard_is_gone(self) -> None:
        self._say(logging.WARNING, "the shard or its stream is gone: it ends without child shards", "shard_gone")
        self._finish(())

    def _finish(self, child_shards: tuple[ChildShard, ...]) -> None:
        """The shard has nothing (more) to read: its last batch is empty and names the child shards."""
        self._drop()
        self._end = child_shards
        self._handoff.offer(Batch(records=[], millis_behind_latest=None, shard_end=True, child_shards=child_shards))

    def _say(self, level: int, message: str, action: str, **facts: object) -> None:
        _log.log(level, message, extra={**self._extra, "action": action, **facts})


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
