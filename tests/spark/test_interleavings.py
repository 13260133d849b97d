"""Every record once in the table, whatever crashes, fails, wakes up late or is cleaned up in between."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.spark.position import Position
from tests.spark.other_worlds import DeltaWorld, RowWorld
from tests.spark.world import World, run

WORLDS = pytest.mark.parametrize("kind", [World, RowWorld, DeltaWorld])

# Sub-records of aggregates, and numbers whose order as text is another one.
RECORDS = [
    Position(number, sub)
    for number in (7, 8, 9, 10, 11, 99, 100, 101, 1000, 1001)
    for sub in range(3 if number % 2 else 1)
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@WORLDS
@given(
    choices=st.lists(st.integers(0, 1000), max_size=600),
    trigger_records=st.integers(1, 6),
    fold_every=st.integers(2, 5),
)
@settings(max_examples=60)
def test_every_record_once(kind: type[World], choices: list[int], trigger_records: int, fold_every: int) -> None:
    run(kind(choices, RECORDS, trigger_records=trigger_records, fold_every=fold_every), steps=len(choices) // 3)


def play(kind: type[World], seed: int, steps: int = 400) -> Counter[str]:
    rng = random.Random(seed)
    choices = [rng.randrange(1000) for _ in range(3 * steps)]
    world = kind(choices, RECORDS, trigger_records=rng.randint(1, 6), fold_every=rng.randint(2, 5))
    try:
        run(world, steps, maintenance=seed % 3 != 0)
    except BaseException:
        print(f"seed {seed}")
        raise
    return Counter(world.seen)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
@WORLDS
def test_many_seeds(kind: type[World]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        seen += play(kind, seed)
    # A world in which nothing happens would prove nothing.
    assert all(
        seen[what] > 30 for what in ("crashed", "lease moved", "store failed", "compacted", "vacuumed", "rewound")
    )


@pytest.mark.stress
@WORLDS
def test_very_many_seeds(kind: type[World]) -> None:
    first = random.randrange(2**32)
    for seed in range(first, first + int(os.environ.get("KCL_HOST_STRESS_RUNS", "20000"))):
        play(kind, seed)
