"""The sinks for PostgreSQL, Delta and Iceberg with Spark as the writer: a local Connect server and a thin client."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'kcl-host[spark]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

from kcl_host.spark import SparkEngine
from kcl_host.spark.server import ServerFailed, spark_home
from tests.spark import postgres_server
from tests.spark.child_host import Shard, serve
from tests.spark.test_killed_sinks import Target, database, delta, postgres
from tests.spark.test_with_spark import engine, server

__all__ = ["database", "delta", "engine", "postgres", "server"]

try:
    spark_home()
except ServerFailed as missing:
    pytest.skip(str(missing), allow_module_level=True)

# pyspark opens sockets that it leaves to the collector.
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]
JAR = Path("/usr/share/java/postgresql.jar")
"""Of Debian's libpostgresql-jdbc-java."""


def test_postgres(
    engine: SparkEngine,
    postgres: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Killed when the staging tables are full. Nobody prints the password: not the child, not Spark."""
    if not JAR.exists():
        pytest.skip("needs PostgreSQL's JDBC driver: apt-get install libpostgresql-jdbc-java")
    monkeypatch.setenv("TEST_POSTGRES_JAR", str(JAR))
    _killed_once(postgres, tmp_path)
    assert postgres.left()[0] == "positions"
    monkeypatch.delenv("TEST_POSTGRES_JAR")
    output = capfd.readouterr()
    assert "committed" in output.err and postgres_server.PASSWORD not in output.out + output.err


def test_delta(engine: SparkEngine, delta: Target, tmp_path: Path) -> None:
    import deltalake

    _killed_once(delta, tmp_path)
    table = deltalake.DeltaTable(tmp_path / "table")
    rows = engine.session.read.parquet(*table.file_uris())
    assert rows.count() == table.count() == len(delta.numbers())
    assert rows.selectExpr("min(approximate_arrival_timestamp)").collect()[0][0].microsecond == 123000


def _killed_once(target: Target, tmp_path: Path) -> None:
    shard = Shard(120, 7)
    environ = {"KCL_HOST_SPARK_FAIL_AT": "written", "KCL_HOST_SPARK_FAIL_MARK": str(tmp_path / "mark")}
    serve(shard, ["spark", target.place, "60"], environ)
    assert shard.deaths == 1
    target.assert_each_once()
