"""The world of `world.py` with the other sinks: what fences them is a compare-and-set of the shard's position.

`RowWorld`: rows and position in one atomic act that takes place only if the position is still the head, as PostgreSQL
does it. The sink is a model. `DeltaWorld`: the real `DeltaSink` on a model of Delta's log. An act there may be refused,
may fail before it happened or after.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from kcl_host.spark.chain import ChainKey, View, start_problem
from kcl_host.spark.commit_chain import Head
from kcl_host.spark.delta import DeltaSink, Place, state_of
from kcl_host.spark.delta import Written as DeltaWritten
from kcl_host.spark.delta_log import NewFile
from kcl_host.spark.position import Position, at_or_below, is_above
from kcl_host.spark.sinks import Batch, Sink, head_at
from tests.spark.world import KEY, MemoryStorage, World, write_rows

Rows = dict[str, list[Position]]


class RowWorld(World):
    generation = 0
    position: Position | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.table: Rows = {}

    def sink(self) -> Sink:
        return RowSink(self)

    def view(self) -> View:
        return View(generation=self.generation, head=self.position)

    def rows(self) -> Rows:
        return self.table

    def swap(self, head: Head, generation: int, position: Position | None, rows: Rows) -> bool:
        """UPDATE ... WHERE generation and position are the head's, and the INSERT."""
        if (self.generation, self.position) != (head.generation, head.position):
            return False
        self.generation, self.position = generation, position
        for name, more in rows.items():
            self.table[name] = self.table.get(name, []) + more
        return True

    def compact(self) -> None:
        self.count("compacted")

    def vacuum(self) -> None:
        self.count("vacuumed")

    def rewind(self) -> None:
        ends = [None, *(position for position in self.records if at_or_below(position, self.position))]
        to = ends[self.choose(len(ends))]
        head = head_at(self.generation, self.position, self.now_s)
        self.give_way("rewind")
        if self.swap(head, self.generation + 1, to, {}):
            self.table = {name: [p for p in rows if not is_above(p, to)] for name, rows in self.table.items()}
            self.rewound_to(to)


class RowSink:
    exactly_once = True

    def __init__(self, world: RowWorld) -> None:
        self._world = world

    def head(self, key: ChainKey) -> Head:
        self._world.give_way("head")
        return head_at(self._world.generation, self._world.position, self._world.now_s)

    def problem(self, key: ChainKey, head: Head, checkpoint: Position | None) -> str | None:
        return start_problem(View(generation=head.generation, head=head.position), checkpoint)

    def write(self, key: ChainKey, engine: Any, frames: Mapping[str, Any], batch: Batch) -> Rows:
        self._world.give_way("staging")
        return {name: [record.position for record in frame] for name, frame in frames.items()}

    def commit(self, key: ChainKey, head: Head, batch: Batch, written: Rows) -> Head | None:
        self._world.give_way("create")
        won = self._world.swap(head, head.generation, batch.end, written)
        self._world.give_way("create done")
        return head_at(head.generation, batch.end, self._world.now_s) if won else None


class Version(msgspec.Struct):
    """One commit of a model table: its ids, the files that it adds, whether it is a deletion."""

    transactions: dict[str, int]
    files: list[str]
    removed: list[str] = []


class ModelLog:
    """One table. Versions are created exclusively; what came between is looked at, as Delta does."""

    def __init__(self, world: DeltaWorld, store: MemoryStorage) -> None:
        self.world, self.store = world, store
        self.versions: list[Version] = []

    def open(self) -> ModelHandle:
        self.world.give_way("open")
        return ModelHandle(self, len(self.versions))

    def open_or_create(self, schema: Any) -> ModelHandle:
        return self.open()

    def live(self) -> list[str]:
        found: list[str] = []
        for version in self.versions:
            found = [file for file in found if file not in version.removed] + version.files
        return found


class ModelHandle:
    def __init__(self, log: ModelLog, version: int) -> None:
        self._log, self._version = log, version

    def transaction(self, name: str) -> int | None:
        known = [v.transactions[name] for v in self._log.versions[: self._version] if name in v.transactions]
        return known[-1] if known else None

    def problem(self) -> str | None:
        return None

    def append(self, files: list[NewFile], transactions: Mapping[str, int]) -> bool:
        taken = self._commit(Version(dict(transactions), [file.path for file in files]))
        # A client that repeats a request whose answer was lost meets its own commit, and takes it for another's.
        return taken and self._log.world.choose(20) != 1

    def delete(self, where: str, transactions: Mapping[str, int]) -> None:
        """`where` is the position above which rows go."""
        to = None if where == "all" else Position(*json.loads(where))
        live = self._log.live()
        rows = [row for path in live for row in json.loads(self._log.store.content[path][0])]
        kept = [row for row in rows if not is_above(Position(*row), to)]
        if len(kept) == len(rows):
            return
        path = f"data/{self._log.world.new_name()}"
        self._log.store.content[path] = json.dumps(kept).encode(), self._log.store.now_ms()
        if not self._commit(Version(dict(transactions), [path], live)):
            raise OSError("a concurrent commit")

    def _commit(self, version: Version) -> bool:
        self._log.world.give_way("create")
        since = self._log.versions[self._version :]
        if any(name in v.transactions for v in since for name in version.transactions):
            return False
        if version.removed and since:
            return False
        self._log.versions.append(version)
        self._log.world.give_way("create done")
        return True


class ListDeltaSink(DeltaSink):
    """Rows in JSON instead of Parquet; everything else is the real sink."""

    def __init__(self, world: DeltaWorld) -> None:
        super().__init__(cast("Mapping[str, Place]", dict(world.logs)), clock=lambda: world.now_s)
        self._world = world

    def write(self, key: ChainKey, engine: Any, frames: Mapping[str, Any], batch: Batch) -> DeltaWritten:
        files: dict[str, list[NewFile]] = {}
        for name, frame in frames.items():
            file = write_rows(self._world.storage, f"data/{self._world.new_name()}/{name}", frame)
            files[name] = [NewFile(file.path, file.rows, file.bytes)] if frame else []
        return DeltaWritten(files, dict.fromkeys(frames))


class DeltaWorld(World):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.logs = {name: ModelLog(self, self.storage) for name in ("table", "other")}

    def sink(self) -> Sink:
        return ListDeltaSink(self)

    def view(self) -> View:
        state = state_of(cast("Any", self.logs["table"].open()), KEY)
        return View(generation=state.generation, head=state.position)

    def rows(self) -> Rows:
        """What a reader sees once the note of the last commit is spread: that is up to whoever comes next."""
        found = {name: log.live() for name, log in self.logs.items()}
        state = state_of(cast("Any", self.logs["table"].open()), KEY)
        spread = ModelHandle(self.logs["other"], len(self.logs["other"].versions)).transaction(_COMMITS) or 0
        note = self.storage.content.get(f"_kcl_host/{state.attempt}.json")
        work = None if note is None or spread >= state.commits else json.loads(note[0])["other"]
        if isinstance(work, list):
            found["other"] += [file["path"] for file in work]
        rows = {
            name: [Position(*row) for path in paths for row in json.loads(self.storage.content[path][0])]
            for name, paths in found.items()
        }
        if isinstance(work, str):
            to = None if work == "all" else Position(*json.loads(work))
            rows["other"] = [position for position in rows["other"] if not is_above(position, to)]
        return rows

    def compact(self) -> None:
        log = self.logs["table" if self.choose(2) else "other"]
        live = log.live()
        rows = [row for path in live for row in json.loads(self.storage.content[path][0])]
        path = f"data/{self.new_name()}/compacted"
        self.storage.content[path] = json.dumps(rows).encode(), self.storage.now_ms()
        before = log.versions[:]
        self.give_way("compact")
        # Appends may come in between, deletions may not.
        if not any(version.removed for version in log.versions[len(before) :]):
            log.versions.append(Version({}, [path], live))
            self.count("compacted")

    def vacuum(self) -> None:
        self.count("vacuumed")

    def rewind(self) -> None:
        head = self.view().head
        ends = [None, *(position for position in self.records if at_or_below(position, head))]
        to = ends[self.choose(len(ends))]
        with contextlib.suppress(ValueError, OSError):
            ListDeltaSink(self).rewind(KEY, to, "all" if to is None else json.dumps(to))
            self.rewound_to(to)


_COMMITS = f"kcl-host/{KEY.folder}/commits"
