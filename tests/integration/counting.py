"""A stream of numbered records, a host process on it, and the count of what its children were given.

Children are `python -m kcl_host.processor.demo`; each record they get is a line in one file, written before the
checkpoint that covers it, so a line that is missing was never delivered and a checkpoint beyond the lines is a lie.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from kcl_host.local.engines import Engines

PROCESSOR = f"{sys.executable} -m kcl_host.processor.demo"


class Delivered(NamedTuple):
    shard_id: str
    sequence_number: int
    sub_sequence_number: int
    data: str


class Counting:
    """One application on one stream. `keys` go into the properties file, over the defaults for quick tests; None takes
    a default out."""

    def __init__(self, engines: Engines, folder: Path, *, stream: str = "numbers", **keys: object) -> None:
        self.engines = engines
        self.folder = folder
        self.out = folder / "delivered.txt"
        self.log = folder / "host.log"
        self.properties = folder / "app.properties"
        settings = {
            "executableName": PROCESSOR,
            "streamName": stream,
            "applicationName": "counting",
            "initialPositionInStream": "TRIM_HORIZON",
            "AwsCredentialsProvider": "AnonymousCredentialsProvider",
            "retrievalMode": "POLLING",
            "idleTimeBetweenReadsInMillis": 200,
            "failoverTimeMillis": 2000,
            "leaseAssignmentIntervalMillis": 1000,
            "parentShardPollIntervalMillis": 500,
            **keys,
        }
        lines = [f"{key} = {value}" for key, value in settings.items() if value is not None]
        where = [line for line in engines.properties_lines() if line.partition("=")[0].strip() not in keys]
        self.properties.write_text("\n".join([*lines, *where]) + "\n")

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "kcl_host", "-p", str(self.properties), *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "KCL_DEMO_OUT": str(self.out)},
            )

    def delivered(self) -> list[Delivered]:
        """Every delivery so far, in order, repetitions included; a line still being written is left out."""
        if not self.out.exists():
            return []
        text = self.out.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [Delivered(s, int(n), int(sub), data) for s, n, sub, data in (line.split(" ", 3) for line in lines)]

    def wait_for_numbers(self, count: int, limit_s: float) -> None:
        """Until `count` different records have been delivered."""
        self.wait_until(lambda: len({(d.shard_id, d.sequence_number) for d in self.delivered()}) >= count, limit_s)

    def wait_until(self, condition: object, limit_s: float) -> None:
        assert callable(condition)
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {limit_s} s; the end of the log:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def check_order(self) -> None:
        """Per shard each record was first delivered after all records before it, however often any was repeated."""
        largest: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        for one in self.delivered():
            if (one.shard_id, one.sequence_number) in seen:
                continue
            seen.add((one.shard_id, one.sequence_number))
            assert one.sequence_number > largest.get(one.shard_id, -1), f"{one} came too late"
            largest[one.shard_id] = one.sequence_number

    def stored(self, stream: str = "numbers") -> dict[str, list[int]]:
        """Sequence numbers of everything in the stream, by shard, in order; shards without records are left out."""
        stored = self.engines.kinesis.stored_records(stream)
        return {shard: [int(r.sequence_number) for r in records] for shard, records in stored.items() if records}

    def delivered_in_order(self) -> dict[str, list[int]]:
        """Sequence numbers of every delivery, by shard, repetitions included."""
        by_shard: dict[str, list[int]] = {}
        for one in self.delivered():
            by_shard.setdefault(one.shard_id, []).append(one.sequence_number)
        return by_shard


class Running:
    """A host process, killed at the end should it still run, and its log as one object per line."""

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        self.process = counting.start("--log-format", "json")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self, action: str, **facts: object) -> list[dict[str, Any]]:
        """The lines of this action that have these facts."""
        text = self.counting.log.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("action") == action and facts.items() <= line.items()]

    def wait_for(self, action: str, limit_s: float = 20.0, **facts: object) -> None:
        self.counting.wait_until(lambda: self.log(action, **facts), limit_s)


def stop(host: subprocess.Popen[bytes], limit_s: float = 30.0) -> int:
    """TERM, and the exit code."""
    host.send_signal(signal.SIGTERM)
    return host.wait(limit_s)
