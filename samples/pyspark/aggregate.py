"""A Spark job over the committed table: events per hour and key, and how many of them came late.

    SPARK_REMOTE=sc://127.0.0.1:15002 python samples/pyspark/aggregate.py events

It may run at any time, beside the ingest: it sees whole commits only, and each event once.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kcl_host.spark import read_committed

EVENTS = "id long, key string, at timestamp, value double, shard_id string, approximate_arrival_timestamp timestamp"


def hourly(events: DataFrame) -> DataFrame:
    """An event is late when it arrived after the hour it belongs to. Late ones count where they belong."""
    hour = F.date_trunc("hour", "at")
    late = F.col("approximate_arrival_timestamp") > hour + F.expr("interval 1 hour")
    return (
        events.groupBy(hour.alias("hour"), "key")
        .agg(F.count("*").alias("events"), F.count_if(late).alias("late"), F.round(F.avg("value"), 2).alias("mean"))
        .orderBy("hour", "key")
    )


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("EVENTS_TABLE", "events")
    spark = SparkSession.builder.getOrCreate()
    hourly(read_committed(spark, place, schema=EVENTS)).show(50, truncate=False)
    rejected = read_committed(spark, place, "rejected", schema="reason string")
    rejected.groupBy("reason").count().show(truncate=False)
    spark.stop()
