"""What fleets at rest send to DynamoDB, against DESIGN.md section 5. Counted in simulated time: exact on any machine.

The whole table is printed by scripts/bench dynamodb.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.dynamodb import Measured, measure
from tests.bench.dynamodb_units import Rows, item_bytes, listing, sum_of, update
from tests.bench.java_requests import java_lines, java_migration_lines

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "java-kcl-3.1.3-two-worker-handover.jsonl"


def units_of(measured: Measured) -> dict[str, tuple[float, float, float]]:
    return {line.what: (line.units.requests, line.units.read, line.units.write) for line in measured.ours}


@pytest.fixture(scope="module")
def one_of_each() -> Measured:
    return measure(1, 1)


def test_one_worker_with_one_shard_reads_no_more_than_java(one_of_each: Measured) -> None:
    assert "reads" not in one_of_each.above
    assert one_of_each.our_units.read <= 376


def test_one_worker_with_one_shard_writes_what_java_does_and_the_heartbeats_of_the_lock(one_of_each: Measured) -> None:
    assert "writes" not in one_of_each.above
    assert one_of_each.our_units.write == pytest.approx(one_of_each.java_units.write + 1080 - 120, abs=2)


def test_all_that_one_worker_sends(one_of_each: Measured) -> None:
    """Renewals, index queries, passes of the leader (each 20 s) and audits (each 120 s), reports, the lock. No more."""
    assert {what: requests for what, (requests, _, _) in units_of(one_of_each).items()} == {
        "renew": pytest.approx(3600 / 3.30833, abs=1),
        "lease_keys_of": pytest.approx(3600 / 9.975, abs=1),
        "list_leases": pytest.approx(180 + 30, abs=2),
        "list_workers": pytest.approx(180, abs=1),
        "put": pytest.approx(120, abs=1),
        "heartbeat_lock": pytest.approx(1080, abs=1),
    }


@pytest.mark.parametrize(
    ("leases", "workers"),
    [(4, 2), pytest.param(100, 2, marks=pytest.mark.interop), (4, 5)],  # .ci/run has the long one.
)
def test_a_fleet_costs_no_more_than_java_and_what_is_allowed(leases: int, workers: int) -> None:
    measured = measure(leases, workers, hours=1 / 6)
    assert measured.above == []
    assert measured.checkpoints.write > leases * 10, "records flowed, and were checkpointed"


def test_a_follower_looks_at_the_lock_no_more_often_than_is_allowed() -> None:
    units = units_of(measure(1, 2, hours=1 / 3))
    assert units["read_lock"][1] <= 2055
    assert units["lease_keys_of"][1] <= 2 * 1800 + 3
    assert "get" not in units


# The arithmetic


def test_sizes_of_rows_that_java_wrote() -> None:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in GOLDEN.read_text().splitlines():
        change = json.loads(line)
        if change.get("new"):
            rows[change["table"], change["key"]] = change["changed"]
    # leaseKey 8+20, checkpoint 10+12, its sub-sequence 27+2, hash keys 15+1 and 13+38, switches 28+2, counter 12+2
    assert item_bytes(rows["fleet", "shardId-000000000000"]) == 28 + 22 + 29 + 16 + 51 + 30 + 14
    # key 3+6, ownerName 9+36, leaseDuration 13+6, recordVersionNumber 19+36
    assert item_bytes(rows["fleet-CoordinatorState", "Leader"]) == 9 + 45 + 19 + 55
    # cv 2+17, mb 2+36, mts 3+8, key 3+12, h 1 and 3 of a list, with one map (1+3) of three (3): cv 2+19, mb, mts
    map_bytes = 1 + 3 + 3 + 21 + 38 + 11
    assert item_bytes(rows["fleet-CoordinatorState", "Migration3.0"]) == 19 + 38 + 11 + 15 + 1 + 3 + map_bytes


def test_units_are_rounded_as_dynamodb_rounds() -> None:
    assert [listing(sizes).read for sizes in ([], [4096], [4096, 1], [400] * 100)] == [0.5, 0.5, 1.0, 5.0]
    assert [update(size).write for size in (1, 1024, 1025)] == [1, 1, 2]


def test_what_java_sends() -> None:
    """Two workers, four leases; an hour."""
    rows = Rows(
        lease={f"s{n}": 400 for n in range(4)}, index={"a": [90, 90], "b": [90, 90]}, worker={"a": 200, "b": 200}
    )
    lines = {line.what: line.units for line in java_lines(rows)}
    assert {what: (round(units.read, 1), round(units.write, 1)) for what, units in lines.items()} == {
        "renewals": (0, 4353.1),
        "discovery": (360.9, 0),
        "assignment, leases": (90, 0),
        "assignment, workers": (90, 0),
        "worker metrics": (0, 240),
        "lock, leader": (0, 120),
        "lock, followers": (240, 0),
        "audit": (15, 0),
    }
    assert sum_of(line.units for line in java_migration_lines(rows)).read == 3600 + 180 + 30 + 120
