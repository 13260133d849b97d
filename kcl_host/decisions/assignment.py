"""Lease assignment: what the leader does about leases in one pass.

Two phases. First every lease that nobody renews, or that nobody owns, goes to the active worker with most capacity, and
handovers that are overdue are completed. Then, each third pass, loaded workers give leases away (balance.py). Leases of
live workers are moved by a graceful handover (handover.py). A plan names each write with its reason; the caller applies
it, and what does not apply is reconsidered in the next pass.

Where we differ from Java in the first phase: equals are served in turn (Java gives everything to two of them), and an
overdue handover goes to the owner it was meant for; Java leaves it with the old one until balancing happens to choose
that lease again.

Source: KCL 3.5.1 LeaseAssignmentManager, VarianceBasedLeaseAssignmentDecider, LeaseCountBasedLeaseAssignmentDecider;
spec coordination 4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.decisions.balance import balance_by_lease_count, balance_by_variance, share_with_newcomers
from kcl_host.decisions.fleet import Fleet
from kcl_host.decisions.handover import (
    blocked_on_pending_checkpoint,
    is_expired_or_unassigned,
    is_handover_overdue,
    write_kind,
)
from kcl_host.decisions.lease_age import Tracked, applied, is_expired, track
from kcl_host.decisions.rng import Rng
from kcl_host.decisions.worker_activity import judge_workers
from kcl_host.model.lease import Lease
from kcl_host.model.worker import WorkerMetricStats

__all__ = [
    "AssignmentPlan",
    "Move",
    "Tracked",
    "applied",
    "blocked_on_pending_checkpoint",
    "is_balancing_pass",
    "is_expired",
    "plan_assignment",
    "plan_departure",
    "track",
]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One conditional write: `assign` takes effect at once, `handoff` asks the owner to hand over.

    `lease` is as read; the write's condition is on its two owners. `reason` is "unassigned", "expired",
    "handover overdue", "leaving", "balance:" with the name of the metric, or "balance:leases".
    """

    lease: Lease
    to: str
    kind: Literal["assign", "handoff"]
    reason: str


class AssignmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The writes of one pass, ordered by lease key, and what the pass has seen (spec coordination 4.9).

    `active_workers` are the possible targets; the other tuples of worker ids are those ruled out, by cause.
    """

    moves: tuple[Move, ...]
    active_workers: tuple[str, ...]
    invalid_workers: tuple[str, ...] = ()
    inactive_workers: tuple[str, ...] = ()
    leaving_workers: tuple[str, ...] = ()
    failing_workers: tuple[str, ...] = ()
    total_leases: int = 0
    expired_leases: int = 0
    """Leases that are expired or unassigned (metric ExpiredLeases)."""
    spillover: int = 0
    """Those of them that no worker can take (metric LeaseSpillover)."""
    rebalanced_leases: int = 0
    """Leases that balancing moves (metric NumOfLeasesReassignment)."""


def is_balancing_pass(passes_as_leader: int, settings: AssignmentSettings) -> bool:
    """True for the first pass after becoming leader (0) and every varianceBalancingFrequency-th after it."""
    return passes_as_leader % max(1, settings.variance_balancing_frequency) == 0


def plan_assignment(
    tracked: Mapping[str, Tracked],
    workers: Sequence[WorkerMetricStats],
    *,
    assignment: AssignmentSettings,
    leases: LeaseSettings,
    metrics: WorkerMetricsSettings,
    now_s: float,
    wall_s: float,
    balance: bool,
    rng: Rng,
    newcomers: Collection[str] = (),
) -> AssignmentPlan:
    """The moves of one pass over all leases and worker rows, as read. Raises nothing.

    `now_s` is the monotonic time of the scan, `wall_s` epoch seconds, `balance` whether loads are evened out too.
    `newcomers` are workers that this leader has not seen before; those without leases get their share.
    """
    activity = judge_workers(workers, wall_s, metrics)
    fleet = Fleet(tracked, activity.active, assignment, leases, now_s)
    candidates = [t for _, t in sorted(tracked.items()) if is_expired_or_unassigned(t, now_s, leases)]
    candidates.sort(key=lambda t: (t.last_counter_increment_s, t.lease.lease_key))
    placed = _place(fleet, [(t, "unassigned" if t.lease.actual_owner is None else "expired") for t in candidates])
    _complete(fleet, [t for _, t in sorted(tracked.items()) if is_handover_overdue(t, now_s, leases)])
    before = dict(fleet.moves)
    ended = {key for key, t in tracked.items() if t.lease.is_at_shard_end} if newcomers else set()
    share_with_newcomers(fleet, newcomers, ended, assignment)
    if fleet.moves != before:
        balance = False  # Loads are judged again when the newcomers have shown what they make of their share.
    if balance and assignment.strategy == "LEASE_COUNT_BASED":
        balance_by_lease_count(fleet, leases.max_leases_for_worker)
    elif balance:
        balance_by_variance(fleet, assignment, leases.max_leases_for_worker, rng)
    return AssignmentPlan(
        moves=_moves(fleet, tracked, leases, now_s),
        active_workers=tuple(s.worker_id for s in activity.active),
        invalid_workers=activity.invalid,
        inactive_workers=activity.inactive,
        leaving_workers=activity.leaving,
        failing_workers=activity.failing,
        total_leases=len(tracked),
        expired_leases=len(candidates),
        spillover=len(candidates) - placed,
        rebalanced_leases=sum(key not in before for key in fleet.moves),
    )


def plan_departure(
    worker_id: str,
    tracked: Mapping[str, Tracked],
    workers: Sequence[WorkerMetricStats],
    *,
    assignment: AssignmentSettings,
    leases: LeaseSettings,
    metrics: WorkerMetricsSettings,
    now_s: float,
    wall_s: float,
    doubtful: Collection[str] = (),
) -> tuple[Move, ...]:
    """Where the leases of a worker that stops should go, by the rule of the first phase (DESIGN.md 4.2).

    Leases with a pending handover are left out: their next owner is named already. So are those that nobody can take.
    `doubtful` workers are no targets either: a lease without a target is released, which costs less than one that is
    given to the dead.
    """
    activity = judge_workers([s for s in workers if s.worker_id not in {worker_id, *doubtful}], wall_s, metrics)
    fleet = Fleet(tracked, activity.active, assignment, leases, now_s)
    own = [
        t for _, t in sorted(tracked.items()) if t.lease.actual_owner == worker_id and not t.lease.is_handover_pending
    ]
    _place(fleet, [(t, "leaving") for t in own])
    return _moves(fleet, tracked, leases, now_s)


def _place(fleet: Fleet, candidates: Sequence[tuple[Tracked, str]]) -> int:
    """Gives each candidate to the worker with most capacity, in order; returns how many found one.

    A lease that would go back to the worker that holds it is left alone: that worker renews it, or discovers it again.
    """
    for done, (tracked, reason) in enumerate(candidates):
        lease = tracked.lease
        worker = fleet.best()
        if worker is None:
            return done
        if lease.actual_owner != worker.worker_id or lease.is_handover_pending:
            fleet.place(lease.lease_key, worker, reason)
        fleet.put_back(worker)
    return len(candidates)


def _complete(fleet: Fleet, overdue: Sequence[Tracked]) -> None:
    """Gives each lease to its named next owner or, if that one is gone or full, to the worker with most capacity."""
    for tracked in overdue:
        named = fleet.workers.get(tracked.lease.lease_owner or "")
        worker = named if named and fleet.has_room(named.load_kbps, named.lease_count) else fleet.best()
        if worker is None:
            continue
        fleet.place(tracked.lease.lease_key, worker, "handover overdue")
        fleet.put_back(worker)


def _moves(fleet: Fleet, tracked: Mapping[str, Tracked], leases: LeaseSettings, now_s: float) -> tuple[Move, ...]:
    moves = []
    for key, (to, reason) in sorted(fleet.moves.items()):
        lease = tracked[key].lease
        kind = write_kind(tracked[key], now_s, leases)
        expired = is_expired_or_unassigned(tracked[key], now_s, leases)
        came_back = to == lease.lease_owner and not expired and not lease.is_handover_pending
        if kind is not None and not came_back:
            moves.append(Move(lease=lease, to=to, kind=kind, reason=reason))
    return tuple(moves)
