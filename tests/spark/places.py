"""Every exactly-once sink on a table of its own, behind one small interface for tests: Arrow in place of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kcl_host.processor import Checkpointer, CheckpointError
from kcl_host.spark import ArrowEngine, MicroBatchProcessor, ParquetSink, Retry, Sink, Trigger, rewind
from kcl_host.spark.chain import ChainKey
from kcl_host.spark.lines import Record
from kcl_host.spark.parquet import views
from kcl_host.spark.position import Position
from kcl_host.spark.processor import Outside
from kcl_host.spark.s3 import S3Storage
from kcl_host.spark.storage import LocalStorage, Storage
from tests.spark.world import ENVIRON, SHARD

BASE = 49590338271490256608559692538361571095921575989136588898
ARRIVED_MS = 1735689600123


def position(number: int) -> Position:
    """Records 3, 4 and 5 are one aggregate, and so on."""
    return Position(BASE + number // 3, number % 3)


def record(number: int) -> Record:
    at = position(number)
    return Record(
        sequence_number=str(at.sequence_number),
        sub_sequence_number=at.sub_sequence_number,
        partition_key="k",
        arrived_ms=ARRIVED_MS + number,
        data=str(number).encode(),
    )


def transform(batch: pa.Table) -> dict[str, pa.Table]:
    """Even numbers to `table`, odd ones to `other`."""
    numbers = pa.array([int(data) for data in batch["data"].to_pylist()], pa.int64())
    odd = pa.array([number % 2 == 1 for number in numbers.to_pylist()])
    rows = batch.select(["shard_id", "sequence_number", "sub_sequence_number", "approximate_arrival_timestamp"])
    rows = rows.append_column("number", numbers)
    return {"table": rows.filter(pc.invert(odd)), "other": rows.filter(odd)}


class Place(Protocol):
    engine: ArrowEngine

    def sink(self) -> Sink:
        """As another process would have it."""
        ...

    def numbers(self, table: str) -> list[int]: ...
    def rewind(self, key: ChainKey, to: Position | None) -> None:
        """Takes the rows above it out."""
        ...

    def close(self) -> None: ...


class ParquetPlace:
    engine = ArrowEngine()

    def __init__(self, folder: Path) -> None:
        self.storage: Storage = LocalStorage(folder)

    def sink(self) -> Sink:
        return ParquetSink(self.storage)

    def numbers(self, table: str) -> list[int]:
        files = [file for view in views(self.storage).values() for file in view.tables.get(table, [])]
        return [n for file in files for n in pq.ParquetFile(self._open(file.path)).read()["number"].to_pylist()]

    def rewind(self, key: ChainKey, to: Position | None) -> None:
        rewind(self.storage, key, to)

    def close(self) -> None:
        pass

    def _open(self, path: str) -> Any:
        return self.storage.source(path)


class S3Place(ParquetPlace):
    """On moto in this process: Arrow's own S3 client would need a server, so files go through boto3's."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.storage = S3Storage(f"s3://lake/{prefix}", client=client, filesystem=_Files(client))
        self.engine = _S3Engine(client)


class _Files:
    def __init__(self, client: Any) -> None:
        self._client = client

    def open_input_file(self, path: str) -> Any:
        bucket, _, name = path.partition("/")
        return pa.BufferReader(self._client.get_object(Bucket=bucket, Key=name)["Body"].read())


class _S3Engine(ArrowEngine):
    def __init__(self, client: Any) -> None:
        self._client = client

    def write(self, frame: Any, uri: str) -> None:
        bucket, _, name = uri.removeprefix("s3a://").partition("/")
        content = pa.BufferOutputStream()
        pq.write_table(frame, content)
        self._client.put_object(Bucket=bucket, Key=f"{name}/part-0.parquet", Body=content.getvalue().to_pybytes())


class DeltaPlace:
    engine = ArrowEngine()

    def __init__(self, folder: Path) -> None:
        self.folders = {"table": folder / "events", "other": folder / "other"}

    def sink(self) -> Any:
        from kcl_host.spark.delta import DeltaSink

        return DeltaSink(self.folders)

    def numbers(self, table: str) -> list[int]:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.folders[table])):
            return []
        found = DeltaTable(self.folders[table]).to_pyarrow_table()
        return cast("list[int]", found["number"].to_pylist())

    def rewind(self, key: ChainKey, to: Position | None) -> None:
        self.sink().rewind(key, to, _above(to))

    def close(self) -> None:
        pass


class IcebergPlace:
    """One catalog in SQLite for all processes."""

    engine = ArrowEngine()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._catalogs: list[Any] = []
        self.catalog().create_namespace("lake")

    def catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        uri = f"sqlite:///{self.folder}/catalog.db"
        self._catalogs.append(SqlCatalog("lake", uri=uri, warehouse=f"file://{self.folder}/warehouse"))
        return self._catalogs[-1]

    def sink(self) -> Any:
        from kcl_host.spark.iceberg import IcebergSink, IcebergTable

        catalog = self.catalog()
        return IcebergSink(
            {name: IcebergTable(catalog, f"lake.{name}", self.folder / name) for name in ("table", "other")}
        )

    def numbers(self, table: str) -> list[int]:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return cast("list[int]", self.catalog().load_table(f"lake.{table}").scan().to_arrow()["number"].to_pylist())
        except NoSuchTableError:
            return []

    def rewind(self, key: ChainKey, to: Position | None) -> None:
        self.sink().rewind(key, to, _above(to))

    def close(self) -> None:
        for catalog in self._catalogs:
            catalog.engine.dispose()


class PostgresPlace:
    engine = ArrowEngine()

    def __init__(self, conninfo: str, name: str) -> None:
        import psycopg

        self.conninfo = conninfo
        self.schema = f"kcl_{name}"
        self.tables = {"table": f"{name}.events", "other": f"{name}.others"}
        self.connection = psycopg.connect(conninfo, autocommit=True)
        self._sinks: list[Any] = []
        self.execute(f"CREATE SCHEMA {name}")
        for table in self.tables.values():
            self.execute(
                f"CREATE TABLE {table} (id serial PRIMARY KEY, shard_id text NOT NULL, sequence_number text NOT NULL, "
                "sub_sequence_number bigint, approximate_arrival_timestamp timestamptz, number bigint)"
            )

    def execute(self, statement: str) -> Any:
        return self.connection.execute(statement.encode())

    def sink(self) -> Any:
        from kcl_host.spark.postgres import PostgresSink

        self._sinks.append(PostgresSink(self.conninfo, self.tables, schema=self.schema))
        return self._sinks[-1]

    def numbers(self, table: str) -> list[int]:
        return [number for (number,) in self.execute(f"SELECT number FROM {self.tables[table]}").fetchall()]

    def rewind(self, key: ChainKey, to: Position | None) -> None:
        def delete(connection: Any) -> None:
            for table in self.tables.values():
                connection.execute(f"DELETE FROM {table} WHERE {_above(to)}")

        self.sink().rewind(key, to, delete)

    def close(self) -> None:
        for one in (*self._sinks, self.connection):
            one.close()


def _above(to: Position | None) -> str:
    """In SQL. Sequence numbers of one stream have one length."""
    if to is None:
        return f"shard_id = '{SHARD}'"
    return (
        f"shard_id = '{SHARD}' AND (sequence_number > '{to.sequence_number}' OR "
        f"(sequence_number = '{to.sequence_number}' AND sub_sequence_number > {to.sub_sequence_number}))"
    )


class Process:
    """A processor on a place, and the host's part: records by their numbers."""

    def __init__(self, place: Place, *, transform: Any = transform, checkpoint: int | None = None) -> None:
        self.sink = place.sink()
        self.checkpoint: Position | None = None if checkpoint is None else position(checkpoint)
        self.owner = True
        self._now_s = 0.0
        self.processor = MicroBatchProcessor(
            transform,
            self.sink,
            Trigger(records=1000, age_s=3600),
            engine=place.engine,
            retry=Retry(give_up_after_s=20, first_pause_s=0.01, longest_pause_s=0.1),
            outside=Outside(environ=ENVIRON),
        )
        words = ("TRIM_HORIZON", 0) if self.checkpoint is None else (str(self.checkpoint[0]), self.checkpoint[1])
        self.processor.initialize(SHARD, *words)

    def receive(self, first: int, last: int) -> Process:
        self.processor.process_records([record(number) for number in range(first, last + 1)], self._checkpointer)
        return self

    def flush(self) -> Process:
        self.processor.shutdown_requested(self._checkpointer)
        return self

    @property
    def _checkpointer(self) -> Checkpointer:
        process = self

        class Answers:
            def checkpoint(self, sequence_number: str, sub_sequence_number: int) -> None:
                if not process.owner:
                    raise CheckpointError("ShutdownException")
                process.checkpoint = Position(int(sequence_number), sub_sequence_number)

        return cast("Checkpointer", Answers())
