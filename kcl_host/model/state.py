"""Coordinator state: the leader lock and the items of both migrations (spec coordination 1.3, migration 1.1, 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

LEADER_KEY: Final = "Leader"
CLIENT_VERSION_KEY: Final = "Migration3.0"
TABLE_MIGRATION_KEY: Final = "TableMigration3.5"

TableFormat = Literal["three_tables", "single_table"]


class LeaderLock(msgspec.Struct, frozen=True, kw_only=True):
    """The lock item. `lease_duration_ms` is the holder's own value, which everybody honours."""

    owner_name: str
    lease_duration_ms: int
    record_version_number: str
    is_released: bool = False


class VersionHistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    client_version: str
    modified_by: str
    modified_ms: int


class ClientVersionState(msgspec.Struct, frozen=True, kw_only=True):
    """The Migration3.0 item; `history` newest first, at most 10."""

    client_version: str
    modified_by: str
    modified_ms: int
    history: tuple[VersionHistoryEntry, ...] = ()


class TableHistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    modified_by: str
    modified_ms: int


class TableMigrationState(msgspec.Struct, frozen=True, kw_only=True):
    """The TableMigration3.5 item; `status` is `tm`, `history` newest first, at most 10 (spec migration 2.1).

    `modified_ms` (epoch milliseconds) is also the start of the bake time of this status.
    """

    status: str
    modified_by: str
    modified_ms: int
    history: tuple[TableHistoryEntry, ...] = ()


class CoordinatorItem(msgspec.Struct, frozen=True, kw_only=True):
    """Any item of the CoordinatorState table, to be moved as it stands: `attributes` without the key, as stored."""

    key: str
    attributes: Mapping[str, Any]

    @property
    def entity_type(self) -> str | None:
        """None when the item bears none, as those of versions before 3.5."""
        value: str | None = self.attributes.get("entityType", {}).get("S")
        return value
