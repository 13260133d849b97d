"""What one look at a fleet found, and what several looks say together.

The tables bear no times of leases: how long something has stood is known only to who looks again. `Looks` is that
memory. Its times are monotonic seconds of the one who looks; nothing here compares clocks of machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from kcl_host.decisions.shard_end import is_blocked_on_parents
from kcl_host.decisions.table_migration import STATUS_COMPLETE
from kcl_host.model.lease import Lease, LeaseListing, TableState
from kcl_host.model.state import ClientVersionState, LeaderLock, TableMigrationState
from kcl_host.model.worker import WorkerListing

LeaseState = Literal[
    "reading", "waits_for_parent", "handover", "shard_end", "silent", "no_owner", "no_checkpoint", "ended"
]
STATES: Final[tuple[LeaseState, ...]] = (
    "reading", "waits_for_parent", "handover", "shard_end", "silent", "no_owner", "no_checkpoint", "ended",
)  # fmt: skip
Part = Literal[
    "lease table", "leases", "leader lock", "Migration3.0", "TableMigration3.5", "worker metrics",
    "leader lock in the lease table", "Migration3.0 in the lease table", "lag", "retention",
]  # fmt: skip
MOVES: Final = 20
"""So many changes of owners are remembered."""


class PartFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the picture that could not be fetched; `subjects` are the lease keys or streams it is about."""

    part: Part
    error: str
    subjects: tuple[str, ...] = ()


class ShardLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the checkpoint of a lease is behind the end of its shard, as Kinesis said at `asked_s` (epoch seconds).

    `behind_ms` None: not known. `record_ms` is when the checkpointed record arrived (epoch milliseconds), None before
    the first checkpoint, and when that record is not in the stream any more.
    """

    behind_ms: int | None
    record_ms: int | None
    asked_s: float


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one look found. What could not be fetched is in `failures`, and empty or None here.

    `taken_s` epoch seconds, `at_s` monotonic. `has_coordinator_table` None: not known. `lags` by lease key,
    `retention_s` by stream as leases name it (None: the only one).
    """

    taken_s: float
    at_s: float
    table: TableState | None = None
    listing: LeaseListing = LeaseListing(leases=())
    has_coordinator_table: bool | None = None
    lock: LeaderLock | None = None
    lock_in_lease_table: LeaderLock | None = None
    client_version: ClientVersionState | None = None
    table_migration: TableMigrationState | None = None
    workers: WorkerListing = WorkerListing()
    """Of the table for worker metric stats; those in the lease table are in `listing`."""
    lags: Mapping[str, ShardLag] = {}
    retention_s: Mapping[str | None, float] = {}
    failures: tuple[PartFailure, ...] = ()

    def has_failed(self, part: Part) -> bool:
        return any(failure.part == part for failure in self.failures)


class WatchedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as last seen, and since when parts of it are as they are.

    `writes_per_s` is the growth of the counter between the last two looks, None after one. `lag_ms_per_s` says how much
    the lag grew a second between the last two answers of Kinesis.
    """

    lease: Lease
    state: LeaseState
    state_since_s: float
    counter_since_s: float
    checkpoint_since_s: float
    writes_per_s: float | None = None
    lag: ShardLag | None = None
    lag_ms_per_s: float | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the owner of a lease, seen between two looks."""

    at_s: float
    lease_key: str
    before: str | None
    after: str | None


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """All looks at the leases so far; `moves` newest first."""

    first_s: float
    last_s: float
    count: int
    leases: Mapping[str, WatchedLease]
    lock: LeaderLock | None = None
    lock_since_s: float = 0.0
    moves: tuple[Move, ...] = ()

    @property
    def observed_s(self) -> float:
        """Seconds between the first look and the last."""
        return self.last_s - self.first_s


def look(previous: Looks | None, snapshot: FleetSnapshot) -> Looks:
    """The memory after another look. One at which the leases could not be read changes nothing but the first."""
    if previous is not None and snapshot.has_failed("leases"):
        return previous
    now_s = snapshot.at_s
    before = {} if previous is None else previous.leases
    elapsed_s = 0.0 if previous is None else now_s - previous.last_s
    rows = {lease.lease_key: lease for lease in snapshot.listing.leases}
    leases = {
        key: _look_at(before.get(key), lease, lease_state(lease, rows), snapshot.lags.get(key), now_s, elapsed_s)
        for key, lease in rows.items()
    }
    lock = authoritative_lock(snapshot)
    same_lock = previous is not None and lock is not None and lock == previous.lock
    moves = [
        Move(at_s=now_s, lease_key=key, before=before[key].lease.actual_owner, after=watched.lease.actual_owner)
        for key, watched in leases.items()
        if key in before and before[key].lease.actual_owner != watched.lease.actual_owner
    ]
    return Looks(
        first_s=now_s if previous is None else previous.first_s,
        last_s=now_s,
        count=1 if previous is None else previous.count + 1,
        leases=leases,
        lock=lock,
        lock_since_s=previous.lock_since_s if previous is not None and same_lock else now_s,
        moves=(*sorted(moves, key=lambda move: move.lease_key), *(previous.moves if previous else ()))[:MOVES],
    )


def lease_state(lease: Lease, rows: Mapping[str, Lease]) -> LeaseState:
    """What a lease is at, by the rows of one look; `silent` needs several, so it is never the answer here."""
    if lease.is_at_shard_end:
        return "ended"
    if lease.checkpoint is None:
        return "no_checkpoint"
    if lease.actual_owner is None:
        return "no_owner"
    if lease.is_handover_pending:
        return "handover"
    if is_blocked_on_parents(rows.get(lease.key_of(shard)) for shard in lease.parent_shard_ids):
        return "waits_for_parent"
    # The children are noted on the row when the shard has been read to its end, before the child process is told.
    return "shard_end" if lease.child_shard_ids else "reading"


def authoritative_lock(snapshot: FleetSnapshot) -> LeaderLock | None:
    """The lock that counts: that of the table of its own, as long as there is one and it is not given up."""
    return snapshot.lock_in_lease_table if is_single_table(snapshot) else snapshot.lock


def is_single_table(snapshot: FleetSnapshot) -> bool:
    """True when everything is in the lease table, as far as the look shows."""
    migration = snapshot.table_migration
    if migration is not None:
        return migration.status == STATUS_COMPLETE
    if snapshot.has_coordinator_table:
        # Tables left over by a worker that wanted three and came too late.
        return snapshot.lock is None and snapshot.lock_in_lease_table is not None
    return bool(snapshot.lock_in_lease_table or snapshot.listing.entity_types - {"LEASE"})


def _look_at(
    before: WatchedLease | None,
    lease: Lease,
    state: LeaseState,
    lag: ShardLag | None,
    now_s: float,
    elapsed_s: float,
) -> WatchedLease:
    if before is None:
        return WatchedLease(
            lease=lease, state=state, state_since_s=now_s, counter_since_s=now_s, checkpoint_since_s=now_s, lag=lag
        )
    grown = lease.lease_counter - before.lease.lease_counter
    same_owners = lease.actual_owner == before.lease.actual_owner and lease.lease_owner == before.lease.lease_owner
    lag_ms_per_s = before.lag_ms_per_s
    if lag is not None and before.lag is not None and lag.asked_s > before.lag.asked_s:
        if lag.behind_ms is not None and before.lag.behind_ms is not None:
            lag_ms_per_s = (lag.behind_ms - before.lag.behind_ms) / (lag.asked_s - before.lag.asked_s)
    return WatchedLease(
        lease=lease,
        state=state,
        state_since_s=before.state_since_s if state == before.state and same_owners else now_s,
        counter_since_s=before.counter_since_s if grown == 0 else now_s,
        checkpoint_since_s=before.checkpoint_since_s if lease.checkpoint == before.lease.checkpoint else now_s,
        writes_per_s=grown / elapsed_s if grown >= 0 and elapsed_s > 0 else None,
        lag=lag or before.lag,
        lag_ms_per_s=lag_ms_per_s,
    )
