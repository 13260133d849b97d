"""Restarting a child (DESIGN.md 4.1)."""

from __future__ import annotations

import random

import pytest

from kcl_host.config.settings import ChildSettings
from kcl_host.decisions.child_restart import (
    ChildHistory,
    Fatal,
    HandOver,
    KeepIterator,
    NothingToRead,
    Restart,
    ResumeAt,
    after_failure,
    after_progress,
    resume_position,
)
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber, IteratorPosition

SETTINGS = ChildSettings(command=("child",))


class Dice:
    """Always the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value

    def shuffle(self, x: object, /) -> None:
        raise AssertionError("not asked for")


def fail(
    times: int, settings: ChildSettings = SETTINGS, *, others: bool = False, before: bool = False, dice: float = 1.0
) -> tuple[ChildHistory, list[Restart | HandOver | Fatal]]:
    history, answers = ChildHistory(), []
    for n in range(times):
        history, answer = after_failure(
            history, 100.0 + n, Dice(dice), settings, other_workers_alive=others, handed_over_before=before
        )
        answers.append(answer)
    return history, answers


def test_waits_grow_up_to_the_limit() -> None:
    settings = ChildSettings(command=("child",), failures_before_handover=3000)
    _, answers = fail(2500, settings)
    delays = [a.delay_s for a in answers if isinstance(a, Restart)]
    assert len(delays) == 2500
    assert delays[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert delays[-1] == 60


def test_waits_are_jittered_by_up_to_half() -> None:
    assert [fail(3, dice=0.0)[1], fail(3, dice=0.5)[1]] == [
        [Restart(delay_s=0.5), Restart(delay_s=1.0), Restart(delay_s=2.0)],
        [Restart(delay_s=0.75), Restart(delay_s=1.5), Restart(delay_s=3.0)],
    ]
    _, answers = after_failure(
        ChildHistory(), 0.0, random.Random(1), SETTINGS, other_workers_alive=True, handed_over_before=False
    )
    assert isinstance(answers, Restart) and 0.5 <= answers.delay_s <= 1


def test_the_fifth_failure_gives_the_lease_away_once() -> None:
    history, answers = fail(5, others=True)
    assert [type(a) for a in answers] == [Restart] * 4 + [HandOver]
    assert history == ChildHistory(failures=5, since_s=100.0)
    _, answers = fail(5, others=True, before=True)
    assert answers[-1] == Fatal(retry_in_s=300.0)


def test_alone_the_child_is_fatal_and_tried_again_for_ever() -> None:
    history, answers = fail(8)
    assert [type(a) for a in answers] == [Restart] * 4 + [Fatal] * 4
    assert history.failures == 8
    _, answer = after_failure(history, 9.0, Dice(1.0), SETTINGS, other_workers_alive=True, handed_over_before=False)
    assert answer == HandOver()


def test_progress_of_the_checkpoint_forgives_everything() -> None:
    history, _ = fail(4)
    assert after_progress(history) == ChildHistory()
    assert after_progress(ChildHistory()) == ChildHistory()


# Where the next child reads on


def at(sequence_number: str) -> IteratorPosition:
    return IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number=sequence_number)


def test_from_the_checkpoint_inside_an_aggregate() -> None:
    checkpoint = ExtendedSequenceNumber("50", 2)
    assert resume_position(checkpoint, "40") == ResumeAt(position=at("50"), drop_through=checkpoint)


@pytest.mark.parametrize("sentinel", ["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"])
def test_before_the_first_checkpoint_from_the_first_record_obtained(sentinel: str) -> None:
    checkpoint = ExtendedSequenceNumber(sentinel)
    assert resume_position(checkpoint, "40") == ResumeAt(position=at("40"), drop_through=None)
    assert resume_position(checkpoint, None) == KeepIterator()


def test_nothing_is_left_behind_the_shard_end() -> None:
    assert resume_position(AT_SHARD_END, "40") == NothingToRead()
