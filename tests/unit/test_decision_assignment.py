"""Lease assignment: worked examples (tests/scenarios/assignment), single rules, and invariants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import AssignmentSettings, LeaseSettings
from kcl_host.decisions.assignment import is_balancing_pass, plan_departure
from kcl_host.decisions.fleet import Fleet
from kcl_host.decisions.handover import write_kind
from tests.unit.assignment_rig import METRICS, NOW_S, WALL_S, Row, Worker, counts, plan, stats, tracked, when_applied

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "assignment").glob("*.json"))


# Worked examples


class ExpectedMove(msgspec.Struct, forbid_unknown_fields=True):
    lease: str
    to: str
    kind: str
    reason: str


class Pass(msgspec.Struct, forbid_unknown_fields=True):
    """One pass and its whole plan; `lease_counts` is per active worker once the plan is applied."""

    moves: list[ExpectedMove]
    lease_counts: dict[str, int]
    expired: int = 0
    spillover: int = 0
    rebalanced: int = 0
    balance: bool = True


class Scenario(msgspec.Struct, forbid_unknown_fields=True):
    comment: str
    source: str
    workers: list[Worker]
    leases: list[Row]
    passes: list[Pass]
    assignment: dict[str, Any] = {}
    lease_settings: dict[str, Any] = {}
    seed: int = 0
    why: str = ""
    """The arithmetic behind what is expected."""


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_worked_example(path: Path) -> None:
    scenario = msgspec.json.decode(path.read_bytes(), type=Scenario)
    observed = {row.lease_key: tracked(row) for row in scenario.leases}
    workers = [stats(w) for w in scenario.workers]
    assignment = msgspec.convert(scenario.assignment, AssignmentSettings)
    leases = msgspec.convert(scenario.lease_settings, LeaseSettings)
    for expected in scenario.passes:
        done = plan(observed, workers, assignment, leases, balance=expected.balance, seed=scenario.seed)
        observed = when_applied(observed, done)
        assert (
            Pass(
                moves=[ExpectedMove(m.lease.lease_key, m.to, m.kind, m.reason) for m in done.moves],
                lease_counts=counts(observed, done.active_workers),
                expired=done.expired_leases,
                spillover=done.spillover,
                rebalanced=done.rebalanced_leases,
                balance=expected.balance,
            )
            == expected
        )


def test_every_worked_example_is_there() -> None:
    names = {p.stem.split("_")[0].rstrip("abc") for p in SCENARIOS}
    assert {f"e{n:02d}" for n in range(1, 14)} <= names


# Single rules


def test_workers_ruled_out_are_named_and_get_nothing() -> None:
    workers = [
        stats(Worker("old", age_s=61)),
        stats(Worker("leaving", state="TERMINATING")),
        stats(Worker("failing", {"C": [10, -1]}, {"C": [80]})),
        stats(Worker("invalid", {"C": [10]}, {"C": [0]})),
        stats(Worker("edge", age_s=60)),
    ]
    done = plan({"a": tracked(Row("a"))}, workers)
    assert [(m.lease.lease_key, m.to) for m in done.moves] == [("a", "edge")]
    assert done.active_workers == ("edge",)
    assert done.inactive_workers == ("old",)
    assert done.leaving_workers == ("leaving",)
    assert done.failing_workers == ("failing",)
    assert done.invalid_workers == ("invalid",)


def test_without_any_worker_everything_spills() -> None:
    done = plan({"a": tracked(Row("a")), "b": tracked(Row("b", "gone", age_s=11))}, [])
    assert (done.moves, done.expired_leases, done.spillover) == ((), 2, 2)


def test_no_leases_no_moves() -> None:
    assert plan({}, [stats(Worker("w"))]).moves == ()


@pytest.mark.parametrize("strategy", ["WORKER_UTILIZATION_AWARE", "LEASE_COUNT_BASED"])
def test_the_order_of_the_inputs_changes_nothing(strategy: str) -> None:
    rows = [Row(f"k{i}", f"w{i % 2}", throughput_kbps=float(i * 7 % 11)) for i in range(20)] + [Row("x"), Row("y")]
    workers = [stats(Worker(f"w{i}")) for i in range(4)]
    assignment = msgspec.convert({"strategy": strategy}, AssignmentSettings)
    one = plan({r.lease_key: tracked(r) for r in rows}, workers, assignment)
    other = plan({r.lease_key: tracked(r) for r in reversed(rows)}, workers[::-1], assignment)
    assert one == other


def test_a_seed_replays_its_plan_and_another_one_may_choose_other_leases() -> None:
    observed = {r.lease_key: tracked(r) for r in (Row(f"k{i:02}", "a", throughput_kbps=10.0) for i in range(20))}
    workers = [stats(Worker("a", {"C": [80]}, {"C": [100]})), stats(Worker("b", {"C": [20]}, {"C": [100]}))]
    plans = [plan(observed, workers, seed=seed) for seed in (0, 0, 0, 1)]
    assert [len(p.moves) for p in plans] == [4] * 4
    assert plans[0] == plans[1] == plans[2] != plans[3]


def test_a_worker_exactly_at_its_throughput_limit_takes_one_more() -> None:
    observed = {r.lease_key: tracked(r) for r in (Row("a", "w", throughput_kbps=50), Row("u"), Row("v"))}
    done = plan(observed, [stats(Worker("w"))], AssignmentSettings(max_throughput_per_host_kbps=50))
    assert ([m.lease.lease_key for m in done.moves], done.spillover) == (["u"], 1)


def test_a_lease_that_is_placed_lightens_its_old_worker() -> None:
    observed = {r.lease_key: tracked(r) for r in (Row("a", "x", throughput_kbps=70), Row("b", "x", throughput_kbps=30))}
    workers = [stats(Worker("x", {"C": [60]}, {"C": [80]})), stats(Worker("y", {"C": [20]}, {"C": [80]}))]
    fleet = Fleet(observed, workers, AssignmentSettings(), LeaseSettings(), NOW_S)
    target = fleet.best()
    assert target is fleet.workers["y"]
    fleet.place("a", target, "test")
    old = fleet.workers["x"]
    assert (old.load_kbps, target.load_kbps, old.held, target.held) == (30, 70, {"b"}, {"a"})
    # nobody knows by how much the old worker's CPU falls; the new one's grows by its share of the target throughput
    assert (old.metrics, target.metrics) == ({"C": 60}, {"C": 20 + 70 * 40 / 50})


def test_lease_count_respects_the_limit_while_balancing() -> None:
    rows = [Row(f"k{i}", "a") for i in range(6)]
    assignment = AssignmentSettings(strategy="LEASE_COUNT_BASED")
    done = plan(
        {r.lease_key: tracked(r) for r in rows},
        [stats(Worker("a")), stats(Worker("b"))],
        assignment,
        LeaseSettings(max_leases_for_worker=2),
    )
    assert [(m.to, m.kind, m.reason) for m in done.moves] == [("b", "handoff", "balance:leases")] * 2


def test_moves_of_live_leases_are_direct_when_graceful_handover_is_off() -> None:
    assert write_kind(tracked(Row("a", "w")), NOW_S, LeaseSettings(graceful_handoff=False)) == "assign"
    assert write_kind(tracked(Row("a", "w")), NOW_S, LeaseSettings()) == "handoff"
    assert write_kind(tracked(Row("a", "w", shard_end=True)), NOW_S, LeaseSettings()) == "assign"
    assert write_kind(tracked(Row("a", "w", age_s=10.0)), NOW_S, LeaseSettings()) == "handoff"
    assert write_kind(tracked(Row("a", "w", age_s=10.001)), NOW_S, LeaseSettings()) == "assign"


@pytest.mark.parametrize(
    "row, kind",
    [
        (Row("a", "b", "a", handoff_deadline_in_s=0.001), None),
        (Row("a", "b", "a", handoff_deadline_in_s=0), "assign"),
        (Row("a", "b", "a", handoff_deadline_in_s=30, age_s=11), "assign"),
        (Row("a", "b", "a", handoff_deadline_in_s=30, shard_end=True), "assign"),
    ],
)
def test_a_pending_handover_blocks_until_its_deadline(row: Row, kind: str | None) -> None:
    assert write_kind(tracked(row), NOW_S, LeaseSettings()) == kind


def test_balancing_passes_are_the_first_and_every_third() -> None:
    assert [n for n in range(8) if is_balancing_pass(n, AssignmentSettings())] == [0, 3, 6]


def test_departure_gives_every_own_lease_to_live_workers() -> None:
    rows = [Row("a", "me"), Row("b", "me"), Row("c", "me", "other"), Row("d", "x", "me", handoff_deadline_in_s=40)]
    done = plan_departure(
        "me",
        {r.lease_key: tracked(r) for r in rows},
        [stats(Worker("me")), stats(Worker("x")), stats(Worker("y")), stats(Worker("dead", age_s=100))],
        assignment=AssignmentSettings(),
        leases=LeaseSettings(),
        metrics=METRICS,
        now_s=NOW_S,
        wall_s=WALL_S,
    )
    # "d" is on its way to x already, which counts there
    assert [(m.lease.lease_key, m.to, m.kind, m.reason) for m in done] == [
        ("a", "y", "handoff", "leaving"),
        ("b", "x", "handoff", "leaving"),
    ]
