# mypy: disable-error-code="import-not-found, import-untyped"
"""One Delta table by way of the `deltalake` package: a handle for reading and committing, and files that are there
already. What is told with it (positions, exactly once) is in `delta`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kcl_host.spark.parquet import open_storage
from kcl_host.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Schema

LOG: Final = "_delta_log"


class NewFile(msgspec.Struct, frozen=True):
    """A file below a table's folder that no commit names yet."""

    path: str
    rows: int
    bytes: int


class DeltaLog:
    """The table in a folder or store; `storage_options` are deltalake's, for a store."""

    def __init__(
        self, place: str | os.PathLike[str] | Storage, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.store = open_storage(place)
        self._options = dict(storage_options or {})

    def __repr__(self) -> str:
        return f"<DeltaLog {self.store!r}>"

    def open(self) -> DeltaHandle | None:
        """The table as of now; None when there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with _errors():
            try:
                return DeltaHandle(self.store, DeltaTable(self.store.uri(""), storage_options=self._options))
            except TableNotFoundError:
                return None

    def open_or_create(self, schema: pa.Schema | None) -> DeltaHandle:
        """`schema` is Arrow's, of rows to come. Raises ValueError when the table lacks one of its columns."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        handle = self.open()
        if handle is None:
            if schema is None:
                raise ValueError(f"{self!r} is no table yet, and this batch has no frame for it: make the table first")
            columns = _delta([field.with_nullable(True) for field in schema])
            with contextlib.suppress(DeltaError):  # another shard's processor may have been first
                DeltaTable.create(self.store.uri(""), columns, mode="ignore", storage_options=self._options)
            handle = self.open()
            if handle is None:
                raise OSError(f"{self!r} could not be made")
            self.store.sync([f"{LOG}/{0:020d}.json"])
        if schema is not None:
            _check_columns(self, handle.table.schema(), schema)
        return handle

    def describe(self, path: str) -> tuple[NewFile, pa.Schema]:
        return describe(self.store, path)


class DeltaHandle:
    """The table at one version. A commit is refused if somebody has committed one of its ids since that version."""

    def __init__(self, store: Storage, table: DeltaTable) -> None:
        self.table = table
        self._store = store

    def transaction(self, application_id: str) -> int | None:
        """Its version, of which Delta knows only that it is a number."""
        version: int | None = self.table.transaction_version(application_id)
        return version

    def append(self, files: list[NewFile], transactions: Mapping[str, int]) -> bool:
        """False when the commit was refused, for this or another reason. The handle is not to be used afterwards."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        version = self.table.version()
        now_ms = time.time_ns() // 1_000_000
        actions: list[Any] = [AddAction(f.path, f.bytes, {}, now_ms, True, f'{{"numRecords":{f.rows}}}') for f in files]
        with _errors():
            try:
                self.table.create_write_transaction(
                    actions, "append", self.table.schema(), commit_properties=_properties(transactions)
                )
            except CommitFailedError:
                return False
            # deltalake leaves it to the operating system when its log gets to the disk.
            self.table.update_incremental()
        self._store.sync([f"{LOG}/{number:020d}.json" for number in range(version + 1, self.table.version() + 1)])
        return True

    def delete(self, where: str, transactions: Mapping[str, int]) -> None:
        """Deletes rows, and commits the transactions with that, unless there are no such rows."""
        with _errors():
            self.table.delete(where, commit_properties=_properties(transactions))

    def problem(self) -> str | None:
        """Why files of Spark cannot be committed to this table as they are; None when they can."""
        metadata = self.table.metadata()
        settings = metadata.configuration
        if metadata.partition_columns:
            return "is partitioned, which this sink cannot write"
        if settings.get("delta.columnMapping.mode", "none") != "none":
            return "maps its columns to other names, which this sink cannot write"
        if "delta.setTransactionRetentionDuration" in settings:
            return "forgets application transactions (delta.setTransactionRetentionDuration): the position is one"
        if any(name.startswith("delta.constraints.") for name in settings):
            return "has constraints, which nobody would check"
        for field in json.loads(self.table.schema().to_json())["fields"]:
            if not field["nullable"] or any(name.startswith(("delta.inv", "delta.gen")) for name in field["metadata"]):
                return f"has rules for the column {field['name']!r}, which nobody would check"
        return None


def describe(store: Storage, path: str) -> tuple[NewFile, pa.Schema]:
    """A Parquet file by its footer. Raises ValueError for nanoseconds, which these tables do not have."""
    import pyarrow.parquet as pq

    source = store.source(path)
    size = os.path.getsize(source) if isinstance(source, str) else source.size()
    with pq.ParquetFile(source) as file:
        schema = file.schema_arrow
        for field in schema:
            if str(field.type).startswith("timestamp[ns"):
                raise ValueError(
                    f"column {field.name!r} has nanoseconds and the table has microseconds: "
                    "spark.sql.parquet.outputTimestampType must be TIMESTAMP_MICROS"
                )
        return NewFile(path, file.metadata.num_rows, size), schema


def _properties(transactions: Mapping[str, int]) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(name, number) for name, number in transactions.items()])


def _delta(columns: Iterable[pa.Field]) -> Schema:
    """Raises ValueError for a type that Delta does not have."""
    import pyarrow as pa
    from deltalake import Schema

    try:
        return Schema.from_arrow(pa.schema(columns))
    except Exception as error:  # deltalake has no class of its own for it
        raise ValueError(f"these columns cannot be in a Delta table: {error}") from error


def _check_columns(log: DeltaLog, schema: Schema, new: pa.Schema) -> None:
    there = dict(_columns(schema))
    for name, words in _columns(_delta(new)):
        if name not in there:
            raise ValueError(
                f"{log!r} has no column {name!r} of type {words}. If it is meant, add it there first "
                "(DeltaTable.alter.add_columns, or ALTER TABLE): records wait until then"
            )
        if there[name] != words:
            raise ValueError(f"column {name!r} is {there[name]} in {log!r} and {words} in the new rows")


def _columns(schema: Schema) -> Iterable[tuple[str, str]]:
    """Name and type of each, without what says whether nulls are allowed."""
    for field in json.loads(schema.to_json())["fields"]:
        yield field["name"], json.dumps(_bare(field["type"]), sort_keys=True)


def _bare(type_: Any) -> Any:
    if isinstance(type_, dict):
        left_out = ("nullable", "metadata", "containsNull", "valueContainsNull")
        return {name: _bare(part) for name, part in type_.items() if name not in left_out}
    return [_bare(part) for part in type_] if isinstance(type_, list) else type_


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise OSError(f"Delta: {error}") from error
