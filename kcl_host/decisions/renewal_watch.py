"""Which owners of leases a leader has seen to renew one, with its own eyes.

Metric stats that look fresh may be a dead worker's for a minute. So nothing is balanced, and nothing handed over by a
leader that leaves, before every owner of leases has been seen alive. Java looks at the metric stats alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcl_host.decisions.lease_age import Tracked


def renewing_workers(before: Mapping[str, Tracked], tracked: Mapping[str, Tracked]) -> frozenset[str]:
    """Owners of a lease whose counter has grown between two scans without a change of owner."""
    return frozenset(
        owner
        for key, now in tracked.items()
        if (owner := now.lease.actual_owner) is not None
        and (then := before.get(key)) is not None
        and then.lease.actual_owner == owner
        and then.lease.lease_counter < now.lease.lease_counter
    )


def new_owners(before: Mapping[str, Tracked], tracked: Mapping[str, Tracked]) -> list[str]:
    """Keys of leases that have passed to another owner between two reads, as at the end of a handover.

    That owner may be a Java worker, which finds the lease after 10 s, and renews it after another 3.3 s.
    """
    return [
        key
        for key, now in tracked.items()
        if (then := before.get(key)) is not None
        and now.lease.actual_owner not in (None, then.lease.actual_owner)
        and then.lease.lease_counter < now.lease.lease_counter
    ]


def unproven_owners(tracked: Mapping[str, Tracked], proven: frozenset[str]) -> frozenset[str]:
    """Owners of leases that have not been seen to renew any."""
    return frozenset(owner for t in tracked.values() if (owner := t.lease.actual_owner) is not None) - proven
