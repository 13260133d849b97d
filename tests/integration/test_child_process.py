"""Real processes with bad habits (children/nasty.py) against ChildProcess: no hang, no leak, and a clear error."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kcl_host.child.process import ChildProcess, child_environment, describe_exit, start_child
from kcl_host.config.settings import ChildSettings
from kcl_host.errors import ChildExited, ChildStartFailed, ChildTimedOut
from kcl_host.ports import Reply

NASTY = Path(__file__).parent / "children" / "nasty.py"
INITIALIZE = b'{"action":"initialize"}\n'
PROCESS_RECORDS = b'{"action":"processRecords"}\n'
SETTINGS = ChildSettings(command=())
IMPATIENT = ChildSettings(command=(), close_deadline_s=0.3, term_deadline_s=0.3)


class Receiver:
    """Takes the line of a status for done and every other one for noise."""

    def __init__(self) -> None:
        self.partial = b""
        self.noise_lines = 0
        self.messages: list[dict[str, object]] = []
        self.eof = False

    def __call__(self, data: bytes) -> Reply:
        self.eof = self.eof or not data
        *lines, self.partial = (self.partial + (data or b"\n")).split(b"\n")
        done = False
        for line in lines:
            if line.startswith(b"{"):
                self.messages.append(json.loads(line))
                done = done or self.messages[-1].get("action") == "status"
            elif line:
                self.noise_lines += 1
        return Reply(done=done, progressed=done)


class Started:
    def __init__(self, child: ChildProcess, stderr: list[str]) -> None:
        self.child = child
        self.stderr = stderr
        self.receiver = Receiver()

    def exchange(self, line: bytes = INITIALIZE, timeout_s: float | None = 20) -> None:
        self.child.exchange(line, self.receiver, timeout_s)


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    children: list[ChildProcess] = []

    def start_nasty(*arguments: str, settings: ChildSettings = SETTINGS) -> Started:
        stderr: list[str] = []
        command = [sys.executable, "-I", "-S", str(NASTY), *arguments]
        child = start_child(command, env=dict(os.environ), settings=settings, on_stderr=stderr.append, name="shard-7")
        children.append(child)
        return Started(child, stderr)

    yield start_nasty
    for child in children:
        child.kill()
        child.end()


def is_alive(pid: int) -> bool:
    """False also for a zombie, which only waits for whoever is its parent now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 5) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_actions_are_answered_and_eof_ends_the_child(start: Callable[..., Started]) -> None:
    started = start("well_behaved")
    for line in (INITIALIZE, PROCESS_RECORDS, b'{"action":"leaseLost"}\n'):
        started.exchange(line)
    assert [m["responseFor"] for m in started.receiver.messages] == ["initialize", "processRecords", "leaseLost"]
    assert started.child.end() == 0
    assert started.child.end() == 0
    assert "shard-7" in repr(started.child)


def test_extensions_of_the_protocol_are_announced_only_when_they_are_switched_on() -> None:
    who = {"application": "a", "stream": "s", "shard": "h", "worker": "w"}
    ours = {"KCL_HOST_PROTOCOL_EXTENSIONS": "somebody's", "X": "1"}
    off = child_environment(ours, **who)
    assert "KCL_HOST_PROTOCOL_EXTENSIONS" not in off and off["X"] == "1"
    on = child_environment(ours, **who, extensions=("prepareCheckpoint", "another"))
    assert on == off | {"KCL_HOST_PROTOCOL_EXTENSIONS": "prepareCheckpoint,another"}


def test_the_child_gets_its_own_session_the_given_environment_and_no_descriptor_of_ours(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    other = start("well_behaved")  # whose pipes must not be seen by the next child
    environment = child_environment({"PATH": "/bin", "X": "é"}, application="a", stream="s", shard="h", worker="w")
    command = [sys.executable, "-I", "-S", str(NASTY), "shows_its_environment"]
    receiver = Receiver()
    with (tmp_path / "inheritable").open("w") as f:
        os.set_inheritable(f.fileno(), True)
        child = start_child(command, env=environment, settings=SETTINGS, on_stderr=None)
    child.exchange(INITIALIZE, receiver, 20)
    assert child.end() == 0
    facts = receiver.messages[0]
    expected = {
        "PATH": "/bin", "X": "é", "KCL_HOST_APPLICATION": "a", "KCL_HOST_STREAM": "s", "KCL_HOST_SHARD": "h",
        "KCL_HOST_WORKER": "w",
    }  # fmt: skip
    environment_seen = facts["environment"]
    assert isinstance(environment_seen, dict)
    assert environment_seen.items() >= expected.items()
    assert set(environment_seen) - set(expected) <= {"LC_CTYPE"}  # Python's own, under the C locale
    assert facts["session"]
    fds = facts["fds"]
    assert isinstance(fds, list)
    assert len(fds) == 5  # the three pipes, the life pipe, and the listing itself
    assert other.child.end() == 0


@pytest.mark.parametrize("line", [INITIALIZE, b"x" * 5_000_000 + b"\n"], ids=["short line", "long line"])
def test_exits_at_once(start: Callable[..., Started], line: bytes) -> None:
    started = start("exits_at_once")
    with pytest.raises(ChildExited, match=r"child process \d+ of shard-7 ended with status 3"):
        started.exchange(line)
    assert started.child.end() == 3


def test_exits_in_the_middle_and_its_last_words_are_heard(start: Callable[..., Started]) -> None:
    started = start("exits_in_the_middle")
    with pytest.raises(ChildExited, match="ended with status 7"):
        started.exchange()
    assert started.receiver.eof
    assert started.child.end() == 7
    assert started.stderr == ["giving up"]


def test_killed_in_the_middle(start: Callable[..., Started]) -> None:
    started = start("killed_in_the_middle")
    with pytest.raises(ChildExited, match="was ended by SIGKILL"):
        started.exchange()
    assert started.child.end() == -signal.SIGKILL


def test_an_error_of_receive_at_eof_is_told_together_with_the_exit_status(start: Callable[..., Started]) -> None:
    def receive(data: bytes) -> Reply:
        if not data:
            raise ChildExited("stdout is closed")
        return Reply()

    with pytest.raises(ChildExited, match="ended with status 7"):
        start("exits_in_the_middle").child.exchange(INITIALIZE, receive, 20)


def test_exits_while_idle_and_that_is_noticed_at_once(start: Callable[..., Started]) -> None:
    started = start("exits_while_idle", "0.2")
    started.exchange()
    began = time.monotonic()
    with pytest.raises(ChildExited, match="ended with status 4"):
        started.child.idle(None, started.receiver, 30)
    assert time.monotonic() - began < 5


def test_the_exit_is_noticed_without_pidfd_too(start: Callable[..., Started], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pidfd(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    started = start("exits_while_idle", "0.2")
    started.exchange()
    with pytest.raises(ChildExited, match="ended with status 4"):
        started.child.idle(None, started.receiver, 30)
    assert started.child.end() == 4


def test_idle_ends_by_the_wake_descriptor_or_the_time(start: Callable[..., Started]) -> None:
    started = start("well_behaved")
    started.exchange()
    wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        began = time.monotonic()
        started.child.idle(wake, started.receiver, 0.1)
        assert 0.1 <= time.monotonic() - began < 10
        threading.Timer(0.1, os.eventfd_write, (wake, 1)).start()
        started.child.idle(wake, started.receiver, None)
        assert os.eventfd_read(wake) == 1  # left for its owner to read
    finally:
        os.close(wake)
    started.exchange()


def test_a_status_before_the_exit_counts_although_its_line_is_not_terminated(start: Callable[..., Started]) -> None:
    started = start("answers_and_exits")
    started.exchange()
    with pytest.raises(ChildExited, match="ended with status 0"):
        started.exchange(PROCESS_RECORDS)
    assert started.child.end() == 0


def test_100_mb_of_noise_cost_no_memory(start: Callable[..., Started]) -> None:
    started = start("prints_noise", "100")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started.exchange(timeout_s=60)
    assert started.receiver.noise_lines == 100 * 10400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000


def test_endless_noise_is_no_answer(start: Callable[..., Started]) -> None:
    with pytest.raises(ChildTimedOut, match=r"did not answer within 0\.3 s"):
        start("prints_noise_for_ever").exchange(timeout_s=0.3)


def test_half_a_line_is_no_answer(start: Callable[..., Started]) -> None:
    started = start("prints_half_a_line_and_hangs", settings=IMPATIENT)
    with pytest.raises(ChildTimedOut, match=r"did not answer within 0\.5 s"):
        started.exchange(timeout_s=0.5)
    began = time.monotonic()
    assert started.child.end() == -signal.SIGTERM
    assert time.monotonic() - began < 5


def test_a_child_that_does_not_read_times_out_too(start: Callable[..., Started]) -> None:
    with pytest.raises(ChildTimedOut, match="did not read its stdin"):
        start("never_reads").exchange(b"x" * 5_000_000 + b"\n", timeout_s=0.3)


def test_the_time_inside_receive_does_not_count(start: Callable[..., Started]) -> None:
    """A checkpoint may take as long as the table does."""

    def receive(data: bytes) -> Reply:
        time.sleep(0.6)
        return Reply(done=True, progressed=True)

    start("well_behaved").child.exchange(INITIALIZE, receive, 0.5)


def test_closes_stdout_but_lives(start: Callable[..., Started]) -> None:
    started = start("closes_stdout")
    with pytest.raises(ChildExited, match="closed its stdout"):
        started.exchange()
    with pytest.raises(ChildExited, match="closed its stdout"):
        started.child.idle(None, started.receiver, 10)
    assert started.child.end() == 0


def test_closes_stdin_but_lives(start: Callable[..., Started]) -> None:
    started = start("closes_stdin")
    started.exchange()
    with pytest.raises(ChildExited, match="closed its stdin"):
        started.exchange(PROCESS_RECORDS)


def test_an_answer_does_not_help_when_the_line_could_not_be_written(start: Callable[..., Started]) -> None:
    started = start("closes_stdin_early")
    with pytest.raises(ChildExited, match="closed its stdin"):
        started.exchange(b"x" * 5_000_000 + b"\n")


@pytest.mark.parametrize(
    ("habit", "status"), [("ignores_eof", -signal.SIGTERM), ("ignores_eof_and_term", -signal.SIGKILL)]
)
def test_a_child_that_does_not_want_to_end(start: Callable[..., Started], habit: str, status: int) -> None:
    started = start(habit, settings=IMPATIENT)
    started.exchange()
    began = time.monotonic()
    assert started.child.end() == status
    assert time.monotonic() - began < 5
    assert not is_alive(started.child.pid)


def grandchild_of(started: Started) -> int:
    found = re.fullmatch(r"grandchild (\d+)", started.stderr[0])
    assert found
    return int(found[1])


def test_a_grandchild_that_holds_the_pipes_goes_with_the_child(start: Callable[..., Started]) -> None:
    started = start("leaves_a_grandchild", "and lives")
    started.exchange()
    grandchild = grandchild_of(started)
    assert is_alive(grandchild)
    began = time.monotonic()
    assert started.child.end() == 0
    assert time.monotonic() - began < 5
    assert wait_until(lambda: not is_alive(grandchild))


def test_the_end_of_the_child_is_seen_although_a_grandchild_holds_stdout(start: Callable[..., Started]) -> None:
    started = start("leaves_a_grandchild", "and exits")
    started.exchange()  # the unterminated status is taken, without an EOF
    with pytest.raises(ChildExited, match="ended with status 0"):
        started.exchange(PROCESS_RECORDS)
    started.child.end()
    assert wait_until(lambda: not is_alive(grandchild_of(started)))


@pytest.mark.parametrize("habit", ["prints_before_reading", "prints_while_reading"])
def test_13_mb_go_in_while_a_lot_comes_out(start: Callable[..., Started], habit: str) -> None:
    started = start(habit)
    line = b'{"action":"processRecords","x":"' + b"x" * 13_400_000 + b'"}\n'
    started.exchange(line)
    assert started.receiver.noise_lines >= 1
    if habit == "prints_while_reading":
        assert started.receiver.messages[-1]["bytes"] == len(line)
        assert started.receiver.noise_lines > 50


def test_huge_stderr_blocks_nobody_and_is_complete(start: Callable[..., Started]) -> None:
    started = start("huge_stderr")
    started.exchange()
    started.child.end()
    assert len(started.stderr) == 100_000
    assert set(started.stderr) == {"complaint " * 10}


def test_an_error_of_on_stderr_does_not_keep_the_child_alive() -> None:
    def on_stderr(line: str) -> None:
        raise RuntimeError(line)

    command = [sys.executable, "-I", "-S", str(NASTY), "exits_in_the_middle"]
    child = start_child(command, env=dict(os.environ), settings=SETTINGS, on_stderr=on_stderr)
    with pytest.raises((RuntimeError, ChildExited)):
        child.exchange(INITIALIZE, Receiver(), 20)
    assert child.end() in (7, -signal.SIGKILL)
    assert not is_alive(child.pid)


def test_stderr_can_be_inherited(capfd: pytest.CaptureFixture[str]) -> None:
    settings = msgspec.structs.replace(SETTINGS, stderr="inherit")
    command = [sys.executable, "-I", "-S", str(NASTY), "exits_in_the_middle"]
    child = start_child(command, env=dict(os.environ), settings=settings, on_stderr=lambda line: pytest.fail(line))
    with pytest.raises(ChildExited):
        child.exchange(INITIALIZE, Receiver(), 20)
    child.end()
    assert capfd.readouterr().err == "giving up\n"


def test_kill_by_another_thread_ends_an_exchange(start: Callable[..., Started]) -> None:
    started = start("never_reads")
    threading.Timer(0.2, started.child.kill).start()
    with pytest.raises(ChildExited, match="was ended by SIGKILL"):
        started.exchange(timeout_s=None)
    assert started.child.end() == -signal.SIGKILL
    started.child.kill()  # of one that has been reaped: nothing


def test_a_child_outlives_the_thread_that_started_it(start: Callable[..., Started]) -> None:
    started: list[Started] = []
    thread = threading.Thread(target=lambda: started.append(start("well_behaved")))
    thread.start()
    thread.join()
    started[0].exchange()
    assert started[0].child.end() == 0


def test_children_that_ignore_eof_end_with_a_host_that_is_killed(tmp_path: Path) -> None:
    """The life pipe: TERM for the whole group, so that a Node child with an open timer does not stay for ever."""
    host = """
import os, sys, time
from kcl_host.child.process import start_child
from kcl_host.config.settings import ChildSettings
child = start_child(["/bin/sh", "-c", "sleep 60 & exec sleep 60"], env=dict(os.environ),
                    settings=ChildSettings(command=()), on_stderr=None)
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", host], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.kill()
    assert wait_until(lambda: not is_alive(pid))
    assert wait_until(lambda: not group_is_alive(pid))


def group_is_alive(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False


def test_descriptors_and_zombies_do_not_leak() -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    before = descriptors()
    for i in range(50):
        child = start_child(["/bin/cat"], env={}, settings=SETTINGS, on_stderr=None)
        if i % 2:
            child.kill()
        assert child.end() == (-signal.SIGKILL if i % 2 else 0)
        with pytest.raises(ChildStartFailed):
            start_child(["no-such-program"], env={"PATH": "/bin"}, settings=SETTINGS, on_stderr=None)
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    def error_of(*command: str) -> str:
        with pytest.raises(ChildStartFailed) as caught:
            start_child(command, env={"PATH": str(tmp_path)}, settings=SETTINGS, on_stderr=None, name="shard-7")
        return str(caught.value)

    script(tmp_path / "plain", "", mode=0o644)
    script(tmp_path / "lost.py", "#!/no/such/interpreter\n")
    assert error_of("absent.py") == (
        f"cannot start the child process of shard-7: absent.py is not on the PATH, which is '{tmp_path}'"
    )
    assert "./absent.py does not exist" in error_of("./absent.py")
    assert error_of("plain").endswith(f"{tmp_path}/plain is not executable")
    assert "the interpreter that the first line" in error_of("lost.py")
    assert "executableName is empty" in error_of()
    assert "null" in error_of("a\0b")


def test_the_program_is_looked_up_on_the_path_of_the_child_and_a_script_needs_no_first_line(tmp_path: Path) -> None:
    script(tmp_path / "processor", 'printf \'{"action":"status"}\'; echo "$1|$2" >&2; cat >&2\n')
    stderr: list[str] = []
    child = start_child(
        ["processor", "two words", "$HOME"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        settings=SETTINGS,
        on_stderr=stderr.append,
    )
    with pytest.raises(ChildTimedOut):
        child.exchange(INITIALIZE, Receiver(), 0.5)
    assert child.end() == 0
    assert stderr == ["two words|$HOME", INITIALIZE.decode().strip()]


def test_how_an_exit_is_told() -> None:
    assert describe_exit(0) == "ended with status 0"
    assert describe_exit(-15) == "was ended by SIGTERM"
    assert describe_exit(-99) == "was ended by signal 99"
