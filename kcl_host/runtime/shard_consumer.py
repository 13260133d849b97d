"""The life of one held lease: wait for the parents, initialize, process, shut down.

One thread owns a consumer, its child and the dialogue with it, and calls `run_once` and `wait` in turn; other threads
speak to it only through its handoff (batches and stop reasons). The states are those of decisions/consumer_state.py.
A child that fails takes nothing with it but its own shard: it is restarted from the last checkpoint (DESIGN.md 4.1).
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.lease_cleanup import LeaseCleanup
from kcl_host.coordination.shard_end import ShardEnd
from kcl_host.decisions import checkpoint as checkpoints
from kcl_host.decisions.child_restart import ChildHistory, Fatal, Restart, after_failure, after_progress
from kcl_host.decisions.consumer_state import EVENT_OF, ConsumerEvent, ConsumerState, ShutdownReason, next_state
from kcl_host.decisions.position import drop_delivered
from kcl_host.decisions.shard_end import conclude_shard_end, is_blocked_on_parents
from kcl_host.errors import ChildError, KclHostError
from kcl_host.log import bind
from kcl_host.model.records import Batch
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import ChildShard
from kcl_host.multilang.dialogue import CheckpointRequested
from kcl_host.ports import Clock, LeaseTable
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.polling import PollingSource
from kcl_host.runtime.child_session import ChildSession
from kcl_host.runtime.threads import Periodic

_log = logging.getLogger(__name__)

IDLE_S: Final = 60.0
"""A consumer with nothing to do is woken by its handoff; this is only how often it looks by itself."""


@dataclass(frozen=True, kw_only=True)
class ConsumerServices:
    """What all consumers of a worker share."""

    settings: Settings
    lease_table: LeaseTable
    held_leases: HeldLeases
    shard_end: ShardEnd
    lease_cleanup: LeaseCleanup
    clock: Clock
    rng: random.Random
    new_source: Callable[[HeldLease, Handoff], PollingSource]
    start_session: Callable[[HeldLease, Callable[[CheckpointRequested], str | None]], ChildSession]
    on_fatal: Callable[[str, BaseException], None]
    on_shard_end: Callable[[HeldLease], None]


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as people see it. `child` is STARTING, RUNNING, BACKOFF, FATAL or empty when there is none yet."""

    lease_key: str
    shard_id: str
    parent_shard_ids: tuple[str, ...]
    state: str
    child: str
    child_pid: int | None
    child_failures: int
    records: int
    payload_bytes: int
    millis_behind_latest: int | None
    checkpoint: ExtendedSequenceNumber | None
    checkpoint_at_s: float | None
    last_error: str


class ShardConsumer:
    def __init__(self, held: HeldLease, services: ConsumerServices) -> None:
        self.held = held
        self._services = services
        self._settings = services.settings
        self._clock = services.clock
        self._log = bind(_log, shard=held.lease.shard_id, lease_key=held.lease_key)
        self.state = ConsumerState.WAITING_ON_PARENT_SHARDS
        retrieval = services.settings.retrieval
        self.handoff = Handoff(
            max_batches=retrieval.max_pending_batches,
            max_records=retrieval.max_pending_records,
            max_bytes=retrieval.max_pending_bytes,
        )
        self._source = services.new_source(held, self.handoff)
        self._source_thread: Periodic | None = None
        self._wake = threading.Event()
        self._session: ChildSession | None = None
        self._child_state = ""
        self._history = ChildHistory()
        self._not_before_s = 0.0
        self._positions: checkpoints.CheckpointState | None = None
        self._at_shard_end = False
        self._child_shards: tuple[ChildShard, ...] = ()
        self._asked_to_shut_down = False
        self._records = 0
        self._payload_bytes = 0
        self._millis_behind_latest: int | None = None
        self._checkpoint_at_s: float | None = None
        self._last_error = ""

    def __repr__(self) -> str:
        return f"<ShardConsumer {self.held.lease_key} {self.state.name} child={self._child_state or '-'}>"

    # What other threads may call

    def stop(self, reason: ShutdownReason) -> None:
        """Asks the consumer to end; the strongest reason wins, a running action of the child is not interrupted."""
        self.handoff.stop(reason)
        self._wake.set()

    def poke(self) -> None:
        """Something it may be waiting for has happened: a parent shard has ended."""
        self._wake.set()

    def kill_child(self) -> None:
        """The deadline has passed: the child's group is killed, and the consumer goes on without it."""
        session = self._session
        if session is not None:
            session.kill()

    def status(self) -> ConsumerStatus:
        session, lease = self._session, self.held.lease
        return ConsumerStatus(
            lease_key=lease.lease_key,
            shard_id=lease.shard_id,
            parent_shard_ids=tuple(sorted(lease.parent_shard_ids)),
            state=self.state.name,
            child=self._child_state,
            child_pid=None if session is None else session.pid,
            child_failures=self._history.failures,
            records=self._records,
            payload_bytes=self._payload_bytes,
            millis_behind_latest=self._millis_behind_latest,
            checkpoint=lease.checkpoint,
            checkpoint_at_s=self._checkpoint_at_s,
            last_error=self._last_error,
        )

    # The turns

    def run(self) -> None:
        """The body of the consumer's thread."""
        try:
            while (pause_s := self.run_once()) is not None:
                if pause_s > 0:
                    self.wait(pause_s)
        except Exception as error:
            self._services.on_fatal(f"shard consumer of {self.held.lease_key}", error)
        finally:
            self._close()

    def run_once(self) -> float | None:
        """One step; the seconds until the next one unless the handoff wakes us before, None when complete."""
        self._wake.clear()
        try:
            return self._step()
        except ChildError as error:
            self._child_failed(error)
            return 0.0
        except KclHostError as error:
            self._last_error = str(error)
            self._log.warning("step failed, will be repeated", extra={"action": "step_failed", "error": str(error)})
            return self._settings.lifecycle.task_backoff_s

    def wait(self, pause_s: float) -> None:
        """Until there is something to do or the time is over; the child is served meanwhile.

        Batches end only the wait of an idle consumer; a stop or a poke ends any wait without a child.
        """
        try:
            if self._session is not None:
                self._session.idle(self.handoff.wake_fd if pause_s == IDLE_S else None, pause_s)
            else:
                self._wake.wait(pause_s)
        except ChildError as error:
            self._child_failed(error)

    def _step(self) -> float | None:
        reason = self.handoff.stop_reason
        if reason is not None:
            self._on(EVENT_OF[ShutdownReason(reason)])
        match self.state:
            case ConsumerState.WAITING_ON_PARENT_SHARDS:
                return self._wait_for_parents()
            case ConsumerState.INITIALIZING:
                return self._initialize()
            case ConsumerState.PROCESSING:
                return self._process()
            case ConsumerState.SHUTDOWN_REQUESTED:
                return self._give_away()
            case ConsumerState.SHUTTING_DOWN if self._at_shard_end and reason != ShutdownReason.LEASE_LOST:
                return self._end_shard()
            case ConsumerState.SHUTTING_DOWN:
                return self._shut_down()
            case ConsumerState.SHUTDOWN_COMPLETE:
                return None

    def _on(self, event: ConsumerEvent) -> None:
        before, self.state = self.state, next_state(self.state, event)
        if before is not self.state:
            self._log.debug(
                "state changed", extra={"action": "state_changed", "from": before.name, "to": self.state.name}
            )

    # WAITING_ON_PARENT_SHARDS

    def _wait_for_parents(self) -> float | None:
        lease = self.held.lease
        if lease.is_at_shard_end:
            # Completed by somebody before us: the child has nothing to do, only the clean-up has (spec 4.4).
            self._services.lease_cleanup.enqueue(lease)
            self._on(ConsumerEvent.SHARD_END)
            self._on(ConsumerEvent.TASK_SUCCEEDED)
            return None
        parents = [self._services.lease_table.get(key) for key in map(lease.key_of, sorted(lease.parent_shard_ids))]
        if is_blocked_on_parents(parents):
            return self._settings.coordinator.parent_shard_poll_s
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    # INITIALIZING

    def _initialize(self) -> float | None:
        remaining_s = self._not_before_s - self._clock.monotonic()
        if remaining_s > 0:
            return remaining_s
        row = self._services.lease_table.get(self.held.lease_key)
        if row is None or row.checkpoint is None:
            self._log.error("lease row is gone or has no checkpoint", extra={"action": "lease_row_unusable"})
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        self._positions = checkpoints.started(row.checkpoint)
        self._open_source(row.checkpoint)
        self._child_state = "STARTING"
        self._session = self._services.start_session(self.held, self._checkpoint)
        self._session.initialize(self.held.lease.shard_id, row.checkpoint)
        self._child_state = "RUNNING"
        self._log.info(
            "child initialized",
            extra={"action": "child_initialized", "child_pid": self._session.pid, "checkpoint": str(row.checkpoint)},
        )
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    def _open_source(self, checkpoint: ExtendedSequenceNumber) -> None:
        if self._source_thread is None:
            self._source.open(checkpoint)
            self._source_thread = Periodic(
                f"source-{self.held.lease_key}", self._source.run_once, on_fatal=self._services.on_fatal
            ).start()
        else:
            self._source.reopen(checkpoint)
            self._source_thread.poke()

    # PROCESSING

    def _process(self) -> float:
        batch = self.handoff.get(0.0)
        if batch is None:
            return IDLE_S
        if self._source_thread is not None:
            self._source_thread.poke()
        if not self._services.held_leases.is_held(self.held):
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        self._deliver(batch)
        if batch.shard_end:
            self._at_shard_end, self._child_shards = True, batch.child_shards
            self._on(ConsumerEvent.SHARD_END)
        return 0.0

    def _deliver(self, batch: Batch) -> None:
        assert self._positions is not None and self._session is not None
        records = drop_delivered(batch.records, self._positions.last)
        if records or self._settings.lifecycle.call_process_records_for_empty_list:
            if records:
                self._positions = checkpoints.delivered(self._positions, records[-1].position)
            self.held.record_payload(batch.payload_bytes)
            self._session.process_records(records, batch.millis_behind_latest)
            self._records += len(records)
            self._payload_bytes += batch.payload_bytes
        self._millis_behind_latest = batch.millis_behind_latest

    def _checkpoint(self, request: CheckpointRequested) -> str | None:
        """Answers the child's request: None, or the name of the error."""
        if not request.allowed or self._positions is None:
            self._log.warning("checkpoint refused in this action", extra={"action": "checkpoint_refused"})
            return "InvalidStateException"
        decision = checkpoints.resolve(self._positions, request.sequence_number, request.sub_sequence_number)
        if isinstance(decision, checkpoints.Refused):
            self._log.warning("checkpoint refused", extra={"action": "checkpoint_refused", "reason": decision.reason})
            return decision.error
        if isinstance(decision, checkpoints.Unchanged):
            return None
        outcome = self._services.held_leases.checkpoint(self.held, decision.position)
        if outcome.error is not None:
            self._log.warning(
                "checkpoint failed",
                extra={"action": "checkpoint_failed", "error": outcome.error, "reason": outcome.reason},
            )
            return outcome.error
        self._positions = checkpoints.written(self._positions, decision.position)
        self._checkpoint_at_s = self._clock.monotonic()
        self._history = after_progress(self._history)
        self._log.debug(
            "checkpoint written", extra={"action": "checkpoint_written", "checkpoint": str(decision.position)}
        )
        return None

    # SHUTDOWN_REQUESTED

    def _give_away(self) -> float:
        """shutdownRequested, then the lease to its next owner, or to nobody when the host stops."""
        if self._session is not None and not self._asked_to_shut_down:
            self._asked_to_shut_down = True
            try:
                self._session.shutdown_requested()
            except ChildError as error:
                self._child_is_gone(error)
        self._transfer()
        self.stop(ShutdownReason.LEASE_LOST)
        return 0.0

    def _transfer(self) -> None:
        held_leases = self._services.held_leases
        if not held_leases.is_held(self.held):
            return
        if self.held.lease.is_handover_pending:
            target = held_leases.complete_handover(self.held)
            self._log.info("lease handed over", extra={"action": "lease_handed_over", "to": target})
        else:
            held_leases.evict(self.held)
            self._log.info("lease released", extra={"action": "lease_released"})

    # SHUTTING_DOWN

    def _shut_down(self) -> float | None:
        """The lease goes, or has gone: leaseLost for a child that is there, and the end."""
        if self.handoff.stop_reason == ShutdownReason.REQUESTED:
            self._transfer()
        self._tell_lease_lost()
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return None

    def _tell_lease_lost(self) -> None:
        if self._session is not None:
            try:
                self._session.lease_lost()
            except ChildError as error:
                self._child_is_gone(error)
        self._end_child()

    def _end_shard(self) -> float | None:
        lease = self.held.lease
        if not self._services.held_leases.is_held(self.held):
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        prepared = self._services.shard_end.prepare(lease, self._child_shards)
        if prepared.retry:
            self._log.warning("shard end must wait", extra={"action": "shard_end_waits", "reason": prepared.reason})
            return self._settings.lifecycle.task_backoff_s
        if prepared.lost:
            self._log.warning("shard end given up", extra={"action": "shard_end_given_up", "reason": prepared.reason})
            self._services.held_leases.drop(self.held)
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        at_shard_end = prepared.is_at_shard_end or self._ask_to_end_shard()
        conclusion = conclude_shard_end(self._child_shards, is_at_shard_end=at_shard_end)
        if conclusion.enqueue_for_cleanup:
            self._services.lease_cleanup.enqueue(self.held.lease)
        if not conclusion.completed:
            raise ChildError(
                "the child answered shardEnded without a checkpoint: the shard cannot end and its child shards cannot "
                "start; it must checkpoint without a sequence number in shardEnded"
            )
        self._end_child()
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        children = [child.shard_id for child in self._child_shards]
        self._log.info("shard ended", extra={"action": "shard_ended", "children": children})
        self._services.on_shard_end(self.held)
        return None

    def _ask_to_end_shard(self) -> bool:
        """True when the child has checkpointed SHARD_END."""
        assert self._positions is not None and self._session is not None
        self._positions = checkpoints.entering_shard_end(self._positions)
        self._session.shard_ended()
        return self._positions.last.is_shard_end

    # Children that fail

    def _child_failed(self, error: ChildError) -> None:
        """Ends what is left of the child and decides when the next one starts, from the last checkpoint."""
        self._child_is_gone(error)
        self._on(ConsumerEvent.CHILD_FAILED)
        self._at_shard_end, self._child_shards = False, ()
        if self.handoff.stop_reason is not None:
            return
        if self._settings.child.failure_policy == "exit":
            self._services.on_fatal(f"child of shard {self.held.lease.shard_id}", error)
        self._history, decision = after_failure(
            self._history,
            now_s=self._clock.monotonic(),
            rng=self._services.rng,
            settings=self._settings.child,
            other_workers_alive=False,
            handed_over_before=False,
        )
        if isinstance(decision, Fatal):
            self._child_state, pause_s = "FATAL", decision.retry_in_s
            self._log.error(
                "child keeps failing without progress; the shard stands still until the next try",
                extra={"action": "child_fatal", "failures": self._history.failures, "next_try_s": round(pause_s)},
            )
        else:
            assert isinstance(decision, Restart)
            self._child_state, pause_s = "BACKOFF", decision.delay_s
            self._log.warning(
                "child will be restarted",
                extra={"action": "child_backoff", "failures": self._history.failures, "delay_s": round(pause_s, 1)},
            )
        self._not_before_s = self._clock.monotonic() + pause_s

    def _child_is_gone(self, error: ChildError) -> None:
        session = self._session
        self._last_error = str(error)
        self._log.error(
            "child failed",
            extra={"action": "child_failed", "child_pid": session and session.pid, "error": str(error)},
        )
        self._end_child()

    def _end_child(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            status = session.end()
            self._child_state = ""
            self._log.info("child ended", extra={"action": "child_ended", "child_pid": session.pid, "status": status})

    def _close(self) -> None:
        """Last act of the thread: no child, no source, no further wake-up."""
        self._end_child()
        self.handoff.close()
        if self._source_thread is not None:
            self._source_thread.stop()
            self._source_thread.join(self._settings.retrieval.request_timeout_s)
