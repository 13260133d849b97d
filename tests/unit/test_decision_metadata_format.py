"""Which metadata tables to use, and whether to join at all (DESIGN.md 4.3; migration 1.2, 2.2, 4).

The cases are in tests/scenarios/metadata_format.json and client_version.json.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    judge_version,
    promoted_client_version,
    should_create_client_version,
)
from kcl_host.decisions.table_migration import KNOWN_STATUSES, local_status
from kcl_host.errors import ConfigurationError, MetadataConflict
from kcl_host.model.state import ClientVersionState, VersionHistoryEntry

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "java-kcl-3.1.3-split-merge-cleanup.jsonl"
SCENARIOS = Path(__file__).parents[1] / "scenarios"
STARTS = json.loads((SCENARIOS / "metadata_format.json").read_text())
VERSIONS = json.loads((SCENARIOS / "client_version.json").read_text())
ANSWERS = {
    kind.__name__: kind
    for kind in (CreateThreeTables, CreateSingleTable, UseThreeTables, UseSingleTable, Observe, Wait, Refuse)
}


def choices(field: str) -> tuple[Any, ...]:
    """All values of a setting."""
    return get_args(get_type_hints(CoordinatorSettings)[field])


def cases(part: str) -> Any:
    return pytest.mark.parametrize("case", STARTS[part], ids=lambda case: case["name"])


def decide(case: dict[str, Any]) -> Any:
    facts = msgspec.convert(case["facts"], MetadataFacts)
    return decide_metadata_format(facts, msgspec.convert(case["settings"], CoordinatorSettings))


def check(decision: Any, expected: dict[str, Any], why: str) -> None:
    """The whole answer; of one in words, a part of them."""
    fields = {name: value for name, value in expected.items() if name not in ("decision", "says")}
    kind = ANSWERS[expected["decision"]]
    assert type(decision) is kind, why
    if issubclass(kind, Refuse):
        assert expected["says"] in decision.message, why
        assert decision.because == expected["because"], why
        assert type(decision.error) is (MetadataConflict if expected["because"] == "conflict" else ConfigurationError)
    elif issubclass(kind, Wait | Observe):
        assert expected["says"] in decision.reason, why
    else:
        assert decision == kind(**fields), why


@cases("statuses")
def test_every_status_of_the_table_migration(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


def test_the_statuses_are_all_there() -> None:
    beside = {
        (case["facts"].get("table_migration_status"), case["settings"]["migrate_all_entities"])
        for case in STARTS["statuses"]
        if case["facts"].get("coordinator_table_exists")
    }
    assert beside == set(itertools.product((None, *KNOWN_STATUSES, "TABLE_MIGRATION_STATUS_LATER"), (False, True)))


@cases("new_application")
def test_a_new_application(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("three_tables")
def test_three_tables_are_used_as_found(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("on_the_way")
def test_moved_items_in_the_lease_table_are_no_conflict_on_the_way(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("single_table")
def test_the_single_table_is_recognised(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("2x_modes")
def test_2x_modes_are_waited_out(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("conflicts")
def test_conflicts_are_refused(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("configurations")
def test_configurations_that_cannot_be_are_refused(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("unused_tables")
def test_tables_without_any_item_are_waited_for_a_minute(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("bare_lease_table")
def test_a_bare_lease_table_is_watched_first(case: dict[str, Any]) -> None:
    check(decide(case), case["expect"], case["why"])


@cases("lost_create")
def test_the_loser_of_the_creation_follows_the_leader(case: dict[str, Any]) -> None:
    decision = judge_lost_create(
        leader_in_coordinator_table=case["coordinator_table"], leader_in_lease_table=case["lease_table"]
    )
    check(decision, case["expect"], case["why"])


# Whatever is found

facts = st.builds(
    MetadataFacts,
    lease_table_exists=st.booleans(),
    lease_table_has_index=st.booleans(),
    entity_types=st.frozensets(st.sampled_from(["LEASE", "LEADER", "WORKER_METRIC_STATS", "STREAM"])),
    workers_in_lease_table=st.booleans(),
    coordinator_table_exists=st.booleans(),
    coordinator_table_used=st.booleans(),
    worker_metrics_table_exists=st.booleans(),
    table_migration_status=st.sampled_from([None, *KNOWN_STATUSES, "TABLE_MIGRATION_STATUS_LATER"]),
    client_version=st.sampled_from([None, *sorted({case["item"] for case in VERSIONS if case["item"]})]),
    counters_moving=st.none() | st.booleans(),
    watched_s=st.floats(0, 200),
)
settings = st.builds(
    CoordinatorSettings,
    client_version_config=st.sampled_from(choices("client_version_config")),
    metadata_table_format=st.sampled_from(choices("metadata_table_format")),
    migrate_all_entities=st.booleans(),
)


@given(facts, settings)
def test_no_second_leader_is_made(facts: MetadataFacts, settings: CoordinatorSettings) -> None:
    decision = decide_metadata_format(facts, settings)
    marked = bool(facts.entity_types) or facts.lease_table_has_index
    if isinstance(decision, CreateThreeTables) and facts.lease_table_exists:
        assert not facts.coordinator_table_exists and not marked and facts.counters_moving is False
        assert settings.metadata_table_format == "three"
    if isinstance(decision, CreateSingleTable):
        assert not facts.lease_table_exists and not facts.coordinator_table_exists
    if isinstance(decision, UseThreeTables):
        assert facts.coordinator_table_exists and facts.lease_table_exists
        assert "LEADER" not in facts.entity_types, "the lock is in the lease table"
        assert decision.status == local_status(facts.table_migration_status, migrate_all=settings.migrate_all_entities)
    if isinstance(decision, UseSingleTable) and facts.coordinator_table_exists:
        complete = facts.table_migration_status == KNOWN_STATUSES[-1]
        assert complete or ("LEADER" in facts.entity_types and not facts.coordinator_table_used)
    if facts.client_version in ("CLIENT_VERSION_2X", "CLIENT_VERSION_UPGRADE_FROM_2X"):
        assert isinstance(decision, Wait)


# Migration3.0


@pytest.mark.parametrize("case", VERSIONS, ids=lambda case: case["name"])
def test_every_client_version(case: dict[str, Any]) -> None:
    settings = CoordinatorSettings(client_version_config=case["config"])
    told = CoordinatorSettings(client_version_config=case["config"], client_version_is_explicit=True)
    found = case["item"] and ClientVersionState(client_version=case["item"], modified_by="other", modified_ms=1)
    verdict = judge_version(case["item"], settings)
    if case["expect"]["decision"] == "GoOn":
        assert verdict is None, case["why"]
    else:
        check(verdict, case["expect"], case["why"])
    assert should_create_client_version(found, settings) == case["creates"], case["why"]
    if found is not None:
        assert promoted_client_version(found, settings, "me", 2) is None, "nobody has said so"
        assert (promoted_client_version(found, told, "me", 2) is not None) == case["promotes_when_told"], case["why"]


def test_the_client_versions_are_all_there() -> None:
    items = {case["item"] for case in VERSIONS}
    assert {"CLIENT_VERSION_" + name for name in ("2X", "UPGRADE_FROM_2X", "3X_WITH_ROLLBACK", "3X")} | {None} < items
    cells = {(case["item"], case["config"]) for case in VERSIONS}
    assert cells == set(itertools.product(items, choices("client_version_config")))


def test_the_end_of_the_rollback_time_keeps_the_history() -> None:
    before = ClientVersionState(
        client_version="CLIENT_VERSION_3X_WITH_ROLLBACK",
        modified_by="java",
        modified_ms=11,
        history=tuple(
            VersionHistoryEntry(client_version=f"v{n}", modified_by="java", modified_ms=n) for n in range(10, 0, -1)
        ),
    )
    after = promoted_client_version(before, CoordinatorSettings(client_version_is_explicit=True), "me", 12)
    assert after is not None
    assert (after.client_version, after.modified_by, after.modified_ms) == ("CLIENT_VERSION_3X", "me", 12)
    assert [entry.modified_ms for entry in after.history] == list(range(11, 1, -1))
    assert after.history[0].client_version == before.client_version


def test_the_item_is_the_one_java_writes() -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    row = next(r["changed"] for r in rows if r.get("key") == "Migration3.0" and r.get("new"))
    item = client_version_item(row["mb"]["S"], int(row["mts"]["N"]))
    assert item.client_version == row["cv"]["S"]
    assert [h.client_version for h in item.history] == [h["M"]["cv"]["S"] for h in row["h"]["L"]]
    assert [h.modified_by for h in item.history] == [h["M"]["mb"]["S"] for h in row["h"]["L"]]
    assert item.history[0].modified_ms == item.modified_ms


def test_the_item_is_created_late() -> None:
    delays = [client_version_delay_s(random.Random(seed)) for seed in range(200)]
    assert 60 <= min(delays) < 65 and 115 < max(delays) <= 120
