"""PySpark drivers as record processors: micro-batches, exactly once in the table (docs/spark.md).

    from kcl_host.spark import MicroBatchProcessor, ParquetSink, Trigger, json_rows, run

    def transform(batch):                    # a Spark DataFrame of the shard's records
        return json_rows(batch, "id long, user string, at timestamp")

    if __name__ == "__main__":
        run(MicroBatchProcessor(transform, ParquetSink("/data/events"), Trigger(age_s=10)))

and in any Spark job:

    from kcl_host.spark import read_committed
    events = read_committed(spark, "/data/events")

Nothing here imports pyspark or pyarrow before it is needed.
"""

from kcl_host.spark.batch import Trigger
from kcl_host.spark.chain import ChainKey
from kcl_host.spark.engine import ArrowEngine, SparkEngine
from kcl_host.spark.maintenance import compact, rewind, vacuum
from kcl_host.spark.parquet import ParquetSink, committed_files, read_committed
from kcl_host.spark.position import Position
from kcl_host.spark.processor import MicroBatchProcessor, Retry, run
from kcl_host.spark.rows import Rows, json_rows, text_rows
from kcl_host.spark.sinks import AtLeastOnceSink, Batch, Sink

__all__ = [
    "ArrowEngine",
    "AtLeastOnceSink",
    "Batch",
    "ChainKey",
    "MicroBatchProcessor",
    "ParquetSink",
    "Position",
    "Retry",
    "Rows",
    "Sink",
    "SparkEngine",
    "Trigger",
    "committed_files",
    "compact",
    "json_rows",
    "read_committed",
    "rewind",
    "run",
    "text_rows",
    "vacuum",
]
