"""The audit of hash ranges: every case of tests/scenarios/hash_range_holes.json, by decision and by shell."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_scenarios import Case, Now, Shards, Table, lease_of, read_cases, shard_of

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.coordination.auditor import Auditor
from kcl_host.coordination.shard_sync import ShardSync
from kcl_host.decisions.lease_audit import (
    Hole,
    HoleTracker,
    audit_leases,
    fill_hash_key_ranges,
    find_hole,
    lacks_hash_key_ranges,
)
from kcl_host.errors import StreamNotFound, Unavailable
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber, InitialPosition
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange, Shard, StreamIdentifier

CASES = read_cases("hash_range_holes.json")
STREAM = StreamIdentifier(name="orders")


def hole_of(run: Case) -> Hole | None:
    if not run["expect_hole"]:
        return None
    between = run.get("expect_hole_between")
    return Hole(*(HashKeyRange(int(low), int(high)) for low, high in between)) if between else Hole()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_decision(case: Case) -> None:
    shards = [shard_of(row) for row in case.get("shards", ())]
    tracker = HoleTracker()
    for number, run in enumerate(case["runs"], 1):
        leases = tuple(lease_of(row) for row in run["leases"])
        fill = fill_hash_key_ranges(leases, shards)
        assert sorted(fill.to_write) == run.get("expect_hash_range_backfilled", []), case["why"]
        audit = audit_leases(fill.leases, tracker, confidence_threshold=case["confidence_threshold"])
        assert audit.hole == hole_of(run), f"run {number}: {case['why']}"
        assert audit.sync is run["expect_sync"], f"run {number}: {case['why']}"
        tracker = audit.tracker


@dataclass(frozen=True)
class Tracked:
    """Stands for OpenStream."""

    identifier: StreamIdentifier
    stream: Shards


class OneStream:
    """Stands for StreamSync with one stream."""

    def __init__(self, stream: Shards, shard_sync: object) -> None:
        self._tracked = Tracked(STREAM, stream)
        self._shard_sync = shard_sync

    def tracked(self) -> list[Tracked]:
        return [self._tracked]

    def shard_sync(self, stream: Tracked) -> object:
        assert stream is self._tracked
        return self._shard_sync


class Syncs:
    """Stands for ShardSync; counts the passes."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def run(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


class Bench:
    def __init__(self, threshold: int = 3) -> None:
        self.table, self.stream, self.clock, self.syncs = Table(), Shards(), Now(), Syncs()
        self.is_leader = True
        self.auditor = Auditor(
            OneStream(self.stream, self.syncs),  # type: ignore[arg-type]
            self.table,  # type: ignore[arg-type]
            ShardSyncSettings(audit_confidence_threshold=threshold),
            self.clock,
            is_leader=lambda: self.is_leader,
        )
        self.pause_s = self.auditor.run_once()

    def next_audit(self) -> None:
        self.clock.now_s += self.pause_s
        self.pause_s = self.auditor.run_once()

    def hold(self, *leases: Lease) -> None:
        self.table.rows = {lease.lease_key: lease for lease in leases}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_turns(case: Case) -> None:
    bench = Bench(case["confidence_threshold"])
    bench.stream.shards = [shard_of(row) for row in case.get("shards", ())]
    for number, run in enumerate(case["runs"], 1):
        bench.hold(*(lease_of(row) for row in run["leases"]))
        before = bench.syncs.count
        bench.next_audit()
        assert bench.syncs.count - before == run["expect_sync"], f"run {number}: {case['why']}"
        written = sorted(key for key, _ in bench.table.ranges_written)
        assert written == run.get("expect_hash_range_backfilled", []), case["why"]
        bench.table.ranges_written.clear()
        listings = any(lacks_hash_key_ranges([lease_of(row)]) for row in run["leases"])
        assert len(bench.stream.filters) == listings, "shards are listed only when a range is missing"
        bench.stream.filters.clear()


def covering(key: str, start: int, end: int) -> Lease:
    return Lease(lease_key=key, checkpoint=ExtendedSequenceNumber("100"), hash_key_range=HashKeyRange(start, end))


@given(st.lists(st.integers(1, MAX_HASH_KEY), unique=True, max_size=8), st.data())
def test_a_partition_has_no_hole_and_any_piece_missing_is_one(cuts: list[int], data: st.DataObject) -> None:
    bounds = [0, *sorted(cuts), MAX_HASH_KEY + 1]
    leases = [covering(f"s{n}", bounds[n], bounds[n + 1] - 1) for n in range(len(bounds) - 1)]
    assert find_hole(data.draw(st.permutations(leases))) is None
    leases.remove(data.draw(st.sampled_from(leases)))
    assert find_hole(leases) is not None


def test_the_first_audit_is_a_minute_after_the_start_then_every_two() -> None:
    bench = Bench()
    assert bench.pause_s == 60.0
    bench.clock.now_s += 59
    assert bench.auditor.run_once() == 1.0, "woken early, it goes on waiting"
    assert bench.syncs.count == 0
    bench.clock.now_s += 1
    assert bench.auditor.run_once() == 120.0
    assert bench.syncs.count == 1, "no lease at all"


def test_only_the_leader_looks() -> None:
    bench = Bench()
    bench.is_leader = False
    bench.table.error = lambda operation: Unavailable("must not be asked")
    bench.next_audit()
    assert bench.auditor.last_outcome == "not_leader"
    assert bench.pause_s == 120.0


def test_leadership_lost_during_the_audit_stops_the_sync() -> None:
    bench = Bench()

    def lose(operation: str) -> None:
        bench.is_leader = False

    bench.table.error = lose
    bench.next_audit()
    assert (bench.auditor.last_outcome, bench.syncs.count) == ("not_leader", 0)


@pytest.mark.parametrize("error", [Unavailable(), StreamNotFound()], ids=lambda e: type(e).__name__)
def test_an_error_costs_one_audit(error: Exception) -> None:
    bench = Bench()
    bench.syncs.error = error
    bench.next_audit()
    assert (bench.auditor.last_outcome, bench.pause_s) == ("failed", 120.0)
    bench.syncs.error = None
    bench.next_audit()
    assert (bench.auditor.last_outcome, bench.syncs.count) == ("synced", 2)


def test_a_sync_that_failed_is_repeated_at_the_next_audit() -> None:
    bench = Bench(threshold=2)
    bench.hold(covering("a", 0, 10))
    bench.next_audit()
    bench.syncs.error = Unavailable()
    bench.next_audit()
    assert bench.syncs.count == 1
    bench.next_audit()
    assert bench.syncs.count == 2


def test_a_range_that_cannot_be_written_still_counts() -> None:
    bench = Bench(threshold=1)
    whole = Shard(shard_id="s0", hash_key_range=HashKeyRange(0, MAX_HASH_KEY), starting_sequence_number="1")
    bench.stream.shards = [whole]
    bench.hold(Lease(lease_key="s0", checkpoint=ExtendedSequenceNumber("1")))
    bench.table.error = lambda operation: Unavailable() if operation == "write_hash_key_range" else None
    bench.next_audit()
    assert bench.auditor.last_outcome == "no_sync_needed"


def test_a_range_of_one_hash_key_is_not_written() -> None:
    """Java cannot read such a row, and would lose sight of every lease of the table."""
    narrow = Shard(shard_id="n", hash_key_range=HashKeyRange(3, 3), starting_sequence_number="1")
    lease = Lease(lease_key="n", checkpoint=ExtendedSequenceNumber("1"))
    fill = fill_hash_key_ranges([lease], [narrow])
    assert (fill.leases, dict(fill.to_write)) == ((lease,), {})


def test_a_hole_left_by_lost_leases_is_mended_by_the_real_sync() -> None:
    halves = (HashKeyRange(0, 2**127 - 1), HashKeyRange(2**127, MAX_HASH_KEY))
    bench = Bench()
    bench.stream.shards = [
        Shard(shard_id=i, hash_key_range=r, starting_sequence_number="1") for i, r in zip("ab", halves, strict=True)
    ]
    bench.hold(covering("a", halves[0].start, halves[0].end), Lease(lease_key="old", checkpoint=AT_SHARD_END))
    shard_sync = ShardSync(
        bench.stream,  # type: ignore[arg-type]
        bench.table,  # type: ignore[arg-type]
        STREAM,
        InitialPosition(kind="TRIM_HORIZON"),
        ShardSyncSettings(),
    )
    auditor = Auditor(
        OneStream(bench.stream, shard_sync),  # type: ignore[arg-type]
        bench.table,  # type: ignore[arg-type]
        ShardSyncSettings(),
        bench.clock,
        is_leader=lambda: True,
    )
    outcomes = []
    pause_s = auditor.run_once()
    for _ in range(4):
        bench.clock.now_s += pause_s
        pause_s = auditor.run_once()
        outcomes.append(auditor.last_outcome)
    assert outcomes == ["no_sync_needed", "no_sync_needed", "synced", "no_sync_needed"]
    assert [lease.lease_key for lease in bench.table.created] == ["b"]
