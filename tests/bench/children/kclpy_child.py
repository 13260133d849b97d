"""A record processor on amazon_kclpy that only takes what the library gives it. Notes as reading_child.c makes them."""

from __future__ import annotations

import os
import time
from typing import Any, TextIO

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Reading(processor.RecordProcessorBase):  # type: ignore[misc]
    """The note is made just before the library answers: it has no place after that."""

    def __init__(self, notes: TextIO | None) -> None:
        self._notes = notes

    def initialize(self, initialize_input: Any) -> None:
        pass

    def process_records(self, process_records_input: Any) -> None:
        records = process_records_input.records
        if self._notes:
            last = records[-1] if records else None
            number, sub = (last.sequence_number, last.sub_sequence_number) if last else ("-", 0)
            self._notes.write(f"{number} {sub} 0 {len(records)} {time.time_ns()}\n")

    def lease_lost(self, lease_lost_input: Any) -> None:
        pass

    def shard_ended(self, shard_ended_input: Any) -> None:
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        pass


if __name__ == "__main__":
    folder = os.environ.get("KCL_BENCH_NOTES")
    notes = open(f"{folder}/{os.getpid()}", "w", buffering=1) if folder else None
    kcl.KCLProcess(Reading(notes)).run()
