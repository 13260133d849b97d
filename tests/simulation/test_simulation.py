"""A slice of the fleet simulation; scripts/simulate runs as much of it as there is time for."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.coverage import expected, missing
from tests.simulation.run import Failure, Setup, outcome_of, shrink, simulate

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("seed", (0, 3))  # Both table formats. More, and all modes: the gate.
def test_a_disturbed_fleet_keeps_every_promise(seed: int) -> None:
    outcome = simulate(Setup(seed=seed, workers=4, shards=10, hours=0.25, every_s=20.0))
    assert outcome.records > 100 and outcome.moves > 20, "or nothing was tried"


@pytest.mark.parametrize(
    "seed", [pytest.param(0, id="polling"), pytest.param(1, id="fanout"), pytest.param(2, id="mixed")]
)
def test_an_undisturbed_fleet_delivers_nothing_twice(seed: int, request: pytest.FixtureRequest) -> None:
    setup = Setup(seed=seed, workers=3, shards=12, hours=0.5)
    assert setup.retrieval == request.node.callspec.id
    outcome = simulate(setup, schedule=[])
    assert outcome.redelivered == 0
    assert (outcome.counts["subscription renewed"] > 12) == (setup.retrieval != "polling")
    assert not [name for name in outcome.counts if name in ("log lease_lost", "log turn_failed", "log leader_lost")]


@pytest.mark.interop  # Long: .ci/run has it.
def test_a_seed_does_the_same_again() -> None:
    setup = Setup(seed=5, workers=4, shards=8, hours=0.2, every_s=15.0)
    first, second = simulate(setup), simulate(setup)
    assert (first.counts, first.moves, first.redelivered) == (second.counts, second.moves, second.redelivered)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_broken_promise_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that do not wait for parent shards are caught, and few disturbances are left to show it."""
    monkeypatch.setattr("kcl_host.runtime.shard_consumer.is_blocked_on_parents", lambda parents: False)
    setups = (Setup(seed=seed, workers=2, shards=4, hours=0.15, every_s=15.0) for seed in range(20))
    failure = next(failure for setup in setups if isinstance(failure := outcome_of(setup), Failure))
    assert "before its parent" in failure.why
    small = shrink(failure, tries=20)
    assert len(small.schedule) < len(failure.schedule) / 2
    assert {"split", "merge", "reshard_storm"} & {item.kind for item in small.schedule}
    assert any("BROKEN" in line for line in small.history)


def test_what_was_never_met_is_missing() -> None:
    names = expected()
    assert len(names) == len(set(names)) > 100
    counts = Counter({name: 1 for name in names[1:]})
    assert missing(counts) == names[:1]
