"""Several real hosts on one application, a steady producer, and what their children noted, with the time.

Every record is accounted for: `check_all_delivered` compares what the stream stores with what children were given.
Times are monotonic seconds, which all processes of a machine share; those of the logs are converted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import boto3
import msgspec
import psutil

from kcl_host.local.engines import Engines
from tests.integration.delivery_notes import Note, Notes
from tests.recorder import Recorder

CHILD: Final = f"{sys.executable} {Path(__file__).parent / 'children' / 'timed.py'}"
APPLICATION, STREAM = "fleet", "numbers"
COORDINATOR_TABLE: Final = f"{APPLICATION}-CoordinatorState"
FAST: Final[dict[str, Any]] = {
    "failoverTimeMillis": 2000,
    "leaseAssignmentIntervalMillis": 1000,
    "varianceBalancingFrequency": 1,
}
"""For tests that cannot wait as long as the defaults would have them."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    worker: str
    action: str
    facts: dict[str, Any]

    @property
    def shard(self) -> str | None:
        return self.facts.get("lease_key") or self.facts.get("shard")


class Steady(threading.Thread):
    """Puts one record to each shard at every tick, until stopped."""

    def __init__(self, engines: Engines, shards: int, tick_s: float) -> None:
        super().__init__(name="steady-producer")
        self._engines = engines
        self._keys = [_key_of_shard(shard, shards) for shard in range(shards)]
        self._tick_s = tick_s
        self._stopping = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            self._engines.put_records(STREAM, [(key, str(number).encode()) for key in self._keys])
            if self._stopping.wait(self._tick_s):
                return

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def _key_of_shard(shard: int, shards: int) -> str:
    """A partition key whose hash lies in this one of `shards` equal ranges."""
    keys = (f"key {n}" for n in itertools.count())
    return next(k for k in keys if int(hashlib.md5(k.encode()).hexdigest(), 16) * shards >> 128 == shard)


class Host:
    """One host process; `name` is its worker id."""

    def __init__(self, name: str, properties: Path, log: Path, env: dict[str, str]) -> None:
        self.name = name
        self.log_file = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kcl_host", "-p", str(properties), "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=env,
            )

    def __repr__(self) -> str:
        return f"<Host {self.name} pid={self.process.pid}>"

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> float:
        """Sends a signal; when."""
        at_s = time.monotonic()
        self.process.send_signal(number)
        return at_s

    def kill(self) -> float:
        """kill -9; when."""
        at_s = self.send(signal.SIGKILL)
        self.process.wait()
        return at_s

    def end(self) -> None:
        """Whatever state it is in, neither it nor its children are there afterwards."""
        if self.is_running:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.kill()
            psutil.wait_procs(children, timeout=2)
            for child in children:
                if child.is_running():
                    child.kill()

    def log(self) -> list[LogLine]:
        """Whatever it has logged as an action so far."""
        text = self.log_file.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]
        to_monotonic_s = time.monotonic() - time.time()
        return [
            LogLine(
                at_s=datetime.fromisoformat(line["time"]).timestamp() + to_monotonic_s,
                worker=self.name,
                action=line["action"],
                facts=line,
            )
            for line in lines
            if "action" in line
        ]


class Fleet:
    """A context that ends every host it has started. `keys` go into each properties file, over the defaults."""

    def __init__(
        self,
        engines: Engines,
        folder: Path,
        *,
        shards: int,
        dynamodb_endpoint: str | None = None,
        tick_s: float = 0.1,
        checkpoint_each: int = 1,
        **keys: object,
    ) -> None:
        """`checkpoint_each`: after so many batches children checkpoint, and when they are asked to shut down."""
        self.engines = engines
        self.folder = folder
        self.hosts: list[Host] = []
        self.hold = folder / "hold"
        self.hold.mkdir()
        self.settings: dict[str, Any] = {
            "executableName": CHILD,
            "streamName": STREAM,
            "applicationName": APPLICATION,
            "initialPositionInStream": "TRIM_HORIZON",
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "retrievalMode": "POLLING",
            "idleTimeBetweenReadsInMillis": 250,
            # All hosts of one machine show the same CPU: the default strategy would see nothing to even out.
            "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
            "regionName": "us-east-1",
            "kinesisEndpoint": engines.kinesis_endpoint,
            "dynamoDBEndpoint": dynamodb_endpoint or engines.dynamodb_endpoint,
            **keys,
        }
        self.notes = Notes(folder / "notes")
        self._dynamodb = boto3.client(
            "dynamodb",
            endpoint_url=str(self.settings["dynamoDBEndpoint"]),
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        engines.create_stream(STREAM, shards)
        self.shards = [f"shardId-{shard:012d}" for shard in range(shards)]
        self._tick_s = tick_s
        self._checkpoint_each = checkpoint_each

    def __enter__(self) -> Fleet:
        self.produce()
        return self

    def produce(self) -> None:
        self.producer = Steady(self.engines, len(self.shards), self._tick_s)
        self.producer.start()

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.end()
        self.producer.stop()
        self._dynamodb.close()

    # Hosts

    def start(self, *names: str) -> list[Host]:
        """Starts hosts at once; a name may be that of an earlier host."""
        started = []
        for name in names:
            properties = self.folder / f"{name}.properties"
            settings = {**self.settings, "workerId": name}
            properties.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
            env = {
                **os.environ,
                **self.engines.environment(),
                "FLEET_NOTES": str(self.notes.file),
                "FLEET_HOLD": str(self.hold),
                "FLEET_CHECKPOINT_EACH": str(self._checkpoint_each),
            }
            started.append(Host(name, properties, self.folder / f"{name}.log", env))
            self.hosts.append(started[-1])
        return started

    def start_evenly(self, *names: str) -> list[Host]:
        """Hosts that have equal shares at once, given to them by one that started the application and left it."""
        (first,) = self.start("the-first")
        self.wait_until(lambda: set(self.owners().values()) == {"the-first"}, 30)
        hosts = self.start(*names)
        self.wait_until(lambda: set(names) <= self.reporting(), 30)
        first.send(signal.SIGTERM)
        self.wait_until(lambda: self.is_even(*names) and self.leader() in names, 60)
        assert first.process.wait(30) == 0
        return hosts

    def host(self, name: str | None) -> Host:
        """The latest of this name."""
        return next(host for host in reversed(self.hosts) if host.name == name)

    def log(self, *actions: str, since_s: float = 0.0) -> list[LogLine]:
        """Lines of all hosts in the order of time; of these actions, or all."""
        files = {host.log_file: host for host in self.hosts}
        lines = [line for host in files.values() for line in host.log()]
        wanted = [line for line in lines if line.at_s >= since_s and (not actions or line.action in actions)]
        return sorted(wanted, key=lambda line: line.at_s)

    # Tables

    def recorder(self) -> Recorder:
        """Of every change in the tables of the application, while it is entered."""
        return Recorder(self._dynamodb, APPLICATION)

    def rows(self) -> dict[str, dict[str, str]]:
        """Every lease, attributes as text."""
        items = [i for i in self._items(APPLICATION) if "leaseCounter" in i]
        return {i["leaseKey"]["S"]: {name: next(iter(value.values())) for name, value in i.items()} for i in items}

    def owners(self) -> dict[str, str | None]:
        """Who may deliver from each shard now."""
        return {key: row.get("checkpointOwner", row.get("leaseOwner")) for key, row in self.rows().items()}

    def leader(self) -> str | None:
        """Of the lease table, if there is one there."""
        locks = self.metadata("Leader", in_lease_table=True) or self.metadata("Leader", in_lease_table=False)
        return locks.get("ownerName")

    def metadata(self, key: str, *, in_lease_table: bool) -> dict[str, str]:
        """An item of the coordinator state, lists and maps left as they are; empty when there is none."""
        table, name = (APPLICATION, "leaseKey") if in_lease_table else (COORDINATOR_TABLE, "key")
        items = [item for item in self._items(table) if item[name]["S"] == key]
        return {name: next(iter(value.values())) for item in items for name, value in item.items()}

    def change(self, key: str, *, in_lease_table: bool, **values: str | int) -> None:
        """As an operator would: changes attributes of an item that is there."""
        table, name = (APPLICATION, "leaseKey") if in_lease_table else (COORDINATOR_TABLE, "key")
        self._dynamodb.update_item(
            TableName=table,
            Key={name: {"S": key}},
            UpdateExpression="SET " + ", ".join(f"{attribute} = :{attribute}" for attribute in values),
            ConditionExpression="attribute_exists(#pk)",
            ExpressionAttributeNames={"#pk": name},
            ExpressionAttributeValues={
                f":{attribute}": {"S": value} if isinstance(value, str) else {"N": str(value)}
                for attribute, value in values.items()
            },
        )

    def put_version(self, client_version: str) -> None:
        """Migration3.0 as Java's migration tool leaves it."""
        item = {"key": "Migration3.0", "cv": client_version, "mb": "KclMigrationTool"}
        self._dynamodb.put_item(
            TableName=COORDINATOR_TABLE, Item={name: {"S": value} for name, value in item.items()} | {"mts": {"N": "1"}}
        )

    def last_reports(self) -> dict[str, str]:
        """By worker the `lut` of its row in the table of its own."""
        return {item["wid"]["S"]: item["lut"]["N"] for item in self._items(f"{APPLICATION}-WorkerMetricStats")}

    def reporting(self) -> set[str]:
        in_lease_table = {i["leaseKey"]["S"] for i in self._items(APPLICATION) if "lut" in i}
        return in_lease_table | {item["wid"]["S"] for item in self._items(f"{APPLICATION}-WorkerMetricStats")}

    def coordinator_keys(self) -> set[str]:
        return {item["key"]["S"] for item in self._items(COORDINATOR_TABLE)}

    def tables(self) -> set[str]:
        return {name for name in self._dynamodb.list_tables()["TableNames"] if name.startswith(APPLICATION)}

    def is_even(self, *names: str) -> bool:
        """True when these workers hold all leases, no two differ by more than one, and none is on its way."""
        rows = self.rows()
        counts = Counter(row.get("leaseOwner") for row in rows.values())
        return (
            len(rows) == len(self.shards)
            and counts.keys() == set(names)
            and max(counts.values()) - min(counts.values()) <= 1
            and not any("checkpointOwner" in row for row in rows.values())
        )

    def _items(self, table: str) -> list[dict[str, Any]]:
        try:
            items: list[dict[str, Any]] = self._dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
        except self._dynamodb.exceptions.ResourceNotFoundException:
            return []
        return items

    # Conditions

    def wait_elsewhere(
        self, shards: Iterable[str], old: Collection[str], since_s: float, limit_s: float
    ) -> dict[str, Note]:
        """Until the records of each shard go to anybody but the old owners; the first of these batches."""
        found: dict[str, Note] = {}

        def complete() -> bool:
            found.update(self.notes.elsewhere(old, since_s))
            return found.keys() >= set(shards)

        self.wait_until(complete, limit_s, every_s=0.05)
        return {shard: found[shard] for shard in shards}

    def wait_until(self, condition: Callable[[], object], limit_s: float, every_s: float = 0.2) -> None:
        if not self.becomes(condition, limit_s, every_s):
            tails = "\n".join(f"{host}\n{host.log_file.read_text()[-2000:]}" for host in self.hosts)
            raise AssertionError(f"not within {limit_s} s; rows {self.rows()}\n{tails}")

    def becomes(self, condition: Callable[[], object], limit_s: float, every_s: float = 0.2) -> bool:
        """Asks seldom by default: each look at the embedded tables keeps the hosts waiting."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(every_s)
        return True

    def check_all_delivered(self, limit_s: float = 60) -> None:
        """Ends the producer; every record arrives, in order, and the checkpoints end up at the last ones."""
        self.producer.stop()
        stored = {
            shard: [int(record.sequence_number) for record in records]
            for shard, records in self.engines.kinesis.stored_records(STREAM).items()
        }
        first_time: dict[str, dict[int, None]] = {shard: {} for shard in self.shards}

        def everything_has_come() -> bool:
            for note in self.notes.all("records"):
                first_time[note.shard].update(dict.fromkeys(int(number or "") for number in note.numbers))
            return all(len(first_time[shard]) >= len(numbers) for shard, numbers in stored.items())

        self.becomes(everything_has_come, limit_s)
        for shard, numbers in stored.items():
            delivered = list(first_time[shard])
            assert delivered == sorted(delivered), f"{shard}: a record was first delivered after a later one"
            assert delivered == numbers, f"{shard}: lost {set(numbers) - set(delivered)}"
        if self._checkpoint_each == 1:
            ends = {shard: str(numbers[-1]) for shard, numbers in stored.items()}
            self.wait_until(lambda: {key: row["checkpoint"] for key, row in self.rows().items()} == ends, limit_s)
