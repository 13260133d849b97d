# mypy: disable-error-code="import-not-found, import-untyped"
"""Parquet files under a commit chain: a table with exactly-once commits that needs nothing but a file system.

    data/<shard>/<attempt>/<table>/part-*.parquet     written first; a file that no manifest names does not exist
    _commits/...                                      see `commit_chain`

`read_committed` gives the table; a plain scan of `data` would see repeated and unfinished attempts.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kcl_host.spark import chain
from kcl_host.spark.chain import ChainKey, DataFile, Manifest, View
from kcl_host.spark.commit_chain import Chain, Head, chains
from kcl_host.spark.engine import Engine
from kcl_host.spark.faults import reach
from kcl_host.spark.position import Position, encode
from kcl_host.spark.schema import merge_schemas, schema_name
from kcl_host.spark.sinks import Batch
from kcl_host.spark.storage import LocalStorage, Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DATA: Final = "data"
TABLE: Final = "table"
"""Name of the table when a transform returns one frame."""
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"


class Written(msgspec.Struct, frozen=True):
    """Files that nobody sees yet, by table."""

    tables: dict[str, list[DataFile]]
    schemas: dict[str, str]


class ParquetSink:
    """`place` is a folder, or a store. A folder has to be the same for this process and for every Spark executor."""

    exactly_once = True

    def __init__(self, place: str | os.PathLike[str] | Storage) -> None:
        self.storage = open_storage(place)
        self._chains: dict[ChainKey, Chain] = {}

    def __repr__(self) -> str:
        return f"<ParquetSink {self.storage!r}>"

    def chain(self, key: ChainKey) -> Chain:
        return self._chains.setdefault(key, Chain(self.storage, key))

    def head(self, key: ChainKey) -> Head:
        return self.chain(key).head()

    def problem(self, key: ChainKey, head: Head, checkpoint: Position | None) -> str | None:
        if not head.has_history:
            self.storage.check()
            return self.chain(key).check_epoch()
        view = View(generation=head.generation, head=head.position)
        return chain.start_problem(view, checkpoint)

    def write(self, key: ChainKey, engine: Engine, frames: Mapping[str, Any], batch: Batch) -> Written:
        attempt = f"{DATA}/{_plain(key.shard)}/{uuid.uuid4().hex}"
        tables: dict[str, list[DataFile]] = {}
        schemas: dict[str, str] = {}
        for name, frame in frames.items():
            folder = f"{attempt}/{_plain(name)}"
            engine.write(frame, self.storage.uri(folder))
            files = [describe(self.storage, f"{folder}/{file}", schemas) for file in self.storage.files(folder)]
            tables[name] = [file for file in files if file is not None]
        reach("written")
        self.storage.sync([file.path for files in tables.values() for file in files])
        reach("synced")
        return Written({name: files for name, files in tables.items() if files}, schemas)

    def commit(self, key: ChainKey, head: Head, batch: Batch, written: Written) -> Head | None:
        return self.chain(key).commit(
            head,
            Manifest(
                commit=uuid.uuid4().hex,
                start=encode(head.position),
                end=encode(batch.end),
                records=batch.records,
                tables=written.tables,
                schemas=written.schemas,
                written_ms=time.time_ns() // 1_000_000,
                writer=os.environ.get("KCL_HOST_WORKER", ""),
                arrived_ms=batch.arrived_ms,
            ),
        )


def open_storage(place: str | os.PathLike[str] | Storage) -> Storage:
    if isinstance(place, (str, os.PathLike)):
        return LocalStorage(place)
    return place


def describe(storage: Storage, name: str, schemas: dict[str, str]) -> DataFile | None:
    """What a manifest says of a Parquet file, from its footer; adds its columns to `schemas`.

    None for a file without rows, or one that is no Parquet (_SUCCESS).
    """
    import pyarrow.parquet as pq

    if not name.endswith(".parquet"):
        return None
    with pq.ParquetFile(storage.source(name)) as file:
        metadata = file.metadata
        if metadata.num_rows == 0:
            return None
        schema = _spark_schema(file.schema_arrow)
        size = metadata.serialized_size + sum(
            metadata.row_group(i).column(j).total_compressed_size
            for i in range(metadata.num_row_groups)
            for j in range(metadata.num_columns)
        )
    short = schema_name(schema)
    schemas[short] = schema
    return DataFile(path=name, rows=metadata.num_rows, bytes=size, schema=short)


def views(place: str | os.PathLike[str] | Storage, *, application: str | None = None) -> dict[ChainKey, View]:
    """What is committed, shard by shard; of all applications, or of one."""
    storage = open_storage(place)
    keys = [key for key in chains(storage) if application in (None, key.application)]
    return {key: Chain(storage, key).view() for key in keys}


def committed_files(
    place: str | os.PathLike[str] | Storage, table: str = TABLE, *, application: str | None = None
) -> tuple[list[str], str | None]:
    """Every committed file of a table as Spark and Arrow name it, and its columns as Spark's JSON (None: no file).

    Raises ValueError when the files' columns have types that do not go together.
    """
    storage = open_storage(place)
    paths: list[str] = []
    schemas: dict[str, str] = {}
    for view in views(storage, application=application).values():
        for file in view.tables.get(table, []):
            paths.append(storage.uri(file.path))
            schemas[file.schema] = view.schemas[file.schema]
    return paths, merge_schemas(schemas.values()) if schemas else None


def read_committed(
    spark: SparkSession,
    place: str | os.PathLike[str] | Storage,
    table: str = TABLE,
    *,
    application: str | None = None,
    schema: str | None = None,
) -> DataFrame:
    """The table as of now: each committed row once, of all shards. A column that a file lacks is null in its rows.

    `schema` (DDL) is for a table that may still be empty; without it an empty table has no columns.
    """
    from pyspark.sql.types import StructType

    paths, found = committed_files(place, table, application=application)
    if found is None:
        return spark.createDataFrame([], schema or StructType([]))
    return spark.read.schema(schema or StructType.fromJson(json.loads(found))).parquet(*paths)


def _plain(name: str) -> str:
    """For the name of a folder that Spark writes: it hides those that begin with "_" or ".", and parses "=" and ":"."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("_") or "-"


def _spark_schema(schema: pa.Schema) -> str:
    """Spark's own note in a file it wrote; for files of Arrow the same words are made from the types."""
    from kcl_host.spark.schema import of_arrow

    noted = (schema.metadata or {}).get(_SPARK_SCHEMA)
    return noted.decode() if noted else of_arrow(schema)
