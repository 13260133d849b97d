"""A simulated fleet that begins as a real one was seen: what `scripts/simulate --snapshot FILE` makes of a saved fleet.

Taken over are the settings that the leader decides by, how many workers are active and how many shards are open, who
owns which lease, and how the load is spread over the shards. Shards, workers and positions are the simulation's own,
and so is the CPU of workers: nobody knows by how much a lease would load a worker.
"""

from __future__ import annotations

import msgspec

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, LockSettings, Settings
from kcl_host.decisions.metadata_format import VERSION_3X
from kcl_host.decisions.saved_fleet import SavedFleet, active_workers
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON
from tests.simulation.disturbances import version
from tests.simulation.fleet import Fleet

GONE = "gone"
"""Owner of the leases whose owner does not report: they have to expire first."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """`owners` and `kbps` of each open shard, in the order of their hash keys; an owner is a slot, None: nobody, -1: a
    worker that does not report. `path` is the file it came from."""

    path: str
    workers: int
    owners: tuple[int | None, ...]
    kbps: tuple[float, ...]
    assignment: AssignmentSettings
    leases: LeaseSettings

    def applied_to(self, settings: Settings) -> Settings:
        failover_s = self.leases.failover_s
        return msgspec.structs.replace(
            settings,
            lease=self.leases,
            lock=LockSettings(lease_duration_s=failover_s, heartbeat_s=failover_s / 3),
            assignment=self.assignment,
        )


def beginning_of(saved: SavedFleet, path: str) -> Beginning:
    """Raises ValueError for a fleet without active workers or without open shards."""
    workers = active_workers(saved)
    rows = saved.looks[-1].listing.leases
    leases = sorted((row for row in rows if not row.is_at_shard_end), key=_order)
    if not workers or not leases:
        raise ValueError(
            f"{path}: {len(workers)} active workers and {len(leases)} open shards are no fleet to simulate"
        )
    slots = {worker_id: slot for slot, worker_id in enumerate(workers)}
    known = [row.throughput_kbps for row in leases if row.throughput_kbps is not None]
    average_kbps = sum(known) / len(known) if known else 1.0
    return Beginning(
        path=path,
        workers=len(workers),
        owners=tuple(None if row.actual_owner is None else slots.get(row.actual_owner, -1) for row in leases),
        kbps=tuple(average_kbps if row.throughput_kbps is None else row.throughput_kbps for row in leases),
        assignment=saved.assignment,
        leases=saved.leases,
    )


def begin(fleet: Fleet, beginning: Beginning) -> None:
    """Tables and rows as after a stop of the whole fleet: the workers of `fleet` start, and find their leases."""
    fleet.lease_table.create_table()
    fleet.metadata.coordinator.create_table()
    fleet.metadata.metrics.create_table()
    fleet.metadata.coordinator.client_version = version(VERSION_3X)
    for shard_id, owner, kbps in zip(fleet.stream.open_shard_ids, beginning.owners, beginning.kbps, strict=True):
        name = None if owner is None else GONE if owner < 0 else f"w{owner}"
        fleet.lease_table.create(
            Lease(
                lease_key=shard_id, checkpoint=AT_TRIM_HORIZON, lease_owner=name, lease_counter=1, throughput_kbps=kbps
            )
        )
        fleet.shard_weights[shard_id] = kbps


def _order(row: Lease) -> tuple[str, int, str]:
    return row.stream_name or "", row.hash_key_range.start if row.hash_key_range else -1, row.lease_key
