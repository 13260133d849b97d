"""When a shard is subscribed to, and from where (enhanced fan-out).

The service's rules (spec retrieval 4.6 and 7): one call a second for each shard and consumer; a call within five
seconds of a successful one is refused (ResourceInUseException), a later one takes the subscription over; a subscription
ends after five minutes. So none of our calls comes earlier than these allow, whoever asks for it.

Failures: Java tries again each second, for ever and whatever the cause. Here the wait begins where the cause needs it
to, doubles, and is jittered upwards so that the shards of a fleet drift apart. Who is taken over from waits longest:
either the other one owns the lease by now, or it will stop; nobody gains when both insist.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from kcl_host.decisions.rng import Rng
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
)

LEAST_INTERVAL_S: Final = 1.0
TAKE_OVER_AFTER_S: Final = 5.0
LIFETIME_S: Final = 300.0
RENEW_BEFORE_END_S: Final = (5.0, 45.0)
"""Renewed so long before the end, at a moment chosen at random: subscriptions made together must not end together."""
SILENCE_S: Final = 60.0
"""So long not a byte arrives before a subscription is given up; the service sends events without records too."""

Failure = Literal[
    "ended", "in_use", "taken_over", "throttled", "refused", "position_refused", "consumer_gone", "invalid", "silent",
    "lost",
]  # fmt: skip

_BACKOFF_S: Final[dict[Failure, tuple[float, float]]] = {
    # First wait and longest one; a first wait of 0 means: at once, and a second after the next failure.
    "ended": (0.0, 0.0),
    "lost": (0.0, 10.0),
    "silent": (0.0, 10.0),
    "in_use": (1.0, 5.0),
    "throttled": (1.0, 10.0),
    "invalid": (1.0, 10.0),
    "position_refused": (1.0, 10.0),
    "consumer_gone": (1.0, 30.0),
    "taken_over": (5.0, 30.0),
    "refused": (5.0, 60.0),
}
_FIRST_JITTER_S: Final = 0.5


class Calls(msgspec.Struct, frozen=True):
    """When SubscribeToShard was last called for this shard, and last called with success; monotonic seconds."""

    last_s: float = -math.inf
    succeeded_s: float = -math.inf

    def allowed_s(self) -> float:
        """When the next call may be made."""
        return max(self.last_s + LEAST_INTERVAL_S, self.succeeded_s + TAKE_OVER_AFTER_S)

    def called(self, now_s: float) -> Calls:
        return msgspec.structs.replace(self, last_s=now_s)

    def succeeded(self, now_s: float) -> Calls:
        return msgspec.structs.replace(self, succeeded_s=now_s)


def renewal_s(opened_s: float, rng: Rng) -> float:
    """When a subscription opened at `opened_s` is renewed, unless it ends before."""
    least_s, most_s = RENEW_BEFORE_END_S
    return opened_s + LIFETIME_S - least_s - (most_s - least_s) * rng.random()


def classify(error: KclHostError, *, is_open: bool) -> Failure:
    """What failed, for the back-off. `is_open`: the subscription had been made, its events failed.

    Of an open subscription StreamNotFound is only a loss: the next call tells whether it is the shard that is gone, or
    the consumer that somebody deregistered.
    """
    match error:
        case SubscriptionEnded():
            return "ended"
        case SubscriptionInUse():
            return "taken_over" if is_open else "in_use"
        case Throttled():
            return "throttled"
        case AccessError() | ConfigurationError():
            return "refused"
        case InvalidPosition():
            return "position_refused"
        case ConsumerGone():
            return "consumer_gone"
        case StreamNotFound() if not is_open:
            raise ValueError("a shard that is gone is no failure: it has ended")
        case _:
            return "lost"


def pause_s(failure: Failure, failures: int, rng: Rng) -> float:
    """Seconds until the next call after `failures` in a row (1 or more); the rules of `Calls` come on top."""
    first_s, longest_s = _BACKOFF_S[failure]
    if not longest_s:
        return 0.0
    if not first_s:
        if failures == 1:
            return _FIRST_JITTER_S * rng.random()
        first_s, failures = 1.0, failures - 1
    nominal_s = min(first_s * 2.0 ** min(failures - 1, 60), longest_s)
    return nominal_s * (1.0 + 0.5 * rng.random())
