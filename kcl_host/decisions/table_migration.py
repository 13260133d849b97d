"""The move from tables of their own (KCL 3.0 - 3.4) into the lease table (3.5): where things are, what the leader does.

`status` is `tm` of the item TableMigration3.5 as the table says it; the local status is what this worker makes of it by
its own flag, migrateAllEntitiesToLeaseTable: false is "phase 1" of the deployment, true is "phase 2".

Source: Java's TableMigrationStateMachineImpl, TableMigrationStatusProvider, CoordinatorStateDAO; spec migration 2, 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final, Literal

import msgspec

from kcl_host.config.settings import CoordinatorSettings, WorkerMetricsSettings
from kcl_host.decisions.worker_activity import is_reporting
from kcl_host.model.lease import Lease
from kcl_host.model.state import (
    CLIENT_VERSION_KEY,
    LEADER_KEY,
    TABLE_MIGRATION_KEY,
    CoordinatorItem,
    TableHistoryEntry,
    TableMigrationState,
)
from kcl_host.model.worker import WorkerListing, WorkerMetricStats

STATUS_INIT: Final = "TABLE_MIGRATION_STATUS_INIT"
STATUS_DEPLOYED: Final = "TABLE_MIGRATION_STATUS_DEPLOYED"
STATUS_PENDING: Final = "TABLE_MIGRATION_STATUS_PENDING"
STATUS_COMPLETE: Final = "TABLE_MIGRATION_STATUS_COMPLETE"
KNOWN_STATUSES: Final = (STATUS_INIT, STATUS_DEPLOYED, STATUS_PENDING, STATUS_COMPLETE)

LocalStatus = Literal["INIT", "DEPLOYED", "PENDING", "COMPLETE"]
Place = Literal["legacy", "lease"]
"""The tables of their own, or the lease table."""

HISTORY: Final = 10
SUPPORT_CODE_PERIODS: Final = 3
"""A support code counts for so many report intervals of the leader (spec coordination 3.6)."""
MOVED_AT_ONCE: Final = 25
"""Items of one transaction, as Java moves them."""
NOT_MOVED: Final = frozenset({LEADER_KEY, TABLE_MIGRATION_KEY})


def local_status(status: str | None, *, migrate_all: bool) -> LocalStatus | None:
    """What a worker with this flag is, beside a CoordinatorState table whose item says `status`; None: contradiction.

    Without that table the application is COMPLETE. A contradiction is refused at the start (Java tries 20 times, a
    second apart), and tolerated by a running worker (`followed`). Source: spec migration 2.2.
    """
    if status == STATUS_COMPLETE:
        return "COMPLETE"
    if status == STATUS_DEPLOYED:
        return "PENDING" if migrate_all else "DEPLOYED"
    if status == STATUS_PENDING:
        return "PENDING" if migrate_all else "DEPLOYED"
    if status in (None, STATUS_INIT) and not migrate_all:
        return "INIT"
    return None


def followed(status: str | None, before: LocalStatus, *, migrate_all: bool) -> LocalStatus:
    """The local status of a running worker that was `before` and now reads `status`; from COMPLETE no way leads back.

    Without an item, or beside a status that we do not know, it stays what it was. INIT is followed against the flag
    too, as in Java: an item made anew must have a leader that brings it to DEPLOYED, and who cannot start cannot lead.
    """
    if before == "COMPLETE":
        return before
    return local_status(status, migrate_all=migrate_all) or ("INIT" if status == STATUS_INIT else before)


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker finds and puts what is not a lease; what is read has all its places, in order."""

    lock: Place
    items_read: tuple[Place, ...]
    items_written: Place
    metrics_read: tuple[Place, ...]
    metrics_written: Place


def routes(started: LocalStatus, live: LocalStatus) -> Routes:
    """By the local status at the start, which decides writes, and of this moment, which decides reads and the lock.

    Unlike Java (spec migration 7.18) a worker that started before the end of the migration writes to the lease table
    after it: nobody reads its metrics elsewhere any more. Source: spec migration 2.3.
    """
    written: Place = "lease" if live == "COMPLETE" or started in ("PENDING", "COMPLETE") else "legacy"
    read: tuple[Place, ...] = ("lease",) if live == "COMPLETE" else ("legacy", "lease")
    return Routes(
        lock="lease" if live == "COMPLETE" else "legacy",
        items_read=read,
        items_written=written,
        metrics_read=read,
        metrics_written=written,
    )


class FleetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader's assignment pass saw of the fleet; ids of workers.

    `lease_owners` includes those whose leases have expired, as in Java. `reporting_owners` are those of them with fresh
    metrics in either place, `supporting_owners` those whose code is not 0. `support_code` is the least of all owners, 0
    without owners.
    """

    lease_owners: frozenset[str]
    reporting_owners: frozenset[str]
    active_in_own_table: frozenset[str]
    support_code: int
    supporting_owners: frozenset[str] = frozenset()

    @property
    def has_moved(self) -> bool:
        """True when all metrics are in the lease table."""
        return self.reporting_owners == self.lease_owners and not self.active_in_own_table


def summarise_fleet(
    leases: Iterable[Lease], found: Mapping[Place, WorkerListing], wall_s: float, settings: WorkerMetricsSettings
) -> FleetSummary:
    """`found` is what each place holds; `wall_s` epoch seconds. Source: spec migration 2.4, coordination 3.3, 3.6."""
    owners = frozenset(lease.lease_owner for lease in leases if lease.lease_owner)
    rows = [row for listing in found.values() for row in listing.workers]
    codes = {owner: _support_code(owner, rows, wall_s, settings) for owner in owners}
    active = frozenset(row.worker_id for row in rows if is_reporting(row, wall_s, settings))
    in_own_table = found["legacy"].workers if "legacy" in found else ()
    return FleetSummary(
        lease_owners=owners,
        reporting_owners=owners & active,
        active_in_own_table=frozenset(row.worker_id for row in in_own_table if is_reporting(row, wall_s, settings)),
        support_code=min(codes.values(), default=0),
        supporting_owners=frozenset(owner for owner, code in codes.items() if code),
    )


def _support_code(
    worker_id: str, rows: Iterable[WorkerMetricStats], wall_s: float, settings: WorkerMetricsSettings
) -> int:
    stamped = [row for row in rows if row.worker_id == worker_id and row.support_code_update_s is not None]
    newest = max(stamped, key=lambda row: row.support_code_update_s or 0, default=None)
    if newest is None or newest.support_code is None or newest.support_code_update_s is None:
        return 0
    age_s = wall_s - newest.support_code_update_s
    return newest.support_code if age_s <= SUPPORT_CODE_PERIODS * settings.report_interval_s else 0


class Nothing(msgspec.Struct, frozen=True):
    """Wait; `reason` says what for."""

    reason: str


class Delete(msgspec.Struct, frozen=True):
    """Delete the item: the bake time starts again when the fleet is ready again."""

    reason: str


class Create(msgspec.Struct, frozen=True):
    state: TableMigrationState
    reason: str


class Update(msgspec.Struct, frozen=True):
    state: TableMigrationState
    expected_status: str
    reason: str


class Move(msgspec.Struct, frozen=True):
    """Move the coordinator items into the lease table; what came of it is told to the next `next_step`."""

    reason: str


class Finalise(msgspec.Struct, frozen=True):
    """Write `state` into both tables in one act: over the item, and as a copy that nobody reads."""

    state: TableMigrationState
    expected_status: str
    reason: str


Step = Nothing | Delete | Create | Update | Move | Finalise


def next_step(
    local: LocalStatus,
    item: TableMigrationState | None,
    summary: FleetSummary | None,
    left: Set[str] | None,
    now_ms: int,
    worker_id: str,
    settings: CoordinatorSettings,
) -> Step:
    """What a leader does next. `item` as just read; `summary` None before the first assignment pass.

    `left`: keys of the items that are still in the CoordinatorState table, None when nobody looked (it is asked for in
    PENDING alone). `now_ms`: epoch milliseconds. Source: spec migration 2.4.
    """
    if summary is None:
        return Nothing("no assignment pass has been made yet")
    if local == "INIT":
        return _from_init(item, summary, now_ms, worker_id, settings)
    if local == "DEPLOYED":
        if item is not None and item.status == STATUS_PENDING:
            # Phase 1 was deployed over phase 2.
            return Update(successor(item, STATUS_DEPLOYED, worker_id, now_ms), STATUS_PENDING, "rolled back to phase 1")
        return Nothing("phase 2, migrateAllEntitiesToLeaseTable = true, may be deployed")
    if local == "PENDING":
        return _from_pending(item, summary, left, now_ms, worker_id, settings)
    return Nothing("the migration is over")


def _from_init(
    item: TableMigrationState | None,
    summary: FleetSummary,
    now_ms: int,
    worker_id: str,
    settings: CoordinatorSettings,
) -> Step:
    if summary.support_code < 1:
        if item is not None and item.status == STATUS_INIT:
            return Delete("a lease owner does not know the single-table format")
        return Nothing("not all lease owners know the single-table format")
    if item is None:
        return Create(first_state(STATUS_INIT, worker_id, now_ms), "all lease owners know the single-table format")
    if item.status != STATUS_INIT:
        return Nothing(f"the item says {item.status}")
    if now_ms - item.modified_ms < settings.init_bake_s * 1000:
        return Nothing("waiting before phase 2 may be deployed")
    return Update(
        successor(item, STATUS_DEPLOYED, worker_id, now_ms), STATUS_INIT, "all lease owners have known it long"
    )


def _from_pending(
    item: TableMigrationState | None,
    summary: FleetSummary,
    left: Set[str] | None,
    now_ms: int,
    worker_id: str,
    settings: CoordinatorSettings,
) -> Step:
    if item is None:
        return Create(first_state(STATUS_DEPLOYED, worker_id, now_ms), "the item is gone")
    is_empty = left is not None and not left - NOT_MOVED
    if item.status == STATUS_DEPLOYED:
        if not summary.has_moved:
            return Nothing("waiting until all workers have their metrics in the lease table")
        if not is_empty:
            return Move("all workers have their metrics in the lease table")
        return Update(successor(item, STATUS_PENDING, worker_id, now_ms), STATUS_DEPLOYED, "everything has moved")
    if item.status == STATUS_PENDING:
        if not summary.has_moved or not is_empty:
            return Update(
                successor(item, STATUS_DEPLOYED, worker_id, now_ms),
                STATUS_PENDING,
                "something is not in the lease table",
            )
        if now_ms - item.modified_ms < settings.complete_bake_s * 1000:
            return Nothing("waiting before the migration is final")
        return Finalise(successor(item, STATUS_COMPLETE, worker_id, now_ms), STATUS_PENDING, "the migration is over")
    return Nothing(f"the item says {item.status}")


def first_state(status: str, worker_id: str, now_ms: int) -> TableMigrationState:
    """An item made anew; its history is one entry of its own values, as Java writes it."""
    entry = TableHistoryEntry(status=STATUS_INIT, modified_by=worker_id, modified_ms=now_ms)
    return TableMigrationState(status=status, modified_by=worker_id, modified_ms=now_ms, history=(entry,))


def successor(item: TableMigrationState, status: str, worker_id: str, now_ms: int) -> TableMigrationState:
    before = TableHistoryEntry(status=item.status, modified_by=item.modified_by, modified_ms=item.modified_ms)
    return TableMigrationState(
        status=status, modified_by=worker_id, modified_ms=now_ms, history=(before, *item.history)[:HISTORY]
    )


def as_moved(item: CoordinatorItem) -> CoordinatorItem | None:
    """The item as it has to stand in the lease table; None for one that must stay where it is.

    In the lease table an item without its entityType would be taken for a lease. Java moves one of a kind it does not
    know without it; we leave it, and so the migration waits until somebody looks at it.
    """
    if item.key in NOT_MOVED:
        return None
    if item.key == CLIENT_VERSION_KEY:
        return _typed(item, "CLIENT_VERSION_MIGRATION")
    if "streamId" in item.attributes and item.entity_type in (None, "STREAM"):
        return _typed(item, "STREAM")
    return None


def unmovable(items: Iterable[CoordinatorItem]) -> list[str]:
    """Keys of the items that would have to be moved and must not be."""
    return sorted(item.key for item in items if item.key not in NOT_MOVED and as_moved(item) is None)


def _typed(item: CoordinatorItem, entity_type: str) -> CoordinatorItem:
    return CoordinatorItem(key=item.key, attributes={**item.attributes, "entityType": {"S": entity_type}})
