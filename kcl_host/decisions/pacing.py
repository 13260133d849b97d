"""When a shard may be read again.

Three rules, of which the latest moment wins. After an answer: the idle time since it arrived, longer for a shard that
has caught up (spec retrieval 3.4, KCL 3.5.1 KinesisSleepTimeController). After failures: a wait that starts at the idle
time and doubles, jittered upwards so that the shards of a fleet drift apart (Java waits the plain idle time for ever).
Always: the budget of five reads a second that Kinesis gives a shard, a bucket of one token, so that nothing (a restart,
an expired iterator) makes a burst at the cost of other applications on the same shard.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from kcl_host.config.settings import RetrievalSettings
from kcl_host.decisions.rng import Rng

READS_PER_S: Final = 5
LEAST_IDLE_S: Final = 1 / READS_PER_S
"""Java raises a shorter idle time to this as well."""
MAX_BACKOFF_S: Final = 10.0
"""Longest nominal wait after failures, unless the idle time is longer; throttling by volume lasts 5 s at most."""


class ReadBudget(msgspec.Struct, frozen=True):
    """A bucket of `size` tokens that gains `per_s` a second; `tokens` were in it at `at_s` (monotonic)."""

    tokens: float
    at_s: float
    size: float = 1.0
    per_s: float = READS_PER_S

    @classmethod
    def full(cls) -> ReadBudget:
        return cls(tokens=1.0, at_s=-math.inf)

    def level(self, now_s: float) -> float:
        return min(self.size, self.tokens + (now_s - self.at_s) * self.per_s)

    def next_s(self, now_s: float) -> float:
        """Monotonic time at which one token is there; not before `now_s`."""
        return now_s + max(0.0, 1.0 - self.level(now_s)) / self.per_s

    def spent(self, now_s: float) -> ReadBudget:
        """The bucket after a request at `now_s`; a request that came too early leaves a debt."""
        return msgspec.structs.replace(self, tokens=self.level(now_s) - 1.0, at_s=now_s)


def pause_after_answer_s(settings: RetrievalSettings, millis_behind_latest: int | None) -> float:
    """Seconds from the arrival of an answer to the next request.

    The threshold applies while the lag is known and below it: example 1000 ms with an idle time of 250 ms reads a
    caught-up shard once a second and a lagging one four times.
    """
    idle_s = max(settings.idle_between_reads_s, LEAST_IDLE_S)
    threshold_ms = settings.reduced_tps_threshold_ms
    if millis_behind_latest is not None and millis_behind_latest < threshold_ms:
        return max(idle_s, threshold_ms / 1000)
    return idle_s


def pause_after_failure_s(settings: RetrievalSettings, failures: int, rng: Rng) -> float:
    """Seconds to the next try after `failures` in a row (1 or more): idle time, twice, four times ... MAX_BACKOFF_S.

    Jitter adds up to a half, so it is never less than the idle time that Java waits.
    """
    idle_s = max(settings.idle_between_reads_s, LEAST_IDLE_S)
    nominal_s = min(idle_s * 2.0 ** min(failures - 1, 60), max(MAX_BACKOFF_S, idle_s))
    return nominal_s * (1.0 + 0.5 * rng.random())
