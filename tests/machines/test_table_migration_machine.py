"""The table migration over the whole life of a fleet: workers of 3.4 and of both phases come, fall silent and go, the
clock jumps, an operator deletes the item, and whoever leads takes the steps that the decisions name.

The clock jumps by more than a bake time at once, so that every step can be met in few turns. Only the leader's lock is
left out: one worker leads at a time, and reads the item before it acts.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kcl_host.config.settings import CoordinatorSettings, WorkerMetricsSettings
from kcl_host.decisions.table_migration import (
    STATUS_COMPLETE,
    STATUS_DEPLOYED,
    STATUS_INIT,
    STATUS_PENDING,
    Create,
    Delete,
    Finalise,
    LocalStatus,
    Move,
    Nothing,
    Place,
    Step,
    Update,
    as_moved,
    first_state,
    followed,
    local_status,
    next_step,
    routes,
    summarise_fleet,
)
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.model.state import CoordinatorItem, TableMigrationState
from kcl_host.model.worker import WorkerListing, WorkerMetricStats

SETTINGS = CoordinatorSettings()
METRICS = WorkerMetricsSettings()
WAYS = {
    (None, STATUS_INIT),
    (STATUS_INIT, None),
    (STATUS_INIT, STATUS_DEPLOYED),
    (STATUS_DEPLOYED, STATUS_PENDING),
    (STATUS_PENDING, STATUS_DEPLOYED),
    (STATUS_PENDING, STATUS_COMPLETE),
    (None, STATUS_DEPLOYED),  # Workers of phase 2 are running: an operator has deleted the item.
}
WORKERS = st.sampled_from("abc")
JUMPS = st.sampled_from([10, 60, 61, 91, 3600, 86400])
KEYS = st.sampled_from(["Migration3.0", "orders"])


class Worker:
    """`migrate_all` None: of version 3.4, which knows its own tables and nothing of all this."""

    def __init__(self, migrate_all: bool | None, status: LocalStatus) -> None:
        self.migrate_all = migrate_all
        self.started = self.live = status
        self.is_silent = False
        self.wrote_to: list[Place] = []


class Migration(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_795_000_000
        self.item: TableMigrationState | None = None
        self.items: dict[Place, set[str]] = {"legacy": {"Leader", "TableMigration3.5"}, "lease": set()}
        self.rows: dict[Place, dict[str, WorkerMetricStats]] = {"legacy": {}, "lease": {}}
        self.workers: dict[str, Worker] = {}
        self.owners: dict[str, str] = {}
        self.was_deleted = False

    @property
    def status(self) -> str | None:
        return None if self.item is None else self.item.status

    def write(self, item: TableMigrationState | None) -> None:
        before = self.status
        self.item = item
        assert (before, self.status) in WAYS

    # The fleet

    @initialize(status=st.sampled_from([STATUS_PENDING, STATUS_DEPLOYED, STATUS_INIT, None]), migrate_all=st.booleans())
    def begin(self, status: str | None, migrate_all: bool) -> None:
        """Somewhere on the way: two workers, a lease each."""
        self.item = None if status is None else first_state(status, "b", self.now_s * 1000)
        self.items["legacy" if status != STATUS_PENDING else "lease"].add("Migration3.0")
        for lease_key, worker_id in (("1", "a"), ("2", "b")):
            self.start(worker_id, migrate_all and status in (STATUS_DEPLOYED, STATUS_PENDING))
            self.take(lease_key, worker_id)

    @rule(migrate_all=st.booleans())
    def deploy(self, migrate_all: bool) -> None:
        for worker_id in sorted(self.workers):
            self.start(worker_id, migrate_all)

    @rule(worker_id=WORKERS, migrate_all=st.sampled_from([False, True, None]))
    def start(self, worker_id: str, migrate_all: bool | None) -> None:
        """A worker of 3.4 that joins after the end is a second leader; the page for the switch says so."""
        status = "INIT" if migrate_all is None else local_status(self.status, migrate_all=migrate_all)
        if status is not None and not (migrate_all is None and self.status == STATUS_COMPLETE):
            self.workers[worker_id] = Worker(migrate_all, status)
            self.report(worker_id)

    @precondition(lambda self: len(self.workers) > 1)
    @rule(worker_id=WORKERS)
    def die(self, worker_id: str) -> None:
        self.workers.pop(worker_id, None)

    @rule(worker_id=WORKERS)
    def fall_silent_or_wake(self, worker_id: str) -> None:
        if worker := self.workers.get(worker_id):
            worker.is_silent = not worker.is_silent

    @rule(lease_key=st.sampled_from("12"), worker_id=WORKERS)
    def take(self, lease_key: str, worker_id: str) -> None:
        if worker_id in self.workers:
            self.owners[lease_key] = worker_id

    @rule(seconds=JUMPS)
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        for worker_id, worker in self.workers.items():
            if not worker.is_silent:
                self.report(worker_id)

    def report(self, worker_id: str) -> None:
        worker = self.workers[worker_id]
        place = routes(worker.started, worker.live).metrics_written
        row = self.rows[place].get(worker_id, WorkerMetricStats(worker_id=worker_id, last_update_s=None))
        row = msgspec.structs.replace(row, last_update_s=self.now_s)
        if worker.migrate_all is not None:  # One of 3.4 leaves what another version has written there.
            row = msgspec.structs.replace(row, support_code=1, support_code_update_s=self.now_s)
        self.rows[place][worker_id] = row
        if worker.wrote_to[-1:] != [place]:
            worker.wrote_to.append(place)

    @precondition(lambda self: self.status != STATUS_COMPLETE)
    @rule(worker_id=WORKERS, key=KEYS)
    def create(self, worker_id: str, key: str) -> None:
        if worker := self.workers.get(worker_id):
            where = routes(worker.started, worker.live)
            # One of 3.4 looks nowhere else, and so a key can get into both places (spec migration 7.8).
            if worker.migrate_all is not None and not any(key in self.items[place] for place in where.items_read):
                self.items[where.items_written].add(key)

    @precondition(lambda self: not self.was_deleted and self.status not in (None, STATUS_COMPLETE))
    @rule()
    def operator_deletes_the_item(self) -> None:
        self.item, self.was_deleted = None, True

    # What they make of it

    @rule(worker_id=WORKERS)
    def look(self, worker_id: str) -> None:
        worker = self.workers.get(worker_id)
        if worker and worker.migrate_all is not None:
            worker.live = followed(self.status, worker.live, migrate_all=worker.migrate_all)

    @rule(nth=st.integers(0, 2), jumps=st.lists(JUMPS, min_size=1, max_size=6))
    def lead(self, nth: int, jumps: list[int]) -> None:
        """One worker takes some turns, if there is any that can."""
        able = sorted(worker_id for worker_id, worker in self.workers.items() if worker.migrate_all is not None)
        for seconds in jumps if able else ():
            self.wait(seconds)
            self.take_turn(able[nth % len(able)])

    def take_turn(self, worker_id: str) -> None:
        self.look(worker_id)
        worker = self.workers[worker_id]
        if worker.live == "COMPLETE":
            return
        leases = [
            Lease(lease_key=key, checkpoint=AT_TRIM_HORIZON, lease_owner=owner) for key, owner in self.owners.items()
        ]
        read = routes(worker.started, worker.live).metrics_read
        found = {place: WorkerListing(workers=tuple(self.rows[place].values())) for place in read}
        summary = summarise_fleet(leases, found, self.now_s, METRICS)
        left = self.items["legacy"] if worker.live == "PENDING" else None
        now_ms = self.now_s * 1000
        self.take_step(next_step(worker.live, self.item, summary, left, now_ms, worker_id, SETTINGS))
        self.look(worker_id)

    def take_step(self, step: Step) -> None:
        match step:
            case Nothing():
                return
            case Delete():
                assert self.status == STATUS_INIT
                self.write(None)
            case Create():
                assert self.item is None
                self.write(step.state)
            case Update():
                assert step.expected_status == self.status
                self.write(step.state)
            case Move():
                self.move()
            case Finalise():
                assert step.expected_status == self.status
                self.nothing_is_left_behind()
                self.write(step.state)

    def move(self) -> None:
        for key in sorted(self.items["legacy"]):
            attributes = {"streamId": {"S": "x"}} if key == "orders" else {}
            if as_moved(CoordinatorItem(key=key, attributes=attributes)) is not None:
                assert key not in self.items["lease"], "the transaction would fail for ever"
                self.items["legacy"].remove(key)
                self.items["lease"].add(key)

    def nothing_is_left_behind(self) -> None:
        """Said without the decisions: the day is over, every owner reports to the lease table, and nobody elsewhere."""
        assert self.item is not None and self.now_s * 1000 - self.item.modified_ms >= 86_400_000
        assert self.items["legacy"] == {"Leader", "TableMigration3.5"}
        fresh = {
            place: {worker_id for worker_id, row in rows.items() if self.now_s - (row.last_update_s or 0) <= 60}
            for place, rows in self.rows.items()
        }
        assert set(self.owners.values()) <= fresh["lease"]
        assert not fresh["legacy"]

    # What always holds

    @invariant()
    def an_item_is_in_one_place(self) -> None:
        assert not self.items["legacy"] & self.items["lease"]

    @invariant()
    def all_lock_in_one_table_until_the_end(self) -> None:
        for worker in self.workers.values():
            assert worker.live != "COMPLETE" or self.status == STATUS_COMPLETE
            assert self.status == STATUS_COMPLETE or routes(worker.started, worker.live).lock == "legacy"

    @invariant()
    def a_worker_writes_to_one_place_and_moves_at_the_end_alone(self) -> None:
        for worker in self.workers.values():
            assert worker.wrote_to in (["legacy"], ["lease"], ["legacy", "lease"])
            assert len(worker.wrote_to) == 1 or worker.live == "COMPLETE"

    def teardown(self) -> None:
        """From wherever it is, a fleet that is all of phase 2 gets to the end without being started again."""
        phase_2 = {worker_id: worker for worker_id, worker in self.workers.items() if worker.migrate_all}
        if self.status == STATUS_COMPLETE or not phase_2:
            return
        self.workers = phase_2
        for worker in phase_2.values():
            worker.is_silent = False
        leader = min(phase_2)
        self.owners = dict.fromkeys(self.owners, leader)
        for _ in range(8):
            self.wait(86400)
            self.take_turn(leader)
        assert self.status == STATUS_COMPLETE
        assert phase_2[leader].live == "COMPLETE"


Migration.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMigration = Migration.TestCase
