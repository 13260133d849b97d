"""What follows when a child fails: restart it, hand its lease over, or say loudly that it does not work.

What counts is progress of the checkpoint, not how long a child lived: a child that
reads for an hour and dies on the same record each time makes none. After `failures_before_handover` failures the
lease goes to another worker once; if it fails there too, or nobody else is alive, the child is FATAL, which is shown
everywhere and tried again every few minutes.

Source: DESIGN.md 4.1 (Java ends the whole worker instead).
"""

from __future__ import annotations

import msgspec

from kcl_host.config.settings import ChildSettings
from kcl_host.decisions.rng import Rng
from kcl_host.model.sequence import ExtendedSequenceNumber, IteratorPosition


class ChildHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Failures since the checkpoint last moved; `since_s` is the monotonic time of the first, None without any."""

    failures: int = 0
    since_s: float | None = None


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Start a new child after `delay_s`."""

    delay_s: float


class HandOver(msgspec.Struct, frozen=True):
    """Give the lease to another live worker, and remember that this was done."""


class Fatal(msgspec.Struct, frozen=True, kw_only=True):
    """Say so everywhere; try again after `retry_in_s`."""

    retry_in_s: float


class ResumeAt(msgspec.Struct, frozen=True, kw_only=True):
    """Throw the prefetched records away and open a new source at `position`.

    `drop_through`: user records up to and including it were checkpointed and are not delivered; None: deliver all.
    """

    position: IteratorPosition
    drop_through: ExtendedSequenceNumber | None


class KeepIterator(msgspec.Struct, frozen=True):
    """Nothing was obtained yet: go on with the live iterator, which still stands where the lease started."""


class NothingToRead(msgspec.Struct, frozen=True):
    """The row is at SHARD_END: no child is needed any more."""


def after_failure(
    history: ChildHistory,
    now_s: float,
    rng: Rng,
    settings: ChildSettings,
    *,
    other_workers_alive: bool,
    handed_over_before: bool,
) -> tuple[ChildHistory, Restart | HandOver | Fatal]:
    """The history to keep, and what to do now that the child failed once more. `now_s` is monotonic.

    `handed_over_before`: this lease was already given away, or taken over, for this reason since its checkpoint last
    moved. Waits are jittered between half and all of their nominal length.
    """
    since_s = now_s if history.since_s is None else history.since_s
    history = ChildHistory(failures=history.failures + 1, since_s=since_s)
    if history.failures < settings.failures_before_handover:
        # The limit of failures is a setting of any size, and 2.0 ** 2000 raises.
        nominal_s = settings.restart_backoff_s * 2.0 ** min(history.failures - 1, 60)
        return history, Restart(delay_s=_jittered(min(nominal_s, settings.restart_backoff_max_s), rng))
    if other_workers_alive and not handed_over_before:
        return history, HandOver()
    return history, Fatal(retry_in_s=_jittered(settings.fatal_retry_s, rng))


def after_narrowing(rng: Rng, settings: ChildSettings) -> Restart:
    """What to do when a failure tells which records are at fault (decisions/poison.py); it counts as none.

    There are only as many of these as it takes to find a record, so the pause does not grow.
    """
    return Restart(delay_s=_jittered(settings.restart_backoff_s, rng))


def after_progress(history: ChildHistory) -> ChildHistory:
    """The history once the row's checkpoint moved: as if nothing had ever failed."""
    return ChildHistory() if history.failures else history


def resume_position(
    checkpoint: ExtendedSequenceNumber, first_obtained: str | None
) -> ResumeAt | KeepIterator | NothingToRead:
    """Where a restarted child reads on, so that it sees again whatever its predecessor may have seen.

    `checkpoint` is the row's; `first_obtained` the sequence number of the first Kinesis record that this lease
    incarnation fetched, delivered or not, None when it fetched none. While the checkpoint is a sentinel a new iterator
    from it would differ from the first one (LATEST moves on, TRIM_HORIZON ages), hence the first number obtained.
    """
    if checkpoint.is_shard_end:
        return NothingToRead()
    if not checkpoint.is_sentinel:
        return ResumeAt(position=_at(checkpoint.sequence_number), drop_through=checkpoint)
    if first_obtained is None:
        return KeepIterator()
    return ResumeAt(position=_at(first_obtained), drop_through=None)


def _at(sequence_number: str) -> IteratorPosition:
    return IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=sequence_number)


def _jittered(nominal_s: float, rng: Rng) -> float:
    return nominal_s * (0.5 + 0.5 * rng.random())
