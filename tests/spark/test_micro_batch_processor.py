"""The processor against its host: when it commits, what it checkpoints, what it does when something fails."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kcl_host.processor import Checkpointer, CheckpointError
from kcl_host.processor import run as run_processor
from kcl_host.spark.batch import Trigger
from kcl_host.spark.commit_chain import Rewound
from kcl_host.spark.maintenance import rewind
from kcl_host.spark.position import Position
from kcl_host.spark.processor import MicroBatchProcessor, Outside, Retry
from kcl_host.spark.sinks import AtLeastOnceSink, Batch
from tests.spark.world import ENVIRON, KEY, SHARD, ListEngine, ListSink, World, record


class Checkpoints:
    """Answers with the next of `errors`, then with success."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.asked: list[tuple[str | None, int | None]] = []

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        self.asked.append((sequence_number, sub_sequence_number))
        if self.errors:
            raise CheckpointError(self.errors.pop(0))


class Stage:
    """One shard of the world of `world.py`, without interleavings."""

    def __init__(self, *, records: int = 3, transform: Callable[[Any], Any] | None = None, **more: Any) -> None:
        self.world = World([], [], trigger_records=records, fold_every=100)
        self.sink = more.pop("sink", None) or ListSink(self.world.storage, 100)
        self.engine = more.pop("engine", None) or ListEngine()
        self.checkpoints = Checkpoints(*more.pop("errors", ()))
        self.naps: list[float] = []
        self.transform = transform or (lambda rows: {"table": rows})
        self.trigger = Trigger(records=records, age_s=10)
        self.more = more
        self.processor = self.start()

    def start(self) -> MicroBatchProcessor:
        return MicroBatchProcessor(
            self.transform,
            self.sink,
            self.trigger,
            engine=self.engine,
            retry=Retry(give_up_after_s=60),
            outside=Outside(
                monotonic_s=lambda: self.world.now_s,
                boot_s=lambda: self.world.now_s,
                sleep=self._sleep,
                environ=self.more.get("environ", ENVIRON),
                say=self.more.get("say", print),
            ),
            allow_gap=self.more.get("allow_gap", False),
        )

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.world.now_s += seconds

    @property
    def checkpointer(self) -> Checkpointer:
        return cast("Checkpointer", self.checkpoints)

    def initialize(self, sequence_number: str = "TRIM_HORIZON") -> None:
        self.processor.initialize(SHARD, sequence_number, 0)

    def deliver(self, *numbers: int) -> None:
        self.processor.process_records([record(Position(number, 0)) for number in numbers], self.checkpointer)

    def rows(self, name: str = "table") -> list[int]:
        return [position.sequence_number for position in self.world.rows().get(name, [])]


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.initialize()
    return stage


def test_a_full_batch_is_committed_and_then_checkpointed(stage: Stage) -> None:
    stage.deliver(1, 2)
    assert (stage.rows(), stage.checkpoints.asked) == ([], [])
    stage.deliver(3, 4)
    assert (stage.rows(), stage.checkpoints.asked) == ([1, 2, 3, 4], [("4", 0)])


def test_an_age_that_passes_without_records_commits_and_the_checkpoint_waits(stage: Stage) -> None:
    assert stage.processor.while_idle() is None
    stage.deliver(1)
    assert stage.processor.while_idle() == 10.0
    stage.world.now_s += 10
    assert stage.processor.while_idle() is None
    assert (stage.rows(), stage.checkpoints.asked) == ([1], [])
    stage.deliver()
    assert stage.checkpoints.asked == [("1", 0)]


def test_the_checkpoint_of_a_committed_batch_does_not_cover_the_open_one(stage: Stage) -> None:
    stage.deliver(1)
    stage.world.now_s += 10
    stage.processor.while_idle()
    stage.deliver(2)
    assert (stage.rows(), stage.checkpoints.asked) == ([1], [("1", 0)])


def test_shutdown_requested_commits_and_checkpoints_the_open_batch(stage: Stage) -> None:
    stage.deliver(1, 2)
    stage.processor.shutdown_requested(stage.checkpointer)
    assert (stage.rows(), stage.checkpoints.asked) == ([1, 2], [("2", 0)])


def test_shutdown_requested_of_an_idle_shard_asks_for_nothing(stage: Stage) -> None:
    stage.processor.shutdown_requested(stage.checkpointer)
    assert stage.checkpoints.asked == []


def test_the_end_of_a_shard_commits_first(stage: Stage) -> None:
    stage.deliver(1, 2)
    stage.processor.shard_ended(stage.checkpointer)
    assert (stage.rows(), stage.checkpoints.asked) == ([1, 2], [(None, None)])


def test_the_end_of_a_shard_is_asked_for_again(stage: Stage) -> None:
    stage.checkpoints.errors = ["ThrottlingException", "KinesisClientLibDependencyException"]
    stage.processor.shard_ended(stage.checkpointer)
    assert len(stage.checkpoints.asked) == 3
    stage.checkpoints.errors = ["ThrottlingException"] * 5
    with pytest.raises(CheckpointError):
        stage.processor.shard_ended(stage.checkpointer)


def test_a_lost_lease_drops_the_open_batch(stage: Stage) -> None:
    stage.deliver(1, 2)
    stage.processor.lease_lost()
    stage.world.now_s += 100
    assert stage.processor.while_idle() is None
    assert stage.rows() == []


def test_a_refused_checkpoint_ends_all_work(stage: Stage) -> None:
    stage.checkpoints.errors = ["ShutdownException"]
    stage.deliver(1, 2, 3)
    stage.deliver(4, 5, 6)
    stage.processor.shutdown_requested(stage.checkpointer)
    assert (stage.rows(), stage.checkpoints.asked) == ([1, 2, 3], [("3", 0)])


def test_a_throttled_checkpoint_is_asked_for_at_the_next_action(stage: Stage) -> None:
    stage.checkpoints.errors = ["ThrottlingException"]
    stage.deliver(1, 2, 3)
    stage.deliver(4)
    assert stage.checkpoints.asked == [("3", 0), ("3", 0)]


def test_a_checkpoint_that_is_wrong_ends_the_process(stage: Stage) -> None:
    stage.checkpoints.errors = ["IllegalArgumentException"]
    with pytest.raises(CheckpointError):
        stage.deliver(1, 2, 3)


def test_a_replay_cut_otherwise_commits_only_what_is_new(stage: Stage) -> None:
    stage.deliver(1, 2, 3)
    stage.deliver(4, 5)
    stage.processor = stage.start()  # killed before it committed 4 and 5; checkpoint still at the beginning
    stage.initialize()
    stage.deliver(1, 2)
    stage.deliver(3, 4, 5, 6)
    assert stage.rows() == [1, 2, 3, 4, 5, 6]
    assert stage.checkpoints.asked[-1] == ("6", 0)


def test_a_replay_of_nothing_new_is_checkpointed_too(stage: Stage) -> None:
    stage.deliver(1, 2, 3)
    stage.processor = stage.start()
    stage.initialize()
    stage.checkpoints.asked.clear()
    stage.deliver(1, 2)
    stage.world.now_s += 10
    stage.deliver(3)
    assert (stage.rows(), stage.checkpoints.asked) == ([1, 2, 3], [("3", 0)])


def test_sub_records_across_the_border_of_a_batch(stage: Stage) -> None:
    places = [Position(10, sub) for sub in range(5)]
    stage.processor.process_records([record(p) for p in places[:3]], stage.checkpointer)
    assert stage.checkpoints.asked == [("10", 2)]
    stage.processor = stage.start()
    stage.processor.initialize(SHARD, "10", 2)
    stage.processor.process_records([record(p) for p in places], stage.checkpointer)
    stage.processor.shutdown_requested(stage.checkpointer)
    assert stage.world.rows()["table"] == places
    assert stage.checkpoints.asked[-1] == ("10", 4)


def test_a_zombie_that_won_the_race_costs_nothing(stage: Stage) -> None:
    zombie, stage.processor = stage.processor, stage.start()
    stage.initialize()
    lost = Checkpoints("ShutdownException")
    zombie.process_records([record(Position(n, 0)) for n in (1, 2, 3)], cast("Checkpointer", lost))
    stage.deliver(1, 2, 3, 4)
    assert (stage.rows(), stage.checkpoints.asked) == ([1, 2, 3, 4], [("4", 0)])
    assert stage.world.view().commits == 2


def test_a_transform_that_drops_everything_still_commits() -> None:
    stage = Stage(transform=lambda rows: [])
    stage.initialize()
    stage.deliver(1, 2, 3)
    assert stage.world.view().head == Position(3, 0)
    assert (stage.rows(), stage.checkpoints.asked) == ([], [("3", 0)])


def test_a_transform_that_returns_nothing_is_told_so() -> None:
    stage = Stage(transform=lambda rows: None)
    stage.initialize()
    with pytest.raises(TypeError, match="returned None"):
        stage.deliver(1, 2, 3)
    assert stage.checkpoints.asked == []


class Failing(ListEngine):
    """Fails `times` before it works."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error
        self.resets = 0

    def frame(self, chunks: Any) -> Any:
        if self.times:
            self.times -= 1
            raise self.error
        return super().frame(chunks)

    def reset(self) -> None:
        self.resets += 1


def test_a_sink_that_fails_for_a_while_is_waited_for() -> None:
    engine = Failing(5, OSError("no space left"))
    stage = Stage(engine=engine)
    stage.initialize()
    stage.deliver(1, 2, 3)
    assert (stage.rows(), engine.resets) == ([1, 2, 3], 5)
    assert stage.naps == [0.5, 1, 2, 4, 8]


def test_one_that_fails_for_too_long_ends_the_process_without_a_checkpoint() -> None:
    stage = Stage(engine=Failing(100, OSError("no space left")))
    stage.initialize()
    with pytest.raises(OSError, match="no space left"):
        stage.deliver(1, 2, 3)
    assert 0 < sum(stage.naps) <= 60
    assert stage.checkpoints.asked == []


def test_an_error_of_the_transform_is_not_tried_again() -> None:
    stage = Stage(engine=Failing(1, KeyError("no such column")))
    stage.initialize()
    with pytest.raises(KeyError):
        stage.deliver(1, 2, 3)
    assert stage.naps == []


def test_a_commit_whose_answer_was_lost_is_not_repeated(stage: Stage) -> None:
    class LosesAnAnswer(ListSink):
        lost = False

        def commit(self, *args: Any) -> Any:
            after = super().commit(*args)
            if not self.lost:
                self.lost = True
                raise OSError("the answer was lost")
            return after

    stage.sink = LosesAnAnswer(stage.world.storage, 100)
    stage.processor = stage.start()
    stage.initialize()
    stage.deliver(1, 2, 3)
    assert (stage.rows(), stage.world.view().commits, stage.checkpoints.asked) == ([1, 2, 3], 1, [("3", 0)])


def test_a_rewind_meanwhile_ends_the_process_without_a_checkpoint(stage: Stage) -> None:
    stage.deliver(1, 2, 3)
    rewind(stage.world.storage, KEY, None)
    with pytest.raises(Rewound):
        stage.deliver(4, 5, 6)
    assert stage.checkpoints.asked == [("3", 0)]
    stage.processor = stage.start()
    with pytest.raises(ValueError, match="above the head"):
        stage.initialize("3")


def test_a_gap_is_allowed_by_name_only() -> None:
    stage = Stage(allow_gap=True)
    stage.initialize("5")
    stage.deliver(6, 7, 8)
    stage.processor = stage.start()
    stage.initialize("100")
    stage.deliver(101, 102, 103)
    assert stage.rows() == [6, 7, 8, 101, 102, 103]


def test_an_idle_shard_reads_the_head_again_before_it_commits(stage: Stage) -> None:
    stage.world.now_s += 3 * 3600
    stage.deliver(1, 2, 3)
    assert (stage.rows(), stage.world.names) == ([1, 2, 3], 1)


def test_records_out_of_order_are_refused(stage: Stage) -> None:
    with pytest.raises(ValueError, match="in order"):
        stage.deliver(2, 1, 3)


def test_a_child_of_nobody_says_what_is_missing() -> None:
    stage = Stage(environ={"KCL_HOST_STREAM": "numbers"})
    with pytest.raises(ValueError, match="KCL_HOST_APPLICATION"):
        stage.initialize()


def test_a_sink_that_keeps_no_position_gets_everything_again() -> None:
    written: list[tuple[list[int], str, Batch]] = []
    sink = AtLeastOnceSink(
        lambda rows, name, batch: written.append(([r.position.sequence_number for r in rows], name, batch))
    )
    stage = Stage(sink=sink)
    stage.initialize()
    stage.deliver(1, 2, 3)
    stage.processor = stage.start()
    stage.initialize()
    stage.deliver(1, 2, 3, 4)
    assert [(numbers, name) for numbers, name, _ in written] == [([1, 2, 3], "table"), ([1, 2, 3, 4], "table")]
    assert written[1][2].end == Position(4, 0)


def test_it_speaks_the_protocol() -> None:
    """Lines in, lines out; payloads leave base64 on the way."""
    seen: list[Any] = []
    stage = Stage(records=1, transform=lambda rows: seen.extend(rows) or {"table": rows})
    fields = {
        "action": "record", "data": b64encode(b"\x00\xffpayload").decode(), "partitionKey": "ключ",
        "sequenceNumber": "495", "subSequenceNumber": 2, "approximateArrivalTimestamp": 1735689600123,
    }  # fmt: skip
    lines = [
        {"action": "initialize", "shardId": SHARD, "sequenceNumber": "TRIM_HORIZON", "subSequenceNumber": 0},
        {"action": "processRecords", "records": [fields], "millisBehindLatest": 5},
        {"action": "checkpoint", "sequenceNumber": "495", "subSequenceNumber": 2, "error": None},
        {"action": "leaseLost"},
    ]
    out = io.BytesIO()
    run_processor(stage.processor, io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), out)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"action": "status", "responseFor": "initialize"},
        {"action": "checkpoint", "sequenceNumber": "495", "subSequenceNumber": 2},
        {"action": "status", "responseFor": "processRecords"},
        {"action": "status", "responseFor": "leaseLost"},
    ]
    assert (seen[0].data, seen[0].partition_key, seen[0].arrived_ms) == (b"\x00\xffpayload", "ключ", 1735689600123)


def test_the_report_goes_beside_the_protocol(tmp_path: Path) -> None:
    path = tmp_path / "report"
    stage = Stage(environ={**ENVIRON, "KCL_HOST_SPARK_REPORT": str(path)})
    stage.initialize()
    stage.deliver(1, 2, 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["action"] for line in lines] == ["initialized", "committed", "checkpointed"]
    assert lines[1]["records"] == 3
    assert lines[1]["end"] == "3/0"


def test_spark_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import kcl_host.spark, sys; sys.exit(any(n.startswith(('pyspark', 'pyarrow', 'boto3')) for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0


def test_metrics_go_to_a_host_that_wants_them() -> None:
    from kcl_host.observe.catalogue import CATALOGUE
    from kcl_host.observe.micro_batch import ANNOUNCED, points_of

    lines: list[str] = []
    engine = Failing(1, OSError("no space left"))
    stage = Stage(engine=engine, environ={**ENVIRON, **dict([ANNOUNCED])}, say=lines.append)
    stage.initialize()
    stage.deliver(1, 2, 3)
    points = [points_of(line) for line in lines]
    assert points[0] == {"Retries": 1.0}
    assert points[1] is not None and points[1]["RecordsCommitted"] == 3
    told = {name for one in points for name in one or ()}
    # A list has no rejected rows and no times of arrival.
    assert told | {"RowsRejected", "HeadLag"} == {m.name for m in CATALOGUE if m.operation == "MicroBatch"}
    assert points_of('kcl-host-metrics {"Nobody": 1, "Retries": 2}') == {"Retries": 2.0}
    assert points_of("kcl-host-metrics {") is None and points_of("another line") is None
    silent = Stage(say=lines.append)
    silent.initialize()
    silent.deliver(1, 2, 3)
    assert len(lines) == len(points)
