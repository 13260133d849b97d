"""How a start that fails, or is refused for its rate, is repeated (issue: quotas respected over a fleet start)."""

from __future__ import annotations

import heapq
import random

import pytest

from kcl_host.decisions.pacing import ReadBudget
from kcl_host.decisions.start_pacing import FIRST_S, THROTTLED_WINDOW_MAX_S, THROTTLED_WINDOW_S, start_pause_s


class Dice:
    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number

    def shuffle(self, x: object, /) -> None:
        raise AssertionError("not asked for")


@pytest.mark.parametrize(
    ("tries", "least_s", "most_s"), [(1, 0.2, 0.3), (2, 0.4, 0.6), (3, 0.8, 1.2), (4, 1.0, 1.5), (5000, 1.0, 1.5)]
)
def test_a_failure_waits_up_to_the_back_off_with_jitter_on_top(tries: int, least_s: float, most_s: float) -> None:
    assert start_pause_s(tries, throttled=False, backoff_s=1.0, rng=Dice(0.0)) == pytest.approx(least_s)
    assert start_pause_s(tries, throttled=False, backoff_s=1.0, rng=Dice(1.0)) == pytest.approx(most_s)


def test_a_back_off_below_the_first_wait_is_kept_to() -> None:
    assert start_pause_s(1, throttled=False, backoff_s=0.05, rng=Dice(0.0)) == 0.05 < FIRST_S


@pytest.mark.parametrize(("tries", "window_s"), [(1, 4.0), (2, 12.0), (3, 30.0), (4, 30.0), (5000, 30.0)])
def test_a_refusal_for_the_rate_is_spread_over_a_growing_window(tries: int, window_s: float) -> None:
    """Evenly, down to no wait at all; the configured back-off says nothing about it."""
    for number in (0.0, 0.25, 1.0):
        pause_s = start_pause_s(tries, throttled=True, backoff_s=1.0, rng=Dice(number))
        assert pause_s == pytest.approx(number * window_s)
    assert THROTTLED_WINDOW_S <= window_s <= THROTTLED_WINDOW_MAX_S


@pytest.mark.parametrize(("hosts", "most_calls"), [(40, 1.5), (100, 2.5), (500, 4.0), (2000, 7.0)])
def test_a_fleet_is_through_soon_after_the_least_possible_time(hosts: int, most_calls: float) -> None:
    """One request for each host, against a budget of 20 a second with a burst of as many."""
    rng, per_s = random.Random(hosts), 20.0
    budget = ReadBudget(tokens=per_s, at_s=0.0, size=per_s, per_s=per_s)
    waiting, calls, last_s = [(rng.random(), host, 0) for host in range(hosts)], 0, 0.0
    heapq.heapify(waiting)
    while waiting:
        now_s, host, refused = heapq.heappop(waiting)
        calls += 1
        if budget.level(now_s) >= 1.0:
            budget, last_s = budget.spent(now_s), now_s
        else:
            pause_s = start_pause_s(refused + 1, throttled=True, backoff_s=1.0, rng=rng)
            heapq.heappush(waiting, (now_s + pause_s, host, refused + 1))
    assert last_s <= hosts / per_s + THROTTLED_WINDOW_MAX_S
    assert calls <= most_calls * hosts
