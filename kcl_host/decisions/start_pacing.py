"""How long a step of the start waits before it is tried again.

Hundreds of hosts may start in the same second, and Kinesis answers only a few describing requests a second for the
whole account (DescribeStreamSummary 20, DescribeStreamConsumer 20 for a stream, RegisterStreamConsumer 5; spec
retrieval 7). Whoever is refused for its rate comes again at a moment chosen evenly from a window ("full jitter") that
grows until all the windows of a fleet together ask for no more than the service gives: 500 hosts that need one request
each, at 20 a second, ask 3.2 times on average and are through after 40 s, where 25 s are the least possible.

A refusal for the rate is no failure of the host: it does not count against maxInitializationAttempts, so that a fleet
start never ends a host. Any other failure waits as before, first shortly and then initialization_backoff_s, with
jitter on top so that a fleet does not come in step.
"""

from __future__ import annotations

from typing import Final

from kcl_host.decisions.rng import Rng

FIRST_S: Final = 0.2
"""First wait after a failure, which doubles."""
THROTTLED_WINDOW_S: Final = 4.0
"""First window after a refusal for the rate: short enough for a host that started alone beside a busy account."""
THROTTLED_GROWTH: Final = 3.0
THROTTLED_WINDOW_MAX_S: Final = 30.0


def start_pause_s(tries: int, *, throttled: bool, backoff_s: float, rng: Rng) -> float:
    """Seconds until the step is tried again, when it has gone so wrong `tries` times (1 or more).

    `throttled`: it was refused for its rate, and `tries` counts such refusals alone. Otherwise `backoff_s` is the
    longest wait, to which jitter adds up to a half.
    """
    if throttled:
        return min(THROTTLED_WINDOW_S * THROTTLED_GROWTH ** min(tries - 1, 60), THROTTLED_WINDOW_MAX_S) * rng.random()
    nominal_s = min(FIRST_S * 2.0 ** min(tries - 1, 60), backoff_s)
    return nominal_s * (1.0 + 0.5 * rng.random())
