"""The metadata tables at the start: find out what is there, create what is missing, or refuse (DESIGN.md 4.3)."""

from __future__ import annotations

import logging
import random
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.coordination.metadata_tables import CoordinatorItems, Format, MetadataTables
from kcl_host.decisions.metadata_format import (
    LEADER_TYPE,
    UNUSED_S,
    VERSION_3X_WITH_ROLLBACK,
    CreateSingleTable,
    CreateThreeTables,
    MetadataDecision,
    MetadataFacts,
    Observe,
    Refuse,
    UseSingleTable,
    UseThreeTables,
    Wait,
    client_version_delay_s,
    client_version_item,
    decide_metadata_format,
    judge_lost_create,
    judge_version,
    promoted_client_version,
    should_create_client_version,
)
from kcl_host.decisions.table_migration import STATUS_COMPLETE
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.errors import AccessError, FleetRolledBack, RetryLater, TableMissing
from kcl_host.model.lease import LeaseListing, TableState
from kcl_host.model.state import ClientVersionState
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from kcl_host.ports import Clock, LeaseTable, MetadataTable

_log = logging.getLogger(__name__)

TABLE_READY: Final = ("ACTIVE", "UPDATING")
AWAY_S: Final = 30.0
"""How often a worker that waits for the end of 2.x mode looks."""
WATCH_S: Final = 60.0
"""How often Migration3.0 is read while the application may still be rolled back to 2.x (spec migration 1.5)."""


class NotYet(RetryLater):
    """The fleet is not in a state that this worker may join; it may be later. To be waited for without limit.

    `pause_s` until the next look, None for the usual one.
    """

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class Metadata:
    """`prepare` is one attempt: it returns when the tables can be used and raises NotYet while they cannot.

    `run_once` is the later turn that creates Migration3.0 where nobody has, and watches it where it may change.
    """

    def __init__(
        self,
        lease_table: LeaseTable,
        tables: MetadataTables,
        items: CoordinatorItems,
        format: Format,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._lease_table = lease_table
        self._tables = tables
        self._items = items
        self._format = format
        self._settings = settings
        self._clock = clock
        self._version_due_s = clock.monotonic() + client_version_delay_s(rng)
        self._watched: tuple[float, dict[str, int]] | None = None
        """When the tables were first looked at, and what the lease counters were."""
        self._created: bool | None = False
        """Whether this worker created the lease table; None: it asked for it and got no answer."""
        self._lost_create = False
        """True from the moment at which another worker created it first, until that one has shown its format."""
        self._created_beside: list[tuple[MetadataTable, str]] = []
        """Tables of three that this worker has created, with their names."""

    def prepare(self) -> None:
        """Raises MetadataConflict or ConfigurationError when this worker must not join."""
        try:
            self._prepare()
        except TableMissing as error:
            # A table that somebody is creating (or deleting) right now; how long that takes is not ours to limit.
            raise NotYet(str(error)) from error

    def run_once(self) -> float | None:
        """Creates Migration3.0 if it is missing after a while; None when there is nothing left to do.

        Raises FleetRolledBack when the application has gone back to KCL 2.x meanwhile.
        """
        remaining_s = self._version_due_s - self._clock.monotonic()
        if remaining_s > 0:
            return remaining_s
        found = self._items.read_client_version()
        now_ms = round(self._clock.wall() * 1000)
        if should_create_client_version(found, self._settings.coordinator):
            created = client_version_item(self._settings.worker_id, now_ms)
            # Who loses this creation looks again at what the winner wrote.
            return None if self._items.create_client_version(created) else 0.0
        worker_id = self._settings.worker_id
        if found and (promoted := promoted_client_version(found, self._settings.coordinator, worker_id, now_ms)):
            _log.info(
                "the fleet cannot be rolled back to KCL 2.x any more", extra={"action": "client_version_promoted"}
            )
            return None if self._items.update_client_version(promoted, found.client_version) else 0.0
        return self._judge_version(found)

    def _judge_version(self, found: ClientVersionState | None) -> float | None:
        match judge_version(None if found is None else found.client_version, self._settings.coordinator):
            case Wait() as wait:
                raise FleetRolledBack(wait.reason)
            case Refuse() as refuse:
                # As Java: what is running goes on as it is.
                _log.error("Migration3.0 not followed", extra={"action": "client_version", "error": refuse.message})
            case None if found is None or found.client_version != VERSION_3X_WITH_ROLLBACK:
                return None
        self._version_due_s = self._clock.monotonic() + WATCH_S
        return WATCH_S

    def _prepare(self) -> None:
        facts = self._look()
        decision = self._decide(facts)
        match decision:
            case CreateThreeTables():
                self._create(self._tables.coordinator, self._settings.coordinator_table.name)
                self._create(self._tables.worker_metrics, self._settings.worker_metrics_table.name)
                self._create_lease_table(existed=facts.lease_table_exists)
                self._format.start("INIT")
            case CreateSingleTable():
                self._create_lease_table(existed=False)
                self._format.start("COMPLETE")
            case UseThreeTables():
                if decision.create_worker_metrics_table:
                    self._create(self._tables.worker_metrics, self._settings.worker_metrics_table.name)
                if decision.create_index:
                    self._lease_table.create_index()
                self._format.start(decision.status)
            case UseSingleTable():
                if decision.create_index:
                    self._lease_table.create_index()
                self._format.start("COMPLETE")
                self._remove_left_over(facts)
            case Refuse():
                raise decision.error
            case Observe():
                raise NotYet(decision.reason)
            case Wait():
                # A fleet in 2.x mode may be so for days, and each look is a scan.
                raise NotYet(decision.reason, AWAY_S if facts.client_version else None)
        if self._created and self._settings.lease_table.point_in_time_recovery:
            self._lease_table.enable_point_in_time_recovery()
        _log.info("metadata format", extra={"action": "metadata_format", "status": self._format.live})

    def _decide(self, facts: MetadataFacts) -> MetadataDecision:
        if self._lost_create:
            verdict = judge_lost_create(
                leader_in_coordinator_table=facts.coordinator_table_exists
                and self._tables.coordinator.read_lock() is not None,
                leader_in_lease_table=LEADER_TYPE in facts.entity_types,
            )
            if isinstance(verdict, UseThreeTables):
                self._lost_create = False
            else:
                return verdict
        return decide_metadata_format(facts, self._settings.coordinator)

    def _look(self) -> MetadataFacts:
        state = self._lease_table.describe()
        if state is not None and self._created is None:
            # Seen for the first time, and with its index: only a kcl-host creates them together.
            self._created = state.index_status is not None
            self._lost_create = not self._created
        if state is not None:
            self._require_ready(state)
        listing = LeaseListing(leases=()) if state is None else self._lease_table.list_leases()
        tables = self._tables
        has_coordinator, has_metrics = tables.coordinator.exists(), tables.worker_metrics.exists()
        migration = tables.migration.read() if has_coordinator else None
        has_moved = migration is not None and migration.status == STATUS_COMPLETE
        version = tables.coordinator.read_client_version() if has_coordinator and not has_moved else None
        if version is None and state is not None:
            version = tables.coordinator_in_lease_table.read_client_version()
        moving = None if state is None else self._counters_moving(listing)
        return MetadataFacts(
            lease_table_exists=state is not None,
            lease_table_has_index=state is not None and state.index_status is not None,
            entity_types=listing.entity_types,
            workers_in_lease_table=any(self._is_active(worker) for worker in listing.workers.workers),
            coordinator_table_exists=has_coordinator,
            coordinator_table_used=self._created is True or (has_coordinator and self._is_used(has_metrics)),
            worker_metrics_table_exists=has_metrics,
            table_migration_status=None if migration is None else migration.status,
            client_version=None if version is None else version.client_version,
            counters_moving=moving,
            watched_s=0.0 if self._watched is None else self._clock.monotonic() - self._watched[0],
        )

    def _is_used(self, has_metrics: bool) -> bool:
        if self._tables.migration.list_items():
            return True
        found = self._tables.worker_metrics.list_workers() if has_metrics else WorkerListing()
        return bool(found.workers or found.undecodable)

    def _is_active(self, worker: WorkerMetricStats) -> bool:
        activity = judge_worker(worker, self._clock.wall(), self._settings.worker_metrics)
        return activity not in ("inactive", "leaving")

    def _remove_left_over(self, facts: MetadataFacts) -> None:
        """Tables of three beside a single table, in which there is nothing: a Java worker would lead by them."""
        if facts.coordinator_table_exists and not facts.coordinator_table_used:
            for table, name in self._created_beside:
                _log.warning(
                    "another worker has made this application one of a single table; deleting the empty table",
                    extra={"action": "table_deleted", "table": name},
                )
                try:
                    table.delete_table()
                except AccessError as error:
                    _log.error("table not deleted", extra={"action": "table_left_over", "error": str(error)})
            if not self._created_beside:
                _log.warning(
                    "an empty table beside a single table: delete it, or a Java worker may start as a second leader",
                    extra={"action": "table_left_over", "table": self._settings.coordinator_table.name},
                )

    def _counters_moving(self, listing: LeaseListing) -> bool | None:
        """Whether somebody renewed or created a lease since the first look; None until that is longer ago than a lease
        lasts."""
        counters = {lease.lease_key: lease.lease_counter for lease in listing.leases}
        now_s = self._clock.monotonic()
        if self._watched is None:
            self._watched = now_s, counters
        since_s, before = self._watched
        if any(counter > before.get(key, -1) for key, counter in counters.items()):
            return True
        limit_s = self._settings.lease.failover_s if counters else UNUSED_S
        return False if now_s - since_s > limit_s else None

    def _create_lease_table(self, *, existed: bool) -> None:
        """After the other two, if there are to be three: who creates the lease table decides the format."""
        if existed:
            # It was a 2.x application's, which has no index.
            self._lease_table.create_index()
            return
        in_doubt = self._created is None
        if self._lease_table.describe() is None:
            self._created = None
            if self._lease_table.create_table():
                self._created, in_doubt = True, False
            elif not in_doubt:
                self._created = False
        if in_doubt:
            # An earlier request of ours may have created it after all: the next look tells by its index.
            raise NotYet("the lease table is being created")
        self._lost_create = not self._created
        if self._lost_create:
            raise NotYet("another worker is creating the lease table")
        _log.info("table created", extra={"action": "table_created", "table": self._settings.lease_table.name})
        self._require_ready(self._lease_table.describe())

    def _create(self, table: MetadataTable, name: str) -> None:
        if not table.exists() and table.create_table():
            self._created_beside.append((table, name))
            _log.info("table created", extra={"action": "table_created", "table": name})

    def _require_ready(self, state: TableState | None) -> None:
        if state is None or state.status not in TABLE_READY:
            raise NotYet(
                f"lease table {self._settings.lease_table.name} is {state.status if state else 'missing'}, "
                "waiting until it is ACTIVE"
            )
