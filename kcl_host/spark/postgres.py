# mypy: disable-error-code="import-not-found, import-untyped"
"""PostgreSQL tables with exactly-once commits: rows and position change in one transaction of the client.

    kcl_host.positions                  one row per application, stream and shard: generation, and up to which record
    kcl_host.staging_<epoch_s>_<id>     the rows of one attempt for one table; nobody reads it

Spark fills the staging tables over JDBC (or this process does, by COPY), in as many transactions as it likes. Then

    UPDATE kcl_host.positions SET ... WHERE <shard> AND generation = ... AND position = <the head>   -- one row, or lost
    INSERT INTO <table> SELECT ... FROM <staging>                            -- as many rows as the frame had, or again

A task of Spark that is repeated after its rows were committed repeats rows; a server that crashes empties unlogged
tables. Both show in that number, so neither gets into a table.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from kcl_host.spark import chain
from kcl_host.spark.chain import ChainKey, View
from kcl_host.spark.commit_chain import HEAD_LIMIT_S, Head, boot_s
from kcl_host.spark.engine import Engine
from kcl_host.spark.faults import reach
from kcl_host.spark.parquet import TABLE
from kcl_host.spark.position import Position, encode, is_above
from kcl_host.spark.sinks import Batch, head_at

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

STALE_S: Final = 24 * 3600
"""Staging tables older than this are dropped by the next process that starts. Far above HEAD_LIMIT_S."""
IDLE_LIMIT_S: Final = 5
"""A process that stops in the middle of its transaction holds the shard's row for so long, then the server ends it."""
_DRIVER: Final = "org.postgresql.Driver"
_CONNECTION: Final = {"connect_timeout": 10, "tcp_user_timeout": 30_000, "application_name": "kcl-host"}
_POSITIONS: Final = """
CREATE TABLE IF NOT EXISTS {positions} (
    application text NOT NULL,
    stream text NOT NULL,
    stream_created_s bigint NOT NULL,   -- 0: not known
    shard text NOT NULL,
    generation integer NOT NULL,
    sequence_number numeric(129),       -- null: nothing is committed
    sub_sequence_number bigint,
    changed timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (application, stream, stream_created_s, shard)
)"""
_OF_SHARD: Final = "application = %s AND stream = %s AND stream_created_s = %s AND shard = %s"


class Staged(msgspec.Struct, frozen=True):
    """Rows of one frame that nobody sees yet."""

    staging: str
    target: str
    columns: list[str]
    rows: int


class PostgresSink:
    """`conninfo` as libpq takes it (what it leaves out comes from the PG* variables, .pgpass, a service file); `tables`
    is the table that rows go to, or several by the name of the frame. They have to be there, with every column of the
    frames; `schema` is for the sink's own tables, and is made when it is missing.

    `staging` "jdbc": Spark writes the staging tables itself, for which it needs PostgreSQL's JDBC driver: on the server
    already (spark.jars, spark.jars.packages), or brought into each session from `driver_jar`, a file of this machine.
    `jdbc` has more options, as a `url` where Spark reaches the database by another way than this process. "copy": the
    rows come to this process as an Arrow table and go on by COPY, as Arrow tables always do.
    """

    exactly_once = True

    def __init__(
        self,
        conninfo: str,
        tables: str | Mapping[str, str],
        *,
        staging: Literal["jdbc", "copy"] = "jdbc",
        driver_jar: str | os.PathLike[str] | None = None,
        jdbc: Mapping[str, str] | None = None,
        schema: str = "kcl_host",
    ) -> None:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        try:
            parts: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(conninfo)}
            self._conninfo = make_conninfo("", **parts)
        except psycopg.Error:
            raise ValueError("this is not a connection string of PostgreSQL") from None  # its text has the password
        self._tables = {TABLE: tables} if isinstance(tables, str) else dict(tables)
        self._staging = staging
        self._driver_jar = driver_jar
        self._jdbc = dict(jdbc or {})
        self._equipped: Any = None
        """The Spark session that has the driver."""
        self._schema = schema
        self._connection: psycopg.Connection[Any] | None = None

    def __repr__(self) -> str:
        return f"<PostgresSink {', '.join(self._tables.values())}>"

    def head(self, key: ChainKey) -> Head:
        seen_s = boot_s()
        with self._errors(), self._connect().transaction():
            self._make_schema()
            row = self._execute(
                f"SELECT generation, sequence_number, sub_sequence_number FROM {{positions}} WHERE {_OF_SHARD}",
                *_names(key),
            ).fetchone()
        position = None if row is None or row[1] is None else Position(int(row[1]), int(row[2]))
        return head_at(0 if row is None else row[0], position, seen_s)

    def problem(self, key: ChainKey, head: Head, checkpoint: Position | None) -> str | None:
        with self._errors():
            self._sweep()
            others = self._execute(
                "SELECT application, stream, shard, stream_created_s FROM {positions} WHERE application = %s",
                key.application,
            ).fetchall()
        if not head.has_history:
            return chain.epoch_problem(
                key,
                (ChainKey(application=a, stream=s, shard=h, stream_created_s=c or None) for a, s, h, c in others),
            )
        return chain.start_problem(View(generation=head.generation, head=head.position), checkpoint)

    def write(self, key: ChainKey, engine: Engine, frames: Mapping[str, Any], batch: Batch) -> list[Staged]:
        staged: list[Staged] = []
        try:
            for name, frame in frames.items():
                if name not in self._tables:
                    raise ValueError(f"no PostgreSQL table is named for the rows of {name!r}")
                staged.append(self._fill(frame, self._tables[name]))
        except BaseException:
            self._drop(staged)
            raise
        reach("written")
        return staged

    def commit(self, key: ChainKey, head: Head, batch: Batch, written: list[Staged]) -> Head | None:
        if not is_above(batch.end, head.position):
            raise ValueError(f"a commit up to {encode(batch.end)} on the head {encode(head.position)}")
        seen_s = boot_s()
        try:
            if seen_s - head.seen_s > HEAD_LIMIT_S:
                return None  # long enough for somebody to have swept the staging tables
            with self._errors(), self._connect().transaction():
                self._execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LIMIT_S}s'")
                # A database may be set to lose its last commits in a crash. Checkpoints would outlive them.
                self._execute(
                    "SELECT set_config('synchronous_commit', 'on', true) "
                    "WHERE current_setting('synchronous_commit') = 'off'"
                )
                if not self._move(key, head, batch.end):
                    return None
                reach("moved")
                for staged in written:
                    self._insert(staged)
                reach("inserted")
            reach("shown")
        finally:
            self._drop(written)
        reach("dropped")
        return head_at(head.generation, batch.end, seen_s)

    def rewind(self, key: ChainKey, to: Position | None, delete: Callable[[psycopg.Connection[Any]], None]) -> Head:
        """Begins the next generation at `to`; `delete` takes the shard's rows above it out of the tables, in the same
        transaction. Order of work: stop the application; rewind; set the lease's checkpoint to `to` or below; start.

        Raises ValueError when `to` is above the head.
        """
        while True:
            head = self.head(key)
            if is_above(to, head.position):
                raise ValueError(f"cannot rewind to {encode(to)}, which is above the head {encode(head.position)}")
            with self._errors(), self._connect().transaction():
                if self._move(key, head, to, generation=head.generation + 1):
                    delete(self._connect())
                    return head_at(head.generation + 1, to, boot_s())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _move(self, key: ChainKey, head: Head, to: Position | None, generation: int | None = None) -> bool:
        """Whether the position stood at `head`: compare and set. Locks the row until the transaction ends."""
        if not head.has_history:
            self._execute(
                "INSERT INTO {positions} (application, stream, stream_created_s, shard, generation) "
                "VALUES (%s, %s, %s, %s, 0) ON CONFLICT DO NOTHING",
                *_names(key),
            )
        after = self._execute(
            "UPDATE {positions} SET generation = %s, sequence_number = %s, sub_sequence_number = %s, changed = now() "
            f"WHERE {_OF_SHARD} AND generation = %s "
            "AND sequence_number IS NOT DISTINCT FROM %s::numeric AND sub_sequence_number IS NOT DISTINCT FROM %s",
            head.generation if generation is None else generation,
            *(to or (None, None)),
            *_names(key),
            head.generation,
            *(head.position or (None, None)),
        )
        return bool(after.rowcount == 1)

    def _fill(self, frame: Any, target: str) -> Staged:
        """A new staging table with a frame's columns and rows."""
        is_spark = hasattr(frame, "sparkSession")
        columns = list(frame.columns if is_spark else frame.column_names)
        with self._errors():
            now_s = self._execute("SELECT extract(epoch FROM now())::bigint").fetchone()
            assert now_s is not None
            name = f"staging_{now_s[0]}_{uuid.uuid4().hex}"
            # Without the constraints and defaults of the target: those are for its own rows.
            self._execute(
                "CREATE UNLOGGED TABLE {staging} AS SELECT {columns} FROM {target} WITH NO DATA",
                staging=self._own(name),
                columns=_list(columns),
                target=_table(target),
            )
        staged = Staged(name, target, columns, 0)
        try:
            reach("prepared")
            if is_spark and self._staging == "jdbc":
                rows = self._write_by_spark(frame, name)
            else:
                rows = self._copy(frame.toArrow() if is_spark else frame, staged)
        except BaseException:
            self._drop([staged])
            raise
        return msgspec.structs.replace(staged, rows=rows)

    def _copy(self, table: pa.Table, staged: Staged) -> int:
        from psycopg import sql

        copy = sql.SQL("COPY {} ({}) FROM STDIN").format(self._own(staged.staging), _list(staged.columns))
        with self._errors(), self._connect().cursor().copy(copy) as rows:
            for part in table.to_batches(max_chunksize=10_000):
                for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
                    rows.write_row(row)
        return int(table.num_rows)

    def _write_by_spark(self, frame: DataFrame, staging: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        counted = Observation()
        options = self._jdbc_options()
        if self._driver_jar is not None and self._equipped is not frame.sparkSession:
            frame.sparkSession.addArtifacts(os.fspath(self._driver_jar))
            self._equipped = frame.sparkSession
        try:
            frame.observe(counted, F.count(F.lit(1)).alias("rows")).write.format("jdbc").options(
                **options, dbtable=f'"{self._schema}"."{staging}"'
            ).mode("append").save()
        except Exception as error:
            if _DRIVER in str(error):
                raise ValueError(
                    f"Spark cannot load {_DRIVER}: name the driver's file (driver_jar), give it to Spark's server "
                    "(spark.jars, spark.jars.packages), or have this process copy the rows (staging='copy')"
                ) from error
            if options.get("password") and options["password"] in str(error):
                raise OSError("Spark could not write to PostgreSQL; its words are left out, for the password") from None
            raise
        return int(counted.get["rows"])

    def _jdbc_options(self) -> dict[str, str]:
        """The way this process reaches the database, where the user names no other."""
        info = self._connect().info
        options = {"driver": _DRIVER, "user": info.user, "password": info.password, "batchsize": "10000", **self._jdbc}
        if "url" not in options:
            if not info.hostaddr:
                raise ValueError("Java has no Unix sockets: name a host in the connection string, or jdbc={'url': ...}")
            sslmode = info.get_parameters().get("sslmode", "prefer")
            # Text goes to a column of any type (jsonb, uuid) as it does from a literal.
            options["url"] = (
                f"jdbc:postgresql://{info.host}:{info.port}/{info.dbname}"
                f"?stringtype=unspecified&reWriteBatchedInserts=true&sslmode={sslmode}"
            )
        return options

    def _insert(self, staged: Staged) -> None:
        found = self._execute(
            "INSERT INTO {target} ({columns}) SELECT {columns} FROM {staging}",
            target=_table(staged.target),
            columns=_list(staged.columns),
            staging=self._own(staged.staging),
        ).rowcount
        if found != staged.rows:
            raise OSError(f"{found} rows are staged for {staged.target} instead of {staged.rows}: to be written again")

    def _drop(self, written: list[Staged]) -> None:
        self._drop_tables([staged.staging for staged in written])

    def _drop_tables(self, names: list[str]) -> None:
        """What fails here is left for `_sweep`: a job of Spark that nobody waits for may still hold its table."""
        for name in names:
            try:
                with self._errors(), self._connect().transaction():
                    self._execute("SET LOCAL lock_timeout = '1s'")
                    self._execute("DROP TABLE IF EXISTS {staging}", staging=self._own(name))
            except (OSError, ValueError) as error:
                _log.info("staging table %s stays for now: %s", name, error)

    def _sweep(self) -> None:
        stale = self._execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename ~ '^staging_[0-9]+_[0-9a-f]{{32}}$' "
            "AND split_part(tablename, '_', 2)::bigint < extract(epoch FROM now()) - %s",
            self._schema,
            STALE_S,
        ).fetchall()
        self._drop_tables([name for (name,) in stale])

    def _make_schema(self) -> None:
        found = self._execute(
            "SELECT to_regclass(%s), to_regnamespace(%s)", f'"{self._schema}".positions', f'"{self._schema}"'
        ).fetchone()
        assert found is not None
        if found[0] is not None:
            return
        self._execute("SELECT pg_advisory_xact_lock(hashtext('kcl-host'))")  # children start together
        if found[1] is None:
            self._execute("CREATE SCHEMA IF NOT EXISTS {schema}")
        self._execute(_POSITIONS)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg.types.json import JsonbDumper

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
            self._connection.adapters.register_dumper(dict, JsonbDumper)
        return self._connection

    def _execute(self, statement: str, *values: Any, **parts: sql.Composable) -> psycopg.Cursor[Any]:
        from psycopg import sql

        names = {"positions": self._own("positions"), "schema": sql.Identifier(self._schema), **parts}
        return self._connect().execute(sql.SQL(statement).format(**names), values or None)

    def _own(self, name: str) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self._schema, name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """What may pass as OSError, what is wrong with rows or tables as ValueError. The first line is PostgreSQL's
        own sentence; the others may quote rows."""
        import psycopg

        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            raise OSError(f"PostgreSQL: {_sentence(error)}") from None
        except psycopg.Error as error:
            raise ValueError(f"PostgreSQL refuses it: {_sentence(error)} ({error.sqlstate})") from None


def _names(key: ChainKey) -> tuple[str, str, int, str]:
    return key.application, key.stream, key.stream_created_s or 0, key.shard


def _table(name: str) -> sql.Identifier:
    from psycopg import sql

    return sql.Identifier(*name.split("."))


def _list(columns: list[str]) -> sql.Composable:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _sentence(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
