"""One shard, its lease, a store that fails, and processors that can be stopped between any two of their steps.

The processors are the real ones (`kcl_host.spark.processor`), each in a greenlet of its own that gives way before and
after every call to the store and to the host. What takes the place of Spark is a list. A crash unwinds the greenlet;
a processor that lost its lease goes on until it is told, which may be never.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
from greenlet import greenlet

from kcl_host.processor import Checkpointer, CheckpointError
from kcl_host.spark import chain
from kcl_host.spark.batch import Trigger
from kcl_host.spark.chain import ChainKey, DataFile, View
from kcl_host.spark.commit_chain import Chain, Rewound
from kcl_host.spark.lines import Record
from kcl_host.spark.maintenance import rewind, vacuum
from kcl_host.spark.parquet import ParquetSink, Written
from kcl_host.spark.position import Position, at_or_below
from kcl_host.spark.processor import MicroBatchProcessor, Outside, Retry
from kcl_host.spark.sinks import Sink
from kcl_host.spark.storage import Stored

SHARD = "shardId-000000000001"
KEY = ChainKey(application="app", stream="numbers", shard=SHARD)
ENVIRON = {"KCL_HOST_APPLICATION": "app", "KCL_HOST_STREAM": "numbers", "KCL_HOST_SHARD": SHARD}
DAY_S = 24 * 3600.0


class Crash(BaseException):
    """kill -9, as far as Python can do it."""


class Columns(list[Any]):
    """Records in place of an Arrow table."""

    @property
    def nbytes(self) -> int:
        return 10 * len(self)

    def slice(self, offset: int) -> Columns:
        return Columns(self[offset:])


class ListEngine:
    def columns(self, records: Sequence[Record], stream: str, shard_id: str) -> Columns:
        return Columns(records)

    def positions(self, columns: Columns) -> list[Position]:
        return [record.position for record in columns]

    @contextlib.contextmanager
    def frame(self, chunks: Sequence[Columns]) -> Iterator[list[Record]]:
        yield [record for chunk in chunks for record in chunk]

    def write(self, frame: Any, uri: str) -> None:
        raise NotImplementedError

    def may_pass(self, error: Exception) -> bool:
        return isinstance(error, OSError)

    def reset(self) -> None:
        pass


class MemoryStorage:
    """Gives way at every call, and fails when the world says so: before it did anything, or after."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.content: dict[str, tuple[bytes, int]] = {}

    def check(self) -> None:
        pass

    def read(self, name: str) -> bytes | None:
        self.world.give_way("read")
        found = self.content.get(name)
        self.world.give_way("read done")
        return None if found is None else found[0]

    def create(self, name: str, content: bytes) -> bool:
        self.world.give_way("create")
        free = name not in self.content
        if free:
            self.content[name] = content, self.now_ms()
        self.world.give_way("create done")
        return free

    def files(self, folder: str) -> list[str]:
        self.world.give_way("files")
        rest = [name.removeprefix(f"{folder}/") for name in self.content if name.startswith(f"{folder}/")]
        return sorted(name for name in rest if "/" not in name)

    def folders(self, folder: str) -> list[str]:
        rest = [name.removeprefix(f"{folder}/") for name in self.content if name.startswith(f"{folder}/")]
        return sorted({name.split("/")[0] for name in rest if "/" in name})

    def walk(self, folder: str) -> Iterator[Stored]:
        self.world.give_way("walk")
        found = [Stored(name, at) for name, (_, at) in self.content.items() if name.startswith(f"{folder}/")]
        for stored in found:
            self.world.give_way("walked")
            yield stored

    def delete(self, name: str) -> None:
        self.world.give_way("delete")
        self.content.pop(name, None)

    def sync(self, names: list[str]) -> None:
        pass

    def now_ms(self) -> int:
        return int(self.world.now_s * 1000)

    def uri(self, name: str) -> str:
        return name

    def source(self, name: str) -> str:
        return name


class ListSink(ParquetSink):
    """Rows in JSON instead of Parquet; everything else is the real sink."""

    def __init__(self, storage: MemoryStorage, fold_every: int) -> None:
        super().__init__(storage)
        self._memory = storage
        self._fold_every = fold_every

    def chain(self, key: ChainKey) -> Chain:
        return Chain(self.storage, key, clock=lambda: self._memory.world.now_s, fold_every=self._fold_every)

    def write(self, key: ChainKey, engine: Any, frames: Any, batch: Any) -> Written:
        attempt = self._memory.world.new_name()
        tables = {
            name: [write_rows(self._memory, f"data/{attempt}/{name}", frame)] for name, frame in frames.items() if frame
        }
        return Written(tables, {"s": "{}"} if tables else {})


def write_rows(storage: MemoryStorage, name: str, rows: list[Any]) -> DataFile:
    numbers = [
        [r.position.sequence_number, r.position.sub_sequence_number] if hasattr(r, "position") else r for r in rows
    ]
    storage.create(name, json.dumps(numbers).encode())
    return DataFile(path=name, rows=len(rows), bytes=len(rows), schema="s")


def transform(records: list[Record]) -> dict[str, list[Record]]:
    """Two tables, and records that get into neither: `rows_of` says the same for one record."""
    return {name: [record for record in records if rows_of(record.position) == name] for name in ("table", "other")}


def rows_of(position: Position) -> str | None:
    kind = (position.sequence_number + position.sub_sequence_number) % 5
    return None if kind == 0 else "table" if kind < 4 else "other"


class Ended(Exception):
    """The process of a processor ended by itself."""


class Worker:
    """A child process: its processor, and where the host stands with it."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.world = world
        self.cursor = 0
        self.at = "new"
        self.told: str | None = None
        """What the host says next instead of records."""
        self.greenlet = greenlet(self._run)

    @property
    def alive(self) -> bool:
        return not self.greenlet.dead

    def step(self) -> None:
        self.greenlet.switch()

    def crash(self) -> None:
        if self.alive and self.greenlet:
            with contextlib.suppress(Crash):
                self.greenlet.throw(Crash)
        self.greenlet = greenlet(lambda: None)
        self.greenlet.switch()

    def _run(self) -> None:
        with contextlib.suppress(Ended, Crash):
            self._serve()

    def _serve(self) -> None:
        world = self.world
        processor = MicroBatchProcessor(
            transform,
            world.sink(),
            Trigger(records=world.trigger_records, bytes=10_000, age_s=20),
            engine=ListEngine(),
            retry=Retry(give_up_after_s=60, first_pause_s=1, longest_pause_s=30),
            outside=Outside(
                monotonic_s=lambda: world.now_s, boot_s=lambda: world.now_s, sleep=self._sleep, environ=ENVIRON
            ),
        )
        start = world.checkpoint
        self.cursor = sum(1 for position in world.records if at_or_below(position, start))
        words = ("TRIM_HORIZON", 0) if start is None else (str(start.sequence_number), start.sub_sequence_number)
        try:
            processor.initialize(SHARD, *words)
        except ValueError as error:
            assert "above the head" in str(error), error
            world.wedged = True
            raise Ended from error
        except OSError as error:
            raise Ended from error
        checkpointer = cast("Checkpointer", HostCheckpointer(self))
        try:
            while True:
                world.give_way("host")
                if self.told == "lease_lost":
                    processor.lease_lost()
                    return
                if self.told == "shutdown_requested":
                    self.told = None
                    processor.shutdown_requested(checkpointer)
                    continue
                size = (world.choose(4) + 1) % 4
                batch = world.records[self.cursor : self.cursor + size]
                self.cursor += len(batch)
                if batch:
                    processor.process_records([record(position) for position in batch], checkpointer)
                else:
                    world.now_s += 7
                    processor.while_idle()
        except (OSError, Rewound) as error:
            raise Ended from error

    def _sleep(self, seconds: float) -> None:
        self.world.now_s += seconds
        self.world.give_way("sleep")


class HostCheckpointer:
    """What the host answers: only the owner of the lease gets a checkpoint, and none goes back or beyond."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        world, worker = self._worker.world, self._worker
        world.give_way("checkpoint")
        if world.owner is not worker:
            raise CheckpointError("ShutdownException")
        if world.choose(10) == 1:
            raise CheckpointError("ThrottlingException")
        assert sequence_number is not None and sub_sequence_number is not None, "a bare one would cover the open batch"
        position = Position(int(sequence_number), sub_sequence_number)
        assert world.checkpoint is None or position >= world.checkpoint or world.set_back, "a checkpoint went back"
        assert position <= world.records[worker.cursor - 1], "a checkpoint beyond what was delivered"
        world.checkpoint = position
        world.give_way("checkpoint done")


class World:
    """`choices` decides everything; when it is used up, 0 is chosen for ever, which is: go on, without faults."""

    def __init__(self, choices: Sequence[int], records: Sequence[Position], *, trigger_records: int, fold_every: int):
        self._choices = iter(choices)
        self.records = list(records)
        self.trigger_records = trigger_records
        self.fold_every = fold_every
        self.now_s = 1_000_000.0
        self.storage = MemoryStorage(self)
        self.checkpoint: Position | None = None
        self.workers: list[Worker] = []
        self.owner: Worker | None = None
        self.wedged = False
        self.set_back = False
        self.quiet = False
        self.names = 0
        self.seen: dict[str, int] = {}
        self._main = greenlet.getcurrent()

    def choose(self, below: int) -> int:
        return next(self._choices, 0) % below

    def new_name(self) -> str:
        self.names += 1
        return f"attempt-{self.names}"

    def give_way(self, at: str) -> None:
        """A step of whoever runs; the scheduler and its maintenance are not interrupted."""
        current = greenlet.getcurrent()
        worker = next((w for w in self.workers if w.greenlet is current), None)
        if worker is None:
            if isinstance(current, Maintenance):
                current.at = at
                self._main.switch()
            return
        worker.at = at
        self._main.switch()
        if not self.quiet and self.choose(60) == 1:
            self.count("store failed")
            raise OSError(f"the store fails at {at}") if at not in ("host", "sleep") else Crash

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def sink(self) -> Sink:
        """As a new process has it."""
        return ListSink(self.storage, self.fold_every)

    def start_worker(self) -> None:
        """The lease moves to a new process; the one that had it is not told yet."""
        if self.wedged:
            self.wedged = False
            self.checkpoint = self.view().head
        self.owner = Worker(self, len(self.workers))
        self.workers.append(self.owner)

    def view(self) -> View:
        return Chain(self.storage, KEY).view()

    def rows(self) -> dict[str, list[Position]]:
        """What a reader sees."""
        found: dict[str, list[Position]] = {}
        for name, files in self.view().tables.items():
            for file in files:
                content = self.storage.read(file.path)
                assert content is not None, f"{file.path} is committed and gone"
                found.setdefault(name, []).extend(Position(*numbers) for numbers in json.loads(content))
        return found

    def check(self) -> None:
        """What is seen is exactly what stands at or below the head."""
        head = self.view().head
        covered = [position for position in self.records if at_or_below(position, head)]
        rows = self.rows()
        for name in ("table", "other"):
            wanted = [position for position in covered if rows_of(position) == name]
            assert sorted(rows.get(name, [])) == wanted, name

    def compact(self) -> None:
        view = self.view()
        replaced = {}
        for name, files in view.tables.items():
            some = files[self.choose(len(files) + 1) :]
            if len(some) < 2:
                continue
            rows = [row for file in some for row in json.loads(self.storage.content[file.path][0])]
            path = f"data/{self.new_name()}/{name}"
            file = msgspec.structs.replace(write_rows(self.storage, path, rows), start=some[0].start, end=some[-1].end)
            replaced[name] = frozenset(f.path for f in some), [file]
        if not replaced:
            return
        with contextlib.suppress(ValueError):
            while not Chain(self.storage, KEY).publish(chain.compacted(view, replaced, {})):
                view = self.view()
            self.count("compacted")

    def vacuum(self) -> None:
        vacuum(self.storage, age_s=DAY_S)
        self.count("vacuumed")

    def rewind(self) -> None:
        """An operator sets the chain back, and forgets now and then to stop the application first."""
        view = self.view()
        ends = sorted({chain.decode(file.end) for files in view.tables.values() for file in files} | {None}, key=_order)
        to = ends[self.choose(len(ends))]
        with contextlib.suppress(ValueError):
            rewind(self.storage, KEY, to)
            self.rewound_to(to)

    def rewound_to(self, to: Position | None) -> None:
        """Now and then the operator sets the lease's checkpoint back as well."""
        self.count("rewound")
        if self.choose(2) and (to is None or (self.checkpoint is not None and self.checkpoint > to)):
            self.checkpoint = to
            self.set_back = True


class Maintenance(greenlet):
    """compact, vacuum or rewind, interrupted by everybody else."""

    at = ""


def _order(position: Position | None) -> Position:
    return position or Position(-1, 0)


def record(position: Position) -> Record:
    return Record(
        sequence_number=str(position.sequence_number), sub_sequence_number=position.sub_sequence_number, data=b"x"
    )


def run(world: World, steps: int, maintenance: bool = True) -> None:
    """Lets the scheduler play, then a last processor finishes alone; the table must hold every record once."""
    caretakers: list[Maintenance] = []
    world.start_worker()
    for number in range(steps):
        alive = [worker for worker in world.workers if worker.alive]
        act = world.choose(60)
        if not alive:
            world.start_worker()
        elif act < 46:
            # Mostly the one that was started last; the others wake up now and then.
            alive[-1 if world.choose(4) else world.choose(len(alive))].step()
        elif act == 46:
            alive[world.choose(len(alive))].crash()
            world.count("crashed")
        elif act == 47:
            world.start_worker()
            world.count("lease moved")
        elif act == 48:
            told = alive[world.choose(len(alive))]
            told.told = "lease_lost" if told is not world.owner else "shutdown_requested"
        elif act < 57:
            if maintenance:
                _maintain(world, caretakers)
        elif act == 57 and maintenance:
            # Longer than the age of vacuum. A call to the store that lasts so long is taken not to happen.
            world.now_s += 2 * DAY_S
            for worker in alive:
                if worker.at == "create":
                    worker.crash()
            caretakers[:] = [one for one in caretakers if one.at != "create"]
        else:
            world.now_s += 5 * world.choose(10)
        if number % 4 == 0:
            world.check()
    _finish(world)


def _maintain(world: World, caretakers: list[Maintenance]) -> None:
    living = [one for one in caretakers if not one.dead]
    if living:
        one = living[world.choose(len(living))]
        for _ in range(world.choose(12)):
            if not one.dead:
                one.switch()
        return
    jobs: list[Callable[[], None]] = [world.compact, world.compact, world.vacuum, world.rewind]
    caretakers.append(Maintenance(jobs[world.choose(len(jobs))]))


def _finish(world: World) -> None:
    world.quiet = True
    for _ in range(6):
        world.start_worker()
        last = world.owner
        assert last is not None
        for _ in range(40 * len(world.records) + 400):
            if not last.alive:
                break
            last.step()
            if last.cursor == len(world.records) and last.at == "host":
                last.told = "shutdown_requested"
                if world.view().head == world.records[-1]:
                    break
        world.check()
        if world.view().head == world.records[-1]:
            break
    assert world.view().head == world.records[-1], "the shard got stuck"
    for worker in world.workers:  # those that lost the lease long ago wake up once more
        for _ in range(60):
            if worker.alive:
                worker.step()
        worker.crash()
    world.check()
