"""A simulated fleet that begins as a saved one."""

from __future__ import annotations

import pytest

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.decisions.fleet_looks import FleetSnapshot
from kcl_host.decisions.saved_fleet import SavedFleet
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from kcl_host.model.shard import HashKeyRange
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from tests.simulation.beginning import Beginning, beginning_of
from tests.simulation.run import Setup, settings_of, simulate

pytestmark = pytest.mark.simulation
WALL_S = 1_800_000_000.0


def saved(owners: list[str | None], workers: str = "ab", kbps: list[float | None] | None = None) -> SavedFleet:
    """Shards in the reverse order of their keys, after one that has ended."""
    leases = [
        Lease(
            lease_key=f"s{99 - n}",
            checkpoint=AT_TRIM_HORIZON,
            lease_owner=owner,
            throughput_kbps=10.0 if kbps is None else kbps[n],
            hash_key_range=HashKeyRange(n * 10, n * 10 + 9),
        )
        for n, owner in enumerate(owners)
    ]
    ended = Lease(lease_key="s0", checkpoint=AT_SHARD_END, lease_owner="a")
    stats = [WorkerMetricStats(worker_id=name, last_update_s=int(WALL_S)) for name in workers]
    return SavedFleet(
        application="orders",
        # By count: what is produced by chance is never even.
        assignment=AssignmentSettings(interval_s=10.0, strategy="LEASE_COUNT_BASED"),
        leases=LeaseSettings(failover_s=5.0),
        metrics=WorkerMetricsSettings(),
        looks=(
            FleetSnapshot(
                taken_s=WALL_S,
                at_s=1.0,
                listing=LeaseListing(leases=(ended, *reversed(leases))),
                workers=WorkerListing(workers=tuple(stats)),
            ),
        ),
    )


def setup(beginning: Beginning, seed: int = 0, **fields: float) -> Setup:
    return Setup(
        seed=seed, workers=beginning.workers, shards=len(beginning.owners), failover_s=beginning.leases.failover_s,
        beginning=beginning, hours=0.1, **fields,
    )  # fmt: skip


def test_open_shards_in_the_order_of_their_hash_keys_with_slots_as_owners() -> None:
    beginning = beginning_of(saved(["a", "b", None, "gone"], kbps=[30.0, None, 10.0, 20.0]), "fleet.json")
    assert (beginning.workers, beginning.owners) == (2, (0, 1, None, -1))
    assert beginning.kbps == (30.0, 20.0, 10.0, 20.0)
    settings = settings_of(setup(beginning))
    assert (settings.lease.failover_s, settings.lock.lease_duration_s, settings.assignment.interval_s) == (
        5.0,
        5.0,
        10.0,
    )


def test_a_fleet_of_nobody_is_none() -> None:
    with pytest.raises(ValueError, match="0 active workers and 1 open shards"):
        beginning_of(saved(["a"], workers=""), "fleet.json")


@pytest.mark.interop  # Long: .ci/run has it.
def test_owners_find_their_leases_and_nothing_moves() -> None:
    even = simulate(setup(beginning_of(saved(["a", "b"] * 4), "f")), schedule=[])
    assert even.moves == 0 and even.records > 0
    orphaned = simulate(setup(beginning_of(saved(["a", "b", "gone", None] * 2), "f")), schedule=[])
    assert orphaned.moves >= 4


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_it_holds_when_it_is_broken() -> None:
    outcome = simulate(setup(beginning_of(saved(["a", "b"] * 3), "f"), seed=1, every_s=15.0))
    assert outcome.moves > 5
