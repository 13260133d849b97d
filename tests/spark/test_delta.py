"""The sinks for Delta and Iceberg: what is their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")
pytest.importorskip("deltalake", reason="needs deltalake: pip install 'kcl-host[spark-delta]'")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema

from kcl_host.spark import ArrowEngine
from kcl_host.spark.delta import DeltaSink
from kcl_host.spark.delta_log import DeltaLog
from tests.spark.places import DeltaPlace, IcebergPlace, Process, position
from tests.spark.world import KEY

pytestmark = pytest.mark.interop


@pytest.fixture
def place(tmp_path: Path) -> DeltaPlace:
    return DeltaPlace(tmp_path)


def commit_one_by_one(place: Any, first: int, last: int) -> None:
    process = Process(place)
    for number in range(first, last + 1):
        process.receive(number, number).flush()


def test_a_compaction_keeps_rows_and_position(place: DeltaPlace) -> None:
    running = Process(place).receive(0, 1).flush()
    commit_one_by_one(place, 2, 12)
    for folder in place.folders.values():
        table = DeltaTable(folder)
        assert table.optimize.compact()["numFilesRemoved"] > 3
        table.create_checkpoint()
    running.receive(2, 20).flush()
    assert sorted(place.numbers("table") + place.numbers("other")) == list(range(21))
    assert place.sink().head(KEY).position == position(20)


def test_a_vacuum_of_delta_takes_orphans_and_leaves_rows(place: DeltaPlace) -> None:
    process = Process(place).receive(0, 4).flush()
    sink, folder = place.sink(), place.folders["table"]
    (folder / "data" / "orphan").mkdir()
    (folder / "data" / "orphan" / "part-0.parquet").write_bytes(b"x")
    os.utime(folder / "data" / "orphan" / "part-0.parquet", (0, 0))
    assert DeltaTable(folder).vacuum(dry_run=False, full=True) == ["data/orphan/part-0.parquet"]
    process.receive(5, 9).flush()
    assert sorted(place.numbers("table") + place.numbers("other")) == list(range(10))
    assert sink.head(KEY).position == position(9)


def test_spark_reads_the_files_that_delta_names(place: DeltaPlace) -> None:
    Process(place).receive(0, 9).flush()
    files = DeltaTable(place.folders["table"]).file_uris()
    assert sorted(n for file in files for n in pq.read_table(file)["number"].to_pylist()) == [0, 2, 4, 6, 8]
    fields = json.loads(DeltaTable(place.folders["table"]).schema().to_json())["fields"]
    assert {field["name"]: field["type"] for field in fields}["approximate_arrival_timestamp"] == "timestamp"


def wider(batch: Any) -> Any:
    return {"table": pa.table({"number": pa.array([7], pa.int64()), "colour": ["red"]})}


def test_a_new_column_is_refused_until_it_is_there(place: DeltaPlace) -> None:
    Process(place).receive(0, 4).flush()
    with pytest.raises(ValueError, match="no column 'colour'"):
        Process(place, transform=wider).receive(5, 9).flush()
    DeltaTable(place.folders["table"]).alter.add_columns([Field("colour", "string")])
    Process(place, transform=wider).receive(5, 9).flush()
    assert sorted(place.numbers("table")) == [0, 2, 4, 7]


def test_another_type_is_refused(place: DeltaPlace) -> None:
    Process(place).receive(0, 4).flush()
    with pytest.raises(ValueError, match=r'column \'number\' is "long" in .* and "string"'):
        Process(place, transform=lambda batch: {"table": pa.table({"number": ["7"]})}).receive(5, 9).flush()


def test_nanoseconds_are_refused(place: DeltaPlace) -> None:
    """Spark's default, INT96, is read as such."""

    def frame(batch: Any) -> Any:
        return {"table": pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})}

    with pytest.raises(ValueError, match="TIMESTAMP_MICROS"):
        Process(place, transform=frame).receive(0, 4).flush()


def test_the_first_batch_needs_columns(place: DeltaPlace) -> None:
    with pytest.raises(ValueError, match="make the table first"):
        Process(place, transform=lambda batch: {}).receive(0, 4).flush()


@pytest.mark.parametrize(
    ("schema", "more", "why"),
    [
        ([Field("number", "long")], {"partition_by": ["number"]}, "partitioned"),
        ([Field("number", "long", nullable=False)], {}, "rules for the column 'number'"),
        (
            [Field("number", "long")],
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 1 day"}},
            "forgets",
        ),
    ],
)
def test_tables_that_do_not_fit(schema: Any, more: Any, why: str, place: DeltaPlace) -> None:
    DeltaTable.create(place.folders["table"], Schema(schema), **more)
    with pytest.raises(ValueError, match=why):
        Process(place)


def test_one_table_without_a_name(tmp_path: Path) -> None:
    class One(DeltaPlace):
        engine = ArrowEngine()

        def sink(self) -> Any:
            return DeltaSink(tmp_path / "one")

    numbers = {"table": pa.table({"number": [1]}), "other": pa.table({"number": [2]})}
    with pytest.raises(ValueError, match="no Delta table is named for the rows of 'other'"):
        Process(One(tmp_path), transform=lambda batch: numbers).receive(0, 4).flush()
    Process(One(tmp_path), transform=lambda batch: numbers["table"]).receive(0, 4).flush()
    assert DeltaTable(tmp_path / "one").to_pyarrow_table().num_rows == 1


@pytest.fixture(params=["delta", "iceberg"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "delta":
        yield DeltaLog(tmp_path / "t")
        return
    pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'kcl-host[spark-iceberg]'")
    from kcl_host.spark.iceberg import IcebergTable

    place = IcebergPlace(tmp_path)
    yield IcebergTable(place.catalog(), "lake.t", tmp_path / "t")
    place.close()


def test_what_fences_a_handle(log: Any) -> None:
    """Commits with other ids in between do no harm, however many; one with the same id does."""
    schema = pa.schema([pa.field("number", pa.int64())])

    def append(handle: Any, name: str, *ids: str) -> bool:
        Path(log.store.uri(name)).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"number": [1]}, schema=schema), log.store.uri(name))
        return bool(handle.append([log.describe(name)[0]], dict.fromkeys(ids, 1)))

    assert log.open() is None
    handles = [log.open_or_create(schema) for _ in range(5)]
    assert append(handles[0], "data/0.parquet", "a")
    assert append(handles[1], "data/1.parquet", "b")
    assert not append(handles[2], "data/2.parquet", "a")
    assert append(handles[3], "data/3.parquet", "c", "d")
    assert not append(handles[4], "data/4.parquet", "e", "d")
    assert [log.open().transaction(name) for name in "abcde"] == [1, 1, 1, 1, None]
    assert log.open().append([], {"a": 2}) and log.open().transaction("a") == 2
    table = log.open().table
    assert (table.count() if isinstance(table, DeltaTable) else table.scan().to_arrow().num_rows) == 3


def test_what_iceberg_is_left_with(tmp_path: Path) -> None:
    """Its own retries are off in our handles, and in the table as they were."""
    pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'kcl-host[spark-iceberg]'")
    place = IcebergPlace(tmp_path)
    commit_one_by_one(place, 0, 3)
    table = place.catalog().load_table("lake.table")
    assert not [name for name in table.properties if name.startswith("commit.")]
    with pytest.raises(ValueError, match="no column 'colour'"):
        Process(place, transform=wider).receive(4, 9).flush()
    with table.update_schema() as update:
        update.add_column("colour", _string())
    Process(place, transform=wider).receive(4, 9).flush()
    assert sorted(place.numbers("table")) == [0, 2, 7]
    place.close()


def _string() -> Any:
    from pyiceberg.types import StringType

    return StringType()
