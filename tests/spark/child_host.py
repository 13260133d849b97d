"""A host of one shard for child processes that are killed or stopped: keeps the checkpoint, starts the next one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from kcl_host.spark.position import Position
from tests.spark.world import ENVIRON, SHARD

DRIVER = Path(__file__).with_name("driver.py")
BASE = 49590338271490256608559692538361571095921575989136588898


def positions(count: int) -> list[Position]:
    """Every fifth number is an aggregate of three."""
    found: list[Position] = []
    number = BASE
    while len(found) < count:
        number += 7
        found += [Position(number, sub) for sub in range(3 if number % 5 == 0 else 1)]
    return found[:count]


def payload(number: int) -> bytes:
    return b"nothing" if number % 50 == 49 else json.dumps({"number": number}).encode()


class Shard:
    """Records 0, 1, 2, ... `batch` of them to a line."""

    def __init__(self, count: int, batch: int) -> None:
        self.places = positions(count)
        self.batch = batch
        self.checkpoint: Position | None = None
        self.deaths = 0

    def payload(self, number: int) -> bytes:
        return payload(number)

    def lines(self) -> Iterator[dict[str, Any]]:
        """From the checkpoint on, however it was cut before."""
        start = sum(1 for place in self.places if self.checkpoint is not None and place <= self.checkpoint)
        for first in range(start, len(self.places), self.batch):
            records = [
                {
                    "action": "record",
                    "data": b64encode(self.payload(number)).decode(),
                    "partitionKey": "key",
                    "sequenceNumber": str(self.places[number].sequence_number),
                    "subSequenceNumber": self.places[number].sub_sequence_number,
                    "approximateArrivalTimestamp": 1735689600123 + number,
                }
                for number in range(first, min(first + self.batch, len(self.places)))
            ]
            yield {"action": "processRecords", "records": records, "millisBehindLatest": 0}


class Child:
    def __init__(self, shard: Shard, arguments: list[str], environ: Mapping[str, str]) -> None:
        self.shard = shard
        self.owner = True
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRON, **environ},
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def _stands_still(self) -> bool:
        """Waits until it says something, ends or stops."""
        while not select.select([self.process.stdout], [], [], 0.05)[0]:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T" and not select.select([self.process.stdout], [], [], 0)[0]:
                return True
        return False

    def initialize(self) -> bool:
        return self.act(self.first_message())

    def first_message(self) -> dict[str, Any]:
        at = self.shard.checkpoint
        number, sub = ("TRIM_HORIZON", 0) if at is None else (str(at.sequence_number), at.sub_sequence_number)
        return {"action": "initialize", "shardId": SHARD, "sequenceNumber": number, "subSequenceNumber": sub}

    def act(self, message: dict[str, Any]) -> bool:
        """False when the child ended before it had answered."""
        return self.say(message) and self.answered(message["action"])

    def say(self, message: dict[str, Any]) -> bool:
        try:
            self._stdin.write(json.dumps(message).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def answered(self, action: str) -> bool:
        """Serves its checkpoints until it has answered. False when it has ended, or stopped and has nothing to say."""
        assert self.process.stdout is not None
        while not self._stands_still() and (line := self.process.stdout.readline()):
            message = json.loads(line)
            if message["action"] == "status":
                assert message["responseFor"] == action
                return True
            assert message["action"] == "checkpoint"
            number, sub = message["sequenceNumber"], message["subSequenceNumber"]
            if self.owner and number is not None:
                at = Position(int(number), sub)
                assert self.shard.checkpoint is None or at >= self.shard.checkpoint
                self.shard.checkpoint = at
            error = None if self.owner else "ShutdownException"
            if not self.say(
                {"action": "checkpoint", "sequenceNumber": number, "subSequenceNumber": sub, "error": error}
            ):
                return False
        return False

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin


def serve(
    shard: Shard, arguments: list[str], environ: Mapping[str, str], *, cuts: tuple[int, ...] = (7, 11, 5)
) -> None:
    """Until one child has read everything and its last commit is checkpointed."""
    while True:
        shard.batch = cuts[shard.deaths % len(cuts)]
        with Child(shard, arguments, environ) as child:
            if child.initialize() and all(child.act(line) for line in shard.lines()):
                if child.act({"action": "shutdownRequested"}) and child.act({"action": "leaseLost"}):
                    child._stdin.close()
                    assert child.process.wait(60) == 0
                    return
        shard.deaths += 1
        assert shard.deaths < 20, "children die again and again"
