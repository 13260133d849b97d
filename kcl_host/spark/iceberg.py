# mypy: disable-error-code="import-not-found, import-untyped"
"""Iceberg tables with exactly-once commits: Spark writes Parquet files, `pyiceberg` commits them with the position.

Iceberg has no application transactions. Their place is taken by properties of the table, set in the transaction that
adds the files, and by the assertion that comes with every new snapshot: that the branch `main` still is where the
handle saw it. pyiceberg itself does not keep to that, it rebuilds a refused commit on the new snapshot and tries again,
so two writers of one shard would both succeed. Here a handle never tries again by itself: it loads the table anew, and
only if the properties of the shard have not moved does it commit once more. A commit without rows adds a snapshot
without rows, since properties alone would be set without the assertion.

The rest is as with Delta: see `delta`.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kcl_host.spark.commit_chain import boot_s
from kcl_host.spark.delta import DeltaSink
from kcl_host.spark.delta_log import NewFile, describe
from kcl_host.spark.parquet import open_storage
from kcl_host.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

_TRIES: Final = 20
_NO_RETRY: Final = {"commit.retry.num-retries": "0"}


class IcebergSink(DeltaSink):
    """`tables` is one table, or several by the name of the frame: the first one has the position."""

    def __init__(
        self, tables: IcebergTable | Mapping[str, IcebergTable], *, clock: Callable[[], float] = boot_s
    ) -> None:
        super().__init__({**tables} if isinstance(tables, Mapping) else tables, clock=clock)


class IcebergTable:
    """A table of a catalog by its name ("namespace.table"), made with the first batch's columns when it is missing.
    `place` is where Spark puts the files, a folder or store that the catalog's readers see under the same name."""

    def __init__(self, catalog: Catalog, name: str, place: str | os.PathLike[str] | Storage) -> None:
        self.store = open_storage(place)
        self.catalog = catalog
        self.name = name

    def __repr__(self) -> str:
        return f"<IcebergTable {self.name}>"

    def open(self) -> IcebergHandle | None:
        from pyiceberg.exceptions import NoSuchTableError

        with _errors():
            try:
                return IcebergHandle(self, self.load())
            except NoSuchTableError:
                return None

    def open_or_create(self, schema: pa.Schema | None) -> IcebergHandle:
        import pyarrow as pa
        from pyiceberg.exceptions import TableAlreadyExistsError

        handle = self.open()
        if handle is None:
            if schema is None:
                raise ValueError(f"{self!r} is no table yet, and this batch has no frame for it: make the table first")
            columns = pa.schema([field.with_nullable(True) for field in schema])
            with (
                _errors(),
                contextlib.suppress(TableAlreadyExistsError),
            ):  # another shard's processor may have been first
                self.catalog.create_table(self.name, schema=columns)
            handle = IcebergHandle(self, self.load())
        there = handle.table.schema().column_names
        for name in [] if schema is None else schema.names:
            if name not in there:
                raise ValueError(
                    f"{self!r} has no column {name!r}. If it is meant, add it first: records wait until then"
                )
        return handle

    def describe(self, path: str) -> tuple[NewFile, pa.Schema]:
        return describe(self.store, path)

    def load(self) -> Table:
        with _errors():
            table = self.catalog.load_table(self.name)
        # In this handle only: nothing of it is committed.
        table.metadata.properties.update(_NO_RETRY)
        return table


class IcebergHandle:
    def __init__(self, of: IcebergTable, table: Table) -> None:
        self.table = table
        self._of = of

    def transaction(self, application_id: str) -> int | None:
        found = self.table.properties.get(application_id)
        return None if found is None else int(found)

    def append(self, files: list[NewFile], transactions: Mapping[str, int]) -> bool:
        """False when somebody has changed one of these properties since the handle was opened."""
        uris = [_uri(self._of.store, file.path) for file in files]

        def act(transaction: Transaction) -> None:
            if uris:
                transaction.add_files(uris, check_duplicate_files=False)
            else:
                _append_nothing(transaction)

        return self._commit(act, transactions)

    def delete(self, where: str, transactions: Mapping[str, int]) -> None:
        def act(transaction: Transaction) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # says that there are no such rows
                transaction.delete(where)
            _append_nothing(transaction)

        if not self._commit(act, transactions):
            raise OSError(f"{self._of!r}: somebody else commits meanwhile")

    def problem(self) -> str | None:
        if not self.table.spec().is_unpartitioned():
            return "is partitioned, which this sink cannot write"
        required = [field.name for field in self.table.schema().fields if field.required]
        return f"has rules for the columns {required}, which nobody would check" if required else None

    def _commit(self, act: Callable[[Transaction], None], transactions: Mapping[str, int]) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        seen = {name: self.transaction(name) for name in transactions}
        for tried in range(_TRIES):
            with _errors():
                try:
                    with self.table.transaction() as transaction:
                        act(transaction)
                        transaction.set_properties({name: str(number) for name, number in transactions.items()})
                    return True
                except CommitFailedException:
                    time.sleep(random.uniform(0, 0.05 * (tried + 1)))  # other shards go on at the same time
            self.table = self._of.load()
            if {name: self.transaction(name) for name in transactions} != seen:
                return False
        raise OSError(f"{self._of!r}: {_TRIES} commits in a row met somebody else's")


def _append_nothing(transaction: Transaction) -> None:
    transaction.append(transaction.table_metadata.schema().as_arrow().empty_table())


def _uri(store: Storage, path: str) -> str:
    uri = store.uri(path)
    return f"file://{uri}" if uri.startswith("/") else uri.replace("s3a://", "s3://")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """A catalog may be a database, a service or anything; what it says is to be tried again, a wrong frame is not."""
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

    try:
        yield
    except (OSError, ValueError, NoSuchTableError, TableAlreadyExistsError):
        raise
    except Exception as error:
        raise OSError(f"Iceberg: {error}") from error
