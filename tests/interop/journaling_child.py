"""A record processor on the unmodified library of amazon_kclpy: notes what it is told, and checkpoints each batch.

Each child writes a file of its own in the folder INTEROP_JOURNAL, one line of JSON per event; INTEROP_WORKER is its
worker. The times are monotonic, which all processes of a machine share. A batch is noted before its checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor

WORKER, FOLDER = os.environ["INTEROP_WORKER"], os.environ["INTEROP_JOURNAL"]


class Journaling(processor.RecordProcessorBase):  # type: ignore[misc]
    def __init__(self) -> None:
        name = f"{WORKER}-{time.monotonic_ns()}-{os.getpid()}.jsonl"
        self.file = os.open(os.path.join(FOLDER, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self.shard = ""
        self.last: list[str] = []

    def initialize(self, initialize_input: Any) -> None:
        self.shard = initialize_input.shard_id
        self._note("initialized", [str(initialize_input.sequence_number)])

    def process_records(self, process_records_input: Any) -> None:
        numbers = [record.sequence_number for record in process_records_input.records]
        if numbers:
            self._note("records", numbers)
            self.last = numbers[-1:]
            self._checkpoint(process_records_input.checkpointer)

    def lease_lost(self, lease_lost_input: Any) -> None:
        self._note("lease lost")

    def shard_ended(self, shard_ended_input: Any) -> None:
        self._note("shard ended")
        self.last = []
        self._checkpoint(shard_ended_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        self._note("shutdown requested")
        self._checkpoint(shutdown_requested_input.checkpointer)

    def _checkpoint(self, checkpointer: Any) -> None:
        try:
            checkpointer.checkpoint()
        except kcl.CheckpointError as error:
            self._note(f"refused: {error.value}", self.last)
        else:
            self._note("checkpointed", self.last)

    def _note(self, event: str, numbers: list[str] | None = None) -> None:
        line = {"at_s": time.monotonic(), "worker": WORKER, "shard": self.shard, "event": event}
        os.write(self.file, json.dumps({**line, "numbers": numbers or []}).encode() + b"\n")


if __name__ == "__main__":
    kcl.KCLProcess(Journaling()).run()
