"""A clock that moves only when it is told to."""

from __future__ import annotations


class FakeClock:
    """Satisfies ports.Clock. `wall_skew_s` lets several hosts share one time line with different wall clocks."""

    def __init__(self, monotonic_s: float = 1000.0, wall_s: float = 1_800_000_000.0) -> None:
        self.now_s = monotonic_s
        self.wall_skew_s = 0.0
        self._wall_offset_s = wall_s - monotonic_s

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + self._wall_offset_s + self.wall_skew_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time does not go back"
        self.now_s += seconds
