"""The processor of `kcl-host demo`: counts records and checkpoints each batch.

KCL_DEMO_OUT: a file to which one line per record is appended, "shard sequence-number sub-sequence-number data", written
before the checkpoint. DEMO_CHECKPOINT=off: no checkpoints but the last one.
"""

from __future__ import annotations

import os
import sys

from kcl_host.processor import Checkpointer, CheckpointError, Record, RecordProcessor, run


class CountRecords(RecordProcessor):
    """`out` is a descriptor opened for appending: children of several shards may share the file."""

    def __init__(self, out: int | None, checkpoint_each_batch: bool) -> None:
        self.out = out
        self.checkpoint_each_batch = checkpoint_each_batch
        self.shard_id = ""
        self.count = 0

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        self.shard_id = shard_id

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        self.count += len(records)
        if self.out is not None:
            lines = "".join(self._line(record) for record in records)
            os.write(self.out, lines.encode())  # in one piece, so that lines of several children do not mix
        if self.checkpoint_each_batch:
            try:
                checkpointer.checkpoint()
            except CheckpointError as e:  # the next one covers this one too
                print(f"WARN {self.shard_id}: checkpoint refused: {e.value}", file=sys.stderr)

    def lease_lost(self) -> None:
        self._say("lease lost")

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        super().shard_ended(checkpointer)
        self._say("shard ended")

    def _line(self, record: Record) -> str:
        data = record.data.decode(errors="backslashreplace").replace("\n", "\\n")
        return f"{self.shard_id} {record.sequence_number} {record.sub_sequence_number} {data}\n"

    def _say(self, what: str) -> None:
        print(f"INFO {self.shard_id}: {what} after {self.count} records", file=sys.stderr)


if __name__ == "__main__":
    path = os.environ.get("KCL_DEMO_OUT")
    run(
        CountRecords(
            out=os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None,
            checkpoint_each_batch=os.environ.get("DEMO_CHECKPOINT") != "off",
        )
    )
