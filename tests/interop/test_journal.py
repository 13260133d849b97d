"""The judgement of a fleet finds each way to break the promise; no Java needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interop.journal import Event, Tenure, complaints

SHARD, CHILD = "shardId-0", "shardId-1"


def tenure(worker: str, start_s: float, found: str, *batches: Sequence[int], shard: str = SHARD) -> Tenure:
    """A child that got a batch each second and checkpointed all but the last."""
    events = [Event(at_s=start_s, worker=worker, shard=shard, event="initialized", numbers=[found])]
    for at_s, batch in enumerate(batches, 1):
        numbers = [str(number) for number in batch]
        events.append(Event(at_s=start_s + at_s, worker=worker, shard=shard, event="records", numbers=numbers))
        if at_s < len(batches):
            covered = Event(at_s=start_s + at_s, worker=worker, shard=shard, event="checkpointed", numbers=numbers[-1:])
            events.append(covered)
    return Tenure(child=f"{worker}-{start_s}", events=events)


STORED = {SHARD: [1, 2, 3, 4]}
FIRST = tenure("java-1", 0, "TRIM_HORIZON", [1, 2], [3])


def judged(*tenures: Tenure, killed: dict[str, float] | None = None) -> list[str]:
    return complaints(tenures, STORED, {SHARD: []}, killed or {})


def test_a_handover_without_loss_or_repetition_is_right() -> None:
    assert judged(FIRST, tenure("kcl-host-1", 3, "3", [4])) == []


def test_what_a_killed_worker_had_not_checkpointed_comes_again() -> None:
    assert judged(FIRST, tenure("kcl-host-1", 3, "2", [3, 4]), killed={"java-1": 2.5}) == []


@pytest.mark.parametrize(
    ("tenures", "complaint"),
    [
        ([FIRST], "1 records lost, first 4"),
        ([FIRST, tenure("kcl-host-1", 3, "2", [3, 4])], "1 records again, and shardId-0 at java-1 had not crashed"),
        ([FIRST, tenure("kcl-host-1", 1.5, "3", [4])], "began 0.500 s before shardId-0 at java-1 got its last records"),
        ([FIRST, tenure("kcl-host-1", 3, "1", [4])], "went back to 1, shardId-0 at java-1 had checkpointed 2"),
        ([FIRST, tenure("kcl-host-1", 3, "4", [4])], "got 4, which its checkpoint 4 covers"),
        ([tenure("java-1", 0, "TRIM_HORIZON", [1, 3, 2, 4])], "not in order"),
    ],
)
def test_what_is_wrong_is_said(tenures: list[Tenure], complaint: str) -> None:
    assert [found for found in judged(*tenures) if complaint in found]


def test_a_child_shard_comes_after_its_parent() -> None:
    parent = tenure("java-1", 0, "TRIM_HORIZON", [1], [2])
    stored, parents = {SHARD: [1, 2], CHILD: [5]}, {SHARD: [], CHILD: [SHARD]}
    late = tenure("kcl-host-1", 2, "TRIM_HORIZON", [5], shard=CHILD)
    assert complaints([parent, late], stored, parents, {}) == []
    early = tenure("kcl-host-1", 0.5, "TRIM_HORIZON", [5], shard=CHILD)
    assert complaints([parent, early], stored, parents, {}) == [
        "shardId-1 began 0.500 s before its parent shardId-0 was delivered"
    ]
