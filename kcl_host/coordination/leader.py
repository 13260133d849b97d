"""What the leader does with its lead: the assignment of leases to workers (spec coordination 4).

A pass each leaseAssignmentIntervalMillis, and between two passes a watch over the heartbeats of the other workers,
which calls for a pass as soon as a lease has expired or lost its owner. After the crash of a worker its leases are
elsewhere failoverTimeMillis + 2 s later; after that of the leader, whose lock must be seen to stall first,
failoverTimeMillis + 6 s (at the default of 10 s; decisions/heartbeat_watch.py has the arithmetic).
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.coordination.election import Election
from kcl_host.coordination.lease_watch import LeaseWatch
from kcl_host.decisions.assignment import AssignmentPlan, Move, is_balancing_pass, plan_assignment
from kcl_host.decisions.renewal_watch import unproven_owners
from kcl_host.decisions.table_migration import summarise_fleet
from kcl_host.decisions.worker_activity import stale_workers
from kcl_host.decisions.worker_silence import note_silence
from kcl_host.errors import KclHostError, RetryLater
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import Lease, LeaseListing, WriteOutcome
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from kcl_host.ports import Clock, LeaseTable, WorkerReports

_log = logging.getLogger(__name__)

FAILURES_BEFORE_RELEASE: Final = 3
FOLLOWING_S: Final = 1.0
"""How often a follower looks whether it leads now; no request is made for that."""
EARLY_S: Final = 0.001
"""A turn that comes so much before its time was asked for."""
WRITES_AT_ONCE: Final = 10
"""Moves given to `for_each` together: a renewal, which may share its threads, never waits behind a whole plan."""

ForEach = Callable[[Callable[[Move], None], Iterable[Move]], None]
"""Calls a function for each move, in parallel or one after the other, and returns when all are done."""


def one_by_one(act: Callable[[Move], None], moves: Iterable[Move]) -> None:
    for move in moves:
        act(move)


class Assigner:
    """The leader's assignment pass: load, decide, write; and the watch between two passes.

    Leases are observed while this worker leads, and before it, from the moment at which the leader seems to be gone.
    """

    def __init__(
        self,
        election: Election,
        lease_table: LeaseTable,
        metrics_table: WorkerReports,
        worker_id: str,
        assignment: AssignmentSettings,
        leases: LeaseSettings,
        metrics: WorkerMetricsSettings,
        clock: Clock,
        rng: random.Random,
        on_assigned_to_self: Callable[[Lease, float], None],
        for_each: ForEach = one_by_one,
        on_listing: Callable[[Sequence[Lease]], object] = lambda leases: None,
        instruments: Instruments = NOTHING,
    ) -> None:
        self._election = election
        self._lease_table = lease_table
        self._metrics_table = metrics_table
        self._worker_id = worker_id
        self._assignment = assignment
        self._leases = leases
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._on_assigned_to_self = on_assigned_to_self
        self._for_each = for_each
        self._on_listing = on_listing
        self._instruments = instruments
        # A Java worker discovers a lease after half an interval, and renews it a third of the lease duration later.
        grace_s = max(0.0, assignment.interval_s - leases.failover_s)
        self._watch = LeaseWatch(lease_table, worker_id, leases, grace_s, clock)
        self._silent: dict[str, int | None] = {}
        """Workers taken for dead, with the last update of their rows then."""
        self._led_before = False
        self._seen: frozenset[str] = frozenset()
        """Workers that could take leases in the last pass; whoever else can now is a newcomer, after a restart too."""
        self._balance_due = False
        self._runs = 0
        self._failures = 0
        self._turn_s = self._regular_pass_s = -math.inf
        """When the next turn, and the next pass, are due."""
        self.active_workers: frozenset[str] = frozenset()
        """Workers whose metrics were fresh in the last pass; empty while this worker does not lead."""

    def run_once(self) -> float:
        """A pass or a look at the heartbeats, whatever is due; called before its time it makes a pass.

        Raises KclHostError other than RetryLater, which does not pass by itself.
        """
        if not self._election.is_leader():
            return self._follow()
        now_s = self._clock.monotonic()
        if not self._led_before:
            self._led_before, self._runs, self._failures, self._regular_pass_s = True, 0, 0, -math.inf
            self._seen = frozenset()
        if not self._election.may_write():
            return FOLLOWING_S
        try:
            is_asked_for = now_s < self._turn_s - EARLY_S
            if not is_asked_for and not self._is_pass_due():
                self._watch.look()
            if is_asked_for or self._is_pass_due():
                with self._instruments.assigning():
                    self._pass()
                self._failures = 0
            pause_s = self._pause_s()
        except KclHostError as error:
            self._failures += 1
            _log.warning(
                "assignment pass failed",
                extra={"action": "assignment_failed", "failures": self._failures, "error": str(error)},
            )
            self._regular_pass_s = -math.inf
            if self._failures >= FAILURES_BEFORE_RELEASE:
                self._instruments.lead_given_up()
                self._election.release(pause_s=self._assignment.interval_s)
            if not isinstance(error, RetryLater):
                raise
            pause_s = min(self._assignment.interval_s, 2.0 * self._failures)
        self._turn_s = self._clock.monotonic() + pause_s
        return pause_s

    def _is_pass_due(self) -> bool:
        return self._clock.monotonic() >= min(self._regular_pass_s, self._watch.pass_due_s)

    def _pause_s(self) -> float:
        if not self._election.may_write():
            return FOLLOWING_S
        due_s = min(self._regular_pass_s, self._watch.pass_due_s, self._watch.next_look_s())
        return max(0.0, due_s - self._clock.monotonic())

    def _follow(self) -> float:
        if self._led_before:
            self._instruments.fleet_seen({}, unclaimed=0)
        self._instruments.assignment_skipped(self._assignment.interval_s)
        self._led_before, self.active_workers = False, frozenset()
        if not self._election.lock_is_stalled():
            self._watch.forget()
            self._silent = {}
            return FOLLOWING_S
        self._watch.scan()
        return self._watch.interval_s

    def doubtful_workers(self) -> frozenset[str]:
        """Workers that this leader would not hand a lease over to; empty for a follower, who has not watched them."""
        unproven = unproven_owners(self._watch.tracked, self._watch.proven) if self._led_before else frozenset()
        return (unproven | self._silent.keys() | self._watch.suspects) - {self._worker_id}

    def _pass(self) -> None:
        # What a read shows may be as old as its request: a lease has stood still until then, not until now.
        read_s = self._clock.monotonic()
        with self._instruments.loading_leases():
            listing = self._watch.scan_for_pass(read_s)
            found = self._metrics_table.list_workers(listing)
        workers = found.workers
        self._on_listing(listing.leases)
        if listing.undecodable or found.undecodable:
            _log.error(
                "rows that are no valid leases, or no valid worker metric stats",
                extra={
                    "action": "undecodable_rows",
                    "lease_keys": list(listing.undecodable),
                    "worker_ids": list(found.undecodable),
                },
            )
        wall_s = self._clock.wall()
        self._silent = note_silence(
            self._silent, self._watch.tracked, workers, read_s, self._leases, self._worker_id, self._watch.untaken
        )
        self._watch.end_grace(self._silent)
        self._balance_due = self._balance_due or is_balancing_pass(self._runs, self._assignment)
        unproven = unproven_owners(self._watch.tracked, self._watch.proven | {self._worker_id})
        balance = self._balance_due and not unproven
        no_targets = self._watch.suspects | self._silent.keys()
        with self._instruments.planning(balance=balance):
            plan = plan_assignment(
                self._watch.tracked,
                [worker for worker in workers if worker.worker_id not in no_targets],
                assignment=self._assignment,
                leases=self._leases,
                metrics=self._metrics,
                now_s=read_s,
                wall_s=wall_s,
                balance=balance,
                rng=self._rng,
                newcomers=frozenset() if unproven else {worker.worker_id for worker in workers} - self._seen,
            )
        self._tell(plan, listing, found, balance=balance)
        if not unproven:
            self._seen = frozenset(plan.active_workers)
        self._balance_due = self._balance_due and not balance
        self._runs += 1
        # One that leaves still gives leases away, and one that fails to measure itself still holds some.
        present = {*plan.active_workers, *plan.leaving_workers, *plan.failing_workers, *self._watch.suspects}
        self.active_workers = frozenset(present - self._silent.keys())
        with self._instruments.writing_assignments() as written:
            written.success = self._write(plan.moves)
        if not written.success:
            return
        self._watch.settle(read_s)
        self._delete_stale(workers, wall_s)
        self._regular_pass_s = self._clock.monotonic() + self._assignment.interval_s

    def _tell(self, plan: AssignmentPlan, listing: LeaseListing, found: WorkerListing, *, balance: bool) -> None:
        fleet = summarise_fleet(listing.leases, {"legacy": found}, self._clock.wall(), self._metrics)
        self._instruments.planned(
            total=plan.total_leases,
            workers=len(plan.active_workers),
            expired=plan.expired_leases,
            spillover=plan.spillover,
            rebalanced=plan.rebalanced_leases if balance else None,
            failing_workers=len(plan.failing_workers),
            invalid_workers=len(plan.invalid_workers),
            undecodable=len(listing.undecodable),
            support_code=fleet.support_code,
        )
        owners = Counter(lease.actual_owner for lease in listing.leases)
        unclaimed = owners.pop(None, 0)
        self._instruments.fleet_seen({str(owner): count for owner, count in owners.items()}, unclaimed)

    def _write(self, moves: Sequence[Move]) -> bool:
        """Writes what the lock allows, False when that is not all; raises the last error when all have been tried."""
        # Filled by the threads of `for_each`, taken when they are done.
        written: list[tuple[Lease, float]] = []
        refused: list[Lease] = []
        errors: list[KclHostError] = []
        left_out: list[Move] = []

        def write(move: Move) -> None:
            # To be asked before every single write: the one before may have taken its time.
            if not self._election.may_write():
                left_out.append(move)
                return
            try:
                outcome = self._apply(move)
            except KclHostError as error:
                errors.append(error)
                return
            if outcome.row is not None and outcome.applied:
                written.append((outcome.row, self._clock.monotonic()))
            elif outcome.row is not None:
                refused.append(outcome.row)

        for first in range(0, len(moves), WRITES_AT_ONCE):
            self._for_each(write, moves[first : first + WRITES_AT_ONCE])
        self._watch.note_written(written)
        self._watch.note(refused)
        self._instruments.assignments_written(failed=len(refused) + len(errors) + len(left_out))
        if left_out:
            _log.warning(
                "the lock is too old, plan abandoned",
                extra={"action": "assignment_abandoned", "moves_left_out": len(left_out)},
            )
        if errors:
            raise errors[-1]
        return not left_out

    def _apply(self, move: Move) -> WriteOutcome:
        """Called by the threads of `for_each`; changes nothing of this object."""
        read_at_s = self._clock.monotonic()
        if move.kind == "handoff":
            outcome = self._lease_table.initiate_handoff(move.lease, move.to)
        else:
            outcome = self._lease_table.assign(move.lease, move.to)
        _log.info(
            "lease assigned" if outcome.applied else "lease not assigned, the row has changed",
            extra={
                "action": "lease_assigned" if outcome.applied else "assignment_refused",
                "lease_key": move.lease.lease_key,
                "kind": move.kind,
                "from": move.lease.actual_owner,
                "to": move.to,
                "reason": move.reason,
            },
        )
        if outcome.applied and outcome.row is not None and move.kind == "assign" and move.to == self._worker_id:
            self._on_assigned_to_self(outcome.row, read_at_s)
        return outcome

    def _delete_stale(self, workers: Sequence[WorkerMetricStats], wall_s: float) -> None:
        for worker in stale_workers(workers, wall_s, self._metrics):
            if not self._election.may_write():
                return
            try:
                self._metrics_table.delete_if_unchanged(worker)
            except RetryLater as error:
                _log.debug("stale worker not deleted", extra={"action": "stale_worker_kept", "error": str(error)})
