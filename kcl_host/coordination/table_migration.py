"""The move of the metadata into the lease table: driven by the leader, followed by everybody (spec migration 2).

Whoever does not lead looks at the status from time to time, since it says where the leader lock is. The leader makes
a step by the rules of decisions/table_migration after the same look, from what its last assignment pass has seen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.coordination.election import Election
from kcl_host.coordination.metadata_tables import Format, WorkerMetrics
from kcl_host.decisions.table_migration import (
    MOVED_AT_ONCE,
    STATUS_INIT,
    Create,
    Delete,
    Finalise,
    FleetSummary,
    Move,
    Nothing,
    Step,
    Update,
    as_moved,
    followed,
    next_step,
    summarise_fleet,
    unmovable,
)
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import Lease
from kcl_host.model.state import TableMigrationState
from kcl_host.ports import Clock, NewLock, TableMigrationItems

_log = logging.getLogger(__name__)

LEADING_S: Final = 10.0
FOLLOWING_S: Final = 30.0
"""How often the item is read, as by Java's followers, where it may become final."""
IDLE_S: Final = 300.0
"""Where it cannot: a worker that has its metrics in a table of their own keeps it from that."""


class TableMigration:
    """A turn of everybody, and the leader's step. `look` and `note` are also called by the thread of the assigner.

    `_lock` is held from the read of the item until what it says is followed.
    """

    def __init__(
        self,
        items: TableMigrationItems,
        metrics: WorkerMetrics,
        election: Election,
        format: Format,
        worker_id: str,
        settings: Settings,
        clock: Clock,
        new_lock: NewLock = threading.Lock,
        instruments: Instruments = NOTHING,
    ) -> None:
        self._items = items
        self._metrics = metrics
        self._election = election
        self._format = format
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._lock = new_lock()
        self._instruments = instruments
        self._summary: FleetSummary | None = None
        self._item: TableMigrationState | None = None
        self._said = ""

    def note(self, leases: Sequence[Lease]) -> None:
        """What an assignment pass of ours has just read; the workers are those of the listing of that pass."""
        if self._format.live != "COMPLETE":
            found, wall_s = self._metrics.found, self._clock.wall()
            self._summary = summarise_fleet(leases, found, wall_s, self._settings.worker_metrics)
            self._tell(self._summary)
        else:
            self._instruments.table_migration_seen("COMPLETE")

    def _tell(self, fleet: FleetSummary) -> None:
        self._instruments.table_migration_seen(None if self._item is None else self._item.status)
        moved = len(fleet.reporting_owners - fleet.active_in_own_table)
        self._instruments.table_migration_workers(
            before=len(fleet.lease_owners - fleet.supporting_owners),
            phase_1=max(0, len(fleet.supporting_owners) - moved),
            phase_2=moved,
        )

    def look(self) -> None:
        """Reads the item and follows it. Who has just come to lead must do so before anything else.

        The lock may be of a table that the fleet has left; it is given back then. While it is ours the item cannot
        become final by anybody else, for that takes the lock.
        """
        with self._lock:
            if self._format.live != "COMPLETE":
                with self._instruments.following_table_migration():
                    self._item = self._items.read()
                self._follow(None if self._item is None else self._item.status)

    def _follow(self, status: str | None) -> None:
        before = self._format.live
        live = followed(status, before, migrate_all=self._settings.coordinator.migrate_all_entities)
        if live == before:
            return
        _log.info(
            "status of the table migration",
            extra={"action": "table_migration_status", "before": before, "now": live, "table_says": status},
        )
        if live == "COMPLETE":
            self._election.change_table(lambda: setattr(self._format, "live", live))
        else:
            self._format.live = live

    def run_once(self) -> float | None:
        """None when the migration is over, or there never was one to make."""
        if self._format.live == "COMPLETE":
            return None
        if not self._election.may_write():
            self._summary = None
            self.look()
            return FOLLOWING_S if self._format.live == "PENDING" else IDLE_S
        # As long as we lead, nobody else writes the item: what our last look has found will do until a write fails.
        step = self._next_step()
        self._say(step)
        if not self._take(step):
            self.look()
        return LEADING_S

    def _next_step(self) -> Step:
        local, left = self._format.live, None
        if local == "PENDING":
            left = frozenset(item.key for item in self._items.list_items())
        now_ms = round(self._clock.wall() * 1000)
        return next_step(local, self._item, self._summary, left, now_ms, self._worker_id, self._settings.coordinator)

    def _take(self, step: Step) -> bool:
        """False when the item is not what we took it for."""
        match step:
            case Nothing():
                return True
            case Delete():
                return self._items.delete(STATUS_INIT) and self._now(None)
            case Create():
                return self._items.create(step.state) and self._now(step.state)
            case Update():
                return self._items.update(step.state, step.expected_status) and self._now(step.state)
            case Finalise():
                done = self._items.finalise(step.state, step.expected_status, self._worker_id)
                return done and self._now(step.state)
            case Move():
                self._move()
                return True

    def _now(self, item: TableMigrationState | None) -> bool:
        with self._lock:
            self._item = item
            self._follow(None if item is None else item.status)
        return True

    def _move(self) -> None:
        """Everything that may be moved, as long as this worker leads; the next turn sees what is left."""
        items = self._items.list_items()
        movable = [moved for item in items if (moved := as_moved(item)) is not None]
        for first in range(0, len(movable), MOVED_AT_ONCE):
            batch = movable[first : first + MOVED_AT_ONCE]
            if not self._election.may_write():
                return
            if not self._items.move(batch, self._worker_id):
                _log.error(
                    "coordinator items not moved: the lock is lost, or the lease table has an item with such a key "
                    "already; remove the one that is out of date",
                    extra={"action": "table_migration_blocked", "keys": [item.key for item in batch]},
                )
                return
        if stuck := unmovable(items):
            _log.error(
                "items of a kind that nobody knows keep the table migration from going on",
                extra={"action": "table_migration_blocked", "keys": stuck},
            )

    def _say(self, step: Step) -> None:
        """Each thing once: a bake time is long."""
        text = f"{type(step).__name__}: {step.reason}"
        if text != self._said:
            self._said = text
            _log.info(
                "table migration",
                extra={"action": "table_migration", "step": type(step).__name__, "reason": step.reason},
            )
