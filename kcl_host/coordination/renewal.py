"""Heartbeats of all held leases, each a third of the lease duration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kcl_host.config.settings import LeaseSettings
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.errors import KclHostError
from kcl_host.ports import Clock

_log = logging.getLogger(__name__)

ForEach = Callable[[Callable[[HeldLease], None], Iterable[HeldLease]], None]
"""Calls a function for each lease, in parallel or one after the other, and returns when all are done."""


class Renewal:
    """Renews every held lease per turn; tells `on_handover` of each one that the leader wants elsewhere.

    Source: spec lease-table 7.3; DynamoDBLeaseRenewer.
    """

    def __init__(
        self,
        held_leases: HeldLeases,
        settings: LeaseSettings,
        clock: Clock,
        for_each: ForEach,
        on_handover: Callable[[HeldLease], None],
    ) -> None:
        self._held_leases = held_leases
        self._interval_s = settings.renewal_interval_s
        self._clock = clock
        self._for_each = for_each
        self._on_handover = on_handover

    def run_once(self) -> float:
        started_s = self._clock.monotonic()
        self._for_each(self._renew, self._held_leases.all())
        return max(0.0, self._interval_s - (self._clock.monotonic() - started_s))

    def _renew(self, held: HeldLease) -> None:
        try:
            still_held = self._held_leases.renew(held)
        except KclHostError as error:
            _log.warning(
                "lease could not be renewed",
                extra={"action": "renewal_failed", "lease_key": held.lease_key, "error": str(error)},
            )
            return
        if still_held and held.lease.is_handover_pending:
            self._on_handover(held)
