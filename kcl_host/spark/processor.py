"""The record processor that gathers a shard's records into micro-batches and commits each exactly once.

Invariants:
- The open batch holds every record received above the head, in order; so a commit never leaves one out.
- Checkpoints name a position that the sink had committed before: a bare one would cover the open batch.
- After any error, and after a lost race, the head is read again and what it covers is dropped before the next try.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

import msgspec

from kcl_host.processor import Checkpointer, CheckpointError, RecordProcessor
from kcl_host.processor import run as run_processor
from kcl_host.spark import lines
from kcl_host.spark.batch import OpenBatch, Trigger, above
from kcl_host.spark.chain import ChainKey
from kcl_host.spark.commit_chain import HEAD_LIMIT_S, Head, Rewound, boot_s
from kcl_host.spark.engine import Engine, SparkEngine
from kcl_host.spark.faults import reach
from kcl_host.spark.parquet import TABLE
from kcl_host.spark.position import Position, is_above, parse
from kcl_host.spark.rows import REJECTED, RejectedRows, Rows
from kcl_host.spark.sinks import Batch, Sink

_log = logging.getLogger(__name__)

_SHARD_END_TRIES: Final = 5


def _say(line: str) -> None:
    os.write(2, f"{line}\n".encode())  # In one piece: other threads and a JVM write there too.


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch is tried again when Spark or the sink fails. The host waits meanwhile and keeps the lease."""

    give_up_after_s: float = 180.0
    """Then the process ends and the host starts another. To be below the host's `timeoutInSeconds`, if that is set."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks and the environment, for tests."""

    monotonic_s: Callable[[], float] = time.monotonic
    boot_s: Callable[[], float] = boot_s
    sleep: Callable[[float], None] = time.sleep
    environ: Mapping[str, str] = os.environ
    say: Callable[[str], None] = _say
    """A line for the host, on stderr."""


class MicroBatchProcessor(RecordProcessor):
    """`transform(frame)` returns a frame, `Rows` (json_rows, text_rows), or a dict of table name -> frame."""

    def __init__(
        self,
        transform: Callable[[Any], Any],
        sink: Sink,
        trigger: Trigger | None = None,
        *,
        engine: Engine | None = None,
        retry: Retry | None = None,
        allow_gap: bool = False,
        outside: Outside | None = None,
    ) -> None:
        """`allow_gap` lets a shard start above the head of its chain: the records between stay out of the table."""
        self._transform = transform
        self._sink = sink
        self._trigger = trigger or Trigger()
        self._engine = engine or SparkEngine()
        self._retry = retry or Retry()
        self._allow_gap = allow_gap
        self._outside = outside or Outside()
        self._key: ChainKey | None = None
        self._head: Head | None = None
        self._reread = False
        """Whether the head may have moved without us."""
        self._received: Position | None = None
        """The last record that the host delivered to this process."""
        self._open = OpenBatch()
        self._covered: Position | None = None
        """Committed, and still to be checkpointed."""
        self._lease_lost = False

    # What the host calls

    def parse_line(self, line: bytes) -> dict[str, Any]:
        return lines.parse(line)

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        self._key = key = _key(self._outside.environ, shard_id)
        self._head = head = self._persist(lambda: self._sink.head(key))
        checkpoint = parse(sequence_number, sub_sequence_number)
        problem = self._sink.problem(key, head, checkpoint)
        if problem is not None:
            if not self._allow_gap:
                raise ValueError(f"{shard_id}: {problem}")
            _log.warning("%s: started all the same: %s", shard_id, problem)
        if sequence_number == "LATEST" and head.has_history:
            _log.warning("%s starts at LATEST although its chain has commits: what came between is not known", shard_id)
        self._report("initialized", head=_words(head.position), generation=head.generation, checkpoint=sequence_number)
        reach("initialized")

    def process_records(self, records: Sequence[Any], checkpointer: Checkpointer) -> None:
        reach("received")
        self._checkpoint(checkpointer)  # what was committed while no action was there to ask in
        if self._lease_lost:
            return
        self._gather(records)
        reach("buffered")
        if self._open.due(self._trigger, self._outside.monotonic_s()):
            self._flush()
            self._checkpoint(checkpointer)

    def while_idle(self) -> float | None:
        if self._lease_lost:
            return None
        if self._open.due(self._trigger, self._outside.monotonic_s()):
            self._flush()
        return self._open.due_in_s(self._trigger, self._outside.monotonic_s())

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        if self._lease_lost:
            return
        self._flush()
        self._checkpoint(checkpointer)

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self._flush()
        for left in reversed(range(_SHARD_END_TRIES)):
            try:
                reach("checkpointing")
                checkpointer.checkpoint()
                return
            except CheckpointError as error:
                if error.value == "ShutdownException":
                    return
                if not error.may_pass or not left:
                    raise
                self._outside.sleep(1.0)

    def lease_lost(self) -> None:
        self._drop_everything("the lease is lost")

    # What it does

    def _gather(self, records: Sequence[Any]) -> None:
        if not records:
            return
        assert self._key is not None and self._head is not None
        head = self._head.position
        floor = self._received if is_above(self._received, head) else head
        skip = above(records, floor)
        last = records[-1].position
        self._received = last if self._received is None else max(last, self._received)
        self._open.see(self._received, records[-1].arrived_ms, self._outside.monotonic_s())
        if skip < len(records):
            columns = self._engine.columns(records[skip:], self._key.stream, self._key.shard)
            self._open.add(columns, len(records) - skip, last)

    def _flush(self) -> None:
        """Commits the open batch. Raises when that cannot be done: the process has to end, uncheckpointed."""
        if self._open.records:
            self._persist(self._commit)
        if self._open.end is not None:
            self._covered = self._open.end
        self._open.clear()

    def _persist(self, act: Callable[[], Any]) -> Any:
        """The act's result, tried again after what may pass."""
        began_s = self._outside.monotonic_s()
        pause_s = self._retry.first_pause_s
        while True:
            try:
                return act()
            except (Rewound, ValueError):
                raise
            except Exception as error:
                self._reread = True
                waited_s = self._outside.monotonic_s() - began_s
                if not self._engine.may_pass(error) or waited_s + pause_s > self._retry.give_up_after_s:
                    raise
                self._report("retry", after_s=round(waited_s, 1), error=f"{type(error).__name__}: {str(error)[:300]}")
                self._measure(Retries=1)
                self._engine.reset()
                self._outside.sleep(pause_s)
                pause_s = min(2 * pause_s, self._retry.longest_pause_s)

    def _commit(self) -> None:
        """Tries until somebody has committed what is in the open batch."""
        assert self._key is not None and self._head is not None
        while True:
            if self._reread or self._outside.boot_s() - self._head.seen_s > HEAD_LIMIT_S / 2:
                self._read_head()
            if not self._open.records:
                return
            head = self._attempt(self._head)
            if head is not None:
                self._head = head
                reach("committed")
                return
            self._reread = True
            self._report("race_lost", head=_words(self._head.position))

    def _read_head(self) -> None:
        assert self._key is not None and self._head is not None
        generation = self._head.generation
        self._head = self._sink.head(self._key)
        if self._head.generation != generation:
            raise Rewound(f"the chain of {self._key.shard} was rewound: generation {self._head.generation}")
        self._reread = False
        dropped = self._open.drop(self._head.position, self._engine.positions)
        if dropped:
            self._report("dropped", records=dropped, head=_words(self._head.position))

    def _attempt(self, head: Head) -> Head | None:
        assert self._key is not None and self._open.end is not None
        opened = self._open
        batch = Batch(end=opened.parts[-1].end, records=opened.records, arrived_ms=opened.arrived_ms)
        began_s = self._outside.monotonic_s()
        with self._engine.frame([part.columns for part in opened.parts]) as frame:
            spooled_s = self._outside.monotonic_s()
            frames = _Frames(self._transform(frame))
            written = self._sink.write(self._key, self._engine, frames, batch)
        written_s = self._outside.monotonic_s()
        after = self._sink.commit(self._key, head, batch, written)
        now_s = self._outside.monotonic_s()
        if after is not None:
            self._report(
                "committed",
                records=batch.records,
                bytes=opened.bytes,
                rejected=frames.rejected,
                end=_words(batch.end),
                arrived_ms=batch.arrived_ms,
                age_s=round(now_s - opened.since_s, 3),
                convert_s=round(spooled_s - began_s, 3),
                execute_s=round(written_s - spooled_s, 3),
                commit_s=round(now_s - written_s, 3),
            )
            self._measure(
                RecordsCommitted=batch.records,
                BytesCommitted=opened.bytes,
                RowsRejected=frames.rejected,
                HeadLag=None if batch.arrived_ms is None else max(0, time.time_ns() // 1_000_000 - batch.arrived_ms),
                **{
                    "Convert.Time": 1000 * (spooled_s - began_s),
                    "Execute.Time": 1000 * (written_s - spooled_s),
                    "Commit.Time": 1000 * (now_s - written_s),
                },
            )
        return after

    def _checkpoint(self, checkpointer: Checkpointer) -> None:
        covered = self._covered
        if covered is None or self._lease_lost:
            return
        reach("checkpointing")
        began_s = self._outside.monotonic_s()
        try:
            checkpointer.checkpoint(str(covered.sequence_number), covered.sub_sequence_number)
        except CheckpointError as error:
            if error.value == "ShutdownException":
                self._drop_everything("the host refused a checkpoint, since the lease is lost")
            elif error.may_pass:
                self._report("checkpoint_put_off", error=error.value)
            else:
                raise
            return
        reach("checkpointed")
        self._covered = None
        took_s = self._outside.monotonic_s() - began_s
        self._report("checkpointed", at=_words(covered), took_s=round(took_s, 3))
        self._measure(**{"Checkpoint.Time": 1000 * took_s})

    def _drop_everything(self, why: str) -> None:
        self._report("lease_lost", why=why, dropped=self._open.records)
        self._lease_lost = True
        self._covered = None
        self._open.clear()

    def close(self) -> None:
        """Ends the Spark session. Only after the host has its last answer: nobody waits for a session to end."""
        self._engine.reset()

    def _report(self, action: str, **facts: Any) -> None:
        """To the host's log by way of stderr, and as a line of JSON into the file KCL_HOST_SPARK_REPORT."""
        shard = "" if self._key is None else self._key.shard
        level = (
            logging.WARNING if action in ("retry", "race_lost", "lease_lost", "checkpoint_put_off") else logging.INFO
        )
        _log.log(level, "%s: %s %s", shard, action, " ".join(f"{name}={value}" for name, value in facts.items()))
        path = self._outside.environ.get("KCL_HOST_SPARK_REPORT")
        if path:
            line = json.dumps({"at_ms": time.time_ns() // 1_000_000, "shard": shard, "action": action, **facts})
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode() + b"\n")  # in one piece: several children share the file
            finally:
                os.close(descriptor)

    def _measure(self, **points: float | None) -> None:
        """For the metrics of the host, if it announced that it wants them (kcl_host/observe/micro_batch.py)."""
        if self._outside.environ.get("KCL_HOST_METRICS") == "stderr":
            known = {name: round(value, 3) for name, value in points.items() if value is not None}
            self._outside.say(f"kcl-host-metrics {json.dumps(known)}")


class _Frames(Mapping[str, Any]):
    """Frames by table. Rejected rows are the last, and left out once it is known that there are none."""

    def __init__(self, returned: Any) -> None:
        if isinstance(returned, Rows):
            returned = {TABLE: returned.accepted, REJECTED: returned.rejected}
        elif not isinstance(returned, dict):
            returned = {TABLE: returned}
        self._frames = dict(sorted(returned.items(), key=lambda item: isinstance(item[1], RejectedRows)))
        if None in self._frames.values():
            raise TypeError("the transform returned None instead of a frame")

    def __getitem__(self, name: str) -> Any:
        frame = self._frames[name]
        return frame.frame if isinstance(frame, RejectedRows) else frame

    def __iter__(self) -> Any:
        for name, frame in self._frames.items():
            if not isinstance(frame, RejectedRows) or frame.number != 0:
                yield name

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def rejected(self) -> int | None:
        """How many rows were; None without a helper that counts."""
        counts = [frame.number for frame in self._frames.values() if isinstance(frame, RejectedRows)]
        return None if not counts or None in counts else sum(count or 0 for count in counts)


def run(processor: MicroBatchProcessor, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Serves the host until it closes stdin.

    stdout is taken away from everybody else first (print(), df.show(), a JVM that inherits it): their output goes to
    stderr, which the host logs. A session must not be opened before this.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("pyspark").setLevel(logging.WARNING)
    try:
        run_processor(processor, stdin, stdout)
    finally:
        processor.close()


def _key(environ: Mapping[str, str], shard_id: str) -> ChainKey:
    try:
        application, stream = environ["KCL_HOST_APPLICATION"], environ["KCL_HOST_STREAM"]
    except KeyError as missing:
        raise ValueError(
            f"{missing} is not in the environment: the table's position is kept per application, stream and shard. "
            "kcl-host sets it; under another daemon set it yourself"
        ) from None
    created = environ.get("KCL_HOST_STREAM_CREATED")
    return ChainKey(
        application=application,
        stream=stream,
        shard=environ.get("KCL_HOST_SHARD", shard_id),
        stream_created_s=int(created) if created else None,
    )


def _words(position: Position | None) -> str | None:
    return None if position is None else f"{position.sequence_number}/{position.sub_sequence_number}"
