"""What a refused lease write means, and what a held lease is worth.

A conditional write can be refused because somebody else took the lease, because the leader has announced a handover
(renew only), or because an earlier write of ours took effect although its answer was lost. The counter tells the last
case: it moved by exactly one, under our own name, to a checkpoint that we wrote. By one, however many answers were
lost: all those writes were conditional on the same counter, so that no two of them can have taken effect.
"""

from __future__ import annotations

from collections.abc import Collection
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

import msgspec

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber

EMA_ALPHA: Final = 0.5
_LAST_DIGIT: Final = Decimal("0.000001")


class Lost(msgspec.Struct, frozen=True):
    """The lease is no longer ours."""

    reason: str


def judge_refused(
    local: Lease, row: Lease | None, in_doubt: Collection[ExtendedSequenceNumber | None], worker_id: str
) -> Lease | Lost:
    """The row to go on from (repeat the write with it), or why the lease is lost.

    `local` is the lease as this worker believed it to be, `row` the row that refused the write (None: deleted),
    `in_doubt` the checkpoints that our writes with the counter of `local` and without an answer would have left.
    Source: spec lease-table 5.2, 10.1 and pitfalls 6, 7, 10, 30; DynamoDBLeaseRefresher.renewLease, which knows only
    the case of one lost answer without a handover.
    """
    if row is None:
        return Lost("the row is gone")
    if row.actual_owner != worker_id:
        return Lost(f"owned by {row.actual_owner or 'nobody'}")
    if row.checkpoint_owner is not None and row.checkpoint_owner == row.lease_owner:
        return Lost("owner and checkpoint owner are the same worker")
    moved = row.lease_counter - local.lease_counter
    if moved == 0:
        newly_pending = row.is_handover_pending and not local.is_handover_pending
        return row if newly_pending else Lost("refused for no reason that the row shows")
    if moved == 1 and row.checkpoint in in_doubt:
        return row
    return Lost(f"written by another holder under our name (counter {local.lease_counter} -> {row.lease_counter})")


def has_expired(last_renewed_s: float, now_s: float, failover_s: float) -> bool:
    """True when the holder must stop to trust the lease; strictly later than `failover_s` (spec lease-table 6)."""
    return now_s - last_renewed_s > failover_s


def smooth_throughput(previous_kbps: float | None, payload_bytes: int, elapsed_s: float) -> float:
    """KiB per second, smoothed; the first value is taken as it is. Six decimals, half up, which is what the row holds.

    Java smooths before it rounds; here the rounded value goes on, so that the two differ by 0.000001 at most.
    Source: LeaseStatsRecorder, DynamoDBLeaseRenewer, spec lease-table 8.
    """
    value = payload_bytes / 1024 / elapsed_s
    if previous_kbps is not None:
        value = EMA_ALPHA * value + (1 - EMA_ALPHA) * previous_kbps
    if not payload_bytes and value < 1e-6:
        return 0.0  # half of the last digit, rounded up, would never fade
    return float(Decimal(str(value)).quantize(_LAST_DIGIT, ROUND_HALF_UP))
