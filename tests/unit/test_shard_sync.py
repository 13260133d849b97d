"""Shard sync: every case of tests/scenarios/shard_sync.json by decision and by shell, and the walk against its text."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_scenarios import Case, Shards, Table, lease_of, read_cases, shard_of

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.coordination.shard_sync import ShardSync, ShardSyncFailed, ShardSyncResult
from kcl_host.decisions.shard_sync import (
    ShardSyncPlan,
    bootstrap_filter,
    covers_hash_space,
    plan_shard_sync,
)
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber, InitialPosition
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange, Shard, ShardFilter, StreamIdentifier

CASES = read_cases("shard_sync.json")
STREAM = StreamIdentifier(name="orders")
TRIMMED = {"boot_trim_horizon_parent_trimmed": {"shardId-000000000000"}}
"""Shards past the retention, where the listing cannot be told from the filter alone."""


def initial_of(case: Case) -> InitialPosition:
    kind = case["initial_position"]
    return InitialPosition(kind=kind, timestamp_s=case.get("initial_timestamp", 0) if kind == "AT_TIMESTAMP" else None)


def identifier_of(case: Case) -> StreamIdentifier:
    return StreamIdentifier.parse(case["stream_identifier"]) if "stream_identifier" in case else STREAM


def listings_of(case: Case) -> list[list[Shard] | None]:
    by_id = {row["shard_id"]: shard_of(row) for row in case["shards"]}
    attempts = case.get("list_attempts", [case.get("listed", list(by_id))])
    return [None if ids is None else [by_id[i] for i in ids] for ids in attempts]


def existing_of(case: Case) -> list[Lease]:
    leases = [lease_of(row) for row in case["existing_leases"]]
    if not case["lease_table_empty"] and not leases:
        leases.append(Lease(lease_key="of-another-stream", checkpoint=ExtendedSequenceNumber("1")))
    return leases


def expected_leases(case: Case) -> list[Lease]:
    return [lease_of(row) for row in case["expect_created"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_decision(case: Case) -> None:
    listings, appearing = listings_of(case), case.get("appears_before_write", [])
    plans = [
        plan_shard_sync(
            shards,
            [lease_of(row) for row in case["existing_leases"]],
            initial_of(case),
            table_is_empty=case["lease_table_empty"],
            stream=identifier_of(case),
            ignore_unexpected_child_shards=case.get("ignore_unexpected_child_shards", False),
        )
        for shards in listings
    ]
    plan = plans[-1]
    assert [p.error for p in plans[:-1]] == ["incomplete_hash_range"] * (len(plans) - 1), case["why"]
    created = [creation.lease for creation in plan.create if creation.lease.lease_key not in appearing]
    assert created == expected_leases(case), case["why"]
    assert plan.error == case["expect_error"], case["why"]
    assert plan.synced is bool(case["expect_synced"]), case["why"]
    expected_filter = bootstrap_filter(initial_of(case)).type if case["lease_table_empty"] else None
    assert expected_filter == case["expect_list_filter"], case["why"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_pass(case: Case) -> None:
    stream = stream_of(case)
    table = Table(existing_of(case))
    keys_appearing = case.get("appears_before_write", [])
    table.appearing = [Lease(lease_key=key, checkpoint=ExtendedSequenceNumber("5")) for key in keys_appearing]
    pauses_s: list[float] = []
    shard_sync = ShardSync(
        stream,  # type: ignore[arg-type]
        table,  # type: ignore[arg-type]
        identifier_of(case),
        initial_of(case),
        ShardSyncSettings(ignore_unexpected_child_shards=case.get("ignore_unexpected_child_shards", False)),
        pauses_s.append,
    )
    if case["expect_error"] is not None:
        with pytest.raises(ShardSyncFailed) as failure:
            shard_sync.run()
        assert failure.value.reason == case["expect_error"], case["why"]
        assert table.created == [], case["why"]
    else:
        keys = tuple(lease.lease_key for lease in expected_leases(case))
        assert shard_sync.run() == ShardSyncResult(created=keys, synced=case["expect_synced"]), case["why"]
        assert table.created == expected_leases(case), case["why"]
    filters = {f.type if f else None for f in stream.filters}
    assert filters == {case["expect_list_filter"]}, case["why"]
    assert len(stream.filters) == (case.get("expect_list_calls") or 1), case["why"]
    assert pauses_s == [1.0] * (len(stream.filters) - 1), "no pause but between two listings"


def stream_of(case: Case) -> Shards:
    """A stream that implements the filters; what it answers must be what the case says is listed."""
    times = {s["shard_id"]: (s["starting_ts"], s.get("ending_ts")) for s in case["shards"] if "starting_ts" in s}
    stream = Shards([shard_of(row) for row in case["shards"]], times)
    if "list_attempts" in case:
        stream.prepared = listings_of(case)
        return stream
    all_ids = {row["shard_id"] for row in case["shards"]}
    listed = set(case.get("listed", all_ids))
    stream.trimmed = TRIMMED.get(case["name"], set()) if case["lease_table_empty"] else all_ids - listed
    shard_filter = bootstrap_filter(initial_of(case)) if case["lease_table_empty"] else None
    answer = stream.list_shards(shard_filter)
    assert answer is not None and {s.shard_id for s in answer} == listed, "the filters of the fake"
    stream.filters.clear()
    return stream


# The walk, against the text of spec shard-sync 3.2


def spelled_out(shards: list[Shard], leased: set[str], *, from_latest: bool) -> set[str]:
    """Exponential, recursive, and word for word."""
    listed = {s.shard_id: s for s in shards}

    def parents(x: Shard) -> list[Shard]:
        return [listed[i] for i in {x.parent_shard_id, x.adjacent_parent_shard_id} if i in listed]

    def d(x: Shard) -> bool:
        if x.shard_id in leased:
            return True
        return any(d(p) for p in parents(x)) if from_latest else bool(parents(x))

    create: set[str] = set()

    def walk(x: Shard) -> None:
        if x.shard_id in leased:
            return
        if d(x):
            create.update(p.shard_id for p in parents(x) if p.shard_id not in leased and not d(p))
        for p in parents(x):
            walk(p)

    for o in shards:
        if o.is_open and o.shard_id not in leased and not any(p.is_open for p in parents(o)):
            walk(o)
            if not d(o):
                create.add(o.shard_id)
    return create


@st.composite
def lineages(draw: st.DrawFn) -> tuple[list[Shard], set[str]]:
    """Any acyclic listing, also one no stream would have: parents that are open, trimmed or named twice."""
    count = draw(st.integers(1, 12))
    ids = [f"s{n}" for n in range(count)]
    shards = []
    for n, shard_id in enumerate(ids):
        earlier = st.sampled_from([None, "trimmed", *ids[:n]])
        shards.append(
            Shard(
                shard_id=shard_id,
                hash_key_range=HashKeyRange(0, MAX_HASH_KEY),
                starting_sequence_number=str(draw(st.integers(1, 30)) + 10 * n),
                ending_sequence_number=draw(st.sampled_from([None, "99999", "99999"])),
                parent_shard_id=draw(earlier),
                adjacent_parent_shard_id=draw(earlier),
            )
        )
    leased = draw(st.sets(st.sampled_from([*ids, "trimmed"])))
    return draw(st.permutations(shards)), leased


@given(lineages(), st.sampled_from(["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"]))
@settings(max_examples=300, deadline=None)
def test_the_walk_is_that_of_the_text(lineage: tuple[list[Shard], set[str]], kind: Any) -> None:
    shards, leased = lineage
    plan = _plan(shards, leased, kind)
    ids = [creation.lease.shard_id for creation in plan.create]
    assert set(ids) == spelled_out(shards, leased, from_latest=kind == "LATEST")
    starts = {s.shard_id: int(s.starting_sequence_number) for s in shards}
    assert ids == sorted(ids, key=lambda i: (starts[i], i))
    assert all(creation.lease.checkpoint == ExtendedSequenceNumber(kind) for creation in plan.create)


@given(lineages(), st.sampled_from(["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"]), st.randoms())
@settings(max_examples=100, deadline=None)
def test_a_second_pass_finds_nothing_and_the_listing_order_does_not_matter(
    lineage: tuple[list[Shard], set[str]], kind: Any, rng: random.Random
) -> None:
    shards, leased = lineage
    plan = _plan(shards, leased, kind)
    shuffled = list(shards)
    rng.shuffle(shuffled)
    assert _plan(shuffled, leased, kind) == plan
    created = {creation.lease.lease_key for creation in plan.create}
    assert _plan(shards, leased | created, kind).create == ()


def _plan(shards: list[Shard], leased: set[str], kind: Any) -> ShardSyncPlan:
    return plan_shard_sync(
        shards,
        [Lease(lease_key=key, checkpoint=ExtendedSequenceNumber("1")) for key in sorted(leased)],
        InitialPosition(kind=kind, timestamp_s=5.0 if kind == "AT_TIMESTAMP" else None),
        table_is_empty=False,
        stream=STREAM,
        ignore_unexpected_child_shards=True,
    )


# Single rules


def generation(count: int, length: int) -> list[Shard]:
    """`count` shards that cover the hash space, each with a line of `length` successors; the last ones are open."""
    width = (MAX_HASH_KEY + 1) // count
    return [
        Shard(
            shard_id=f"s{n}-{depth}",
            hash_key_range=HashKeyRange(n * width, MAX_HASH_KEY if n == count - 1 else (n + 1) * width - 1),
            starting_sequence_number=str(100 * depth + 1),
            ending_sequence_number=None if depth == length else str(100 * depth + 100),
            parent_shard_id=f"s{n}-{depth - 1}" if depth else None,
        )
        for n in range(count)
        for depth in range(length + 1)
    ]


def test_reasons_tell_why_each_lease_is_created() -> None:
    first = generation(2, 0)
    bootstrap = plan_shard_sync(first, [], InitialPosition(kind="LATEST"), table_is_empty=True, stream=STREAM)
    assert [creation.reason for creation in bootstrap.create] == ["bootstrap", "bootstrap"]

    half = MAX_HASH_KEY // 2
    left = Shard(
        shard_id="a",
        hash_key_range=HashKeyRange(0, half),
        starting_sequence_number="1",
        ending_sequence_number="9",
    )
    right = Shard(
        shard_id="b",
        hash_key_range=HashKeyRange(half + 1, MAX_HASH_KEY),
        starting_sequence_number="2",
        ending_sequence_number="9",
    )
    merged = Shard(
        shard_id="m",
        hash_key_range=HashKeyRange(0, MAX_HASH_KEY),
        starting_sequence_number="10",
        parent_shard_id="a",
        adjacent_parent_shard_id="b",
    )
    listing = [merged, right, left]
    reasons = {
        (kind, bool(leased)): [(c.lease.lease_key, c.reason) for c in _plan(listing, leased, kind).create]
        for kind in ("LATEST", "TRIM_HORIZON")
        for leased in (set[str](), {"a"})
    }
    assert reasons == {
        ("LATEST", False): [("m", "uncovered")],
        ("LATEST", True): [("b", "merge_partner")],
        ("TRIM_HORIZON", False): [("a", "root"), ("b", "root")],
        ("TRIM_HORIZON", True): [("b", "root")],
    }


def test_a_long_lineage_needs_no_recursion() -> None:
    shards = generation(1, 5000)
    assert [c.lease.lease_key for c in _plan(shards, {"other"}, "TRIM_HORIZON").create] == ["s0-0"]
    assert [c.lease.lease_key for c in _plan(shards, {"other"}, "LATEST").create] == ["s0-5000"]
    assert _plan(shards, {"s0-0"}, "LATEST").create == ()


def test_an_unreadable_row_counts_as_a_lease() -> None:
    """Taken for missing, the children of its shard would start at LATEST and skip records."""
    shards = generation(1, 1)
    arguments: dict[str, Any] = {"table_is_empty": False, "stream": STREAM}
    plan = plan_shard_sync(shards, [], InitialPosition(kind="LATEST"), undecodable=("s0-0",), **arguments)
    assert plan == ShardSyncPlan(synced=True)


def test_shards_at_fault_are_named() -> None:
    narrow = Shard(shard_id="n", hash_key_range=HashKeyRange(0, 0), starting_sequence_number="1")
    rest = Shard(shard_id="r", hash_key_range=HashKeyRange(1, MAX_HASH_KEY), starting_sequence_number="1")
    arguments: dict[str, Any] = {"table_is_empty": True, "stream": STREAM}
    initial = InitialPosition(kind="LATEST")
    plan = plan_shard_sync([narrow, rest], [], initial, **arguments)
    assert (plan.error, plan.shards_at_fault) == ("degenerate_hash_range", ("n",))

    parent = Shard(shard_id="p", hash_key_range=HashKeyRange(0, MAX_HASH_KEY), starting_sequence_number="1")
    child = Shard(
        shard_id="c",
        hash_key_range=HashKeyRange(0, MAX_HASH_KEY),
        starting_sequence_number="2",
        parent_shard_id="p",
    )
    plan = plan_shard_sync([child, parent], [], initial, table_is_empty=False, stream=STREAM)
    assert (plan.error, plan.shards_at_fault) == ("inconsistent_shards", ("c",))


def test_the_filter_carries_the_timestamp() -> None:
    assert bootstrap_filter(InitialPosition(kind="AT_TIMESTAMP", timestamp_s=12.5)) == ShardFilter(
        type="AT_TIMESTAMP", timestamp_s=12.5
    )


def test_no_shards_cover_nothing() -> None:
    assert not covers_hash_space([])
    assert covers_hash_space(generation(3, 0))
