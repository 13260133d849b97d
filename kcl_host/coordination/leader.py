"""What the leader does with its lead: the assignment of leases to workers (spec coordination 4)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, WorkerMetricsSettings
from kcl_host.coordination.election import Election
from kcl_host.decisions.assignment import Move, Tracked, applied, is_balancing_pass, plan_assignment, track
from kcl_host.decisions.renewal_watch import renewing_workers, unproven_owners
from kcl_host.decisions.worker_activity import stale_workers
from kcl_host.decisions.worker_silence import note_silence
from kcl_host.errors import KclHostError, RetryLater
from kcl_host.model.lease import Lease
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, LeaseTable, WorkerMetricsTable

_log = logging.getLogger(__name__)

FAILURES_BEFORE_RELEASE: Final = 3
FOLLOWING_S: Final = 1.0
"""How often a follower looks whether it leads now; no request is made for that."""
OBSERVING_S: Final = 2.0
"""How often a follower scans the leases while the leader seems to be gone."""
JUST_AFTER_S: Final = 0.05
"""Expiry is strictly later than failoverTimeMillis; the pass that waits for it comes so much later."""


class Assigner:
    """The leader's assignment pass: load, decide, write.

    Observations of lease counters live only as long as they are made without a break (spec coordination 4.4): while
    this worker leads, and before it, from the moment at which the leader seems to be gone.
    """

    def __init__(
        self,
        election: Election,
        lease_table: LeaseTable,
        metrics_table: WorkerMetricsTable,
        worker_id: str,
        assignment: AssignmentSettings,
        leases: LeaseSettings,
        metrics: WorkerMetricsSettings,
        clock: Clock,
        rng: random.Random,
        on_assigned_to_self: Callable[[Lease, float], None],
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
        self._tracked: dict[str, Tracked] = {}
        self._silent: dict[str, int | None] = {}
        """Workers taken for dead, with the last update of their rows then."""
        self._proven: frozenset[str] = frozenset()
        """Workers seen to renew a lease since observation began."""
        self._led_before = False
        self._balance_due = False
        self._runs = 0
        self._failures = 0
        self.active_workers: frozenset[str] = frozenset()
        """Workers whose metrics were fresh in the last pass; empty while this worker does not lead."""

    def run_once(self) -> float:
        """Raises KclHostError other than RetryLater, which does not pass by itself."""
        if not self._election.is_leader():
            return self._follow()
        if not self._led_before:
            self._led_before, self._runs, self._failures = True, 0, 0
        try:
            pause_s = self._pass()
            self._failures = 0
            return pause_s
        except KclHostError as error:
            self._failures += 1
            _log.warning(
                "assignment pass failed",
                extra={"action": "assignment_failed", "failures": self._failures, "error": str(error)},
            )
            if self._failures >= FAILURES_BEFORE_RELEASE:
                self._election.release(pause_s=self._assignment.interval_s)
            if not isinstance(error, RetryLater):
                raise
            return min(self._assignment.interval_s, 2.0 * self._failures)

    def _follow(self) -> float:
        self._led_before, self.active_workers = False, frozenset()
        if not self._election.lock_is_stalled():
            self._tracked, self._proven, self._silent = {}, frozenset(), {}
            return FOLLOWING_S
        self._observe(self._lease_table.list_leases().leases, self._clock.monotonic())
        return OBSERVING_S

    def _observe(self, leases: Sequence[Lease], now_s: float) -> None:
        before, self._tracked = self._tracked, track(self._tracked, leases, now_s, self._leases)
        self._proven |= renewing_workers(before, self._tracked)

    def doubtful_workers(self) -> frozenset[str]:
        """Workers that this leader would not hand a lease over to; empty for a follower, who has not watched them."""
        unproven = unproven_owners(self._tracked, self._proven) if self._led_before else frozenset()
        return (unproven | self._silent.keys()) - {self._worker_id}

    def _pass(self) -> float:
        listing = self._lease_table.list_leases()
        workers, undecodable = self._metrics_table.list_workers()
        if listing.undecodable or undecodable:
            _log.error(
                "rows that are no valid leases, or no valid worker metric stats",
                extra={
                    "action": "undecodable_rows",
                    "lease_keys": list(listing.undecodable),
                    "worker_ids": list(undecodable),
                },
            )
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        before = self._tracked
        self._observe(listing.leases, now_s)
        self._silent = note_silence(self._silent, self._tracked, workers, now_s, self._leases, self._worker_id)
        self._balance_due = self._balance_due or is_balancing_pass(self._runs, self._assignment)
        balance = self._balance_due and not unproven_owners(self._tracked, self._proven | {self._worker_id})
        plan = plan_assignment(
            self._tracked,
            [worker for worker in workers if worker.worker_id not in self._silent],
            assignment=self._assignment,
            leases=self._leases,
            metrics=self._metrics,
            now_s=now_s,
            wall_s=wall_s,
            balance=balance,
            rng=self._rng,
        )
        self._balance_due = self._balance_due and not balance
        self._runs += 1
        self.active_workers = frozenset(plan.active_workers)
        pause_s = self._pause_s(before, now_s)
        failure: KclHostError | None = None
        for move in plan.moves:
            # To be asked before every single write: the one before may have taken its time.
            if not self._election.is_leader():
                _log.warning("no longer leading, plan abandoned", extra={"action": "assignment_abandoned"})
                return FOLLOWING_S
            try:
                self._apply(move)
            except KclHostError as error:
                failure = error
        if failure is not None:
            raise failure
        self._delete_stale(workers, wall_s)
        return pause_s

    def _pause_s(self, before: Mapping[str, Tracked], now_s: float) -> float:
        """The interval, or less: until somebody else's lease that nobody has been seen to renew would expire."""
        expire_s = [
            t.last_counter_increment_s + self._leases.failover_s + JUST_AFTER_S
            for key, t in self._tracked.items()
            if t.lease.actual_owner not in (None, self._worker_id)
            and (key not in before or t.last_counter_increment_s == before[key].last_counter_increment_s)
        ]
        return min([self._assignment.interval_s, *(at_s - now_s for at_s in expire_s if at_s > now_s)])

    def _apply(self, move: Move) -> None:
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
        if outcome.applied and outcome.row is not None:
            key, since_s = move.lease.lease_key, self._clock.monotonic()
            if move.kind == "assign":
                # A Java worker discovers it after half an interval, and renews it a third of the lease duration later.
                since_s += max(0.0, self._assignment.interval_s - self._leases.failover_s)
            self._tracked[key] = applied(self._tracked[key], outcome.row, since_s, self._leases)
            if move.kind == "assign" and move.to == self._worker_id:
                self._on_assigned_to_self(outcome.row, read_at_s)

    def _delete_stale(self, workers: list[WorkerMetricStats], wall_s: float) -> None:
        for worker in stale_workers(workers, wall_s, self._metrics):
            try:
                self._metrics_table.delete_if_unchanged(worker)
            except RetryLater as error:
                _log.debug("stale worker not deleted", extra={"action": "stale_worker_kept", "error": str(error)})
