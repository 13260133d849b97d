"""A worker that joins gets its share of the leases in one pass (decisions/balance.py share_with_newcomers)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.config.settings import AssignmentSettings, LeaseSettings
from kcl_host.decisions.assignment import AssignmentPlan
from tests.unit.assignment_rig import Row, Worker, counts, plan, stats, tracked, when_applied


def joined(
    rows: list[Row], workers: list[Worker], *newcomers: str, **more: Any
) -> tuple[AssignmentPlan, dict[str, int]]:
    observed = {row.lease_key: tracked(row) for row in rows}
    done = plan(observed, [stats(worker) for worker in workers], balance=False, newcomers=newcomers, **more)
    return done, counts(when_applied(observed, done), tuple(worker.worker_id for worker in workers))


def rows(owner: str, *kbps: float | None) -> list[Row]:
    return [Row(f"{owner}{n}", owner, throughput_kbps=value) for n, value in enumerate(kbps)]


A, B, C = Worker("a"), Worker("b"), Worker("c")


@pytest.mark.parametrize("kbps", [None, 0.0, 100.0])
def test_ten_leases_become_five_and_five(kbps: float | None) -> None:
    done, after = joined(rows("a", *[kbps] * 10), [A, B], "b")
    assert after == {"a": 5, "b": 5}
    assert {(m.to, m.kind, m.reason) for m in done.moves} == {("b", "handoff", "newcomer")}


def test_two_that_join_together_share(kbps: float = 50.0) -> None:
    _, after = joined(rows("a", *[kbps] * 10), [A, B, C], "b", "c")
    assert after == {"a": 4, "b": 3, "c": 3}


def test_the_share_is_one_of_throughput() -> None:
    """500 of 1,000: the 400, and what then still leaves b no more loaded than a."""
    done, _ = joined(rows("a", 400.0, 300.0, 200.0, 50.0, 50.0), [A, B], "b")
    assert {m.lease.throughput_kbps for m in done.moves} == {400.0, 50.0}
    assert sum(m.lease.throughput_kbps or 0 for m in done.moves) == 500


def test_by_lease_count_throughput_is_no_matter() -> None:
    by_count = AssignmentSettings(strategy="LEASE_COUNT_BASED")
    _, after = joined(rows("a", 900.0, 900.0, 1.0, 1.0, 1.0, 1.0), [A, B], "b", assignment=by_count)
    assert after == {"a": 3, "b": 3}


def test_the_most_loaded_give_most() -> None:
    _, after = joined([*rows("a", *[10.0] * 8), *rows("c", *[10.0] * 4)], [A, B, C], "b")
    assert after == {"a": 4, "b": 4, "c": 4}


def test_nobody_gives_its_only_lease() -> None:
    assert joined([*rows("a", 900.0), *rows("c", 900.0)], [A, B, C], "b")[0].moves == ()


def test_a_newcomer_that_holds_leases_is_none() -> None:
    assert joined([*rows("a", *[10.0] * 8), *rows("b", 10.0)], [A, B], "b")[0].moves == ()


def test_who_was_there_before_waits_for_balancing() -> None:
    assert joined(rows("a", *[10.0] * 8), [A, B])[0].moves == ()


def test_balancing_waits_for_the_next_pass() -> None:
    observed = {row.lease_key: tracked(row) for row in [*rows("a", *[10.0] * 8), *rows("c", 10.0)]}
    done = plan(observed, [stats(worker) for worker in (A, B, C)], balance=True, newcomers=("b",))
    assert {m.reason for m in done.moves} == {"newcomer"}
    assert {m.reason for m in plan(observed, [stats(worker) for worker in (A, B, C)], balance=True).moves} == {
        "balance:T"
    }


@pytest.mark.parametrize("percent, gets", [(20.0, 5), (60.0, 5), (62.0, 0), (85.0, 0)])
def test_a_host_that_is_busy_with_other_things_gets_nothing_now(percent: float, gets: int) -> None:
    """Of 50 and 60 the average is 55, and the threshold 60.5; of 50 and 62 it is 56 and 61.6."""
    busy = [Worker(w, {"C": [p]}, {"C": [80.0]}) for w, p in (("a", 50.0), ("b", percent))]
    assert joined(rows("a", *[10.0] * 10), busy, "b")[1]["b"] == gets


def test_limits_hold() -> None:
    few = LeaseSettings(max_leases_for_worker=2)
    assert joined(rows("a", *[10.0] * 10), [A, B], "b", leases=few)[1]["b"] == 2
    slow = AssignmentSettings(max_throughput_per_host_kbps=15.0)
    assert joined(rows("a", *[10.0] * 10), [A, B], "b", assignment=slow)[1]["b"] == 2, "it is full once above"


def test_leases_that_end_or_are_on_their_way_stay() -> None:
    ended = [Row(f"e{n}", "a", throughput_kbps=10.0, shard_end=True) for n in range(3)]
    leaving = [Row(f"l{n}", "c", "a", 10.0, handoff_deadline_in_s=30.0) for n in range(3)]
    done, _ = joined([*ended, *leaving, *rows("a", 10.0, 10.0)], [A, B, C], "b")
    assert {m.lease.lease_key for m in done.moves} == {"a0", "a1"}


@given(
    st.lists(st.sampled_from([0.0, 1.0, 7.5, 100.0, 900.0]), max_size=25),
    st.lists(st.sampled_from([0.0, 1.0, 7.5, 100.0, 900.0]), max_size=25),
)
def test_a_newcomer_never_ends_up_above_everybody_it_relieves(of_a: list[float], of_c: list[float]) -> None:
    observed = {row.lease_key: tracked(row) for row in [*rows("a", *of_a), *rows("c", *of_c)]}
    done = plan(observed, [stats(worker) for worker in (A, B, C)], balance=False, newcomers=("b",))
    after = when_applied(observed, done)
    load = {w: sum(t.lease.throughput_kbps or 0 for t in after.values() if t.lease.lease_owner == w) for w in "abc"}
    givers = {move.lease.lease_owner for move in done.moves}
    # Idle leases weigh a hundredth of the average.
    slack = 0.01 * sum([*of_a, *of_c]) / max(1, len(observed)) * len(observed)
    assert not givers or load["b"] <= max(load[giver or ""] for giver in givers) + slack
    assert joined_again(after) == ()


def joined_again(after: dict[str, Any]) -> tuple[object, ...]:
    has_some = any(t.lease.lease_owner == "b" for t in after.values())
    again = plan(after, [stats(worker) for worker in (A, B, C)], balance=False, newcomers=("b",))
    return again.moves if has_some else ()
