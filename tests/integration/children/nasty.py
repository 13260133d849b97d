"""A child with one bad habit, named by its first argument. Apart from that it answers every action."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def answer(line: bytes) -> None:
    action = json.loads(line)["action"]
    sys.stdout.write("\n" + json.dumps({"action": "status", "responseFor": action}) + "\n")
    sys.stdout.flush()


def well_behaved() -> None:
    for line in sys.stdin.buffer:
        answer(line)


def exits_at_once() -> None:
    sys.exit(3)


def exits_in_the_middle() -> None:
    sys.stdin.buffer.readline()
    print("giving up", file=sys.stderr)
    sys.exit(7)


def killed_in_the_middle() -> None:
    sys.stdin.buffer.readline()
    os.kill(os.getpid(), signal.SIGKILL)


def exits_while_idle() -> None:
    answer(sys.stdin.buffer.readline())
    time.sleep(float(sys.argv[2]))
    sys.exit(4)


def answers_and_exits() -> None:
    """The last line has no terminator."""
    action = json.loads(sys.stdin.buffer.readline())["action"]
    sys.stdout.write(json.dumps({"action": "status", "responseFor": action}))


def prints_noise() -> None:
    megabytes = int(sys.argv[2])
    for line in sys.stdin.buffer:
        for _ in range(megabytes):
            sys.stdout.write(("noise " * 16 + "\n") * 10400)
        answer(line)


def prints_noise_for_ever() -> None:
    sys.stdin.buffer.readline()
    while True:
        sys.stdout.write("noise " * 1000 + "\n")


def prints_half_a_line_and_hangs() -> None:
    sys.stdin.buffer.readline()
    sys.stdout.write('{"action": "status", "respon')
    sys.stdout.flush()
    time.sleep(60)


def never_reads() -> None:
    time.sleep(60)


def closes_stdout() -> None:
    sys.stdin.buffer.readline()
    os.close(1)
    sys.stdin.buffer.read()
    os._exit(0)


def closes_stdin() -> None:
    line = sys.stdin.buffer.readline()
    os.close(0)
    answer(line)
    time.sleep(60)


def closes_stdin_early() -> None:
    os.close(0)
    print('{"action": "status", "responseFor": "processRecords"}', flush=True)
    time.sleep(60)


def ignores_eof() -> None:
    well_behaved()
    time.sleep(60)


def ignores_eof_and_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    well_behaved()
    while True:
        time.sleep(60)


def leaves_a_grandchild() -> None:
    """It holds all three pipes and ignores what can be ignored; its pid is told by a line on stderr."""
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    grandchild = subprocess.Popen([sys.executable, "-I", "-S", "-c", sleeper])
    print(f"grandchild {grandchild.pid}", file=sys.stderr, flush=True)
    if sys.argv[2] == "and exits":
        sys.stdin.buffer.readline()
        sys.stdout.write('{"action": "status", "responseFor": "initialize"}')
        sys.stdout.flush()
        os._exit(0)
    well_behaved()
    os._exit(0)


def prints_before_reading() -> None:
    """More than the pipe holds, before it reads one byte."""
    sys.stdout.write("noise " * 500_000 + "\n")
    sys.stdout.flush()
    well_behaved()


def prints_while_reading() -> None:
    total = 0
    while chunk := sys.stdin.buffer.raw.read(65536):
        total += len(chunk)
        sys.stdout.write("x" * 65536 + "\n")
        if chunk.endswith(b"\n"):
            status = {"action": "status", "responseFor": "processRecords", "bytes": total}
            sys.stdout.write(json.dumps(status) + "\n")
        sys.stdout.flush()


def huge_stderr() -> None:
    for line in sys.stdin.buffer:
        sys.stderr.write(("complaint " * 10 + "\n") * 100_000)
        answer(line)


def shows_its_environment() -> None:
    sys.stdin.buffer.readline()
    facts = {
        "environment": dict(os.environ),
        "session": os.getsid(0) == os.getpid(),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    }
    print(json.dumps(facts))
    print('{"action": "status", "responseFor": "initialize"}', flush=True)
    sys.stdin.buffer.read()


def answers_another_action() -> None:
    sys.stdin.buffer.readline()
    print('{"action": "status", "responseFor": "leaseLost"}', flush=True)
    sys.stdin.buffer.read()


def answers_twice() -> None:
    for line in sys.stdin.buffer:
        answer(line)
        answer(line)


def sends_null() -> None:
    for line in sys.stdin.buffer:
        print("null", flush=True)
        answer(line)


def checkpoints() -> None:
    """Asks what the second argument says, on each processRecords; the answers go to stderr."""
    for line in sys.stdin.buffer:
        if b"processRecords" in line:
            print(sys.argv[2], flush=True)
            print("answer", sys.stdin.buffer.readline().decode().strip(), file=sys.stderr, flush=True)
        answer(line)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
