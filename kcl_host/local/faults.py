"""Faults on request: what an embedded engine does wrong, to which requests, how often or how long.

`engine.faults.add("UpdateItem", "lost_answer", times=1, key="my-table")`. The first fault that matches a request is
the one that happens. Deterministic: no fault rolls dice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

FaultKind = Literal[
    "throttle",  # refused for its rate, not applied
    "error",  # HTTP 500, not applied
    "deny",  # AccessDeniedException
    "expired",  # ExpiredIteratorException
    "slow",  # applied at once, answered after delay_s
    "late",  # applied after delay_s, also when the client is gone by then; then answered
    "hang",  # neither applied nor ever answered
    "drop",  # connection closed, not applied
    "lost_answer",  # applied, then the connection is closed
    "in_use",  # ResourceInUseException
    "not_found",  # ResourceNotFoundException
    # Of the operation "SubscribeToShardEvent", besides throttle, error, deny, hang (silence), drop, in_use, not_found:
    "reset",  # this subscription is broken off, others of the connection are not
    "half",  # half an event, then silence
    "corrupt",  # an event with a wrong checksum
    "invalid",  # an event that neither goes on nor names child shards
    "empty",  # 500 events without records before this one
    "end",  # the subscription ends as it does after five minutes
    "goaway",  # no further requests on this connection
]
Matches = Callable[[dict[str, Any]], bool]


class Fault(msgspec.Struct, kw_only=True, eq=False):
    """One fault. `remaining` and `until_s` (of the faults' clock) None: without bound. `hits` counts what it did."""

    operation: str
    kind: FaultKind
    remaining: int | None
    until_s: float | None
    keys: frozenset[str]
    when: Matches | None
    delay_s: float
    hits: int = 0


class Faults:
    """The faults of one engine; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.require_authorization = False
        """Whether a request without a signature is refused; signatures are never checked."""
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(
        self,
        operation: str,
        kind: FaultKind,
        *,
        times: int | None = None,
        seconds: float | None = None,
        key: str | tuple[str, ...] = (),
        when: Matches | None = None,
        delay_s: float = 1.0,
    ) -> Fault:
        """From now on, `operation` ("*": any) fails that way: `times` times, for `seconds`, or until it is removed.

        `key` narrows it to requests that are about all of the given names (stream, shard id; table, item key);
        `when` to request bodies for which it returns True.
        """
        fault = Fault(
            operation=operation,
            kind=kind,
            remaining=times,
            until_s=None if seconds is None else self._clock() + seconds,
            keys=frozenset((key,) if isinstance(key, str) else key),
            when=when,
            delay_s=delay_s,
        )
        with self._lock:
            self._faults = [*self._faults, fault]
        return fault

    def remove(self, fault: Fault) -> None:
        """A fault that is over already is no error."""
        with self._lock:
            self._faults = [other for other in self._faults if other is not fault]

    def clear(self) -> None:
        with self._lock:
            self._faults = []

    def take(self, operation: str, body: bytes, keys_of: Callable[[str, bytes], frozenset[str]]) -> Fault | None:
        """The fault that befalls this request, counted as used; None when it is to go well."""
        if not self._faults:
            return None
        with self._lock:
            now_s = self._clock()
            self._faults = [f for f in self._faults if f.remaining != 0 and (f.until_s is None or now_s < f.until_s)]
            keys = keys_of(operation, body) if any(fault.keys for fault in self._faults) else frozenset()
            for fault in self._faults:
                if _matches(fault, operation, keys, body):
                    fault.hits += 1
                    if fault.remaining is not None:
                        fault.remaining -= 1
                    return fault
        return None


def _matches(fault: Fault, operation: str, keys: frozenset[str], body: bytes) -> bool:
    if fault.operation not in ("*", operation) or not fault.keys <= keys:
        return False
    return fault.when is None or fault.when(msgspec.json.decode(body or b"{}"))
