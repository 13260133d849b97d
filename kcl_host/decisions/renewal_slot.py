"""When each held lease is renewed: always at the same moment of the renewal interval, by its key.

So the heartbeats of many leases are no burst that everything else waits behind, and a lease that comes or goes moves
no other. Slots are numbered from the zero of the monotonic clock; each lease has one of every SLOTS.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import floor
from typing import Final
from zlib import crc32

SLOTS: Final = 64
"""Of an interval: 52 ms each by default. What falls into one is renewed together, so turns do not grow with leases."""
_ROUNDING: Final = 1e-6
"""Of a slot: a clock that was set forward to the begin of a slot may stand a little before it."""


@lru_cache(4096)
def slot_of(lease_key: str) -> int:
    """Of this lease, from 0 to SLOTS - 1."""
    return crc32(lease_key.encode(errors="surrogatepass")) % SLOTS


def slot_at(now_s: float, interval_s: float) -> int:
    """The slot that `now_s` is in."""
    return floor(now_s / interval_s * SLOTS + _ROUNDING)


def is_due(lease_key: str, done: int, slot: int) -> bool:
    """True when a slot of the lease is after `done` and not after `slot`."""
    own = slot_of(lease_key)
    return (slot - own) // SLOTS > (done - own) // SLOTS


def next_turn_s(lease_keys: Iterable[str], done: int, interval_s: float) -> float:
    """Begin of the first slot after `done` that one of the leases has; no later than an interval after it."""
    ahead = min(((slot_of(key) - done - 1) % SLOTS for key in lease_keys), default=SLOTS - 1)
    return (done + 1 + ahead) * interval_s / SLOTS
