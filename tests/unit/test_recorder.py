"""The recorder and its classifier, on the golden traces and on rows of our own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.recorder import Change, Recorder, classify, differences, read_trace, write_trace, writes

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
HANDOVER = GOLDEN / "java-kcl-3.1.3-two-worker-handover.jsonl"
RESHARD = GOLDEN / "java-kcl-3.1.3-split-merge-cleanup.jsonl"

AT_START = {
    "Migration3.0 created",
    "lock acquired",
    "lock heartbeat",
    "lease created",
    "assigned",
    "renewed",
    "checkpoint",
}
METRICS = {"worker metrics created", "worker metrics reported"}


def lease(**changed: Any) -> Change:
    return Change(0.0, "app", "s1", changed=changed)


def test_the_golden_traces_hold_the_writes_we_know() -> None:
    assert writes(read_trace(HANDOVER)) == AT_START | METRICS | {"handoff initiated", "handoff completed"}
    assert writes(read_trace(RESHARD)) == AT_START | METRICS | {"child shards written", "lease deleted"}


def test_a_handover_in_the_golden_trace_goes_by_the_book() -> None:
    changes = read_trace(HANDOVER)
    start = next(n for n, change in enumerate(changes) if classify(change) == "handoff initiated")
    key = changes[start].key
    story = [classify(change) for change in changes[start:] if change.key == key]
    end = next(n for n, write in enumerate(story) if write.startswith("handoff completed"))
    assert set(story[1:end]) <= {"renewed", "checkpoint", "checkpoint+renewed"}


S, N, B, GONE = {"S": "x"}, {"N": "1"}, {"B": "eA=="}, None


@pytest.mark.parametrize(
    ("changed", "write"),
    [
        ({"leaseCounter": N}, "renewed"),
        ({"leaseCounter": N, "throughputKBps": N}, "renewed"),
        ({"throughputKBps": N}, "renewed"),
        ({"leaseOwner": S, "leaseCounter": N}, "assigned"),
        ({"leaseOwner": S, "leaseCounter": N, "ownerSwitchesSinceCheckpoint": N}, "assigned"),
        ({"leaseOwner": GONE, "leaseCounter": N}, "evicted"),
        ({"leaseOwner": S, "checkpointOwner": S}, "handoff initiated"),
        ({"leaseOwner": S, "checkpointOwner": S, "leaseCounter": N}, "handoff initiated+renewed"),
        ({"checkpointOwner": GONE, "leaseCounter": N}, "handoff completed"),
        ({"checkpointOwner": GONE, "leaseCounter": N, "checkpoint": S}, "handoff completed+checkpoint"),
        ({"checkpoint": S, "leaseCounter": N}, "checkpoint"),
        ({"checkpointSubSequenceNumber": N, "leaseCounter": N}, "checkpoint"),
        ({"checkpoint": S, "leaseCounter": N, "throughputKBps": N}, "checkpoint+renewed"),
        ({"checkpoint": S, "leaseCounter": N, "pendingCheckpoint": GONE}, "checkpoint"),
        (
            {
                "pendingCheckpoint": S,
                "pendingCheckpointSubSequenceNumber": N,
                "pendingCheckpointState": B,
                "leaseCounter": N,
            },
            "checkpoint prepared",
        ),
        ({"childShardIds": {"SS": ["a"]}}, "child shards written"),
        ({"childShardIds": {"SS": ["a"]}, "leaseCounter": N}, "child shards written+renewed"),
        ({"startingHashKey": S, "endingHashKey": S}, "hash key range written"),
        ({"parentShardId": {"SS": ["a"]}, "leaseCounter": N}, "unknown: leaseCounter, parentShardId"),
        ({"leaseOwner": S, "colour": S}, "unknown: colour, leaseOwner"),
    ],
)  # fmt: skip
def test_what_a_change_of_a_lease_is(changed: dict[str, Any], write: str) -> None:
    assert classify(lease(**changed)) == write


def test_a_lock_that_is_taken_over_or_released() -> None:
    lock = Change(0.0, "app-CoordinatorState", "Leader", changed={"ownerName": S, "recordVersionNumber": S})
    assert classify(lock) == "lock acquired"
    assert classify(msgspec.structs.replace(lock, changed={}, deleted=True)) == "lock released"


def test_a_trace_does_not_differ_from_itself_nor_from_the_other_golden_one_in_names_and_types() -> None:
    handover, reshard = read_trace(HANDOVER), read_trace(RESHARD)
    assert differences(handover, handover, required_writes={"handoff initiated"}) == []
    assert differences(handover, [*reshard, *handover]) == []


def test_differences_are_named() -> None:
    golden = read_trace(RESHARD)
    row = dict(next(c for c in golden if classify(c) == "lease created").changed)
    del row["checkpointSubSequenceNumber"]
    ours = [
        Change(0.0, "app", "s1", new=True, changed={**row, "leaseCounter": {"S": "0"}, "entityType": S}),
        Change(0.0, "app", "s1", changed={"leaseOwner": S, "checkpointOwner": S}),
        Change(0.0, "app", "s1", changed={"leaseOwner": GONE, "leaseCounter": {"S": "1"}}),
    ]
    assert differences(ours, golden, required_writes={"renewed", "evicted"}) == [
        "lease: checkpointOwner of type S is not Java's",
        "lease: leaseCounter of type S is not Java's",
        "lease: a new row lacks checkpointSubSequenceNumber of type N",
        "lease: a new row lacks leaseCounter of type N",
        "write 'handoff initiated' is not Java's",
        "write 'renewed' does not occur",
    ]


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    for golden in (HANDOVER, RESHARD):
        written = tmp_path / golden.name
        write_trace(written, read_trace(golden))
        events = {line for line in golden.read_text().splitlines() if '"event"' in line}
        assert written.read_text().splitlines() == [
            line for line in golden.read_text().splitlines() if line not in events
        ]


class ScriptedScans:
    """A client whose tables are lists of looks, one item list per scan; None: there is no such table."""

    class exceptions:
        class ResourceNotFoundException(Exception):
            pass

    def __init__(self, tables: dict[str, list[list[dict[str, Any]] | None]]) -> None:
        self._looks = {name: iter(looks) for name, looks in tables.items()}

    def scan(self, TableName: str, **_: Any) -> dict[str, Any]:
        items = next(self._looks[TableName])
        if items is None:
            raise self.exceptions.ResourceNotFoundException
        return {"Items": items}


def test_the_recorder_tells_what_changed_between_two_looks() -> None:
    def row(key: str, **more: Any) -> dict[str, Any]:
        return {"leaseKey": {"S": key}, **more}

    children = {"SS": ["b", "a"]}
    client = ScriptedScans(
        {
            "app": [
                None,
                [row("s1", leaseCounter={"N": "0"}, state={"B": b"x"}), row("s2")],
                [row("s2", childShardIds=children), row("s1", leaseCounter={"N": "1"})],
                [row("s2", childShardIds={"SS": ["a", "b"]})],
            ],
            "app-CoordinatorState": [None, None, [{"key": {"S": "Leader"}}], [{"key": {"S": "Leader"}}]],
            "app-WorkerMetricStats": [[], [], [], []],
        }
    )
    ticks = itertools.count(100)
    recorder = Recorder(client, "app", clock=lambda: next(ticks))
    for _ in range(4):
        recorder.run_once()
    assert recorder.changes == [
        Change(2, "app", "s1", new=True, changed=row("s1", leaseCounter={"N": "0"}, state={"B": "eA=="})),
        Change(2, "app", "s2", new=True, changed=row("s2")),
        Change(3, "app", "s1", changed={"leaseCounter": {"N": "1"}, "state": None}),
        Change(3, "app", "s2", changed={"childShardIds": {"SS": ["a", "b"]}}),
        Change(3, "app-CoordinatorState", "Leader", new=True, changed={"key": {"S": "Leader"}}),
        Change(4, "app", "s1", deleted=True),
    ]
