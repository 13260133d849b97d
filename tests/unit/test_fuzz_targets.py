"""A handful of inputs of every fuzz target, and that the driver finds what it is for; scripts/fuzz makes millions."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.driver import Target, fuzz, input_of
from tests.fuzz.targets import TARGETS

INPUTS = {"properties": 40, "rows": 60, "log-lines": 50}
SEED = 7


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_from_outside_breaks_it(name: str) -> None:
    outcome = fuzz(TARGETS[name], range(INPUTS.get(name, 100)), SEED)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_is_told_by_seed_and_number_alone(name: str) -> None:
    assert repr(input_of(TARGETS[name], SEED, 3)) == repr(input_of(TARGETS[name], SEED, 3))
    assert repr(input_of(TARGETS[name], SEED, 3)) != repr(input_of(TARGETS[name], SEED + 1, 3))


def _target(misbehave: object) -> Target:
    def run(given: int) -> None:
        if given == 2:
            misbehave()  # type: ignore[operator]

    return Target("mine", lambda rng: rng.randrange(4), run)


def test_the_driver_finds_what_raises_and_says_how_to_see_it_again() -> None:
    def fail() -> None:
        raise KeyError("x")

    target = _target(fail)
    outcome = fuzz(target, range(40), SEED)
    (finding,) = outcome.findings
    assert "KeyError" in finding.what and finding.given == "2" and finding.times > 1
    assert f"--seed {SEED} --only {finding.number}" in str(finding)
    assert target.make(Random(SEED << 40 | finding.number)) == 2
    assert outcome.inputs == 40


def test_the_driver_ends_what_does_not_end() -> None:
    def hang() -> None:
        while True:
            pass

    outcome = fuzz(_target(hang), range(4), SEED, cpu_limit_s=0.02)
    assert [finding.what.partition(" at ")[0] for finding in outcome.findings] == ["mine: more than 0.02 s of CPU"]


def test_the_driver_finds_what_takes_memory() -> None:
    # Above 32 MiB the C library never gives out memory that was used before.
    target = Target("mine", lambda rng: bytearray(b"x"), lambda given: given.__imul__(64 * 2**20))
    outcome = fuzz(target, range(1), SEED, growth_limit_bytes=8 * 2**20)
    assert len(outcome.findings) == 1 and "grow" in outcome.findings[0].what
