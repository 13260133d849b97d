"""Notes what it is given and what becomes of its checkpoints, with the time: one line of JSON per event.

FLEET_NOTES is the file, shared by all children of a fleet; a batch is noted before the checkpoint that covers it.
FLEET_HOLD is a folder: while it holds a file with the name of its worker, a child waits between the two.
FLEET_CHECKPOINT_EACH: so many batches to a checkpoint; what is left over is checkpointed in shutdownRequested.
"""

from __future__ import annotations

import json
import os
import time

from kcl_host.processor import Checkpointer, CheckpointError, Record, RecordProcessor, run

WORKER, SHARD, HOLD = os.environ["KCL_HOST_WORKER"], os.environ["KCL_HOST_SHARD"], os.environ["FLEET_HOLD"]
CHECKPOINT_EACH = int(os.environ["FLEET_CHECKPOINT_EACH"])


class Timed(RecordProcessor):
    def __init__(self, notes: int) -> None:
        self.notes = notes
        self.batches = 0

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        self._note("initialized", numbers=[sequence_number])

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        numbers = [record.sequence_number for record in records]
        self._note("records", numbers=numbers)
        while os.path.exists(os.path.join(HOLD, WORKER)):
            time.sleep(0.02)
        self.batches += 1
        if self.batches % CHECKPOINT_EACH == 0:
            self._checkpoint(checkpointer, numbers[-1:])

    def lease_lost(self) -> None:
        self._note("lease lost")

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self._checkpoint(checkpointer, ["SHARD_END"])

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        self._note("shutdown requested")
        self._checkpoint(checkpointer, [])

    def _checkpoint(self, checkpointer: Checkpointer, numbers: list[str]) -> None:
        try:
            checkpointer.checkpoint()
        except CheckpointError as error:
            self._note("refused", numbers=numbers, error=error.value)
        else:
            self._note("checkpointed", numbers=numbers)

    def _note(self, event: str, **facts: object) -> None:
        # One clock for all processes of a machine, and one write per line, so that those of several children never mix.
        line = {"at_s": time.monotonic(), "worker": WORKER, "shard": SHARD, "event": event, **facts}
        os.write(self.notes, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    run(Timed(os.open(os.environ["FLEET_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)))
