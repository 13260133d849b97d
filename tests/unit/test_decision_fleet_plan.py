"""`kcl-host plan`: what the leader would do, with the workers there are and with others; and the file it is kept in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kcl_host.cli.main import cli
from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.decisions.fleet_looks import FleetSnapshot, PartFailure
from kcl_host.decisions.fleet_plan import FleetPlan, plan_fleet
from kcl_host.decisions.saved_fleet import SavedFleet, lightest_workers, load_fleet, save_fleet
from kcl_host.errors import ConfigurationError
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange
from kcl_host.model.state import ClientVersionState, LeaderLock
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from tests.unit.coordination_rig import settings_of

WALL_S = 1_800_000_000.0
LOCK = LeaderLock(owner_name="a", lease_duration_ms=10_000, record_version_number="v")


def row(key: str, owner: str | None, kbps: float | None = 10.0, **fields: Any) -> Lease:
    fields = {"checkpoint": AT_TRIM_HORIZON, "lease_counter": 5, "throughput_kbps": kbps, **fields}
    return Lease(lease_key=key, lease_owner=owner, **fields)


def worker(worker_id: str, age_s: float = 1.0, **fields: Any) -> WorkerMetricStats:
    return WorkerMetricStats(worker_id=worker_id, last_update_s=int(WALL_S - age_s), **fields)


def seen(leases: list[Lease], workers: list[WorkerMetricStats], at_s: float = 100.0, **fields: Any) -> FleetSnapshot:
    fields = {"lock": LOCK, **fields}
    return FleetSnapshot(
        taken_s=WALL_S,
        at_s=at_s,
        listing=LeaseListing(leases=tuple(leases)),
        workers=WorkerListing(workers=tuple(workers)),
        **fields,
    )


def fleet(*looks: FleetSnapshot, **leases: Any) -> SavedFleet:
    return SavedFleet(
        application="orders",
        assignment=AssignmentSettings(),
        leases=LeaseSettings(**leases),
        metrics=WorkerMetricsSettings(),
        looks=looks,
    )


def plan(saved: SavedFleet, **change: Any) -> FleetPlan:
    return plan_fleet(saved, random.Random(0), **change)


def counts(planned: FleetPlan) -> dict[str, tuple[int, int]]:
    return {w.worker_id: (w.leases_before, w.leases_after) for w in planned.workers}


EVEN = fleet(
    seen([row(f"s{n}", "a" if n % 2 else "b") for n in range(8)], [worker("a"), worker("b")]),
)


def test_nothing_moves_in_a_fleet_that_is_even() -> None:
    planned = plan(EVEN)
    assert (planned.moves, planned.notes, planned.leases) == ((), (), 8)
    assert counts(planned) == {"a": (4, 4), "b": (4, 4)}


def test_workers_more_get_their_share_by_handovers() -> None:
    planned = plan(EVEN, joining=2)
    assert planned.joining == ("new-1", "new-2")
    assert counts(planned) == {"a": (4, 2), "b": (4, 2), "new-1": (0, 2), "new-2": (0, 2)}
    assert {(move.kind, move.reason) for move in planned.moves} == {("handoff", "newcomer")}
    assert [w.standing for w in planned.workers] == ["active", "active", "joining", "joining"]


def test_a_removed_worker_hands_over_all_that_it_holds() -> None:
    planned = plan(EVEN, removed={"b"})
    assert counts(planned) == {"a": (4, 8), "b": (4, 0)}
    assert {(move.before, move.after, move.reason) for move in planned.moves} == {("b", "a", "leaving")}


def test_what_several_removed_workers_hold_is_spread_over_the_others() -> None:
    workers = [worker(name) for name in "abcd"]
    planned = plan(fleet(seen([row(f"s{n}", "abcd"[n % 4]) for n in range(8)], workers)), removed={"c", "d"})
    assert counts(planned) == {"a": (2, 4), "b": (2, 4), "c": (2, 0), "d": (2, 0)}


def test_the_lightest_go_first_and_somebody_stays() -> None:
    saved = fleet(
        seen([row("s1", "a", 50.0), row("s2", "b", 5.0), row("s3", "c", 20.0)], [worker(name) for name in "abc"])
    )
    assert lightest_workers(saved, 2) == ("b", "c")
    assert lightest_workers(saved, 1, beside={"b"}) == ("c",)
    with pytest.raises(ConfigurationError, match="3 fewer leave none"):
        lightest_workers(saved, 3)


def test_a_worker_that_is_not_active_cannot_be_removed() -> None:
    with pytest.raises(ConfigurationError, match="no active worker of this fleet: nobody"):
        plan(EVEN, removed={"nobody"})


def test_what_nobody_owns_is_assigned_at_once() -> None:
    planned = plan(fleet(seen([row("s1", "a"), row("s2", None)], [worker("a"), worker("b")])))
    (move,) = planned.moves
    assert (move.lease_key, move.before, move.after, move.kind, move.reason) == (
        "s2",
        None,
        "b",
        "assign",
        "unassigned",
    )


def test_one_look_does_not_take_leases_from_workers_that_do_not_report_and_says_so() -> None:
    planned = plan(fleet(seen([row("s1", "a"), row("s2", "gone")], [worker("a"), worker("gone", 500)])))
    assert planned.moves == ()
    (note,) = planned.notes
    assert "1 leases belong to workers that do not report" in note and "--observe 11" in note


def test_two_looks_longer_apart_than_a_lease_show_who_is_silent() -> None:
    workers = [worker("a"), worker("silent")]
    first = seen([row("s1", "a"), row("s2", "silent")], workers)
    then = seen([row("s1", "a", lease_counter=9), row("s2", "silent")], workers, at_s=111.0)
    planned = plan(fleet(first, then))
    assert [(move.lease_key, move.after, move.kind, move.reason) for move in planned.moves] == [
        ("s2", "a", "assign", "expired")
    ]
    assert {w.worker_id: w.standing for w in planned.workers} == {"a": "active", "silent": "silent"}
    assert planned.observed_s == 11.0


def test_nothing_is_balanced_while_an_owner_has_not_been_seen_to_renew() -> None:
    leases = [row(f"s{n}", "a", lease_counter=1) for n in range(4)]
    renewed = [row(f"s{n}", "a", lease_counter=2) for n in range(4)]
    workers = [worker("a"), worker("b")]
    quick = plan(fleet(seen(leases, workers), seen(leases, workers, at_s=101.0)))
    assert quick.moves == () and "owners have not been seen to renew a lease: a (seen for 1 s)" in quick.notes[0]
    assert counts(plan(fleet(seen(leases, workers), seen(renewed, workers, at_s=104.0))))["b"] == (0, 2)


def test_finished_shards_do_not_count() -> None:
    planned = plan(fleet(seen([row("s1", "a"), row("s2", "a", checkpoint=AT_SHARD_END)], [worker("a")])))
    assert (planned.leases, counts(planned)) == (1, {"a": (1, 1)})


def test_a_lease_that_finds_nobody_is_told() -> None:
    planned = plan(fleet(seen([row("s1", "a"), row("s2", None)], [worker("a")]), max_leases_for_worker=1))
    assert planned.without_target == 1 and "1 leases find no worker" in planned.notes[0]


def test_new_workers_measure_what_the_others_measure() -> None:
    busy = {"metric_stats": {"C": [80.0]}, "operating_range": {"C": [90.0]}}
    planned = plan(fleet(seen([row(f"s{n}", "a") for n in range(4)], [worker("a", **busy)])), joining=1)
    assert {w.worker_id: dict(w.metrics) for w in planned.workers} == {"a": {"C": 80.0}, "new-1": {"C": 0.0}}
    assert counts(planned) == {"a": (4, 2), "new-1": (0, 2)}


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"lock": None}, "nobody owns the leader lock"),
        ({"lock": replace(LOCK, lease_duration_ms=120_000)}, "lasts 120 s, not failoverTimeMillis: a Java leader"),
        ({"failures": (PartFailure(part="worker metrics", error="denied"),)}, "worker metrics could not be read"),
        (
            {"client_version": ClientVersionState(client_version="CLIENT_VERSION_2X", modified_by="t", modified_ms=0)},
            "no leader assigns leases until the application runs as 3.x",
        ),
    ],
)
def test_what_one_must_know_to_read_the_plan(fields: dict[str, Any], note: str) -> None:
    (only,) = plan(fleet(seen([row("s1", "a")], [worker("a")], **fields))).notes
    assert note in only


def test_metrics_in_both_tables_count_once_the_newer_one() -> None:
    snapshot = seen([row("s1", "a")], [worker("a", 500), worker("b")])
    moved = replace(snapshot.listing, workers=WorkerListing(workers=(worker("a"),)))
    planned = plan(fleet(replace(snapshot, listing=moved)))
    assert [(w.worker_id, w.standing) for w in planned.workers] == [("a", "active"), ("b", "active")]


def test_a_saved_fleet_comes_back_and_keeps_no_state_of_applications(tmp_path: Path) -> None:
    secret = row(
        "s1",
        "a",
        hash_key_range=HashKeyRange(0, MAX_HASH_KEY),
        parent_shard_ids=frozenset({"s0"}),
        pending_checkpoint_state=b"secret",
    )
    looks = [seen([secret], [worker("a")], at_s=at_s) for at_s in (1.0, 2.0, 3.0)]
    saved = load_fleet(save_fleet(looks, settings_of("me")))
    assert [snapshot.at_s for snapshot in saved.looks] == [1.0, 3.0]
    assert saved.looks[-1].listing.leases == (replace(secret, pending_checkpoint_state=None),)
    assert saved.assignment.max_throughput_per_host_kbps > 1e200
    assert plan(saved).application == settings_of("me").application_name


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema": 99}', b"\xff\x00"])
def test_what_is_no_saved_fleet_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="no fleet saved by"):
        load_fleet(data)


def test_a_fleet_of_another_schema_is_refused() -> None:
    data = save_fleet([EVEN.looks[0]], settings_of("me")).replace(b'"schema": 1', b'"schema": 2')
    with pytest.raises(ConfigurationError, match="schema 2; this kcl-host reads 1"):
        load_fleet(data)


# The command


@pytest.fixture
def snapshot_file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.json"
    path.write_bytes(save_fleet(EVEN.looks, settings_of("me")))
    return str(path)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["plan", *args], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout


def test_the_command_plans_from_a_file(snapshot_file: str) -> None:
    code, text = run("--snapshot", snapshot_file, "--workers", "+2")
    assert code == 0 and "4 of 8 leases would move, with 2 more: new-1, new-2" in text
    assert "4 -> 2" in text and "newcomer  handover" in text
    code, text = run("--snapshot", snapshot_file, "--workers", "-1", "--json")
    document = json.loads(text)
    assert (code, document["schema"], document["removed"], len(document["moves"])) == (0, 1, ["a"], 4)
    assert "nothing would move" in run("--snapshot", snapshot_file)[1]
    assert "without b" in run("--snapshot", snapshot_file, "--without", "b")[1]


@pytest.mark.parametrize("change", ["2", "+", "-x", "+1.5", ""])
def test_a_change_of_workers_is_a_signed_number(snapshot_file: str, change: str) -> None:
    with pytest.raises(Exception, match=r"--workers is \+N or -N"):
        run("--snapshot", snapshot_file, "--workers", change)
