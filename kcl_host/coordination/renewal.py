"""Heartbeats of all held leases, each a third of the lease duration."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

from kcl_host.config.settings import LeaseSettings
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.errors import KclHostError
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.ports import Clock

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""After a failure: a request is one attempt, and a lease must not hang on three of them."""

ForEach = Callable[[Callable[[HeldLease], None], Iterable[HeldLease]], None]
"""Calls a function for each lease, in parallel or one after the other, and returns when all are done."""


class Renewal:
    """Renews every held lease per round; tells `on_handover` of each one that the leader wants elsewhere.

    A lease whose checkpoint is under way is left for the end of the round, and waited for no longer than a third of
    the lease duration, so that slow checkpoints do not let the leases expire that have none. What failed is tried
    again before the next round. Source: spec lease-table 7.3; DynamoDBLeaseRenewer.
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
        self._interval_s = settings.renewal_interval_s
        self._patience_s = settings.failover_s / 3
        self._clock = clock
        self._for_each = for_each
        self._on_handover = on_handover
        self._instruments = instruments
        self._next_round_s = -math.inf
        # Filled by the threads of `for_each`, taken when they are done.
        self._busy: list[HeldLease] = []
        self._failed: list[HeldLease] = []
        self._lost: list[HeldLease] = []

    def run_once(self) -> float:
        now_s = self._clock.monotonic()
        leases, self._failed = self._failed, []
        if now_s >= self._next_round_s:
            self._next_round_s = now_s + self._interval_s
            self._lost = []
            with self._instruments.renewing_all() as round:
                self._renew_all(self._held_leases.all())
                round.success = not self._failed
            self._instruments.leases_renewed(lost=len(self._lost), held=len(self._held_leases.all()))
        else:
            self._renew_all(leases)
        now_s = self._clock.monotonic()
        return max(0.0, min(self._next_round_s, now_s + RETRY_S if self._failed else math.inf) - now_s)

    def _renew_all(self, leases: list[HeldLease]) -> None:
        self._for_each(lambda held: self._renew(held, 0.0), leases)
        busy, self._busy = self._busy, []
        self._for_each(lambda held: self._renew(held, self._patience_s), busy)
        self._failed += self._busy
        self._busy = []

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
