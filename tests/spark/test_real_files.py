"""A shard's table on a real file system that fails, fills up and loses its writers at any step: each record once.

The processor, the sink and the files are the real ones, Arrow takes the place of Spark. What differs from
test_interleavings.py is what stands on the disk afterwards: half-written files, other columns, generations.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark]'")

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.processor import Checkpointer, CheckpointError
from kcl_host.spark import ArrowEngine, MicroBatchProcessor, ParquetSink, Retry, Trigger, committed_files, rewind
from kcl_host.spark.commit_chain import Rewound
from kcl_host.spark.lines import Record
from kcl_host.spark.parquet import views
from kcl_host.spark.position import Position, decode
from kcl_host.spark.processor import Outside
from kcl_host.spark.schema import merge_schemas, of_arrow
from kcl_host.spark.storage import LocalStorage
from tests.spark.child_host import positions
from tests.spark.world import ENVIRON, KEY, SHARD

pytestmark = pytest.mark.interop
PLACES = positions(90)
NUMBERS = {place: number for number, place in enumerate(PLACES)}


class Crash(BaseException):
    """kill -9, as far as Python can do it."""


class Fate:
    """What happens at each call to the file system; when the choices are used up, nothing does."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = iter(choices)
        self.seen: Counter[str] = Counter()

    def choose(self, below: int) -> int:
        return next(self.choices, 0) % below

    def at(self, step: str) -> None:
        kind = self.choose(100)
        if kind in (1, 2):
            self.seen["full"] += 1
            raise OSError(errno.ENOSPC, "no space left on device", step)
        if kind in (3, 4):
            self.seen[f"killed: {step}"] += 1
            raise Crash


class Disk(LocalStorage):
    def __init__(self, root: Path, fate: Fate) -> None:
        super().__init__(root, fsync=False)
        self._fate = fate

    def create(self, name: str, content: bytes) -> bool:
        self._fate.at("create")
        created = super().create(name, content)
        self._fate.at("created")
        return created

    def read(self, name: str) -> bytes | None:
        self._fate.at("read")
        return super().read(name)

    def files(self, folder: str) -> list[str]:
        self._fate.at("files")
        return super().files(folder)


class Writer(ArrowEngine):
    """Leaves half a file behind when the disk is full."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    def write(self, frame: Any, uri: str) -> None:
        try:
            self._fate.at("write")
        except (OSError, Crash):
            Path(uri).mkdir(parents=True)
            Path(uri, "part-00000.parquet").write_bytes(b"PAR1half")
            raise
        super().write(frame, uri)
        self._fate.at("written")


def first_version(batch: Any) -> Any:
    """Numbers divisible by 11 get into no table, so that some batches have no rows at all."""
    numbers = [json.loads(data.as_py()) for data in batch["data"]]
    return pa.table({"number": pa.array([n for n in numbers if n % 11], pa.int32())})


def second_version(batch: Any) -> Any:
    """A wider type and a further column."""
    numbers = [n for n in map(json.loads, batch["data"].to_pylist()) if n % 11]
    return pa.table({"number": pa.array(numbers, pa.int64()), "text": pa.array(map(str, numbers), pa.string())})


class Process:
    def __init__(self, game: Game) -> None:
        self.game = game
        version = first_version if game.fate.choose(2) == 0 else second_version
        self.processor = MicroBatchProcessor(
            version,
            ParquetSink(Disk(game.place, game.fate)),
            Trigger(records=game.trigger, age_s=20),
            engine=Writer(game.fate),
            retry=Retry(give_up_after_s=20),
            outside=Outside(
                monotonic_s=lambda: game.now_s, boot_s=lambda: game.now_s, sleep=game.sleep, environ=ENVIRON
            ),
        )
        at = game.checkpoint
        self.cursor = 0 if at is None else NUMBERS[at] + 1
        number, sub = ("TRIM_HORIZON", 0) if at is None else (str(at.sequence_number), at.sub_sequence_number)
        self.processor.initialize(SHARD, number, sub)

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> None:
        if self.game.owner is not self:
            raise CheckpointError("ShutdownException")
        assert sequence_number is not None and sub_sequence_number is not None
        self.game.checkpoint = Position(int(sequence_number), sub_sequence_number)

    def deliver(self, size: int) -> None:
        places = PLACES[self.cursor : self.cursor + size]
        self.cursor += len(places)
        records = [
            Record(
                sequence_number=str(place.sequence_number),
                sub_sequence_number=place.sub_sequence_number,
                data=str(NUMBERS[place]).encode(),
            )
            for place in places
        ]
        self.processor.process_records(records, cast("Checkpointer", self))


class Game:
    def __init__(self, place: Path, choices: list[int], trigger: int) -> None:
        self.place = place
        self.fate = Fate(choices)
        self.trigger = trigger
        self.now_s = 1000.0
        self.checkpoint: Position | None = None
        self.owner: Process | None = None
        self.zombies: list[Process] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def step(self) -> None:
        act = self.fate.choose(20)
        if self.owner is None or act == 0:
            if self.owner is not None:
                self.zombies.append(self.owner)
            self.owner = Process(self)
        elif act == 1 and self.zombies:
            self._wake(self.zombies[-1])
        elif act == 2:
            self.owner.processor.shutdown_requested(cast("Checkpointer", self.owner))
            self.owner = None
        elif act == 3:
            self._rewind()
        elif act == 4:
            self.now_s += 25
            self.owner.processor.while_idle()
        else:
            self.owner.deliver(1 + self.fate.choose(9))

    def _wake(self, zombie: Process) -> None:
        """One that has lost its lease and does not know."""
        self.fate.seen["woken"] += 1
        try:
            zombie.deliver(5)
        except (Crash, OSError):
            self.zombies.remove(zombie)

    def _rewind(self) -> None:
        """An operator stops everything, takes the table back to the end of some file, and the lease with it."""
        self.owner, self.zombies = None, []
        view = views(self.place).get(KEY)
        ends = sorted({file.end for files in view.tables.values() for file in files}) if view else []
        if not ends:
            return
        to = decode(ends[self.fate.choose(len(ends))])
        rewind(self.place, KEY, to)
        self.fate.seen["rewound"] += 1
        self.checkpoint = to if self.checkpoint is None or to is None else min(to, self.checkpoint)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self._try(self.step)
        self.fate.choices = iter(())
        self.owner = None
        while self.owner is None or self.owner.cursor < len(PLACES):
            self._try(lambda: self.owner.deliver(7) if self.owner else self.step())
        assert self.owner is not None
        self.owner.processor.shutdown_requested(cast("Checkpointer", self.owner))
        assert self.checkpoint == PLACES[-1]

    def _try(self, act: Any) -> None:
        try:
            act()
        except (Crash, OSError, Rewound):
            self.owner = None  # the process has ended, another will be started

    def numbers(self) -> Counter[int]:
        paths = committed_files(self.place)[0]
        return Counter(n for path in paths for n in pq.ParquetFile(path).read()["number"].to_pylist())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(choices: list[int], trigger: int) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        game = Game(Path(folder), choices, trigger)
        game.play(len(choices) // 8)
        assert game.numbers() == Counter(number for number in range(len(PLACES)) if number % 11)
        assert json.loads(committed_files(folder)[1] or "")["fields"][0]["type"] in ("integer", "long")
        return game.fate.seen


@given(st.lists(st.integers(0, 99), max_size=400), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_each_number_once(choices: list[int], trigger: int) -> None:
    play(choices, trigger)


def test_many_seeds() -> None:
    seen: Counter[str] = Counter()
    for seed in range(int(os.environ.get("KCL_HOST_STRESS_RUNS", "20"))):
        rng = random.Random(seed)
        seen += play([rng.randrange(10_000) for _ in range(1200)], rng.randint(1, 12))
    # A world in which nothing happens would prove nothing.
    for what in ("full", "rewound", "killed: create", "killed: created", "killed: write", "killed: written"):
        assert seen[what] > 3, (what, seen)


def test_columns_of_both_versions_are_one_table(tmp_path: Path) -> None:
    schemas = []
    for version in (first_version, second_version):
        ArrowEngine().write(version(pa.table({"data": [b"1", b"2"]})), str(tmp_path / version.__name__))
        schemas.append(of_arrow(pq.read_schema(tmp_path / version.__name__ / "part-00000.parquet")))
    fields = json.loads(merge_schemas(schemas))["fields"]
    assert [(f["name"], f["type"]) for f in fields] == [("number", "long"), ("text", "string")]
