"""What the leader would move in its next balancing pass, and what it would move with other workers than there are.

It is the decision of a kcl-host leader that begins with what was seen, by the same functions: departures first
(plan_departure of each worker that is to go), then one pass (plan_assignment). Moves are taken for done; the metrics of
workers are not predicted, since nobody knows by how much a lease loads its worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.decisions.assignment import AssignmentPlan, Move, plan_assignment, plan_departure
from kcl_host.decisions.fleet_looks import authoritative_lock
from kcl_host.decisions.fleet_report import WorkerStanding, seconds
from kcl_host.decisions.lease_age import Tracked, track
from kcl_host.decisions.metadata_format import VERSION_2X, VERSION_UPGRADE_FROM_2X
from kcl_host.decisions.renewal_watch import renewing_workers, unproven_owners
from kcl_host.decisions.rng import Rng
from kcl_host.decisions.saved_fleet import SavedFleet, active_workers, newest_reports
from kcl_host.decisions.worker_activity import LEAVING, judge_worker, judge_workers, moving_average
from kcl_host.decisions.worker_silence import note_silence
from kcl_host.errors import ConfigurationError
from kcl_host.model.worker import WorkerMetricStats


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that changes its owner; `before` None: it has none. `reason` as in `Move`, where "leaving" is the move
    of a removed worker's own."""

    lease_key: str
    before: str | None
    after: str
    kind: Literal["assign", "handoff"]
    reason: str
    throughput_kbps: float | None


class PlannedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker before and after. `metrics` are its moving averages in percent now; finished shards do not count."""

    worker_id: str
    standing: WorkerStanding | Literal["silent", "joining", "removed"]
    leases_before: int
    leases_after: int
    kbps_before: float
    kbps_after: float
    metrics: Mapping[str, float]


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `kcl-host plan` shows; `--json` is this, field by field (docs/plan.md)."""

    application: str
    taken_s: float
    looks: int
    observed_s: float
    joining: tuple[str, ...]
    removed: tuple[str, ...]
    moves: tuple[PlannedMove, ...]
    workers: tuple[PlannedWorker, ...]
    leases: int
    without_target: int
    """Leases without a live owner that no worker can take."""
    notes: tuple[str, ...]


def plan_fleet(fleet: SavedFleet, rng: Rng, *, joining: int = 0, removed: Collection[str] = ()) -> FleetPlan:
    """The next pass with `joining` idle workers more, and without those `removed`, which hand over what they hold.

    Raises ConfigurationError for a removed worker that is not active.
    """
    last = fleet.looks[-1]
    now_s, wall_s = last.at_s, last.taken_s
    seen: dict[str, Tracked] = {}
    for snapshot in fleet.looks:
        before, seen = seen, track(seen, snapshot.listing.leases, snapshot.at_s, fleet.leases)
    rows = newest_reports(last)
    if unknown := sorted(set(removed) - set(active_workers(fleet))):
        raise ConfigurationError(f"no active worker of this fleet: {', '.join(unknown)}")
    silent = note_silence({}, seen, rows, now_s, fleet.leases, observer="")
    joined = _joining(joining, rows, wall_s, fleet.metrics)
    present = [_leaving(row) if row.worker_id in removed else row for row in rows if row.worker_id not in silent]
    present += joined
    tracked, moves = seen, list[Move]()
    for worker_id in sorted(removed):
        departures = plan_departure(
            worker_id, tracked, present,
            assignment=fleet.assignment, leases=fleet.leases, metrics=fleet.metrics, now_s=now_s, wall_s=wall_s,
        )  # fmt: skip
        tracked, moves = _done(tracked, departures, now_s), [*moves, *departures]
    unproven = unproven_owners(seen, renewing_workers(before, seen)) if len(fleet.looks) > 1 else frozenset()
    plan = plan_assignment(
        tracked,
        present,
        assignment=fleet.assignment,
        leases=fleet.leases,
        metrics=fleet.metrics,
        now_s=now_s,
        wall_s=wall_s,
        balance=not unproven,
        rng=rng,
        newcomers=frozenset() if unproven else {row.worker_id for row in present},
    )
    after = _done(tracked, plan.moves, now_s)
    everybody = [*rows, *joined]
    standings = {row.worker_id: _standing(row, silent, removed, joined, wall_s, fleet.metrics) for row in everybody}
    return FleetPlan(
        application=fleet.application,
        taken_s=wall_s,
        looks=len(fleet.looks),
        observed_s=now_s - fleet.looks[0].at_s,
        joining=tuple(row.worker_id for row in joined),
        removed=tuple(sorted(removed)),
        moves=_planned(seen, after, {move.lease.lease_key: move for move in [*moves, *plan.moves]}),
        workers=_workers(seen, after, standings, [*rows, *joined], fleet.assignment.ema_alpha),
        leases=sum(not t.lease.is_at_shard_end for t in seen.values()),
        without_target=plan.spillover,
        notes=tuple(_notes(fleet, plan, unproven, seen)),
    )


def _joining(
    count: int, rows: Sequence[WorkerMetricStats], wall_s: float, settings: WorkerMetricsSettings
) -> list[WorkerMetricStats]:
    """Idle workers that measure what the first active one measures."""
    active = judge_workers(rows, wall_s, settings).active
    model = next((row for row in active if row.metric_stats), None)
    return [
        WorkerMetricStats(
            worker_id=f"new-{number}",
            last_update_s=int(wall_s),
            metric_stats={name: [0.0] for name in model.metric_stats} if model else {},
            operating_range=model.operating_range if model else {},
        )
        for number in range(1, count + 1)
    ]


def _leaving(row: WorkerMetricStats) -> WorkerMetricStats:
    return replace(row, properties={**row.properties, "state": LEAVING})


def _done(tracked: Mapping[str, Tracked], moves: Sequence[Move], now_s: float) -> dict[str, Tracked]:
    """As if every move had been made, handovers to their end."""
    done = dict(tracked)
    for move in moves:
        lease = replace(done[move.lease.lease_key].lease, lease_owner=move.to, checkpoint_owner=None)
        done[lease.lease_key] = Tracked(lease=lease, last_counter_increment_s=now_s)
    return done


def _planned(
    before: Mapping[str, Tracked], after: Mapping[str, Tracked], moves: Mapping[str, Move]
) -> tuple[PlannedMove, ...]:
    return tuple(
        PlannedMove(
            lease_key=key,
            before=before[key].lease.actual_owner,
            after=after[key].lease.lease_owner or "",
            kind=move.kind,
            reason=move.reason,
            throughput_kbps=before[key].lease.throughput_kbps,
        )
        for key, move in sorted(moves.items())
    )


def _standing(
    row: WorkerMetricStats,
    silent: Collection[str],
    removed: Collection[str],
    joined: Sequence[WorkerMetricStats],
    wall_s: float,
    settings: WorkerMetricsSettings,
) -> WorkerStanding | Literal["silent", "joining", "removed"]:
    if row.worker_id in removed:
        return "removed"
    if row.worker_id in silent:
        return "silent"
    return "joining" if row in joined else judge_worker(row, wall_s, settings)


def _workers(
    before: Mapping[str, Tracked],
    after: Mapping[str, Tracked],
    standings: Mapping[str, WorkerStanding | Literal["silent", "joining", "removed"]],
    rows: Sequence[WorkerMetricStats],
    alpha: float,
) -> tuple[PlannedWorker, ...]:
    was, will = _loads(before), _loads(after)
    stats = {row.worker_id: row for row in rows}
    return tuple(
        PlannedWorker(
            worker_id=worker_id,
            standing=standings.get(worker_id, "no_report"),
            leases_before=was.get(worker_id, (0, 0.0))[0],
            leases_after=will.get(worker_id, (0, 0.0))[0],
            kbps_before=was.get(worker_id, (0, 0.0))[1],
            kbps_after=will.get(worker_id, (0, 0.0))[1],
            metrics={
                name: moving_average(values, alpha)
                for name, values in (stats[worker_id].metric_stats if worker_id in stats else {}).items()
            },
        )
        for worker_id in sorted({*stats, *was, *will})
    )


def _loads(tracked: Mapping[str, Tracked]) -> dict[str, tuple[int, float]]:
    loads: dict[str, tuple[int, float]] = {}
    for t in tracked.values():
        owner = t.lease.actual_owner
        if owner is not None and not t.lease.is_at_shard_end:
            count, kbps = loads.get(owner, (0, 0.0))
            loads[owner] = count + 1, kbps + (t.lease.throughput_kbps or 0.0)
    return loads


def _notes(
    fleet: SavedFleet, plan: AssignmentPlan, unproven: Collection[str], seen: Mapping[str, Tracked]
) -> Iterator[str]:
    """What one must know to read the plan rightly."""
    last = fleet.looks[-1]
    version = last.client_version.client_version if last.client_version else None
    if version in (VERSION_2X, VERSION_UPGRADE_FROM_2X):
        yield f"Migration3.0 says {version}: no leader assigns leases until the application runs as 3.x"
    for failure in last.failures:
        yield f"{failure.part} could not be read, and the plan does without: {failure.error}"
    if not plan.active_workers:
        yield "no worker is active: nothing can be moved"
    gone = {*plan.inactive_workers, *(set(_loads(seen)) - {row.worker_id for row in newest_reports(last)})}
    gone_leases = sum(count for owner, (count, _) in _loads(seen).items() if owner in gone)
    observed_s = last.at_s - fleet.looks[0].at_s
    if gone_leases and observed_s <= fleet.leases.failover_s:
        wait = f"--observe {fleet.leases.failover_s + 1:.0f}"
        yield (
            f"{gone_leases} leases belong to workers that do not report; whether they are renewed takes two looks to "
            f"see ({wait}), and until it is seen they stay where they are"
        )
    if unproven:
        yield (
            f"nothing is balanced while owners have not been seen to renew a lease: {', '.join(sorted(unproven))} "
            f"(seen for {seconds(observed_s)})"
        )
    if plan.spillover:
        yield f"{plan.spillover} leases find no worker that may take them: every worker is at its limit"
    lock = authoritative_lock(last)
    if lock is None or lock.is_released:
        yield "nobody owns the leader lock: this is what a leader would do once there is one"
    elif lock.lease_duration_ms != round(fleet.leases.failover_s * 1000):
        yield (
            f"the lock of {lock.owner_name} lasts {lock.lease_duration_ms / 1000:g} s, not failoverTimeMillis: a Java "
            "leader, most likely, which approaches the same by its own rules, in smaller steps"
        )
