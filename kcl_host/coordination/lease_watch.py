"""What a leader has seen of the leases, and the reads by which it sees it (decisions/heartbeat_watch.py)."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.heartbeat_watch import (
    leases_of,
    next_pass_s,
    scan_is_cheaper,
    settled_leases,
    suspected_workers,
    watch_interval_s,
    watched_leases,
)
from kcl_host.decisions.lease_age import Tracked, applied, is_expired, track
from kcl_host.decisions.renewal_watch import new_owners, renewing_workers
from kcl_host.errors import AccessError, RetryLater
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.ports import Clock, LeaseTable

_log = logging.getLogger(__name__)

JUST_AFTER_S: Final = 0.05
"""Expiry is strictly later than failoverTimeMillis; the pass that waits for it comes so much later."""


class LeaseWatch:
    """Observations of lease counters, which live only as long as they are made without a break (coordination 4.4).

    One thread reads and notes. Others may look at `tracked`, `proven` and `suspects` at any time: each is replaced as a
    whole, never changed.
    """

    def __init__(
        self, lease_table: LeaseTable, worker_id: str, settings: LeaseSettings, grace_s: float, clock: Clock
    ) -> None:
        """`grace_s`: how much longer than others a lease with a new owner may stand still until it is taken up."""
        self._table = lease_table
        self._worker_id = worker_id
        self._settings = settings
        self._grace_s = grace_s
        self._clock = clock
        self._may_batch = True
        self.interval_s = watch_interval_s(settings)
        self.forget()

    def forget(self) -> None:
        self.tracked: Mapping[str, Tracked] = {}
        self.proven: frozenset[str] = frozenset()
        """Workers seen to renew a lease since observation began."""
        self.pass_due_s = math.inf
        """When a pass is called for by what has been seen: a lease has no owner, or will have expired."""
        self._untaken: dict[str, tuple[float, int]] = {}
        """Leases with a new owner, who has not renewed them: since when, and with which counter."""
        self._settled: frozenset[str] = frozenset()
        self.suspects: frozenset[str] = frozenset()
        """Other workers that have not renewed in time, by the last look or pass: they are given nothing."""

    @property
    def untaken(self) -> Collection[str]:
        return self._untaken.keys()

    # Reads

    def scan(self) -> LeaseListing:
        listing = self._table.list_leases()
        self._note(track(self.tracked, listing.leases, self._clock.monotonic(), self._settings))
        return listing

    def scan_for_pass(self, read_s: float) -> LeaseListing:
        """Reads everything, and the rows of leases that have newly expired once more, consistently."""
        listing = self.scan()
        expired = [
            key
            for key, t in self.tracked.items()
            if t.lease.actual_owner is not None and key not in self._settled and is_expired(t, read_s, self._settings)
        ]
        if expired:
            self.note(self._get_all(expired, consistent=True))
        suspects = self._suspected(read_s)
        # When our own leases stand still too, the fault is the table's.
        self.suspects = frozenset() if self._worker_id in suspects else suspects
        return listing

    def look(self) -> None:
        """Looks at the heartbeats of the other workers; a read that fails is left to the next look."""
        read_s = self._clock.monotonic()
        watched = self._watched(read_s)
        if not watched:
            return
        try:
            read = set(self._read(watched.values()))
            suspects = self._suspected(read_s) - {self._worker_id}
            if unread := set(leases_of(self.tracked, suspects, self._settled)) - read:
                read.update(self._read(unread))
        except RetryLater as error:
            _log.warning("heartbeats not seen", extra={"action": "heartbeats_not_seen", "error": str(error)})
            return
        self._schedule(read, read_s)

    def next_look_s(self) -> float:
        """When to look again; never while nobody else holds a lease."""
        now_s = self._clock.monotonic()
        return now_s + self.interval_s if self._watched(now_s) else math.inf

    # Notes

    def note(self, rows: Iterable[Lease]) -> None:
        """Rows that some request has just shown; a change is dated now, when the answer has arrived."""
        self._note({**self.tracked, **track(self.tracked, rows, self._clock.monotonic(), self._settings)})

    def settle(self, read_s: float) -> None:
        """To be called after a pass over all leases, whose rows were asked for at `read_s`."""
        self._settled = settled_leases(self.tracked, read_s, self._settings)
        self._schedule(self.tracked, read_s)

    def note_written(self, written: Iterable[tuple[Lease, float]]) -> None:
        """Rows that writes of ours have left, and when."""
        tracked = dict(self.tracked)
        for row, at_s in written:
            before, after = tracked[row.lease_key], applied(tracked[row.lease_key], row, at_s, self._settings)
            moved = row.lease_counter > before.lease.lease_counter
            tracked[row.lease_key] = self._with_grace(after, at_s) if moved else after
        self.tracked = tracked

    def end_grace(self, workers: Collection[str]) -> None:
        """These workers are taken for dead: what they were given and did not renew expires as any other lease."""
        ended = {
            key: msgspec.structs.replace(self.tracked[key], last_counter_increment_s=since_s)
            for key, (since_s, _) in self._untaken.items()
            if self.tracked[key].lease.actual_owner in workers
        }
        self.tracked = {**self.tracked, **ended}

    # How it is done

    def _watched(self, now_s: float) -> dict[str, str]:
        return watched_leases(self.tracked, self._worker_id, self._settled, now_s)

    def _read(self, wanted: Collection[str]) -> Collection[str]:
        """Reads the wanted leases, or all of them; the keys of what was read."""
        if scan_is_cheaper(len(self.tracked), len(wanted)):
            self.scan()
            return self.tracked.keys()
        self.note(self._get_all(wanted, consistent=False))
        return wanted

    def _get_all(self, keys: Collection[str], *, consistent: bool) -> list[Lease]:
        if self._may_batch:
            try:
                return self._table.get_all(keys, consistent=consistent)
            except AccessError as error:
                # Java does not ask for this permission, and a policy that was made for it must do.
                self._may_batch = False
                _log.warning("leases are read one by one", extra={"action": "batch_refused", "error": str(error)})
        return [row for key in keys if (row := self._table.get(key)) is not None]

    def _note(self, tracked: dict[str, Tracked]) -> None:
        before = self.tracked
        self.proven |= renewing_workers(before, tracked)
        self._untaken = {
            key: (since_s, counter)
            for key, (since_s, counter) in self._untaken.items()
            if key in tracked and tracked[key].lease.lease_counter <= counter
        }
        for key in new_owners(before, tracked):
            tracked[key] = self._with_grace(tracked[key], tracked[key].last_counter_increment_s)
        self.tracked = tracked

    def _with_grace(self, moved: Tracked, at_s: float) -> Tracked:
        self._untaken[moved.lease.lease_key] = (at_s, moved.lease.lease_counter)
        return msgspec.structs.replace(moved, last_counter_increment_s=at_s + self._grace_s)

    def _schedule(self, read: Collection[str], read_s: float) -> None:
        due_s = next_pass_s(self.tracked, read, self._settled, self._worker_id, read_s, self._settings)
        self.pass_due_s = due_s + JUST_AFTER_S
        known, self.suspects = self.suspects, self._suspected(read_s) - {self._worker_id}
        for worker_id in sorted(self.suspects - known):
            _log.info("worker has not renewed in time", extra={"action": "worker_suspected", "worker_id": worker_id})

    def _suspected(self, read_s: float) -> frozenset[str]:
        return suspected_workers(self.tracked, read_s, self._settings, self._untaken)
