"""Counts records as the demo's processor does, but misbehaves once per shard, at its first batch (or start, or end).

NASTY_FOLDER holds `habits.json`, {shard id: habit}, a file per shard once it has misbehaved, and `notes`, one line per
thing worth knowing. A shard without a habit is well-behaved from the start. Habits are the functions of Nasty, and
"exits at once" and "always exits".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kcl_host.processor import Checkpointer, CheckpointError, Record, run
from kcl_host.processor.demo import CountRecords

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


class Nasty(CountRecords):
    def __init__(self, out: int, habit: str, done: Path) -> None:
        super().__init__(out, checkpoint_each_batch=True)
        self.habit = habit
        self.done = done

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        act = getattr(self, self.habit.replace(" ", "_"), None)
        if act is not None and self.habit != "does not checkpoint the end" and not self.done.exists():
            self.done.touch()
            os.write(self.out, "".join(self._line(record) for record in records).encode())
            act(checkpointer)
        else:
            super().process_records(records, checkpointer)

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        if self.habit == "does not checkpoint the end" and not self.done.exists():
            self.done.touch()
        else:
            super().shard_ended(checkpointer)

    # Habits

    def does_not_checkpoint_the_end(self, checkpointer: Checkpointer) -> None:
        """See shard_ended."""

    def exits_in_the_middle(self, checkpointer: Checkpointer) -> None:
        os._exit(7)

    def exits_while_idle(self, checkpointer: Checkpointer) -> None:
        stdin.is_last = True

    def prints_100_mb_of_noise(self, checkpointer: Checkpointer) -> None:
        for _ in range(100):
            say(("noise " * 16 + "\n") * 10400)

    def prints_half_a_line_and_hangs(self, checkpointer: Checkpointer) -> None:
        say('{"action": "status", "respon')
        sys.stdin.buffer.read()
        os._exit(0)

    def closes_stdout(self, checkpointer: Checkpointer) -> None:
        os.close(1)
        sys.stdin.buffer.read()
        os._exit(0)

    def answers_the_wrong_action(self, checkpointer: Checkpointer) -> None:
        say('{"action": "status", "responseFor": "leaseLost"}\n')
        sys.stdin.buffer.read()
        os._exit(0)

    def answers_twice(self, checkpointer: Checkpointer) -> None:
        say('{"action": "status", "responseFor": "processRecords"}\n')

    def sends_null(self, checkpointer: Checkpointer) -> None:
        say("null\n")

    def asks_for_impossible_checkpoints(self, checkpointer: Checkpointer) -> None:
        for number in ("9" * 56, "LATEST", "nonsense"):
            try:
                checkpointer.checkpoint(number)
                note(f"{number} was granted")
            except CheckpointError as error:
                note(f"{number[:9]} {error.value}")

    def checkpoints_while_drained(self, checkpointer: Checkpointer) -> None:
        say('{"action": "status", "responseFor": "leaseLost"}\n')
        time.sleep(0.2)
        say('{"action": "checkpoint", "sequenceNumber": null, "subSequenceNumber": null}\n' * 10)
        sys.stdin.buffer.read()
        note("drained")
        os._exit(0)

    def ignores_eof_and_term(self, checkpointer: Checkpointer) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say('{"action": "status", "responseFor": "leaseLost"}\n')
        while True:
            time.sleep(60)

    def leaves_a_grandchild_with_its_pipes(self, checkpointer: Checkpointer) -> None:
        grandchild = subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEPER])
        note(f"grandchild {grandchild.pid}")
        os._exit(0)


class Stdin:
    """Standard input; the process ends when it would read on after `is_last` was set."""

    is_last = False

    def readline(self) -> bytes:
        if self.is_last:
            os._exit(4)
        return sys.stdin.buffer.readline()


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    with (folder / "notes").open("a") as notes:
        notes.write(text + "\n")


if __name__ == "__main__":
    folder = Path(os.environ["NASTY_FOLDER"])
    shard_id = os.environ["KCL_HOST_SHARD"]
    habit = json.loads((folder / "habits.json").read_text()).get(shard_id, "")
    done = folder / shard_id
    if habit == "always exits" or (habit == "exits at once" and not done.exists()):
        done.touch()
        sys.exit(3)
    out = os.open(os.environ["KCL_DEMO_OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    stdin = Stdin()
    run(Nasty(out, habit, done), stdin, sys.stdout.buffer)
