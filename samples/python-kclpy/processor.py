"""Writes every record to stderr, where the host logs it, and checkpoints each batch. On Amazon's amazon_kclpy."""

import sys

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


def checkpoint(checkpointer):
    try:
        checkpointer.checkpoint()
    except kcl.CheckpointError as e:  # Nothing is lost by a refusal: the next checkpoint makes up for it.
        print("WARN checkpoint refused:", e, file=sys.stderr)


class Printer(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        pass

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            print(record.partition_key, record.binary_data.decode(errors="replace"), file=sys.stderr)
        checkpoint(process_records_input.checkpointer)

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        checkpoint(shard_ended_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input):
        checkpoint(shutdown_requested_input.checkpointer)


if __name__ == "__main__":
    kcl.KCLProcess(Printer()).run()
