"""A child: numbered records into `table`, and what is no JSON into `rejected`. Engine: spark, upload or arrow.

Its place is a folder, delta:FOLDER, iceberg:FOLDER, or postgres:SCHEMA in the database that TEST_POSTGRES says.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from kcl_host.spark import (
    ArrowEngine,
    MicroBatchProcessor,
    ParquetSink,
    Retry,
    Sink,
    SparkEngine,
    Trigger,
    json_rows,
    run,
)


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


def sink_of(place: str) -> Sink:
    kind, _, where = place.rpartition(":")
    if kind == "delta":
        from kcl_host.spark.delta import DeltaSink

        return DeltaSink({name: f"{where}/{name}" for name in ("table", "rejected")})
    if kind == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        from kcl_host.spark.iceberg import IcebergSink, IcebergTable

        catalog = SqlCatalog("lake", uri=f"sqlite:///{where}/catalog.db", warehouse=f"file://{where}/warehouse")
        return IcebergSink({n: IcebergTable(catalog, f"lake.{n}", f"{where}/{n}") for n in ("table", "rejected")})
    if kind == "postgres":
        from kcl_host.spark.postgres import PostgresSink

        tables = {name: f"{where}.{name}" for name in ("table", "rejected")}
        jar = os.environ.get("TEST_POSTGRES_JAR")
        return PostgresSink(os.environ["TEST_POSTGRES"], tables, schema=f"{where}_own", driver_jar=jar)
    return ParquetSink(place)


if __name__ == "__main__":
    kind, place, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    spool = f"{place}.spool" if place.startswith("/") else None
    engine = ArrowEngine() if kind == "arrow" else SparkEngine(spool=spool, upload=kind == "upload")
    run(
        MicroBatchProcessor(
            by_arrow if kind == "arrow" else by_spark,
            sink_of(place),
            Trigger(records=records, age_s=float(sys.argv[4]) if len(sys.argv) > 4 else 3600),
            engine=engine,
            retry=Retry(give_up_after_s=120),
        )
    )
