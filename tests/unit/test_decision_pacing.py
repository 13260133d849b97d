"""When a shard is read (retrieval 3.4; KCL 3.5.1 KinesisSleepTimeController)."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.pacing import MAX_BACKOFF_S, ReadBudget, pause_after_answer_s, pause_after_failure_s


def settings(idle_s: float = 1.5, threshold_ms: int = 0) -> RetrievalSettings:
    return RetrievalSettings(
        mode="POLLING", mode_reason="test", idle_between_reads_s=idle_s, reduced_tps_threshold_ms=threshold_ms
    )


@pytest.mark.parametrize(
    ("idle_s", "threshold_ms", "lag_ms", "pause_s"),
    [
        (1.5, 0, 0, 1.5),
        (1.5, 0, None, 1.5),
        (0.25, 1000, 0, 1.0),
        (0.25, 1000, 999, 1.0),
        (0.25, 1000, 1000, 0.25),
        (0.25, 1000, 50000, 0.25),
        (0.25, 1000, None, 0.25),
        (2.0, 1000, 0, 2.0),
        (0.0, 0, 0, 0.2),
    ],
)
def test_pause_after_an_answer(idle_s: float, threshold_ms: int, lag_ms: int | None, pause_s: float) -> None:
    assert pause_after_answer_s(settings(idle_s, threshold_ms), lag_ms) == pause_s


class Dice:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value

    def shuffle(self, x: object, /) -> None:
        raise AssertionError("not asked for")


def test_waits_after_failures_double_up_to_the_limit() -> None:
    pauses = [pause_after_failure_s(settings(1.5), n, Dice(0.0)) for n in (1, 2, 3, 4, 5, 5000)]
    assert pauses == [1.5, 3.0, 6.0, 10.0, 10.0, 10.0]
    assert pause_after_failure_s(settings(1.5), 2, Dice(0.5)) == 3.75
    assert pause_after_failure_s(settings(30.0), 9, Dice(0.0)) == 30.0


@given(st.floats(0, 60), st.integers(1, 10**6), st.integers())
def test_a_wait_after_failures_is_never_shorter_than_the_idle_time(idle_s: float, failures: int, seed: int) -> None:
    pause_s = pause_after_failure_s(settings(idle_s), failures, random.Random(seed))
    assert max(idle_s, 0.2) <= pause_s <= 1.5 * max(idle_s, MAX_BACKOFF_S)


@example([0.0] * 6)
@given(st.lists(st.floats(0, 3), max_size=60))
def test_no_second_sees_more_than_five_reads(gaps: list[float]) -> None:
    """Requests come when they like; each waits until the budget allows it."""
    budget, now_s, reads = ReadBudget.full(), 1000.0, []
    for gap in gaps:
        now_s = budget.next_s(now_s + gap)
        budget = budget.spent(now_s)
        reads.append(now_s)
    for i in range(len(reads) - 5):
        assert reads[i + 5] - reads[i] > 1.0 - 1e-6


def test_the_first_read_does_not_wait() -> None:
    assert ReadBudget.full().next_s(0.0) == 0.0


def test_a_debt_is_paid_off() -> None:
    budget = ReadBudget.full().spent(10.0).spent(10.0)
    assert budget.next_s(10.0) == pytest.approx(10.4)
