"""The lease table in memory: DynamoDB's semantics on `Lease` values, deterministic, one thread."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from kcl_host.errors import TableMissing
from kcl_host.model.lease import Lease, LeaseListing, TableState, WriteOutcome
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import HashKeyRange, StreamIdentifier
from kcl_host.model.worker import WorkerListing
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import FaultPlan, Requests
from tests.fakes.versions import Versions
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable

ROW_BYTES = 400
"""Of a lease in DynamoDB, names included, for what reads cost."""
Lag = Callable[[Literal["index", "scan", "batch"], str], float]
"""(read, lease key) -> how old the row is, in seconds, that such a read sees."""
Watcher = Callable[[str, Lease | None, Lease | None], None]
"""(operation, row before, row after), called for every write that took effect."""


def no_lag(read: str, lease_key: str) -> float:
    return 0.0


class InMemoryLeaseTable:
    """Satisfies ports.LeaseTable. Exists with an ACTIVE index unless `exists` is False.

    For tests: `faults`, `lag`, `watch`, `requests`, `rows`, and the attributes below.
    """

    def __init__(self, clock: FakeClock, *, exists: bool = True, creation_s: float = 0.0) -> None:
        self._requests = Requests("lease table", clock)
        self._clock = clock
        self._rows: Versions[Lease] = Versions(clock)
        self._creation_s = creation_s
        self._active_at_s: float | None = clock.monotonic() if exists else None
        self.index_active_at_s: float | None = self._active_at_s
        """Monotonic time from which the index is ACTIVE; None: there is none."""
        self.lag: Lag = no_lag
        self.watch: Watcher = lambda operation, before, after: None
        self.undecodable: tuple[str, ...] = ()
        """Keys of broken rows, which a scan reports."""
        self.other_entities: frozenset[str] = frozenset()
        """Values of entityType on rows that are no leases."""
        self.metrics: InMemoryWorkerMetricsTable | None = None
        self.coordinator: InMemoryCoordinatorTable | None = None
        """What is in the lease table besides leases, in the single-table format."""
        self.leases_have_entity_type = True
        """False: the rows are those of a version before 3.5, which writes no entityType."""
        self.has_point_in_time_recovery = False
        self.read_units: defaultdict[str, float] = defaultdict(float)
        """Read units by operation, as DynamoDB counts them."""

    @property
    def faults(self) -> FaultPlan:
        return self._requests.plan

    @faults.setter
    def faults(self, plan: FaultPlan) -> None:
        self._requests.plan = plan

    @property
    def requests(self) -> dict[str, int]:
        """How often each operation was asked for."""
        return self._requests.counts

    @property
    def rows(self) -> dict[str, Lease]:
        """Every row as it stands, by key; no request."""
        return {key: row for key in self._rows.keys() if (row := self._rows.get(key)) is not None}

    def put(self, lease: Lease) -> None:
        """Sets a row, as nobody's request."""
        self._rows.set(lease.lease_key, lease)

    # The table

    def describe(self) -> TableState | None:
        with self._requests.request("describe"):
            if self._active_at_s is None:
                return None
            return TableState(status=self._state_at(self._active_at_s), index_status=self._index_status())

    def create_table(self) -> bool:
        with self._requests.request("create_table"):
            if self._active_at_s is not None:
                return False
            self._active_at_s = self.index_active_at_s = self._clock.monotonic() + self._creation_s
            return True

    def create_index(self) -> None:
        with self._requests.request("create_index"):
            self._require_table()
            if self.index_active_at_s is None:
                self.index_active_at_s = self._clock.monotonic() + self._creation_s

    def enable_point_in_time_recovery(self) -> None:
        with self._requests.request("enable_point_in_time_recovery"):
            self._require_table()
            self.has_point_in_time_recovery = True

    # Reads

    def list_leases(self, stream: StreamIdentifier | None = None) -> LeaseListing:
        with self._requests.request("list_leases"):
            self._require_table()
            seen = [self._rows.get(key, self.lag("scan", key)) for key in self._rows.keys()]
            self.read_units["list_leases"] += 0.5 * max(1, math.ceil(len(seen) * ROW_BYTES / 4096))
            leases = [row for row in seen if row and (stream is None or row.stream_name == str(stream))]
            lease_type = {"LEASE"} if leases and self.leases_have_entity_type else set()
            workers = WorkerListing() if self.metrics is None else self.metrics.seen()
            others = self.other_entities | ({"WORKER_METRIC_STATS"} if workers.workers else set())
            if self.coordinator is not None and self.coordinator.lock is not None:
                others |= {"LEADER"}
            return LeaseListing(
                leases=tuple(leases),
                undecodable=self.undecodable,
                entity_types=others | lease_type,
                workers=workers,
            )

    def is_empty(self) -> bool:
        with self._requests.request("is_empty"):
            self._require_table()
            return not self.undecodable and not any(
                self._rows.get(key, self.lag("scan", key)) for key in self._rows.keys()
            )

    def get(self, lease_key: str) -> Lease | None:
        with self._requests.request("get", lease_key):
            self._require_table()
            self.read_units["get"] += 1.0
            return self._rows.get(lease_key)

    def get_all(self, lease_keys: Iterable[str], *, consistent: bool) -> list[Lease]:
        with self._requests.request("get_all"):
            self._require_table()
            keys = sorted(set(lease_keys))
            self.read_units["get_all"] += len(keys) * (1.0 if consistent else 0.5)
            seen = [self._rows.get(key, 0.0 if consistent else self.lag("batch", key)) for key in keys]
            return [row for row in seen if row is not None]

    def lease_keys_of(self, worker_id: str) -> list[str]:
        with self._requests.request("lease_keys_of", worker_id):
            self._require_table()
            if self._index_status() != "ACTIVE":
                raise TableMissing("the index is not there or not ready")
            self.read_units["lease_keys_of"] += 0.5
            seen = [self._rows.get(key, self.lag("index", key)) for key in self._rows.keys()]
            return [row.lease_key for row in seen if row and row.lease_owner == worker_id]

    # Writes

    def create(self, lease: Lease) -> bool:
        with self._requests.request("create", lease.lease_key):
            self._require_table()
            if self._rows.get(lease.lease_key) is not None or lease.lease_key in self.undecodable:
                return False
            self._write("create", lease.lease_key, lease)
            return True

    def renew(self, lease: Lease, throughput_kbps: float | None) -> WriteOutcome:
        with self._requests.request("renew", lease.lease_key):
            row = self._row(lease)
            if (
                row is None
                or row.lease_counter != lease.lease_counter
                or (row.checkpoint_owner is not None and lease.checkpoint_owner is None)
            ):
                return WriteOutcome(applied=False, row=row)
            changes: dict[str, Any] = {"lease_counter": lease.lease_counter + 1}
            if throughput_kbps is not None:
                changes["throughput_kbps"] = round(throughput_kbps, 6)
            self._change("renew", row, **changes)
            return WriteOutcome(applied=True)

    def assign(self, lease: Lease, to: str) -> WriteOutcome:
        with self._requests.request("assign", lease.lease_key):
            row = self._row(lease)
            if row is None or not _same_owners(row, lease):
                return WriteOutcome(applied=False, row=row)
            switched = lease.lease_owner not in (None, to) or lease.checkpoint_owner == to
            after = self._change(
                "assign",
                row,
                lease_owner=to,
                checkpoint_owner=None,
                lease_counter=row.lease_counter + 1,
                owner_switches_since_checkpoint=row.owner_switches_since_checkpoint + switched,
            )
            return WriteOutcome(applied=True, row=after)

    def initiate_handoff(self, lease: Lease, to: str) -> WriteOutcome:
        assert lease.lease_owner, "a lease without an owner is assigned, not handed over"
        with self._requests.request("initiate_handoff", lease.lease_key):
            row = self._row(lease)
            if row is None or row.lease_owner != lease.lease_owner or row.checkpoint_owner is not None:
                return WriteOutcome(applied=False, row=row)
            after = self._change("initiate_handoff", row, lease_owner=to, checkpoint_owner=lease.lease_owner)
            return WriteOutcome(applied=True, row=after)

    def evict(self, lease: Lease) -> WriteOutcome:
        with self._requests.request("evict", lease.lease_key):
            row = self._row(lease)
            if row is None or not _same_owners(row, lease):
                return WriteOutcome(applied=False, row=row)
            owner = row.lease_owner if lease.is_handover_pending else None
            self._change("evict", row, lease_owner=owner, checkpoint_owner=None, lease_counter=row.lease_counter + 1)
            return WriteOutcome(applied=True)

    def checkpoint(self, lease: Lease, checkpoint: ExtendedSequenceNumber) -> WriteOutcome:
        return self._update_as_holder(
            "checkpoint",
            lease,
            checkpoint=checkpoint,
            owner_switches_since_checkpoint=0,
            pending_checkpoint=None,
            pending_checkpoint_state=None,
        )

    def prepare_checkpoint(self, lease: Lease, pending: ExtendedSequenceNumber, state: bytes | None) -> WriteOutcome:
        changes: dict[str, Any] = {} if lease.checkpoint is None else {"checkpoint": lease.checkpoint}
        return self._update_as_holder(
            "prepare_checkpoint",
            lease,
            owner_switches_since_checkpoint=lease.owner_switches_since_checkpoint,
            pending_checkpoint=pending,
            pending_checkpoint_state=state,
            **changes,
        )

    def write_child_shards(self, lease_key: str, child_shard_ids: frozenset[str]) -> bool:
        assert child_shard_ids, "DynamoDB refuses an empty set"
        return self._write_meta("write_child_shards", lease_key, child_shard_ids=child_shard_ids)

    def write_hash_key_range(self, lease_key: str, hash_key_range: HashKeyRange) -> bool:
        if hash_key_range.start >= hash_key_range.end:
            return False
        return self._write_meta("write_hash_key_range", lease_key, hash_key_range=hash_key_range)

    def delete(self, lease_key: str) -> None:
        with self._requests.request("delete", lease_key):
            self._require_table()
            if self._rows.get(lease_key) is not None:
                self._write("delete", lease_key, None)

    # How they are made

    def _update_as_holder(self, operation: str, lease: Lease, **changes: Any) -> WriteOutcome:
        with self._requests.request(operation, lease.lease_key):
            row = self._row(lease)
            if row is None or row.lease_counter != lease.lease_counter:
                return WriteOutcome(applied=False, row=row)
            if lease.child_shard_ids:
                changes["child_shard_ids"] = lease.child_shard_ids
            if lease.hash_key_range is not None:
                changes["hash_key_range"] = lease.hash_key_range
            self._change(operation, row, lease_counter=lease.lease_counter + 1, **changes)
            return WriteOutcome(applied=True)

    def _write_meta(self, operation: str, lease_key: str, **changes: Any) -> bool:
        with self._requests.request(operation, lease_key):
            self._require_table()
            row = self._rows.get(lease_key)
            if row is None:
                return False
            self._change(operation, row, **changes)
            return True

    def _row(self, lease: Lease) -> Lease | None:
        self._require_table()
        return self._rows.get(lease.lease_key)

    def _change(self, operation: str, row: Lease, **changes: Any) -> Lease:
        after = msgspec.structs.replace(row, **changes)
        self._write(operation, row.lease_key, after)
        return after

    def _write(self, operation: str, lease_key: str, after: Lease | None) -> None:
        before = self._rows.get(lease_key)
        self._rows.set(lease_key, after)
        self.watch(operation, before, after)

    def _require_table(self) -> None:
        if self._active_at_s is None or self._state_at(self._active_at_s) != "ACTIVE":
            raise TableMissing("the lease table is not there or not ready")

    def _index_status(self) -> Literal["CREATING", "ACTIVE"] | None:
        return None if self.index_active_at_s is None else self._state_at(self.index_active_at_s)

    def _state_at(self, active_at_s: float) -> Literal["CREATING", "ACTIVE"]:
        return "ACTIVE" if self._clock.monotonic() >= active_at_s else "CREATING"


def _same_owners(row: Lease, lease: Lease) -> bool:
    return (row.lease_owner, row.checkpoint_owner) == (lease.lease_owner, lease.checkpoint_owner)
