"""What goes wrong in a run: a list of disturbances drawn from a seed, so that a failure replays and can be shrunk."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from kcl_host.decisions.metadata_format import VERSION_2X, VERSION_3X_WITH_ROLLBACK, VERSION_UPGRADE_FROM_2X
from kcl_host.decisions.table_migration import STATUS_DEPLOYED, STATUS_PENDING
from kcl_host.errors import KclHostError
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.state import ClientVersionState
from tests.simulation.child import Habits
from tests.simulation.fleet import EVENTS, Fleet, Trap, Trouble, Worker
from tests.simulation.hub import Process, ProcessThreads


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` names a function below; the other fields mean what that function makes of them."""

    at_s: float
    """Seconds after the start of the run."""
    kind: str
    slot: int = 0
    for_s: float = 0.0
    number: float = 0.0
    """Drawn evenly from 0 to 1: which shard, how likely, how far."""
    turn: int = 0
    """Counts those of one kind, from the seed on: so that everything has its turn soon."""

    def __str__(self) -> str:
        return f"at {self.at_s:7.1f} s  {self.kind}, slot {self.slot}, for {self.for_s:.1f} s, number {self.number:.3f}"


Act = Callable[[Fleet, Disturbance, Worker | None], None]
RESTART_EVERY_S = 15.0
TURNS_OF_SEED = 4
"""About so many of a frequent kind come in half an hour."""
KINDS: dict[str, tuple[Act, float, tuple[float, float]]] = {}
"""By name: what it does, how often it comes among all (weight), and the bounds of `for_s`."""


def disturbance(weight: float, lasts_s: tuple[float, float] = (1.0, 30.0)) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        KINDS[act.__name__] = (act, weight, lasts_s)
        return act

    return register


def draw(seed: int, *, workers: int, seconds: float, every_s: float) -> list[Disturbance]:
    """The schedule of a seed: one disturbance each `every_s` on average, in bursts and lulls."""
    rng = random.Random(f"{seed}/disturbances")
    names = sorted(KINDS)
    weights = [KINDS[name][1] * rng.choice((0.0, 1.0, 1.0, 3.0)) for name in names]
    if not any(weights):
        weights = [1.0] * len(names)
    turns, found, at_s = Counter[str](), [], 20.0 * rng.random()
    while at_s < seconds:
        name = rng.choices(names, weights)[0]
        low_s, high_s = KINDS[name][2]
        found.append(
            Disturbance(
                at_s=at_s,
                kind=name,
                slot=rng.randrange(workers),
                for_s=low_s + (high_s - low_s) * rng.random(),
                number=rng.random(),
                turn=TURNS_OF_SEED * seed + turns[name],
            )
        )
        turns[name] += 1
        at_s += rng.expovariate(1 / every_s) if rng.random() < 0.7 else rng.random()
    return found


def plan(fleet: Fleet, schedule: list[Disturbance]) -> None:
    start_s = fleet.hub.now_s
    for item in schedule:
        fleet.hub.at(start_s + item.at_s, lambda item=item: _apply(fleet, item))


def _apply(fleet: Fleet, item: Disturbance) -> None:
    if not fleet.producing:
        return  # Calm has come.
    worker = fleet.workers.get(item.slot)
    fleet.count(f"disturbance {item.kind}")
    fleet.observer.note("", "", f"disturbance: {item}")
    KINDS[item.kind][0](fleet, item, worker if worker is not None and worker.alive else None)


# Processes


@disturbance(2.0)
def crash(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if worker:
        fleet.kill(worker)


@disturbance(1.0)
def term(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if worker:
        fleet.term(worker)


@disturbance(0.5, (30.0, 600.0))
def leave_and_come_back(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if worker and len(fleet.stopped_slots) < len(fleet.workers) - 1:
        fleet.stopped_slots.add(item.slot)
        fleet.term(worker)
        fleet.hub.at(fleet.hub.now_s + item.for_s, lambda: _come_back(fleet, item.slot))


def _come_back(fleet: Fleet, slot: int) -> None:
    if slot in fleet.stopped_slots:
        fleet.stopped_slots.discard(slot)
        if not fleet.workers[slot].alive:
            fleet.start(slot)


@disturbance(0.15, (100.0, 600.0))
def nobody_there(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """Every worker is killed, and comes back later: records and whole shards may expire unread meanwhile."""
    for slot, each in fleet.workers.items():
        fleet.stopped_slots.add(slot)
        fleet.kill(each)
        fleet.hub.at(fleet.hub.now_s + item.for_s, lambda slot=slot: _come_back(fleet, slot))


@disturbance(0.3)
def rolling_restart(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if 0 < len(fleet.fanout_slots) < len(fleet.workers):
        fleet.count("retrieval mode changed")
        fleet.fanout_slots = set(fleet.workers) - fleet.fanout_slots
    restart_all(fleet, only_before_calm=True)


def restart_all(fleet: Fleet, *, only_before_calm: bool) -> None:
    for n, slot in enumerate(sorted(fleet.workers)):
        fleet.hub.at(fleet.hub.now_s + RESTART_EVERY_S * n, lambda slot=slot: _term(fleet, slot, only_before_calm))


def _term(fleet: Fleet, slot: int, only_before_calm: bool) -> None:
    if (fleet.producing or not only_before_calm) and fleet.workers[slot].alive:
        fleet.term(fleet.workers[slot])


@disturbance(2.0, (5.0, 60.0))
def pause(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if worker:
        fleet.pause(worker, item.for_s)


Spring = Callable[[Worker], None]


def _trap(worker: Worker, operation: str, item: Disturbance, name: str, spring: Spring | None) -> None:
    worker.traps.append(Trap(operation=operation, after=item.number < 0.5, spring=spring, name=name))


OPERATIONS = (
    "renew",
    "checkpoint",
    "assign",
    "initiate_handoff",
    "evict",
    "create",
    "delete",
    "write_child_shards",
    "get",
    "lease_keys_of",
    "list_leases",
    "heartbeat_lock",
    "acquire_lock",
    "release_lock",
    "put",
)


def _in_request(fleet: Fleet, item: Disturbance, worker: Worker | None, name: str, spring: Spring | None) -> None:
    operation = OPERATIONS[item.turn % len(OPERATIONS)]
    if operation in ("assign", "heartbeat_lock", "release_lock"):
        other, worker = worker, _leader(fleet)
        if operation == "assign" and other and other is not worker:
            fleet.kill(other)  # Its leases are to be assigned.
    if operation == "create":
        # Whoever comes to the end of the shard creates the leases of its children.
        for each in fleet.live:
            _trap(each, operation, item, f"{name} in {operation}", spring)
        split(fleet, item, worker)
        return
    if operation in ("delete", "write_child_shards", "acquire_lock", "evict"):
        # Rare, and made by whoever has the lease, or comes first.
        for each in fleet.live:
            _trap(each, operation, item, f"{name} in {operation}", spring)
        leader = _leader(fleet)
        if leader and operation == "acquire_lock":
            fleet.kill(leader)
        elif operation == "evict":
            # A worker that stops releases its leases when nobody else is there to take them.
            for each in fleet.live:
                fleet.term(each)
    elif worker:
        _trap(worker, operation, item, f"{name} in {operation}", spring)
        # These are made by a worker that stops.
        if operation in ("release_lock", "initiate_handoff"):
            fleet.term(worker)


@disturbance(2.0, (0.0, 60.0))
def pause_in_request(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _in_request(fleet, item, worker, "stopped", lambda w: fleet.pause(w, item.for_s))


@disturbance(2.0)
def crash_in_request(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _in_request(fleet, item, worker, "killed", fleet.kill)


@disturbance(2.0)
def failure_in_request(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """Single requests of two kinds fail, however rare these are."""
    for turn in (item.turn, item.turn + len(OPERATIONS) // 2):
        _in_request(fleet, msgspec.structs.replace(item, turn=turn), worker, "failed", None)


def _leader(fleet: Fleet) -> Worker | None:
    return next(iter(fleet.leaders()), None)


@disturbance(1.5)
def crash_leader(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    leader = _leader(fleet)
    if leader:
        fleet.count("leader killed")
        fleet.kill(leader)


@disturbance(1.5)
def crash_leader_in_pass(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    leader = _leader(fleet)
    if leader:
        operation = ("assign", "initiate_handoff", "list_leases")[int(item.number * 1e6) % 3]
        _trap(leader, operation, item, "leader killed in a pass", fleet.kill)


@disturbance(1.5, (8.0, 60.0))
def second_leader(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """The leader is stopped in the middle of a pass for longer than its lock lives, and goes on."""
    leader = _leader(fleet)
    if leader:
        operation = ("assign", "initiate_handoff", "list_leases", "heartbeat_lock")[int(item.number * 1e6) % 4]
        _trap(leader, operation, item, "leader stopped in a pass", lambda w: fleet.pause(w, item.for_s))


@disturbance(0.5, (5.0, 90.0))
def twin(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """A second process with the same worker id."""
    if worker:
        other = fleet.start(item.slot, worker_id=worker.worker_id)
        fleet.workers[item.slot] = worker
        fleet.hub.at(fleet.hub.now_s + item.for_s, lambda: fleet.kill(other))


# Requests


TROUBLED = ("lease", "coordinator", "metrics", "stream", "fanout", "lease", "all")


def _trouble(worker: Worker | None, item: Disturbance, kind: str, service: str | None = None) -> None:
    if worker is None:
        return
    service = service or TROUBLED[item.turn % len(TROUBLED)]
    until_s = worker.hub.now_s + item.for_s
    if service == "fanout":
        fleet = worker.fleet
        readers = [each for each in fleet.live if each.slot in fleet.fanout_slots]
        if readers:
            # Subscribing is rare; whoever loses the subscription has a reason to.
            worker = worker if worker in readers else readers[0]
            until_s += fleet.fanout.empty_event_s
            worker.troubles.append(Trouble(kind="lost", service=EVENTS, probability=1.0, until_s=until_s))
        else:
            service = "stream"
    worker.troubles.append(Trouble(kind=kind, service=service, probability=0.1 + 0.9 * item.number, until_s=until_s))


@disturbance(1.0)
def throttled(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _trouble(worker, item, "throttled")


@disturbance(1.0, (1.0, 20.0))
def timed_out(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _trouble(worker, item, "timed_out")


@disturbance(2.0, (1.0, 20.0))
def answer_lost(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _trouble(worker, item, "answer_lost")


@disturbance(1.0)
def slow(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _trouble(worker, item, "slow")


@disturbance(0.5, (5.0, 60.0))
def partition(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if worker:
        until_s = fleet.hub.now_s + item.for_s
        worker.troubles.append(Trouble(kind="timed_out", service="all", probability=1.0, until_s=until_s))
        worker.troubles.append(Trouble(kind="silent", service=EVENTS, probability=1.0, until_s=until_s))


@disturbance(0.5, (2.0, 20.0))
def everybody_throttled(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    for each in fleet.live:
        _trouble(each, item, "throttled", "all")


@disturbance(0.5, (5.0, 60.0))
def index_lag(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    lag_s = {"index": 10.0 * item.number, "scan": 1.0 * item.number}
    fleet.lease_table.lag = lambda read, key: lag_s.get(read, 0.0)
    fleet.hub.at(fleet.hub.now_s + item.for_s, fleet.lease_table.no_more_lag)


@disturbance(0.5)
def wall_clock_step(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if worker:
        worker.clock.wall_skew_s = 240.0 * (item.number - 0.5)


# The stream


@disturbance(1.0)
def split(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    shards = fleet.stream.open_shard_ids
    if len(shards) < fleet.most_open_shards:
        fleet.stream.split(shards[int(item.number * len(shards))])


@disturbance(1.0)
def merge(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    shards = fleet.stream.open_shard_ids
    shard_id = shards[int(item.number * len(shards))]
    other = fleet.stream.neighbour(shard_id)
    if other and len(shards) > 2:
        fleet.stream.merge(shard_id, other)


@disturbance(0.6, (1.0, 20.0))
def reshard_storm(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """Split, split a child again before anybody read it, merge two others, within seconds."""
    for n, act in enumerate((split, split, merge, split, merge, merge)):
        number = (item.number * (n + 1)) % 1.0
        later = msgspec.structs.replace(item, number=number)
        fleet.hub.at(fleet.hub.now_s + item.for_s * n / 6, lambda act=act, later=later: act(fleet, later, None))


@disturbance(0.7)
def records_trimmed(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """Somebody shortens the retention for a moment: old records leave the stream, and shards that ended before."""
    fleet.stream.trim(5.0 + 60.0 * item.number)


# Enhanced fan-out


@disturbance(1.0, (5.0, 60.0))
def events_disturbed(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """Subscriptions of a worker break off, fall silent, bring nonsense or nothing."""
    if worker:
        until_s = fleet.hub.now_s + item.for_s
        worker.troubles.append(Trouble(kind="any", service=EVENTS, probability=item.number, until_s=until_s))


@disturbance(0.7, (0.0, 60.0))
def foreign_subscription(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """Another application uses our consumer for a shard, again and again."""
    shards, name = fleet.stream.open_shard_ids, fleet.settings.retrieval.consumer_name
    shard_id, until_s = shards[int(item.number * len(shards))], fleet.hub.now_s + item.for_s

    def insist() -> None:
        consumer = fleet.fanout.consumers.get(name or "")
        if consumer is None or fleet.hub.now_s > until_s or not fleet.producing:
            return
        with contextlib.suppress(KclHostError):
            news = ProcessThreads(fleet.hub, Process("foreign")).event()
            fleet.fanout.subscribe(consumer.arn, shard_id, IteratorPosition(type="LATEST"), news)
        fleet.hub.at(fleet.hub.now_s + 3.0, insist)

    insist()


@disturbance(0.4, (1.0, 20.0))
def consumer_deregistered(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    fleet.fanout.deregister(fleet.settings.retrieval.consumer_name or "", item.for_s)


# Children


def _habits(fleet: Fleet, item: Disturbance, habits: Habits) -> None:
    shards = fleet.stream.open_shard_ids
    key = f"slot {item.slot}" if item.number < 0.4 else shards[int(item.number * len(shards))]
    habits.until_s = fleet.hub.now_s + item.for_s
    fleet.habits[key] = habits


@disturbance(1.0, (20.0, 300.0))
def slow_child(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _habits(fleet, item, Habits(processing_s=0.5 + 40.0 * item.number**4))


@disturbance(0.5, (60.0, 600.0))
def child_never_checkpoints(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    _habits(fleet, item, Habits(checkpoints=False))


@disturbance(0.7, (20.0, 900.0))
def child_crash_loops(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    actions = ("processRecords", "initialize", "shutdownRequested", "shardEnded", "leaseLost", "processRecords")
    _habits(fleet, item, Habits(crashes_at=actions[int(item.number * 1e6) % len(actions)]))


@disturbance(0.5, (10.0, 120.0))
def child_hangs(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    actions = ("processRecords", "initialize", "shutdownRequested", "shardEnded", "leaseLost")
    _habits(fleet, item, Habits(hangs_at=actions[int(item.number * 1e6) % len(actions)]))


# Load


@disturbance(0.3, (60.0, 300.0))
def load(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    fleet.loads[item.slot] = round(100 * item.number, 1)
    fleet.hub.at(fleet.hub.now_s + item.for_s, lambda: fleet.loads.pop(item.slot, None))


@disturbance(0.2, (30.0, 90.0))
def metrics_failing(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    fleet.loads[item.slot] = -1.0
    fleet.hub.at(fleet.hub.now_s + item.for_s, lambda: fleet.loads.pop(item.slot, None))


# What the operator deploys


def deploy(fleet: Fleet, *, migrate_all: bool) -> None:
    """A rolling restart with another migrateAllEntitiesToLeaseTable; phase 2 only where it is due, as operators do."""
    item = fleet.metadata.coordinator.table_migration
    if migrate_all and (item is None or item.status not in (STATUS_DEPLOYED, STATUS_PENDING)):
        return
    coordinator = msgspec.structs.replace(fleet.settings.coordinator, migrate_all_entities=migrate_all)
    fleet.settings = msgspec.structs.replace(fleet.settings, coordinator=coordinator)
    restart_all(fleet, only_before_calm=False)


@disturbance(0.5)
def phase_2(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if fleet.is_migrating:
        deploy(fleet, migrate_all=True)


@disturbance(0.3)
def phase_1(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    if fleet.is_migrating:
        deploy(fleet, migrate_all=False)


def version(client_version: str) -> ClientVersionState:
    return ClientVersionState(client_version=client_version, modified_by="KclMigrationTool", modified_ms=0)


@disturbance(0.5, (200.0, 300.0))
def back_to_2x(fleet: Fleet, item: Disturbance, worker: Worker | None) -> None:
    """The operator's tool takes the fleet back to KCL 2.x, and forward again."""
    table = fleet.metadata.coordinator
    if table.client_version != version(VERSION_3X_WITH_ROLLBACK):
        return
    table.client_version = version(VERSION_2X)

    def forward() -> None:
        if not fleet.producing:
            return  # Calm has come, and with it the last word of the operator.
        if not any(child.alive for each in fleet.live for child in each.children):
            fleet.count("at rest in 2.x mode")
        table.client_version = version(VERSION_UPGRADE_FROM_2X)
        fleet.hub.at(fleet.hub.now_s + 60.0 * item.number, ready)

    def ready() -> None:
        if table.client_version == version(VERSION_UPGRADE_FROM_2X):
            table.client_version = version(VERSION_3X_WITH_ROLLBACK)

    fleet.hub.at(fleet.hub.now_s + item.for_s, forward)
