"""The file descriptors of one child in one poll loop: stdin is written while stdout, stderr and the exit are watched.

Writing and reading together is what keeps a child that prints a lot, while a line of 13 MB is on its way to it, from
blocking us and itself for ever. Everything is non-blocking and belongs to one thread.
"""

from __future__ import annotations

import math
import os
import select
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from kcl_host.child.stderr import StderrLines

_READ_BYTES = 65536
_MAX_REMAINING_READS = 32
"""Bounds what is read after the child's end, should a grandchild go on filling the pipe: 2 MiB."""


class Turn(msgspec.Struct, frozen=True):
    """What one poll brought. `output` is b"" once, when stdout ended; None when there was nothing."""

    output: bytes | None = None
    wrote: bool = False
    exited: bool = False
    woken: bool = False


class ChildPipes:
    """Owns the host's ends of a child's pipes and closes them."""

    def __init__(
        self, *, stdin: int, stdout: int, stderr: int | None, exit_fd: int | None, on_stderr: Callable[[str], None]
    ) -> None:
        self._poll = select.poll()
        self._stdin: int | None = stdin
        self._stdout: int | None = stdout
        self._stderr = stderr
        self._exit_fd = exit_fd
        self._stderr_lines = StderrLines(on_stderr)
        self._unsent: deque[memoryview] = deque()
        for fd in (stdin, stdout, stderr):
            if fd is not None:
                os.set_blocking(fd, False)
        for fd in (stdout, stderr, exit_fd):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)

    @property
    def stdin_open(self) -> bool:
        """False when the child closed its stdin and a write found that out, or after close_stdin."""
        return self._stdin is not None

    @property
    def stdout_open(self) -> bool:
        return self._stdout is not None

    @property
    def sent_all(self) -> bool:
        """Whatever was queued has been written; False when a write failed."""
        return self._stdin is not None and not self._unsent

    def send(self, data: bytes) -> None:
        """Queues `data`; the following turns write it. Dropped when stdin is closed."""
        if data and self._stdin is not None:
            if not self._unsent:
                # Only while there is something to write: a closed reader would make an idle stdin always ready.
                self._poll.register(self._stdin, select.POLLOUT)
            self._unsent.append(memoryview(data))

    def turn(self, timeout_s: float | None, wake_fd: int | None = None) -> Turn:
        """Waits until something can be done, at most `timeout_s` (None: for ever), and does it once."""
        if wake_fd is not None:
            self._poll.register(wake_fd, select.POLLIN)
        try:
            ready = {fd for fd, _ in self._poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))}
        finally:
            if wake_fd is not None:
                self._poll.unregister(wake_fd)
        if self._stderr in ready:
            self._serve_stderr()
        return Turn(
            output=self._read_stdout() if self._stdout in ready else None,
            wrote=self._stdin in ready and self._write(),
            exited=self._exit_fd in ready,
            woken=wake_fd in ready,
        )

    def remaining_output(self) -> Iterator[bytes]:
        """What is in stdout now, without waiting; for the time after the child's end."""
        for _ in range(_MAX_REMAINING_READS):
            chunk = self._read_stdout()
            if not chunk:
                return
            yield chunk

    def close_stdin(self) -> None:
        """Gives up what is unsent and lets the child see EOF."""
        if self._stdin is not None:
            if self._unsent:
                self._unsent.clear()
                self._poll.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    def close(self) -> None:
        """Serves what is left on stderr, then closes everything. Idempotent."""
        self.close_stdin()
        for _ in range(_MAX_REMAINING_READS):
            if not self._serve_stderr():
                break
        self._stderr_lines.close()
        self._close_stdout()
        self._close_stderr()

    def _write(self) -> bool:
        assert self._stdin is not None
        try:
            written = os.write(self._stdin, self._unsent[0])
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.close_stdin()
            return False
        self._unsent[0] = self._unsent[0][written:]
        if not self._unsent[0]:
            self._unsent.popleft()
            if not self._unsent:
                self._poll.unregister(self._stdin)
        return True

    def _read_stdout(self) -> bytes | None:
        chunk = _read(self._stdout)
        if chunk == b"":
            self._close_stdout()
        return chunk

    def _serve_stderr(self) -> bool:
        """True when there may be more."""
        chunk = _read(self._stderr)
        if chunk:
            self._stderr_lines.feed(chunk)
        elif chunk == b"":
            self._close_stderr()
        return bool(chunk)

    def _close_stdout(self) -> None:
        if self._stdout is not None:
            self._poll.unregister(self._stdout)
            os.close(self._stdout)
            self._stdout = None

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            self._poll.unregister(self._stderr)
            os.close(self._stderr)
            self._stderr = None


def _read(fd: int | None) -> bytes | None:
    """None when there is nothing at the moment, b"" at EOF."""
    if fd is None:
        return None
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
