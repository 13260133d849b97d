"""How long ago each lease was last renewed, as the leader observes it.

No clocks are compared between machines: the leader remembers for each lease the counter it saw and its own monotonic
time at which it saw that counter grow. A new leader starts without memory, which grants every owner a full period.

Source: KCL 3.5.1 LeaseAssignmentManager; spec coordination 4.4, lease-table 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from kcl_host.config.settings import LeaseSettings
from kcl_host.model.lease import Lease


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """A lease with what this leader knows of its age; times are the leader's monotonic seconds.

    `last_counter_increment_s` is minus infinity for a lease that nobody owned when it was first seen.
    `handoff_deadline_s` is None unless a graceful handover is pending.
    """

    lease: Lease
    last_counter_increment_s: float
    handoff_deadline_s: float | None = None


def track(
    previous: Mapping[str, Tracked], leases: Iterable[Lease], now_s: float, settings: LeaseSettings
) -> dict[str, Tracked]:
    """The observations after one scan, by lease key; leases that are gone are forgotten.

    A counter that is equal or smaller is not a renewal. A pending handover that is new, or between other workers than
    before, gets a new deadline.
    """
    return {lease.lease_key: _observe(previous.get(lease.lease_key), lease, now_s, settings) for lease in leases}


def applied(before: Tracked, row: Lease, now_s: float, settings: LeaseSettings) -> Tracked:
    """The observation after a write of this leader that left `row`: its counter or its deadline starts now."""
    renewed_s = now_s if row.lease_counter > before.lease.lease_counter else before.last_counter_increment_s
    deadline_s = now_s + _handoff_s(settings) if row.is_handover_pending else None
    return Tracked(lease=row, last_counter_increment_s=renewed_s, handoff_deadline_s=deadline_s)


def is_expired(tracked: Tracked, now_s: float, settings: LeaseSettings) -> bool:
    """True when the counter has stood still for strictly longer than failoverTimeMillis."""
    return now_s - tracked.last_counter_increment_s > settings.failover_s


def _observe(before: Tracked | None, lease: Lease, now_s: float, settings: LeaseSettings) -> Tracked:
    if before is None:
        renewed_s = -math.inf if lease.actual_owner is None else now_s
    elif lease.lease_counter > before.lease.lease_counter:
        renewed_s = now_s
    else:
        renewed_s = before.last_counter_increment_s
    deadline_s = None
    if lease.is_handover_pending:
        deadline_s = now_s + _handoff_s(settings)
        if before is not None and before.handoff_deadline_s is not None and _owners(before.lease) == _owners(lease):
            deadline_s = before.handoff_deadline_s
    return Tracked(lease=lease, last_counter_increment_s=renewed_s, handoff_deadline_s=deadline_s)


def _owners(lease: Lease) -> tuple[str | None, str | None]:
    return lease.lease_owner, lease.checkpoint_owner


def _handoff_s(settings: LeaseSettings) -> float:
    return settings.graceful_handoff_timeout_s + settings.failover_s
