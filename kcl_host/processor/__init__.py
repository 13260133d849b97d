"""Write a record processor in Python: subclass RecordProcessor, call `run`. Standard library only.

    from kcl_host.processor import Checkpointer, Record, RecordProcessor, run

    class Printer(RecordProcessor):
        def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
            for record in records:
                print(record.partition_key, record.data)    # print() goes to stderr, which the host logs
            checkpointer.checkpoint()

    if __name__ == "__main__":
        run(Printer())

The host starts one process per shard, so a processor sees the records of one shard, in order.
"""

from kcl_host.processor.record_processor import (
    Checkpointer,
    CheckpointError,
    ExtensionNotEnabled,
    PendingCheckpoint,
    PreparedCheckpointer,
    Record,
    RecordProcessor,
    run,
)

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "ExtensionNotEnabled",
    "PendingCheckpoint",
    "PreparedCheckpointer",
    "Record",
    "RecordProcessor",
    "run",
]
