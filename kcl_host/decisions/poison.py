"""Which record makes every child fail that gets it: found by delivering ever smaller parts of its batch.

Theory of operation. When children fail while they hold a batch, one of its records is under suspicion. The records
before the batch are delivered on their own from then on, those after it later. After `after_failures` failures each
child gets half of what is suspected: a half that is processed is free of suspicion, one that is not is all that is left
of it. So a batch of b records takes log2(b) + 1 more children until the record is alone. Then it is for the shell to
write it into the dead letter, and to pass it: from then on it is not delivered.

Nothing is checkpointed for that. The child's own checkpoints move past the record, once there is a later one; until
then a restart of the host, or another worker, finds the record again, and writes its dead letter again.

That a child works at all is known when it has processed something since the failures began. A record is poison at once
if so. If not, the rules of decisions/child_restart.py come first, with their pauses and the other worker; only what
fails when these know nothing else is taken for poison. Both ways no more than `per_hour` are passed in an hour, and no
more than that without a record processed in between: a child that fails on everything stands still after these.

Limits, on purpose: a child that answers before it has processed its records puts the suspicion on innocent ones. When
a whole batch fails and no part of it does (a time-out that is too short), nothing is poison, and it is processed in
parts; that helps only where the child checkpoints them.

Source: DESIGN.md 4.4; Java has nothing like it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum
from typing import Final

import msgspec

from kcl_host.config.settings import PoisonSettings
from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber

HOUR_S: Final = 3600.0


class Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """One record from `first` to `last` makes children fail; there are at most `records` of them."""

    first: ExtendedSequenceNumber
    last: ExtendedSequenceNumber
    records: int
    failures: int


class PoisonState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one shard, by one worker, since it holds the lease.

    `is_proven`: a child has processed records since the failures began, or since those that led to the record passed
    before. `passed` are the records in the dead letter that lie after the checkpoint; `passed_at_s` are monotonic.
    """

    suspicion: Suspicion | None = None
    is_proven: bool = False
    passed: frozenset[ExtendedSequenceNumber] = frozenset()
    passed_at_s: tuple[float, ...] = ()
    passed_in_a_row: int = 0


class Verdict(Enum):
    """What a failure means."""

    AGAIN = "the same records once more, by the rules of restarts"
    NARROWED = "the next child gets less of them"
    POISON = "the record is alone, and the child works otherwise"
    UNPROVEN = "the record is alone; poison if the rules of restarts know nothing else"
    TOO_MANY = "the record is alone, and too many were passed: it stays where it is"


def next_piece(
    state: PoisonState, records: list[Record], settings: PoisonSettings
) -> tuple[list[Record], list[Record]]:
    """What to deliver next of `records`, which ascend, and what is to be asked about again after that.

    Without suspicion the one is `records` itself, unless some of them were passed, and the other is empty.
    """
    if not records:
        return records, []
    if state.passed and _reaches(records, state.passed):
        records = [record for record in records if record.position not in state.passed]
    suspicion = state.suspicion
    if suspicion is None or not records:
        return records, []
    before = bisect_left(records, suspicion.first.sort_key, key=_key)
    if before:
        return records[:before], records[before:]
    suspected = bisect_right(records, suspicion.last.sort_key, key=_key)
    if not suspected:
        return records, []
    is_cut = suspicion.failures >= settings.after_failures
    size = min(suspected, max(suspicion.records // 2, 1)) if is_cut else suspected
    return records[:size], records[size:]


def failed(
    state: PoisonState, piece: list[Record], settings: PoisonSettings, now_s: float
) -> tuple[PoisonState, Verdict]:
    """A child failed while it held `piece`, which `next_piece` gave. `now_s` is monotonic."""
    known, first, last = state.suspicion, piece[0].position, piece[-1].position
    is_known = known is not None and first <= known.last and last >= known.first
    failures = known.failures + 1 if known is not None and is_known else 1
    state = msgspec.structs.replace(
        state,
        suspicion=Suspicion(first=first, last=last, records=len(piece), failures=failures),
        # Right after a record that was passed these are the same failures, as far as anybody knows.
        is_proven=state.is_proven and (is_known or state.passed_in_a_row > 0),
    )
    if failures < settings.after_failures:
        return state, Verdict.AGAIN
    if len(piece) > 1:
        return state, Verdict.NARROWED
    of_this_hour = sum(now_s - at_s < HOUR_S for at_s in state.passed_at_s)
    if max(of_this_hour, state.passed_in_a_row) >= settings.per_hour:
        return state, Verdict.TOO_MANY
    return state, Verdict.POISON if state.is_proven else Verdict.UNPROVEN


def processed(state: PoisonState, piece: list[Record]) -> PoisonState:
    """The child has answered for `piece`; `state` itself when that is no news."""
    suspicion = state.suspicion
    if suspicion is None:
        if state.is_proven and not state.passed_in_a_row:
            return state
    elif (last := piece[-1].position) >= suspicion.last:
        suspicion = None
    elif last >= suspicion.first:
        suspicion = msgspec.structs.replace(
            suspicion,
            first=ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number + 1),
            records=max(suspicion.records - len(piece), 1),
        )
    return msgspec.structs.replace(state, suspicion=suspicion, is_proven=True, passed_in_a_row=0)


def passed(state: PoisonState, position: ExtendedSequenceNumber, now_s: float) -> PoisonState:
    """The record at `position` stands in the dead letter: it is not delivered any more. `now_s` is monotonic."""
    return msgspec.structs.replace(
        state,
        suspicion=None,
        passed=state.passed | {position},
        passed_at_s=(*(at_s for at_s in state.passed_at_s if now_s - at_s < HOUR_S), now_s),
        passed_in_a_row=state.passed_in_a_row + 1,
    )


def checkpointed(state: PoisonState, checkpoint: ExtendedSequenceNumber) -> PoisonState:
    """The row says `checkpoint`: what was passed below it is never read again."""
    if not state.passed:
        return state
    return msgspec.structs.replace(state, passed=frozenset(p for p in state.passed if p > checkpoint))


def _reaches(records: list[Record], positions: frozenset[ExtendedSequenceNumber]) -> bool:
    first, last = records[0].position, records[-1].position
    return any(first <= position <= last for position in positions)


def _key(record: Record) -> tuple[tuple[int, int], int]:
    return record.position.sort_key
