"""What every measurement says of itself: machine, versions, and spread."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Self

import kcl_host


def versions() -> str:
    return f"kcl-host {kcl_host.__version__}, Python {platform.python_version()}"


def machine() -> str:
    return f"{versions()}, {os.cpu_count()} cores"


class Spread(NamedTuple):
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(statistics.median(values), min(values), max(values))

    def texts(self, form: str) -> list[str]:
        """Each by the same format specification."""
        return [format(value, form) for value in self]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that so many percent do not exceed (nearest rank). `ordered` is sorted and not empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
