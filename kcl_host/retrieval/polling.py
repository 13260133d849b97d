"""Reads one shard by GetRecords and hands the batches over.

Shared state: where the source stands, guarded by `_lock`. The source thread calls `run_once`; the consumer thread calls
`open` and `reopen`, while the other may be inside a read. The lock is not held across that read: its answer is accepted
only if nobody re-opened the source meanwhile (`_generation`). The lock order is source, then handoff.

`run_once` makes at most one request and never waits, so that one thread can drive many sources on a fake clock.
Source: KCL 3.5.1 PrefetchRecordsPublisher, KinesisDataFetcher; spec retrieval 3. Where we differ: DESIGN.md section 4
(growing back-off, read budget), reposition() and Handoff.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from typing import Final

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.child_restart import KeepIterator, ResumeAt, resume_position
from kcl_host.decisions.deaggregation import Deaggregated
from kcl_host.decisions.pacing import LEAST_IDLE_S, ReadBudget, pause_after_answer_s, pause_after_failure_s
from kcl_host.decisions.position import first_position, lacks_timestamp, reposition
from kcl_host.decisions.rng import Rng
from kcl_host.errors import AccessError, ExpiredIterator, InvalidPosition, KclHostError, StreamNotFound, Throttled
from kcl_host.model.records import Batch, RecordsPage
from kcl_host.model.sequence import LATEST, ExtendedSequenceNumber, InitialPosition, IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange
from kcl_host.ports import Clock, Stream
from kcl_host.retrieval.answer import Answer, InvalidAnswer
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.trouble import Trouble

_log = logging.getLogger(__name__)

REST_S: Final = 60.0
"""The turn of a source that has nothing to read until it is re-opened."""
_NOW_S: Final = 1e-6
"""Waits below this are rounding errors of the clock."""


class PollingSource:
    """The record source of one lease incarnation. `log_extra` goes into every log line, with the shard.

    `hash_key_range` is the shard's; None, when it is not known, keeps every user record of an aggregate.
    """

    def __init__(
        self,
        stream: Stream,
        shard_id: str,
        handoff: Handoff,
        settings: RetrievalSettings,
        initial: InitialPosition,
        clock: Clock,
        rng: Rng,
        log_extra: Mapping[str, object] | None = None,
        hash_key_range: HashKeyRange | None = None,
    ) -> None:
        self._stream = stream
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
        self._iterator: str | None = None
        self._answer: Answer | None = None
        """What is still to be handed over; no read before that."""
        self._last_fetched: str | None = None
        self._first_obtained: str | None = None
        self._end: tuple[ChildShard, ...] | None = None
        """The child shards, once the last batch was handed over."""
        self._budget = ReadBudget.full()
        self._not_before_s = -math.inf
        self._trouble: Trouble | None = None

    def __repr__(self) -> str:
        state = (
            "closed"
            if self.closed
            else "ended"
            if self._end is not None
            else self._trouble.kind
            if self._trouble
            else "reading"
        )
        return f"<PollingSource {self._shard_id} {state} last={self._last_fetched}>"

    @property
    def first_obtained(self) -> str | None:
        """Sequence number of the first Kinesis record this lease incarnation fetched, None before any."""
        return self._first_obtained

    @property
    def closed(self) -> bool:
        return self._handoff.closed

    # The consumer's thread

    def open(self, checkpoint: ExtendedSequenceNumber) -> None:
        """Obtains the first iterator, so that LATEST means a moment before the child is initialized.

        Raises Throttled, Unavailable, AccessError, InvalidPosition; it may be called again then. A shard or stream that
        is gone has ended, without child shards, as has one whose checkpoint is SHARD_END.
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
        asked_at_s = self._clock.wall()
        try:
            iterator = self._stream.get_shard_iterator(self._shard_id, start)
        except StreamNotFound:
            with self._lock:
                self._shard_is_gone()
            return
        with self._lock:
            self._start, self._iterator = start, iterator
            self._latest_since_s = asked_at_s if start.type == LATEST else None
        self._say(logging.DEBUG, "shard opened", "shard_opened", position=start.type)

    def reopen(self, checkpoint: ExtendedSequenceNumber) -> None:
        """Starts over for a new child at the row's `checkpoint`: what was fetched ahead is thrown away.

        The new iterator is obtained by the next turn, which the caller should make soon. Raises nothing.
        """
        with self._lock:
            resume = resume_position(checkpoint, self._first_obtained)
            self._handoff.clear()
            if self._trouble is None or not self._trouble.failures:
                self._not_before_s = -math.inf
            match resume:
                case ResumeAt(position=position):
                    self._generation += 1
                    self._start, self._latest_since_s = position, None
                    self._iterator = self._answer = self._last_fetched = self._end = None
                case KeepIterator() if self._end is None:
                    pass
                case _:
                    self._finish(self._end or ())

    # The source's thread

    def run_once(self) -> float | None:
        """One request, or none; seconds until the next turn, None when the handoff is closed.

        A turn that comes early does no harm: pauses and the read budget are judged by the clock.
        """
        with self._lock:
            if self._handoff.closed:
                return None
            if self._start is None or self._end is not None:
                return REST_S
            if not self._handoff.may_fetch():
                return max(self._settings.idle_between_reads_s, LEAST_IDLE_S)
            now_s = self._clock.monotonic()
            generation, iterator, answer = self._generation, self._iterator, self._answer
            position = reposition(self._start, self._last_fetched, self._latest_since_s)
            if answer is None:
                not_before_s = self._not_before_s
                if iterator is not None:
                    not_before_s = max(not_before_s, self._budget.next_s(now_s))
                if not_before_s - now_s > _NOW_S:
                    return not_before_s - now_s
                if iterator is not None:
                    self._budget = self._budget.spent(now_s)
        if answer is not None:
            return self._pass_on(generation, answer)
        try:
            if iterator is None:
                return self._accept_iterator(generation, self._stream.get_shard_iterator(self._shard_id, position))
            return self._accept(generation, self._stream.get_records(iterator, self._settings.max_records))
        except KclHostError as error:
            return self._fail(generation, error)

    def _accept_iterator(self, generation: int, iterator: str) -> float:
        with self._lock:
            if generation == self._generation:
                self._iterator = iterator
            return 0.0

    def _accept(self, generation: int, page: RecordsPage) -> float:
        answer = Answer(page, self._hash_key_range)
        with self._lock:
            if generation != self._generation:
                return 0.0
            now_s = self._clock.monotonic()
            self._recover(now_s)
            self._not_before_s = now_s + pause_after_answer_s(self._settings, page.millis_behind_latest)
            self._answer = answer
        return self._pass_on(generation, answer)

    def _pass_on(self, generation: int, answer: Answer) -> float:
        """The next piece of the answer, which there is room for."""
        users = answer.expand()
        with self._lock:
            return self._hand_over(answer, users) if generation == self._generation else 0.0

    def _hand_over(self, answer: Answer, users: Deaggregated) -> float:
        page = answer.page
        if not self._handoff.offer(answer.batch(users)):
            return 0.0  # Closed meanwhile; nothing counts as fetched.
        if page.records:
            self._first_obtained = self._first_obtained or page.records[0].sequence_number
        answer.tell(users, self._say, "batch fetched", "batch_fetched")
        if not users.is_last:
            return 0.0
        self._answer = None
        self._iterator = page.next_iterator
        self._last_fetched = answer.last_sequence_number or self._last_fetched
        if answer.shard_end:
            self._end = page.child_shards
            return REST_S
        return max(self._not_before_s - self._clock.monotonic(), 0.0)

    def _fail(self, generation: int, error: KclHostError) -> float:
        with self._lock:
            if generation != self._generation:
                return 0.0
            if isinstance(error, StreamNotFound):
                self._shard_is_gone()
                return REST_S
            now_s = self._clock.monotonic()
            trouble = self._trouble = Trouble.after(self._trouble, _KINDS.get(type(error), "unavailable"), now_s)
            pause_s = pause_after_failure_s(self._settings, trouble.failures, self._rng)
            if isinstance(error, ExpiredIterator | InvalidPosition):
                self._iterator = None
                if trouble.failures == 1:
                    pause_s = 0.0  # A new iterator is all that is needed, unless it is refused as well.
            self._not_before_s = now_s + pause_s
            if trouble.is_to_be_said(now_s):
                self._trouble = trouble.said(now_s)
                self._say(
                    _LEVELS.get(trouble.kind, logging.WARNING),
                    _MESSAGES[trouble.kind],
                    f"reads_{trouble.kind}",
                    failures=trouble.total,
                    next_try_s=round(pause_s, 1),
                    error=str(error),
                )
            return pause_s

    # Under the lock

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
        self._generation += 1
        self._iterator = self._answer = None
        self._end = child_shards
        self._handoff.offer(Batch(records=[], millis_behind_latest=None, shard_end=True, child_shards=child_shards))

    def _say(self, level: int, message: str, action: str, **facts: object) -> None:
        _log.log(level, message, extra={**self._extra, "action": action, **facts})


_KINDS: Final[dict[type[KclHostError], str]] = {
    Throttled: "throttled",
    AccessError: "refused",
    ExpiredIterator: "expired",
    InvalidPosition: "position_refused",
    InvalidAnswer: "invalid",
}
_LEVELS: Final = {"refused": logging.ERROR, "expired": logging.INFO}
_MESSAGES: Final = {
    "throttled": "reads are throttled, backing off: too many consumers read this shard, or it has much to catch up",
    "refused": "reads are refused: the credentials or their permissions (kinesis:GetRecords, kinesis:GetShardIterator)",
    "expired": "the shard iterator has expired, a new one is asked for after the last record fetched",
    "position_refused": "Kinesis does not accept the position, a new iterator is asked for",
    "invalid": "the answer makes no sense, the same is asked for again",
    "unavailable": "the read failed, the same is asked for again",
}
