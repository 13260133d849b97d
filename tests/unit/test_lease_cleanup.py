"""Clean-up of finished leases: every case of tests/scenarios/lease_cleanup.json, and the rhythm of the shell."""

from __future__ import annotations

import msgspec
import pytest
from shard_scenarios import Case, Now, Shards, Table, lease_of, read_cases

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.coordination.lease_cleanup import LeaseCleanup
from kcl_host.decisions.lease_cleanup import (
    SHARD_GONE,
    AskKinesis,
    CleanupDue,
    CleanupFacts,
    Delete,
    Forget,
    Keep,
    ReadRelatives,
    ReadRow,
    decide_cleanup,
)
from kcl_host.errors import StreamNotFound, Throttled, Unavailable
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber
from kcl_host.model.shard import ChildShard, HashKeyRange

CASES = read_cases("lease_cleanup.json")
DIFFERENT = {
    # Java deletes as completed, then asks Kinesis all the same and deletes again. Once is enough.
    "completed_and_garbage_due_shard_expired": {"deleted": ["p"], "service_asked": False},
}


def expectation(case: Case) -> Case:
    return case["expect"] | DIFFERENT.get(case["name"], {})


def pending_of(case: Case) -> Lease:
    pending = case["pending"]
    identifier = pending.get("stream_identifier")
    return Lease(
        lease_key=pending["lease_key"],
        checkpoint=AT_SHARD_END,
        parent_shard_ids=frozenset(pending["parent_shard_ids"]),
        stream_name=identifier,
        multi_stream_shard_id=pending["shard_id"] if identifier else None,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_decision(case: Case) -> None:
    rows = {row["lease_key"]: lease_of(row) for row in case["table"]}
    config, expect, pending = case["config"], expectation(case), pending_of(case)
    due = CleanupDue(
        completed=config["completed_interval_elapsed"] and config["cleanup_leases_upon_shard_completion"],
        garbage=config["garbage_interval_elapsed"],
    )
    answer = case["service_children"]
    facts, written, asked = CleanupFacts(), None, False
    for _ in range(5):
        step = decide_cleanup(pending, facts, due)
        if isinstance(step, ReadRow):
            row = rows.get(pending.lease_key)
            facts = msgspec.structs.replace(facts, row=(row,) if row else ())
        elif isinstance(step, AskKinesis):
            asked = True
            if answer == "Timeout":
                step = Keep(reason="not_due")
                break
            children = SHARD_GONE if answer == "ResourceNotFound" else frozenset(answer)
            facts = msgspec.structs.replace(facts, children=children)
        elif isinstance(step, ReadRelatives):
            written = step.child_shard_ids
            facts = msgspec.structs.replace(facts, relatives={k: rows[k] for k in step.lease_keys if k in rows})
        else:
            break
    assert isinstance(step, Delete | Forget | Keep), "five facts are more than there are"
    assert ([pending.lease_key] if isinstance(step, Delete) else []) == expect["deleted"], case["why"]
    assert (written and sorted(written)) == expect["child_shard_ids_written"], case["why"]
    assert isinstance(step, Keep) is expect["requeued"], case["why"]
    assert asked is expect["service_asked"], case["why"]
    assert (None if isinstance(step, Keep) else step.reason) == expect["reason"], case["why"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_turn(case: Case) -> None:
    table, stream, clock = Table(lease_of(row) for row in case["table"]), Shards(), Now()
    config, expect, pending = case["config"], expectation(case), pending_of(case)
    shard_id, answer = case["pending"]["shard_id"], case["service_children"]
    if answer == "ResourceNotFound":
        stream.children[shard_id] = StreamNotFound()
    elif answer == "Timeout":
        stream.children[shard_id] = Unavailable()
    else:
        stream.children[shard_id] = tuple(child(i, shard_id) for i in answer)
    cleanup = LeaseCleanup(
        lambda lease: stream,  # type: ignore[arg-type,return-value]
        table,  # type: ignore[arg-type]
        ShardSyncSettings(
            cleanup_upon_shard_completion=config["cleanup_leases_upon_shard_completion"],
            completed_cleanup_interval_s=50 if config["completed_interval_elapsed"] else 200,
            garbage_cleanup_interval_s=50 if config["garbage_interval_elapsed"] else 200,
        ),
        clock,
    )
    assert cleanup.enqueue(pending)
    clock.now_s += 100
    cleanup.run_once()
    assert table.deleted == expect["deleted"], case["why"]
    ids = expect["child_shard_ids_written"]
    assert table.child_shards_written == ([] if ids is None else [(pending.lease_key, frozenset(ids))]), case["why"]
    assert cleanup.is_queued(pending.lease_key) is expect["requeued"], case["why"]
    assert stream.asked == ([shard_id] if expect["service_asked"] else []), case["why"]


def child(shard_id: str, parent: str) -> ChildShard:
    return ChildShard(shard_id=shard_id, parent_shard_ids=(parent,), hash_key_range=HashKeyRange(0, 1))


def finished(key: str, *, child_shard_ids: str = "", parent_shard_ids: str = "") -> Lease:
    return Lease(
        lease_key=key,
        checkpoint=AT_SHARD_END,
        child_shard_ids=frozenset(child_shard_ids),
        parent_shard_ids=frozenset(parent_shard_ids),
    )


def started(key: str) -> Lease:
    return Lease(lease_key=key, checkpoint=ExtendedSequenceNumber("200"))


def make(table: Table, clock: Now, stream: Shards | None = None) -> LeaseCleanup:
    asked = stream or Shards()
    return LeaseCleanup(lambda lease: asked, table, ShardSyncSettings(), clock)  # type: ignore[arg-type,return-value]


def test_a_lease_is_queued_once_and_each_turn_is_a_minute() -> None:
    cleanup = make(Table(), Now())
    assert cleanup.enqueue(finished("p"))
    assert not cleanup.enqueue(msgspec.structs.replace(finished("p"), lease_counter=9))
    assert repr(cleanup) == "<LeaseCleanup 1 queued>"
    assert cleanup.run_once() == 60.0


def test_nothing_is_read_before_an_interval_has_passed_or_with_an_empty_queue() -> None:
    table, clock = Table([finished("p", child_shard_ids="a"), started("a")]), Now()
    cleanup = make(table, clock)
    cleanup.enqueue(finished("p"))
    clock.now_s += 299
    cleanup.run_once()
    assert table.reads == [] and cleanup.is_queued("p")
    clock.now_s += 1
    cleanup.run_once()
    assert table.deleted == ["p"] and not cleanup.is_queued("p")
    table.reads.clear()
    clock.now_s += 1000
    cleanup.run_once()
    assert table.reads == []


def test_a_stop_watch_starts_again_only_when_something_was_removed() -> None:
    table, clock = Table([finished("p", child_shard_ids="a")]), Now()
    cleanup = make(table, clock)
    cleanup.enqueue(finished("p"))
    clock.now_s += 300
    cleanup.run_once()
    assert cleanup.is_queued("p"), "the child has no lease yet"

    table.rows["a"] = started("a")
    clock.now_s += 60
    cleanup.run_once()
    assert table.deleted == ["p"], "still elapsed a minute later"

    table.rows |= {"q": finished("q", child_shard_ids="a")}
    cleanup.enqueue(finished("q"))
    clock.now_s += 60
    cleanup.run_once()
    assert cleanup.is_queued("q"), "the stop watch runs anew"
    clock.now_s += 240
    cleanup.run_once()
    assert table.deleted == ["p", "q"]


def test_kinesis_is_asked_every_minute_until_garbage_is_found() -> None:
    table, clock, stream = Table([finished("p", child_shard_ids="a")]), Now(), Shards()
    cleanup = make(table, clock, stream)
    cleanup.enqueue(finished("p", child_shard_ids="a"))
    clock.now_s += 1800
    for _ in range(2):
        cleanup.run_once()
        clock.now_s += 60
    assert stream.asked == ["p", "p"] and cleanup.is_queued("p")

    stream.children["p"] = StreamNotFound()
    cleanup.run_once()
    assert table.deleted == ["p"], "although its child has no lease"
    cleanup.enqueue(finished("q", child_shard_ids="a"))
    table.rows["q"] = finished("q", child_shard_ids="a")
    clock.now_s += 60
    cleanup.run_once()
    assert stream.asked == ["p", "p", "p"], "the stop watch runs anew"


def test_generations_go_parents_first() -> None:
    grandparent, parent = finished("g", child_shard_ids="p"), finished("p", child_shard_ids="a", parent_shard_ids="g")
    table, clock = Table([grandparent, parent, started("a")]), Now()
    cleanup = make(table, clock)
    cleanup.enqueue(parent)
    cleanup.enqueue(grandparent)
    clock.now_s += 300
    cleanup.run_once()
    assert table.deleted == ["g"]
    clock.now_s += 300
    cleanup.run_once()
    assert table.deleted == ["g", "p"]


def test_an_error_with_one_lease_does_not_stop_the_others() -> None:
    leases = [finished("p", child_shard_ids="a"), finished("q", child_shard_ids="a"), started("a")]
    table, clock = Table(leases), Now()
    failures = iter([Throttled("slow down")])
    table.error = lambda operation: next(failures, None) if operation == "get" else None
    cleanup = make(table, clock)
    cleanup.enqueue(finished("p"))
    cleanup.enqueue(finished("q"))
    clock.now_s += 300
    cleanup.run_once()
    assert table.deleted == ["q"] and cleanup.is_queued("p")


def test_a_lease_that_was_set_back_is_not_deleted_as_completed() -> None:
    """Being queued is no proof for ever: its children must not start while it is read again."""
    table, clock = Table([started("p"), started("a")]), Now()
    table.rows["p"] = msgspec.structs.replace(table.rows["p"], child_shard_ids=frozenset("a"))
    cleanup = make(table, clock)
    cleanup.enqueue(finished("p", child_shard_ids="a"))
    clock.now_s += 300
    cleanup.run_once()
    assert table.deleted == [] and cleanup.is_queued("p")
    row = (table.rows["p"],)
    verdict = decide_cleanup(row[0], CleanupFacts(row=row), CleanupDue(completed=True, garbage=False))
    assert verdict == Keep(reason="not_at_shard_end")


def test_what_a_lease_waits_for_is_named() -> None:
    row = finished("p", child_shard_ids="ab", parent_shard_ids="g")
    due = CleanupDue(completed=True, garbage=False)

    def verdict(*relatives: Lease) -> object:
        return decide_cleanup(row, CleanupFacts(row=(row,), relatives={r.lease_key: r for r in relatives}), due)

    waiting = Lease(lease_key="b", checkpoint=ExtendedSequenceNumber("TRIM_HORIZON"))
    assert verdict(started("a")) == Keep(reason="child_lease_missing", lease_keys=("b",))
    assert verdict(started("a"), waiting) == Keep(reason="child_not_started", lease_keys=("b",))
    assert verdict(started("a"), started("b"), started("g")) == Keep(reason="parent_lease_exists", lease_keys=("g",))
    assert verdict(started("a"), started("b")) == Delete("completed")
