"""The randomness a decision may ask for; `random.Random` fits."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, Protocol


class Rng(Protocol):
    """A seeded generator, always handed in, so that a seed replays a decision."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        """Reorders in place. Callers sort before they shuffle."""
