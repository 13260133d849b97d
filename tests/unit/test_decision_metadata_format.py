"""Which metadata tables to use (DESIGN.md 4.3; migration 1.2, 2.2, 4)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import CoordinatorSettings
from kcl_host.decisions.metadata_format import (
    CreateSingleTable,
    CreateThreeTables,
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
from kcl_host.decisions.table_migration import STATUS_COMPLETE, STATUS_DEPLOYED, STATUS_PENDING
from kcl_host.errors import ConfigurationError, MetadataConflict

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "java-kcl-3.1.3-split-merge-cleanup.jsonl"


def decide(
    format: str = "auto", config: str = "CLIENT_VERSION_CONFIG_3X", migrate_all: bool = False, **facts: Any
) -> Any:
    settings = msgspec.convert(
        {"metadata_table_format": format, "client_version_config": config, "migrate_all_entities": migrate_all},
        CoordinatorSettings,
    )
    return decide_metadata_format(MetadataFacts(**{"lease_table_exists": True} | facts), settings)


THREE = {"coordinator_table_exists": True, "worker_metrics_table_exists": True, "lease_table_has_index": True}


@pytest.mark.parametrize("format", ["auto", "three"])
def test_a_new_application_gets_three_tables(format: str) -> None:
    assert decide(format, lease_table_exists=False) == CreateThreeTables()


def test_a_creation_that_was_broken_off_is_continued() -> None:
    assert decide(lease_table_exists=False, coordinator_table_exists=True) == CreateThreeTables()


def test_three_tables_are_used_as_found() -> None:
    assert decide(**THREE, entity_types=frozenset({"LEASE"}), client_version="CLIENT_VERSION_3X") == UseThreeTables()
    assert decide(**THREE) == UseThreeTables()


def test_what_is_missing_beside_the_coordinator_table_is_named() -> None:
    assert decide(coordinator_table_exists=True) == UseThreeTables(create_worker_metrics_table=True, create_index=True)


def test_an_application_that_may_be_rolled_back_is_watched() -> None:
    decision = decide(**THREE, client_version="CLIENT_VERSION_3X_WITH_ROLLBACK")
    assert decision == UseThreeTables(watch_client_version=True)


@pytest.mark.parametrize("version", ["CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"])
def test_2x_modes_are_waited_out(version: str) -> None:
    decision = decide(**THREE, client_version=version, config="CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X")
    assert isinstance(decision, Wait) and version in decision.reason


@pytest.mark.parametrize(
    "facts, message",
    [
        ({**THREE, "client_version": "CLIENT_VERSION_4X"}, "CLIENT_VERSION_4X"),
        ({**THREE, "table_migration_status": "SOMETHING"}, "SOMETHING"),
        ({**THREE, "entity_types": frozenset({"LEASE", "LEADER"})}, "Two leaders"),
        ({**THREE, "workers_in_lease_table": True}, "Two leaders"),
        ({**THREE, "entity_types": frozenset({"LEADER"}), "table_migration_status": STATUS_PENDING}, "Two leaders"),
        ({"format": "three", "entity_types": frozenset({"LEASE"})}, "second leader"),
        ({"format": "three", "lease_table_has_index": True}, "second leader"),
        ({"counters_moving": True, "watched_s": 90.0}, "KCL 2.x workers are running"),
        ({"format": "three", "counters_moving": True, "watched_s": 90.0}, "KCL 2.x workers are running"),
    ],
)
def test_conflicts_are_refused(facts: dict[str, Any], message: str) -> None:
    decision = decide(**facts)
    assert isinstance(decision, Refuse) and message in decision.message
    assert isinstance(decision.error, MetadataConflict)


@pytest.mark.parametrize(
    "facts, message",
    [
        ({"lease_table_exists": False, "config": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"}, "clientVersionConfig"),
        ({**THREE, "config": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}, "clientVersionConfig"),
        ({**THREE, "format": "single"}, "metadataTableFormat = single"),
        ({**THREE, "migrate_all": True}, "must wait until TableMigration3.5 says"),
        ({"counters_moving": False}, "set metadataTableFormat = three"),
    ],
)
def test_configurations_that_cannot_be_are_refused(facts: dict[str, Any], message: str) -> None:
    decision = decide(**facts)
    assert isinstance(decision, Refuse) and message in decision.message
    assert isinstance(decision.error, ConfigurationError)


@pytest.mark.parametrize(
    "facts",
    [
        {"entity_types": frozenset({"LEASE"})},
        {"lease_table_has_index": True},
        {"entity_types": frozenset({"LEASE", "LEADER", "WORKER_METRIC_STATS"}), "lease_table_has_index": True},
        {**THREE, "table_migration_status": STATUS_COMPLETE},
        {**THREE, "coordinator_table_used": False, "entity_types": frozenset({"LEADER"})},
        {"format": "single", "counters_moving": False},
    ],
)
def test_the_single_table_is_recognised(facts: dict[str, Any]) -> None:
    assert decide(**facts) == UseSingleTable(create_index=not facts.get("lease_table_has_index", False))


def test_a_new_application_begins_in_the_lease_table_where_that_is_asked_for() -> None:
    assert decide("single", lease_table_exists=False) == CreateSingleTable()
    assert decide(migrate_all=True, lease_table_exists=False) == CreateSingleTable()
    assert decide("three", migrate_all=True, lease_table_exists=False) == CreateThreeTables()


def test_moved_items_in_the_lease_table_are_no_conflict_on_the_way() -> None:
    moved = frozenset({"LEASE", "WORKER_METRIC_STATS", "CLIENT_VERSION_MIGRATION"})
    for status, migrate_all, local in (
        (STATUS_PENDING, True, "PENDING"),
        (STATUS_DEPLOYED, True, "PENDING"),
        (STATUS_PENDING, False, "DEPLOYED"),
    ):
        facts = {**THREE, "table_migration_status": status, "entity_types": moved, "workers_in_lease_table": True}
        assert decide(migrate_all=migrate_all, **facts) == UseThreeTables(status=local)


def test_tables_without_any_item_are_waited_for_a_minute() -> None:
    assert isinstance(decide(**THREE, coordinator_table_used=False, watched_s=59.9), Wait)
    assert decide(**THREE, coordinator_table_used=False, watched_s=60.0) == UseThreeTables()


def test_a_lease_table_in_use_may_be_that_of_a_java_3_worker_which_is_starting() -> None:
    assert isinstance(decide(counters_moving=True, watched_s=89.9), Wait)


@pytest.mark.parametrize("format", ["auto", "three", "single"])
def test_a_bare_lease_table_is_watched_first(format: str) -> None:
    assert isinstance(decide(format), Observe)


def test_a_bare_lease_table_that_rests_is_taken_on_demand() -> None:
    assert decide("three", counters_moving=False) == CreateThreeTables()


@pytest.mark.parametrize(
    "coordinator, lease, kind",
    [(True, True, Refuse), (True, False, UseThreeTables), (False, True, UseSingleTable), (False, False, Wait)],
)
def test_the_loser_of_the_creation_follows_the_leader(coordinator: bool, lease: bool, kind: type) -> None:
    decision = judge_lost_create(leader_in_coordinator_table=coordinator, leader_in_lease_table=lease)
    assert isinstance(decision, kind)


# Migration3.0


def test_the_item_is_the_one_java_writes() -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    row = next(r["changed"] for r in rows if r.get("key") == "Migration3.0" and r.get("new"))
    item = client_version_item(row["mb"]["S"], int(row["mts"]["N"]))
    assert item.client_version == row["cv"]["S"]
    assert [h.client_version for h in item.history] == [h["M"]["cv"]["S"] for h in row["h"]["L"]]
    assert [h.modified_by for h in item.history] == [h["M"]["mb"]["S"] for h in row["h"]["L"]]
    assert item.history[0].modified_ms == item.modified_ms


def test_the_item_is_created_late_and_only_when_still_missing() -> None:
    delays = [client_version_delay_s(random.Random(seed)) for seed in range(200)]
    assert 60 <= min(delays) < 65 and 115 < max(delays) <= 120
    settings = CoordinatorSettings()
    assert should_create_client_version(None, settings)
    assert not should_create_client_version(client_version_item("w", 1), settings)
    phase = CoordinatorSettings(client_version_config="CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X")
    assert not should_create_client_version(None, phase)
