"""The end of a shard: every case of tests/scenarios/shard_end.json, by decision and by shell."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

import pytest
from shard_scenarios import Case, Table, child_of, lease_of, read_cases

from kcl_host.coordination.shard_end import ShardEnd, ShardEndPrepared
from kcl_host.decisions.shard_end import (
    ShardEndPlan,
    conclude_shard_end,
    is_blocked_on_parents,
    judge_response,
    keys_to_read,
    plan_shard_end,
)
from kcl_host.errors import Unavailable
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber
from kcl_host.model.shard import ChildShard, HashKeyRange, StreamIdentifier

CASES = read_cases("shard_end.json", "shard_end")
HALVES = (HashKeyRange(0, 2**127 - 1), HashKeyRange(2**127, 2**128 - 1))


class Draw:
    """One draw of 1 in 30, fixed."""

    def __init__(self, hit: bool) -> None:
        self.hit = hit

    def random(self) -> float:
        return 0.0 if self.hit else 1 / 30

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        raise AssertionError("nothing to shuffle")


def held_lease(case: Case) -> Lease:
    """The lease in memory: as in the table, or as it was while the row still existed."""
    identifier = case.get("stream_identifier")
    key = f"{identifier}:{case['shard_id']}" if identifier else case["shard_id"]
    rows = {row["lease_key"]: row for row in case["table"]}
    return lease_of(rows.get(key, {"lease_key": key, "checkpoint": "190"}), identifier)


def children_of(case: Case) -> list[ChildShard]:
    return [child_of(row) for row in case["child_shards"] or ()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_decision(case: Case) -> None:
    lease, children = held_lease(case), children_of(case)
    rows = {row["lease_key"]: lease_of(row, case.get("stream_identifier")) for row in case["table"]}
    plan = plan_shard_end(lease, children, rows, held=case["held"], give_up=case.get("one_in_thirty_draw", False))
    expect = case["expect"]
    ids = None if plan.child_shard_ids is None else sorted(plan.child_shard_ids)
    assert list(plan.create) == [lease_of(row) for row in expect["created"]], case["why"]
    assert ids == expect["parent_child_shard_ids_written"], case["why"]

    # The rest of the path, as the shard consumer walks it.
    queued = case.get("already_queued", False)
    call = plan.outcome == "proceed" and plan.reason != "already_at_shard_end" and not queued
    assert call is expect["shard_ended_called"], case["why"]
    outcome, enqueued = {"retry": "retry", "lost": "lease_lost", "proceed": "completed"}[plan.outcome], False
    if plan.outcome == "proceed":
        is_at_shard_end = not call or case.get("application", "checkpoints") == "checkpoints"
        conclusion = conclude_shard_end(children, is_at_shard_end=is_at_shard_end, already_queued=queued)
        outcome = "completed" if conclusion.completed else "retry"
        enqueued = conclusion.enqueue_for_cleanup
    assert (outcome, enqueued) == (expect["outcome"], expect["enqueued_for_cleanup"]), case["why"]
    assert (plan.outcome == "lost" and case["held"]) is expect["lease_dropped"], case["why"]


@pytest.mark.parametrize("case", [case for case in CASES if case["held"]], ids=lambda case: case["name"])
def test_the_writes(case: Case) -> None:
    table = Table(lease_of(row, case.get("stream_identifier")) for row in case["table"])
    lease, children, expect = held_lease(case), children_of(case), case["expect"]
    shard_end = ShardEnd(table, Draw(case.get("one_in_thirty_draw", False)))  # type: ignore[arg-type]

    prepared = shard_end.prepare(lease, children)
    assert table.created == [lease_of(row) for row in expect["created"]], case["why"]
    assert prepared.created == tuple(row["lease_key"] for row in expect["created"]), case["why"]
    ids = expect["parent_child_shard_ids_written"]
    written = [] if ids is None else [(lease.lease_key, frozenset(ids))]
    assert table.child_shards_written == written, case["why"]
    assert prepared.lost is (expect["outcome"] == "lease_lost"), case["why"]
    if not case.get("application") and not prepared.lost:
        assert prepared.retry is (expect["outcome"] == "retry"), case["why"]
    if not (prepared.lost or prepared.retry):
        assert prepared.is_at_shard_end is not expect["shard_ended_called"], case["why"]

    # A crash anywhere is followed by the same steps once more: nothing is created twice.
    before = dict(table.rows)
    again = shard_end.prepare(lease, children)
    assert (again.outcome, again.reason, again.created) == (prepared.outcome, prepared.reason, ())
    assert table.rows == before


@pytest.mark.parametrize("case", read_cases("shard_end.json", "response"), ids=lambda case: case["name"])
def test_the_judgement_of_a_response(case: Case) -> None:
    children = None if case["child_shards"] is None else children_of(case)
    judgement = judge_response(case["next_token"], children)
    assert (judgement != "invalid") is case["expect_valid"], case["why"]
    assert (judgement == "shard_end") is case["expect_shard_end"], case["why"]


@pytest.mark.parametrize("case", read_cases("shard_end.json", "parent_block"), ids=lambda case: case["name"])
def test_a_child_waits_for_its_parents(case: Case) -> None:
    identifier = case.get("stream_identifier")
    stream = StreamIdentifier.parse(identifier) if identifier else StreamIdentifier(name="orders")
    lease = Lease(
        lease_key=stream.lease_key("c"),
        checkpoint=ExtendedSequenceNumber("TRIM_HORIZON"),
        parent_shard_ids=frozenset(case["parent_shard_ids"]),
        stream_name=identifier,
        multi_stream_shard_id="c" if identifier else None,
    )
    table = Table(lease_of(row) for row in case["table"])
    parents = [table.get(lease.key_of(shard_id)) for shard_id in lease.parent_shard_ids]
    assert is_blocked_on_parents(parents) is case["expect_blocked"], case["why"]


def split() -> tuple[Lease, list[ChildShard]]:
    lease = Lease(lease_key="p", checkpoint=ExtendedSequenceNumber("190"), lease_owner="me", lease_counter=7)
    a, b = HALVES
    return lease, [
        ChildShard(shard_id="a", parent_shard_ids=("p",), hash_key_range=a),
        ChildShard(shard_id="b", parent_shard_ids=("p",), hash_key_range=b),
    ]


def test_children_exist_before_their_ids_are_noted() -> None:
    """A parent whose row names children that were never created could not be told from one with lost children."""
    lease, children = split()
    table = Table([lease])
    creations = iter([None, Unavailable("no answer")])
    table.error = lambda operation: next(creations) if operation == "create" else None
    shard_end = ShardEnd(table, Draw(False))  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        shard_end.prepare(lease, children)
    assert [row.lease_key for row in table.created] == ["a"]
    assert table.child_shards_written == []

    table.error = lambda operation: None
    assert shard_end.prepare(lease, children) == ShardEndPrepared(
        outcome="proceed", reason="children_ready", created=("b",)
    )
    assert table.rows["p"] == Lease(
        lease_key="p",
        checkpoint=ExtendedSequenceNumber("190"),
        lease_owner="me",
        lease_counter=7,
        child_shard_ids=frozenset("ab"),
    )


def test_a_row_that_vanishes_meanwhile_means_lost() -> None:
    lease, children = split()
    table = Table([lease])

    def vanish(operation: str) -> None:
        if operation == "write_child_shards":
            table.rows.pop("p", None)

    table.error = vanish
    prepared = ShardEnd(table, Draw(False)).prepare(lease, children)  # type: ignore[arg-type]
    assert (prepared.lost, prepared.reason) == (True, "lease_row_gone")


def test_rows_are_read_once_each() -> None:
    lease, children = split()
    assert keys_to_read(lease, children) == ["a", "b", "p"]
    merged = ChildShard(shard_id="m", parent_shard_ids=("p", "o"), hash_key_range=HashKeyRange(0, 5))
    assert keys_to_read(lease, [merged]) == ["m", "o", "p"]
    assert keys_to_read(lease, []) == ["p"]


def test_a_lease_that_reached_shard_end_repeats_only_harmless_steps() -> None:
    lease, children = split()
    row = Lease(lease_key="p", checkpoint=AT_SHARD_END, child_shard_ids=frozenset("ab"))
    rows = {"p": row} | {c: Lease(lease_key=c, checkpoint=ExtendedSequenceNumber("300")) for c in "ab"}
    assert plan_shard_end(lease, children, rows) == ShardEndPlan(
        outcome="proceed", reason="already_at_shard_end", child_shard_ids=frozenset("ab")
    )
