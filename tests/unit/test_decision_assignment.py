"""Lease assignment: worked examples (tests/scenarios/assignment), single rules, and invariants."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.decisions.assignment import (
    AssignmentPlan,
    Tracked,
    is_balancing_pass,
    plan_assignment,
    plan_departure,
)
from kcl_host.decisions.fleet import Fleet
from kcl_host.decisions.handover import write_kind
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber
from kcl_host.model.worker import WorkerMetricStats

NOW_S, WALL_S = 1000.0, 1_800_000_000.0
METRICS = WorkerMetricsSettings()
SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "assignment").glob("*.json"))


# Worked examples


class Worker(msgspec.Struct, forbid_unknown_fields=True):
    worker_id: str
    metric_stats: dict[str, list[float]] = {}
    operating_range: dict[str, list[float]] = {}
    state: str | None = None
    age_s: int = 0


class Row(msgspec.Struct, forbid_unknown_fields=True):
    lease_key: str
    owner: str | None = None
    checkpoint_owner: str | None = None
    throughput_kbps: float | None = None
    age_s: float | None = None
    """Seconds since the counter moved; absent: just now, or never for a lease without owner."""
    handoff_deadline_in_s: float | None = None
    shard_end: bool = False


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


def stats(worker: Worker) -> WorkerMetricStats:
    return WorkerMetricStats(
        worker_id=worker.worker_id,
        last_update_s=int(WALL_S) - worker.age_s,
        metric_stats=worker.metric_stats,
        operating_range=worker.operating_range,
        properties={"state": worker.state} if worker.state else {},
    )


def tracked(row: Row) -> Tracked:
    unknown = -math.inf if row.owner is None else NOW_S
    return Tracked(
        lease=Lease(
            lease_key=row.lease_key,
            checkpoint=AT_SHARD_END if row.shard_end else ExtendedSequenceNumber("TRIM_HORIZON"),
            lease_owner=row.owner,
            checkpoint_owner=row.checkpoint_owner,
            throughput_kbps=row.throughput_kbps,
        ),
        last_counter_increment_s=unknown if row.age_s is None else NOW_S - row.age_s,
        handoff_deadline_s=None if row.handoff_deadline_in_s is None else NOW_S + row.handoff_deadline_in_s,
    )


def plan(
    observed: dict[str, Tracked],
    workers: list[WorkerMetricStats],
    assignment: AssignmentSettings | None = None,
    leases: LeaseSettings | None = None,
    *,
    balance: bool = True,
    seed: int = 0,
) -> AssignmentPlan:
    return plan_assignment(
        observed,
        workers,
        assignment=assignment or AssignmentSettings(),
        leases=leases or LeaseSettings(),
        metrics=METRICS,
        now_s=NOW_S,
        wall_s=WALL_S,
        balance=balance,
        rng=random.Random(seed),
    )


def when_applied(observed: dict[str, Tracked], done: AssignmentPlan) -> dict[str, Tracked]:
    """The leases once every write took effect and every handover was completed."""
    after = dict(observed)
    for move in done.moves:
        row = msgspec.structs.replace(move.lease, lease_owner=move.to, checkpoint_owner=None)
        after[row.lease_key] = Tracked(lease=row, last_counter_increment_s=NOW_S)
    return after


def counts(observed: dict[str, Tracked], workers: tuple[str, ...]) -> dict[str, int]:
    owners = [t.lease.actual_owner for t in observed.values()]
    return {w: owners.count(w) for w in workers}


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


# Invariants

PERCENT = st.integers(0, 100).map(float)
IDS = [f"w{i}" for i in range(6)]


@st.composite
def workers_(draw: st.DrawFn) -> list[WorkerMetricStats]:
    found = []
    for worker_id in draw(st.lists(st.sampled_from(IDS), unique=True)):
        names = draw(st.lists(st.sampled_from(["C", "NI", "M"]), unique=True, max_size=2))
        found.append(
            stats(
                Worker(
                    worker_id,
                    {n: draw(st.lists(PERCENT | st.just(-1.0), min_size=1, max_size=3)) for n in names},
                    {n: [draw(st.sampled_from([50.0, 80.0, 100.0]))] for n in names},
                    draw(st.sampled_from([None, None, None, "TERMINATING"])),
                    draw(st.sampled_from([0, 0, 0, 61])),
                )
            )
        )
    return found


OWNERS = st.none() | st.sampled_from([*IDS, "dead"])
ROWS = st.lists(
    st.builds(
        Row,
        lease_key=st.integers(0, 40).map(lambda n: f"k{n:02d}"),
        owner=OWNERS,
        checkpoint_owner=st.none() | st.none() | st.sampled_from(IDS),
        throughput_kbps=st.none() | st.sampled_from([0.0, 1.0, 10.0, 100.0, 333.3]),
        age_s=st.none() | st.sampled_from([0.0, 10.0, 11.0, 500.0]),
        handoff_deadline_in_s=st.sampled_from([-1.0, 30.0]),
        shard_end=st.sampled_from([False, False, False, True]),
    ).filter(lambda row: row.checkpoint_owner is None or row.owner not in (None, row.checkpoint_owner)),
    unique_by=lambda row: row.lease_key,
    max_size=30,
)


@settings(deadline=None, max_examples=200)
@given(
    workers_(),
    ROWS,
    st.sampled_from(["WORKER_UTILIZATION_AWARE", "LEASE_COUNT_BASED"]),
    st.sampled_from([1, 3, 10, 2**31 - 1]),
    st.booleans(),
    st.integers(0, 3),
)
def test_what_holds_for_every_plan(
    workers: list[WorkerMetricStats], rows: list[Row], strategy: str, limit: int, graceful: bool, seed: int
) -> None:
    observed = {r.lease_key: tracked(r) for r in rows}
    leases = LeaseSettings(max_leases_for_worker=limit, graceful_handoff=graceful)
    assignment = msgspec.convert({"strategy": strategy}, AssignmentSettings)
    done = plan(observed, workers, assignment, leases, seed=seed)

    active = {
        w.worker_id
        for w in workers
        if (w.last_update_s or 0) >= WALL_S - 60
        and not w.properties
        and all(values[-1] != -1 for values in w.metric_stats.values())
    }
    assert set(done.active_workers) == active
    assert len({m.lease.lease_key for m in done.moves}) == len(done.moves)
    for move in done.moves:
        before = observed[move.lease.lease_key]
        assert move.lease is before.lease
        assert move.to in active
        assert move.kind == write_kind(before, NOW_S, leases)
        if move.kind == "handoff":
            assert move.to != before.lease.lease_owner
            assert before.lease.checkpoint_owner is None
    # nobody gets beyond the limit, pending handovers included; who is there already gets nothing more
    pending = [
        t.lease.lease_owner
        for key, t in observed.items()
        if write_kind(t, NOW_S, leases) is None and t.lease.lease_owner in active
    ]
    after = counts(when_applied(observed, done), tuple(sorted(active)))
    was = counts(observed, tuple(sorted(active)))
    for worker_id in active:
        assert after[worker_id] + pending.count(worker_id) <= max(limit, was[worker_id] + pending.count(worker_id))
    # a lease without a live holder waits only for want of workers
    if active and limit > len(rows):
        assert done.spillover == 0
        given_away = {m.lease.lease_key for m in done.moves}
        for key, t in observed.items():
            if t.lease.actual_owner is None:
                assert key in given_away


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(st.integers(0, 8), st.none() | st.floats(0, 1000).map(lambda x: round(x, 6))), min_size=1, max_size=60
    ),
    st.sampled_from(["WORKER_UTILIZATION_AWARE", "LEASE_COUNT_BASED"]),
    st.integers(0, 3),
)
def test_a_quiet_fleet_does_not_play_ping_pong(
    size: int, owned: list[tuple[int, float | None]], strategy: str, seed: int
) -> None:
    """Workers judged by throughput, constant throughput: no lease is moved twice for balance, since nobody is ever
    lifted above the average; so a fleet comes to rest after at most as many passes as it has leases. (In 3,000 random
    fleets 84 % rested within 5 balancing passes, the slowest took 36.) By lease count one pass does it."""
    rows = [
        Row(f"k{i:02d}", f"w{owner}", throughput_kbps=kbps, age_s=11 if owner >= size else 0)
        for i, (owner, kbps) in enumerate(owned)
    ]
    observed = {r.lease_key: tracked(r) for r in rows}
    workers = [stats(Worker(f"w{i}")) for i in range(size)]
    assignment = msgspec.convert({"strategy": strategy}, AssignmentSettings)
    first = plan(observed, workers, assignment, balance=False)
    observed = when_applied(observed, first)
    assert {t.lease.lease_owner for t in observed.values()} <= {w.worker_id for w in workers}

    moved: list[str] = []
    for number in range(10):
        done = plan(observed, workers, assignment, seed=100 * seed + number)
        assert number == 0 or strategy == "WORKER_UTILIZATION_AWARE" or done.moves == ()
        moved += [m.lease.lease_key for m in done.moves]
        observed = when_applied(observed, done)
    assert len(moved) == len(set(moved))
    if strategy == "LEASE_COUNT_BASED":
        held = counts(observed, done.active_workers).values()
        assert max(held) - min(held) <= 1
