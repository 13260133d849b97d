"""Rows with their past, for reads that are eventually consistent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from tests.fakes.clock import FakeClock

Row = TypeVar("Row")


class Versions(Generic[Row]):
    """Rows by key, and what they were up to `memory_s` ago. None stands for "no row"."""

    def __init__(self, clock: FakeClock, memory_s: float = 60.0) -> None:
        self._clock = clock
        self._memory_s = memory_s
        self._past: dict[str, list[tuple[float, Row | None]]] = {}

    def get(self, key: str, age_s: float = 0.0) -> Row | None:
        """The row as it was `age_s` ago."""
        at_s = self._clock.monotonic() - age_s
        for since_s, row in reversed(self._past.get(key, ())):
            if since_s <= at_s:
                return row
        return None

    def set(self, key: str, row: Row | None) -> None:
        now_s = self._clock.monotonic()
        past = self._past.setdefault(key, [])
        past.append((now_s, row))
        while len(past) > 1 and past[1][0] <= now_s - self._memory_s:
            del past[0]
        if past == [(past[0][0], None)] and past[0][0] <= now_s - self._memory_s:
            del self._past[key]

    def keys(self) -> Iterator[str]:
        """Keys of rows that are or lately were there, sorted."""
        return iter(sorted(self._past))
