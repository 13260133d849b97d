"""Checkpoints inside an aggregate, at the user record with sub-sequence number 2 in the middle of its batch.

KCL_DEMO_OUT gets a line of JSON per event, each with the number of the process on this shard. The first process kills
itself after that checkpoint, the second one waits for its host to be killed, all later ones checkpoint each batch.
"""

from __future__ import annotations

import json
import os
import signal

from kcl_host.processor import Checkpointer, Record, RecordProcessor, run

OUT = os.environ["KCL_DEMO_OUT"]


class CheckpointsInside(RecordProcessor):
    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        self._note("initialized", sequence_number=sequence_number, sub_sequence_number=sub_sequence_number)

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        for r in records:
            self._note(
                "record",
                sequence_number=r.sequence_number,
                sub_sequence_number=r.sub_sequence_number,
                partition_key=r.partition_key,
                data=r.data.decode(),
            )
        if self.incarnation >= 2:
            checkpointer.checkpoint()
            return
        inside = [r for r in records if r.sub_sequence_number == 2]
        if len(inside) < 2:
            return
        last = inside[-1]
        checkpointer.checkpoint(last.sequence_number, last.sub_sequence_number)
        self._note("checkpointed", sequence_number=last.sequence_number, sub_sequence_number=2)
        if self.incarnation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def _note(self, event: str, **facts: object) -> None:
        line = {"event": event, "incarnation": self.incarnation, **facts}
        os.write(OUT_FD, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    before = 0
    if os.path.exists(OUT):
        with open(OUT) as file:
            before = sum('"initialized"' in line for line in file)
    OUT_FD = os.open(OUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    run(CheckpointsInside(before))
