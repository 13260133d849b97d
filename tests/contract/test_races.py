"""Many writers at once, one condition: who wins, what the others learn, and what a lost answer changes.

Judged by engines whose conditional writes are atomic: DynamoDB Local and dynalite (`interop`), and the embedded engine.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest
from botocore.exceptions import ReadTimeoutError
from contract_engines import DynamoDb

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.aws.worker_metrics_table import DynamoDbWorkerMetricsTable
from kcl_host.config.settings import LeaseSettings, LockSettings
from kcl_host.coordination.election import Election
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.errors import RetryLater, Unavailable
from kcl_host.model.lease import Lease, WriteOutcome
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.state import ClientVersionState, LeaderLock
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import LeaseTable
from kcl_host.runtime.clock import SystemClock
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.interop  # .ci/run has it.

WRITERS = 12
PAIRED = 6
"""Writers of each of two kinds."""
Answer = TypeVar("Answer")


@pytest.fixture(autouse=True)
def eager_threads() -> Iterator[None]:
    """Threads of this process take turns so often that an engine within it has no luck to hide behind."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before_s)


@pytest.fixture(scope="module")
def rounds(judge: DynamoDb) -> range:
    return range(4 if judge.name == "embedded" else 12)


@pytest.fixture(scope="module")
def leases(judge: DynamoDb) -> DynamoDbLeaseTable:
    return judge.lease_table()


@pytest.fixture
def coordinator(judge: DynamoDb) -> DynamoDbCoordinatorTable:
    table = DynamoDbCoordinatorTable(judge.client, judge.settings())
    table.create_table()
    return table


keys = (f"shardId-{n:012d}" for n in itertools.count())


def seeded(table: LeaseTable, **fields: Any) -> Lease:
    lease = Lease(**{"lease_key": next(keys), "checkpoint": AT_TRIM_HORIZON, "lease_owner": "a", **fields})
    assert table.create(lease)
    return lease


def row_of(table: LeaseTable, lease: Lease) -> Lease:
    row = table.get(lease.lease_key)
    assert row is not None
    return row


def at_once(acts: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Each act in its own thread, started together; their answers in order."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], Answer]) -> Answer:
        start.wait(30)
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def the_one(outcomes: Sequence[Any]) -> int:
    """Which write of them was applied."""
    winners = [n for n, outcome in enumerate(outcomes) if getattr(outcome, "applied", outcome)]
    assert len(winners) == 1, f"{len(winners)} of {len(outcomes)} writers with one condition won"
    return winners[0]


# One kind of write


def number(n: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(100 + n))


Write = Callable[[LeaseTable, Lease, int], WriteOutcome]
WRITES: dict[str, tuple[Write, Callable[[Lease, int], Lease]]] = {
    "renew": (
        lambda table, lease, n: table.renew(lease, float(n + 1)),
        lambda lease, n: changed(lease, lease_counter=1, throughput_kbps=n + 1),
    ),
    "checkpoint": (
        lambda table, lease, n: table.checkpoint(lease, number(n)),
        lambda lease, n: changed(lease, lease_counter=1, checkpoint=number(n)),
    ),
    "prepare": (
        lambda table, lease, n: table.prepare_checkpoint(lease, number(n), None),
        lambda lease, n: changed(lease, lease_counter=1, pending_checkpoint=number(n)),
    ),
    "assign": (
        lambda table, lease, n: table.assign(lease, f"w{n}"),
        lambda lease, n: changed(lease, lease_counter=1, lease_owner=f"w{n}", owner_switches_since_checkpoint=1),
    ),
    "handoff": (
        lambda table, lease, n: table.initiate_handoff(lease, f"w{n}"),
        lambda lease, n: changed(lease, lease_owner=f"w{n}", checkpoint_owner="a"),
    ),
    "evict": (
        lambda table, lease, n: table.evict(lease),
        lambda lease, n: changed(lease, lease_counter=1, lease_owner=None),
    ),
}


def changed(lease: Lease, **fields: Any) -> Lease:
    return msgspec.structs.replace(lease, **fields)


@pytest.mark.parametrize("kind", WRITES)
def test_of_many_writers_one_wins_and_the_others_see_its_row(
    leases: DynamoDbLeaseTable, rounds: range, kind: str
) -> None:
    write, written = WRITES[kind]
    for _ in rounds:
        lease = seeded(leases)
        outcomes = at_once([partial(write, leases, lease, n) for n in range(WRITERS)])
        row = row_of(leases, lease)
        assert row == written(lease, the_one(outcomes))
        assert {outcome.row for outcome in outcomes if not outcome.applied} == {row}


def test_a_lease_is_created_once(leases: DynamoDbLeaseTable, rounds: range) -> None:
    for key, _ in zip(keys, rounds, strict=False):
        drafts = [Lease(lease_key=key, checkpoint=number(n), lease_owner=f"w{n}") for n in range(WRITERS)]
        created = at_once([partial(leases.create, draft) for draft in drafts])
        assert leases.get(key) == drafts[the_one(created)]


def test_no_checkpoint_is_overwritten_by_one_that_has_not_seen_it(leases: DynamoDbLeaseTable, rounds: range) -> None:
    """Read, add one, write, again when refused: the classical lost update."""
    lease = seeded(leases, checkpoint=ExtendedSequenceNumber("0"))

    def count_up() -> int:
        refused = 0
        for _ in rounds:
            while True:
                row = row_of(leases, lease)
                assert row.checkpoint is not None
                after = ExtendedSequenceNumber(str(int(row.checkpoint.sequence_number) + 1))
                if leases.checkpoint(row, after).applied:
                    break
                refused += 1
        return refused

    refused = sum(at_once([count_up] * 4))
    total = 4 * len(rounds)
    assert row_of(leases, lease) == changed(lease, checkpoint=ExtendedSequenceNumber(str(total)), lease_counter=total)
    assert refused > 0, "there was no race"


# Two kinds of writes


def test_a_renewal_meets_the_announcement_of_a_handover(leases: DynamoDbLeaseTable, rounds: range) -> None:
    """The announcement always lands. A renewal lands before it or is refused by the row that names the next owner."""
    for _ in rounds:
        lease = seeded(leases)
        renewed, announced = at_once([partial(leases.renew, lease, None), partial(leases.initiate_handoff, lease, "b")])
        pending = changed(lease, lease_owner="b", checkpoint_owner="a", lease_counter=int(renewed.applied))
        assert announced.applied
        assert row_of(leases, lease) == pending
        if not renewed.applied:
            assert renewed.row == pending


def test_a_renewal_meets_an_assignment(leases: DynamoDbLeaseTable, rounds: range) -> None:
    """The assignment always lands, and whatever the old owner believes after it, its next write is refused."""
    for _ in rounds:
        lease = seeded(leases)
        renewed, assigned = at_once([partial(leases.renew, lease, None), partial(leases.assign, lease, "b")])
        assert assigned.applied
        believed = changed(lease, lease_counter=int(renewed.applied))
        for late in (leases.renew(believed, None), leases.checkpoint(believed, AT_SHARD_END)):
            assert not late.applied
        row = row_of(leases, lease)
        assert (row.lease_owner, row.checkpoint) == ("b", AT_TRIM_HORIZON)
        assert row.lease_counter == 1 + renewed.applied


@pytest.mark.parametrize(
    ("first", "second", "fields"),
    [
        (WRITES["renew"][0], WRITES["checkpoint"][0], {}),
        (WRITES["assign"][0], WRITES["handoff"][0], {}),
        (WRITES["assign"][0], WRITES["evict"][0], {}),
        (lambda table, lease, n: table.assign(lease, "b"), WRITES["assign"][0], {"lease_owner": "b"}),
        (WRITES["evict"][0], WRITES["assign"][0], {"lease_owner": "b"}),
    ],
    ids=["renew-checkpoint", "assign-handoff", "assign-evict", "transfer-takeover", "release-takeover"],
)
def test_of_two_kinds_of_writers_one_wins(
    leases: DynamoDbLeaseTable, rounds: range, first: Write, second: Write, fields: dict[str, Any]
) -> None:
    """The last two: the old owner of a pending handover transfers or releases while leaders take the lease from it."""
    for _ in rounds:
        lease = seeded(leases, **fields, checkpoint_owner="a" if fields else None)
        acts = [(first, n) for n in range(PAIRED)] + [(second, n) for n in range(PAIRED)]
        random.Random(lease.lease_key).shuffle(acts)
        outcomes = at_once([partial(write, leases, lease, n) for write, n in acts])
        write, n = acts[the_one(outcomes)]
        row = row_of(leases, lease)
        assert not any(outcome.row == lease for outcome in outcomes), "who is refused sees the row after the change"
        if write is WRITES["assign"][0]:
            assert (row.lease_owner, row.checkpoint_owner) == (f"w{n}", None)


def test_a_stale_row_is_not_deleted_while_its_worker_reports(judge: DynamoDb, rounds: range) -> None:
    table = DynamoDbWorkerMetricsTable(judge.client, judge.settings())
    table.create_table()
    for n in rounds:
        stale = WorkerMetricStats(worker_id=f"w{n}", last_update_s=1)
        table.put(stale)
        fresh = msgspec.structs.replace(stale, last_update_s=2)
        deletions: list[Callable[[], bool | None]] = [partial(table.delete_if_unchanged, stale)] * PAIRED
        assert at_once([*deletions, partial(table.put, fresh)]).count(True) <= 1
        assert table.get(f"w{n}") == fresh


# The leader lock


def lock_of(owner: str, version: str) -> LeaderLock:
    return LeaderLock(owner_name=owner, lease_duration_ms=10_000, record_version_number=version)


@pytest.mark.parametrize("over", [None, "held", "released"])
def test_the_lock_is_acquired_by_one(judge: DynamoDb, rounds: range, over: str | None) -> None:
    for _ in rounds[:10]:
        settings = judge.settings()
        table = DynamoDbCoordinatorTable(judge.client, settings)
        table.create_table()
        seen: LeaderLock | None = None
        if over is not None:
            assert table.acquire_lock(lock_of("dead", "v"), None)
            if over == "released":
                judge.client.update_item(
                    TableName=settings.name,
                    Key={"key": {"S": "Leader"}},
                    UpdateExpression="SET isReleased = :one",
                    ExpressionAttributeValues={":one": {"S": "1"}},
                )
            seen = table.read_lock()
        locks = [lock_of(f"w{n}", f"v{n}") for n in range(WRITERS)]
        granted = at_once([partial(table.acquire_lock, lock, seen) for lock in locks])
        assert table.read_lock() == locks[the_one(granted)]


def test_a_late_heartbeat_meets_those_who_take_the_lock(coordinator: DynamoDbCoordinatorTable, rounds: range) -> None:
    held = lock_of("w", "v")
    assert coordinator.acquire_lock(held, None)
    for n in rounds:
        heartbeat, theirs = lock_of(held.owner_name, f"beat-{n}"), [lock_of(f"w{m}", f"{n}-{m}") for m in range(PAIRED)]
        acts = [partial(coordinator.heartbeat_lock, heartbeat, held.record_version_number)]
        acts += [partial(coordinator.acquire_lock, lock, held) for lock in theirs]
        winner = the_one(at_once(acts))
        held = [heartbeat, *theirs][winner]
        assert coordinator.read_lock() == held


def test_a_release_meets_those_who_take_the_lock(coordinator: DynamoDbCoordinatorTable, rounds: range) -> None:
    for n in rounds:
        held, theirs = lock_of("w", f"v{n}"), [lock_of(f"w{m}", f"{n}-{m}") for m in range(PAIRED)]
        assert coordinator.acquire_lock(held, None)
        acts = [partial(coordinator.release_lock, held)]
        acts += [partial(coordinator.acquire_lock, lock, held) for lock in theirs]
        winner = [None, *theirs][the_one(at_once(acts))]
        assert coordinator.read_lock() == winner
        assert winner is None or coordinator.release_lock(winner)


def test_of_many_elections_one_leads_now_and_after_its_death(
    coordinator: DynamoDbCoordinatorTable, rounds: range
) -> None:
    clock, settings = FakeClock(), LockSettings()
    versions = itertools.count()

    def election(n: int) -> Election:
        return Election(coordinator, f"w{n}", settings, clock, lambda: f"v{next(versions)}")

    elections = [election(n) for n in range(PAIRED)]
    at_once([e.run_once for e in elections])
    for _ in rounds[:8]:
        (leader,) = [e for e in elections if e.is_leader()]
        lock = coordinator.read_lock()
        assert lock is not None and lock.owner_name in repr(leader)
        elections.remove(leader)  # It is dead: never asked again.
        elections.append(election(PAIRED + next(versions)))
        at_once([e.run_once for e in elections])
        assert not any(e.is_leader() for e in elections)
        clock.advance(settings.lease_duration_s + 0.1)
        at_once([e.run_once for e in elections])


def test_the_client_version_is_created_by_one(judge: DynamoDb, rounds: range) -> None:
    for _ in rounds[:5]:
        table = DynamoDbCoordinatorTable(judge.client, judge.settings())
        table.create_table()
        states = [ClientVersionState(client_version="X", modified_by=f"w{n}", modified_ms=n) for n in range(WRITERS)]
        created = at_once([partial(table.create_client_version, state) for state in states])
        assert table.read_client_version() == states[the_one(created)]


# Answers that are lost


@contextmanager
def answers_lost(judge: DynamoDb, operation: str, lost: Callable[[], bool]) -> Iterator[None]:
    """The engine acts upon the request and answers; the answer is dropped and a read time-out raised instead."""

    def drop(**_: Any) -> None:
        if lost():
            raise ReadTimeoutError(endpoint_url="dropped")

    event = f"response-received.dynamodb.{operation}"
    judge.client.meta.events.register(event, drop, unique_id="answers_lost")
    try:
        yield
    finally:
        judge.client.meta.events.unregister(event, unique_id="answers_lost")


def only(*which: int) -> Callable[[], bool]:
    """True for these requests, counted from 0."""
    asked = itertools.count()
    return lambda: next(asked) in which


class Holder:
    """Held leases of worker `a` by the real clock."""

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.lost: list[str] = []
        self.held_leases = HeldLeases(
            table,
            "a",
            LeaseSettings(failover_s=120),  # A machine that stands still for ten seconds loses no lease here.
            SystemClock(),
            lambda: "token",
            lambda held, reason: self.lost.append(reason),
        )

    def hold(self, lease: Lease) -> HeldLease:
        held = self.held_leases.add(lease, SystemClock().monotonic())
        assert held is not None
        return held


def test_a_checkpoint_whose_answer_was_lost_is_written_once(judge: DynamoDb, leases: DynamoDbLeaseTable) -> None:
    holder = Holder(leases)
    held = holder.hold(seeded(leases))
    with answers_lost(judge, "UpdateItem", only(0)):
        assert holder.held_leases.checkpoint(held, number(5)).error is None
    row = row_of(leases, held.lease)
    assert row == held.lease
    assert (row.checkpoint, row.lease_counter, holder.lost) == (number(5), 2, [])


def test_a_renewal_whose_answer_was_lost_loses_nothing(judge: DynamoDb, leases: DynamoDbLeaseTable) -> None:
    holder = Holder(leases)
    held = holder.hold(seeded(leases))
    with answers_lost(judge, "UpdateItem", only(0, 1)):
        for _ in range(2):
            with pytest.raises(Unavailable):
                holder.held_leases.renew(held, 0.0)
    assert holder.held_leases.renew(held, 0.0) == "renewed"
    assert row_of(leases, held.lease) == held.lease
    assert holder.lost == []


def test_a_handover_is_announced_behind_a_lost_answer(judge: DynamoDb, leases: DynamoDbLeaseTable) -> None:
    holder = Holder(leases)
    held = holder.hold(seeded(leases))
    with answers_lost(judge, "UpdateItem", only(0)), pytest.raises(Unavailable):
        holder.held_leases.renew(held, 0.0)
    assert leases.initiate_handoff(held.lease, "b").applied
    assert holder.held_leases.renew(held, 0.0) == "renewed"
    assert held.lease == row_of(leases, held.lease)
    assert (held.lease.lease_owner, held.lease.checkpoint_owner) == ("b", "a")


def test_a_lost_answer_is_no_excuse_when_another_took_the_lease(judge: DynamoDb, leases: DynamoDbLeaseTable) -> None:
    holder = Holder(leases)
    held = holder.hold(seeded(leases))
    with answers_lost(judge, "UpdateItem", only(0)), pytest.raises(Unavailable):
        holder.held_leases.renew(held, 0.0)
    assert leases.assign(held.lease, "b").applied
    assert holder.held_leases.checkpoint(held, number(5)).error == "ShutdownException"
    assert holder.lost == ["owned by b"]
    assert row_of(leases, held.lease).checkpoint == AT_TRIM_HORIZON


def test_a_lock_whose_answer_was_lost_is_recognised(judge: DynamoDb, coordinator: DynamoDbCoordinatorTable) -> None:
    clock = FakeClock()
    versions = itertools.count()
    mine, other = (
        Election(coordinator, worker_id, LockSettings(), clock, lambda: f"v{next(versions)}") for worker_id in "ab"
    )
    with answers_lost(judge, "PutItem", only(0)), pytest.raises(Unavailable):
        mine.run_once()
    at_once([mine.run_once, other.run_once])
    assert (mine.is_leader(), other.is_leader()) == (True, False)


class Storm:
    """One lease: its consumer checkpoints, the renewal renews, the leader hands it over."""

    def __init__(self, table: DynamoDbLeaseTable) -> None:
        self.table = table
        self.holder = Holder(table)
        self.held = self.holder.hold(seeded(table, checkpoint=number(0)))
        self.confirmed = [number(0)]
        self.is_over = threading.Event()

    def consume(self) -> None:
        for position in map(number, range(1, 25)):
            if self.holder.held_leases.checkpoint(self.held, position).error is None:
                self.confirmed.append(position)

    def renew(self) -> None:
        while not self.is_over.is_set():
            with suppress(RetryLater):
                assert self.holder.held_leases.renew(self.held, 0.01) != "lost"

    def lead(self) -> None:
        while not (row := row_of(self.table, self.held.lease)).is_handover_pending:
            with suppress(RetryLater):
                self.table.initiate_handoff(row, "b")

    def transfer(self) -> str | None:
        while True:
            with suppress(RetryLater):
                return self.holder.held_leases.give_away(self.held)

    def rage(self) -> None:
        renewal = threading.Thread(target=self.renew)
        renewal.start()
        try:
            at_once([self.consume, self.lead])
        finally:
            self.is_over.set()
            renewal.join(30)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_storm_of_writes_and_lost_answers_on_one_lease(
    judge: DynamoDb, leases: DynamoDbLeaseTable, rounds: range
) -> None:
    """Every eighth answer is lost, and nothing else: what was confirmed stands, and the lease goes where it should."""
    for n in rounds[:6]:
        storm, rng = Storm(leases), random.Random(n)
        with answers_lost(judge, "UpdateItem", partial(_one_in, 8, rng)):
            storm.rage()
            assert storm.holder.lost == []
            row = row_of(leases, storm.held.lease)
            assert (row.lease_owner, row.checkpoint_owner) == ("b", "a")
            assert row.checkpoint is not None and row.checkpoint >= storm.confirmed[-1]
            assert storm.transfer() == "b"
        after = row_of(leases, storm.held.lease)
        assert (after.lease_owner, after.checkpoint_owner, after.checkpoint) == ("b", None, row.checkpoint)
        assert len(storm.confirmed) > 10


def _one_in(count: int, rng: random.Random) -> bool:
    return rng.randrange(count) == 0
