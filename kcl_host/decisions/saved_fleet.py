"""A fleet as it was seen, kept in a file: to plan with it later and elsewhere, or to let a simulation begin with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, Settings, WorkerMetricsSettings
from kcl_host.decisions.fleet_looks import FleetSnapshot
from kcl_host.decisions.worker_activity import judge_workers
from kcl_host.errors import ConfigurationError
from kcl_host.model.worker import WorkerMetricStats

SCHEMA: Final = 1
"""Of a saved fleet; grows when a field changes its meaning or goes."""
_ENDLESS: Final = 1e300
"""JSON has no infinity."""


class SavedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet as it was seen, with the settings that its leader decides by: what `plan --save` writes.

    `looks` are one or two snapshots, the older first.
    """

    schema: int = SCHEMA
    application: str
    assignment: AssignmentSettings
    leases: LeaseSettings
    metrics: WorkerMetricsSettings
    looks: tuple[FleetSnapshot, ...]


def save_fleet(looks: Sequence[FleetSnapshot], settings: Settings) -> bytes:
    """JSON, without what applications have noted with prepared checkpoints, which is their own business."""
    saved = SavedFleet(
        application=settings.application_name,
        assignment=_finite(settings.assignment),
        leases=settings.lease,
        metrics=replace(
            settings.worker_metrics, network_max_mb_per_s=min(settings.worker_metrics.network_max_mb_per_s, _ENDLESS)
        ),
        looks=tuple(_without_state(snapshot) for snapshot in (*looks[:1], *looks[1:][-1:])),
    )
    return msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n"


def load_fleet(data: bytes) -> SavedFleet:
    """Raises ConfigurationError for anything but a saved fleet of this schema."""
    try:
        saved = msgspec.json.decode(data, type=SavedFleet)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"this is no fleet saved by `kcl-host plan --save`: {error}") from error
    if saved.schema != SCHEMA or not saved.looks:
        raise ConfigurationError(f"a saved fleet of schema {saved.schema}; this kcl-host reads {SCHEMA}: save it again")
    return saved


def _finite(settings: AssignmentSettings) -> AssignmentSettings:
    limit_kbps = min(settings.max_throughput_per_host_kbps, _ENDLESS)
    return replace(settings, max_throughput_per_host_kbps=limit_kbps)


def _without_state(snapshot: FleetSnapshot) -> FleetSnapshot:
    leases = tuple(replace(lease, pending_checkpoint_state=None) for lease in snapshot.listing.leases)
    return replace(snapshot, listing=replace(snapshot.listing, leases=leases))


def newest_reports(snapshot: FleetSnapshot) -> list[WorkerMetricStats]:
    """The newest row of each worker, of both tables, by worker id."""
    rows = [*snapshot.workers.workers, *snapshot.listing.workers.workers]
    newest = {row.worker_id: row for row in sorted(rows, key=lambda row: row.last_update_s or 0)}
    return [newest[worker_id] for worker_id in sorted(newest)]


def active_workers(fleet: SavedFleet) -> tuple[str, ...]:
    """Worker ids in order."""
    last = fleet.looks[-1]
    return tuple(row.worker_id for row in judge_workers(newest_reports(last), last.taken_s, fleet.metrics).active)


def lightest_workers(fleet: SavedFleet, count: int, *, beside: Collection[str] = ()) -> tuple[str, ...]:
    """The active workers whose leases carry least, whom it costs least to do without; by id among equals.

    Those `beside` go anyway. Raises ConfigurationError when nobody would be left.
    """
    active = [worker_id for worker_id in active_workers(fleet) if worker_id not in beside]
    if count and count >= len(active):
        raise ConfigurationError(f"the fleet has {len(active)} active workers to choose from: {count} fewer leave none")
    load = {worker_id: (0.0, 0) for worker_id in active}
    for lease in fleet.looks[-1].listing.leases:
        owner = lease.actual_owner or ""
        if owner in load and not lease.is_at_shard_end:
            kbps, leases = load[owner]
            load[owner] = kbps + (lease.throughput_kbps or 0.0), leases + 1
    return tuple(sorted(active, key=lambda worker_id: (load[worker_id], worker_id))[:count])
