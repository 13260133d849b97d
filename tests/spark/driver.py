"""A child: numbered records into `table`, and what is no JSON into `rejected`. Engine: spark, upload or arrow."""

from __future__ import annotations

import json
import sys
from typing import Any

from kcl_host.spark import ArrowEngine, MicroBatchProcessor, ParquetSink, Retry, SparkEngine, Trigger, json_rows, run


def by_spark(batch: Any) -> Any:
    batch.show(1)  # goes to the log, not into the dialogue
    print("and so does this")
    return json_rows(batch, "number long")


def by_arrow(table: Any) -> Any:
    import pyarrow as pa

    def number(payload: bytes) -> int | None:
        try:
            return int(json.loads(payload)["number"])
        except ValueError:
            return None

    numbers = pa.array([number(data.as_py()) for data in table["data"]], pa.int64())
    table = table.append_column("number", numbers)
    return {
        "table": table.filter(numbers.is_valid()).drop_columns(["data"]),
        "rejected": table.filter(numbers.is_null()).drop_columns(["number"]),
    }


if __name__ == "__main__":
    kind, place, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    engine = ArrowEngine() if kind == "arrow" else SparkEngine(spool=f"{place}.spool", upload=kind == "upload")
    run(
        MicroBatchProcessor(
            by_arrow if kind == "arrow" else by_spark,
            ParquetSink(place),
            Trigger(records=records, age_s=3600),
            engine=engine,
            retry=Retry(give_up_after_s=120),
        )
    )
