"""One run of a seed: disturb a fleet for some hours, then let it be, and see whether everything is as it must be."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from kcl_host.config.settings import (
    AssignmentSettings,
    ChildSettings,
    CoordinatorSettings,
    LeaseSettings,
    LockSettings,
    RetrievalSettings,
    ServiceSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.decisions.metadata_format import VERSION_3X_WITH_ROLLBACK
from kcl_host.model.sequence import TRIM_HORIZON, InitialPosition
from tests.simulation.beginning import Beginning, begin
from tests.simulation.disturbances import RESTART_EVERY_S, Disturbance, deploy, draw, plan, version
from tests.simulation.fleet import Counting, Fleet
from tests.simulation.observer import Broken

Retrieval = Literal["polling", "fanout", "mixed"]
"""How the workers of a fleet read; mixed: every other one by fan-out, and a rolling restart may change that."""
Metadata = Literal["three", "single", "migrating", "with rollback"]
"""Where the metadata of a fleet are; it moves into the lease table, or may go back to KCL 2.x, while it runs."""
BAKE_S = 90.0
"""Instead of Java's hour and day."""
CALM_FAILOVERS = 30
"""After the last disturbance the fleet has so many times failoverTimeMillis to become quiet."""
QUIET_PASSES = 3
"""And then nothing may move for so many passes of the leader."""
DISTURBED_EVERY_S = 40.0
SHORT_RETENTION_S = 240.0
"""Of every fourth seed: shards that nobody reads for so long leave the stream unread."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    workers: int = 5
    shards: int = 20
    hours: float = 1.0
    failover_s: float = 10.0
    every_s: float = DISTURBED_EVERY_S
    """One disturbance each so many seconds, on average."""
    beginning: Beginning | None = None
    """Of a fleet that was saved, in tables of their own; None: a new application."""

    @property
    def metadata(self) -> Metadata:
        """Two of five seeds keep three tables and are done with KCL 2.x."""
        kinds: tuple[Metadata, ...] = ("three", "three", "single", "migrating", "with rollback")
        if self.beginning is not None:
            kinds = ("three", "migrating")
        return kinds[self.seed % len(kinds)]

    @property
    def retrieval(self) -> Retrieval:
        kinds: tuple[Retrieval, ...] = ("polling", "fanout", "mixed")
        return kinds[self.seed % len(kinds)]

    def reads_by_fanout(self, slot: int) -> bool:
        return self.retrieval == "fanout" or (self.retrieval == "mixed" and slot % 2 == 0)


class Outcome(msgspec.Struct, kw_only=True):
    counts: Counter[str]
    moves: int
    redelivered: int
    records: int
    seconds: float
    """Of the wall clock."""


class Failure(Exception):
    """A seed broke an invariant."""

    def __init__(self, setup: Setup, schedule: list[Disturbance], why: str, history: list[str]) -> None:
        super().__init__(f"seed {setup.seed}: {why}")
        self.setup = setup
        self.schedule = schedule
        self.why = why
        self.history = history

    def __reduce__(self) -> tuple[object, ...]:
        return Failure, (self.setup, self.schedule, self.why, self.history)


def settings_of(setup: Setup) -> Settings:
    service = ServiceSettings(region="us-east-1")
    failover_s = setup.failover_s
    settings = Settings(
        application_name="app",
        worker_id="w",
        streams=(StreamSettings(name="orders"),),
        initial_position=InitialPosition(kind=TRIM_HORIZON),
        child=ChildSettings(command=("child",), response_timeout_s=60.0, fatal_retry_s=120.0),
        kinesis=service,
        dynamodb=service,
        cloudwatch=service,
        lease_table=TableSettings(name="app"),
        coordinator_table=TableSettings(name="app-CoordinatorState"),
        worker_metrics_table=TableSettings(name="app-WorkerMetricStats"),
        lease=LeaseSettings(failover_s=failover_s),
        lock=LockSettings(lease_duration_s=failover_s, heartbeat_s=failover_s / 3),
        assignment=AssignmentSettings(interval_s=2 * failover_s),
        coordinator=CoordinatorSettings(
            metadata_table_format="single" if setup.metadata == "single" else "auto",
            init_bake_s=BAKE_S,
            complete_bake_s=BAKE_S,
        ),
        retrieval=RetrievalSettings(
            mode="POLLING",  # Of each worker its own: Setup.reads_by_fanout.
            mode_reason="simulation",
            idle_between_reads_s=3 * failover_s,
            max_pending_batches=2,
            consumer_name="app",
        ),
    )
    return settings if setup.beginning is None else setup.beginning.applied_to(settings)


def simulate(setup: Setup, schedule: list[Disturbance] | None = None) -> Outcome:
    """Raises Failure. `schedule` instead of the one that the seed draws, to shrink it."""
    started_s = time.perf_counter()
    if schedule is None:
        schedule = draw(setup.seed, workers=setup.workers, seconds=setup.hours * 3600, every_s=setup.every_s)
    fleet = Fleet(
        setup.seed,
        settings_of(setup),
        workers=setup.workers,
        shards=setup.shards,
        same_ids=setup.seed % 2 == 1 or setup.beginning is not None,
        retention_s=SHORT_RETENTION_S if setup.seed % 4 == 3 else 86400.0,
    )
    if setup.beginning is not None:
        begin(fleet, setup.beginning)
    fleet.is_migrating = setup.metadata == "migrating"
    fleet.fanout_slots = {slot for slot in range(setup.workers) if setup.reads_by_fanout(slot)}
    if setup.metadata == "with rollback":
        fleet.metadata.coordinator.client_version = version(VERSION_3X_WITH_ROLLBACK)
    plan(fleet, schedule)
    try:
        with counting(fleet):
            fleet.run(setup.hours * 3600)
            fleet.calm()
            if setup.metadata == "with rollback":
                fleet.metadata.coordinator.client_version = version(VERSION_3X_WITH_ROLLBACK)
            fleet.run(CALM_FAILOVERS * setup.failover_s)
            if fleet.is_migrating:
                end_migration(fleet)
            fleet.check_quiet(QUIET_PASSES)
    except Broken as error:
        raise Failure(setup, schedule, str(error), fleet.observer.told(error)) from error
    return Outcome(
        counts=fleet.counts,
        moves=fleet.observer.moves,
        redelivered=fleet.observer.redelivered,
        records=fleet.observer.records,
        seconds=time.perf_counter() - started_s,
    )


def end_migration(fleet: Fleet) -> None:
    """The operator deploys phase 2 and waits. Raises Broken when not everything gets into the lease table by that."""
    fleet.run(2 * BAKE_S)
    deploy(fleet, migrate_all=True)
    fleet.run(RESTART_EVERY_S * len(fleet.workers) + 4 * BAKE_S)
    fleet.check_migrated()
    fleet.count("migration complete")


def outcome_of(setup: Setup) -> Outcome | Failure:
    try:
        return simulate(setup)
    except Failure as failure:
        return failure


def shrink(failure: Failure, tries: int = 60) -> Failure:
    """A failure of the same setup with fewer disturbances: halves, then quarters, ... are left out while it fails."""
    best, chunk = failure, max(1, len(failure.schedule) // 2)
    while tries > 0:
        removed = False
        for start in range(0, len(best.schedule), chunk):
            if tries <= 0:
                break
            tries -= 1
            shorter = best.schedule[:start] + best.schedule[start + chunk :]
            try:
                simulate(best.setup, shorter)
            except Failure as again:
                best, removed = again, True
                break
        if not removed:
            if chunk == 1:
                break
            chunk //= 2
    return best


@contextmanager
def counting(fleet: Fleet) -> Iterator[None]:
    """The workers' log goes to the fleet's counters, and nowhere else."""
    log, consumers = logging.getLogger("kcl_host"), logging.getLogger("kcl_host.runtime.shard_consumer")
    handler, before = Counting(fleet), (log.level, log.propagate, consumers.level)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    consumers.setLevel(logging.DEBUG)  # Its transitions are logged there.
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
        consumers.setLevel(before[2])
