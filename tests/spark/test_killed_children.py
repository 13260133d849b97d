"""Children killed or stopped at every step between a record and its checkpoint: each number once in the table.

Real processes and real files; Arrow in place of Spark, whose part in this is in test_with_spark.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

import pyarrow.parquet as pq

from kcl_host.spark import committed_files
from kcl_host.spark.faults import STEPS
from tests.spark.child_host import Child, Shard, payload, serve

pytestmark = pytest.mark.interop
RECORDS = 120
# `spooled` is Spark's; a layout comes after a hundred commits, see test_a_layout_is_written below.
OF_ARROW = [step for step in STEPS if step not in ("spooled", "folded")]


def numbers(place: Path) -> tuple[list[int], int]:
    """Of the table, sorted; and how many rows were rejected."""
    accepted = [n for path in committed_files(place)[0] for n in pq.read_table(path)["number"].to_pylist()]
    rejected = sum(pq.read_metadata(path).num_rows for path in committed_files(place, "rejected")[0])
    return sorted(accepted), rejected


def assert_each_once(place: Path, count: int) -> None:
    good = [number for number in range(count) if payload(number) != b"nothing"]
    assert numbers(place) == (good, count - len(good))


def test_without_faults(tmp_path: Path) -> None:
    shard = Shard(RECORDS, 7)
    serve(shard, ["arrow", str(tmp_path / "t"), "20"], {})
    assert_each_once(tmp_path / "t", RECORDS)
    assert (shard.deaths, shard.checkpoint) == (0, shard.places[-1])


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("step", OF_ARROW)
def test_killed_at(step: str, time: int, tmp_path: Path) -> None:
    if step == "initialized" and time == 2:
        pytest.skip("a process is initialized once")
    mark = tmp_path / "mark"
    shard = Shard(RECORDS, 7)
    environ = {"KCL_HOST_SPARK_FAIL_AT": f"{step}:{time}", "KCL_HOST_SPARK_FAIL_MARK": str(mark)}
    serve(shard, ["arrow", str(tmp_path / "t"), "20"], environ)
    assert mark.exists() and shard.deaths == 1
    assert_each_once(tmp_path / "t", RECORDS)


def test_killed_at_one_step_after_another(tmp_path: Path) -> None:
    """Every process is killed once, each at another step."""
    shard = Shard(RECORDS, 7)
    for step in OF_ARROW:
        environ = {"KCL_HOST_SPARK_FAIL_AT": f"{step}:1"}
        with Child(shard, ["arrow", str(tmp_path / "t"), "9"], environ) as child:
            assert not (child.initialize() and all(child.act(line) for line in shard.lines()))
    serve(shard, ["arrow", str(tmp_path / "t"), "20"], {})
    assert_each_once(tmp_path / "t", RECORDS)


@pytest.mark.parametrize("step", OF_ARROW)
def test_a_zombie_that_stopped_at(step: str, tmp_path: Path) -> None:
    """The lease moves while it stands still; later it goes on, wins or loses the race, its checkpoint is refused."""
    place = str(tmp_path / "t")
    shard = Shard(RECORDS, 7)
    stops = {"KCL_HOST_SPARK_FAIL_AT": f"{step}:1", "KCL_HOST_SPARK_FAIL_WITH": "STOP"}
    with Child(shard, ["arrow", place, "20"], stops) as zombie:
        message = zombie.first_message()
        lines = shard.lines()
        while zombie.act(message):
            message = next(lines)
        zombie.owner = False
        half = Shard(RECORDS // 2, 7)
        half.checkpoint = shard.checkpoint
        serve(half, ["arrow", place, "10"], {})
        zombie.resume()
        zombie.answered(message["action"])
        zombie.act({"action": "leaseLost"})
    shard.checkpoint = half.checkpoint
    serve(shard, ["arrow", place, "20"], {})
    assert_each_once(tmp_path / "t", RECORDS)


def test_a_layout_is_written(tmp_path: Path) -> None:
    """Killed right after it, too."""
    shard = Shard(240, 2)
    environ = {"KCL_HOST_SPARK_FAIL_AT": "folded", "KCL_HOST_SPARK_FAIL_MARK": str(tmp_path / "mark")}
    serve(shard, ["arrow", str(tmp_path / "t"), "1"], environ, cuts=(2,))
    assert shard.deaths == 1
    assert_each_once(tmp_path / "t", 240)
