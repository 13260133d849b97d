"""Checkpoints once, at the user record whose number is STOP_AT (from 1), and never again; 0: each batch.

STOP_OUT gets a line "sequence number, sub-sequence number, data" for each record.
"""

from __future__ import annotations

import os

from kcl_host.processor import Checkpointer, Record, RecordProcessor, run

STOP_AT = int(os.environ["STOP_AT"])


class StopsInside(RecordProcessor):
    def __init__(self) -> None:
        self.seen = 0

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        with open(os.environ["STOP_OUT"], "a") as out:
            for record in records:
                self.seen += 1
                out.write(f"{record.sequence_number} {record.sub_sequence_number} {record.data.decode()}\n")
                if self.seen == STOP_AT:
                    checkpointer.checkpoint(record.sequence_number, record.sub_sequence_number)
        if not STOP_AT:
            checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """Leaves the checkpoint where it is."""


if __name__ == "__main__":
    run(StopsInside())
