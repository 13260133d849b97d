"""What the tests of assignment share: workers and leases in few words, a plan, and what becomes of it."""

from __future__ import annotations

import math
import random

import msgspec

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.decisions.assignment import AssignmentPlan, Tracked, plan_assignment
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber
from kcl_host.model.worker import WorkerMetricStats

NOW_S, WALL_S = 1000.0, 1_800_000_000.0
METRICS = WorkerMetricsSettings()


class Worker(msgspec.Struct, forbid_unknown_fields=True):
    worker_id: str
    metric_stats: dict[str, list[float]] = {}
    operating_range: dict[str, list[float]] = {}
    state: str | None = None
    age_s: int = 0


class Row(msgspec.Struct, forbid_unknown_fields=True):
    lease_key: str
    owner: str | None = None
    checkpoint_owner: str | None = None
    throughput_kbps: float | None = None
    age_s: float | None = None
    """Seconds since the counter moved; absent: just now, or never for a lease without owner."""
    handoff_deadline_in_s: float | None = None
    shard_end: bool = False


def stats(worker: Worker) -> WorkerMetricStats:
    return WorkerMetricStats(
        worker_id=worker.worker_id,
        last_update_s=int(WALL_S) - worker.age_s,
        metric_stats=worker.metric_stats,
        operating_range=worker.operating_range,
        properties={"state": worker.state} if worker.state else {},
    )


def tracked(row: Row) -> Tracked:
    unknown = -math.inf if row.owner is None else NOW_S
    return Tracked(
        lease=Lease(
            lease_key=row.lease_key,
            checkpoint=AT_SHARD_END if row.shard_end else ExtendedSequenceNumber("TRIM_HORIZON"),
            lease_owner=row.owner,
            checkpoint_owner=row.checkpoint_owner,
            throughput_kbps=row.throughput_kbps,
        ),
        last_counter_increment_s=unknown if row.age_s is None else NOW_S - row.age_s,
        handoff_deadline_s=None if row.handoff_deadline_in_s is None else NOW_S + row.handoff_deadline_in_s,
    )


def plan(
    observed: dict[str, Tracked],
    workers: list[WorkerMetricStats],
    assignment: AssignmentSettings | None = None,
    leases: LeaseSettings | None = None,
    *,
    balance: bool = True,
    seed: int = 0,
    newcomers: tuple[str, ...] = (),
) -> AssignmentPlan:
    return plan_assignment(
        observed,
        workers,
        assignment=assignment or AssignmentSettings(),
        leases=leases or LeaseSettings(),
        metrics=METRICS,
        now_s=NOW_S,
        wall_s=WALL_S,
        balance=balance,
        rng=random.Random(seed),
        newcomers=newcomers,
    )


def when_applied(observed: dict[str, Tracked], done: AssignmentPlan) -> dict[str, Tracked]:
    """The leases once every write took effect and every handover was completed."""
    after = dict(observed)
    for move in done.moves:
        row = msgspec.structs.replace(move.lease, lease_owner=move.to, checkpoint_owner=None)
        after[row.lease_key] = Tracked(lease=row, last_counter_increment_s=NOW_S)
    return after


def counts(observed: dict[str, Tracked], workers: tuple[str, ...]) -> dict[str, int]:
    owners = [t.lease.actual_owner for t in observed.values()]
    return {w: owners.count(w) for w in workers}
