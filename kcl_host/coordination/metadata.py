"""The metadata tables at the start: find out what is there, create what is missing, or refuse (DESIGN.md 4.3)."""

from __future__ import annotations

import logging
import random

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
from kcl_host.model.state import LEADER_KEY
from kcl_host.ports import Clock, CoordinatorTable, LeaseTable, WorkerMetricsTable

_log = logging.getLogger(__name__)

TABLE_READY = ("ACTIVE", "UPDATING")


class NotYet(RetryLater):
    """The fleet is not in a state that this worker may join; it may be later."""


class Metadata:
    """`prepare` is one attempt: it returns when the tables can be used and raises RetryLater while they cannot.

    `run_once` is the later turn that creates Migration3.0 where nobody has.
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
        self._create_lost = False

    def prepare(self) -> None:
        """Raises MetadataConflict or ConfigurationError when this worker must not join."""
        decision = self._decide()
        match decision:
            case CreateThreeTables():
                self._create_tables()
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
        self._await_lease_table()

    def run_once(self) -> float | None:
        """Creates Migration3.0 if it is missing after a while; None when there is nothing left to do."""
        remaining_s = self._version_due_s - self._clock.monotonic()
        if remaining_s > 0:
            return remaining_s
        if should_create_client_version(self._coordinator_table.read_client_version(), self._settings.coordinator):
            now_ms = round(self._clock.wall() * 1000)
            self._coordinator_table.create_client_version(client_version_item(self._settings.worker_id, now_ms))
        return None

    def _decide(self) -> MetadataDecision:
        facts = self._facts()
        if self._create_lost:
            listing = self._lease_table.list_leases()
            return judge_lost_create(
                leader_in_coordinator_table=self._coordinator_table.read_lock() is not None,
                leader_in_lease_table=LEADER_KEY.upper() in listing.entity_types,
            )
        decision = decide_metadata_format(facts, self._settings.coordinator)
        if isinstance(decision, Observe) and self._counters_moving() is not None:
            return decide_metadata_format(self._facts(), self._settings.coordinator)
        return decision

    def _facts(self) -> MetadataFacts:
        state = self._lease_table.describe()
        coordinator = self._coordinator_table.exists()
        version = self._coordinator_table.read_client_version() if coordinator else None
        return MetadataFacts(
            lease_table_exists=state is not None,
            lease_table_has_index=state is not None and state.index_status is not None,
            entity_types=frozenset() if state is None else self._lease_table.list_leases().entity_types,
            coordinator_table_exists=coordinator,
            worker_metrics_table_exists=self._metrics_table.exists(),
            table_migration_status=self._coordinator_table.read_table_migration_status() if coordinator else None,
            client_version=None if version is None else version.client_version,
            counters_moving=None if self._watched is None else self._counters_moving(),
        )

    def _counters_moving(self) -> bool | None:
        """Whether a lease counter grew since the first look; None until we have watched for longer than a lease."""
        counters = {lease.lease_key: lease.lease_counter for lease in self._lease_table.list_leases().leases}
        now_s = self._clock.monotonic()
        if self._watched is None:
            self._watched = now_s, counters
        since_s, before = self._watched
        if any(counter > before.get(key, counter) for key, counter in counters.items()):
            return True
        return False if now_s - since_s > self._settings.lease.failover_s else None

    def _create_tables(self) -> None:
        """CoordinatorState and WorkerMetricStats first: who creates the lease table decides the format."""
        self._create(self._coordinator_table, self._settings.coordinator_table.name)
        self._create(self._metrics_table, self._settings.worker_metrics_table.name)
        if self._lease_table.describe() is None:
            if not self._lease_table.create_table():
                self._create_lost = True
                raise NotYet("another worker is creating the lease table")
            _log.info("table created", extra={"action": "table_created", "table": self._settings.lease_table.name})
            if self._settings.lease_table.point_in_time_recovery:
                self._await_lease_table()
                self._lease_table.enable_point_in_time_recovery()

    def _create(self, table: CoordinatorTable | WorkerMetricsTable, name: str) -> None:
        if not table.exists() and table.create_table():
            _log.info("table created", extra={"action": "table_created", "table": name})

    def _await_lease_table(self) -> None:
        state = self._lease_table.describe()
        if state is None or state.status not in TABLE_READY:
            raise TableMissing(
                f"lease table {self._settings.lease_table.name} is {state.status if state else 'missing'}, "
                "waiting until it is ACTIVE"
            )
