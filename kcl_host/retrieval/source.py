"""Where the reading of one shard stands, and the way of what is read into the handoff; how it is read, polling.py and
fanout.py say.

Shared state: every field, guarded by `_lock`. The source thread calls `run_once`; the consumer thread calls `open` and
`reopen`, while the other may be inside a request. The lock is held across no request: what one brings is accepted only
if nobody re-opened the source meanwhile (`_generation`). The lock order is source, then handoff.

Everything is judged by the clock, and `run_once` makes at most one request, so that one thread can drive many sources
on a fake clock. Where we differ from Java: DESIGN.md section 4, reposition() and Handoff.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Generic, TypeVar

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.child_restart import KeepIterator, ResumeAt, resume_position
from kcl_host.decisions.deaggregation import Deaggregated
from kcl_host.decisions.position import first_position, is_of_earlier_stream, lacks_timestamp
from kcl_host.decisions.rng import Rng
from kcl_host.errors import InvalidPosition, KclHostError, StreamNotFound
from kcl_host.model.records import Batch, RecordsPage
from kcl_host.model.sequence import ExtendedSequenceNumber, InitialPosition, IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard
from kcl_host.ports import Clock
from kcl_host.retrieval.answer import Answer
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.trouble import Trouble

_log = logging.getLogger(__name__)

REST_S: Final = 60.0
"""The turn of a source that has nothing to read until it is re-opened."""
NOW_S: Final = 1e-6
"""Waits below this are rounding errors of the clock."""
Service = TypeVar("Service")


class ShardSource(Generic[Service]):
    """The record source of one lease incarnation, without the requests. What a subclass adds begins as its class says.

    `log_extra` goes into every log line, with the shard. `hash_key_range` is the shard's; None, when it is not known,
    keeps every user record of an aggregate. `list_shards` tells whether a stream was made anew; without it fan-out does
    not notice.
    """

    _arrival: ClassVar[str]
    """What happened to a batch, for the log."""

    def __init__(
        self,
        service: Service,
        shard_id: str,
        handoff: Handoff,
        settings: RetrievalSettings,
        initial: InitialPosition,
        clock: Clock,
        rng: Rng,
        log_extra: Mapping[str, object] | None = None,
        hash_key_range: HashKeyRange | None = None,
        list_shards: Callable[[], list[Shard] | None] | None = None,
    ) -> None:
        self._service = service
        self._shard_id = shard_id
        self._handoff = handoff
        self._settings = settings
        self._initial = initial
        self._clock = clock
        self._rng = rng
        self._extra = {"shard": shard_id, **(log_extra or {})}
        self._hash_key_range = hash_key_range
        self._list_shards = list_shards
        self._lock = threading.Lock()
        self._generation = 0
        self._start: IteratorPosition | None = None
        self._opened_s = 0.0
        """Epoch seconds, when `_start` was asked for."""
        self._was_accepted = False
        """The stream that is read now is the one that the checkpoint came from."""
        self._next: str | None = None
        """With what the last answer said that reading goes on: the next iterator, or a continuation number."""
        self._answer: Answer | None = None
        """What is still to be handed over; nothing is read before that."""
        self._last_fetched: str | None = None
        self._first_obtained: str | None = None
        self._end: tuple[ChildShard, ...] | None = None
        """The child shards, once the last batch was handed over."""
        self._not_before_s = -math.inf
        self._trouble: Trouble | None = None

    def __repr__(self) -> str:
        if self.closed:
            state = "closed"
        elif self._end is not None:
            state = "ended"
        else:
            state = self._trouble.kind if self._trouble else self._state()
        return f"<{type(self).__name__} {self._shard_id} {state} last={self._last_fetched}>"

    @property
    def first_obtained(self) -> str | None:
        """Sequence number of the first Kinesis record this lease incarnation fetched, None before any."""
        return self._first_obtained

    @property
    def closed(self) -> bool:
        return self._handoff.closed

    # The consumer's thread

    def open(self, checkpoint: ExtendedSequenceNumber) -> None:
        """Makes the first request, so that LATEST means a moment before the child is initialized.

        Raises Throttled, Unavailable, AccessError, InvalidPosition, ConsumerGone; it may be called again then. A shard
        or stream that is gone has ended, without child shards, as has one whose checkpoint is SHARD_END.
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
        try:
            self._open(start)
        except StreamNotFound:
            with self._lock:
                self._shard_is_gone()

    def reopen(self, checkpoint: ExtendedSequenceNumber) -> None:
        """Starts over for a new child at the row's `checkpoint`: what was fetched ahead is thrown away.

        The next turn makes the request, which the caller should make soon. Raises nothing.
        """
        with self._lock:
            self._handoff.clear()
            if self._trouble is None or not self._trouble.failures:
                self._not_before_s = -math.inf
            match resume_position(checkpoint, self._first_obtained):
                case ResumeAt(position=position):
                    self._drop()
                    self._start = position
                    self._next = self._last_fetched = self._end = None
                case KeepIterator() if self._end is None:
                    pass
                case _:
                    self._finish(self._end or ())

    def _open(self, start: IteratorPosition) -> None:
        """Reading starts there, if it raises nothing."""
        raise NotImplementedError

    # The source's thread

    def run_once(self) -> float | None:
        """At most one request; seconds until the next turn, None when the handoff is closed.

        A turn that comes early does no harm: pauses and the rules of the service are judged by the clock.
        """
        raise NotImplementedError

    def _accept(self, generation: int, page: RecordsPage, pause_s: float) -> float:
        """Hands over what was read; nothing more is read for `pause_s`. Raises InvalidAnswer."""
        answer = Answer(page, self._hash_key_range)
        with self._lock:
            if generation != self._generation:
                return 0.0
            now_s = self._clock.monotonic()
            self._recover(now_s)
            self._not_before_s = now_s + pause_s
            self._answer = answer
        return self._pass_on(generation, answer)

    def _pass_on(self, generation: int, answer: Answer) -> float:
        """The next piece of the answer, which there is room for."""
        users = answer.expand()
        with self._lock:
            return self._hand_over(answer, users) if generation == self._generation else 0.0

    def _meaning(self, error: KclHostError, position: IteratorPosition) -> KclHostError:
        """`error` of a request at `position`; StreamNotFound in place of a refusal when the stream was made anew.

        A first position that is refused may as well come from a configuration that names another stream by mistake:
        its leases must not end.
        """
        if isinstance(error, InvalidPosition) and self._was_accepted:
            try:
                if is_of_earlier_stream(position, self._shard_id, self._listed() or []):
                    return StreamNotFound(f"the stream was deleted, and created anew under its name: {error}")
            except KclHostError as of_listing:
                return of_listing if isinstance(of_listing, StreamNotFound) else error
        return error

    def _listed(self) -> list[Shard] | None:
        return self._list_shards() if self._list_shards is not None else None

    # Under the lock

    def _hand_over(self, answer: Answer, users: Deaggregated) -> float:
        page = answer.page
        if not self._handoff.offer(answer.batch(users)):
            return 0.0  # Closed meanwhile; nothing counts as fetched.
        if page.records:
            self._first_obtained = self._first_obtained or page.records[0].sequence_number
        answer.tell(users, self._say, f"batch {self._arrival}", f"batch_{self._arrival}")
        if not users.is_last:
            return 0.0
        self._answer = None
        self._next = page.next_iterator
        self._last_fetched = answer.last_sequence_number or self._last_fetched
        if answer.shard_end:
            self._drop()
            self._end = page.child_shards
            return REST_S
        return max(self._not_before_s - self._clock.monotonic(), 0.0)

    def _state(self) -> str:
        """What it does, for people."""
        return "reading"

    def _drop(self) -> None:
        """What a request under way still brings does not count."""
        self._generation += 1
        self._answer = None

    def _suffer(self, kind: str, now_s: float) -> Trouble:
        self._trouble = Trouble.after(self._trouble, kind, now_s)
        return self._trouble

    def _tell(self, level: int, message: str, action: str, *, next_try_s: float, error: str) -> None:
        """The log line about the trouble there is, if one is due."""
        now_s, trouble = self._clock.monotonic(), self._trouble
        if trouble is not None and trouble.is_to_be_said(now_s):
            self._trouble = trouble.said(now_s)
            facts = {"failures": trouble.total, "next_try_s": round(next_try_s, 1), "error": error}
            self._say(level, message, action, **facts)

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

    # With the lock or without

    def _say(self, level: int, message: str, action: str, **facts: object) -> None:
        _log.log(level, message, extra={**self._extra, "action": action, **facts})
