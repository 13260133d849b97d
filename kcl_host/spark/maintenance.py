# mypy: disable-error-code="import-not-found, import-untyped"
"""Care of a table with a commit chain: small files put together, what nobody needs deleted, a chain set back.

All of it beside running writers, except `rewind`. What is deleted has been of no use for longer than an age that is
far above the one for which writers use what they have read (commit_chain.HEAD_LIMIT_S).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from kcl_host.spark import chain
from kcl_host.spark.chain import ChainKey, DataFile, Layout, Manifest, View
from kcl_host.spark.commit_chain import COMMITS, HEAD_LIMIT_S, Chain, chains
from kcl_host.spark.parquet import DATA, describe, open_storage
from kcl_host.spark.position import Position, at_or_below, decode
from kcl_host.spark.schema import merge_schemas
from kcl_host.spark.storage import UNFINISHED, Storage, Stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALLEST_AGE_S: Final = 4 * HEAD_LIMIT_S
TARGET_BYTES: Final = 128 * 1024 * 1024


def compact(
    spark: SparkSession,
    place: str | os.PathLike[str] | Storage,
    *,
    target_bytes: int = TARGET_BYTES,
    fewest: int = 8,
    keep_s: float = 0.0,
) -> int:
    """Rewrites files below half of `target_bytes` into larger ones, shard by shard; how many were replaced.

    A table with fewer than `fewest` small files is left alone. Readers see the same rows before and after. A chain can
    later be rewound only to the ends of the new files: `keep_s` leaves alone what came later than so many seconds ago.
    The old files stay until `vacuum`.
    """
    storage = open_storage(place)
    return sum(_compact(spark, storage, Chain(storage, key), target_bytes, fewest, keep_s) for key in chains(storage))


def vacuum(place: str | os.PathLike[str] | Storage, *, age_s: float = 24 * 3600.0) -> int:
    """Deletes files that no reader, writer or rewind can still need; how many. Raises ValueError for too low an age.

    Readers must not take longer than `age_s` over one `read_committed`. First go the parts of the chains that a newer
    layout has stood for so long, then the data files that no part of a chain names any more, if they are that old.
    """
    if age_s < SMALLEST_AGE_S:
        raise ValueError(f"an age of {age_s:g} s is too low: writers rely on {SMALLEST_AGE_S:g} s")
    storage = open_storage(place)
    before_ms = storage.now_ms() - int(age_s * 1000)
    deleted = 0
    for key in chains(storage):
        for name in _superseded(storage, f"{COMMITS}/{key.folder}", before_ms):
            storage.delete(name)
            deleted += 1
    # What appears after this was listed is younger than the age, and so are the files it names or those are live.
    old = [stored.name for stored in storage.walk(DATA) if stored.modified_ms < before_ms]
    live = _named(storage)
    for name in old:
        if name not in live:
            storage.delete(name)
            deleted += 1
    return deleted


def rewind(place: str | os.PathLike[str] | Storage, key: ChainKey, to: Position | None) -> Layout:
    """Takes out of the table, of this shard, every row from records above `to`; None takes out all. Order of work:

    stop the application; rewind; set the lease's checkpoint to `to` or below; start. Raises ValueError when `to` is
    above the head or inside a file; it names the file's ends.
    """
    return Chain(open_storage(place), key).rewind(to)


def _compact(spark: SparkSession, storage: Storage, of: Chain, target_bytes: int, fewest: int, keep_s: float) -> int:
    view = of.view()
    before_ms = storage.now_ms() - int(keep_s * 1000)
    replaced: dict[str, tuple[frozenset[str], list[DataFile]]] = {}
    schemas: dict[str, str] = {}
    for table, files in view.tables.items():
        small = [file for file in files if file.bytes < target_bytes / 2]
        if keep_s:
            young = {s.name for s in storage.walk(DATA) if s.modified_ms >= before_ms}
            small = [file for file in small if file.path not in young]
        if len(small) >= fewest:
            replaced[table] = (
                frozenset(file.path for file in small),
                _rewrite(spark, storage, view, table, small, target_bytes, schemas),
            )
    while replaced and not of.publish(chain.compacted(view, replaced, schemas)):
        view = of.view()  # somebody folded meanwhile: the same exchange in a newer list
    return sum(len(paths) for paths, _ in replaced.values())


def _rewrite(
    spark: SparkSession,
    storage: Storage,
    view: View,
    table: str,
    small: list[DataFile],
    target_bytes: int,
    schemas: dict[str, str],
) -> list[DataFile]:
    from pyspark.sql.types import StructType

    schema = merge_schemas(view.schemas[file.schema] for file in small)
    folder = f"{DATA}/compacted/{uuid.uuid4().hex}/{table}"
    frame = spark.read.schema(StructType.fromJson(json.loads(schema))).parquet(*(storage.uri(f.path) for f in small))
    wanted = -(-sum(file.bytes for file in small) // target_bytes)
    frame.coalesce(wanted).write.option("compression", "zstd").mode("error").parquet(storage.uri(folder))
    files = [describe(storage, f"{folder}/{name}", schemas) for name in storage.files(folder)]
    found = [file for file in files if file is not None]
    if sum(file.rows for file in found) != sum(file.rows for file in small):
        raise OSError(f"compaction of {table!r} wrote another number of rows than it read; nothing was changed")
    storage.sync([file.path for file in found])
    # Rows of one commit may stand in several of the new files: all have the same ends, so a rewind takes all or none.
    start = min((file.start for file in small), key=lambda name: decode(name) or Position(-1, 0))
    end = max((file.end for file in small), key=lambda name: decode(name) or Position(-1, 0))
    return [msgspec.structs.replace(file, start=start, end=end) for file in found]


def _superseded(storage: Storage, folder: str, before_ms: int) -> list[str]:
    """Parts of a chain that nobody has needed since `before_ms`."""
    stored = {s.name: s for s in storage.walk(folder)}
    layouts = sorted(name for name in stored if name.startswith(f"{folder}/layouts/") and UNFINISHED not in name)
    gone = [name for name, s in stored.items() if UNFINISHED in name and s.modified_ms < before_ms]
    # The newest layout that is old enough: everybody has seen it, or reads again.
    standing = [name for name in layouts if stored[name].modified_ms < before_ms]
    if not standing:
        return gone
    gone += [name for name in layouts if name < standing[-1]]
    content = storage.read(standing[-1])
    if content is None:
        return gone
    layout = msgspec.json.decode(content, type=Layout)
    end = decode(layout.end)
    for name in stored:
        if name.startswith(f"{folder}/manifests/") and UNFINISHED not in name:
            generation, file = name.removeprefix(f"{folder}/manifests/").split("/")
            start = decode(file.removesuffix(".json"))
            # A manifest starts below the layout's end exactly if the layout stands for it.
            covered = (end is not None) if start is None else (start != end and at_or_below(start, end))
            if int(generation) < layout.generation or (int(generation) == layout.generation and covered):
                gone.append(name)
    return gone


def _named(storage: Storage) -> set[str]:
    """Paths of all data files that any manifest or layout names."""
    named: set[str] = set()
    for part in storage.walk(COMMITS):
        named.update(_files(storage, part))
    return named


def _files(storage: Storage, part: Stored) -> Iterable[str]:
    content = None if UNFINISHED in part.name else storage.read(part.name)
    if content is None:
        return []
    found: Layout | Manifest
    if "/layouts/" in part.name:
        found = msgspec.json.decode(content, type=Layout)
    else:
        found = msgspec.json.decode(content, type=Manifest)
    return [file.path for files in found.tables.values() for file in files]
