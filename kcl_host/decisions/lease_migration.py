"""Leases of a single-stream application, as those of one stream among many, in another table.

The two modes cannot share a table: multi-stream readers require `streamName` and `shardId` on every lease, the others
take the lease key for the shard id (spec lease-table 1.3, shard-sync 8.2). So each lease is written anew, under
the key `account:name:creation epoch:shard id`, and the old table stays as it is. A table in which some leases are
missing would be filled up at the initial position; whatever is not understood is therefore refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kcl_host.config.settings import CoordinatorSettings, WorkerMetricsSettings
from kcl_host.decisions.metadata_format import (
    MetadataFacts,
    Refuse,
    UseSingleTable,
    UseThreeTables,
    Wait,
    decide_metadata_format,
)
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.model.sequence import AT_TIMESTAMP
from kcl_host.model.shard import Shard, StreamIdentifier
from kcl_host.model.worker import WorkerMetricStats

LEASE_TYPE: Final = "LEASE"
NAMED: Final = 5
"""Rows that one message names at most."""
REPORT_SLACK_S: Final = 5.0
"""By how much a live worker may be late with its metrics."""


class LeaseMove(msgspec.Struct, frozen=True, kw_only=True):
    """`lease` as it stands in the old table, `to` as it is to stand in the new one; `is_there` when it does already."""

    lease: Lease
    to: Lease
    is_there: bool = False
    note: str = ""
    """What the operator should know of this lease; empty: nothing."""


class LeaseMigrationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Every lease of the old table, by lease key; `left_behind` are the types of rows that are no leases."""

    stream: StreamIdentifier
    moves: tuple[LeaseMove, ...]
    left_behind: tuple[str, ...] = ()


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What shows that workers are running, as it stood at one moment; `locks`: record versions of leader locks."""

    leases: tuple[Lease, ...]
    workers: tuple[WorkerMetricStats, ...] = ()
    locks: frozenset[str] = frozenset()


def multi_stream_lease(lease: Lease, stream: StreamIdentifier) -> Lease:
    """The lease of the same shard in multi-stream mode, as if just created: held by nobody, counter 0.

    Everything else is kept. Parents and children stay bare shard ids. What a row cannot hold is brought to what is read
    back: a throughput has six decimals, the state of a prepared checkpoint does not stand alone.
    """
    throughput_kbps = lease.throughput_kbps
    return msgspec.structs.replace(
        lease,
        lease_key=stream.lease_key(lease.shard_id),
        stream_name=str(stream),
        multi_stream_shard_id=lease.shard_id,
        lease_counter=0,
        lease_owner=None,
        checkpoint_owner=None,
        pending_checkpoint_state=None if lease.pending_checkpoint is None else lease.pending_checkpoint_state,
        throughput_kbps=None if throughput_kbps is None else round(throughput_kbps, 6),
    )


def plan_lease_migration(
    stream: StreamIdentifier, shards: Sequence[Shard], old: LeaseListing, new: LeaseListing
) -> LeaseMigrationPlan | Refuse:
    """What to write into the new table; `new` is what it holds already, empty when it does not exist.

    Leases of other streams in it are left alone. `shards` is one complete ListShards listing.
    """
    if (problem := _problem_of_old(shards, old)) is not None:
        return problem
    there = {lease.lease_key: lease for lease in new.leases}
    leases = sorted(old.leases, key=lambda lease: lease.lease_key)
    wanted = {lease.lease_key: multi_stream_lease(lease, stream) for lease in leases}
    if (problem := _problem_of_new(stream, {to.lease_key: to for to in wanted.values()}, new)) is not None:
        return problem
    shard_ids = {shard.shard_id for shard in shards}
    return LeaseMigrationPlan(
        stream=stream,
        moves=tuple(
            LeaseMove(
                lease=lease,
                to=wanted[lease.lease_key],
                is_there=wanted[lease.lease_key].lease_key in there,
                note=_note(lease, shard_ids),
            )
            for lease in leases
        ),
        left_behind=tuple(sorted(old.entity_types - {LEASE_TYPE})),
    )


def plan_metadata_format(
    facts: MetadataFacts, entity_types: frozenset[str], settings: CoordinatorSettings
) -> UseThreeTables | UseSingleTable | Refuse:
    """What the first worker on the new table will go on with: the format that the application has, or nothing.

    Asks the decision that this worker will ask, with what it will find: a lease table with its index, leases of an
    `entityType`, and `entity_types` besides. `facts` are those of the application as it is, nobody moving.
    """
    now = decide_metadata_format(facts, settings)
    match now:
        case Refuse():
            return now
        case Wait():
            return Refuse(message=now.reason)
        case UseThreeTables() if others := facts.entity_types - {LEASE_TYPE}:
            return Refuse(
                message="the application is on its way to KCL 3.5's single table: its lease table holds rows of type "
                f"{named(others)} already. Finish that (migrateAllEntitiesToLeaseTable), or take them back, first."
            )
        case UseThreeTables() | UseSingleTable():
            then = decide_metadata_format(
                msgspec.structs.replace(
                    facts,
                    lease_table_has_index=True,
                    entity_types=entity_types | {LEASE_TYPE},
                    workers_in_lease_table=False,
                ),
                settings,
            )
            if isinstance(then, UseThreeTables | UseSingleTable) and type(then) is type(now):
                return then
            return Refuse(
                message="a worker that starts on the new table would not take it for one of the same application: "
                + (then.message if isinstance(then, Refuse) else "a CoordinatorState table that nobody uses stands by")
            )
        case _:
            return Refuse(
                because="configuration",
                message="no worker of KCL 3.x has run this application yet, so its tables are not complete: run a "
                "worker on it as it is, then stop it and come back",
            )


def observation_s(sighting: Sighting, wall_s: float, failover_s: float, metrics: WorkerMetricsSettings) -> float:
    """How long nothing must move until the fleet counts as stopped, in seconds.

    Longer than a lease lasts; where a worker has reported metrics of late, longer than until its next report, since a
    worker without a lease does not write anything else. `wall_s`: epoch seconds.
    """
    reporting = [w for w in sighting.workers if judge_worker(w, wall_s, metrics) not in ("inactive", "leaving")]
    return max(failover_s, metrics.report_interval_s + REPORT_SLACK_S) if reporting else failover_s


def signs_of_life(before: Sighting, after: Sighting) -> tuple[str, ...]:
    """What somebody wrote between the two looks, for people; empty when nothing moved."""
    earlier = {lease.lease_key: lease for lease in before.leases}
    signs = []
    for lease in sorted(after.leases, key=lambda lease: lease.lease_key):
        was = earlier.pop(lease.lease_key, None)
        if was is None:
            signs.append(f"lease {lease.lease_key} was created")
        elif was != lease:
            owner = lease.actual_owner or was.actual_owner
            signs.append(f"lease {lease.lease_key} was written" + (f" (held by {owner})" if owner else ""))
    signs += [f"lease {key} was deleted" for key in sorted(earlier)]
    reports = {(worker.worker_id, worker.last_update_s) for worker in before.workers}
    signs += [f"worker {w.worker_id} reported" for w in after.workers if (w.worker_id, w.last_update_s) not in reports]
    return (*signs, *["the leader renewed its lock"][: len(after.locks - before.locks)])


def named(keys: Iterable[str]) -> str:
    """The first few, sorted, and how many more there are."""
    ordered = sorted(keys)
    more = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return ", ".join(ordered[:NAMED]) + more


def _problem_of_old(shards: Sequence[Shard], old: LeaseListing) -> Refuse | None:
    if old.undecodable:
        return Refuse(message=f"rows of the lease table are no valid leases: {named(old.undecodable)}")
    if not old.leases:
        return Refuse(
            because="configuration",
            message="the lease table holds no leases, so there is nothing to keep: start the workers with the new one",
        )
    if several := {lease.lease_key for lease in old.leases if lease.stream_name is not None}:
        return Refuse(
            because="configuration", message=f"the lease table holds multi-stream leases already: {named(several)}"
        )
    starts = {shard.shard_id: int(shard.starting_sequence_number) for shard in shards}
    if former := {lease.lease_key for lease in old.leases if _is_before(lease, starts.get(lease.lease_key))}:
        return Refuse(
            message="checkpoints lie before the beginning of their shards, so they are of a former stream of this "
            f"name: {named(former)}"
        )
    return None


def _is_before(lease: Lease, start: int | None) -> bool:
    checkpoint = lease.checkpoint
    if start is None or checkpoint is None or checkpoint.is_sentinel:
        return False
    return int(checkpoint.sequence_number) < start


def _problem_of_new(stream: StreamIdentifier, wanted: dict[str, Lease], new: LeaseListing) -> Refuse | None:
    if new.undecodable:
        return Refuse(message=f"rows of the new table are no valid leases: {named(new.undecodable)}")
    if single := {lease.lease_key for lease in new.leases if lease.stream_name is None}:
        return Refuse(message=f"the new table holds leases of a single-stream application: {named(single)}")
    ours = [lease for lease in new.leases if lease.stream_name == str(stream)]
    if others := {lease.lease_key for lease in ours if lease != wanted.get(lease.lease_key)}:
        return Refuse(
            message=f"the new table holds other leases of this stream than it should: {named(others)}. Either workers "
            "have used it since, and there is nothing to do; or the old table has changed since an earlier attempt: "
            "delete these rows, or the new table, and try again."
        )
    return None


def _note(lease: Lease, shard_ids: set[str]) -> str:
    if not lease.is_at_shard_end and lease.lease_key not in shard_ids:
        return "the shard is not in the stream any more"
    if lease.checkpoint is not None and lease.checkpoint.sequence_number == AT_TIMESTAMP:
        return "needs the same initialPositionInStreamExtended again"
    return ""
