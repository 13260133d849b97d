"""What is published of a metric: always the statistics of many points, as KCL publishes it (spec metrics 1)."""

from __future__ import annotations

from typing import Literal

import msgspec

Unit = Literal["Count", "Milliseconds", "Bytes", "None"]
"""As CloudWatch spells them."""
Level = Literal["SUMMARY", "DETAILED"]

Dimensions = tuple[tuple[str, str], ...]
"""Names and values, in a fixed order for each metric."""


class StatisticSet(msgspec.Struct, frozen=True):
    """`count` points that lie between `minimum` and `maximum`; `count` is never 0."""

    minimum: float
    maximum: float
    sum: float
    count: int

    def merged(self, other: StatisticSet) -> StatisticSet:
        """The statistics of the points of both."""
        return StatisticSet(
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.sum + other.sum,
            self.count + other.count,
        )


class MetricDatum(msgspec.Struct, frozen=True):
    """One metric of one set of dimensions over some time; without a time stamp, as in Java: now is when it is sent."""

    name: str
    unit: Unit
    dimensions: Dimensions
    statistics: StatisticSet
