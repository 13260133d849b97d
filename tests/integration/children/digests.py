"""Writes of each record: shard, number, sub-sequence number, and "size sha256" of its data; for records too big for a
file of their texts. Otherwise the child of the demo."""

from __future__ import annotations

import hashlib
import os

from kcl_host.processor import Record, run
from kcl_host.processor.demo import CountRecords


class Digests(CountRecords):
    def _line(self, record: Record) -> str:
        digest = hashlib.sha256(record.data).hexdigest()
        return f"{self.shard_id} {record.sequence_number} {record.sub_sequence_number} {len(record.data)} {digest}\n"


if __name__ == "__main__":
    out = os.open(os.environ["KCL_DEMO_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    run(Digests(out=out, checkpoint_each_batch=True))
