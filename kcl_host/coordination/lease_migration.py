"""The migration of a single-stream application's leases into a multi-stream table: fetch, decide, apply.

Nothing is written before the fleet has been seen to stand still, and nothing but the new table is ever written. Every
write creates what is not there, so an attempt that was cut off anywhere is completed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.coordination.metadata_tables import MetadataTables
from kcl_host.decisions.lease_migration import (
    LeaseMigrationPlan,
    Sighting,
    named,
    observation_s,
    plan_lease_migration,
    plan_metadata_format,
    signs_of_life,
)
from kcl_host.decisions.metadata_format import UNUSED_S, MetadataFacts, Refuse, UseSingleTable
from kcl_host.decisions.table_migration import STATUS_COMPLETE
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.errors import (
    ConfigurationError,
    KclHostError,
    MetadataConflict,
    StreamNotFound,
    TableMissing,
    Throttled,
    Unavailable,
)
from kcl_host.model.lease import Lease, LeaseListing, TableState
from kcl_host.model.shard import StreamIdentifier
from kcl_host.model.state import ClientVersionState
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from kcl_host.ports import Clock, CoordinatorState, LeaseTable, Stream

ATTEMPTS: Final = 10
"""Of one request; a table of little capacity throttles for a while. Half a minute in all."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
CREATION_POLL_S: Final = 1.0
CREATION_LIMIT_S: Final = 600.0
READY: Final = ("ACTIVE", "UPDATING")
_LATER_S: Final = 0.01
"""Nothing must move for *longer* than the time it takes to tell."""

Progress = Callable[[str, float, float], None]
"""(what is counted, how far it is, of how much)."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class MigratedTables:
    """The application's tables as they are, and the lease table to be, with the coordinator items in it."""

    old: LeaseTable
    metadata: MetadataTables
    new: LeaseTable
    new_name: str
    new_items: CoordinatorState


class LeaseMigrationPreview(msgspec.Struct, frozen=True, kw_only=True):
    plan: LeaseMigrationPlan
    is_single_table: bool
    """Whether the application keeps everything in its lease table, as KCL 3.5 does."""
    client_version: ClientVersionState | None
    """Migration3.0, where the new table needs a copy of it."""
    new_table_exists: bool
    reporting: tuple[str, ...]
    """Workers that reported metrics of late, and so seem to be running."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    old: LeaseListing
    new: LeaseListing
    new_state: TableState | None
    facts: MetadataFacts
    client_version: ClientVersionState | None
    sighting: Sighting


class LeaseMigration:
    """`preview` only reads, `apply` does it; both raise MetadataConflict or ConfigurationError when it must not be.

    A request that fails for the moment is made again, since the clients make one attempt only.
    """

    def __init__(
        self, stream: Stream, tables: MigratedTables, settings: Settings, clock: Clock, sleep: Callable[[float], None]
    ) -> None:
        """`settings` are the application's, with the lease table that it has."""
        self._stream = stream
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._sleep = sleep

    def preview(self) -> LeaseMigrationPreview:
        """Raises StreamNotFound also while the stream is being created or deleted."""
        return self._decide(self._fetch())

    def apply(self, progress: Progress) -> LeaseMigrationPreview:
        """Watches the fleet for longer than failoverTimeMillis, then writes; returns what was found before that."""
        self.preview()
        found = self._watch(progress)
        done = self._decide(found)
        self._create_table()
        if done.client_version is not None:
            self._copy_client_version(done.client_version)
        missing = [move.to for move in done.plan.moves if not move.is_there]
        for count, lease in enumerate(missing, 1):
            self._create(lease)
            progress("leases written", count, len(missing))
        self._require_all([move.to for move in done.plan.moves])
        before, after = (_without(found.sighting, done.plan.stream) for found in (found, self._fetch()))
        if signs := signs_of_life(before, after):
            raise MetadataConflict(
                f"workers were running meanwhile: {named(signs)}. Stop them, delete table {self._tables.new_name}, "
                "whose leases are out of date, and run this again."
            )
        return done

    # Reading

    def _decide(self, found: _Found) -> LeaseMigrationPreview:
        stream = self._insist(self._stream.describe)
        shards = self._insist(self._stream.list_shards)
        if shards is None:
            raise StreamNotFound(f"stream {stream.name} is {stream.status}, neither ACTIVE nor UPDATING")
        format = plan_metadata_format(found.facts, found.new.entity_types, self._settings.coordinator)
        plan = plan_lease_migration(stream.identifier, shards, found.old, found.new)
        if isinstance(format, Refuse):
            raise self._refused(format)
        if isinstance(plan, Refuse):
            raise self._refused(plan)
        is_single_table = isinstance(format, UseSingleTable)
        return LeaseMigrationPreview(
            plan=plan,
            is_single_table=is_single_table,
            client_version=found.client_version if is_single_table else None,
            new_table_exists=found.new_state is not None,
            reporting=tuple(sorted({w.worker_id for w in found.sighting.workers if self._is_active(w)})),
        )

    def _refused(self, refusal: Refuse) -> KclHostError:
        where = f"{self._settings.lease_table.name} -> {self._tables.new_name}"
        return msgspec.structs.replace(refusal, message=f"{where}: {refusal.message}").error

    def _fetch(self) -> _Found:
        tables = self._tables.metadata
        old_state = self._insist(self._tables.old.describe)
        if old_state is None or old_state.status not in READY:
            raise ConfigurationError(
                f"lease table {self._settings.lease_table.name} is {old_state.status if old_state else 'missing'}: "
                "applicationName, tableName and regionName must be those of the application as it is"
            )
        old = self._list(self._tables.old)
        new_state = self._insist(self._tables.new.describe)
        is_ready = new_state is not None and new_state.status in READY
        new = self._list(self._tables.new) if is_ready else LeaseListing(leases=())
        has_coordinator = self._insist(tables.coordinator.exists)
        has_metrics = self._insist(tables.worker_metrics.exists)
        reports = self._insist(tables.worker_metrics.list_workers) if has_metrics else WorkerListing()
        migration = self._insist(tables.migration.read) if has_coordinator else None
        has_moved = migration is not None and migration.status == STATUS_COMPLETE
        version = None
        if has_coordinator and not has_moved:
            version = self._insist(tables.coordinator.read_client_version)
        if version is None:
            version = self._insist(tables.coordinator_in_lease_table.read_client_version)
        places: list[CoordinatorState] = [tables.coordinator_in_lease_table]
        places += [tables.coordinator] if has_coordinator else []
        places += [self._tables.new_items] if is_ready else []
        locks = [self._insist(place.read_lock) for place in places]
        facts = MetadataFacts(
            lease_table_exists=True,
            lease_table_has_index=old_state.index_status is not None,
            entity_types=old.entity_types,
            workers_in_lease_table=any(self._is_active(worker) for worker in old.workers.workers),
            coordinator_table_exists=has_coordinator,
            coordinator_table_used=has_coordinator
            and bool(reports.workers or reports.undecodable or self._insist(tables.migration.list_items)),
            worker_metrics_table_exists=has_metrics,
            table_migration_status=None if migration is None else migration.status,
            client_version=None if version is None else version.client_version,
            counters_moving=False,
            watched_s=UNUSED_S,
        )
        return _Found(
            old=old,
            new=new,
            new_state=new_state,
            facts=facts,
            client_version=version,
            sighting=Sighting(
                leases=old.leases + new.leases,
                workers=old.workers.workers + new.workers.workers + reports.workers,
                locks=frozenset(lock.record_version_number for lock in locks if lock is not None),
            ),
        )

    def _list(self, table: LeaseTable) -> LeaseListing:
        """The leases as they are now: a scan may see them as they were."""
        listing = self._insist(table.list_leases)
        keys = [lease.lease_key for lease in listing.leases]
        leases = self._insist(lambda: table.get_all(keys, consistent=True))
        return msgspec.structs.replace(listing, leases=tuple(leases))

    def _is_active(self, worker: WorkerMetricStats) -> bool:
        activity = judge_worker(worker, self._clock.wall(), self._settings.worker_metrics)
        return activity not in ("inactive", "leaving")

    def _watch(self, progress: Progress) -> _Found:
        """What was found last, when nothing has moved for long enough."""
        first = self._fetch()
        began_s = self._clock.monotonic()
        failover_s = self._settings.lease.failover_s
        needed_s = observation_s(first.sighting, self._clock.wall(), failover_s, self._settings.worker_metrics)
        while True:
            watched_s = self._clock.monotonic() - began_s
            progress("seconds without a sign of a worker", watched_s, needed_s)
            found = self._fetch()
            if signs := signs_of_life(first.sighting, found.sighting):
                raise MetadataConflict(
                    f"workers are running on table {self._settings.lease_table.name}: {named(signs)}. "
                    "Stop every worker of the application first."
                )
            if watched_s > needed_s:
                return found
            self._sleep(min(failover_s / 3, needed_s - watched_s + _LATER_S))

    # Writing

    def _create_table(self) -> None:
        """The table with its index, ready for use; whatever of that is there already is fine."""
        table = self._tables.new
        if self._insist(table.describe) is None:
            self._insist(table.create_table)
        deadline_s = self._clock.monotonic() + CREATION_LIMIT_S
        while (state := self._insist(table.describe)) is None or state.status not in READY:
            if self._clock.monotonic() > deadline_s:
                status = state.status if state else "missing"
                raise TableMissing(f"table {self._tables.new_name} is {status} after {CREATION_LIMIT_S:.0f} s")
            self._sleep(CREATION_POLL_S)
        if state.index_status is None:
            self._insist(table.create_index)
        if self._settings.lease_table.point_in_time_recovery:
            self._insist(table.enable_point_in_time_recovery)

    def _copy_client_version(self, version: ClientVersionState) -> None:
        items = self._tables.new_items
        if self._insist(lambda: items.create_client_version(version)):
            return
        if (found := self._insist(items.read_client_version)) != version:
            says = found.client_version if found else "nothing"
            raise MetadataConflict(
                f"the item Migration3.0 in table {self._tables.new_name} is not a copy of the application's: it says "
                f"{says}, not {version.client_version}, or of another time. Delete it and run this again."
            )

    def _create(self, lease: Lease) -> None:
        table = self._tables.new
        # A row that is there may be our own, written by a request whose answer was lost.
        if not self._insist(lambda: table.create(lease)) and self._insist(lambda: table.get(lease.lease_key)) != lease:
            raise MetadataConflict(
                f"table {self._tables.new_name} holds another lease {lease.lease_key} now: is a worker running on it?"
            )

    def _require_all(self, leases: list[Lease]) -> None:
        rows = self._insist(lambda: self._tables.new.get_all([lease.lease_key for lease in leases], consistent=True))
        found = {row.lease_key: row for row in rows}
        if wrong := {lease.lease_key for lease in leases if found.get(lease.lease_key) != lease}:
            raise MetadataConflict(
                f"leases in table {self._tables.new_name} are not as they were written: {named(wrong)}. "
                "Is a worker running on it?"
            )

    def _insist(self, request: Callable[[], _Answer]) -> _Answer:
        pause_s = FIRST_PAUSE_S
        for _ in range(ATTEMPTS - 1):
            try:
                return request()
            except (Throttled, Unavailable):
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return request()


def _without(sighting: Sighting, stream: StreamIdentifier) -> Sighting:
    """What was seen beside the leases that were being written."""
    others = tuple(lease for lease in sighting.leases if lease.stream_name != str(stream))
    return msgspec.structs.replace(sighting, leases=others)
