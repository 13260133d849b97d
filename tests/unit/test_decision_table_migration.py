"""The move into the lease table as decisions (tests/scenarios/table_migration.json; spec migration 2)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.config.settings import CoordinatorSettings, WorkerMetricsSettings
from kcl_host.decisions.table_migration import (
    HISTORY,
    KNOWN_STATUSES,
    NOT_MOVED,
    STATUS_COMPLETE,
    STATUS_DEPLOYED,
    STATUS_INIT,
    STATUS_PENDING,
    Create,
    Finalise,
    FleetSummary,
    LocalStatus,
    Update,
    as_moved,
    first_state,
    followed,
    local_status,
    next_step,
    routes,
    successor,
    summarise_fleet,
    unmovable,
)
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.model.state import CoordinatorItem
from kcl_host.model.worker import WorkerListing, WorkerMetricStats

SCENARIOS = json.loads((Path(__file__).parents[1] / "scenarios" / "table_migration.json").read_text())
NOW_MS = 1_795_000_000_000
ME = "me"
SETTINGS = CoordinatorSettings()
LOCALS: tuple[LocalStatus, ...] = ("INIT", "DEPLOYED", "PENDING", "COMPLETE")


def cases(part: str) -> Any:
    return pytest.mark.parametrize("case", SCENARIOS[part], ids=lambda case: case["name"])


@cases("local_status")
def test_the_status_of_a_worker(case: dict[str, Any]) -> None:
    found = local_status(case["item"], migrate_all=case["migrate_all"])
    assert found == case["expect"], case["why"]
    for before, now in case["followed"].items():
        assert followed(case["item"], before, migrate_all=case["migrate_all"]) == now, case["why"]


def test_the_statuses_are_all_there() -> None:
    statuses = (None, *KNOWN_STATUSES, "TABLE_MIGRATION_STATUS_LATER")
    found = [(case["item"], case["migrate_all"]) for case in SCENARIOS["local_status"]]
    assert sorted(map(str, found)) == sorted(map(str, itertools.product(statuses, (False, True))))
    assert all(tuple(case["followed"]) == LOCALS for case in SCENARIOS["local_status"])


@pytest.mark.parametrize("status", [None, STATUS_INIT, STATUS_DEPLOYED, STATUS_PENDING])
def test_a_running_fleet_of_phase_2_gets_to_the_end_from_every_status(status: str | None) -> None:
    """Its workers could not start again before DEPLOYED, so one of them has to lead it there."""
    fleet = frozenset("ab")
    summary = FleetSummary(lease_owners=fleet, reporting_owners=fleet, active_in_own_table=frozenset(), support_code=1)
    item, local, written = status and first_state(status, "other", NOW_MS), "PENDING", []
    for day in range(1, 6):
        local = followed(item and item.status, local, migrate_all=True)
        step = next_step(local, item, summary, NOT_MOVED, NOW_MS + day * 86_400_000, ME, SETTINGS)
        if isinstance(step, Create | Update | Finalise):
            item = step.state
            written.append(item.status)
    forward = [STATUS_DEPLOYED, STATUS_PENDING, STATUS_COMPLETE]
    assert written == forward[0 if status in (None, STATUS_INIT) else forward.index(status) + 1 :]


@cases("routes")
def test_where_things_are(case: dict[str, Any]) -> None:
    found = routes(case["started"], case["live"])
    assert {name: getattr(found, name) for name in case["expect"]} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in case["expect"].items()
    }, case["why"]


@pytest.mark.parametrize("started", LOCALS)
@pytest.mark.parametrize("live", LOCALS)
def test_what_is_written_is_read(started: LocalStatus, live: LocalStatus) -> None:
    found = routes(started, live)
    assert found.items_written in found.items_read and found.metrics_written in found.metrics_read


@cases("steps")
def test_the_steps_of_the_leader(case: dict[str, Any]) -> None:
    item = case["item"] and first_state(case["item"], "other", NOW_MS - case["age_s"] * 1000)
    left = None if case["left"] is None else frozenset(case["left"])
    step = next_step(case["local"], item, summary_of(case["summary"]), left, NOW_MS, ME, SETTINGS)
    expected = case["expect"]
    assert type(step).__name__ == expected["step"], case["why"]
    assert step.reason
    if isinstance(step, Create | Update | Finalise):
        assert step.state.status == expected["to"]
        assert (step.state.modified_by, step.state.modified_ms) == (ME, NOW_MS)
    if isinstance(step, Update | Finalise):
        assert step.expected_status == expected["from"]
        assert step.state.history[0].status == expected["from"]


def summary_of(summary: dict[str, Any] | None) -> FleetSummary | None:
    return summary and FleetSummary(
        lease_owners=frozenset(summary["owners"]),
        reporting_owners=frozenset(summary["reporting"]),
        active_in_own_table=frozenset(summary["in_own_table"]),
        support_code=summary["code"],
    )


@cases("fleets")
def test_what_a_leader_sees_of_the_fleet(case: dict[str, Any]) -> None:
    now_s = 1_795_000_000
    rows: dict[Any, list[WorkerMetricStats]] = {"legacy": [], "lease": []}
    for worker in case["workers"]:
        rows[worker["place"]].append(
            WorkerMetricStats(
                worker_id=worker["id"],
                last_update_s=now_s - worker["lut_age_s"],
                support_code=worker["code"],
                support_code_update_s=None if worker["slu_age_s"] is None else now_s - worker["slu_age_s"],
            )
        )
    leases = [
        Lease(lease_key=f"s{n}", checkpoint=AT_TRIM_HORIZON, lease_owner=owner, lease_counter=1)
        for n, owner in enumerate(case["lease_owners"])
    ]
    found = {place: WorkerListing(workers=tuple(listed)) for place, listed in rows.items()}
    summary = summarise_fleet(leases, found, now_s, WorkerMetricsSettings())
    assert summary.lease_owners == {owner for owner in case["lease_owners"] if owner}
    assert summary.reporting_owners == set(case["expect"]["reporting"]), case["why"]
    assert summary.active_in_own_table == set(case["expect"]["in_own_table"]), case["why"]
    assert summary.support_code == case["expect"]["code"], case["why"]


# The item


def test_a_new_item_has_one_entry_of_init_behind_it() -> None:
    """As Java makes one: it begins as INIT, and is updated before it is written."""
    state = first_state(STATUS_DEPLOYED, ME, NOW_MS)
    assert [(entry.status, entry.modified_by, entry.modified_ms) for entry in state.history] == [
        (STATUS_INIT, ME, NOW_MS)
    ]


def test_the_history_is_newest_first_and_at_most_ten() -> None:
    state = first_state(STATUS_INIT, ME, 0)
    for n in range(1, 15):
        state = successor(state, STATUS_PENDING if n % 2 else STATUS_DEPLOYED, f"w{n}", n)
    assert len(state.history) == HISTORY == 10
    assert [entry.modified_ms for entry in state.history] == list(range(13, 3, -1))


# The move


@pytest.mark.parametrize(
    ("key", "attributes", "entity_type"),
    [
        ("Migration3.0", {"cv": {"S": "CLIENT_VERSION_3X"}}, "CLIENT_VERSION_MIGRATION"),
        ("orders", {"streamId": {"S": "x"}}, "STREAM"),
        ("orders", {"streamId": {"S": "x"}, "entityType": {"S": "STREAM"}}, "STREAM"),
        ("Leader", {"ownerName": {"S": "a"}}, None),
        ("TableMigration3.5", {"tm": {"S": STATUS_DEPLOYED}}, None),
        ("else", {"a": {"S": "b"}}, None),
        ("else", {"streamId": {"S": "x"}, "entityType": {"S": "LATER"}}, None),
    ],
)
def test_what_is_moved_and_as_what(key: str, attributes: dict[str, Any], entity_type: str | None) -> None:
    item = CoordinatorItem(key=key, attributes=attributes)
    moved = as_moved(item)
    assert (None if moved is None else moved.entity_type) == entity_type
    if moved is not None:
        assert {**moved.attributes, "entityType": None} == {**attributes, "entityType": None}
    assert unmovable([item]) == (["else"] if key == "else" else [])


# Whatever happens

owners = st.frozensets(st.sampled_from("abc"))
summaries = st.builds(
    FleetSummary,
    lease_owners=owners,
    reporting_owners=owners,
    active_in_own_table=owners,
    support_code=st.integers(0, 1),
)
items = st.none() | st.builds(
    first_state,
    st.sampled_from([STATUS_INIT, STATUS_DEPLOYED, STATUS_PENDING, STATUS_COMPLETE]),
    st.just("other"),
    st.integers(NOW_MS - 200_000_000, NOW_MS + 10_000),
)
left_over = st.none() | st.frozensets(st.sampled_from(["Leader", "TableMigration3.5", "Migration3.0"]))


@given(st.sampled_from(LOCALS), items, summaries, left_over)
def test_the_end_needs_everything_in_the_lease_table_for_a_day(
    local: LocalStatus, item: Any, summary: FleetSummary, left: frozenset[str] | None
) -> None:
    step = next_step(local, item, summary, left, NOW_MS, ME, SETTINGS)
    if isinstance(step, Finalise):
        assert local == "PENDING" and item.status == STATUS_PENDING
        assert summary.lease_owners == summary.reporting_owners and not summary.active_in_own_table
        assert left is not None and left <= NOT_MOVED
        assert NOW_MS - item.modified_ms >= 86_400_000


@given(st.sampled_from(LOCALS), items, summaries, left_over)
def test_the_status_goes_forward_by_one_or_back_to_deployed(
    local: LocalStatus, item: Any, summary: FleetSummary, left: frozenset[str] | None
) -> None:
    step = next_step(local, item, summary, left, NOW_MS, ME, SETTINGS)
    if isinstance(step, Update):
        assert (step.expected_status, step.state.status) in {
            (STATUS_INIT, STATUS_DEPLOYED),
            (STATUS_DEPLOYED, STATUS_PENDING),
            (STATUS_PENDING, STATUS_DEPLOYED),
        }
        assert step.expected_status == item.status
    if isinstance(step, Create):
        assert item is None
