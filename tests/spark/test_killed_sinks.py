"""Children killed or stopped at every step of the sinks for PostgreSQL and Delta: each number once in the tables.

Real processes and a real database; Arrow in place of Spark, whose part in this is in test_sinks_with_spark.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

from kcl_host.spark.faults import OF_DELTA, OF_POSTGRES
from tests.spark import postgres_server
from tests.spark.child_host import Child, Shard, payload, serve

pytestmark = pytest.mark.interop
RECORDS = 120


class Target(NamedTuple):
    place: str
    numbers: Callable[[], list[int]]
    rejected: Callable[[], int]
    left: Callable[[], list[str]]
    """What attempts left behind, besides data files."""

    def assert_each_once(self) -> None:
        good = [number for number in range(RECORDS) if payload(number) != b"nothing"]
        assert (sorted(self.numbers()), self.rejected()) == (good, RECORDS - len(good))


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    yield from postgres_server.needed()


@pytest.fixture
def postgres(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    columns = (
        "stream text, shard_id text, sequence_number text, sub_sequence_number bigint, partition_key text, "
        "approximate_arrival_timestamp timestamptz"
    )
    with psycopg.connect(database, autocommit=True) as connection:

        def query(statement: str) -> list[Any]:
            return [row[0] for row in connection.execute(statement.encode()).fetchall()]

        connection.execute(f"CREATE SCHEMA {name}".encode())
        connection.execute(f'CREATE TABLE {name}."table" ({columns}, number bigint)'.encode())
        connection.execute(f"CREATE TABLE {name}.rejected ({columns}, data bytea, reason text)".encode())
        monkeypatch.setenv("TEST_POSTGRES", database)
        yield Target(
            f"postgres:{name}",
            lambda: query(f'SELECT number FROM {name}."table"'),
            lambda: int(query(f"SELECT count(*) FROM {name}.rejected")[0]),
            lambda: query(f"SELECT tablename FROM pg_tables WHERE schemaname = '{name}_own' ORDER BY 1"),
        )


@pytest.fixture
def delta(tmp_path: Path) -> Target:
    deltalake = pytest.importorskip("deltalake", reason="needs deltalake: pip install 'kcl-host[spark-delta]'")

    def numbers() -> list[int]:
        found: list[int] = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table()["number"].to_pylist()
        return found

    return Target(
        f"delta:{tmp_path}",
        numbers,
        lambda: int(deltalake.DeltaTable(tmp_path / "rejected").to_pyarrow_table().num_rows),
        lambda: [path.name for path in (tmp_path / "table" / "_kcl_host").glob("*")],
    )


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[Target]:
    pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'kcl-host[spark-iceberg]'")
    from tests.spark.places import IcebergPlace

    place = IcebergPlace(tmp_path)
    yield Target(
        f"iceberg:{tmp_path}",
        lambda: place.numbers("table"),
        lambda: int(place.catalog().load_table("lake.rejected").scan().to_arrow().num_rows),
        lambda: [path.name for path in (tmp_path / "table" / "_kcl_host").glob("*")],
    )
    place.close()


def test_killed_at_every_step_of_postgres(postgres: Target) -> None:
    _killed_at_one_step_after_another(postgres, OF_POSTGRES)
    assert postgres.left()[0] == "positions"


def test_killed_at_every_step_of_delta(delta: Target) -> None:
    _killed_at_one_step_after_another(delta, OF_DELTA)


@pytest.mark.stress
def test_killed_at_every_step_of_iceberg(iceberg: Target) -> None:
    _killed_at_one_step_after_another(iceberg, OF_DELTA)


def _killed_at_one_step_after_another(target: Target, steps: tuple[str, ...]) -> None:
    """Every process is killed once, each at another step; that of a note for a second table in a batch that has one."""
    shard = Shard(RECORDS, 7)
    for number, step in enumerate(("buffered", *steps, "committed", "checkpointing")):
        shard.batch = (7, 11, 5)[number % 3]
        with Child(shard, ["arrow", target.place, "10"], {"KCL_HOST_SPARK_FAIL_AT": f"{step}:1"}) as child:
            assert not (child.initialize() and all(child.act(line) for line in shard.lines())), step
    serve(shard, ["arrow", target.place, "20"], {})
    assert shard.deaths == 0
    target.assert_each_once()


@pytest.mark.parametrize(
    "step",
    [pytest.param(s, marks=[pytest.mark.stress] if s != "inserted" else []) for s in OF_POSTGRES],
)
def test_a_zombie_that_stopped_on_postgres(step: str, postgres: Target) -> None:
    """At `moved` and `inserted` it holds the shard's row until PostgreSQL ends its transaction."""
    _stopped(postgres, step)
    assert postgres.left() == ["positions"]


@pytest.mark.parametrize(
    "step", [pytest.param(s, marks=[pytest.mark.stress] if s != "logged" else []) for s in OF_DELTA]
)
def test_a_zombie_that_stopped_on_delta(step: str, delta: Target) -> None:
    _stopped(delta, step)
    assert delta.left() == []


@pytest.mark.stress
@pytest.mark.parametrize("step", OF_DELTA)
def test_a_zombie_that_stopped_on_iceberg(step: str, iceberg: Target) -> None:
    _stopped(iceberg, step)
    assert iceberg.left() == []


def _stopped(target: Target, step: str) -> None:
    """The lease moves while it stands still; later it goes on, wins or loses the race, its checkpoint is refused."""
    shard = Shard(RECORDS, 7)
    stops = {"KCL_HOST_SPARK_FAIL_AT": f"{step}:1", "KCL_HOST_SPARK_FAIL_WITH": "STOP"}
    with Child(shard, ["arrow", target.place, "55"], stops) as zombie:
        message = zombie.first_message()
        lines = shard.lines()
        while zombie.act(message):
            message = next(lines)
        zombie.owner = False
        half = Shard(RECORDS // 2, 7)
        half.checkpoint = shard.checkpoint
        serve(half, ["arrow", target.place, "52"], {})
        zombie.resume()
        zombie.answered(message["action"])
        zombie.act({"action": "leaseLost"})
    shard.checkpoint = half.checkpoint
    serve(shard, ["arrow", target.place, "20"], {})
    target.assert_each_once()
