"""Which write moves a lease to its new owner.

Source: KCL 3.5.1 LeaseAssignmentManager; spec coordination 4.4 and 4.7, lease-table 9 and 10.
"""

from __future__ import annotations

from typing import Literal

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.lease_age import Tracked, is_expired


def is_expired_or_unassigned(tracked: Tracked, now_s: float, settings: LeaseSettings) -> bool:
    """True when nobody works on the lease, as far as this leader can see: it may be given away without ceremony."""
    return tracked.lease.actual_owner is None or is_expired(tracked, now_s, settings)


def blocked_on_pending_checkpoint(tracked: Tracked, now_s: float, settings: LeaseSettings) -> bool:
    """True while the old owner of a graceful handover still has time to checkpoint and to transfer the lease.

    Not blocked: the old owner no longer renews, the shard is at its end, or the deadline has come.
    """
    return (
        tracked.handoff_deadline_s is not None
        and tracked.lease.is_handover_pending
        and not is_expired_or_unassigned(tracked, now_s, settings)
        and not tracked.lease.is_at_shard_end
        and now_s < tracked.handoff_deadline_s
    )


def is_handover_overdue(tracked: Tracked, now_s: float, settings: LeaseSettings) -> bool:
    """True when the old owner still renews the lease at the deadline, but has not transferred it."""
    return (
        tracked.handoff_deadline_s is not None
        and now_s >= tracked.handoff_deadline_s
        and tracked.lease.is_handover_pending
        and not tracked.lease.is_at_shard_end
        and not is_expired_or_unassigned(tracked, now_s, settings)
    )


def write_kind(tracked: Tracked, now_s: float, settings: LeaseSettings) -> Literal["assign", "handoff"] | None:
    """How the lease is moved: `handoff` announces it to a live owner, `assign` takes effect at once.

    None: not now, a handover is under way.
    """
    if blocked_on_pending_checkpoint(tracked, now_s, settings):
        return None
    lease = tracked.lease
    if (
        settings.graceful_handoff
        and not is_expired_or_unassigned(tracked, now_s, settings)
        and not lease.is_at_shard_end
        and not lease.is_handover_pending
    ):
        return "handoff"
    return "assign"
