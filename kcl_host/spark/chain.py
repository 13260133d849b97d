"""The rules of the commit chain: pure. `commit_chain` carries them out on a store.

What one shard has committed to a table is a chain of manifests. Each is created exclusively under the name of the END
of the one before it (GENESIS for the first), so of two writers that saw the same head one creates it and the other
loses the race. A manifest names its files, and how far it reaches: data and position stand in one act, or neither does.

    generation 0   genesis -> 100.0 -> 250.0 -> 400.0
    generation 1                  \\- 250.0 -> 310.0        after a rewind to 250.0: 400.0 is seen by nobody

A layout is everything up to some place in one list: it saves reading all manifests (a fold), puts small files together
(a compaction), and begins a generation (a fork, layout number 0). Layouts have numbers, and each is created exclusively
as the next number: one that was computed from an older layout cannot come after a newer one. The highest counts.

Losing a race says nothing about the lease: whoever wins wrote the same records. See `commit_chain.Chain.commit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from kcl_host.spark.position import Position, at_or_below, decode, encode, is_above

FORMAT: Final = 1
"""Of manifests and layouts; a reader that finds a higher one stops."""


class ChainKey(msgspec.Struct, frozen=True, kw_only=True):
    """Whose chain it is. The generation is not part of it: it is found where the chain is."""

    application: str
    stream: str
    """As leases carry it; with several streams `account:name:epoch`."""
    shard: str
    stream_created_s: int | None = None
    """Epoch seconds: a stream made anew under an old name has a chain of its own. None when it is not known."""

    @property
    def folder(self) -> str:
        """Of the chain, below the folder of all chains: three parts, whatever the names contain."""
        return "/".join(_part(name) for name in (self.application, self.stream_name, self.shard))

    @property
    def stream_name(self) -> str:
        return self.stream if self.stream_created_s is None else f"{self.stream}@{self.stream_created_s}"


def key_of(folder: str) -> ChainKey:
    """The key whose `folder` this is."""
    application, stream, shard = (unquote(part) for part in folder.split("/"))
    name, at, created = stream.rpartition("@")
    if at and created.isdigit():
        return ChainKey(application=application, stream=name, shard=shard, stream_created_s=int(created))
    return ChainKey(application=application, stream=stream, shard=shard)


class DataFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a table."""

    path: str
    """Below the root of the store."""
    rows: int
    bytes: int
    schema: str = ""
    """Name of its columns' types in `schemas` of the manifest or layout that holds the file."""
    start: str = ""
    """Rows come from records above this place (an encoded position) ... In a manifest: empty, since it is the name."""
    end: str = ""
    """... and up to this one."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One commit: all rows of the records above `start` up to `end`."""

    format: int = FORMAT
    commit: str
    """Random, to recognise one's own after an answer that was lost."""
    start: str
    """The head that it was made on; also the manifest's name."""
    end: str
    records: int
    """How many records it covers; not how many rows."""
    tables: dict[str, list[DataFile]] = {}
    """Files by name of the table; none when the transform dropped every record."""
    schemas: dict[str, str] = {}
    """Spark's JSON for the types of columns, by the name that files refer to."""
    written_ms: int = 0
    """Wall clock of the writer, for people."""
    writer: str = ""
    arrived_ms: int | None = None
    """When Kinesis received the last record, epoch milliseconds; None when nobody said."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Everything committed up to `end`."""

    format: int = FORMAT
    generation: int
    number: int
    """0 begins a generation: that is the fork."""
    end: str
    commits: int
    """How many manifests it stands for."""
    records: int
    tables: dict[str, list[DataFile]] = {}
    schemas: dict[str, str] = {}
    fork_of: str = ""
    """In a fork: the head of the generation before, when it was left."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader sees of one shard."""

    generation: int = 0
    layout: int | None = None
    """Number of the layout it rests on; None when there is none yet (generation 0 only)."""
    head: Position | None = None
    commits: int = 0
    commits_since_layout: int = 0
    records: int = 0
    tables: dict[str, list[DataFile]] = {}
    schemas: dict[str, str] = {}
    arrived_ms: int | None = None

    @property
    def has_history(self) -> bool:
        """False only where nobody ever committed: then any checkpoint may be the first place."""
        return self.head is not None or self.generation > 0


# Names below the chain's folder


def manifest_name(generation: int, head: Position | None) -> str:
    return f"manifests/{generation:06d}/{encode(head)}.json"


def layout_name(generation: int, number: int) -> str:
    """Names sort by generation, then number."""
    return f"layouts/{generation:06d}.{number:09d}.json"


def layout_of(name: str) -> tuple[int, int]:
    """Generation and number in a layout's file name."""
    generation, number, _ = name.rsplit("/", 1)[-1].split(".")
    return int(generation), int(number)


# What a reader makes of them


def view_of(layout: Layout | None) -> View:
    if layout is None:
        return View()
    return View(
        generation=layout.generation,
        layout=layout.number,
        head=decode(layout.end),
        commits=layout.commits,
        records=layout.records,
        tables=layout.tables,
        schemas=layout.schemas,
    )


def extend(view: View, manifests: Iterable[Manifest]) -> View:
    """The view after these commits, each of which starts at the end of the one before. Raises ValueError if not."""
    tables = {name: list(files) for name, files in view.tables.items()}
    schemas = dict(view.schemas)
    head, commits, records, arrived_ms, count = view.head, view.commits, view.records, view.arrived_ms, 0
    for manifest in manifests:
        if manifest.start != encode(head):
            raise ValueError(f"a manifest that starts at {manifest.start} cannot follow {encode(head)}")
        for name, files in manifest.tables.items():
            placed = [msgspec.structs.replace(file, start=manifest.start, end=manifest.end) for file in files]
            tables.setdefault(name, []).extend(placed)
        schemas |= manifest.schemas
        head, arrived_ms = decode(manifest.end), manifest.arrived_ms
        commits, records, count = commits + 1, records + manifest.records, count + 1
    return msgspec.structs.replace(
        view,
        head=head,
        commits=commits,
        commits_since_layout=view.commits_since_layout + count,
        records=records,
        tables=tables,
        schemas=schemas,
        arrived_ms=arrived_ms,
    )


def fold(view: View) -> Layout:
    """The next layout of this generation: the same files in one list."""
    return Layout(
        generation=view.generation,
        number=1 if view.layout is None else view.layout + 1,
        end=encode(view.head),
        commits=view.commits,
        records=view.records,
        tables=view.tables,
        schemas=view.schemas,
    )


def compacted(
    view: View, replaced: Mapping[str, tuple[frozenset[str], list[DataFile]]], schemas: dict[str, str]
) -> Layout:
    """The next layout, in which each table has new files in place of some paths. Raises ValueError when one of the
    paths is not in the view: then the new files would repeat rows."""
    tables = dict(view.tables)
    for name, (paths, files) in replaced.items():
        there = {file.path for file in tables.get(name, [])}
        if not paths <= there:
            raise ValueError(f"table {name!r} no longer has the files that were compacted")
        tables[name] = [file for file in tables[name] if file.path not in paths] + files
    return msgspec.structs.replace(fold(view), tables=tables, schemas=view.schemas | schemas)


def fork(view: View, to: Position | None) -> Layout:
    """The layout that begins the next generation at `to`: rows above it are seen by nobody any more.

    Raises ValueError when `to` is above the head or inside a file: a file is kept or left whole.
    """
    if is_above(to, view.head):
        raise ValueError(f"cannot rewind to {encode(to)}, which is above the head of the chain {encode(view.head)}")
    for name, files in view.tables.items():
        for file in files:
            if is_above(to, decode(file.start)) and not at_or_below(_end(file), to):
                raise ValueError(
                    f"cannot rewind to {encode(to)}: rows of table {name!r} from above {file.start} up to {file.end} "
                    "stand in one file; rewind to either end of it"
                )
    kept = {name: [file for file in files if at_or_below(_end(file), to)] for name, files in view.tables.items()}
    return Layout(
        generation=view.generation + 1,
        number=0,
        end=encode(to),
        commits=0,
        records=0,
        tables=kept,
        schemas=view.schemas,
        fork_of=encode(view.head),
    )


def start_problem(view: View, checkpoint: Position | None) -> str | None:
    """Why a processor must not start here; None when it may.

    `checkpoint` is where the host starts to deliver, None for TRIM_HORIZON and the like. A checkpoint above the head of
    a chain with history: the records between were checkpointed, yet never reached the table.
    """
    if not view.has_history or not is_above(checkpoint, view.head):
        return None
    return (
        f"the lease's checkpoint {_plain(checkpoint)} is above the head of the commit chain {_plain(view.head)} "
        f"(generation {view.generation}): the records between are not in the table and would never get there. Set the "
        "checkpoint back to the head, or allow the gap by name (allow_gap=True) if it is meant"
    )


def epoch_problem(key: ChainKey, others: Iterable[ChainKey]) -> str | None:
    """Why `key` must not begin an empty chain beside `others`, the chains of the same application; None when it may.

    The same stream with and without its creation time would be two chains, and every row of the overlap there twice.
    """
    for other in others:
        same = (other.application, other.stream, other.shard) == (key.application, key.stream, key.shard)
        if same and (other.stream_created_s is None) != (key.stream_created_s is None):
            return (
                f"the stream {key.stream!r} has a chain {'with' if other.stream_created_s else 'without'} its creation "
                f"time, and now it would get one {'with' if key.stream_created_s else 'without'} it: "
                f"KCL_HOST_STREAM_CREATED must be there always or never (here: {key.stream_created_s})"
            )
    return None


def _end(file: DataFile) -> Position:
    end = decode(file.end)
    assert end is not None
    return end


def _part(name: str) -> str:
    if not name:
        raise ValueError("application, stream and shard of a chain must have names")
    return quote(name, safe="@").replace(".", "%2E")  # "." and ".." mean something to file systems


def _plain(position: Position | None) -> str:
    return "at its beginning" if position is None else f"{position[0]}/{position[1]}"
