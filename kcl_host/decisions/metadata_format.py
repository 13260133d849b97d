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
from kcl_host.errors import ConfigurationError, KclHostError, MetadataConflict
from kcl_host.model.state import ClientVersionState, VersionHistoryEntry

VERSION_INIT: Final = "CLIENT_VERSION_INIT"
"""Stands only in the history of the item, as what came before its first value."""
VERSION_2X: Final = "CLIENT_VERSION_2X"
VERSION_UPGRADE_FROM_2X: Final = "CLIENT_VERSION_UPGRADE_FROM_2X"
VERSION_3X_WITH_ROLLBACK: Final = "CLIENT_VERSION_3X_WITH_ROLLBACK"
VERSION_3X: Final = "CLIENT_VERSION_3X"

_LEASE: Final = "LEASE"
_COMPLETE: Final = "TABLE_MIGRATION_STATUS_COMPLETE"


class MetadataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables show at start.

    `entity_types` are those seen on rows of the lease table, empty when nobody looked; `table_migration_status` and
    `client_version` are `tm` and `cv` of their items, None without item. `counters_moving`: whether some lease counter
    grew while they were watched for longer than failoverTimeMillis; None when nobody watched yet.
    """

    lease_table_exists: bool
    lease_table_has_index: bool = False
    entity_types: frozenset[str] = frozenset()
    coordinator_table_exists: bool = False
    worker_metrics_table_exists: bool = False
    table_migration_status: str | None = None
    client_version: str | None = None
    counters_moving: bool | None = None


class CreateThreeTables(msgspec.Struct, frozen=True):
    """Create CoordinatorState and WorkerMetricStats, and only then the lease table with its index; each where missing.

    When somebody else wins the creation of the lease table, `judge_lost_create` says how to go on.
    """


class UseThreeTables(msgspec.Struct, frozen=True, kw_only=True):
    """Go on. `watch_client_version`: the fleet may still be rolled back, so read Migration3.0 once a minute."""

    create_worker_metrics_table: bool = False
    create_index: bool = False
    watch_client_version: bool = False


class UseSingleTable(msgspec.Struct, frozen=True):
    """The format of KCL 3.5. Not written yet, hence to be refused with `message` (MetadataConflict)."""

    message: str


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


MetadataDecision = CreateThreeTables | UseThreeTables | UseSingleTable | Observe | Wait | Refuse

_SINGLE_TABLE_LATER: Final = (
    "This version of kcl-host does not support the single-table format of KCL 3.5 yet; "
    "run such an application with Java KCL 3.5."
)


def decide_metadata_format(facts: MetadataFacts, settings: CoordinatorSettings) -> MetadataDecision:
    """How this worker may use the tables it found. Raises nothing."""
    return _refused_version(facts, settings) or _decide_tables(facts, settings)


def judge_lost_create(*, leader_in_coordinator_table: bool, leader_in_lease_table: bool) -> MetadataDecision:
    """How to go on after another worker created the lease table first: its format shows where the leader's lock is."""
    if leader_in_coordinator_table and leader_in_lease_table:
        return Refuse(message=_SPLIT_BRAIN)
    if leader_in_lease_table:
        return UseSingleTable(
            f"Another worker created this application in the single-table format. {_SINGLE_TABLE_LATER}"
        )
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


def should_create_client_version(fresh: ClientVersionState | None, settings: CoordinatorSettings) -> bool:
    """Whether to create Migration3.0 now; `fresh` is a read made for this question, None when there is no item."""
    return fresh is None and settings.client_version_config == "CLIENT_VERSION_CONFIG_3X"


_SPLIT_BRAIN: Final = (
    "Two leaders are possible: the lease table holds items of KCL 3.5's single-table format, and a CoordinatorState "
    "table exists beside it. Stop all workers, decide for one format, and remove the other's items."
)


def _refused_version(facts: MetadataFacts, settings: CoordinatorSettings) -> Wait | Refuse | None:
    """What the state of the 2.x to 3.x migration forbids; None when it forbids nothing."""
    version = facts.client_version
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
    single_asked = settings.metadata_table_format == "single"
    if facts.coordinator_table_exists:
        return _beside_coordinator_table(facts, single_asked)
    if not facts.lease_table_exists:
        if single_asked:
            return UseSingleTable(f"metadataTableFormat = single was asked for. {_SINGLE_TABLE_LATER}")
        return CreateThreeTables()
    if facts.entity_types or facts.lease_table_has_index:
        if settings.metadata_table_format == "three":
            return Refuse(
                message="metadataTableFormat = three was asked for, but this application has no CoordinatorState table "
                "and its lease table bears the marks of KCL 3.5's single-table format. Creating the other tables "
                "would make a second leader."
            )
        return UseSingleTable(f"This application uses the single-table format. {_SINGLE_TABLE_LATER}")
    return _beside_bare_lease_table(facts, settings)


def _beside_coordinator_table(facts: MetadataFacts, single_asked: bool) -> MetadataDecision:
    status = facts.table_migration_status
    if status == _COMPLETE:
        return UseSingleTable(f"This application has moved to the single-table format. {_SINGLE_TABLE_LATER}")
    if status is not None:
        return Refuse(
            message=f"A migration to KCL 3.5's single-table format is under way (TableMigration3.5 says {status}), "
            "and kcl-host cannot take part in it yet."
        )
    if facts.entity_types - {_LEASE}:
        return Refuse(message=_SPLIT_BRAIN)
    if single_asked:
        return Refuse(
            because="configuration",
            message="metadataTableFormat = single was asked for, but this application has a CoordinatorState table. "
            "Leave the key out.",
        )
    if not facts.lease_table_exists:
        return CreateThreeTables()
    return UseThreeTables(
        create_worker_metrics_table=not facts.worker_metrics_table_exists,
        create_index=not facts.lease_table_has_index,
        watch_client_version=facts.client_version == VERSION_3X_WITH_ROLLBACK,
    )


def _beside_bare_lease_table(facts: MetadataFacts, settings: CoordinatorSettings) -> MetadataDecision:
    if facts.counters_moving is None:
        return Observe("a lease table without the tables of KCL 3.x: watching whether KCL 2.x workers use it")
    if facts.counters_moving:
        return Refuse(
            message="KCL 2.x workers are running on this lease table. Migrate the application to KCL 3.x with Java "
            "KCL first, or stop it and set metadataTableFormat = three."
        )
    if settings.metadata_table_format == "three":
        return CreateThreeTables()
    if settings.metadata_table_format == "single":
        return UseSingleTable(f"metadataTableFormat = single was asked for. {_SINGLE_TABLE_LATER}")
    return Refuse(
        because="configuration",
        message="The lease table exists without the other tables of KCL 3.x, and nobody renews its leases. If it "
        "belongs to a stopped KCL 2.x application that kcl-host is to continue, set metadataTableFormat = three.",
    )
