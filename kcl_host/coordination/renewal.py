"""Heartbeats of all held leases, each every third of the lease duration."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

from kcl_host.config.settings import LeaseSettings
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.decisions.renewal_slot import SLOTS, is_due, next_turn_s, slot_at
from kcl_host.errors import KclHostError
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.ports import Clock

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After a failure: a request is one attempt, and a lease must not hang on three of them."""

SHORTEST_S = 0.001
"""An interval, of which epsilon may leave nothing."""

ForEach = Callable[[Callable[[HeldLease], None], Iterable[HeldLease]], None]
"""Calls a function for each lease, in parallel or one after the other, and returns when all are done."""


class Renewal:
    """Renews each held lease once an interval; tells `on_handover` of each one that the leader wants elsewhere.

    Not all at once, but spread over the interval (decisions/renewal_slot.py). A lease whose checkpoint is under way is
    left for the end of the turn, and waited for no longer than a tenth of the lease duration, so that slow checkpoints
    do not let the leases expire that have none. What failed is tried again soon. A round, which is what the metrics
    know, is one interval. Source: spec lease-table 7.3; DynamoDBLeaseRenewer, whose rounds are bursts.
    """

    def __init__(
        self,
        held_leases: HeldLeases,
        settings: LeaseSettings,
        clock: Clock,
        for_each: ForEach,
        on_handover: Callable[[HeldLease], None],
        instruments: Instruments = NOTHING,
    ) -> None:
        self._held_leases = held_leases
        self._interval_s = max(settings.renewal_interval_s, SHORTEST_S)
        self._patience_s = settings.failover_s / 10
        self._clock = clock
        self._for_each = for_each
        self._on_handover = on_handover
        self._instruments = instruments
        self._done: int | None = None
        """The last slot whose leases were renewed; None before the first turn."""
        self._retry_s = math.inf
        # Filled by the threads of `for_each`, taken when they are done.
        self._busy: list[HeldLease] = []
        self._failed: list[HeldLease] = []
        self._lost: list[HeldLease] = []

    def run_once(self) -> float:
        now_s = self._clock.monotonic()
        slot = slot_at(now_s, self._interval_s)
        done = slot - SLOTS if self._done is None else self._done
        self._done = slot
        due = [held for held in self._held_leases.all() if is_due(held.lease_key, done, slot)]
        due = [held for held in due if held not in self._failed]
        if now_s >= self._retry_s:
            due, self._failed, self._retry_s = due + self._failed, [], math.inf
        round_ends = slot // SLOTS > done // SLOTS
        if due or round_ends:
            self._renew_all(due)
        if round_ends:
            self._instruments.leases_renewed(lost=len(self._lost), held=len(self._held_leases.all()))
            self._lost = []
        now_s = self._clock.monotonic()
        if self._failed:
            self._retry_s = min(self._retry_s, now_s + RETRY_S)
        next_s = next_turn_s((held.lease_key for held in self._held_leases.all()), slot, self._interval_s)
        return max(0.0, min(next_s, self._retry_s) - now_s)

    def _renew_all(self, leases: list[HeldLease]) -> None:
        failed_before = len(self._failed)
        with self._instruments.renewing_all() as turn:
            self._for_each(lambda held: self._renew(held, 0.0), leases)
            busy, self._busy = self._busy, []
            self._for_each(lambda held: self._renew(held, self._patience_s), busy)
            self._failed += self._busy
            self._busy = []
            turn.success = len(self._failed) == failed_before

    def _renew(self, held: HeldLease, wait_s: float) -> None:
        try:
            with self._instruments.renewing():
                outcome = self._held_leases.renew(held, wait_s)
        except KclHostError as error:
            self._failed.append(held)
            _log.warning(
                "lease could not be renewed",
                extra={"action": "renewal_failed", "lease_key": held.lease_key, "error": str(error)},
            )
            return
        if outcome == "busy":
            self._busy.append(held)
        elif outcome == "lost":
            self._lost.append(held)
        elif outcome == "renewed" and held.lease.is_handover_pending:
            self._on_handover(held)
