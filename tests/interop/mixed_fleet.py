"""A fleet that is half Java KCL and half kcl-host: one application, one stream of numbered records, one set of tables.

`Site` is what all fleets share: the embedded Kinesis, DynamoDB Local, and HTTP/2 before Kinesis for Java. `Fleet` is
one application on it; its workers have the same properties, and children that are journaling_child.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import boto3
import msgspec

from kcl_host.local.engines import Engines
from tests.interop.clients import kclpy_folder
from tests.interop.dynamodb_local import dynamodb_local
from tests.interop.java_daemon import (
    FAST,
    Http2Front,
    JavaDaemon,
    LoggedProcess,
    Version,
    java_daemon_parts,
    write_properties,
)
from tests.interop.journal import Journal, Tenure, complaints
from tests.recorder import Recorder, differences, read_trace, write_trace

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
SINGLE_TABLE = read_trace(GOLDEN / "java-kcl-3.5.1-single-table.jsonl")
THREE_TABLES = [
    change for file in sorted(GOLDEN.glob("*.jsonl")) if "single" not in file.name for change in read_trace(file)
]
COORDINATOR_TABLE = "-CoordinatorState"
CHILD = Path(__file__).with_name("journaling_child.py")
JAVA_ERRORS = Path(__file__).with_name("java_errors.json")
"""What a fleet of Java alone logs at ERROR, as beginnings of lines, and why."""

INTERVALS = {
    **FAST,
    "failoverTimeMillis": "5000",  # nothing may come twice here, so a lease must not expire on a busy machine
    "varianceBalancingFrequency": "5",  # each 5 s: what was moved has been discovered and read before more is
    "shutdownGraceMillis": "20000",
}
TICK_S = 0.4
RECORD_BYTES = 250

Format = Literal["three tables", "single table"]


class Java(msgspec.Struct, frozen=True):
    """A version of Java KCL, and the tables that it is to meet or to make; None: whatever comes of it."""

    version: Version
    format: Format | None

    def __str__(self) -> str:
        return f"{self.version} {self.format or 'either'}"


class Site(msgspec.Struct, frozen=True):
    engines: Engines
    dynamodb_endpoint: str
    java_kinesis_endpoint: str


@contextlib.contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Skips the test by the name of what is missing."""
    parts = java_daemon_parts("3.1.3")
    with dynamodb_local() as endpoint, Engines() as engines:
        port = int(engines.kinesis_endpoint.rpartition(":")[2])
        with Http2Front(parts, port, folder) as front:
            yield Site(engines, endpoint, front.url)


class Numbers(threading.Thread):
    """Puts numbered records, each tick one into each of `ranges` equal parts of the hash keys, until stopped."""

    def __init__(self, engines: Engines, stream: str, ranges: int) -> None:
        super().__init__(name=f"numbers-{stream}")
        self._engines, self._stream = engines, stream
        self._keys = [_key_of_range(number, ranges) for number in range(ranges)]
        self._stopping = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            data = str(number).encode().ljust(RECORD_BYTES)
            self._engines.put_records(self._stream, [(key, data) for key in self._keys])
            if self._stopping.wait(TICK_S):
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def _key_of_range(number: int, ranges: int) -> str:
    keys = (f"key {n}" for n in itertools.count())
    return next(k for k in keys if int(hashlib.md5(k.encode()).hexdigest(), 16) * ranges >> 128 == number)


class Cancelled(Exception):
    """The run of the tests is over."""


class Fleet:
    """One application called `name`; a context that ends every worker it has started."""

    def __init__(
        self, site: Site, folder: Path, name: str, java_kcl: Java, *, shards: int, cancelled: threading.Event
    ) -> None:
        """`cancelled` ends every wait by Cancelled."""
        folder.mkdir()
        self.site, self.folder, self.name, self.java_kcl = site, folder, name, java_kcl
        self.workers: dict[str, LoggedProcess] = {}
        self.killed: dict[str, float] = {}
        """Workers that were killed, and when."""
        self._ended: set[str] = set()
        """Workers that were killed or asked to stop; all others have to be running."""
        self.journal = Journal(folder / "journal")
        self._cancelled = cancelled
        self._began_s = time.monotonic()
        site.engines.create_stream(name, shards)
        self.numbers = Numbers(site.engines, name, 8 * shards)  # a shard may be split three times
        self._dynamodb = _dynamodb(site)
        self.recorder = Recorder(_dynamodb(site), name, poll_s=0.25)

    def __enter__(self) -> Fleet:
        self.recorder.__enter__()
        self.numbers.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is not None:
            self.note(f"{type(error).__name__}: {error}")
        for worker in self.workers.values():
            worker.kill()
        self.numbers.stop()
        self.recorder.__exit__()
        write_trace(self.folder / "tables.jsonl", self.recorder.changes)
        self.site.engines.kinesis.call("DeleteStream", StreamName=self.name)

    def note(self, what: str) -> None:
        """One line in the story's log, seconds since its start before it."""
        with (self.folder / "story.log").open("a") as log:
            log.write(f"{time.monotonic() - self._began_s:7.2f} {what}\n")

    # Workers

    def java(self, name: str, **keys: str) -> LoggedProcess:
        parts = java_daemon_parts(self.java_kcl.version)
        properties = self._properties(name, self.site.java_kinesis_endpoint) | keys
        return self._start(name, JavaDaemon(parts, self.folder, name, properties, self._environment(name)))

    def kcl_host(self, name: str, **keys: str) -> LoggedProcess:
        properties = self._properties(name, self.site.engines.kinesis_endpoint) | keys
        file = write_properties(self.folder / f"{name}.properties", properties)
        command = [sys.executable, "-m", "kcl_host", "-p", str(file), "--log-format", "json"]
        return self._start(name, LoggedProcess(command, file.with_suffix(".log"), self._environment(name)))

    def start(self, name: str, **keys: str) -> LoggedProcess:
        """A worker of the kind that its name begins with; `keys` go into its file."""
        return self.java(name, **keys) if name.startswith("java") else self.kcl_host(name, **keys)

    def stop(self, name: str) -> None:
        """TERM, and its end."""
        self.note(f"TERM {name}")
        self._ended.add(name)
        code = self.workers[name].stop()
        self.note(f"{name} ended with {code}")
        assert code == (143 if isinstance(self.workers[name], JavaDaemon) else 0), f"{name} ended with {code}"

    def kill(self, name: str) -> None:
        self.note(f"kill -9 {name}")
        self._ended.add(name)
        self.workers[name].kill()
        self.killed[name] = time.monotonic()

    def _start(self, name: str, worker: LoggedProcess) -> LoggedProcess:
        assert name not in self.workers, f"{name} has been there before"
        self.workers[name] = worker
        worker.start()
        self.note(f"{name} started")
        return worker

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **self.site.engines.environment(),
            "PYTHONPATH": os.pathsep.join((str(kclpy_folder()), os.environ.get("PYTHONPATH", ""))),
            "INTEROP_WORKER": name,
            "INTEROP_JOURNAL": str(self.journal.folder),
        }

    def _properties(self, name: str, kinesis_endpoint: str) -> dict[str, str]:
        return {
            "executableName": f"{sys.executable} {CHILD}",
            "applicationName": self.name,
            "streamName": self.name,
            "workerId": name,
            "AWSCredentialsProvider": "EnvironmentVariableCredentialsProvider",
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            "metricsLevel": "NONE",
            "disableWorkerMetrics": "true",  # balanced by throughput, and Java asks no metadata service of EC2
            "regionName": "us-east-1",
            "kinesisEndpoint": kinesis_endpoint,
            "dynamoDBEndpoint": self.site.dynamodb_endpoint,
            **INTERVALS,
        }

    # Tables

    def rows(self) -> dict[str, dict[str, Any]]:
        """Every lease by its key, attributes without their types."""
        items = [i for i in self._items("") if i.get("entityType", {"S": "LEASE"})["S"] == "LEASE"]
        return {i["leaseKey"]["S"]: {name: next(iter(value.values())) for name, value in i.items()} for i in items}

    def owners(self) -> dict[str, str | None]:
        """Who may deliver from each shard that has not ended."""
        rows = {key: row for key, row in self.rows().items() if row["checkpoint"] != "SHARD_END"}
        return {key: row.get("checkpointOwner", row.get("leaseOwner")) for key, row in rows.items()}

    def shares(self) -> list[int]:
        """How many shards each worker has, smallest first."""
        return sorted(Counter(self.owners().values()).values())

    def locks(self) -> dict[Format, str]:
        """Whose name is on the leader lock, by where it is."""
        found: dict[Format, str] = {}
        for format, table, key in (("three tables", "-CoordinatorState", "key"), ("single table", "", "leaseKey")):
            for item in self._items(table):
                if item[key]["S"] == "Leader":
                    found[format] = item["ownerName"]["S"]  # type: ignore[index]
        return found

    def leader(self) -> str | None:
        return next(iter(self.locks().values()), None)

    def formats(self) -> set[Format]:
        """In which a leader lock has been seen at any time."""
        leaders = {change.table for change in self.recorder.changes if change.key == "Leader"}
        return {"single table" if table == self.name else "three tables" for table in leaders}

    def status(self, name: str) -> dict[str, Any]:
        """What `kcl-host status` says by the file of a kcl-host, after two looks."""
        command = [sys.executable, "-m", "kcl_host", "status", "-p", str(self.folder / f"{name}.properties")]
        command += ["--json", "--lag", "--observe", "3"]
        done = subprocess.run(command, env={**os.environ, **self._environment(name)}, capture_output=True, timeout=60)
        assert done.returncode in (0, 1), done.stderr.decode()
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def _items(self, suffix: str) -> list[dict[str, Any]]:
        try:
            items: list[dict[str, Any]] = self._dynamodb.scan(TableName=self.name + suffix, ConsistentRead=True)[
                "Items"
            ]
        except self._dynamodb.exceptions.ResourceNotFoundException:
            return []
        return items

    # Shards

    def open_shards(self) -> list[str]:
        """In the order of their hash keys."""
        return self.site.engines.kinesis.open_shard_ids(self.name)

    def parents(self) -> dict[str, list[str]]:
        shards = self.site.engines.kinesis.call("ListShards", StreamName=self.name)["Shards"]
        return {
            s["ShardId"]: [s[key] for key in ("ParentShardId", "AdjacentParentShardId") if key in s] for s in shards
        }

    def stored(self) -> dict[str, list[int]]:
        stored = self.site.engines.kinesis.stored_records(self.name)
        return {shard: [int(record.sequence_number) for record in records] for shard, records in stored.items()}

    def split(self, shard: str) -> None:
        self.note(f"split {shard}")
        self.site.engines.split_shard(self.name, shard)

    def merge(self, shard: str, adjacent: str) -> None:
        self.note(f"merge {shard} and {adjacent}")
        self.site.engines.merge_shards(self.name, shard, adjacent)

    # Conditions

    def wait_until(self, what: str, condition: Callable[[], object], limit_s: float) -> None:
        """AssertionError when it does not become so, or a worker that was neither stopped nor killed has ended."""
        began_s = time.monotonic()
        while not condition():
            if self._cancelled.is_set():
                raise Cancelled
            for name in self.workers.keys() - self._ended:
                code = self.workers[name].exit_code
                assert code is None, f"{name} ended with {code} before {what}:\n{self.workers[name].log_end()}"
            if time.monotonic() - began_s > limit_s:
                rows = f"leader {self.locks()}, owners {self.owners()}"
                raise AssertionError(f"not within {limit_s:g} s: {what}; {rows}; logs in {self.folder}")
            time.sleep(0.3)
        self.note(f"{what} ({time.monotonic() - began_s:.1f} s)")

    def wait_delivering(self, *names: str, limit_s: float) -> None:
        """Until each open shard is owned by one of these, each of these owns some, and gets their records."""
        since_s = time.monotonic()

        def settled() -> bool:
            owners = self.owners()
            delivering = self.journal.delivering(since_s)
            return (
                owners.keys() == set(self.open_shards())
                and set(owners.values()) == set(names)
                and all(delivering.get(shard) == owner for shard, owner in owners.items())
            )

        self.wait_until(f"{', '.join(names)} get the records of all open shards", settled, limit_s)

    def wait_leader(self, *names: str, limit_s: float) -> None:
        self.wait_until(f"{' or '.join(names)} leads", lambda: self.leader() in names, limit_s)

    def handovers(self, since_s: float) -> set[tuple[str, str]]:
        """From whom to whom shards went since then (monotonic) after the old child was asked for a checkpoint."""
        found = set()
        holder: dict[str, Tenure] = {}
        for tenure in self.journal.tenures():
            before = holder.get(tenure.shard)
            if before and tenure.started_s >= since_s and any(e.event == "shutdown requested" for e in before.events):
                found.add((before.worker, tenure.worker))
            holder[tenure.shard] = tenure
        return found

    def finish(self, limit_s: float = 60.0) -> None:
        """Ends the records, waits for the last of them, stops every worker, and asserts what always has to hold."""
        self.numbers.stop()
        stored = self.stored()
        self.wait_until("every number delivered", lambda: not self.journal.missing(stored), limit_s)
        time.sleep(1.0)  # what came twice may come late
        for name in [name for name in self.workers if name not in self._ended]:
            self.stop(name)
        tenures = self.journal.tenures()
        assert complaints(tenures, stored, self.parents(), self.killed) == []
        assert self.two_locks() == []
        assert self.strange_rows() == []
        assert self.errors() == {}

    def two_locks(self) -> list[float]:
        """When locks stood in both formats at once, seconds since the start of the story."""
        places: set[str] = set()
        found = []
        for change in self.recorder.changes:
            if change.key == "Leader":
                (places.discard if change.deleted else places.add)(change.table)
                found += [change.t] if len(places) > 1 else []
        return found

    def strange_rows(self) -> list[str]:
        """What no fleet of Java alone has written: attributes, types, writes (tests/data/golden)."""
        golden = THREE_TABLES if COORDINATOR_TABLE in self._tables_seen() else SINGLE_TABLE
        found = differences(self.recorder.changes, golden)
        # A leader deletes this item, and makes it anew, within one look of the recorder.
        return [difference for difference in found if "TableMigration3.5 changed" not in difference]

    def _tables_seen(self) -> set[str]:
        return {change.table.removeprefix(self.name) for change in self.recorder.changes}

    def errors(self) -> dict[str, list[str]]:
        """By worker what it should not have logged."""
        known = tuple(entry["begins"] for entry in json.loads(JAVA_ERRORS.read_text()))
        found = {}
        for name, worker in self.workers.items():
            if isinstance(worker, JavaDaemon):
                lines = {line for line in worker.complaints("ERROR") if not line.startswith(known)}
            else:
                text = worker.log.read_text().splitlines()
                lines = {line for line in text if '"level":"ERROR"' in line or line.startswith("Traceback")}
            if lines:
                found[name] = sorted(lines)
        return found


def _dynamodb(site: Site) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=site.dynamodb_endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
