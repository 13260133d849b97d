"""Sets the positions of shards while the fleet runs: fetch, decide (decisions/replay.py), apply.

The replayer behaves as a worker that leases are handed over to: it has an id, renews what it holds, and a row of metric
stats, without which a kcl-host worker would take it for one that has gone and hand over to somebody else. The row says
that its last measurement failed, so no leader gives it leases, Java's neither (spec coordination 3.4).

Nothing of its progress is kept but in the rows: each turn reads them and asks what is to be sent next. A replayer that
is killed leaves leases that expire as those of any worker; another one begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from kcl_host.config.settings import LeaseSettings, Settings
from kcl_host.coordination.metadata_tables import MetadataTables, WorkerMetrics
from kcl_host.coordination.replay_position import insist
from kcl_host.coordination.replay_preview import ReplayPreview, format_found
from kcl_host.decisions.handover import is_expired_or_unassigned
from kcl_host.decisions.lease_age import Tracked, track
from kcl_host.decisions.replay import LeaseChange
from kcl_host.decisions.replay_step import LeaseWrite, plan_step
from kcl_host.errors import KclHostError, MetadataConflict, RetryLater, TableMissing
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END
from kcl_host.model.worker import WorkerMetricStats
from kcl_host.ports import Clock, LeaseTable, Threads

_log = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""Between two looks at the rows: nothing tells us of the end of a handover but the row."""
AT_ONCE: Final = 200
"""Leases on their way at a time, unless a group is larger; each has to be renewed thrice in failoverTimeMillis."""
STUCK_S: Final = 120.0
"""Beyond the time that a handover may take at most: nothing at all has taken effect for so long."""
Progress = Callable[[int, int, str], None]
"""(leases done, of how many, what is being waited for or was just done)."""


class ReplayOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Leases by how their owners lost them; those of neither kind had no living owner."""

    handed_over: tuple[str, ...]
    taken: tuple[str, ...]
    """From an owner that still renewed them, as far as could be seen."""


@dataclass
class _Group:
    changes: tuple[LeaseChange, ...]
    is_written: bool = False
    is_done: bool = False


class Replay:
    """Carries out what a ReplayPlanner has planned. For one thread; `threads` serve it.

    `replayer_id` is owner of the leases meanwhile, and must be nobody else's.
    """

    def __init__(
        self,
        lease_table: LeaseTable,
        tables: MetadataTables,
        settings: Settings,
        clock: Clock,
        threads: Threads,
        replayer_id: str,
    ) -> None:
        self._table = lease_table
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._id = replayer_id
        self._tracked: dict[str, Tracked] = {}
        self._row: WorkerMetricStats | None = None
        # Filled by the threads of `for_each`, read when they are done.
        self._asked: set[str] = set()
        self._taken: set[str] = set()
        self._has_moved = False
        self._failure: RetryLater | None = None
        self._fatal: list[KclHostError] = []

    def __repr__(self) -> str:
        return f"<Replay {self._id}>"

    def apply(self, preview: ReplayPreview, progress: Progress) -> ReplayOutcome:
        """Returns when every lease of `preview` has been set and given up. Raises MetadataConflict when one resists."""
        waiting = [_Group(group) for group in preview.groups]
        active: list[_Group] = []
        total, done = len(preview.changes), 0
        settings = msgspec.structs.replace(self._settings.lease, graceful_handoff=preview.asks_owners)
        limit_s = settings.graceful_handoff_timeout_s + 2 * settings.failover_s + STUCK_S
        moved_s = self._clock.monotonic()
        while waiting or active:
            self._report()
            while waiting and (not active or _size(active) + len(waiting[0].changes) <= AT_ONCE):
                active.append(waiting.pop(0))
            self._has_moved = False
            if self._look(active):
                self._threads.for_each(lambda group: self._advance(group, settings), active)
            if self._fatal:
                raise self._fatal[0]
            done += _size(group for group in active if group.is_done)
            active = [group for group in active if not group.is_done]
            progress(done, total, self._waited_for(active))
            if self._has_moved:
                moved_s = self._clock.monotonic()
            elif self._clock.monotonic() - moved_s > limit_s:
                raise self._failure or MetadataConflict(f"nothing moves any more: {self._waited_for(active)}")
            if active and not self._has_moved:
                self._sleep(POLL_S)
        self._withdraw()
        self._require_all(preview)
        return ReplayOutcome(handed_over=tuple(sorted(self._asked)), taken=tuple(sorted(self._taken)))

    def _look(self, groups: Iterable[_Group]) -> bool:
        keys = [change.lease_key for group in groups for change in group.changes]
        now_s = self._clock.monotonic()
        try:
            rows = self._table.get_all(keys, consistent=True)
        except RetryLater as error:
            self._failure = error
            return False
        self._tracked = track(self._tracked, rows, now_s, self._settings.lease)
        self._failure = None
        return True

    def _advance(self, group: _Group, settings: LeaseSettings) -> None:
        now_s = self._clock.monotonic()
        step = plan_step(group.changes, self._tracked, self._id, now_s, settings, written=group.is_written)
        group.is_written = step.phase == "releasing"
        if step.phase == "writing":
            # In their order, so nothing of it goes on after one that did not take effect.
            all(self._send(write, now_s) for write in step.writes)
            return
        sent = [self._send(write, now_s) for write in step.writes]
        group.is_done = step.phase == "releasing" and all(sent)

    def _send(self, write: LeaseWrite, now_s: float) -> bool:
        """False when it was refused or failed; the next look says what is so."""
        lease = write.lease
        try:
            match write.kind:
                case "create":
                    applied = self._table.create(lease)
                case "hand_over":
                    applied = self._table.initiate_handoff(lease, self._id).applied
                    self._asked.add(lease.lease_key)
                case "take":
                    applied = self._table.assign(lease, self._id).applied
                    if applied:
                        self._asked.discard(lease.lease_key)
                        if self._seemed_alive(lease, now_s):
                            self._taken.add(lease.lease_key)
                case "renew":
                    applied = self._table.renew(lease, None).applied
                case "checkpoint":
                    assert write.to is not None
                    applied = self._table.checkpoint(lease, write.to).applied
                case "release":
                    applied = self._table.evict(lease).applied
        except RetryLater as error:
            self._failure = error
            return False
        except KclHostError as error:
            self._fatal.append(error)
            return False
        _log.debug(
            "replay write",
            extra={"action": f"replay_{write.kind}", "lease_key": lease.lease_key, "applied": applied},
        )
        if applied and write.kind != "renew":
            self._has_moved = True
        return applied

    def _seemed_alive(self, lease: Lease, now_s: float) -> bool:
        tracked = self._tracked[lease.lease_key]
        return not (lease.is_at_shard_end or is_expired_or_unassigned(tracked, now_s, self._settings.lease))

    def _waited_for(self, groups: Iterable[_Group]) -> str:
        """The owners of leases that are not ours yet, for people."""
        if self._failure is not None:
            return str(self._failure)
        rows = [self._tracked.get(change.lease_key) for group in groups for change in group.changes]
        owners = {t.lease.actual_owner for t in rows if t is not None} - {None, self._id}
        return f"waiting for {', '.join(sorted(map(str, owners)))}" if owners else ""

    def _require_all(self, preview: ReplayPreview) -> None:
        """Java's clean-up may have decided to delete a finished lease just before it was set back."""
        wanted = {change.lease_key for change in preview.changes if change.to != AT_SHARD_END}
        there = {row.lease_key for row in insist(lambda: self._table.get_all(wanted, consistent=True), self._sleep)}
        if gone := sorted(wanted - there):
            raise MetadataConflict(f"leases were deleted meanwhile: {', '.join(gone[:5])}. Run this again.")

    # What the fleet knows of us

    def _report(self) -> None:
        now_s = self._clock.wall()
        every_s = self._settings.worker_metrics.report_interval_s / 2
        if self._row is not None and now_s - (self._row.last_update_s or 0) < every_s:
            return
        row = WorkerMetricStats(
            worker_id=self._id, last_update_s=int(now_s), metric_stats={"C": [-1.0]}, operating_range={"C": [100.0]}
        )
        try:
            self._reports().put(row)
        except TableMissing:
            pass  # A fleet of KCL 2.x only; its workers do not ask.
        except RetryLater as error:
            _log.warning("replay not announced", extra={"action": "replay_not_announced", "error": str(error)})
            return
        self._row = row

    def _withdraw(self) -> None:
        if self._row is not None:
            with suppress(RetryLater):
                self._reports().delete_if_unchanged(self._row)

    def _reports(self) -> WorkerMetrics:
        return WorkerMetrics(self._tables, format_found(self._tables, self._settings, self._sleep))

    def _sleep(self, seconds: float) -> None:
        self._threads.event().wait(seconds)


def _size(groups: Iterable[_Group]) -> int:
    return sum(len(group.changes) for group in groups)
