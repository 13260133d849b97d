"""A fleet of real workers in simulated time: Supervisor, coordination, shard consumers and sources are the real ones.

What is not real: tables and stream (tests/fakes, whose semantics the contract tests hold to those of real engines),
child processes, threads and time.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import msgspec

from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.coordination.streams import OpenStream, StreamAccess
from kcl_host.decisions.table_migration import STATUS_COMPLETE
from kcl_host.errors import KclHostError
from kcl_host.runtime.outside import Outside
from kcl_host.runtime.supervisor import Supervisor
from tests.fakes.fault import ANSWER_LOST, THROTTLED, Fault
from tests.fakes.metadata import InMemoryMetadata
from tests.fakes.subscriber import EVENT_FAULTS, EventFault, FanoutService, InMemorySubscriber
from tests.simulation.child import Habits, SimChild
from tests.simulation.hub import Hub, HubClock, Process, ProcessClock, ProcessThreads
from tests.simulation.observer import ASSIGNMENTS, Broken, Observer
from tests.simulation.world import SimLeaseTable, SimStream

RESTART_S = 5.0
"""Whoever supervises the workers starts one again so long after it has ended."""
REQUEST_TIMEOUT_S = {"lease": 3.0, "coordinator": 3.0, "metrics": 3.0, "stream": 30.0, "fanout": 30.0}
EVENTS = "events"
"""A service of its own in troubles: what a subscription brings, not the requests to the service."""
KILLED_AFTER_TERM_S = 30.0
"""As Kubernetes does."""
INSTANT_S = 0.0005
MOST_CLEANUPS = 20
"""Finished shards are removed by generations, each after completedLeaseCleanupIntervalMillis."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one worker to one service (or "all") fail, or take long, with some probability."""

    kind: str
    """throttled, timed_out, answer_lost or slow; of events one of EVENT_FAULTS, or "any"."""
    service: str
    probability: float
    until_s: float

    def befall(self, service: str, rng: random.Random) -> Fault | None:
        if not self.is_of(service, rng):
            return None
        limit_s = REQUEST_TIMEOUT_S[service]
        match self.kind:
            case "throttled":
                return Fault("throttled")
            case "timed_out":
                return Fault("timed_out", before_s=limit_s)
            case "answer_lost":
                return Fault("answer_lost", after_s=limit_s)
            case _:
                return Fault(None, before_s=rng.random() * 0.6 * limit_s, after_s=rng.random() * 0.3 * limit_s)

    def befall_event(self, rng: random.Random) -> EventFault | None:
        if not self.is_of(EVENTS, rng):
            return None
        return rng.choice(EVENT_FAULTS) if self.kind == "any" else cast(EventFault, self.kind)

    def is_of(self, service: str, rng: random.Random) -> bool:
        of_all = self.service == "all" and service != EVENTS
        return (of_all or self.service == service) and rng.random() < self.probability


class Trap(msgspec.Struct, frozen=True, kw_only=True):
    """Something befalls a worker inside its next request of one kind, before or after that takes effect.

    Without `spring` the request fails: it is refused, or its answer is lost.
    """

    operation: str
    after: bool
    spring: Callable[[Worker], None] | None
    name: str


class Worker(Process):
    """One process of the fleet, from its start to its end."""

    def __init__(self, fleet: Fleet, name: str, worker_id: str, slot: int) -> None:
        super().__init__(name)
        self.fleet = fleet
        self.hub = fleet.hub
        self.worker_id = worker_id
        self.slot = slot
        self.rng = random.Random(f"{fleet.seed}/{name}")
        self.clock = ProcessClock(fleet.hub, since_s=self.rng.random() * fleet.hub.now_s)
        self.threads = ProcessThreads(fleet.hub, self)
        self.children: list[SimChild] = []
        self.subscribers: list[InMemorySubscriber] = []
        self.has_reported_load = False
        self.troubles: list[Trouble] = []
        self.traps: list[Trap] = []
        self.exit_code: int | None = None
        self._ids = 0
        settings = fleet.settings_of(slot, worker_id)
        self.supervisor = Supervisor(
            settings,
            Outside(
                clock=self.clock,
                rng=self.rng,
                new_id=self._new_id,
                threads=self.threads,
                open_stream=self._open_stream,
                close_streams=self._close_streams,
                lease_table=fleet.lease_table,
                metadata_tables=fleet.metadata.tables,
                sample_load=lambda: None,
                drain_load=lambda: fleet.load_of(self),
                start_child=self._start_child,
            ),
        )
        self.threads.start("main", self._main)

    def _main(self) -> None:
        try:
            self.supervisor.run()
            self.exit_code = 0
        except KclHostError as error:
            self.exit_code = error.exit_code
            self.fleet.count(f"exit {type(error).__name__}")
        self.fleet.gone(self)

    def _open_stream(self, stream: StreamSettings, settings: Settings) -> StreamAccess:
        retrieval = settings.retrieval
        if retrieval.mode == "POLLING":
            return StreamAccess(self.fleet.stream)
        subscriber = InMemorySubscriber(self.fleet.fanout, retrieval, self.threads, self.rng.random)
        self.subscribers.append(subscriber)
        return StreamAccess(self.fleet.stream, subscriber)

    def _close_streams(self) -> None:
        for subscriber in self.subscribers:
            subscriber.close()

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.name}#{self._ids}"

    def _start_child(self, shard_id: str, stream: OpenStream) -> SimChild:
        child = SimChild(self, shard_id, self.fleet.next_pid())
        self.children.append(child)
        return child

    def befall(self, service: str, operation: str) -> Fault | None:
        """What happens to a request of this worker."""
        for trap in self.traps:
            if trap.operation == operation:
                self.traps.remove(trap)
                self.fleet.count(trap.name)
                if trap.spring is None:
                    return ANSWER_LOST if trap.after else THROTTLED
                self.hub.at(self.hub.now_s + INSTANT_S, partial(trap.spring, self))
                return Fault(None, after_s=2 * INSTANT_S) if trap.after else Fault(None, before_s=2 * INSTANT_S)
        for trouble in self._troubles_now():
            fault = trouble.befall(service, self.rng)
            if fault is not None:
                self.fleet.count(f"{trouble.kind} {service}")
                return fault
        return None

    def befall_event(self) -> EventFault | None:
        """What happens to an event that this worker is about to get."""
        for trouble in self._troubles_now():
            fault = trouble.befall_event(self.rng)
            if fault is not None:
                self.fleet.count(f"event {fault}")
                return fault
        return None

    def _troubles_now(self) -> list[Trouble]:
        if self.troubles:
            self.troubles = [trouble for trouble in self.troubles if trouble.until_s > self.hub.now_s]
            self.is_slow = bool(self.troubles)
        return self.troubles


class Fleet:
    """`settings.worker_id` is a prefix. Workers are known by their slot, which outlives them."""

    def __init__(
        self,
        seed: int,
        settings: Settings,
        *,
        workers: int,
        shards: int,
        same_ids: bool = False,
        retention_s: float = 86400.0,
        put_every_s: float = 60.0,
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.hub = Hub()
        self.rng = random.Random(f"{seed}/fleet")
        self.counts: Counter[str] = Counter()
        self.clock = clock = HubClock(self.hub)
        self.lease_table = SimLeaseTable(clock)
        self.metadata = InMemoryMetadata(clock, self.lease_table)
        self.is_migrating = False
        """Whether the metadata are to be moved into the lease table in this run."""
        self.stream = SimStream(clock, shard_count=shards, retention_s=retention_s)
        self.fanout = FanoutService(self.stream, clock, count=self.count)
        self.fanout_slots: set[int] = set()
        """Slots whose workers read by enhanced fan-out from their next start on; the others poll."""
        self.observer = Observer(self)
        self.lease_table.watch = self.observer.wrote
        self.lease_table.faults = self._faults_of("lease")
        self.metadata.plan_faults(self._faults_of("coordinator"), self._faults_of("metrics"))
        self.stream.faults = self._faults_of("stream")
        self.fanout.faults = self._faults_of("fanout")
        self.fanout.event_faults = self._event_fault
        self.habits: dict[str, Habits] = {}
        """By shard id or by worker slot ("slot 3")."""
        self.workers: dict[int, Worker] = {}
        self.stopped_slots: set[int] = set()
        """Slots whose workers are not started again."""
        self.everybody: list[Worker] = []
        """Also those gone: their tasks must not be collected."""
        self._same_ids = same_ids
        self._put_every_s = put_every_s
        self.shard_weights: dict[str, float] = {}
        """How much a shard gets of what is produced, without weight the average; empty: all get the same."""
        self._pids = 0
        self._starts = 0
        self.producing = True
        self.most_open_shards = 2 * shards
        self.loads: dict[int, float] = {}
        """CPU per cent by slot; a slot without an entry reports what it does, if ever it reported, else no metrics."""
        for slot in range(workers):
            self.hub.at(self.hub.now_s + self.rng.random() * 2, lambda slot=slot: self.start(slot))
        self._produce()

    # What the world asks

    @property
    def current_worker(self) -> Worker | None:
        process = self.hub.current_process
        return process if isinstance(process, Worker) else None

    def leaders(self) -> list[Worker]:
        """Workers that would act as leader now; one that is stopped cannot act."""
        return [w for w in self.everybody if w.alive and w.paused_until_s <= self.hub.now_s and w.supervisor.is_leader]

    def habits_of(self, child: SimChild) -> Habits:
        for key in (child.shard_id, f"slot {child.worker.slot}"):
            habits = self.habits.get(key)
            if habits is not None and habits.until_s > self.hub.now_s:
                return habits
        return _GOOD

    def settings_of(self, slot: int, worker_id: str) -> Settings:
        mode: Literal["POLLING", "FANOUT"] = "FANOUT" if slot in self.fanout_slots else "POLLING"
        retrieval = msgspec.structs.replace(self.settings.retrieval, mode=mode)
        return msgspec.structs.replace(self.settings, worker_id=worker_id, retrieval=retrieval)

    def load_of(self, worker: Worker) -> dict[str, float]:
        load = self.loads.get(worker.slot)
        if load is None and worker.has_reported_load:
            # Who measures itself goes on to: what it does, and in the end the same as all others, since only one lease
            # a minute leaves a worker that has too many, which may take longer than the calm.
            running = sum(child.alive for child in worker.children)
            fair = max(1.0, len(self.stream.open_shard_ids) / max(1, len(self.live)))
            load = min(95.0, round(20.0 + 10.0 * running / fair, 1)) if self.producing else 30.0
        worker.has_reported_load = load is not None
        return {} if load is None else {"C": load}

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def fail(self, error: Broken) -> None:
        self.hub.failures.append((self.hub.current, error))

    def _faults_of(self, service: str) -> Callable[[str, str], Fault | None]:
        def plan(operation: str, key: str) -> Fault | None:
            worker = self.current_worker
            if worker is None:
                return None
            if operation in ASSIGNMENTS:
                self.observer.asks_to_assign(worker)
            return worker.befall(service, operation) if worker.troubles or worker.traps else None

        return plan

    def _event_fault(self, shard_id: str) -> EventFault | None:
        worker = self.current_worker
        return worker.befall_event() if worker is not None else None

    # What happens to workers

    def start(self, slot: int, *, worker_id: str | None = None) -> Worker:
        self._starts += 1
        name = f"w{slot}-{self._starts}"
        worker = Worker(self, name, worker_id or (f"w{slot}" if self._same_ids else name), slot)
        self.workers[slot] = worker
        self.everybody.append(worker)
        self.observer.note("", name, "starts")
        return worker

    def gone(self, worker: Worker) -> None:
        """Its process has ended, by itself or not."""
        if not worker.alive:
            return
        worker.alive = False
        self.observer.note("", worker.name, f"gone, exit {worker.exit_code}")
        self.observer.process_gone(worker)
        if self.workers.get(worker.slot) is worker and worker.slot not in self.stopped_slots:
            self.hub.at(self.hub.now_s + RESTART_S, lambda: self._start_again(worker))

    def _start_again(self, worker: Worker) -> None:
        if self.workers.get(worker.slot) is worker and worker.slot not in self.stopped_slots:
            self.start(worker.slot)

    def kill(self, worker: Worker) -> None:
        """kill -9"""
        if worker.alive:
            self.count("kill -9")
            self.gone(worker)

    def pause(self, worker: Worker, duration_s: float) -> None:
        """SIGSTOP, and SIGCONT after `duration_s`."""
        self.observer.note("", worker.name, f"stopped for {duration_s:.1f} s")
        self.count("SIGSTOP")
        worker.paused_until_s = max(worker.paused_until_s, self.hub.now_s + duration_s)

    def term(self, worker: Worker) -> None:
        if worker.alive:
            self.count("TERM")
            self.observer.note("", worker.name, "TERM")
            worker.supervisor.request_stop()
            self.hub.at(self.hub.now_s + KILLED_AFTER_TERM_S, lambda: self._kill_late(worker))

    def _kill_late(self, worker: Worker) -> None:
        if worker.alive:
            self.count("killed after TERM")
            self.gone(worker)

    # The producer

    def _produce(self) -> None:
        """Every open shard gets a record in each period, at moments of its own."""
        if not self.producing:
            return
        open_shards = self.stream.open_shard_ids
        pause_s = self._put_every_s / max(1, len(open_shards))
        for _ in range(PUTS_AT_ONCE):
            shard_id = self._next_shard(open_shards)
            self.observer.produced(*self.stream.put(b"x" * 100, shard_id=shard_id))
        self.hub.at(self.hub.now_s + PUTS_AT_ONCE * pause_s, self._produce)

    def _next_shard(self, open_shards: list[str]) -> str:
        if not self.shard_weights:
            return self.rng.choice(open_shards)
        average = sum(self.shard_weights.values()) / len(self.shard_weights) or 1.0
        return self.rng.choices(open_shards, [self.shard_weights.get(shard, average) for shard in open_shards])[0]

    # Running

    def run(self, seconds: float) -> None:
        """Raises what broke: Broken, or the exception of a bug."""
        self.hub.run(self.hub.now_s + seconds)
        if self.hub.failures:
            task, error = self.hub.failures[0]
            raise Broken(f"{task!r}: {error!r}") from error

    def calm(self) -> None:
        """No more disturbances, and every slot has a worker that runs."""
        self.producing = False
        self.habits.clear()
        self.stopped_slots.clear()
        for worker in self.everybody:
            worker.troubles, worker.traps, worker.paused_until_s = [], [], min(worker.paused_until_s, self.hub.now_s)
            worker.clock.wall_skew_s = 0.0
        for slot, worker in list(self.workers.items()):
            if not worker.alive:
                self.hub.at(self.hub.now_s, lambda slot=slot: self.start(slot))

    def check_migrated(self) -> None:
        """Raises Broken unless everything is in the lease table, and everybody knows it."""
        legacy, moved = self.metadata.coordinator, self.metadata.coordinator_in_lease_table
        status = legacy.table_migration and legacy.table_migration.status
        if status != STATUS_COMPLETE or legacy.table_migration != moved.table_migration:
            self._break("", f"the table migration says {status}")
        if legacy.lock is not None or moved.lock is None or legacy.client_version is not None:
            self._break("", f"left in the tables of their own: {legacy.lock}, {legacy.client_version}")
        if moved.client_version is None:
            self._break("", "Migration3.0 is in neither place")
        reporting = self.metadata.metrics_in_lease_table.rows
        if lost := [worker for worker in self.live if worker.worker_id not in reporting]:
            self._break("", f"not seen by the leader: {lost}")

    def check_quiet(self, passes: int) -> None:
        """Raises Broken unless the fleet is at rest and complete; lets it run for so many passes of the leader.

        While leases are still created or removed there is a reason to move others, and just after it.
        """
        moves, changed_before = 0, True
        for _ in range(MOST_CLEANUPS):
            moves, leases = self.observer.moves, set(self.lease_table.rows)
            self.run(passes * self.settings.assignment.interval_s)
            changed = set(self.lease_table.rows) != leases
            if not changed and not changed_before:
                break
            changed_before = changed
        self.observer.check_all_delivered()
        if self.observer.moves != moves:
            self._break("", f"{self.observer.moves - moves} leases moved although all is quiet")
        if len(self.leaders()) != 1:
            self._break("", f"leaders: {self.leaders()}")
        rows = self.lease_table.rows
        for shard_id in self.stream.open_shard_ids:
            if shard_id not in rows:
                self._break(shard_id, "an open shard without a lease")
        ids = Counter(worker.worker_id for worker in self.live)
        for key, row in rows.items():
            if row.checkpoint_owner is not None or ids[row.lease_owner or ""] != 1:
                self._break(key, f"owner {row.lease_owner}, checkpoint owner {row.checkpoint_owner}, alive: {ids}")
            children = [c for w in self.live for c in w.children if c.alive and c.shard_id == key]
            if len(children) != (0 if row.is_at_shard_end else 1):
                self._break(key, f"at {row.checkpoint}, children: {children}")

    def _break(self, key: str, why: str) -> None:
        self.observer.note(key, "", f"BROKEN: {why}")
        raise Broken(f"{key}: {why}")

    @property
    def live(self) -> list[Worker]:
        return [worker for worker in self.everybody if worker.alive]


PUTS_AT_ONCE = 4
_GOOD = Habits.good()


class Counting(logging.Handler):
    """Counts log lines by their `action`, transitions of shard consumers apart, and keeps warnings for the history."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = record.__dict__
        action = facts.get("action", "")
        if action == "state_changed":
            self._fleet.count(f"consumer {facts['from']} -> {facts['to']}")
            return
        self._fleet.count(f"log {action}")
        if record.levelno >= logging.INFO and action not in QUIET:
            worker = self._fleet.current_worker
            names = ("error", "reason", "from", "to", "kind", "failures")
            detail = " ".join(f"{name}={facts[name]}" for name in names if name in facts)
            self._fleet.observer.note(
                facts.get("lease_key", ""), worker.name if worker else "", f"{record.getMessage()} {detail}"
            )


QUIET = frozenset({"checkpoint_written"})
