"""What regression tests stage.

Whole workers over the fakes, which is the fleet of the simulation, by hand instead of by seed; a lock that shows who
waits; a lease table whose answers are scripted; settings from a file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import botocore.session
import msgspec

from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.config.properties import Loaded, load_settings
from kcl_host.config.settings import TableSettings
from kcl_host.model.lease import Lease
from tests.fakes.fault import Fault, FaultPlan
from tests.fakes.wire import Reply, Wire
from tests.simulation.child import Habits
from tests.simulation.fleet import Fleet, Worker
from tests.simulation.run import Setup, settings_of


class Write(msgspec.Struct, frozen=True):
    """One write to the lease table that took effect."""

    at_s: float
    worker: str | None
    operation: str
    before: Lease | None
    after: Lease | None


class Scene:
    """A fleet without anybody in it at first. What it does is noted: `writes`, and `requests` as (when, who, what)."""

    def __init__(self, *, shards: int, failover_s: float = 10.0, put_every_s: float = 2.0, **sections: Any) -> None:
        settings = msgspec.structs.replace(settings_of(Setup(seed=1, failover_s=failover_s)), **sections)
        self.fleet = Fleet(1, settings, workers=0, shards=shards, put_every_s=put_every_s)
        self.writes: list[Write] = []
        self.requests: list[tuple[float, str, str]] = []
        self.befall: Callable[[str, str], Fault | None] = lambda worker_id, operation: None
        """What happens to a request of a worker; it may raise what no fault is."""
        watch = self.fleet.lease_table.watch

        def wrote(operation: str, before: Lease | None, after: Lease | None) -> None:
            self.writes.append(Write(self.now_s, self._who(), operation, before, after))
            watch(operation, before, after)

        self.fleet.lease_table.watch = wrote
        self.fleet.lease_table.lag = lambda read, key: 0.0  # The index must see rows that a test puts there.
        for service in (
            self.fleet.lease_table,
            self.fleet.metadata.coordinator,
            self.fleet.metadata.metrics,
            self.fleet.metadata.migration,
            self.fleet.stream,
        ):
            service.faults = self._noted(service.faults)

    def _noted(self, plan: FaultPlan) -> FaultPlan:
        def asked(operation: str, key: str) -> Fault | None:
            worker_id = self._who()
            if worker_id is not None:
                self.requests.append((self.now_s, worker_id, operation))
                if (fault := self.befall(worker_id, operation)) is not None:
                    return fault
            return plan(operation, key)

        return asked

    @property
    def now_s(self) -> float:
        return self.fleet.hub.now_s

    @property
    def rows(self) -> dict[str, Lease]:
        return self.fleet.lease_table.rows

    def _who(self) -> str | None:
        worker = self.fleet.current_worker
        return None if worker is None else worker.worker_id

    def start(self, worker_id: str) -> Worker:
        """Slots are those of the order in which ids appear first; nobody is started again by itself."""
        slots = [worker.worker_id for worker in self.fleet.everybody]
        slot = slots.index(worker_id) if worker_id in slots else len(self.fleet.everybody)
        self.fleet.stopped_slots.add(slot)
        return self.fleet.start(slot, worker_id=worker_id)

    def run(self, seconds: float) -> None:
        self.fleet.run(seconds)

    def until(self, condition: Callable[[], object], limit_s: float) -> float:
        """Seconds until the condition holds."""
        began_s = self.now_s
        while not condition():
            assert self.now_s - began_s < limit_s, f"not within {limit_s} s: {self.rows}"
            self.fleet.run(0.1)
        return self.now_s - began_s

    def slow_down(self, worker: Worker, action_s: float) -> None:
        """Every action of this worker's children takes so long from now on."""
        self.fleet.habits[f"slot {worker.slot}"] = Habits(processing_s=action_s)

    def owned_by(self, worker_id: str) -> list[str]:
        """Keys of leases that name this worker alone, and of whose shards it has a child."""
        served = {c.shard_id for w in self.fleet.live if w.worker_id == worker_id for c in w.children if c.alive}
        named = [k for k, row in self.rows.items() if (row.lease_owner, row.checkpoint_owner) == (worker_id, None)]
        return [key for key in named if key in served]

    def settled(self, *worker_ids: str) -> bool:
        """Every shard is served by one of these, and each of them serves one at least."""
        owned = [self.owned_by(worker_id) for worker_id in worker_ids]
        return all(owned) and sum(map(len, owned)) == len(self.rows)


class NoticedLock:
    """A lock that tells when somebody must wait for it."""

    def __init__(self, somebody_waits: threading.Event) -> None:
        self._lock = threading.Lock()
        self._somebody_waits = somebody_waits

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self._somebody_waits.set()
        return blocking and self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def load(**given: str) -> Loaded:
    required = {
        "executableName": "app",
        "streamName": "words",
        "applicationName": "counter",
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        "retrievalMode": "POLLING",
    }
    return load_settings(
        None,
        environ={},
        overrides=required | given,
        strict=False,
        random_suffix="r4nd",
        hostname="host",
        known_regions=("us-east-1",),
    )


def scripted(*replies: Reply) -> tuple[DynamoDbLeaseTable, Wire]:
    """A lease table whose answers are these."""
    client = botocore.session.Session().create_client(
        "dynamodb", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )
    return DynamoDbLeaseTable(client, TableSettings(name="app")), Wire(client, *replies)
