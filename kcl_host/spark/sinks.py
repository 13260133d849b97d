"""What a table has to offer so that rows get into it exactly once, and a way to use one that has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from kcl_host.spark.chain import ChainKey
from kcl_host.spark.commit_chain import Head, boot_s
from kcl_host.spark.engine import Engine
from kcl_host.spark.position import Position


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit covers: all records of the shard above the head up to `end`."""

    end: Position
    records: int
    arrived_ms: int | None
    """When Kinesis received the last one, epoch milliseconds."""


class Sink(Protocol):
    """A place for rows that keeps, per shard, up to which record it has them, in the same atomic act as the rows.

    Errors of any call may be tried again with a new head, except Rewound and ValueError.
    """

    exactly_once: bool
    """Whether rows and position are one act. If not, `head` knows nothing."""

    def head(self, key: ChainKey) -> Head:
        """Read anew from where it is kept."""
        ...

    def problem(self, key: ChainKey, head: Head, checkpoint: Position | None) -> str | None:
        """Why a processor must not start to deliver from this checkpoint; None when it may. Raises OSError for a place
        that cannot be used at all."""
        ...

    def write(self, key: ChainKey, engine: Engine, frames: Mapping[str, Any], batch: Batch) -> Any:
        """Writes rows, by name of the table, where nobody sees them. What it returns is for `commit`."""
        ...

    def commit(self, key: ChainKey, head: Head, batch: Batch, written: Any) -> Head | None:
        """Shows them, if the chain still ends at `head`: the new head. None when it does not.

        Raises Rewound when nothing of it may be checkpointed.
        """
        ...


def head_at(generation: int, position: Position | None, seen_s: float) -> Head:
    """For sinks that keep a generation and a position, and no chain."""
    return Head(
        position=position,
        generation=generation,
        commits_since_layout=0,
        has_history=position is not None or generation > 0,
        seen_s=seen_s,
    )


class AtLeastOnceSink:
    """Calls `write(frame, batch)` once per table and batch. After a crash before the checkpoint the same records come
    again, cut into other batches: `batch.end` and the columns `sequence_number`, `sub_sequence_number` are there for a
    `write` that can tell repetitions itself."""

    exactly_once = False

    def __init__(self, write: Callable[[Any, str, Batch], None]) -> None:
        """`write` gets the frame, the table's name, and the batch."""
        self._write = write

    def head(self, key: ChainKey) -> Head:
        return head_at(0, None, boot_s())

    def problem(self, key: ChainKey, head: Head, checkpoint: Position | None) -> str | None:
        return None

    def write(self, key: ChainKey, engine: Engine, frames: Mapping[str, Any], batch: Batch) -> None:
        for name, frame in frames.items():
            self._write(frame, name, batch)

    def commit(self, key: ChainKey, head: Head, batch: Batch, written: None) -> Head:
        return msgspec.structs.replace(head, position=batch.end, seen_s=boot_s())
