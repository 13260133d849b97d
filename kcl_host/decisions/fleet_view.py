"""The fleet as it is shown: rows of tables in, workers and leases with what they are at and the likely reason out.

It works from the tables alone, so the workers may be Java's. `diagnose` in fleet_health adds what is wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from kcl_host.config.settings import Settings, WorkerMetricsSettings
from kcl_host.decisions.fleet_looks import (
    FleetSnapshot,
    LeaseState,
    Looks,
    WatchedLease,
    authoritative_lock,
    is_single_table,
)
from kcl_host.decisions.fleet_report import (
    MANY_SWITCHES,
    STILL_S,
    FleetView,
    LeaderView,
    LeaseView,
    MetadataView,
    MetricView,
    MoveView,
    Summary,
    TableForm,
    WorkerStanding,
    WorkerView,
    seconds,
)
from kcl_host.decisions.lease_cleanup import CleanupDue, CleanupFacts, Keep, decide_cleanup
from kcl_host.decisions.table_migration import FleetSummary, summarise_fleet
from kcl_host.decisions.worker_activity import judge_worker, moving_average
from kcl_host.model.lease import Lease
from kcl_host.model.worker import WorkerMetricStats


def view_fleet(
    snapshot: FleetSnapshot, looks: Looks, settings: Settings, notes: Mapping[str, str] | None = None
) -> FleetView:
    """Leases in the order of their keys, workers by id. Raises nothing.

    `notes` is what a running host says of a lease, by key, that the tables do not tell (its child is in BACKOFF).
    """
    rows = {key: watched.lease for key, watched in looks.leases.items()}
    states = {key: _state(watched, looks, settings) for key, watched in looks.leases.items()}
    activity = _activity(snapshot, settings.worker_metrics)
    only = settings.streams[0].name
    leases = tuple(
        _lease_view(looks.leases[key], states, rows, looks, snapshot.taken_s, activity, only, (notes or {}).get(key))
        for key in sorted(rows)
    )
    by_stream: dict[str, list[LeaseView]] = defaultdict(list)
    for lease in leases:
        by_stream[lease.stream].append(lease)
    leader = _leader(snapshot, looks)
    return FleetView(
        application=settings.application_name,
        taken_s=snapshot.taken_s,
        looks=looks.count,
        observed_s=looks.observed_s,
        metadata=_metadata(snapshot, settings),
        leader=leader,
        summary=_summarise(leases),
        streams={stream: _summarise(by_stream[stream]) for stream in sorted(by_stream)},
        workers=_workers(snapshot, leases, activity, leader, settings),
        leases=leases,
        moves=tuple(
            MoveView(ago_s=looks.last_s - move.at_s, lease_key=move.lease_key, before=move.before, after=move.after)
            for move in looks.moves
        ),
        failures=snapshot.failures,
    )


# Leases


def _state(watched: WatchedLease, looks: Looks, settings: Settings) -> LeaseState:
    held = watched.state not in ("ended", "no_owner", "no_checkpoint")
    if held and looks.last_s - watched.counter_since_s > settings.lease.failover_s:
        return "silent"
    return watched.state


def _lease_view(
    watched: WatchedLease,
    states: Mapping[str, LeaseState],
    rows: Mapping[str, Lease],
    looks: Looks,
    taken_s: float,
    activity: Mapping[str, WorkerStanding],
    only_stream: str,
    note: str | None,
) -> LeaseView:
    lease, state, lag = watched.lease, states[watched.lease.lease_key], watched.lag
    known = [_why(watched, state, states, rows, looks, activity), note]
    reasons = [reason for reason in known if reason]
    hash_range = lease.hash_key_range
    return LeaseView(
        lease_key=lease.lease_key,
        stream=lease.stream_name or only_stream,
        shard_id=lease.shard_id,
        state=state,
        reason="; ".join(reasons) or None,
        owner=lease.actual_owner,
        next_owner=lease.lease_owner if lease.is_handover_pending else None,
        lag_ms=lag.behind_ms if lag and not lease.is_at_shard_end else None,
        lag_ms_per_s=watched.lag_ms_per_s,
        checkpoint=None if lease.checkpoint is None else str(lease.checkpoint),
        checkpoint_age_s=None if lag is None or lag.record_ms is None else max(0.0, taken_s - lag.record_ms / 1000),
        unchanged_s=looks.last_s - watched.checkpoint_since_s,
        pending_checkpoint=None if lease.pending_checkpoint is None else str(lease.pending_checkpoint),
        throughput_kbps=lease.throughput_kbps,
        owner_switches=lease.owner_switches_since_checkpoint,
        writes_per_s=watched.writes_per_s,
        counter=lease.lease_counter,
        counter_still_s=looks.last_s - watched.counter_since_s,
        state_s=looks.last_s - watched.state_since_s,
        parents=tuple(sorted(lease.parent_shard_ids)),
        children=tuple(sorted(lease.child_shard_ids)),
        hash_key_range=None if hash_range is None else (str(hash_range.start), str(hash_range.end)),
    )


def _why(
    watched: WatchedLease,
    state: LeaseState,
    states: Mapping[str, LeaseState],
    rows: Mapping[str, Lease],
    looks: Looks,
    activity: Mapping[str, WorkerStanding],
) -> str | None:
    """Why the lease makes no progress, or None when nothing keeps it from it."""
    lease = watched.lease
    if state == "ended":
        return _why_still_there(lease, rows)
    if state == "no_checkpoint":
        return "the row has no checkpoint: it is not a lease that KCL wrote"
    waits = [
        _parent(key, states) for key in sorted(map(lease.key_of, lease.parent_shard_ids)) if _unfinished(key, rows)
    ]
    waiting = f"waits for parent {' and '.join(waits)}" if waits else None
    if state == "no_owner":
        return f"no owner; {waiting}" if waiting else "no owner"
    owner = lease.actual_owner or ""
    if state == "silent":
        return f"owner silent for {seconds(looks.last_s - watched.counter_since_s)}"
    reasons = []
    if activity and activity.get(owner, "no_report") in ("inactive", "no_report"):
        reasons.append("owner does not report its load")
    if state == "handover":
        for_s = looks.last_s - watched.state_since_s
        since = f"over {seconds(for_s)} ago" if for_s >= 1 else "since when is not known"
        reasons.append(f"handover to {lease.lease_owner}, {since}")
    elif state == "shard_end":
        reasons.append("shard end not checkpointed")
    if lease.owner_switches_since_checkpoint >= MANY_SWITCHES:
        reasons.append(f"{lease.owner_switches_since_checkpoint} changes of owner since the last checkpoint")
    if waiting:
        reasons.append(waiting)
    elif state == "reading" and lease.checkpoint is not None:
        if lease.checkpoint.is_sentinel:
            reasons.append("nothing checkpointed yet")
        still_s = looks.last_s - watched.checkpoint_since_s
        if still_s >= STILL_S and watched.lag is not None and watched.lag.behind_ms:
            reasons.append(f"renewed, but its checkpoint stands for {seconds(still_s)} and records wait")
    return "; ".join(reasons) or None


def _unfinished(lease_key: str, rows: Mapping[str, Lease]) -> bool:
    return lease_key in rows and not rows[lease_key].is_at_shard_end


_OF_A_PARENT: Mapping[LeaseState, str] = {
    "silent": " (owner silent)",
    "no_owner": " (no owner)",
    "shard_end": " (its shard end is not checkpointed)",
    "waits_for_parent": " (waits for its own parent)",
    "handover": " (being handed over)",
    "no_checkpoint": " (row without checkpoint)",
}


def _parent(lease_key: str, states: Mapping[str, LeaseState]) -> str:
    return lease_key + _OF_A_PARENT.get(states[lease_key], "")


def _why_still_there(lease: Lease, rows: Mapping[str, Lease]) -> str:
    facts = CleanupFacts(row=(lease,), relatives=rows)
    step = decide_cleanup(lease, facts, CleanupDue(completed=True, garbage=False))
    if isinstance(step, Keep) and step.lease_keys:
        names = ", ".join(step.lease_keys)
        return {
            "child_lease_missing": f"waits for clean-up: child {names} without lease",
            "child_not_started": f"waits for clean-up: child {names} not started",
            "parent_lease_exists": f"waits for clean-up: parent {names} still there",
        }[step.reason]
    return "waits for clean-up"


def _summarise(leases: Iterable[LeaseView]) -> Summary:
    leases = tuple(leases)
    lagging = [lease for lease in leases if lease.lag_ms is not None]
    worst = max(lagging, key=lambda lease: lease.lag_ms or 0, default=None)
    writes = [lease.writes_per_s for lease in leases if lease.writes_per_s is not None]
    counts = Counter(lease.state for lease in leases)
    return Summary(
        leases=len(leases),
        by_state={state: counts[state] for state in sorted(counts)},
        throughput_kbps=sum(lease.throughput_kbps or 0.0 for lease in leases if lease.state != "ended"),
        writes_per_s=sum(writes) if writes else None,
        lag_known=len(lagging),
        worst_lag_ms=worst.lag_ms if worst else None,
        worst_lag_lease=worst.lease_key if worst else None,
    )


# Workers


def _newest(snapshot: FleetSnapshot) -> dict[str, tuple[WorkerMetricStats, bool]]:
    """The newest row of each worker, and whether it is in the lease table."""
    rows = [(row, False) for row in snapshot.workers.workers]
    rows += [(row, True) for row in snapshot.listing.workers.workers]
    return {row.worker_id: (row, moved) for row, moved in sorted(rows, key=lambda found: found[0].last_update_s or 0)}


def _activity(snapshot: FleetSnapshot, settings: WorkerMetricsSettings) -> dict[str, WorkerStanding]:
    """By worker id; empty when there is no report at all (KCL 2.x), or they could not be read."""
    if snapshot.has_failed("worker metrics"):
        return {}
    return {
        worker_id: judge_worker(row, snapshot.taken_s, settings) for worker_id, (row, _) in _newest(snapshot).items()
    }


def _workers(
    snapshot: FleetSnapshot,
    leases: Iterable[LeaseView],
    activity: Mapping[str, WorkerStanding],
    leader: LeaderView | None,
    settings: Settings,
) -> tuple[WorkerView, ...]:
    rows = _newest(snapshot)
    held: Counter[str] = Counter()
    incoming: Counter[str] = Counter()
    outgoing: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    load: defaultdict[str, float] = defaultdict(float)
    for lease in leases:
        if lease.owner is not None and lease.state != "ended":
            held[lease.owner] += 1
            load[lease.owner] += lease.throughput_kbps or 0.0
            silent[lease.owner] += lease.state == "silent"
            if lease.next_owner is not None:
                outgoing[lease.owner] += 1
                incoming[lease.next_owner] += 1
    views = []
    for worker_id in sorted(rows.keys() | held.keys() | incoming.keys()):
        stats, moved = rows.get(worker_id, (None, False))
        place: Literal["worker_metrics_table", "lease_table"] = "lease_table" if moved else "worker_metrics_table"
        views.append(
            WorkerView(
                worker_id=worker_id,
                standing=activity.get(worker_id, "no_report"),
                is_leader=leader is not None and not leader.is_released and leader.worker_id == worker_id,
                leases=held[worker_id],
                incoming=incoming[worker_id],
                outgoing=outgoing[worker_id],
                silent_leases=silent[worker_id],
                throughput_kbps=load[worker_id],
                metrics={} if stats is None else _metrics(stats, settings.assignment.ema_alpha),
                last_seen_s=None
                if stats is None or stats.last_update_s is None
                else max(0.0, snapshot.taken_s - stats.last_update_s),
                reports_to=None if stats is None else place,
                support_code=None if stats is None else stats.support_code,
            )
        )
    return tuple(views)


def _metrics(stats: WorkerMetricStats, alpha: float) -> dict[str, MetricView]:
    return {
        name: MetricView(
            average=moving_average(values, alpha), limit=next(iter(stats.operating_range.get(name, ())), None)
        )
        for name, values in sorted(stats.metric_stats.items())
    }


# Tables


def _leader(snapshot: FleetSnapshot, looks: Looks) -> LeaderView | None:
    single = is_single_table(snapshot)
    lock = authoritative_lock(snapshot)
    if lock is None:
        return None
    return LeaderView(
        worker_id=lock.owner_name,
        place="lease_table" if single else "coordinator_table",
        lease_duration_ms=lock.lease_duration_ms,
        is_released=lock.is_released,
        still_s=looks.last_s - looks.lock_since_s if lock == looks.lock else 0.0,
    )


def _metadata(snapshot: FleetSnapshot, settings: Settings) -> MetadataView:
    form: TableForm = "unknown"
    if is_single_table(snapshot):
        form = "single_table"
    elif snapshot.has_coordinator_table:
        form = "three_tables"
    elif snapshot.table is None and not snapshot.has_failed("lease table") and not snapshot.has_failed("leases"):
        form = "none"
    migration, version = snapshot.table_migration, snapshot.client_version
    return MetadataView(
        form=form,
        lease_table=None if snapshot.table is None else snapshot.table.status,
        index=None if snapshot.table is None else snapshot.table.index_status,
        client_version=None if version is None else version.client_version,
        table_migration=None if migration is None else migration.status,
        migration_note=_migration_note(snapshot, settings) if form == "three_tables" else None,
    )


def _migration_note(snapshot: FleetSnapshot, settings: Settings) -> str:
    """How far the move into the lease table is, and what comes next; as `next_step` of the leader would have it."""
    fleet = summarise_fleet(
        snapshot.listing.leases,
        {"legacy": snapshot.workers, "lease": snapshot.listing.workers},
        snapshot.taken_s,
        settings.worker_metrics,
    )
    moved = f"{_moved(fleet, snapshot)} of {len(fleet.lease_owners)} lease owners report in the lease table"
    migration = snapshot.table_migration
    if migration is None:
        if fleet.support_code < 1:
            return "not begun: not all lease owners know the single-table format"
        return "not begun; all lease owners know the single-table format, so the leader may begin it"
    age_s = snapshot.taken_s - migration.modified_ms / 1000
    match migration.status.removeprefix("TABLE_MIGRATION_STATUS_"):
        case "INIT":
            left_s = settings.coordinator.init_bake_s - age_s
            return "phase 2 may be deployed " + (
                f"in {seconds(left_s)}" if left_s > 0 else "as soon as the leader says so"
            )
        case "DEPLOYED":
            return f"phase 2, migrateAllEntitiesToLeaseTable = true, may be deployed; {moved}"
        case "PENDING":
            left_s = settings.coordinator.complete_bake_s - age_s
            return f"{moved}; final " + (f"in {seconds(left_s)}" if left_s > 0 else "as soon as the leader says so")
    return f"{migration.status} is not known to this version of kcl-host"


def _moved(fleet: FleetSummary, snapshot: FleetSnapshot) -> int:
    return len(fleet.lease_owners & {row.worker_id for row in snapshot.listing.workers.workers})
