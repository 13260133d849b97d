# mypy: disable-error-code="import-not-found, import-untyped"
"""Delta tables with exactly-once commits, without a JVM of our own: Spark writes Parquet files below the table's
folder, the `deltalake` package commits them together with the position, as application transactions.

A transaction's version is only a note: any writer may set it to anything, lower ones too. What fences is that the
position is read from the handle that commits: Delta refuses the commit if, since that handle's version, somebody has
committed with the same application id. So `commit` opens a handle, compares the position in it with the head that the
batch was made for, and commits by it. Writers of other shards have other ids and do not meet.

A version has 63 bits, a position 491: it is cut into numbers of 18 digits, one id for each.

With several tables the first one has the position. A note with the files of the others is written before its commit,
and whoever finds the note after it commits them: the writer itself, or the next one that asks for the head. Each of
the others keeps the number of the last commit it has had, behind the same kind of fence, so that it gets each once.
A rewind deletes rows in the same way.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from kcl_host.spark import chain
from kcl_host.spark.chain import ChainKey, View
from kcl_host.spark.commit_chain import HEAD_LIMIT_S, Head, boot_s
from kcl_host.spark.delta_log import DeltaLog, NewFile
from kcl_host.spark.engine import Engine
from kcl_host.spark.faults import reach
from kcl_host.spark.parquet import DATA, TABLE
from kcl_host.spark.position import SEQUENCE_DIGITS, SUB_SEQUENCE_DIGITS, Position, encode, is_above
from kcl_host.spark.sinks import Batch, head_at
from kcl_host.spark.storage import Storage

NOTES: Final = "_kcl_host"
"""Folder of the notes, in the first table's; Delta's vacuum leaves names with "_" alone."""
_GROUP: Final = 18
"""Decimal digits in one version."""
_DIGITS: Final = SEQUENCE_DIGITS + SUB_SEQUENCE_DIGITS
_GROUPS: Final = -(-(_DIGITS + 1) // _GROUP)


class Handle(Protocol):
    """A table at one version, for reading and committing (Delta's, Iceberg's)."""

    def transaction(self, application_id: str) -> int | None: ...
    def append(self, files: list[NewFile], transactions: Mapping[str, int]) -> bool:
        """False when nothing was committed, since somebody has committed one of these ids after that version; or when
        the answer to our own commit was lost. Raises OSError, and then anything is possible."""
        ...

    def delete(self, where: str, transactions: Mapping[str, int]) -> None:
        """Deletes rows and commits the transactions with that; without such rows perhaps nothing."""
        ...

    def problem(self) -> str | None:
        """Why files of Spark cannot be committed to this table as they are."""
        ...


class TableLog(Protocol):
    """Where a table is."""

    @property
    def store(self) -> Storage: ...
    def open(self) -> Handle | None:
        """As of now; None when there is none."""
        ...

    def open_or_create(self, schema: Any) -> Handle:
        """`schema` is Arrow's, of rows to come, if known. Raises ValueError when the table lacks one of its columns."""
        ...

    def describe(self, path: str) -> tuple[NewFile, Any]:
        """A Parquet file and its schema, by its footer."""
        ...


Place = str | os.PathLike[str] | TableLog


class Written(msgspec.Struct, frozen=True):
    files: dict[str, list[NewFile]]
    schemas: dict[str, Any]
    """Arrow's, of each frame, also of one without rows."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the first table says of a shard."""

    generation: int = 0
    commits: int = 0
    attempt: int = 0
    """Random, of the last commit: names its note, and recognises one's own after an answer that was lost."""
    position: Position | None = None


class DeltaSink:
    """`tables` is the table's folder, or several by the name of the frame: the first one has the position. A table that
    is missing is made at the first commit, with the columns of the frame; one that is there must have them all.
    """

    exactly_once = True

    def __init__(self, tables: Place | Mapping[str, Place], *, clock: Callable[[], float] = boot_s) -> None:
        places = tables if isinstance(tables, Mapping) else {TABLE: tables}
        self._logs: dict[str, TableLog] = {
            name: DeltaLog(place) if isinstance(place, (str, os.PathLike)) else place for name, place in places.items()
        }
        self._first = next(iter(self._logs))
        self._clock = clock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self._logs.values()))}>"

    def head(self, key: ChainKey) -> Head:
        seen_s = self._clock()
        state = state_of(self._logs[self._first].open(), key)
        self._spread(key, state)
        return head_at(state.generation, state.position, seen_s)

    def problem(self, key: ChainKey, head: Head, checkpoint: Position | None) -> str | None:
        handles = {name: log.open() for name, log in self._logs.items()}
        for name, handle in handles.items():
            problem = None if handle is None else handle.problem()
            if problem is not None:
                return f"{self._logs[name]!r} {problem}"
        first = handles[self._first]
        created_s = None if first is None else first.transaction(_created(key))
        if created_s is not None and not head.has_history:
            return chain.epoch_problem(key, [msgspec.structs.replace(key, stream_created_s=created_s or None)])
        return chain.start_problem(View(generation=head.generation, head=head.position), checkpoint)

    def write(self, key: ChainKey, engine: Engine, frames: Mapping[str, Any], batch: Batch) -> Written:
        attempt = f"{DATA}/{uuid.uuid4().hex}"
        written = Written({}, {})
        for name, frame in frames.items():
            if name not in self._logs:
                raise ValueError(f"no Delta table is named for the rows of {name!r}")
            log = self._logs[name]
            engine.write(frame, log.store.uri(attempt))
            written.files[name] = []
            for file in log.store.files(attempt):
                if file.endswith(".parquet"):
                    new, written.schemas[name] = log.describe(f"{attempt}/{file}")
                    if new.rows:
                        written.files[name].append(new)
        reach("written")
        for name, files in written.files.items():
            self._logs[name].store.sync([file.path for file in files])
        reach("synced")
        return written

    def commit(self, key: ChainKey, head: Head, batch: Batch, written: Written) -> Head | None:
        if not is_above(batch.end, head.position):
            raise ValueError(f"a commit up to {encode(batch.end)} on the head {encode(head.position)}")
        seen_s = self._clock()
        if seen_s - head.seen_s > HEAD_LIMIT_S:
            return None
        first = self._logs[self._first]
        handle = first.open_or_create(written.schemas.get(self._first))
        before = state_of(handle, key)
        if (before.generation, before.position) != (head.generation, head.position):
            return None
        state = _after(before, before.generation, batch.end)
        others = {name: files for name, files in written.files.items() if files and name != self._first}
        for name in others:
            self._logs[name].open_or_create(written.schemas[name])  # what does not fit is to be known before the commit
        if others:
            first.store.create(_note(state), msgspec.json.encode(others))
        if not handle.append(written.files.get(self._first, []), _transactions(key, state)):
            now = state_of(first.open(), key)
            if now == before:
                raise OSError(f"{first!r} did not take a commit, yet nobody else has made one")
            if now != state:  # if it is, the answer to our own was lost on the way
                first.store.delete(_note(state))
                return None
        reach("logged")
        self._spread(key, state)
        return head_at(state.generation, state.position, seen_s)

    def rewind(self, key: ChainKey, to: Position | None, where: str) -> Head:
        """Begins the next generation at `to`. `where` is SQL for the shard's rows above it, which are deleted from each
        table. Order of work: stop the application; rewind; set the lease's checkpoint to `to` or below; start.

        Raises ValueError when `to` is above the head, OSError when somebody else commits meanwhile.
        """
        head = self.head(key)
        if is_above(to, head.position):
            raise ValueError(f"cannot rewind to {encode(to)}, which is above the head {encode(head.position)}")
        log = self._logs[self._first]
        handle = log.open()
        before = state_of(handle, key)
        if handle is None or (before.generation, before.position) != (head.generation, head.position):
            raise OSError(f"{key.shard} is being written: stop the application first")
        state = _after(before, before.generation + 1, to)
        log.store.create(_note(state), msgspec.json.encode({n: where for n in self._logs if n != self._first}))
        handle.delete(where, _transactions(key, state))
        if state_of(log.open(), key).generation != state.generation:  # without such rows there is no commit
            if not handle.append([], _transactions(key, state)):
                raise OSError(f"{key.shard} is being written: stop the application first")
        return self.head(key)

    def _spread(self, key: ChainKey, state: State) -> None:
        """Commits what the note of the shard's last commit has for the other tables, each only once."""
        store = self._logs[self._first].store
        content = store.read(_note(state)) if state.attempt else None
        if content is None:
            return
        for name, work in msgspec.json.decode(content, type=dict[str, list[NewFile] | str]).items():
            if name not in self._logs:
                raise ValueError(f"the last commit of {key.shard} has rows for {name!r}, and no table is named for it")
            self._do_once(key, self._logs[name], work, state.commits)
        reach("spread")
        store.delete(_note(state))

    def _do_once(self, key: ChainKey, log: TableLog, work: list[NewFile] | str, number: int) -> None:
        """Appends files or deletes rows. `number` counts the commits of the first table: nobody makes the next one
        before this one is spread."""
        done = {_id(key, "commits"): number}
        for _ in range(5):
            handle = log.open()
            if handle is None:
                return  # only a rewind can find this: commits open their tables before
            if (handle.transaction(_id(key, "commits")) or 0) >= number:
                return
            if isinstance(work, str):
                handle.delete(work, done)
                work = []  # without such rows there was no commit
            elif handle.append(work, done):
                return
        raise OSError(f"{log!r} did not take a commit")


def state_of(handle: Handle | None, key: ChainKey) -> State:
    """What a table's handle says of a shard."""
    generation = None if handle is None else handle.transaction(_id(key, "generation"))
    if handle is None or generation is None:
        return State()
    digits = "".join(f"{handle.transaction(_id(key, str(n))) or 0:0{_GROUP}d}" for n in range(_GROUPS))[-_DIGITS - 1 :]
    sequence_number, sub_sequence_number = digits[1 : SEQUENCE_DIGITS + 1], digits[SEQUENCE_DIGITS + 1 :]
    return State(
        generation=generation,
        commits=handle.transaction(_id(key, "commits")) or 0,
        attempt=handle.transaction(_id(key, "attempt")) or 0,
        position=Position(int(sequence_number), int(sub_sequence_number)) if digits[0] == "1" else None,
    )


def _transactions(key: ChainKey, state: State) -> dict[str, int]:
    """Versions by application id: `state_of` the other way round."""
    digits = "0" if state.position is None else "1" + encode(state.position).replace(".", "")
    digits = digits.zfill(_GROUPS * _GROUP)
    groups = {_id(key, str(n)): int(digits[n * _GROUP : (n + 1) * _GROUP]) for n in range(_GROUPS)}
    if state.commits == 1:
        groups[_created(key)] = key.stream_created_s or 0
    counts = {"generation": state.generation, "commits": state.commits, "attempt": state.attempt}
    return groups | {_id(key, name): number for name, number in counts.items()}


def _after(before: State, generation: int, position: Position | None) -> State:
    return State(
        generation=generation, commits=before.commits + 1, attempt=secrets.randbits(62) or 1, position=position
    )


def _id(key: ChainKey, name: str) -> str:
    return f"kcl-host/{key.folder}/{name}"


def _created(key: ChainKey) -> str:
    """Where the first commit leaves the stream's creation time: the same id with it and without it."""
    return _id(msgspec.structs.replace(key, stream_created_s=None), "created")


def _note(state: State) -> str:
    return f"{NOTES}/{state.attempt}.json"
