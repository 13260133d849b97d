"""Which metadata tables an application uses, and whether this worker may join it: the decision at start.

KCL 3.0 - 3.4 keep the leader lock, the migration items and the worker metric stats in two tables of their own; KCL 3.5
puts everything into the lease table, and takes the absence of CoordinatorState for "that is so already". Whoever
creates a table too many thus makes a second leader. What is found decides, and what is unclear is refused.

Source: DESIGN.md 4.3; spec migration 1.2, 2.2 and 4.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kcl_host.config.settings import CoordinatorSettings
from kcl_host.decisions.rng import Rng
from kcl_host.decisions.table_migration import (
    HISTORY,
    KNOWN_STATUSES,
    STATUS_DEPLOYED,
    STATUS_INIT,
    LocalStatus,
    local_status,
)
from kcl_host.errors import ConfigurationError, KclHostError, MetadataConflict
from kcl_host.model.state import ClientVersionState, VersionHistoryEntry

VERSION_INIT: Final = "CLIENT_VERSION_INIT"
"""Stands only in the history of the item, as what came before its first value."""
VERSION_2X: Final = "CLIENT_VERSION_2X"
VERSION_UPGRADE_FROM_2X: Final = "CLIENT_VERSION_UPGRADE_FROM_2X"
VERSION_3X_WITH_ROLLBACK: Final = "CLIENT_VERSION_3X_WITH_ROLLBACK"
VERSION_3X: Final = "CLIENT_VERSION_3X"

LEADER_TYPE: Final = "LEADER"
"""entityType of a leader lock."""
UNUSED_S: Final = 60.0
"""So long tables without any item may be those of a worker that is just starting; later they are nobody's."""

STARTING_S: Final = 90.0
"""So long a worker of Java 3.0 - 3.4 may take from its lease table to CoordinatorState; it waits up to 30 s itself."""


class MetadataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables show at start.

    `entity_types` are those seen on rows of the lease table, empty when nobody looked; `table_migration_status` and
    `client_version` are `tm` and `cv` of their items, None without item. `coordinator_table_used`: whether there is any
    item in it, or in WorkerMetricStats. `workers_in_lease_table`: whether workers report there at present.
    `counters_moving`: whether some lease counter grew while they were watched for longer than failoverTimeMillis (for
    UNUSED_S where there is no lease); None when nobody watched yet. `watched_s`: time since the first look, in seconds.
    """

    lease_table_exists: bool
    lease_table_has_index: bool = False
    entity_types: frozenset[str] = frozenset()
    workers_in_lease_table: bool = False
    coordinator_table_exists: bool = False
    coordinator_table_used: bool = True
    worker_metrics_table_exists: bool = False
    table_migration_status: str | None = None
    client_version: str | None = None
    counters_moving: bool | None = None
    watched_s: float = 0.0


class CreateThreeTables(msgspec.Struct, frozen=True):
    """Create CoordinatorState and WorkerMetricStats, and only then the lease table with its index; each where missing.

    When somebody else wins the creation of the lease table, `judge_lost_create` says how to go on.
    """


class CreateSingleTable(msgspec.Struct, frozen=True):
    """Create the lease table with its index, and nothing else. A lost creation is judged as for three tables."""


class UseThreeTables(msgspec.Struct, frozen=True, kw_only=True):
    """Go on as `status`. `watch_client_version`: the fleet may be rolled back, so read Migration3.0 once a minute."""

    status: LocalStatus = "INIT"
    create_worker_metrics_table: bool = False
    create_index: bool = False
    watch_client_version: bool = False


class UseSingleTable(msgspec.Struct, frozen=True, kw_only=True):
    """Go on with everything in the lease table, the format of KCL 3.5."""

    create_index: bool = False
    watch_client_version: bool = False


class Observe(msgspec.Struct, frozen=True):
    """Watch all lease counters for longer than failoverTimeMillis, then decide again with `counters_moving`."""

    reason: str


class Wait(msgspec.Struct, frozen=True):
    """Own nothing, lead nothing, report nothing; read the facts again in a while."""

    reason: str


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """Stop with `message`."""

    message: str
    because: Literal["conflict", "configuration"] = "conflict"

    @property
    def error(self) -> KclHostError:
        """The error to raise."""
        return (MetadataConflict if self.because == "conflict" else ConfigurationError)(self.message)


MetadataDecision = CreateThreeTables | CreateSingleTable | UseThreeTables | UseSingleTable | Observe | Wait | Refuse


def decide_metadata_format(facts: MetadataFacts, settings: CoordinatorSettings) -> MetadataDecision:
    """How this worker may use the tables it found. Raises nothing."""
    return judge_version(facts.client_version, settings) or _decide_tables(facts, settings)


def judge_lost_create(*, leader_in_coordinator_table: bool, leader_in_lease_table: bool) -> MetadataDecision:
    """How to go on after another worker created the lease table first: its format shows where the leader's lock is."""
    if leader_in_coordinator_table and leader_in_lease_table:
        return Refuse(message=_SPLIT_BRAIN)
    if leader_in_lease_table:
        return UseSingleTable()
    if leader_in_coordinator_table:
        return UseThreeTables()
    return Wait("another worker created the lease table at the same moment; waiting for its leader to show its format")


def client_version_item(worker_id: str, now_ms: int) -> ClientVersionState:
    """The Migration3.0 item of an application that starts as 3.x, as Java writes it. `now_ms`: epoch milliseconds."""
    return ClientVersionState(
        client_version=VERSION_3X,
        modified_by=worker_id,
        modified_ms=now_ms,
        history=(VersionHistoryEntry(client_version=VERSION_INIT, modified_by=worker_id, modified_ms=now_ms),),
    )


def client_version_delay_s(rng: Rng) -> float:
    """How long after start to look whether Migration3.0 is still missing: 60 to 120 s.

    A Java 3.5 worker that loses the creation of this item to us could not start any more (spec migration 7.9).
    """
    return 60.0 + 60.0 * rng.random()


def promoted_client_version(
    found: ClientVersionState, settings: CoordinatorSettings, worker_id: str, now_ms: int
) -> ClientVersionState | None:
    """Migration3.0 when this worker ends the time in which the fleet may be rolled back; None: that is not its to do.

    Java's workers do it by their default configuration (spec migration 1.2); ours only where the operator has written
    clientVersionConfig = CLIENT_VERSION_CONFIG_3X.
    """
    may = settings.client_version_is_explicit and settings.client_version_config == "CLIENT_VERSION_CONFIG_3X"
    if found.client_version != VERSION_3X_WITH_ROLLBACK or not may:
        return None
    before = VersionHistoryEntry(
        client_version=found.client_version, modified_by=found.modified_by, modified_ms=found.modified_ms
    )
    return ClientVersionState(
        client_version=VERSION_3X,
        modified_by=worker_id,
        modified_ms=now_ms,
        history=(before, *found.history)[:HISTORY],
    )


def should_create_client_version(fresh: ClientVersionState | None, settings: CoordinatorSettings) -> bool:
    """Whether to create Migration3.0 now; `fresh` is a read made for this question, None when there is no item."""
    return fresh is None and settings.client_version_config == "CLIENT_VERSION_CONFIG_3X"


_SPLIT_BRAIN: Final = (
    "Two leaders are possible: the lease table holds items of KCL 3.5's single-table format, and a CoordinatorState "
    "table exists beside it. Stop all workers, decide for one format, and remove the other's items."
)


def judge_version(version: str | None, settings: CoordinatorSettings) -> Wait | Refuse | None:
    """What `cv` of Migration3.0 forbids, None without item; None when it forbids nothing (spec migration 1.5)."""
    if version is None:
        if settings.client_version_config == "CLIENT_VERSION_CONFIG_3X":
            return None
        return Refuse(
            because="configuration",
            message=f"clientVersionConfig = {settings.client_version_config} asks for the protocol of KCL 2.x, which "
            "kcl-host does not speak. Finish the migration to 3.x with Java KCL, then leave this key out.",
        )
    if version in (VERSION_2X, VERSION_UPGRADE_FROM_2X):
        return Wait(f"the application runs in KCL 2.x mode ({version}); waiting until its migration to 3.x is done")
    if version in (VERSION_3X, VERSION_3X_WITH_ROLLBACK):
        return None
    return Refuse(message=f"The item Migration3.0 says {version!r}, which this version of kcl-host does not know.")


def _decide_tables(facts: MetadataFacts, settings: CoordinatorSettings) -> MetadataDecision:
    if facts.coordinator_table_exists:
        return _beside_coordinator_table(facts, settings)
    if not facts.lease_table_exists:
        # A new application whose workers are to move everything into the lease table may as well begin there.
        if settings.metadata_table_format == "single" or (
            settings.migrate_all_entities and settings.metadata_table_format == "auto"
        ):
            return CreateSingleTable()
        return CreateThreeTables()
    if facts.entity_types or facts.lease_table_has_index:
        if settings.metadata_table_format == "three":
            return Refuse(
                message="metadataTableFormat = three was asked for, but this application has no CoordinatorState table "
                "and its lease table bears the marks of KCL 3.5's single-table format. Creating the other tables "
                "would make a second leader."
            )
        return _single(facts)
    return _beside_bare_lease_table(facts, settings)


def _single(facts: MetadataFacts) -> UseSingleTable:
    return UseSingleTable(
        create_index=not facts.lease_table_has_index,
        watch_client_version=facts.client_version == VERSION_3X_WITH_ROLLBACK,
    )


def _beside_coordinator_table(facts: MetadataFacts, settings: CoordinatorSettings) -> MetadataDecision:
    status = facts.table_migration_status
    if status is not None and status not in KNOWN_STATUSES:
        return Refuse(
            message=f"The item TableMigration3.5 says {status!r}, which this version of kcl-host does not know."
        )
    local = local_status(status, migrate_all=settings.migrate_all_entities)
    if local == "COMPLETE":
        return _single(facts)
    if not facts.coordinator_table_used and facts.lease_table_exists:
        if LEADER_TYPE in facts.entity_types:
            return _single(facts)  # Left over by a worker that wanted three tables and came too late.
        if facts.watched_s < UNUSED_S:
            return Wait("tables without any item: waiting for the worker that is creating them to show its format")
    if LEADER_TYPE in facts.entity_types or (status in (None, STATUS_INIT) and facts.workers_in_lease_table):
        return Refuse(message=_SPLIT_BRAIN)
    if local is None:
        return Refuse(
            because="configuration",
            message="migrateAllEntitiesToLeaseTable = true must wait until TableMigration3.5 says "
            f"{STATUS_DEPLOYED} (it says {status or 'nothing yet'}): deploy the fleet without it first.",
        )
    if settings.metadata_table_format == "single":
        return Refuse(
            because="configuration",
            message="metadataTableFormat = single was asked for, but this application has a CoordinatorState table. "
            "Leave the key out; migrateAllEntitiesToLeaseTable is the way from one format to the other.",
        )
    if not facts.lease_table_exists:
        return CreateThreeTables()
    return UseThreeTables(
        status=local,
        create_worker_metrics_table=not facts.worker_metrics_table_exists and local != "PENDING",
        create_index=not facts.lease_table_has_index,
        watch_client_version=facts.client_version == VERSION_3X_WITH_ROLLBACK,
    )


def _beside_bare_lease_table(facts: MetadataFacts, settings: CoordinatorSettings) -> MetadataDecision:
    if facts.counters_moving is None:
        return Observe("a lease table without the tables of KCL 3.x: watching whether KCL 2.x workers use it")
    if facts.counters_moving and facts.watched_s < STARTING_S:
        # Java 3.0 - 3.4 makes its lease table first, and leases in it; the tables that tell it from 2.x come last.
        return Wait("a lease table in use without the tables of KCL 3.x: waiting whether a worker is making them")
    if facts.counters_moving:
        return Refuse(
            message="KCL 2.x workers are running on this lease table. Migrate the application to KCL 3.x with Java "
            "KCL first, or stop it and set metadataTableFormat = three."
        )
    if settings.metadata_table_format == "three":
        return CreateThreeTables()
    if settings.metadata_table_format == "single":
        return _single(facts)
    return Refuse(
        because="configuration",
        message="The lease table exists without the other tables of KCL 3.x, and nobody renews its leases. If it "
        "belongs to a stopped KCL 2.x application that kcl-host is to continue, set metadataTableFormat = three, or "
        "single where all its workers will be of KCL 3.5.",
    )
