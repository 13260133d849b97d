"""The item TableMigration3.5 and the move into the lease table, on every engine (spec migration 2)."""

from __future__ import annotations

import pytest
from contract_engines import Migration

from kcl_host.decisions.metadata_format import client_version_item
from kcl_host.decisions.table_migration import (
    STATUS_COMPLETE,
    STATUS_DEPLOYED,
    STATUS_INIT,
    STATUS_PENDING,
    as_moved,
    first_state,
    successor,
)
from kcl_host.model.state import CLIENT_VERSION_KEY, LEADER_KEY, LeaderLock

ME, OTHER = "me", "other"
LOCK = LeaderLock(owner_name=ME, lease_duration_ms=10_000, record_version_number="1")
INIT = first_state(STATUS_INIT, ME, 1_795_000_000_000)
DEPLOYED = successor(INIT, STATUS_DEPLOYED, OTHER, 1_795_000_001_000)
PENDING = successor(DEPLOYED, STATUS_PENDING, ME, 1_795_000_002_000)
COMPLETE = successor(PENDING, STATUS_COMPLETE, ME, 1_795_000_003_000)
VERSION = client_version_item(OTHER, 1_795_000_000_000)


def test_there_is_no_item_at_first(migration: Migration) -> None:
    assert migration.items.read() is None
    assert migration.items.list_items() == []


def test_it_is_created_once_and_read_as_written(migration: Migration) -> None:
    assert migration.items.create(INIT)
    assert not migration.items.create(DEPLOYED)
    assert migration.items.read() == INIT


def test_it_is_updated_from_the_status_expected(migration: Migration) -> None:
    assert not migration.items.update(DEPLOYED, STATUS_INIT), "there is none"
    migration.items.create(INIT)
    assert migration.items.update(DEPLOYED, STATUS_INIT)
    assert not migration.items.update(PENDING, STATUS_INIT)
    assert migration.items.read() == DEPLOYED
    assert [entry.status for entry in DEPLOYED.history] == [STATUS_INIT, STATUS_INIT]


def test_it_is_deleted_with_the_status_expected(migration: Migration) -> None:
    migration.items.create(INIT)
    assert not migration.items.delete(STATUS_DEPLOYED)
    assert migration.items.delete(STATUS_INIT)
    assert not migration.items.delete(STATUS_INIT)
    assert migration.items.read() is None


def filled(migration: Migration) -> Migration:
    migration.require("transactions")
    migration.items.create(DEPLOYED)
    assert migration.legacy.acquire_lock(LOCK, None)
    assert migration.legacy.create_client_version(VERSION)
    return migration


def moved(migration: Migration, leader: str = ME) -> bool:
    items = [item for found in migration.items.list_items() if (item := as_moved(found)) is not None]
    assert [item.key for item in items] == [CLIENT_VERSION_KEY]
    return migration.items.move(items, leader)


def test_the_move(migration: Migration) -> None:
    filled(migration)
    assert moved(migration)
    assert migration.legacy.read_client_version() is None
    assert migration.in_lease_table.read_client_version() == VERSION
    assert {item.key for item in migration.items.list_items()} == {LEADER_KEY, "TableMigration3.5"}
    assert migration.in_lease_table.read_lock() is None


def test_only_the_leader_moves(migration: Migration) -> None:
    filled(migration)
    assert not moved(migration, OTHER)
    assert migration.legacy.read_client_version() == VERSION
    assert migration.in_lease_table.read_client_version() is None


def test_an_item_that_is_in_the_lease_table_already_is_not_replaced(migration: Migration) -> None:
    filled(migration)
    theirs = client_version_item("theirs", 5)
    assert migration.in_lease_table.create_client_version(theirs)
    assert not moved(migration)
    assert migration.legacy.read_client_version() == VERSION
    assert migration.in_lease_table.read_client_version() == theirs


@pytest.mark.parametrize(
    ("status", "leader", "done"), [(PENDING, ME, True), (PENDING, OTHER, False), (DEPLOYED, ME, False)]
)
def test_the_end_is_written_by_the_leader_from_pending(
    migration: Migration, status: object, leader: str, done: bool
) -> None:
    filled(migration)
    if status is PENDING:
        migration.items.update(PENDING, STATUS_DEPLOYED)
    assert migration.items.finalise(COMPLETE, STATUS_PENDING, leader) is done
    assert migration.items.read() == (COMPLETE if done else status)
    assert not migration.items.finalise(COMPLETE, STATUS_PENDING, leader), "once"
