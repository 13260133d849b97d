"""`kcl-host run --transcript DIR`: what is exchanged with each child, as files that `kcl-host verify --replay` plays.

One file per start of a child, by shard, time, process and part: a long session goes on in a further part, of which the
newest two are kept. Files and their number are bounded; for a new file the oldest of the folder goes, of whichever
session, so what is lost is what began long ago. Nothing that goes wrong here reaches the host: a transcript that cannot
be written ends.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kcl_host.errors import ConfigurationError
from kcl_host.multilang.dialogue import Dialogue
from kcl_host.multilang.recording import RecordedDialogue
from kcl_host.ports import Clock

FILE_BYTES: Final = 8 * 1024 * 1024
FILES: Final = 64
_OURS: Final = re.compile(r".+\.\d{8}T\d{9}Z\.\d+\.\d+\.txt")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")

_log = logging.getLogger(__name__)


class TranscriptFolder:
    """The files of one folder. Its lock makes their number exact; only this process's, should several share it."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        secret: bytes,
        *,
        payloads: bool,
        file_bytes: int = FILE_BYTES,
        files: int = FILES,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._secret = secret
        self._payloads = payloads
        self._files = files
        self._file_bytes = file_bytes
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<TranscriptFolder {self._folder}>"

    def prepare(self) -> None:
        """Makes the folder (mode 0700) unless it is there. Raises ConfigurationError when nothing can be written."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigurationError(f"--transcript: cannot make the folder {self._folder}: {e.strerror}") from e
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise ConfigurationError(f"--transcript: no file can be written in {self._folder}")

    def new_dialogue(
        self, lease_key: str, child_pid: int, max_line_bytes: int, extensions: Collection[str]
    ) -> Dialogue:
        """The dialogue with a child that has just been started, written down. Never fails."""
        return RecordedDialogue(
            TranscriptFile(self, lease_key, child_pid, self._clock, self._file_bytes),
            self._secret,
            payloads=self._payloads,
            max_line_bytes=max_line_bytes,
            extensions=extensions,
        )

    def create(self, name: str) -> Path:
        """A new, empty file, mode 0600; as many of the oldest ones are removed as are too many. Raises OSError."""
        with self._lock:
            mine = [path for path in self._folder.iterdir() if _OURS.fullmatch(path.name)]
            if len(mine) >= self._files:
                mine.sort(key=_modified_ns)
                for path in mine[: len(mine) - self._files + 1]:
                    path.unlink(missing_ok=True)
            path = self._folder / name
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            return path


class TranscriptFile:
    """The transcript of one child, in parts (multilang.recording.TranscriptSink). Used by one thread at a time."""

    def __init__(self, folder: TranscriptFolder, lease_key: str, child_pid: int, clock: Clock, max_bytes: int) -> None:
        self._folder = folder
        self._lease_key = lease_key
        self._child_pid = child_pid
        self._clock = clock
        self._max_bytes = max_bytes
        self._parts: list[Path] = []
        self._number = 0
        self._size_bytes = 0
        self._stopped = False

    def begin(self, text: str, resume: Callable[[], str] | None) -> None:
        if self._stopped:
            return
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        text = f"# {now:%H:%M:%S}.{now.microsecond // 1000:03}\n{text}"
        if not self._parts:
            self._start_part(now, text)
        elif resume is not None and self._size_bytes + len(text) > self._max_bytes:
            self._start_part(now, resume() + text)
        else:
            self._write(text)

    def add(self, text: str) -> None:
        if text and not self._stopped and self._size_bytes + len(text) <= self._max_bytes:
            self._write(text)

    def _start_part(self, now: datetime, text: str) -> None:
        self._number += 1
        shard = _UNSAFE.sub("_", self._lease_key)[:150]
        name = f"{shard}.{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03}Z"
        part = f", part {self._number}" if self._number > 1 else ""
        title = f"# {shard}, child process {self._child_pid}, {now:%Y-%m-%d %H:%M:%S} UTC{part}\n"
        try:
            self._parts.append(self._folder.create(f"{name}.{self._child_pid}.{self._number}.txt"))
            if len(self._parts) > 2:
                self._parts.pop(0).unlink(missing_ok=True)
        except OSError as error:
            self._stop(error)
            return
        self._size_bytes = 0
        self._write(title + text)

    def _write(self, text: str) -> None:
        """Whole or not at all, so that no file ends inside a line."""
        data = text.encode("utf-8", "replace")
        try:
            # Not kept open: nobody tells a dialogue that its child is gone, and descriptors are scarce.
            fd = os.open(self._parts[-1], os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.write(fd, data) < len(data):
                    os.ftruncate(fd, self._size_bytes)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        except OSError as error:
            self._stop(error)
        else:
            self._size_bytes += len(data)

    def _stop(self, error: OSError) -> None:
        self._stopped = True
        if isinstance(error, FileNotFoundError) and self._parts:
            return  # removed: there are newer ones
        _log.warning(
            "the transcript of a child cannot be written any further",
            extra={"action": "transcript_ended", "lease_key": self._lease_key, "error": str(error)},
        )


def _modified_ns(path: Path) -> tuple[int, str]:
    """For sorting by age; one that is gone already is the oldest."""
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
