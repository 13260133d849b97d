"""What our workers write to the metadata tables, against what a Java KCL 3.1.3 wrote (tests/data/golden).

By rows: names, types and forms of values, kinds of writes, transitions. By requests: every single one changes what
spec lease-table 5.13 says, on its condition, and moves the counter as it says.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcl_host.local.engines import Engines
from kcl_host.local.producer import Producer
from tests.integration.counting import Counting, stop
from tests.integration.row_writes import Watch, Write
from tests.recorder import Change, classify, differences, read_trace, writes

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[1] / "data" / "golden"
RESHARD = read_trace(DATA / "java-kcl-3.1.3-split-merge-cleanup.jsonl")
HANDOVER = read_trace(DATA / "java-kcl-3.1.3-two-worker-handover.jsonl")
GOLDEN = [*RESHARD, *HANDOVER]

FOR_ALL = {
    "lease created",
    "assigned",
    "renewed",
    "checkpoint",
    "lock acquired",
    "lock heartbeat",
    "worker metrics created",
    "worker metrics reported",
}

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
COUNT, NATURAL = r"0|[1-9]\d*", r"[1-9]\d*"
FORMS = {
    "leaseKey": r"shardId-\d{12}",
    "leaseCounter": COUNT,
    "ownerSwitchesSinceCheckpoint": COUNT,
    "checkpoint": rf"TRIM_HORIZON|SHARD_END|{NATURAL}",
    "checkpointSubSequenceNumber": COUNT,
    "startingHashKey": COUNT,
    "endingHashKey": NATURAL,
    "throughputKBps": r"\d+(\.\d{1,6})?|\d(\.\d+)?E-[1-6]",
    "parentShardId": r"shardId-\d{12}",
    "childShardIds": r"shardId-\d{12}",
    "key": "Leader|Migration3.0",
    "leaseDuration": NATURAL,
    "recordVersionNumber": UUID,
    "lut": r"1\d{9}",
    "entityType": "LEASE|LEADER|WORKER_METRIC_STATS",
}
"""What texts and numbers look like, in all traces alike."""


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


@contextmanager
def started(counting: Counting) -> Iterator[subprocess.Popen[bytes]]:
    """A host process, killed at the end should it still run."""
    host = counting.start()
    try:
        yield host
    finally:
        if host.poll() is None:
            host.kill()
        host.wait()


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


# What holds for every trace


def check_rows(ours: Sequence[Change], required: set[str]) -> None:
    # KCL 3.1.3, which wrote the traces, knows no table migration.
    ours = [change for change in ours if change.key != "TableMigration3.5"]
    assert differences(ours, GOLDEN, required) == []
    check_forms(ours)
    given_up = {(("owned", *rest), ("free", *rest)) for _, *rest in states(ours)}
    assert transitions(ours) - given_up - {(after, before) for before, after in given_up} <= transitions(GOLDEN)


def check_forms(changes: Iterable[Change]) -> None:
    for change in changes:
        for name, value in change.changed.items():
            if value and name in FORMS:
                ((_, content),) = value.items()
                for text in [content] if isinstance(content, str) else content:
                    assert re.fullmatch(FORMS[name], text), f"{name} = {text}"
            elif value and name in ("sts", "opr"):
                assert all("N" in number for metric in value["M"].values() for number in metric["L"])


State = tuple[str, str, str]
"""Of a lease: who has it, where it is, whether its children are noted."""


def histories(changes: Iterable[Change]) -> dict[tuple[str, str], list[State | None]]:
    """The states that each lease went through; None: no row."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    found: dict[tuple[str, str], list[State | None]] = {}
    for change in changes:
        if change.kind != "lease":
            continue
        place = change.table, change.key
        row = rows[place] = {} if change.deleted else {**rows.get(place, {}), **change.changed}
        state = None if change.deleted else state_of({name for name, value in row.items() if value}, row)
        history = found.setdefault(place, [None])
        if history[-1] != state:
            history.append(state)
    return found


def state_of(present: set[str], row: dict[str, Any]) -> State:
    owner = "pending" if "checkpointOwner" in present else "owned" if "leaseOwner" in present else "free"
    checkpoint: str = row["checkpoint"]["S"]
    return owner, "number" if checkpoint.isdigit() else checkpoint, "children" if "childShardIds" in present else ""


def states(changes: Iterable[Change]) -> set[State]:
    return {state for history in histories(changes).values() for state in history if state}


def transitions(changes: Iterable[Change]) -> set[tuple[State | None, State | None]]:
    return {pair for history in histories(changes).values() for pair in itertools.pairwise(history)}


def check_requests(watch: Watch) -> None:
    """Each write is one of spec lease-table 5.13, and the row became what that line says."""
    assert watch.legacy_parameters == set()
    counters: dict[str, int] = {}
    for write in watch.writes:
        rule, change = write.rule, write.change
        if not write.applied:
            assert (write.refusal, change) == ("ConditionalCheckFailedException", None)
            continue
        if change is None:
            assert rule.kind in ("note children", "delete", "report metrics"), f"{rule.kind} without effect"
            continue
        assert change.key == write.key
        if rule.always:
            assert not change.new or rule.kind == "report metrics", f"{rule.kind} made a row"
            assert change.new or change.changed.keys() <= write.updates.keys()
        if rule.table != "lease" or change.deleted:
            continue
        before = counters.get(write.key, 0)
        counters[write.key] = int(change.changed.get("leaseCounter", {"N": before})["N"])
        assert counters[write.key] == before + rule.counter, rule.kind
        if rule.kind in ("renew", "checkpoint"):
            assert int(write.updates["leaseCounter"][1]) == int(write.terms["leaseCounter"]) + 1
        if rule.kind == "renew":
            assert change.changed.keys() <= {"leaseCounter", "throughputKBps"}
        if rule.kind == "assign":
            assert write.updates["leaseCounter"][1] == "1"
            assert ("ADD ownerSwitchesSinceCheckpoint" in write.changes) == switches_owner(write)


def switches_owner(write: Write) -> bool:
    """The rule of spec lease-table 5.5."""
    _, to = write.updates["leaseOwner"]
    owner, checkpoint_owner = write.terms.get("leaseOwner"), write.terms.get("checkpointOwner")
    return owner not in (None, to) or checkpoint_owner == to


def refused(watch: Watch) -> Counter[str]:
    return Counter(write.kind for write in watch.writes if not write.applied)


def test_java_passes_by_the_same_yardstick() -> None:
    check_rows(RESHARD, FOR_ALL | {"child shards written", "lease deleted"})
    check_rows(HANDOVER, FOR_ALL | {"handoff initiated", "handoff completed"})


SEEN = "leaseCounter = :seen"
OWNERS = "leaseKey = :key AND leaseOwner = :owner AND attribute_not_exists(checkpointOwner)"


@pytest.mark.parametrize(
    ("update", "condition", "kind"),
    [
        ("SET leaseCounter = :next", f"{SEEN} AND attribute_not_exists(checkpointOwner)", "renew"),
        ("SET leaseCounter = :next, throughputKBps = :x", SEEN, "renew"),
        ("SET leaseCounter = :next, leaseOwner = :x", SEEN, None),
        ("SET leaseCounter = :next", f"{SEEN} AND leaseOwner = :owner", None),
        ("SET leaseCounter = :next", "", None),
        ("SET leaseOwner = :x, checkpointOwner = :owner", OWNERS, "initiate handoff"),
        ("SET leaseOwner = :x, checkpointOwner = :owner ADD leaseCounter :x", OWNERS, None),
        ("SET leaseOwner = :x, checkpointOwner = :owner", "leaseOwner = :owner", None),
        ("SET leaseOwner = :x REMOVE checkpointOwner ADD leaseCounter :x", OWNERS, "assign"),
        ("SET leaseOwner = :x REMOVE checkpointOwner ADD leaseCounter :x", f"{OWNERS} AND {SEEN}", None),
        ("SET leaseOwner = :x REMOVE checkpointOwner", OWNERS, None),
        ("REMOVE checkpointOwner, leaseOwner ADD leaseCounter :x", OWNERS, "evict"),
        ("REMOVE leaseOwner ADD leaseCounter :x", OWNERS, None),
        ("SET childShardIds = :x", "leaseKey = :key", "note children"),
        ("SET childShardIds = :x", "", None),
        ("SET leaseCounter = :next, checkpoint = :x", SEEN, None),
    ],
)
def test_the_rules_know_each_write_from_its_request(update: str, condition: str, kind: str | None) -> None:
    values = {f":{name}": {"S": name} for name in ("seen", "next", "owner", "key", "x")}
    request = {"TableName": "app", "UpdateExpression": update, "ExpressionAttributeValues": values}
    write = Write("UpdateItem", {**request, "ConditionExpression": condition}, None, None)
    if kind is None:
        with pytest.raises(AssertionError, match="a write that Java does not make"):
            _ = write.kind
    else:
        assert write.kind == kind


# One worker


@pytest.mark.interop  # Long: .ci/run has it.
def test_one_worker_through_split_and_merge(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 4)
    watch = Watch(engines, "counting")
    counting = Counting(
        engines,
        tmp_path,
        leaseCleanupIntervalMillis=300,
        completedLeaseCleanupIntervalMillis=300,
        workerMetricsReporterFreqInMillis=2000,
    )
    engines.put_records("numbers", [(str(n), b"before") for n in range(100)])
    with started(counting) as host:
        counting.wait_for_numbers(100, 20)
        engines.split_shard("numbers", shard_id(0))
        engines.merge_shards("numbers", shard_id(1), shard_id(2))
        engines.put_records("numbers", [(str(n), b"after") for n in range(100)])
        counting.wait_until(lambda: len(watch.of("delete")) == 3, 20)
        counting.wait_until(lambda: {"lock heartbeat", "worker metrics reported"} <= writes(watch.changes), 20)
        assert stop(host) == 0

    check_rows(
        watch.changes,
        FOR_ALL | {"child shards written", "lease deleted", "evicted", "lock released"},
    )
    check_requests(watch)
    assert watch.created_tables == {
        "counting-CoordinatorState": ["key"],
        "counting-WorkerMetricStats": ["wid"],
        "counting": ["leaseKey", "leaseOwner", "leaseKey"],
    }
    assert list(watch.created_tables)[-1] == "counting", "who creates it decides the format"
    assert set(refused(watch)) <= {"create", "renew", "evict"}, "of rows that exist, or have been deleted"

    for parent, children in {0: {4, 5}, 1: {6}, 2: {6}}.items():
        check_shard_end(watch, parent, children)
    assert {last_write(watch, shard_id(shard)).kind for shard in (3, 4, 5, 6)} == {"evict"}
    ours, java = histories(watch.changes), histories(RESHARD)
    # Of the parents of the merge: what was written last to that of the split, Java's recorder could not tell apart.
    assert ours["counting", shard_id(0)] == ours["counting", shard_id(1)] == java["reshard", shard_id(1)]


def check_shard_end(watch: Watch, parent: int, children: set[int]) -> None:
    """Leases of the children, then their ids on the parent, then SHARD_END; heartbeats only until it is deleted."""
    created = {write.key: n for n, write in enumerate(watch.writes) if write.applied and write.kind == "create"}
    own = [(n, write) for n, write in enumerate(watch.writes) if write.key == shard_id(parent)]
    (noted,) = (n for n, write in own if write.kind == "note children")
    (end,) = (n for n, write in own if write.applied and write.updates.get("checkpoint") == ("SET", "SHARD_END"))
    (deleted,) = (n for n, write in own if write.kind == "delete")
    assert max(created[shard_id(child)] for child in children) < noted < end < deleted
    assert set(watch.writes[noted].updates["childShardIds"][1]) == {shard_id(child) for child in children}
    assert {write.kind for n, write in own if end < n < deleted} <= {"renew"}
    assert not [write for n, write in own if n > deleted and write.applied]
    for child in children:
        created_row = watch.writes[created[shard_id(child)]].request["Item"]
        assert shard_id(parent) in created_row["parentShardId"]["SS"]
        assert created_row["checkpoint"] == {"S": "TRIM_HORIZON"}


# Two workers


@pytest.mark.interop  # Long: .ci/run has it.
def test_two_workers_hand_over(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 4)
    watch = Watch(engines, "counting")
    counting = Counting(
        engines,
        tmp_path,
        disableWorkerMetrics="true",
        varianceBalancingFrequency=1,
        workerMetricsReporterFreqInMillis=2000,
        failoverTimeMillis=10000,  # No lease may expire here, however slow the machine.
    )
    producer = Producer(engines, "numbers", records_per_s=100)
    producer.start()
    try:
        with started(counting) as first:
            counting.wait_for_numbers(20, 20)
            with started(counting) as second:
                # The leader hands over for the sake of balance, then because it leaves; the last one gives up.
                counting.wait_until(lambda: handovers(watch), 20)
                by_leader = handovers(watch)[0]
                counting.wait_until(lambda: was_taken_up(watch, by_leader[0].key), 20)
                assert stop(first) == 0
                counting.wait_until(lambda: all(was_taken_up(watch, lease_key) for lease_key in leases(engines)), 20)
                assert stop(second) == 0
    finally:
        producer.stop()

    check_rows(
        watch.changes,
        FOR_ALL | {"handoff initiated", "handoff completed", "evicted", "lock released"},
    )
    check_requests(watch)
    assert set(refused(watch)) <= {"create", "renew", "initiate handoff", "evict", "acquire lock"}
    workers = {write.key for write in watch.of("report metrics")}
    assert len(workers) == 2
    for handover in handovers(watch):
        check_handover(handover, workers)
    refusal = next(n for n, write in enumerate(by_leader) if not write.applied)
    assert (by_leader[refusal].kind, "no checkpointOwner" in by_leader[refusal].terms) == ("renew", True)
    repeated = by_leader[refusal + 1]
    assert (repeated.kind, repeated.applied, set(repeated.terms)) == ("renew", True, {"leaseCounter"})
    assert not any("leaseOwner" in row for row in leases(engines).values())


def leases(engines: Engines) -> dict[str, dict[str, Any]]:
    return {row["leaseKey"]["S"]: row for row in engines.dynamodb.call("Scan", TableName="counting")["Items"]}


def was_taken_up(watch: Watch, lease_key: str) -> bool:
    """Whether somebody has renewed or checkpointed the lease since it was last assigned."""
    return last_write(watch, lease_key).kind in ("renew", "checkpoint")


def last_write(watch: Watch, lease_key: str) -> Write:
    return [write for write in list(watch.writes) if write.key == lease_key and write.applied][-1]


def handovers(watch: Watch) -> list[list[Write]]:
    """The writes to a lease from the naming of its next owner to the end of the handover, all of them."""
    writes, found = list(watch.writes), []
    for start, write in enumerate(writes):
        if write.kind == "initiate handoff" and write.applied:
            later = [other for other in writes[start:] if other.key == write.key]
            end = next((n for n, other in enumerate(later) if other.kind == "assign" and other.applied), None)
            if end is not None:
                found.append(later[: end + 1])
    return found


def check_handover(handover: list[Write], workers: set[str]) -> None:
    """As in the golden trace: owners only, then heartbeats and checkpoints, then the counter and one owner less."""
    initiated, *between, completed = handover
    assert initiated.change is not None and completed.change is not None
    assert same_names(initiated.change) and same_names(completed.change)
    old, new = initiated.change.changed["checkpointOwner"], initiated.change.changed["leaseOwner"]
    assert old and new and {old["S"], new["S"]} == workers
    assert initiated.terms["leaseOwner"] == old["S"]
    assert {write.kind for write in between if write.applied} <= {"renew", "checkpoint"}
    assert completed.change.changed["checkpointOwner"] is None
    assert completed.updates["leaseOwner"] == ("SET", new["S"]), "which it was already"
    assert (completed.terms["leaseOwner"], completed.terms["checkpointOwner"]) == (new["S"], old["S"])


def same_names(change: Change) -> bool:
    """Whether Java changed exactly these attributes in a write of this kind."""
    return change.changed.keys() in [java.changed.keys() for java in HANDOVER if classify(java) == classify(change)]
