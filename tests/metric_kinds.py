"""What Java publishes, as data, and how two workers are compared by it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tests.fakes.cloudwatch_http import MetricPoint

GOLDEN: Final = Path(__file__).parent / "data" / "golden" / "java-kcl-3.5.1-metrics.json"
_OFTEN: Final = {"metricsBufferTimeMillis": "1000"}
LEVELS: Final = {
    "detailed": {**_OFTEN, "metricsLevel": "DETAILED"},
    "summary": {**_OFTEN, "metricsLevel": "SUMMARY", "metricsEnabledDimensions": "Operation,ShardId"},
}


class MetricKind(NamedTuple):
    operation: str
    name: str
    unit: str
    dimensions: tuple[str, ...]
    """In the order of the alphabet, without Operation."""

    @property
    def line(self) -> str:
        return " ".join((self.operation, self.name, self.unit, *self.dimensions))


BY_CHANCE: Final = {
    MetricKind("ShutdownTask", "UpdateLease.Success", "Count", ("ShardId",)),
    MetricKind("ShutdownTask", "UpdateLease.Time", "Milliseconds", ("ShardId",)),
}
"""Java takes the operation of UpdateLease from a variable of the whole process: of one shard end in two runs it is the
task of another shard. kcl-host says which it was."""


def kinds_of(points: Iterable[MetricPoint]) -> set[MetricKind]:
    return {
        MetricKind(
            point.operation, point.name, point.unit, tuple(sorted(n for n, _ in point.dimensions if n != "Operation"))
        )
        for point in points
    }


def read_golden(level: str) -> set[MetricKind]:
    lines = msgspec.json.decode(GOLDEN.read_bytes(), type=dict[str, list[str]])[level]
    return {MetricKind(operation, name, unit, tuple(rest)) for operation, name, unit, *rest in map(str.split, lines)}
