"""The open micro-batch of one shard: what is in it and when it is due. Pure; `now_s` is an argument."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from operator import lt
from typing import Any, Protocol

import msgspec

from kcl_host.spark.position import Position, at_or_below, count_at_or_below


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """When a batch is committed: at the first line from the host that reaches one of these."""

    records: int = 100_000
    bytes: int = 64 * 1024 * 1024
    """Of payload. With the last line (a GetRecords answer holds up to 10 MiB) it may be that much more."""
    age_s: float = 10.0
    """Since its first record, also when no more come."""

    def __post_init__(self) -> None:
        for name in ("records", "bytes", "age_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"a trigger's {name} must be above 0")


class Chunk(Protocol):
    """The columns of one line (an Arrow table)."""

    @property
    def nbytes(self) -> int: ...
    def slice(self, offset: int) -> Any:
        """Without the first records."""
        ...


class _Part(msgspec.Struct):
    columns: Any
    records: int
    end: Position


class OpenBatch:
    """Records above the head, in order, and the position up to which all were received.

    Invariant: every record of the shard above the head (or the start) up to `end` was added. `records` of them are
    here; those that the head covers were dropped.
    """

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.records = 0
        self.bytes = 0
        self.end: Position | None = None
        """Of the last record since `clear`, dropped ones too; None when there was none."""
        self.since_s = 0.0
        self.arrived_ms: int | None = None

    def __repr__(self) -> str:
        return f"<OpenBatch {self.records} records, {self.bytes} bytes, up to {self.end}>"

    def see(self, end: Position, arrived_ms: int | None, now_s: float) -> None:
        """Records up to `end` were received."""
        if self.end is None:
            self.since_s = now_s
        self.end = end
        self.arrived_ms = arrived_ms

    def add(self, columns: Chunk, records: int, end: Position) -> None:
        """Those among them that are above the head."""
        self.parts.append(_Part(columns, records, end))
        self.records += records
        self.bytes += columns.nbytes

    def drop(self, head: Position | None, positions: Callable[[Any], Sequence[Position]]) -> int:
        """Takes out what somebody else has committed; how many records that were."""
        dropped = 0
        while self.parts and at_or_below(self.parts[0].end, head):
            dropped += self.parts.pop(0).records
        if self.parts:
            first = self.parts[0]
            covered = count_at_or_below(positions(first.columns), head)
            if covered:
                self.parts[0] = _Part(first.columns.slice(covered), first.records - covered, first.end)
                dropped += covered
        self.records -= dropped
        self.bytes = sum(part.columns.nbytes for part in self.parts)
        return dropped

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def due(self, trigger: Trigger, now_s: float) -> str | None:
        """Why it is to be committed now: records, bytes or age; None when it is not."""
        if self.records >= trigger.records:
            return "records"
        if self.bytes >= trigger.bytes:
            return "bytes"
        if self.end is not None and now_s - self.since_s >= trigger.age_s:
            return "age"
        return None

    def due_in_s(self, trigger: Trigger, now_s: float) -> float | None:
        """Seconds until its age makes it due; None when nothing was received since the last one."""
        return None if self.end is None else max(0.0, self.since_s + trigger.age_s - now_s)


class Placed(Protocol):
    """A record."""

    @property
    def sequence_number(self) -> str: ...
    @property
    def sub_sequence_number(self) -> int: ...
    @property
    def position(self) -> Position: ...


def above(records: Sequence[Placed], floor: Position | None) -> int:
    """How many of a line's records to leave out, since the head has them or they were received before.

    Raises ValueError when the records are not in order: to commit them would cover others that never came.
    """
    places: list[tuple[str, int]] | list[Position]
    places = [(record.sequence_number, record.sub_sequence_number) for record in records]
    if len({len(number) for number, _ in places}) > 1:  # texts of one length compare as their numbers, and faster
        places = [record.position for record in records]
    if not all(map(lt, places, islice(places, 1, None))):
        raise ValueError(
            f"the host delivered records from {places[0]} to {places[-1]} in disorder: a shard's come in order"
        )
    return 0 if floor is None else bisect_right(records, floor, key=lambda record: record.position)
