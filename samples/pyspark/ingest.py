"""JSON events from a Kinesis stream into a table of Parquet files, each exactly once; what is no event is kept apart.

Started by kcl-host, once per shard: see ingest.properties.
"""

import os

from kcl_host.spark import MicroBatchProcessor, ParquetSink, Rows, Trigger, json_rows, run

EVENTS = "id long, key string, at timestamp, value double"


def transform(batch):  # a DataFrame: stream, shard_id, sequence_number, ..., data
    rows = json_rows(batch, EVENTS)
    events = rows.accepted.select("id", "key", "at", "value", "shard_id", "approximate_arrival_timestamp")
    return Rows(events, rows.rejected)  # the tables "table" and "rejected"


if __name__ == "__main__":
    run(
        MicroBatchProcessor(
            transform,
            ParquetSink(os.environ.get("EVENTS_TABLE", "events")),
            Trigger(records=100_000, age_s=float(os.environ.get("EVENTS_AGE_S", "10"))),
        )
    )
