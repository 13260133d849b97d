"""The metadata tables at the start: find out what is there, create what is missing, or refuse (DESIGN.md 4.3)."""

from __future__ import annotations

import logging
import random
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.decisions.metadata_format import (
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
    should_create_client_version,
)
from kcl_host.errors import MetadataConflict, RetryLater, TableMissing
from kcl_host.model.lease import LeaseListing, TableState
from kcl_host.model.state import ClientVersionState
from kcl_host.ports import Clock, CoordinatorTable, LeaseTable, WorkerMetricsTable

_log = logging.getLogger(__name__)

TABLE_READY: Final = ("ACTIVE", "UPDATING")
LEADER_TYPE: Final = "LEADER"
"""entityType of a leader lock."""
WATCH_S: Final = 60.0
"""How often Migration3.0 is read while the application may still be rolled back to 2.x (spec migration 1.5)."""


class NotYet(RetryLater):
    """The fleet is not in a state that this worker may join; it may be later. To be waited for without limit."""


class Metadata:
    """`prepare` is one attempt: it returns when the tables can be used and raises NotYet while they cannot.

    `run_once` is the later turn that creates Migration3.0 where nobody has, and watches it where it may change.
    """

    def __init__(
        self,
        lease_table: LeaseTable,
        coordinator_table: CoordinatorTable,
        metrics_table: WorkerMetricsTable,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._lease_table = lease_table
        self._coordinator_table = coordinator_table
        self._metrics_table = metrics_table
        self._settings = settings
        self._clock = clock
        self._version_due_s = clock.monotonic() + client_version_delay_s(rng)
        self._watched: tuple[float, dict[str, int]] | None = None
        """When the lease counters were first looked at, and what they were."""
        self._created: bool | None = False
        """Whether this worker created the lease table; None: it asked for it and got no answer."""
        self._lost_create = False
        """True from the moment at which another worker created it first, until that one has shown its format."""

    def prepare(self) -> None:
        """Raises MetadataConflict or ConfigurationError when this worker must not join."""
        try:
            self._prepare()
        except TableMissing as error:
            # A table that somebody is creating (or deleting) right now; how long that takes is not ours to limit.
            raise NotYet(str(error)) from error

    def run_once(self) -> float | None:
        """Creates Migration3.0 if it is missing after a while; None when there is nothing left to do.

        Raises MetadataConflict when the application has been rolled back to KCL 2.x meanwhile.
        """
        remaining_s = self._version_due_s - self._clock.monotonic()
        if remaining_s > 0:
            return remaining_s
        found = self._coordinator_table.read_client_version()
        if should_create_client_version(found, self._settings.coordinator):
            now_ms = round(self._clock.wall() * 1000)
            created = client_version_item(self._settings.worker_id, now_ms)
            # Who loses this creation looks again at what the winner wrote.
            return None if self._coordinator_table.create_client_version(created) else 0.0
        return self._judge_version(found)

    def _judge_version(self, found: ClientVersionState | None) -> float | None:
        facts = MetadataFacts(
            lease_table_exists=True,
            lease_table_has_index=True,
            coordinator_table_exists=True,
            worker_metrics_table_exists=True,
            client_version=None if found is None else found.client_version,
        )
        match decide_metadata_format(facts, self._settings.coordinator):
            case Wait() as wait:
                raise MetadataConflict(wait.reason)
            case Refuse() as refuse:
                raise MetadataConflict(refuse.message)
            case UseThreeTables(watch_client_version=True):
                self._version_due_s = self._clock.monotonic() + WATCH_S
                return WATCH_S
        return None

    def _prepare(self) -> None:
        facts, listing = self._look()
        decision = self._decide(facts, listing)
        match decision:
            case CreateThreeTables():
                self._create_tables(lease_table_existed=facts.lease_table_exists)
            case UseThreeTables():
                if decision.create_worker_metrics_table:
                    self._create(self._metrics_table, self._settings.worker_metrics_table.name)
                if decision.create_index:
                    self._lease_table.create_index()
            case UseSingleTable():
                raise MetadataConflict(decision.message)
            case Refuse():
                raise decision.error
            case Observe() | Wait():
                raise NotYet(decision.reason)
        if self._created and self._settings.lease_table.point_in_time_recovery:
            self._lease_table.enable_point_in_time_recovery()

    def _decide(self, facts: MetadataFacts, listing: LeaseListing) -> MetadataDecision:
        if self._lost_create:
            verdict = judge_lost_create(
                leader_in_coordinator_table=facts.coordinator_table_exists
                and self._coordinator_table.read_lock() is not None,
                leader_in_lease_table=LEADER_TYPE in listing.entity_types,
            )
            if not isinstance(verdict, UseThreeTables):
                return verdict
            self._lost_create = False
        return decide_metadata_format(facts, self._settings.coordinator)

    def _look(self) -> tuple[MetadataFacts, LeaseListing]:
        state = self._lease_table.describe()
        if state is not None and self._created is None:
            # Seen for the first time, and with its index: only a kcl-host creates them together.
            self._created = state.index_status is not None
            self._lost_create = not self._created
        if state is not None:
            self._require_ready(state)
        listing = LeaseListing(leases=()) if state is None else self._lease_table.list_leases()
        coordinator = self._coordinator_table.exists()
        version = self._coordinator_table.read_client_version() if coordinator else None
        return MetadataFacts(
            lease_table_exists=state is not None,
            lease_table_has_index=state is not None and state.index_status is not None,
            entity_types=listing.entity_types,
            coordinator_table_exists=coordinator,
            worker_metrics_table_exists=self._metrics_table.exists(),
            table_migration_status=self._coordinator_table.read_table_migration_status() if coordinator else None,
            client_version=None if version is None else version.client_version,
            counters_moving=None if state is None else self._counters_moving(listing),
        ), listing

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
        return False if now_s - since_s > self._settings.lease.failover_s else None

    def _create_tables(self, *, lease_table_existed: bool) -> None:
        """CoordinatorState and WorkerMetricStats first: who creates the lease table decides the format."""
        self._create(self._coordinator_table, self._settings.coordinator_table.name)
        self._create(self._metrics_table, self._settings.worker_metrics_table.name)
        if lease_table_existed:
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

    def _create(self, table: CoordinatorTable | WorkerMetricsTable, name: str) -> None:
        if not table.exists() and table.create_table():
            _log.info("table created", extra={"action": "table_created", "table": name})

    def _require_ready(self, state: TableState | None) -> None:
        if state is None or state.status not in TABLE_READY:
            raise NotYet(
                f"lease table {self._settings.lease_table.name} is {state.status if state else 'missing'}, "
                "waiting until it is ACTIVE"
            )
