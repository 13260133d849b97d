"""When a shard is subscribed to: the service's rules, and the back-off (retrieval 4.6 and 7)."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest

from kcl_host.decisions.subscription import (
    LIFETIME_S,
    Calls,
    Failure,
    classify,
    pause_s,
    renewal_s,
)
from kcl_host.errors import (
    AccessError,
    ConfigurationError,
    ConsumerGone,
    InvalidPosition,
    KclHostError,
    StreamNotFound,
    SubscriptionEnded,
    SubscriptionInUse,
    Throttled,
    Unavailable,
)


class Dice:
    """Always the same number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number

    def shuffle(self, x: object, /) -> None:
        raise AssertionError("not asked for")


LEAST, MOST = Dice(0.0), Dice(1.0)


def test_the_first_call_may_be_made_at_once() -> None:
    assert Calls().allowed_s() == -math.inf


def test_one_call_a_second_and_five_seconds_after_a_success() -> None:
    refused = Calls().called(100.0)
    assert refused.allowed_s() == 101.0
    made = Calls().called(100.0).succeeded(100.25)
    assert made.allowed_s() == 105.25
    assert made.called(104.5).allowed_s() == 105.5


@pytest.mark.parametrize(
    ("error", "is_open", "failure"),
    [
        (SubscriptionEnded(), True, "ended"),
        (SubscriptionInUse(), False, "in_use"),
        (SubscriptionInUse(), True, "taken_over"),
        (Throttled(), False, "throttled"),
        (Throttled(), True, "throttled"),
        (AccessError(), False, "refused"),
        (ConfigurationError(), False, "refused"),
        (InvalidPosition(), False, "position_refused"),
        (ConsumerGone(), False, "consumer_gone"),
        (Unavailable(), False, "lost"),
        (Unavailable(), True, "lost"),
        (StreamNotFound(), True, "lost"),
        (KclHostError(), True, "lost"),
    ],
)
def test_classes_of_failures(error: KclHostError, is_open: bool, failure: Failure) -> None:
    assert classify(error, is_open=is_open) == failure


def test_a_shard_that_is_gone_is_no_failure() -> None:
    with pytest.raises(ValueError, match="has ended"):
        classify(StreamNotFound(), is_open=False)


@pytest.mark.parametrize(
    ("failure", "nominal_s"),
    [
        ("lost", [0, 1, 2, 4, 8, 10, 10]),
        ("silent", [0, 1, 2, 4, 8, 10, 10]),
        ("in_use", [1, 2, 4, 5, 5]),
        ("throttled", [1, 2, 4, 8, 10, 10]),
        ("invalid", [1, 2, 4, 8, 10, 10]),
        ("position_refused", [1, 2, 4, 8, 10, 10]),
        ("consumer_gone", [1, 2, 4, 8, 16, 30, 30]),
        ("taken_over", [5, 10, 20, 30, 30]),
        ("refused", [5, 10, 20, 40, 60, 60]),
        ("ended", [0, 0, 0]),
    ],
)
def test_waits_grow_to_a_bound_and_are_jittered_upwards(failure: Failure, nominal_s: list[float]) -> None:
    assert [pause_s(failure, n, LEAST) for n in range(1, len(nominal_s) + 1)] == nominal_s
    longest = [pause_s(failure, n, MOST) for n in range(1, len(nominal_s) + 1)]
    assert longest == [s * 1.5 if s else 0.5 * (failure != "ended") for s in nominal_s]


def test_a_thousand_failures_in_a_row() -> None:
    for failure in get_args(Failure):
        assert pause_s(failure, 5000, MOST) <= 90


def test_subscriptions_made_together_are_renewed_apart_and_before_they_end() -> None:
    rng = random.Random(7)
    renewals = sorted(renewal_s(1000.0, rng) - 1000.0 for _ in range(1000))
    assert 255 <= renewals[0] and renewals[-1] <= LIFETIME_S - 5
    assert renewals[-1] - renewals[0] > 35
