"""Writes every record to stderr, where the host logs it, and checkpoints each batch."""

import sys

from kcl_host.processor import Checkpointer, Record, RecordProcessor, run


class Printer(RecordProcessor):
    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        for record in records:
            print(record.partition_key, record.data.decode(errors="replace"), file=sys.stderr)
        checkpointer.checkpoint_with_retry()


if __name__ == "__main__":
    run(Printer())
