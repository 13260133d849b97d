"""Records flow into a table for minutes while everything is killed at random; at the end each number is there once.

Two hosts share one stream of four shards, one of which is split, and one local Spark server, which belongs to the first
host and dies with it. What is killed, stopped, started anew: children, both hosts, the Spark server and what looks
after it; a stopped child goes on later, when its lease has moved. Exit code 1 when a number is missing or there twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pyarrow.parquet as pq

from kcl_host.local.engines import Engines
from kcl_host.spark import committed_files
from kcl_host.spark.parquet import views

DRIVER: Final = Path(__file__).with_name("driver.py")
SHARDS: Final = 4
FINISH_LIMIT_S: Final = 300.0
PATIENCE_S: Final = 90.0


def payload(number: int) -> bytes:
    return b"nothing" if number % 50 == 49 else json.dumps({"number": number}).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200, help="records per second (default 200)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--pause", type=float, default=12, help="longest seconds between two faults (default 12)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
    print(f"seed {options.seed}, process {os.getpid()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kcl-host-soak-") as folder, Engines() as engines:
        engines.create_stream("numbers", SHARDS)
        soak = Soak(engines, Path(folder), random.Random(options.seed), options.rate)
        try:
            soak.run(60 * options.minutes, options.pause)
            return soak.finish()
        finally:
            soak.close()


class Soak:
    def __init__(self, engines: Engines, folder: Path, rng: random.Random, rate: int) -> None:
        self.engines = engines
        self.folder = folder
        self.table = folder / "table"
        self.rng = rng
        self.rate = rate
        self.produced = 0
        self.faults: Counter[str] = Counter()
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: list[tuple[float, psutil.Process]] = []
        """Until when, and which child."""
        self._began_s = time.monotonic()
        self._over = threading.Event()
        self._quiet_since_s, self._commits_before, self._is_patient = 0.0, 0, True
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.token = secrets.token_hex(16)

    def run(self, seconds: float, pause_s: float) -> None:
        producer = threading.Thread(target=self._produce)
        producer.start()
        self.start("a")
        self.start("b")
        split_at_s, next_s, next_line_s = seconds / 3, 20.0, 0.0
        try:
            while (now_s := time.monotonic() - self._began_s) < seconds:
                if now_s > split_at_s:
                    split_at_s = float("inf")
                    self.engines.split_shard("numbers", "shardId-000000000000")
                    self.note("split")
                if now_s > next_s and self._may_fail_again(now_s):
                    next_s = now_s + self.rng.uniform(1, pause_s)
                    self._quiet_since_s, self._commits_before = now_s, self._commits()
                    self._is_patient = self.rng.random() < 0.7
                    self.fault()
                if now_s > next_line_s:
                    next_line_s = now_s + 15
                    self.progress()
                self._wake(now_s)
                for name, host in list(self.hosts.items()):
                    if host.poll() is not None:
                        self.start(name)
                time.sleep(0.1)
        finally:
            self._over.set()
            producer.join()

    def _produce(self) -> None:
        while not self._over.wait(0.2):
            due = int((time.monotonic() - self._began_s) * self.rate) - self.produced
            numbers = range(self.produced, self.produced + due)
            self.engines.put_records("numbers", [(f"key-{n}", payload(n)) for n in numbers])
            self.produced += due

    def start(self, name: str) -> None:
        """Host a brings Spark with it, host b uses that."""
        properties = self.folder / f"{name}.properties"
        command = f"{sys.executable} {DRIVER} spark {self.table} 2000 4"
        keys = {
            "executableName": command, "streamName": "numbers", "applicationName": "soak", "workerId": name,
            "initialPositionInStream": "TRIM_HORIZON", "AwsCredentialsProvider": "AnonymousCredentialsProvider",
            "retrievalMode": "POLLING", "idleTimeBetweenReadsInMillis": 300, "failoverTimeMillis": 4000,
            "leaseAssignmentIntervalMillis": 2000, "parentShardPollIntervalMillis": 1000,
            "shardSyncIntervalMillis": 5000, "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
            "spark.server": "local", "spark.server.memory": "1g", "spark.server.port": self.port,
        }  # fmt: skip
        lines = [f"{key} = {value}" for key, value in keys.items()] + self.engines.properties_lines()
        properties.write_text("\n".join(lines) + "\n")
        environ = {**os.environ, "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token}
        if name != "a":
            environ["SPARK_REMOTE"] = f"sc://localhost:{self.port}"
        with (self.folder / f"{name}.log").open("a") as log:
            self.hosts[name] = subprocess.Popen(
                [sys.executable, "-m", "kcl_host", "-p", str(properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, cwd=Path(__file__).parents[2],
            )  # fmt: skip

    def fault(self) -> None:
        faults: list[Callable[[], str]] = [
            self._kill_child, self._kill_child, self._kill_child, self._stop_child, self._stop_child,
            self._kill_spark, self._kill_supervisor, self._kill_host, self._stop_host,
        ]  # fmt: skip
        try:
            self.note(self.rng.choice(faults)())
        except (psutil.NoSuchProcess, IndexError):
            self.note("nothing to kill")

    def _may_fail_again(self, now_s: float) -> bool:
        """Mostly only after the table has grown again: on a slow machine nothing would ever get so far."""
        return (
            not self._is_patient or self._commits() > self._commits_before or now_s > self._quiet_since_s + PATIENCE_S
        )

    def _commits(self) -> int:
        return sum(view.commits for view in views(self.table).values())

    def _children(self) -> list[psutil.Process]:
        living = [host for host in self.hosts.values() if host.poll() is None]
        return [p for host in living for p in psutil.Process(host.pid).children() if str(DRIVER) in p.cmdline()]

    def _kill_child(self) -> str:
        self.rng.choice(self._children()).kill()
        return "child killed"

    def _stop_child(self) -> str:
        child = self.rng.choice(self._children())
        child.suspend()
        self.stopped.append((time.monotonic() - self._began_s + self.rng.uniform(2, 20), child))
        return "child stopped"

    def _supervisor(self) -> psutil.Process:
        own = psutil.Process(self.hosts["a"].pid).children()
        return next(p for p in own if "kcl_host.spark.server" in p.cmdline())

    def _kill_spark(self) -> str:
        for process in self._supervisor().children():
            process.kill()
        return "Spark killed"

    def _kill_supervisor(self) -> str:
        self._supervisor().kill()
        return "Spark and what looks after it killed"

    def _kill_host(self) -> str:
        name = self.rng.choice(sorted(self.hosts))
        self.hosts[name].kill()
        self.hosts[name].wait()
        return f"host {name} killed"

    def _stop_host(self) -> str:
        name = self.rng.choice(sorted(self.hosts))
        self.hosts[name].terminate()
        return f"host {name} told to stop"

    def _wake(self, now_s: float) -> None:
        for until_s, child in [one for one in self.stopped if one[0] <= now_s]:
            self.stopped.remove((until_s, child))
            if child.is_running():
                child.resume()

    def note(self, what: str) -> None:
        self.faults[what] += 1
        self.say(what)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def progress(self) -> None:
        seen = views(self.table).values()
        files = [file for view in seen for files in view.tables.values() for file in files]
        rows = sum(file.rows for file in files)
        self.say(f"{self.produced:,} records, {rows:,} rows, {self._commits()} commits")

    def rows(self) -> Counter[int]:
        return Counter(n for path in committed_files(self.table)[0] for n in pq.read_table(path)["number"].to_pylist())

    def finish(self) -> int:
        """Without faults until all is committed."""
        self._wake(float("inf"))
        good = {n for n in range(self.produced) if payload(n) != b"nothing"}
        deadline_s = time.monotonic() + FINISH_LIMIT_S
        while len(rows := self.rows()) < len(good) and time.monotonic() < deadline_s:
            for name, host in list(self.hosts.items()):
                if host.poll() is not None:
                    self.start(name)
            time.sleep(2)
        for host in reversed(self.hosts.values()):
            host.terminate()
            host.wait()
        rows = self.rows()
        rejected = sum(pq.read_metadata(path).num_rows for path in committed_files(self.table, "rejected")[0])
        twice = sorted(n for n, count in rows.items() if count > 1)
        missing, strange = sorted(good - set(rows)), sorted(set(rows) - good)
        self.progress()
        self.say(", ".join(f"{count} x {what}" for what, count in sorted(self.faults.items())))
        self.say(f"{len(missing)} missing {missing[:5]}, {len(twice)} twice {twice[:5]}, {len(strange)} strange")
        self.say(f"rejected {rejected} of {self.produced - len(good)}")
        return 0 if not missing and not twice and not strange and rejected == self.produced - len(good) else 1

    def close(self) -> None:
        for _, child in self.stopped:
            if child.is_running():
                child.kill()
        for name, host in self.hosts.items():
            if host.poll() is None:
                host.kill()
            host.wait()
            trouble = [line for line in (self.folder / f"{name}.log").read_text().splitlines() if "Traceback" in line]
            self.say(f"host {name}: {len(trouble)} lines with a traceback; {json.dumps(trouble[-1:])[:300]}")


if __name__ == "__main__":
    sys.exit(main())
