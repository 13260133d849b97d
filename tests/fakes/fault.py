"""What can go wrong with a request to a fake, and the one place where it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from kcl_host.errors import AccessError, KclHostError, Throttled, Unavailable
from tests.fakes.clock import FakeClock


class Fault(msgspec.Struct, frozen=True):
    """`answer_lost`: the request takes effect, then fails. All other kinds but None prevent it.

    `before_s` passes before the request takes effect, `after_s` before its answer arrives.
    """

    kind: Literal["throttled", "timed_out", "answer_lost", "refused"] | None = None
    before_s: float = 0.0
    after_s: float = 0.0


THROTTLED = Fault("throttled")
TIMED_OUT = Fault("timed_out")
ANSWER_LOST = Fault("answer_lost")

FaultPlan = Callable[[str, str], Fault | None]
"""(operation, key) -> what befalls the request; the key is that of the row, the shard, or empty."""


def no_faults(operation: str, key: str) -> Fault | None:
    return None


class Requests:
    """Counts requests by operation and lets the plan befall each. `request` surrounds what takes effect."""

    def __init__(self, name: str, clock: FakeClock) -> None:
        self.plan: FaultPlan = no_faults
        self.counts: Counter[str] = Counter()
        self._name = name
        self._clock = clock

    @contextmanager
    def request(self, operation: str, key: str = "") -> Iterator[None]:
        self.counts[operation] += 1
        fault = self.plan(operation, key) or Fault()
        self._clock.advance(fault.before_s)
        if fault.kind not in (None, "answer_lost"):
            self._clock.advance(fault.after_s)
            raise self._error(fault, operation, key)
        yield
        self._clock.advance(fault.after_s)
        if fault.kind == "answer_lost":
            raise self._error(fault, operation, key)

    def _error(self, fault: Fault, operation: str, key: str) -> KclHostError:
        kind = {"throttled": Throttled, "refused": AccessError}.get(fault.kind or "", Unavailable)
        return kind(f"{self._name}: {operation} {key}: {fault.kind}")
