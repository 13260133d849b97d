"""The commit chain of one shard on a store (rules: `chain`).

    _commits/<application>/<stream>/<shard>/manifests/<generation>/<head>.json
    _commits/<application>/<stream>/<shard>/layouts/<generation>.<number>.json

Reading: the highest layout, then from its end manifest by manifest, until there is none under the name of the head.
Nothing in this module deletes; `vacuum` does, and only what is older than an age. Why that is safe: a writer that
stopped for so long that the names it knows may be gone does not use them (HEAD_LIMIT_S, on a clock that goes on while
the machine sleeps), it reads the head again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from kcl_host.spark import chain
from kcl_host.spark.chain import ChainKey, Layout, Manifest, View
from kcl_host.spark.faults import reach
from kcl_host.spark.position import Position, decode, encode, is_above
from kcl_host.spark.storage import Storage

_log = logging.getLogger(__name__)

T = TypeVar("T", Manifest, Layout)
COMMITS: Final = "_commits"
HEAD_LIMIT_S: Final = 3600.0
"""How long a head that was read, and the files of an attempt, may be built upon. Far below the age of `vacuum`."""
FOLD_EVERY: Final = 100
"""Commits to a layout. A reader reads at most about this many manifests per shard."""


class Rewound(Exception):
    """The chain was rewound while this processor ran: it has to begin again at the lease's checkpoint."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chain ends, as a writer saw it."""

    position: Position | None
    generation: int
    commits_since_layout: int
    has_history: bool
    seen_s: float
    """On the writer's clock, from before it looked."""


def boot_s() -> float:
    """Seconds on a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Chain:
    """One shard's chain. Not shared between threads."""

    def __init__(
        self,
        storage: Storage,
        key: ChainKey,
        *,
        clock: Callable[[], float] = boot_s,
        fold_every: int = FOLD_EVERY,
    ) -> None:
        self.key = key
        self._storage = storage
        self._folder = f"{COMMITS}/{key.folder}"
        self._clock = clock
        self._fold_every = fold_every

    def view(self) -> View:
        """All that is committed. Raises OSError, ValueError for a file that is no manifest or layout."""
        while True:
            names = self._storage.files(f"{self._folder}/layouts")
            layout = None
            if names:
                content = self._storage.read(f"{self._folder}/layouts/{names[-1]}")
                if content is None:
                    continue  # vacuum took it, since there is a newer one
                layout = _decode(content, Layout, names[-1])
            view = chain.view_of(layout)
            return chain.extend(view, self._manifests(view))

    def head(self) -> Head:
        """Where to go on. The whole view is read; a writer asks only at its start and after a lost race."""
        seen_s = self._clock()
        return self._head(self.view(), seen_s)

    def check_epoch(self) -> str | None:
        """`chain.epoch_problem` of this key; None when the chain may begin."""
        return chain.epoch_problem(self.key, _of_application(self._storage, self.key.folder.split("/")[0]))

    def commit(self, head: Head, manifest: Manifest) -> Head | None:
        """The new head; None when `head` is no longer the head or was seen too long ago: read it again.

        Raises Rewound when the commit, whether made or not, is not (or may not be) in the generation that readers see;
        then nothing may be checkpointed. After an OSError it is unknown whether it was made: read the head. Raises
        ValueError for a commit that does not end above the head, or starts elsewhere.
        """
        if manifest.start != encode(head.position) or not is_above(decode(manifest.end), head.position):
            raise ValueError(f"a commit from {manifest.start} to {manifest.end} on the head {encode(head.position)}")
        seen_s = self._clock()
        if seen_s - head.seen_s > HEAD_LIMIT_S:
            return None
        name = f"{self._folder}/{chain.manifest_name(head.generation, head.position)}"
        if not self._storage.create(name, msgspec.json.encode(manifest)):
            # On stores that are asked over a network our own first try may have got there, its answer lost.
            there = self._storage.read(name)
            if there is None or _decode(there, Manifest, name).commit != manifest.commit:
                return None
        self._check_generation(head.generation)
        since = head.commits_since_layout + 1
        if since >= self._fold_every:
            since = self._fold(since)
        return Head(
            position=decode(manifest.end),
            generation=head.generation,
            commits_since_layout=since,
            has_history=True,
            seen_s=seen_s,
        )

    def publish(self, layout: Layout) -> bool:
        """False when another layout has the number: compute it again from a new view."""
        return self._storage.create(
            f"{self._folder}/{chain.layout_name(layout.generation, layout.number)}", msgspec.json.encode(layout)
        )

    def rewind(self, to: Position | None) -> Layout:
        """Begins a new generation at `to`; None is the very beginning. Raises ValueError as `chain.fork`.

        To be done while no processor runs, with the lease's checkpoint set to `to` or below afterwards.
        """
        while True:
            began_s = self._clock()
            layout = chain.fork(self.view(), to)
            if self._clock() - began_s < HEAD_LIMIT_S and self.publish(layout):
                return layout

    def _head(self, view: View, seen_s: float) -> Head:
        return Head(
            position=view.head,
            generation=view.generation,
            commits_since_layout=view.commits_since_layout,
            has_history=view.has_history,
            seen_s=seen_s,
        )

    def _manifests(self, view: View) -> list[Manifest]:
        found: list[Manifest] = []
        head = view.head
        while True:
            name = f"{self._folder}/{chain.manifest_name(view.generation, head)}"
            content = self._storage.read(name)
            if content is None:
                return found
            manifest = _decode(content, Manifest, name)
            found.append(manifest)
            head = decode(manifest.end)

    def _check_generation(self, generation: int) -> None:
        names = self._storage.files(f"{self._folder}/layouts")
        now = chain.layout_of(names[-1])[0] if names else 0
        if now != generation:
            raise Rewound(f"chain {self.key.folder}: generation {generation} was left, {now} is the one that counts")

    def _fold(self, since: int) -> int:
        """Commits since the last layout afterwards. The commit stands already, so a failure here is not one of it."""
        try:
            view = self.view()
            if view.commits_since_layout < self._fold_every or not self.publish(chain.fold(view)):
                return view.commits_since_layout
        except OSError as error:
            _log.warning("chain %s: no layout was written, to be tried again: %s", self.key.folder, error)
            return since
        reach("folded")
        return 0


def chains(storage: Storage) -> list[ChainKey]:
    """Every chain of the store, sorted by folder."""
    return [key for application in storage.folders(COMMITS) for key in _of_application(storage, application)]


def _of_application(storage: Storage, application: str) -> list[ChainKey]:
    return [
        chain.key_of(f"{application}/{stream}/{shard}")
        for stream in storage.folders(f"{COMMITS}/{application}")
        for shard in storage.folders(f"{COMMITS}/{application}/{stream}")
    ]


def _decode(content: bytes, kind: type[T], name: str) -> T:
    try:
        found = msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} is not a {kind.__name__.lower()}: {error}") from error
    if found.format > chain.FORMAT:
        raise ValueError(f"{name} has format {found.format}, this version reads up to {chain.FORMAT}")
    return found
