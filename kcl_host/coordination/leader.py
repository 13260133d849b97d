"""Leadership: the lock, and what the leader does with it (spec coordination 2 and 4)."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from kcl_host.config.settings import AssignmentSettings, LeaseSettings, LockSettings, WorkerMetricsSettings
from kcl_host.decisions.assignment import Move, Tracked, applied, is_balancing_pass, plan_assignment, track
from kcl_host.decisions.election import HeldLock, LockObservation, Wait, is_ours, judge_lock
from kcl_host.decisions.worker_activity import stale_workers
from kcl_host.errors import RetryLater
from kcl_host.model.lease import Lease
from kcl_host.model.state import LeaderLock
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, CoordinatorTable, LeaseTable, WorkerMetricsTable

_log = logging.getLogger(__name__)

FAILURES_BEFORE_RELEASE = 3


class Election:
    """Holds the leader lock or competes for it; one turn per heartbeat.

    `_lock` guards everything below it. The table call is made under it: two turns at once would refute each other.
    The age of the lock is taken before each request, so that we stop to believe in it before anybody else does.
    """

    def __init__(
        self,
        table: CoordinatorTable,
        worker_id: str,
        settings: LockSettings,
        clock: Clock,
        new_version: Callable[[], str],
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._new_version = new_version
        self._lock = threading.Lock()
        self._held: HeldLock | None = None
        self._seen: LockObservation | None = None
        self._attempts: dict[str, float] = {}
        """Versions we tried to write since the last certain write, with the monotonic time before each try."""
        self._paused_until_s = 0.0

    def __repr__(self) -> str:
        return f"<Election {self._worker_id} {'leads' if self.is_leader() else 'follows'}>"

    def is_leader(self) -> bool:
        """True while our lock is certainly still ours; to be asked before every write that only a leader may make."""
        held = self._held
        return held is not None and held.is_valid(self._clock.monotonic())

    def run_once(self) -> float:
        with self._lock:
            if self._held is not None:
                self._heartbeat(self._held)
            elif self._clock.monotonic() >= self._paused_until_s:
                self._compete()
        return self._settings.heartbeat_s

    def release(self, pause_s: float = 0.0) -> None:
        """Deletes the lock item if it is ours, and stays out of the election for `pause_s`."""
        with self._lock:
            held, self._held = self._held, None
            self._paused_until_s = self._clock.monotonic() + pause_s
            if held is None:
                return
            try:
                self._table.release_lock(self._item(held.record_version_number))
                _log.info("leader lock released", extra={"action": "leader_released"})
            except RetryLater as error:
                _log.warning(
                    "leader lock not released, it will expire",
                    extra={"action": "leader_release_failed", "error": str(error)},
                )

    def _item(self, version: str) -> LeaderLock:
        return LeaderLock(
            owner_name=self._worker_id,
            lease_duration_ms=round(self._settings.lease_duration_s * 1000),
            record_version_number=version,
        )

    def _heartbeat(self, held: HeldLock) -> None:
        version, before_s = self._new_version(), self._clock.monotonic()
        if not held.is_valid(before_s):
            self._lose("not renewed in time")
            return
        self._attempts[version] = before_s
        try:
            if self._table.heartbeat_lock(self._item(version), held.record_version_number):
                self._hold(version)
            elif not self._adopt(self._table.read_lock()):
                self._lose("taken by another worker")
        except RetryLater as error:
            _log.warning("leader heartbeat failed", extra={"action": "leader_heartbeat_failed", "error": str(error)})

    def _compete(self) -> None:
        found = self._table.read_lock()
        if self._adopt(found):
            return
        verdict = judge_lock(found, self._seen, self._clock.monotonic(), self._worker_id)
        if isinstance(verdict, Wait):
            self._seen = verdict.observation
            return
        version = self._new_version()
        self._attempts[version] = self._clock.monotonic()
        if self._table.acquire_lock(self._item(version), verdict.over):
            self._hold(version)
        else:
            self._adopt(self._table.read_lock())

    def _adopt(self, found: LeaderLock | None) -> bool:
        """Takes the lock for ours when it carries a version of an attempt whose answer was lost."""
        if found is None or not any(is_ours(found, self._worker_id, version) for version in self._attempts):
            return False
        self._hold(found.record_version_number)
        return True

    def _hold(self, version: str) -> None:
        if self._held is None:
            _log.info("this worker leads", extra={"action": "leader_acquired"})
        self._held = HeldLock(
            record_version_number=version,
            duration_s=self._settings.lease_duration_s,
            taken_at_s=self._attempts[version],
        )
        self._attempts.clear()
        self._seen = None

    def _lose(self, reason: str) -> None:
        self._held = None
        self._attempts.clear()
        _log.warning("leader lock lost", extra={"action": "leader_lost", "reason": reason})


class Assigner:
    """The leader's assignment pass: load, decide, write.

    Observations of lease counters live only as long as this worker leads without a break (spec coordination 4.4).
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
        self._led_before = False
        self._runs = 0
        self._failures = 0
        self.active_workers: frozenset[str] = frozenset()
        """Workers whose metrics were fresh in the last pass; empty while this worker does not lead."""

    def run_once(self) -> float:
        if not self._election.is_leader():
            self._led_before, self._tracked, self.active_workers = False, {}, frozenset()
            return min(self._assignment.interval_s, 1.0)
        if not self._led_before:
            self._led_before, self._tracked, self._runs, self._failures = True, {}, 0, 0
        try:
            self._pass()
            self._failures = 0
        except RetryLater as error:
            self._failures += 1
            _log.warning(
                "assignment pass failed",
                extra={"action": "assignment_failed", "failures": self._failures, "error": str(error)},
            )
            if self._failures >= FAILURES_BEFORE_RELEASE:
                self._election.release(pause_s=self._assignment.interval_s)
            return min(self._assignment.interval_s, 2.0 * self._failures)
        return self._assignment.interval_s

    def _pass(self) -> None:
        listing = self._lease_table.list_leases()
        if listing.undecodable:
            _log.error(
                "rows that are no valid leases",
                extra={"action": "undecodable_leases", "lease_keys": list(listing.undecodable)},
            )
        workers, _ = self._metrics_table.list_workers()
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        self._tracked = track(self._tracked, listing.leases, now_s, self._leases)
        plan = plan_assignment(
            self._tracked,
            workers,
            assignment=self._assignment,
            leases=self._leases,
            metrics=self._metrics,
            now_s=now_s,
            wall_s=wall_s,
            balance=is_balancing_pass(self._runs, self._assignment),
            rng=self._rng,
        )
        self._runs += 1
        self.active_workers = frozenset(plan.active_workers)
        for move in plan.moves:
            if not self._election.is_leader():
                _log.warning("no longer leading, plan abandoned", extra={"action": "assignment_abandoned"})
                return
            self._apply(move)
        self._delete_stale(workers, wall_s)

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
            key = move.lease.lease_key
            self._tracked[key] = applied(self._tracked[key], outcome.row, self._clock.monotonic(), self._leases)
            if move.kind == "assign" and move.to == self._worker_id:
                self._on_assigned_to_self(outcome.row, read_at_s)

    def _delete_stale(self, workers: list[WorkerMetricStats], wall_s: float) -> None:
        for worker in stale_workers(workers, wall_s, self._metrics):
            self._metrics_table.delete_if_unchanged(worker)
