"""The sink for PostgreSQL: what is its own."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")
pytest.importorskip("psycopg", reason="needs psycopg: pip install 'kcl-host[spark-postgres]'")

import pyarrow as pa
from psycopg.conninfo import make_conninfo

from kcl_host.spark import Batch
from kcl_host.spark.postgres import STALE_S, PostgresSink
from tests.spark import postgres_server
from tests.spark.places import PostgresPlace, Process, position
from tests.spark.world import KEY

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    yield from postgres_server.needed()


@pytest.fixture
def place(database: str) -> Iterator[PostgresPlace]:
    place = PostgresPlace(database, f"t{uuid.uuid4().hex}")
    yield place
    place.close()


BATCH = Batch(end=position(3), records=4, arrived_ms=None)


def staging(place: PostgresPlace) -> list[str]:
    found = place.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{place.schema}'").fetchall()
    return [name for (name,) in found if name != "positions"]


def test_values_of_many_types_by_copy(place: PostgresPlace) -> None:
    table = f"{place.schema}.wide"
    sink = PostgresSink(place.conninfo, table, schema=place.schema)
    head = sink.head(KEY)
    place.execute(f"CREATE TABLE {table} (id serial, j jsonb, b bytea, a text[], n numeric, u uuid, at timestamptz)")
    at = datetime(2025, 1, 1, 0, 0, 0, 123456, UTC)
    which = uuid.uuid4()
    rows = pa.table(
        {
            "j": pa.array([{"a": 1}, None]),
            "b": pa.array([b"\x00\\", None]),
            "a": pa.array([["x,y", "\t"], None]),
            "n": pa.array([Decimal("1.50"), None]),
            "u": pa.array([str(which), None]),
            "at": pa.array([at, None], pa.timestamp("us", "UTC")),
        }
    )
    assert sink.commit(KEY, head, BATCH, sink.write(KEY, place.engine, {"table": rows}, BATCH)) is not None
    found = place.execute(f"SELECT j, b, a, n, u, at FROM {table} ORDER BY id").fetchall()
    assert found == [({"a": 1}, b"\x00\\", ["x,y", "\t"], Decimal("1.50"), which, at), (None,) * 6]
    sink.close()


def test_a_staging_table_with_other_rows_than_were_written_is_not_committed(place: PostgresPlace) -> None:
    """A repeated task of Spark doubles them, a crash of the server empties an unlogged table."""
    sink = place.sink()
    head = sink.head(KEY)
    rows = pa.table({"number": [1, 2], "shard_id": ["s", "s"], "sequence_number": ["1", "2"]})
    for change in ("INSERT INTO {0} SELECT * FROM {0}", "TRUNCATE {0}"):
        written = sink.write(KEY, place.engine, {"table": rows}, BATCH)
        place.execute(change.format(f"{place.schema}.{written[0].staging}"))
        with pytest.raises(OSError, match="instead of 2"):
            sink.commit(KEY, head, BATCH, written)
    assert (place.numbers("table"), sink.head(KEY).position, staging(place)) == ([], None, [])


def test_a_new_column_is_refused_until_it_is_there(place: PostgresPlace) -> None:
    def wider(batch: Any) -> Any:
        return {"table": pa.table({"number": [7], "shard_id": ["s"], "sequence_number": ["1"], "colour": ["red"]})}

    with pytest.raises(ValueError, match='column "colour" does not exist'):
        Process(place, transform=wider).receive(0, 4).flush()
    assert (place.numbers("table"), staging(place)) == ([], [])
    place.execute(f"ALTER TABLE {place.tables['table']} ADD COLUMN colour text")
    Process(place, transform=wider).receive(0, 4).flush()
    assert place.numbers("table") == [7]


def test_rows_that_break_a_rule_of_the_table_are_said(place: PostgresPlace) -> None:
    def broken(batch: Any) -> Any:
        return {"table": pa.table({"number": [7], "shard_id": ["secret row"]})}

    with pytest.raises(ValueError, match='null value in column "sequence_number"') as said:
        Process(place, transform=broken).receive(0, 4).flush()
    assert "secret row" not in str(said.value)
    assert (place.numbers("table"), staging(place)) == ([], [])


def test_a_table_that_nobody_named(place: PostgresPlace) -> None:
    with pytest.raises(ValueError, match="no PostgreSQL table is named for the rows of 'third'"):
        place.sink().write(KEY, place.engine, {"third": pa.table({"number": [1]})}, BATCH)


def test_stale_staging_tables_are_dropped_at_the_next_start(place: PostgresPlace) -> None:
    sink = place.sink()
    sink.head(KEY)
    now_s = int(place.execute("SELECT extract(epoch FROM now())::bigint").fetchone()[0])
    old, young = (f"staging_{now_s - age_s}_{uuid.uuid4().hex}" for age_s in (STALE_S + 60, STALE_S - 60))
    for name in (old, young):
        place.execute(f"CREATE TABLE {place.schema}.{name} ()")
    place.execute(f"CREATE TABLE {place.schema}.staging_mine ()")
    assert sink.problem(KEY, sink.head(KEY), None) is None
    assert sorted(staging(place)) == sorted([young, "staging_mine"])


def test_another_session_may_be_ended_at_any_time(place: PostgresPlace) -> None:
    process = Process(place).receive(0, 4).flush().receive(5, 9)
    place.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kcl-host'")
    process.flush()
    assert sorted(place.numbers("table") + place.numbers("other")) == list(range(10))


def test_children_that_start_together_make_the_schema_once(place: PostgresPlace) -> None:
    errors: list[Exception] = []

    def start() -> None:
        sink = PostgresSink(place.conninfo, place.tables, schema=place.schema)
        try:
            sink.head(KEY)
        except Exception as error:
            errors.append(error)
        finally:
            sink.close()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("broken", ["host=nowhere password", "postgresql://u:{0}@[::", "password={0} nonsense={0}"])
def test_the_password_is_in_no_message(broken: str) -> None:
    secret = postgres_server.PASSWORD
    with pytest.raises(ValueError) as said:
        PostgresSink(broken.format(secret), "events")
    assert secret not in str(said.value) and said.value.__cause__ is None and said.value.__suppress_context__


def test_the_password_is_not_in_the_message_of_a_connection_that_fails(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for wrong in ("dbname=none", "port=1", "user=nobody", "sslmode=require"):
        sink = PostgresSink(make_conninfo(database, **dict([wrong.split("=")])), "events")
        with pytest.raises(OSError, match="PostgreSQL: ") as said:
            sink.head(KEY)
        assert postgres_server.PASSWORD not in str(said.value) + repr(sink) + caplog.text
