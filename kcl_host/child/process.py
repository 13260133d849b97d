"""One child process: started in its own session, talked to through ChildPipes, ended within a bounded time.

The exit is watched through a pidfd, and the process is reaped only by `end`, after the last signal to its group: while
the zombie is there its number cannot be given to anybody else, so a signal never reaches a stranger.

Why no PR_SET_PDEATHSIG. A host that is killed leaves its children EOF on stdin; the second line should end those that
do not read it. PDEATHSIG is tied to the *thread* that forked, so a child would be killed when its shard's thread ends,
and setting it needs Python code between fork and exec in a process with many threads. A "life pipe" does it without
either: the host holds the write end, the child inherits the read end, which is set up (O_ASYNC, F_SETOWN, F_SETSIG) so
that the kernel sends TERM to the child's group when the last writer is gone, that is when the host process ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from kcl_host.child.pipes import ChildPipes, Turn
from kcl_host.config.settings import ChildSettings
from kcl_host.errors import ChildExited, ChildStartFailed, ChildTimedOut
from kcl_host.ports import Reply

_log = logging.getLogger(__name__)

EXTENSIONS = "KCL_HOST_PROTOCOL_EXTENSIONS"
"""Names the additions to the protocol that are switched on, between commas (protocol/PROTOCOL.md section 12)."""
CREATED = "KCL_HOST_STREAM_CREATED"
_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""For talking to the service manager: what a child said there would be taken for the host's word."""
_STDIN_PIPE_BYTES = 256 * 1024
"""A larger pipe saves context switches on long lines. Not 1 MiB: one user's pipes may hold 64 MiB together
(pipe-user-pages-soft); past that every new pipe of that user shrinks to a page or two."""
_LIFE_PIPE_BYTES = 4096
_KILL_DEADLINE_S = 2.0
_EXIT_STATUS_WAIT_S = 0.25
"""A dying process closes its pipes a moment before it can be waited for; this long an error waits for the status."""
_EXIT_POLL_S = 0.1
"""How often the exit is asked for where the kernel has no pidfd (before 5.3)."""


def child_environment(
    base: Mapping[str, str],
    *,
    application: str,
    stream: str,
    shard: str,
    worker: str,
    stream_created_s: int | None = None,
    extensions: Sequence[str] = (),
) -> dict[str, str]:
    """The daemon's environment, as in Java, and in addition who the child works for.

    `stream` is its identifier as leases carry it, `stream_created_s` its creation in epoch seconds: one that is deleted
    and created anew under its name is another stream. KCL_HOST_STREAM_CREATED is there only when that is known,
    KCL_HOST_PROTOCOL_EXTENSIONS only when there are any, even if the host itself was started with them.
    """
    announced = {EXTENSIONS: ",".join(extensions)} if extensions else {}
    if stream_created_s is not None:
        announced[CREATED] = str(stream_created_s)
    return {
        **{name: value for name, value in base.items() if name not in (EXTENSIONS, CREATED, *_OURS)},
        "KCL_HOST_APPLICATION": application,
        "KCL_HOST_STREAM": stream,
        "KCL_HOST_SHARD": shard,
        "KCL_HOST_WORKER": worker,
        **announced,
    }


def start_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    settings: ChildSettings,
    on_stderr: Callable[[str], None] | None,
    name: str = "",
) -> ChildProcess:
    """Starts `command` without a shell, looked up on the PATH of `env`, which is its whole environment.

    `on_stderr` gets each line of stderr on the thread that serves the child; it is not used with
    `settings.stderr == "inherit"`. `name` (the shard) stands in messages. Raises ChildStartFailed.
    """
    if not command:
        raise ChildStartFailed("executableName is empty: there is no child process to start")
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        try:
            child_in, stdin = _pipe(theirs, ours)
            stdout, child_out = _pipe(ours, theirs)
            child_life, life = _pipe(theirs, ours)
            stderr, child_err = _pipe(ours, theirs) if settings.stderr == "log" else (None, None)
            _set_pipe_size(stdin, _STDIN_PIPE_BYTES)
            _set_pipe_size(life, _LIFE_PIPE_BYTES)
            popen = _spawn(command, env=env, stdin=child_in, stdout=child_out, stderr=child_err, life=child_life)
        except (OSError, ValueError) as e:
            raise ChildStartFailed(f"cannot start the child process{_of(name)}: {_why(command[0], env, e)}") from e
        _end_with_host(child_life, popen.pid)
        exit_fd = _open_pidfd(popen.pid)
        ours.pop_all()
    pipes = ChildPipes(
        stdin=stdin, stdout=stdout, stderr=stderr, exit_fd=exit_fd, on_stderr=on_stderr or (lambda line: None)
    )
    return ChildProcess(popen, pipes, exit_fd=exit_fd, life_fd=life, settings=settings, name=name)


class ChildProcess:
    """A running child (ports.Child). Owned by one thread; only `kill` may be called by any other."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        pipes: ChildPipes,
        *,
        exit_fd: int | None,
        life_fd: int,
        settings: ChildSettings,
        name: str,
    ) -> None:
        self._popen = popen
        self._pipes = pipes
        self._exit_fd = exit_fd
        self._life_fd = life_fd
        self._settings = settings
        self._name = name
        self._ended = False
        self._signal_lock = threading.Lock()
        """Held to signal the group and to reap the leader, so that the one never comes after the other."""

    def __repr__(self) -> str:
        return f"<ChildProcess {self.pid}{_of(self._name)}{', ended' if self._ended else ''}>"

    @property
    def pid(self) -> int:
        return self._popen.pid

    def exchange(self, line: bytes, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        """Writes `line` and serves stdout until `receive` says done and everything is written.

        `timeout_s` bounds the wait for the next valid message (`Reply.progressed`) and, while something is unsent, the
        wait for the child to read more of it. Time spent inside `receive` for a valid message does not count.
        Raises ChildExited when the process has ended, closed its stdout, or a write found its stdin closed (Java too
        fails such an action, whatever the answer), ChildTimedOut; what `receive` raises passes through.
        """
        self._pipes.send(line)
        deadline = _deadline(timeout_s)
        done = False
        while not (done and self._pipes.sent_all):
            self._require_open_pipes()
            turn = self._turn(deadline)
            progressed = turn.wrote
            for chunk in self._output_of(turn):
                try:
                    reply = receive(chunk)
                except ChildExited as e:  # at EOF; the exit status says more than that
                    raise self._gone(str(e)) from e
                self._pipes.send(reply.to_write)
                done = done or reply.done
                progressed = progressed or reply.progressed
            if turn.exited and not (done and self._pipes.sent_all):
                raise self._gone("ended")
            if progressed:
                deadline = _deadline(timeout_s)
            elif deadline is not None and time.monotonic() >= deadline:
                what = "answer" if self._pipes.sent_all else "read its stdin"
                raise ChildTimedOut(f"child process {self.pid}{_of(self._name)} did not {what} within {timeout_s:g} s")

    def idle(self, wake_fd: int | None, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        """Waits until `wake_fd` is readable (it is not read here) or `timeout_s` is over; serves the child meanwhile.

        Raises ChildExited as soon as the child has ended, closed its stdout, or a write found its stdin closed.
        What `receive` raises passes through.
        """
        deadline = _deadline(timeout_s)
        while True:
            self._require_open_pipes()
            turn = self._turn(deadline, wake_fd)
            for chunk in self._output_of(turn):
                if chunk:
                    self._pipes.send(receive(chunk).to_write)
            if turn.exited:
                raise self._gone("ended")
            if turn.woken or (deadline is not None and time.monotonic() >= deadline):
                return

    def end(self) -> int | None:
        """Closes stdin and waits, then TERM and KILL of the group, each after its deadline; output is thrown away.

        What is left of the group once the child itself is gone gets KILL too. Returns the exit status (negative: the
        signal), None when even KILL did not end it. Idempotent; never raises.
        """
        if self._ended:
            return self._popen.returncode
        self._ended = True
        try:
            self._pipes.close_stdin()
            if self._wait_for_exit(self._settings.close_deadline_s) is None:
                _log.warning(
                    "the child did not end after its stdin was closed",
                    extra={"action": "child_terminated", "child_pid": self.pid, "shard": self._name},
                )
                self._signal_group(signal.SIGTERM)
                self._wait_for_exit(self._settings.term_deadline_s)
        except Exception:  # on_stderr belongs to the caller; whatever it does, the process must be ended
            _log.exception("cannot serve the child's output", extra={"action": "child_end_failed"})
        self._signal_group(signal.SIGKILL)
        with self._signal_lock, contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_KILL_DEADLINE_S)
        self._close()
        return self._popen.returncode

    def kill(self) -> None:
        """KILL of the whole group at once. `end` is still needed to reap it. May be called by any thread."""
        self._signal_group(signal.SIGKILL)

    def _turn(self, deadline: float | None, wake_fd: int | None = None) -> Turn:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        if self._exit_fd is not None:
            return self._pipes.turn(left_s, wake_fd)
        turn = self._pipes.turn(_EXIT_POLL_S if left_s is None else min(left_s, _EXIT_POLL_S), wake_fd)
        return msgspec.structs.replace(turn, exited=self._exit_status() is not None)

    def _output_of(self, turn: Turn) -> Iterator[bytes]:
        """What the turn brought; after the child's end also the rest and b"", which a grandchild may be holding up."""
        if turn.output is not None:
            yield turn.output
        if turn.exited and turn.output != b"":
            yield from self._pipes.remaining_output()
            yield b""

    def _require_open_pipes(self) -> None:
        if not self._pipes.stdout_open:
            raise self._gone("closed its stdout")
        if not self._pipes.stdin_open:
            raise self._gone("closed its stdin")

    def _gone(self, what: str) -> ChildExited:
        status = self._wait_for_exit(_EXIT_STATUS_WAIT_S)
        return ChildExited(
            f"child process {self.pid}{_of(self._name)} {what if status is None else describe_exit(status)}"
        )

    def _exit_status(self) -> int | None:
        """None while it runs. Does not reap."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        try:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0  # SIGCHLD is ignored in this process: the kernel reaped it and nobody knows, as subprocess does
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def _wait_for_exit(self, timeout_s: float) -> int | None:
        """The exit status; None when the time is over. Serves stderr, throws stdout away."""
        deadline = time.monotonic() + timeout_s
        while (status := self._exit_status()) is None and time.monotonic() < deadline:
            self._turn(deadline)
        return status

    def _signal_group(self, signal_number: int) -> None:
        with self._signal_lock:
            if self._popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal_number)

    def _close(self) -> None:
        try:
            self._pipes.close()
        except Exception:
            _log.exception("cannot serve the child's stderr", extra={"action": "child_end_failed"})
        for fd in (self._exit_fd, self._life_fd):
            if fd is not None:
                os.close(fd)


def describe_exit(status: int) -> str:
    """What became of a process, as a predicate: "ended with status 3", "was ended by SIGKILL"."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _pipe(read_owner: contextlib.ExitStack, write_owner: contextlib.ExitStack) -> tuple[int, int]:
    """(read end, write end); each is closed by its owner."""
    read_end, write_end = os.pipe()
    read_owner.callback(os.close, read_end)
    write_owner.callback(os.close, write_end)
    return read_end, write_end


def _set_pipe_size(fd: int, size_bytes: int) -> None:
    with contextlib.suppress(OSError):  # best effort: EPERM past the user's share
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size_bytes)


def _spawn(
    command: Sequence[str], *, env: Mapping[str, str], stdin: int, stdout: int, stderr: int | None, life: int
) -> subprocess.Popen[bytes]:
    def popen(args: Sequence[str]) -> subprocess.Popen[bytes]:
        # No preexec_fn: this path uses vfork and runs no Python in the child, whatever other threads do.
        return subprocess.Popen(
            args, stdin=stdin, stdout=stdout, stderr=stderr, env=env, pass_fds=(life,), start_new_session=True
        )

    try:
        return popen(command)
    except OSError as e:
        if e.errno != errno.ENOEXEC:
            raise
        # A script without "#!" is given to sh, as the JDK does.
        path = shutil.which(command[0], path=env.get("PATH", os.defpath)) or command[0]
        return popen(["/bin/sh", path, *command[1:]])


def _why(program: str, env: Mapping[str, str], error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EACCES):
        path = env.get("PATH", os.defpath)
        found = shutil.which(program, mode=os.F_OK, path=path)
        if found is None and os.sep in program:
            return f"{program} does not exist (looked up from {os.getcwd()})"
        if found is None:
            return f"{program} is not on the PATH, which is {path!r}"
        if error.errno == errno.EACCES:
            return f"{found} is not executable"
        return f"the interpreter that the first line of {found} names does not exist"
    return f"{program}: {error}"


def _end_with_host(child_life: int, pid: int) -> None:
    """Has the kernel send TERM to the group when the life pipe's write end goes away; see the top of this file."""
    with contextlib.suppress(OSError):  # the second line only: EOF on stdin is the first
        fcntl.fcntl(child_life, fcntl.F_SETOWN, -pid)
        fcntl.fcntl(child_life, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(child_life, fcntl.F_SETFL, fcntl.fcntl(child_life, fcntl.F_GETFL) | os.O_ASYNC)


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
