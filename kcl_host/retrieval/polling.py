"""Reads one shard by GetRecords. Threads and lock: source.py.

Source: KCL 3.5.1 PrefetchRecordsPublisher, KinesisDataFetcher; spec retrieval 3. Where we differ: DESIGN.md section 4
(growing back-off, read budget).
"""

from __future__ import annotations

import logging
from typing import Final

from kcl_host.decisions.pacing import LEAST_IDLE_S, ReadBudget, pause_after_answer_s, pause_after_failure_s
from kcl_host.decisions.position import reposition
from kcl_host.errors import AccessError, ExpiredIterator, InvalidPosition, KclHostError, StreamNotFound, Throttled
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import Shard
from kcl_host.ports import Stream
from kcl_host.retrieval.answer import InvalidAnswer
from kcl_host.retrieval.source import NOW_S, REST_S, ShardSource


class PollingSource(ShardSource[Stream]):
    """The record source of one lease incarnation. `_next` is the iterator, None when one is to be asked for."""

    _arrival = "fetched"
    _budget = ReadBudget.full()

    def _open(self, start: IteratorPosition) -> None:
        opened_s = self._clock.wall()
        iterator = self._service.get_shard_iterator(self._shard_id, start)
        with self._lock:
            self._start, self._opened_s, self._next, self._was_accepted = start, opened_s, iterator, True
        self._say(logging.DEBUG, "shard opened", "shard_opened", position=start.type)

    def run_once(self) -> float | None:
        with self._lock:
            if self._handoff.closed:
                return None
            if self._start is None or self._end is not None:
                return REST_S
            if not self._handoff.may_fetch():
                return max(self._settings.idle_between_reads_s, LEAST_IDLE_S)
            now_s = self._clock.monotonic()
            generation, iterator, answer = self._generation, self._next, self._answer
            position = reposition(self._start, self._last_fetched, self._opened_s)
            if answer is None:
                not_before_s = self._not_before_s
                if iterator is not None:
                    not_before_s = max(not_before_s, self._budget.next_s(now_s))
                if not_before_s - now_s > NOW_S:
                    return not_before_s - now_s
                if iterator is not None:
                    self._budget = self._budget.spent(now_s)
        if answer is not None:
            return self._pass_on(generation, answer)
        try:
            if iterator is None:
                return self._accept_iterator(generation, self._service.get_shard_iterator(self._shard_id, position))
            page = self._service.get_records(iterator, self._settings.max_records)
            return self._accept(generation, page, pause_after_answer_s(self._settings, page.millis_behind_latest))
        except KclHostError as error:
            return self._fail(generation, self._meaning(error, position))

    def _accept_iterator(self, generation: int, iterator: str) -> float:
        with self._lock:
            if generation == self._generation:
                self._next = iterator
            return 0.0

    def _fail(self, generation: int, error: KclHostError) -> float:
        with self._lock:
            if generation != self._generation:
                return 0.0
            if isinstance(error, StreamNotFound):
                self._shard_is_gone()
                return REST_S
            now_s, kind = self._clock.monotonic(), _KINDS.get(type(error), "unavailable")
            failures = self._suffer(kind, now_s).failures
            pause_s = pause_after_failure_s(self._settings, failures, self._rng)
            if isinstance(error, ExpiredIterator | InvalidPosition):
                self._next = None
                if failures == 1:
                    pause_s = 0.0  # A new iterator is all that is needed, unless it is refused as well.
            self._not_before_s = now_s + pause_s
            level = _LEVELS.get(kind, logging.WARNING)
            self._tell(level, _MESSAGES[kind], f"reads_{kind}", next_try_s=pause_s, error=str(error))
            return pause_s

    def _listed(self) -> list[Shard] | None:
        return self._service.list_shards()


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
