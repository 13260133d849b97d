"""The leases this worker holds, and every write it makes as their holder.

Shared state: the map of held leases, guarded by `HeldLeases._lock`; and in each `HeldLease` what its own `lock` guards:
the row as we know it. That lock is held across the remote call on purpose: the call and the counter it bumps are what
it protects, since a checkpoint is a heartbeat too and two writers with one counter would refute each other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.lease_write import Lost, has_expired, judge_refused, smooth_throughput
from kcl_host.errors import RetryLater, Throttled
from kcl_host.model.lease import Lease, WriteOutcome
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.ports import Clock, LeaseTable

_log = logging.getLogger(__name__)


class HeldLease:
    """One lease, from the moment it was obtained to the moment it is lost. Never reused: see `token`."""

    def __init__(self, lease: Lease, token: str, now_s: float) -> None:
        self.lock = threading.Lock()
        self.lease = lease
        """The row as last known to be true."""
        self.token = token
        """Concurrency token: identity of this incarnation; the shard consumer and its child live and die with it."""
        self.last_renewed_s = now_s
        """Monotonic time before the request of the last write that succeeded."""
        self.in_doubt: list[ExtendedSequenceNumber | None] = []
        """Checkpoints of our writes whose answers were lost."""
        self._stats = threading.Lock()
        self._payload_bytes: int | None = None
        self._stats_since_s = now_s

    def __repr__(self) -> str:
        return f"<HeldLease {self.lease.lease_key} counter={self.lease.lease_counter} token={self.token[:8]}>"

    @property
    def lease_key(self) -> str:
        return self.lease.lease_key

    def record_payload(self, payload_bytes: int) -> None:
        """Counts bytes that are about to be delivered to the child, for the throughput of the lease."""
        with self._stats:
            self._payload_bytes = (self._payload_bytes or 0) + payload_bytes

    def next_throughput(self, now_s: float) -> float | None:
        """KiB per second for the next renewal; None while nothing was ever delivered."""
        with self._stats:
            elapsed_s = now_s - self._stats_since_s
            if self._payload_bytes is None or elapsed_s <= 0:
                return self.lease.throughput_kbps
            value = smooth_throughput(self.lease.throughput_kbps, self._payload_bytes, elapsed_s)
            self._payload_bytes, self._stats_since_s = 0, now_s
            return value


class CheckpointOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is the name that the child gets, None when the checkpoint stands in the table."""

    error: Literal["ShutdownException", "ThrottlingException", "KinesisClientLibDependencyException"] | None = None
    reason: str = ""


class HeldLeases:
    """Held leases by key. `on_lost` is told once for every lease that goes without our doing."""

    def __init__(
        self,
        lease_table: LeaseTable,
        worker_id: str,
        settings: LeaseSettings,
        clock: Clock,
        new_token: Callable[[], str],
        on_lost: Callable[[HeldLease, str], None],
    ) -> None:
        self._table = lease_table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._new_token = new_token
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._held: dict[str, HeldLease] = {}

    def __repr__(self) -> str:
        return f"<HeldLeases {self._worker_id} {len(self._held)} held>"

    # The map

    def add(self, lease: Lease, now_s: float) -> HeldLease | None:
        """Takes up a lease that its row gives to us; None when it is already held. `now_s`: before the row was read."""
        with self._lock:
            if lease.lease_key in self._held:
                return None
            held = self._held[lease.lease_key] = HeldLease(lease, self._new_token(), now_s)
            return held

    def drop(self, held: HeldLease) -> bool:
        """Forgets the lease without a write; False when this incarnation is not held any more."""
        with self._lock:
            if self._held.get(held.lease_key) is not held:
                return False
            del self._held[held.lease_key]
            return True

    def get(self, lease_key: str) -> HeldLease | None:
        with self._lock:
            return self._held.get(lease_key)

    def all(self) -> list[HeldLease]:
        """Every held lease in descending key order, as Java renews them."""
        with self._lock:
            return [self._held[key] for key in sorted(self._held, reverse=True)]

    def is_held(self, held: HeldLease) -> bool:
        """True while this incarnation is in the map and has not expired by our own clock."""
        with self._lock:
            present = self._held.get(held.lease_key) is held
        return present and not self._expired(held)

    def _expired(self, held: HeldLease) -> bool:
        return has_expired(held.last_renewed_s, self._clock.monotonic(), self._settings.failover_s)

    def _lose(self, held: HeldLease, reason: str) -> None:
        if self.drop(held):
            _log.warning("lease lost", extra={"action": "lease_lost", "lease_key": held.lease_key, "reason": reason})
            self._on_lost(held, reason)

    # Writes as the holder

    def renew(self, held: HeldLease) -> bool:
        """One heartbeat; False when the lease was lost. Raises RetryLater when the outcome is open: it stays held."""
        # A checkpoint in flight is a heartbeat itself: behind it a renewal waits for a third of the lease, no longer.
        if not held.lock.acquire(timeout=self._settings.failover_s / 3):
            return True
        try:
            if self._expired(held):
                self._lose(held, "not renewed for longer than failoverTimeMillis")
                return False
            throughput_kbps = held.next_throughput(self._clock.monotonic())
            lost = self._write(
                held, lambda lease: self._table.renew(lease, throughput_kbps), lambda lease: lease.checkpoint
            )
            if lost is None and throughput_kbps is not None:
                held.lease = msgspec.structs.replace(held.lease, throughput_kbps=throughput_kbps)
            return lost is None
        finally:
            held.lock.release()

    def checkpoint(self, held: HeldLease, position: ExtendedSequenceNumber) -> CheckpointOutcome:
        """Writes the position that the child asked for; the decision about its range has been taken before."""
        with held.lock:
            if not self.is_held(held):
                return CheckpointOutcome(error="ShutdownException", reason="the lease is no longer held")
            try:
                lost = self._write(held, lambda lease: self._table.checkpoint(lease, position), lambda _: position)
            except Throttled as error:
                return CheckpointOutcome(error="ThrottlingException", reason=str(error))
            except RetryLater as error:
                return CheckpointOutcome(error="KinesisClientLibDependencyException", reason=str(error))
            if lost is not None:
                return CheckpointOutcome(error="ShutdownException", reason=lost.reason)
            held.lease = msgspec.structs.replace(
                held.lease,
                checkpoint=position,
                owner_switches_since_checkpoint=0,
                pending_checkpoint=None,
                pending_checkpoint_state=None,
            )
            return CheckpointOutcome()

    def initiate_handover(self, held: HeldLease, to: str) -> None:
        """Names the next owner of a lease that this worker is about to leave; a refusal leaves things as they are.

        The counter does not move, and the row we go on from is the pending one, so renewals and checkpoints go on.
        """
        with held.lock:
            if not held.lease.is_handover_pending:
                outcome = self._table.initiate_handoff(held.lease, to)
                if outcome.applied:
                    held.lease = msgspec.structs.replace(held.lease, lease_owner=to, checkpoint_owner=self._worker_id)

    def complete_handover(self, held: HeldLease) -> str | None:
        """Gives a lease with a pending handover to its named next owner, who is returned.

        None when somebody else changed the row before us; either way the lease is not ours any more.
        Raises RetryLater when the outcome is open: call again.
        """
        with held.lock:
            target = held.lease.lease_owner
            assert target is not None and held.lease.is_handover_pending
            outcome = self._table.assign(held.lease, target)
            self.drop(held)
            applied_before = outcome.row is not None and outcome.row.actual_owner == target
            return target if outcome.applied or applied_before else None

    def evict(self, held: HeldLease) -> None:
        """Gives the lease up, so that whoever leads assigns it at once. Raises RetryLater: call again."""
        with held.lock:
            outcome = self._table.evict(held.lease)
            if not outcome.applied:
                # A renewal cannot refuse an evict (it does not look at the counter); a handover just announced can.
                adopted = judge_refused(held.lease, outcome.row, held.in_doubt, self._worker_id)
                if isinstance(adopted, Lease):
                    held.lease = adopted
                    self._table.assign(adopted, adopted.lease_owner or self._worker_id)
            self.drop(held)

    def _write(
        self,
        held: HeldLease,
        write: Callable[[Lease], WriteOutcome],
        checkpoint_after: Callable[[Lease], ExtendedSequenceNumber | None],
    ) -> Lost | None:
        """A write that is conditional on the counter, repeated once from the row if the row turns out to be ours."""
        for _ in range(2):
            before_s = self._clock.monotonic()
            try:
                outcome = write(held.lease)
            except Throttled:
                raise
            except RetryLater:
                held.in_doubt.append(checkpoint_after(held.lease))
                raise
            if outcome.applied:
                held.lease = msgspec.structs.replace(held.lease, lease_counter=held.lease.lease_counter + 1)
                held.last_renewed_s = before_s
                held.in_doubt.clear()
                return None
            verdict = judge_refused(held.lease, outcome.row, held.in_doubt, self._worker_id)
            if isinstance(verdict, Lost):
                break
            held.lease = verdict
            held.in_doubt.clear()
        else:
            verdict = Lost("refused again after the row was adopted")
        self._lose(held, verdict.reason)
        return verdict
