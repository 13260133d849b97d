"""What is wrong with a fleet, and what is merely worth knowing (docs/status.md lists every kind).

Much that is wrong when it lasts is right for a moment: a lease without owner after its shard was split. So what may be
momentary counts when it was so in every look, or for `PATIENCE_S`. One look alone cannot know, and counts it: who wants
an exit code without false alarms looks twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.decisions.fleet_looks import FleetSnapshot, LeaseState, PartFailure, is_single_table
from kcl_host.decisions.fleet_report import MANY_SWITCHES, Finding, FleetView, LeaseView, WorkerView, seconds
from kcl_host.decisions.lease_audit import find_hole, lacks_hash_key_ranges
from kcl_host.decisions.metadata_format import (
    VERSION_2X,
    VERSION_3X,
    VERSION_3X_WITH_ROLLBACK,
    VERSION_UPGRADE_FROM_2X,
)
from kcl_host.decisions.table_migration import KNOWN_STATUSES, STATUS_COMPLETE
from kcl_host.model.lease import Lease

PATIENCE_S: Final = 30.0
"""So long a lease may be without owner, or a shard end without checkpoint, before it counts in any case."""
RETENTION_FRACTION: Final = 0.8
"""A lag above this part of the retention is about to lose records."""
_VERSIONS_2X: Final = (VERSION_2X, VERSION_UPGRADE_FROM_2X)


def diagnose(
    view: FleetView, snapshot: FleetSnapshot, settings: Settings, *, max_lag_s: float | None = None
) -> FleetView:
    """`view` with its findings, problems first. `max_lag_s`: a lag above it is a problem. Raises nothing."""
    found = [
        *_unread(view),
        *_tables(view, snapshot),
        *_leader(view, snapshot),
        *_workers(view, snapshot),
        *_leases(view, settings),
        *_coverage(snapshot, settings.streams[0].name),
        *_lags(view, snapshot, settings.streams[0].name, max_lag_s),
    ]
    return msgspec.structs.replace(view, findings=tuple(sorted(found, key=lambda f: f.severity != "problem")))


def _problem(kind: str, message: str, *, leases: Iterable[str] = (), workers: Iterable[str] = ()) -> Finding:
    return Finding(severity="problem", kind=kind, message=message, leases=tuple(leases), workers=tuple(workers))


def _notice(kind: str, message: str, *, leases: Iterable[str] = (), workers: Iterable[str] = ()) -> Finding:
    return Finding(severity="notice", kind=kind, message=message, leases=tuple(leases), workers=tuple(workers))


def _unread(view: FleetView) -> Iterator[Finding]:
    """One for each part: the first error stands for those of many shards."""
    by_part: dict[str, list[PartFailure]] = defaultdict(list)
    for failure in view.failures:
        by_part[failure.part].append(failure)
    for part, failures in by_part.items():
        subjects = [subject for failure in failures for subject in failure.subjects]
        about = f"{part} of {len(subjects):,}" if part == "lag" else part
        leases = subjects if part == "lag" else ()
        yield _problem("not_read", f"{about} could not be read: {failures[0].error}", leases=leases)


def _tables(view: FleetView, snapshot: FleetSnapshot) -> Iterator[Finding]:
    metadata = view.metadata
    if metadata.form == "none":
        yield _problem("no_lease_table", "there is no lease table: no worker of this application has ever started")
        return
    if not view.leases and not snapshot.has_failed("leases"):
        yield _problem("no_leases", "the lease table holds no lease: no leader has listed the shards yet")
    if broken := snapshot.listing.undecodable:
        yield _problem("broken_rows", "rows of the lease table that are no valid leases", leases=sorted(broken))
    if snapshot.table is not None and metadata.client_version not in _VERSIONS_2X:
        if metadata.index is None:
            yield _problem("index_missing", "without its index, Java workers never learn of the leases they are given")
        elif metadata.index not in ("ACTIVE", "UPDATING"):
            yield _notice("index_not_active", f"the index of the lease table is {metadata.index}")
    if _has_two_locks(snapshot):
        yield _problem(
            "split_brain",
            "a leader lock in the CoordinatorState table and another one in the lease table: two leaders are possible",
        )
    if metadata.client_version in (*_VERSIONS_2X, VERSION_3X_WITH_ROLLBACK):
        yield _notice("migration_from_2x", f"Migration3.0 says {metadata.client_version}")
    elif metadata.client_version not in (None, VERSION_3X):
        yield _problem("unknown_version", f"Migration3.0 says {metadata.client_version!r}, which nobody knows")
    status = metadata.table_migration
    if status is not None and status not in KNOWN_STATUSES:
        yield _problem("unknown_version", f"TableMigration3.5 says {status!r}, which nobody knows")
    elif status not in (None, STATUS_COMPLETE):
        yield _notice("table_migration", f"the move into one table is {_short(status)}: {metadata.migration_note}")


def _short(status: str | None) -> str:
    return (status or "").removeprefix("TABLE_MIGRATION_STATUS_")


def _has_two_locks(snapshot: FleetSnapshot) -> bool:
    """While the move is not complete nobody leads by the lease table; after it the old lock means nothing."""
    both = snapshot.lock is not None and snapshot.lock_in_lease_table is not None
    begun_elsewhere = snapshot.table_migration is not None and snapshot.lock_in_lease_table is not None
    return not is_single_table(snapshot) and (both or begun_elsewhere)


def _leader(view: FleetView, snapshot: FleetSnapshot) -> Iterator[Finding]:
    unknown = snapshot.has_failed("leader lock") or snapshot.has_failed("leader lock in the lease table")
    if view.metadata.form == "none" or view.metadata.client_version in _VERSIONS_2X or unknown:
        return
    leader = view.leader
    if leader is None or leader.is_released:
        yield _problem("no_leader", "nobody owns the leader lock: leases of dead workers are not given to others")
        return
    if leader.still_s > max(leader.lease_duration_ms / 1000, 1.0):
        message = f"the leader lock of {leader.worker_id} has not been renewed for {seconds(leader.still_s)}"
        yield _problem("leader_silent", message, workers=[leader.worker_id])
        return
    row = next((worker for worker in view.workers if worker.worker_id == leader.worker_id), None)
    judgeable = not snapshot.has_failed("worker metrics") and view.workers
    if judgeable and (row is None or row.standing in ("inactive", "no_report")):
        yield _problem(
            "leader_not_reporting",
            f"the leader, {leader.worker_id}, does not report its load",
            workers=[leader.worker_id],
        )


def _workers(view: FleetView, snapshot: FleetSnapshot) -> Iterator[Finding]:
    by_standing: dict[str, list[WorkerView]] = defaultdict(list)
    for worker in view.workers:
        by_standing[worker.standing].append(worker)
    if len(by_standing["no_report"]) < len(view.workers) and not snapshot.has_failed("worker metrics"):
        gone = [worker for worker in (*by_standing["inactive"], *by_standing["no_report"]) if worker.leases]
        if gone:
            yield _problem(
                "owner_not_reporting",
                f"owners of {sum(worker.leases for worker in gone):,} leases do not report their load",
                workers=_ids(gone),
            )
    if left_over := [worker for worker in by_standing["inactive"] if not worker.leases]:
        yield _notice("former_workers", "workers that are gone, without leases", workers=_ids(left_over))
    if by_standing["leaving"]:
        yield _notice("leaving", "workers that are stopping", workers=_ids(by_standing["leaving"]))
    if by_standing["failing"]:
        yield _notice("cannot_measure", "workers that fail to measure their load", workers=_ids(by_standing["failing"]))
    if by_standing["invalid"]:
        yield _problem(
            "invalid_report",
            "workers whose report contradicts itself get no leases",
            workers=_ids(by_standing["invalid"]),
        )
    if broken := (*snapshot.workers.undecodable, *snapshot.listing.workers.undecodable):
        yield _problem("broken_rows", "rows that are no valid worker metric stats", workers=sorted(broken))
    overloaded = [
        worker
        for worker in by_standing["active"]
        if any(metric.limit is not None and metric.average > metric.limit for metric in worker.metrics.values())
    ]
    if overloaded:
        yield _notice("overloaded", "workers above their operating range", workers=_ids(overloaded))


def _ids(workers: Iterable[WorkerView]) -> list[str]:
    return [worker.worker_id for worker in workers]


_MOMENTARY: Final[Mapping[LeaseState, tuple[str, str]]] = {
    "no_owner": ("no_owner", "leases without owner: nobody reads these shards"),
    "shard_end": (
        "shard_end_not_checkpointed",
        "shards read to their end, which the child process has not checkpointed",
    ),
}


def _leases(view: FleetView, settings: Settings) -> Iterator[Finding]:
    by_state: dict[LeaseState, list[LeaseView]] = defaultdict(list)
    for lease in view.leases:
        by_state[lease.state].append(lease)
    for state, (kind, message) in _MOMENTARY.items():
        stood = [lease for lease in by_state[state] if _has_stood(lease, view)]
        if stood:
            yield _problem(kind, message, leases=_keys(stood))
        if fresh := [lease for lease in by_state[state] if not _has_stood(lease, view)]:
            yield _notice(kind, f"{message} (only just)", leases=_keys(fresh))
    if silent := by_state["silent"]:
        longest = seconds(max(lease.counter_still_s for lease in silent))
        owners = sorted({lease.owner for lease in silent if lease.owner})
        message = f"leases that their owner does not renew; the longest for {longest}"
        yield _problem("owner_silent", message, leases=_keys(silent), workers=owners)
    if broken := by_state["no_checkpoint"]:
        yield _problem("no_checkpoint", "leases without any checkpoint in their row", leases=_keys(broken))
    limit_s = settings.lease.graceful_handoff_timeout_s + settings.lease.failover_s
    if overdue := [lease for lease in by_state["handover"] if lease.state_s > limit_s]:
        yield _problem("handover_overdue", f"handovers that take longer than {seconds(limit_s)}", leases=_keys(overdue))
    if under_way := [lease for lease in by_state["handover"] if lease.state_s <= limit_s]:
        yield _notice("handover", "handovers under way", leases=_keys(under_way))
    if waiting := by_state["waits_for_parent"]:
        yield _notice("waits_for_parent", "shards whose parents are not finished", leases=_keys(waiting))
    # A record processor may checkpoint seldom: no problem as such.
    if still := [lease for lease in by_state["reading"] if lease.lag_ms and lease.unchanged_s >= PATIENCE_S]:
        message = "leases that are renewed while their checkpoint stands and records wait: a child in BACKOFF, or busy?"
        yield _notice("no_progress", message, leases=_keys(still))
    keys = {lease.lease_key for lease in view.leases}
    lost = [lease for lease in by_state["ended"] if not _relatives(lease, lease.children) <= keys]
    if lost:
        yield _problem("child_without_lease", "finished shards with a child that nobody will read", leases=_keys(lost))
    # At SHARD_END the count stands for ever.
    restless = [lease for lease in view.leases if lease.state != "ended" and lease.owner_switches >= MANY_SWITCHES]
    if restless:
        message = f"leases that changed their owner {MANY_SWITCHES} times or more since their last checkpoint"
        yield _problem("many_owners", message, leases=_keys(restless))


def _has_stood(lease: LeaseView, view: FleetView) -> bool:
    return lease.state_s >= min(view.observed_s, PATIENCE_S)


def _relatives(lease: LeaseView, shard_ids: Iterable[str]) -> set[str]:
    prefix = lease.lease_key.removesuffix(lease.shard_id)
    return {prefix + shard_id for shard_id in shard_ids}


def _keys(leases: Iterable[LeaseView]) -> list[str]:
    return [lease.lease_key for lease in leases]


def _coverage(snapshot: FleetSnapshot, only_stream: str) -> Iterator[Finding]:
    """A hole for a moment is only an inconsistent read; the leader looks three times before it acts."""
    by_stream: dict[str, list[Lease]] = defaultdict(list)
    for lease in snapshot.listing.leases:
        by_stream[lease.stream_name or only_stream].append(lease)
    for stream, leases in sorted(by_stream.items()):
        if lacks_hash_key_ranges(leases):
            yield _notice(
                "hash_ranges_unknown", f"stream {stream}: leases without hash key range; holes cannot be seen"
            )
        elif (hole := find_hole(leases)) is not None:
            yield _problem("hash_range_hole", f"stream {stream}: no lease covers the hash keys {hole}")


def _lags(view: FleetView, snapshot: FleetSnapshot, only_stream: str, max_lag_s: float | None) -> Iterator[Finding]:
    if max_lag_s is not None:
        late = [lease for lease in view.leases if (lease.lag_ms or 0) > max_lag_s * 1000]
        if late:
            yield _problem("lag", f"leases more than {seconds(max_lag_s)} behind", leases=_keys(late))
    retention_s = {stream or only_stream: of for stream, of in snapshot.retention_s.items()}
    losing = [
        lease
        for lease in view.leases
        if (of := retention_s.get(lease.stream)) and (lease.lag_ms or 0) / 1000 > RETENTION_FRACTION * of
    ]
    if losing:
        message = f"leases behind by more than {RETENTION_FRACTION:.0%} of the retention: records are about to be lost"
        yield _problem("retention", message, leases=_keys(losing))
