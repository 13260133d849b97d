"""Counts records as the demo's processor does, but dies of each batch that has a record which begins with `poison`."""

from __future__ import annotations

import os
import sys

from kcl_host.processor import Checkpointer, Record, run
from kcl_host.processor.demo import CountRecords


class DiesOnPoison(CountRecords):
    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        if any(record.data.startswith(b"poison") for record in records):
            print(f"ERROR {len(records)} records, and one of them is poison", file=sys.stderr, flush=True)
            os._exit(3)
        super().process_records(records, checkpointer)


if __name__ == "__main__":
    run(DiesOnPoison(os.open(os.environ["KCL_DEMO_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), True))
