"""The leases this worker holds, and every write it makes as their holder.

Shared state: the map of held leases, guarded by `HeldLeases._lock`; and in each `HeldLease` what its own `lock` guards:
the row as we know it. That lock is held across the remote call on purpose: the call and the counter it bumps are what
it protects, since a checkpoint is a heartbeat too and two writers with one counter would refute each other.
Order: `HeldLease.lock` before `HeldLeases._lock`, never the other way. A lease leaves the map only under its own lock,
so that whoever holds that lock and finds the lease in the map may write: nothing is written for a lease once lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.lease_write import Lost, has_expired, judge_refused, smooth_throughput
from kcl_host.errors import KclHostError, RetryLater, TableMissing, Throttled, Unavailable
from kcl_host.model.lease import Lease, WriteOutcome
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.ports import Clock, LeaseTable, Lock, NewLock

_log = logging.getLogger(__name__)


class HeldLease:
    """One lease, from the moment it was obtained to the moment it is lost. Never reused: see `token`."""

    def __init__(self, lease: Lease, token: str, now_s: float, lock: Lock) -> None:
        self.lock = lock
        self.lease = lease
        """The row as last known to be true."""
        self.token = token
        """Concurrency token: identity of this incarnation; the shard consumer and its child live and die with it."""
        self.last_renewed_s = now_s
        """Monotonic time before the request of the last write that succeeded."""
        self.in_doubt: list[ExtendedSequenceNumber | None] = []
        """Checkpoints that our writes whose answers were lost would have left; all had the counter of `lease`."""
        self.handover_since_s: float | None = None
        """Monotonic time at which we learnt that another owner is named; None while there is none."""
        self._stats = threading.Lock()
        self._payload_bytes = 0
        self._stats_since_s = now_s

    def __repr__(self) -> str:
        return f"<HeldLease {self.lease.lease_key} counter={self.lease.lease_counter} token={self.token[:8]}>"

    @property
    def lease_key(self) -> str:
        return self.lease.lease_key

    def go_on_from(self, row: Lease, now_s: float) -> None:
        """The row turned out to be different from what we believed, and still ours."""
        self.lease = row
        self.in_doubt.clear()
        if not row.is_handover_pending:
            self.handover_since_s = None
        elif self.handover_since_s is None:
            self.handover_since_s = now_s

    def record_payload(self, payload_bytes: int) -> None:
        """Counts bytes that are about to be delivered to the child, for the throughput of the lease."""
        with self._stats:
            self._payload_bytes += payload_bytes

    def next_throughput(self, now_s: float, window_s: float) -> float | None:
        """KiB per second for the next renewal; None while nobody ever delivered anything.

        `window_s` is the least time that the bytes are spread over. What the holder before us wrote fades as our own.
        """
        with self._stats:
            payload_bytes, self._payload_bytes = self._payload_bytes, 0
            elapsed_s, self._stats_since_s = max(now_s - self._stats_since_s, window_s), now_s
        if self.lease.throughput_kbps is None and not payload_bytes:
            return None
        return smooth_throughput(self.lease.throughput_kbps, payload_bytes, elapsed_s)


class CheckpointOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is the name that the child gets, None when the checkpoint stands in the table."""

    error: (
        Literal[
            "ShutdownException",
            "ThrottlingException",
            "InvalidStateException",
            "KinesisClientLibDependencyException",
        ]
        | None
    ) = None
    reason: str = ""


class HeldLeases:
    """Held leases by key. `on_lost` is told once for every lease that goes without the consumer's doing."""

    def __init__(
        self,
        lease_table: LeaseTable,
        worker_id: str,
        settings: LeaseSettings,
        clock: Clock,
        new_token: Callable[[], str],
        on_lost: Callable[[HeldLease, str], None],
        new_lock: NewLock = threading.Lock,
    ) -> None:
        self._table = lease_table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._new_token = new_token
        self._on_lost = on_lost
        self._new_lock = new_lock
        self._lock = threading.Lock()
        self._held: dict[str, HeldLease] = {}
        self._gone_s: dict[str, float] = {}
        """Monotonic time at which a lease of this key was last forgotten: a row read before is no news."""

    def __repr__(self) -> str:
        return f"<HeldLeases {self._worker_id} {len(self._held)} held>"

    # The map

    def add(self, lease: Lease, read_at_s: float) -> HeldLease | None:
        """Takes up a lease that its row gives to us. `read_at_s`: monotonic time before the row was asked for.

        None when it is held already, or when a lease of this key was lost or given away since the row was read.
        """
        with self._lock:
            key = lease.lease_key
            if key in self._held or read_at_s < self._gone_s.get(key, read_at_s):
                return None
            held = self._held[key] = HeldLease(lease, self._new_token(), read_at_s, self._new_lock())
            return held

    def drop(self, held: HeldLease) -> bool:
        """Forgets the lease without a write; False when this incarnation is not held any more."""
        with held.lock:
            return self._forget(held)

    def get(self, lease_key: str) -> HeldLease | None:
        with self._lock:
            return self._held.get(lease_key)

    def all(self) -> list[HeldLease]:
        """Every held lease in descending key order, as Java renews them."""
        with self._lock:
            return [self._held[key] for key in sorted(self._held, reverse=True)]

    def is_held(self, held: HeldLease) -> bool:
        """True while this incarnation is in the map and has not expired by our own clock."""
        return self.get(held.lease_key) is held and not self._has_expired(held)

    def _has_expired(self, held: HeldLease) -> bool:
        return has_expired(held.last_renewed_s, self._clock.monotonic(), self._settings.failover_s)

    def _forget(self, held: HeldLease) -> bool:
        with self._lock:
            if self._held.get(held.lease_key) is not held:
                return False
            del self._held[held.lease_key]
            self._gone_s[held.lease_key] = self._clock.monotonic()
            return True

    def _lose(self, held: HeldLease, reason: str) -> None:
        if self._forget(held):
            _log.warning("lease lost", extra={"action": "lease_lost", "lease_key": held.lease_key, "reason": reason})
            self._on_lost(held, reason)

    # Writes as the holder

    def renew(self, held: HeldLease, wait_s: float) -> Literal["renewed", "busy", "lost"]:
        """One heartbeat. "busy": another write of this lease, a heartbeat as well, was under way for `wait_s`.

        Raises RetryLater when the outcome is open: the lease stays held. A handover that the old owner could not
        finish within gracefulLeaseHandoffTimeoutMillis is finished here, over the head of the child (spec 10.2).
        """
        if not held.lock.acquire(timeout=wait_s):
            return "busy"
        try:
            if self.get(held.lease_key) is not held:
                return "lost"
            now_s = self._clock.monotonic()
            if self._has_expired(held):
                self._lose(held, "not renewed for longer than failoverTimeMillis")
                return "lost"
            throughput_kbps = held.next_throughput(now_s, self._settings.renewal_interval_s)
            lost = self._write(
                held, lambda lease: self._table.renew(lease, throughput_kbps), lambda lease: lease.checkpoint
            )
            if lost is not None:
                return "lost"
            if throughput_kbps is not None:
                held.lease = msgspec.structs.replace(held.lease, throughput_kbps=throughput_kbps)
            since_s = held.handover_since_s
            if since_s is None or now_s - since_s <= self._settings.graceful_handoff_timeout_s:
                return "renewed"
            target = self._give_up(held, to=None, shun=None)
            _log.warning(
                "handover finished without the child, which took too long",
                extra={"action": "handover_forced", "lease_key": held.lease_key, "to": target},
            )
            self._on_lost(held, "handed over after gracefulLeaseHandoffTimeoutMillis")
            return "lost"
        finally:
            held.lock.release()

    def checkpoint(self, held: HeldLease, position: ExtendedSequenceNumber) -> CheckpointOutcome:
        """Writes the position that the child asked for; the decision about its range has been taken before.

        A row that is farther already, by a checkpoint whose answer was lost, stays where it is.
        """

        def farther(lease: Lease) -> ExtendedSequenceNumber:
            return position if lease.checkpoint is None or lease.checkpoint <= position else lease.checkpoint

        return self._write_for_child(
            held,
            lambda lease: self._table.checkpoint(lease, farther(lease)),
            farther,
            owner_switches_since_checkpoint=0,
            pending_checkpoint=None,
            pending_checkpoint_state=None,
        )

    def prepare_checkpoint(
        self, held: HeldLease, position: ExtendedSequenceNumber, state: bytes | None
    ) -> CheckpointOutcome:
        """Writes a pending checkpoint, in place of any other, and `state` with it; the checkpoint does not move."""
        return self._write_for_child(
            held,
            lambda lease: self._table.prepare_checkpoint(lease, position, state),
            lambda lease: lease.checkpoint,
            pending_checkpoint=position,
            pending_checkpoint_state=state,
        )

    def _write_for_child(
        self,
        held: HeldLease,
        write: Callable[[Lease], WriteOutcome],
        checkpoint_after: Callable[[Lease], ExtendedSequenceNumber | None],
        **written: object,
    ) -> CheckpointOutcome:
        """A write whose failure the child gets to see; `written` are the fields of the row that it changes."""
        with held.lock:
            if not self.is_held(held):
                return CheckpointOutcome(error="ShutdownException", reason="the lease is no longer held")
            try:
                try:
                    lost = self._write(held, write, checkpoint_after)
                except Unavailable:
                    # Most often it took effect all the same; asking once more spares the child an error.
                    if not self.is_held(held):
                        raise
                    lost = self._write(held, write, checkpoint_after)
            except Throttled as error:
                return CheckpointOutcome(error="ThrottlingException", reason=str(error))
            except TableMissing as error:
                return CheckpointOutcome(error="InvalidStateException", reason=str(error))
            except KclHostError as error:
                return CheckpointOutcome(error="KinesisClientLibDependencyException", reason=str(error))
            if lost is not None:
                return CheckpointOutcome(error="ShutdownException", reason=lost.reason)
            held.lease = msgspec.structs.replace(held.lease, checkpoint=checkpoint_after(held.lease), **written)
            return CheckpointOutcome()

    def initiate_handover(self, held: HeldLease, to: str) -> None:
        """Names the next owner of a lease that this worker is about to leave; a failure leaves things as they are.

        The counter does not move, and the row we go on from is the pending one, so renewals and checkpoints go on.
        """
        with held.lock:
            if held.lease.is_handover_pending or not self.is_held(held):
                return
            try:
                outcome = self._table.initiate_handoff(held.lease, to)
            except RetryLater as error:
                # Should it have taken effect, the next write learns of it from the row.
                _log.warning(
                    "next owner could not be named",
                    extra={"action": "handover_failed", "lease_key": held.lease_key, "error": str(error)},
                )
                return
            if outcome.applied:
                pending = msgspec.structs.replace(held.lease, lease_owner=to, checkpoint_owner=self._worker_id)
                held.lease, held.handover_since_s = pending, self._clock.monotonic()

    def give_away(self, held: HeldLease, to: str | None = None, *, shun: str | None = None) -> str | None:
        """Gives the lease to `to`, else to the next owner that its row names, else to nobody: the leader decides.

        A next owner that is to be `shun`ned, because it has gone, does not get it. Returns the new owner; None when
        there is none, or somebody else changed the row before us. Either way the lease is not ours any more. Raises
        RetryLater when the outcome is open: call again.
        """
        with held.lock:
            return self._give_up(held, to, shun)

    def _give_up(self, held: HeldLease, to: str | None, shun: str | None) -> str | None:
        """Writes that the lease is not ours any more, and forgets it; returns its new owner."""
        if self.get(held.lease_key) is not held:
            return None
        target = None
        for _ in range(3):
            named = held.lease.lease_owner if held.lease.is_handover_pending else None
            target = to or (named if named != shun else None)
            if named and not target:
                # An eviction keeps the next owner that the row names: the handover ends with us before it.
                outcome = self._table.assign(held.lease, self._worker_id)
                if outcome.applied and outcome.row is not None:
                    held.go_on_from(outcome.row, self._clock.monotonic())
                    continue
            else:
                outcome = self._table.assign(held.lease, target) if target else self._table.evict(held.lease)
            # An earlier try may have taken effect although its answer was lost.
            if outcome.applied or (target and outcome.row is not None and outcome.row.actual_owner == target):
                break
            # A renewal cannot refuse these writes (they do not look at the counter); a handover just announced can.
            verdict = judge_refused(held.lease, outcome.row, held.in_doubt, self._worker_id)
            target = None
            if isinstance(verdict, Lost):
                break
            held.go_on_from(verdict, self._clock.monotonic())
        self._forget(held)
        return target

    def _write(
        self,
        held: HeldLease,
        write: Callable[[Lease], WriteOutcome],
        checkpoint_after: Callable[[Lease], ExtendedSequenceNumber | None],
    ) -> Lost | None:
        """A write that is conditional on the counter, repeated from the row while the row turns out to be ours.

        Which it can twice: an answer was lost, and the leader announced a handover just after.
        """
        for _ in range(3):
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
            held.go_on_from(verdict, before_s)
        else:
            verdict = Lost("refused again and again, although the row is ours")
        self._lose(held, verdict.reason)
        return verdict
