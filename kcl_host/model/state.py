"""Coordinator state: the leader lock and the client version migration (spec coordination 1.3, migration 1.1)."""

from __future__ import annotations

from typing import Final, Literal

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
