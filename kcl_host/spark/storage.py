"""Where chains and tables stand: files that appear complete under their name, or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kcl_host.spark.faults import reach


class Stored(NamedTuple):
    """One file of a store."""

    name: str
    modified_ms: int
    """By the store's own clock."""


class Storage(Protocol):
    """A folder of a file system or a prefix in an object store. Names are relative, with slashes.

    Every call may raise OSError; then it is not known whether a `create` took place.
    """

    def check(self) -> None:
        """Raises OSError when this place cannot hold a chain at all."""
        ...

    def read(self, name: str) -> bytes | None:
        """None when there is no such file."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """False when the name is taken, also by an earlier attempt of one's own. Once true it survives a power cut."""
        ...

    def files(self, folder: str) -> list[str]:
        """Names of the files directly in a folder, without the folder, sorted; empty when there is no such folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in a folder, sorted."""
        ...

    def walk(self, folder: str) -> Iterator[Stored]:
        """Every file below a folder, unfinished ones too."""
        ...

    def delete(self, name: str) -> None:
        """No error when it is gone already."""
        ...

    def sync(self, names: list[str]) -> None:
        """Makes files that somebody else wrote survive a power cut."""
        ...

    def now_ms(self) -> int:
        """The clock that `modified_ms` is from."""
        ...

    def uri(self, name: str) -> str:
        """What Spark calls it."""
        ...

    def source(self, name: str) -> Any:
        """A path or an open file from which Arrow reads."""
        ...


UNFINISHED = ".unfinished-"


def check_creates(storage: Storage, why: str) -> None:
    """Raises OSError when `create` does not work, or replaces what is there."""
    name = f".check-{uuid.uuid4().hex}"
    try:
        exclusive = storage.create(name, b"1") and not storage.create(name, b"2")
    except OSError as error:
        raise OSError(f"{storage!r} cannot hold a commit chain ({why}): {error}") from error
    finally:
        storage.delete(name)
    if not exclusive:
        raise OSError(f"{storage!r} cannot hold a commit chain: {why}")


class LocalStorage:
    """A local file system, or a shared one with hard links (NFS: yes; most FUSE object stores: no).

    `fsync=False` gives up the promise about power cuts, for tests.
    """

    def __init__(self, root: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self.root = Path(root).absolute()
        self._fsync = fsync

    def __repr__(self) -> str:
        return f"<LocalStorage {self.root}>"

    def check(self) -> None:
        check_creates(self, "it needs hard links")

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        # A file that is opened exclusively and then written is empty after a crash in between, and an empty manifest
        # would block its shard for ever. A link makes name and content appear together.
        final = self.root / name
        self._make_folder(final.parent)
        unfinished = final.parent / f"{UNFINISHED}{uuid.uuid4().hex}"
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
            reach("staged")
            try:
                os.link(unfinished, final)
            except FileExistsError:
                return False
        finally:
            unfinished.unlink(missing_ok=True)
        reach("linked")
        self._sync_folder(final.parent)
        return True

    def files(self, folder: str) -> list[str]:
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(e.name for e in entries if e.is_file() and not e.name.startswith("."))
        except FileNotFoundError:
            return []

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(e.name for e in entries if e.is_dir())
        except FileNotFoundError:
            return []

    def walk(self, folder: str) -> Iterator[Stored]:
        for parent, _, files in os.walk(self.root / folder):
            for file in files:
                path = Path(parent, file)
                try:
                    modified_ms = path.stat().st_mtime_ns // 1_000_000
                except FileNotFoundError:
                    continue
                yield Stored(path.relative_to(self.root).as_posix(), modified_ms)

    def delete(self, name: str) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        for parent in path.parents:  # folders of attempts would pile up
            if parent == self.root or not parent.is_relative_to(self.root):
                return
            try:
                parent.rmdir()
            except OSError:
                return

    def sync(self, names: list[str]) -> None:
        if not self._fsync:
            return
        folders: set[Path] = set()
        for name in names:
            path = self.root / name
            _sync(path)
            folders.update(p for p in path.parents if p.is_relative_to(self.root))
        for folder in folders:
            _sync(folder)

    def now_ms(self) -> int:
        self._make_folder(self.root)
        probe = self.root / f"{UNFINISHED}{uuid.uuid4().hex}"
        try:
            probe.touch(exist_ok=False)
            return probe.stat().st_mtime_ns // 1_000_000
        finally:
            probe.unlink(missing_ok=True)

    def uri(self, name: str) -> str:
        return str(self.root / name)

    def source(self, name: str) -> str:
        return str(self.root / name)

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self._sync_folder(folder.parent)

    def _sync_folder(self, folder: Path) -> None:
        if self._fsync:
            _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
