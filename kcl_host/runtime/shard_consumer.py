"""The life of one held lease: wait for the parents, initialize, process, shut down.

One thread owns a consumer, its child and the dialogue with it, and calls `run_once` and `wait` in turn; other threads
speak to it through its handoff (batches and stop reasons), `poke` and `kill_child`. The states are those of
decisions/consumer_state.py. A child that fails takes nothing with it but its own shard: it is restarted from the last
checkpoint (DESIGN.md 4.1). A lease that goes, or is given away, never waits for the end of a child process.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import Final

from kcl_host.coordination.held_leases import HeldLease
from kcl_host.decisions.child_restart import (
    ChildHistory,
    Fatal,
    HandOver,
    Restart,
    after_failure,
    after_narrowing,
    after_progress,
)
from kcl_host.decisions.consumer_state import EVENT_OF, ConsumerEvent, ConsumerState, ShutdownReason, next_state
from kcl_host.decisions.poison import Verdict
from kcl_host.decisions.position import drop_delivered
from kcl_host.decisions.shard_end import conclude_shard_end, is_blocked_on_parents
from kcl_host.errors import AccessError, ChildError, ConfigurationError, InvalidPosition, RetryLater
from kcl_host.log import bind
from kcl_host.model.lease import Lease
from kcl_host.model.records import Batch
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import ChildShard
from kcl_host.retrieval.handoff import Handoff
from kcl_host.runtime.checkpointer import Checkpointer
from kcl_host.runtime.child_session import ChildSession
from kcl_host.runtime.consumer_services import ConsumerServices, Turns
from kcl_host.runtime.consumer_status import ConsumerStatus
from kcl_host.runtime.poison_records import PoisonRecords

_log = logging.getLogger(__name__)

IDLE_S: Final = 60.0
"""A consumer with nothing to do is woken by its handoff; this is only how often it looks by itself."""
BACKOFF_MAX_S: Final = 30.0
REPEATED: Final = (RetryLater, AccessError, InvalidPosition, ConfigurationError)
"""Failures of a step that may pass, or that only an operator can end. Everything else is a bug and ends the worker."""


class ShardConsumer:
    def __init__(self, held: HeldLease, services: ConsumerServices) -> None:
        self.held = held
        self._services = services
        self._settings = services.settings
        self._clock = services.clock
        lease = held.lease
        several = {"stream": lease.stream_name} if lease.stream_name else {}
        self._log = self._shard_log = bind(_log, shard=lease.shard_id, lease_key=lease.lease_key, **several)
        self.state = ConsumerState.WAITING_ON_PARENT_SHARDS
        retrieval = services.settings.retrieval
        self.handoff = Handoff(
            max_batches=retrieval.max_pending_batches,
            max_records=retrieval.max_pending_records,
            max_bytes=retrieval.max_pending_bytes,
            new_signal=services.threads.signal,
        )
        self._instruments = services.instruments.of_shard(lease.shard_id, lease.stream_name)
        self._poison: PoisonRecords | None = None
        if self._settings.poison.after_failures and services.dead_letters is not None:
            self._poison = PoisonRecords(
                lease, self._settings, services.dead_letters, services.clock, self._shard_log, self._instruments
            )
        self._source = services.new_source(held, self.handoff, self._instruments)
        self._source_turns: Turns | None = None
        self._wake = services.threads.event()
        self._session: ChildSession | None = None
        self._child_state = ""
        self._history = ChildHistory()
        self._not_before_s = -math.inf
        self._kill_requested = False
        self._checkpointer: Checkpointer | None = None
        self._failed_turns = 0
        self._step_since_s: float | None = None
        self._at_shard_end = False
        self._child_shards: tuple[ChildShard, ...] = ()
        self._asked_to_shut_down = self._answered = False
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
        """The deadline has passed: the child's group is killed, one just starting included; the consumer goes on."""
        self._kill_requested = True
        session = self._session
        if session is not None:
            session.kill()

    def finish_now(self) -> bool:
        """The deadline of the stop has passed. True when that costs the child its life: it has not answered yet.

        One that has answered only waits for the table; the lease is let go without a write.
        """
        if not self._answered:
            self.kill_child()
            return True
        self.stop(ShutdownReason.LEASE_LOST)
        return False

    def warn_if_slow(self) -> None:
        """Says so when the task under way takes longer than logWarningForTaskAfterMillis; to be called each second."""
        limit_s, since_s = self._settings.lifecycle.log_warning_for_task_after_s, self._step_since_s
        if limit_s is not None and since_s is not None:
            for_s = self._clock.monotonic() - since_s
            if for_s > limit_s:
                extra = {"action": "task_slow", "task": self.state.value, "for_s": round(for_s, 1)}
                self._log.warning("a task takes long", extra=extra)

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
        self._step_since_s = self._clock.monotonic()
        try:
            pause_s = self._step()
        except ChildError as error:
            self._child_failed(error)
            pause_s = 0.0
        except REPEATED as error:
            return self._step_failed(error)
        finally:
            self._step_since_s = None
        self._failed_turns = 0
        return pause_s

    def _step_failed(self, error: Exception) -> float:
        """Seconds until the same step is tried again; growing while there is no child that wants to be served."""
        self._failed_turns += 1
        self._last_error = str(error)
        pause_s = self._settings.lifecycle.task_backoff_s
        if self._session is None:
            pause_s = min(pause_s * 2.0 ** min(self._failed_turns - 1, 60), max(pause_s, BACKOFF_MAX_S))
            pause_s *= 0.5 + 0.5 * self._services.rng.random()
        is_power_of_two = self._failed_turns & (self._failed_turns - 1) == 0
        self._log.log(
            logging.WARNING if is_power_of_two else logging.DEBUG,
            "step failed, will be repeated",
            extra={
                "action": "step_failed",
                "task": self.state.value,
                "failures": self._failed_turns,
                "error": str(error),
            },
        )
        return pause_s

    def wait(self, pause_s: float) -> None:
        """Until there is something to do or the time is over; the child is served meanwhile.

        Batches end only the wait of an idle consumer; a stop or a poke ends any wait without a child. A step that is
        repeated with a child at hand polls no descriptor: that of the handoff stays readable while there is anything
        in it, acted upon or not.
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

    def _already_ended(self, lease: Lease) -> float:
        """Completed before us, or by a child that then failed: only the clean-up has something to do (spec 4.4)."""
        self._services.lease_cleanup.enqueue(lease)
        self._on(ConsumerEvent.SHARD_END)
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    # WAITING_ON_PARENT_SHARDS

    def _wait_for_parents(self) -> float:
        lease = self.held.lease
        if lease.is_at_shard_end:
            return self._already_ended(lease)
        parents = [self._services.lease_table.get(key) for key in map(lease.key_of, sorted(lease.parent_shard_ids))]
        if is_blocked_on_parents(parents):
            return self._settings.coordinator.parent_shard_poll_s
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    # INITIALIZING

    def _initialize(self) -> float:
        remaining_s = self._not_before_s - self._clock.monotonic()
        if remaining_s > 0:
            return min(remaining_s, IDLE_S)
        if not self._services.held_leases.is_held(self.held):
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        row = self._services.lease_table.get(self.held.lease_key)
        if row is None or row.checkpoint is None:
            self._log.error("lease row is gone or has no checkpoint", extra={"action": "lease_row_unusable"})
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        if row.is_at_shard_end:
            self._services.on_shard_end(self.held)
            return self._already_ended(row)
        if self._poison is not None and not self._bury(self._poison):
            return 0.0
        self._open_source(row.checkpoint)
        self._start_child(row, row.checkpoint)
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    def _start_child(self, row: Lease, checkpoint: ExtendedSequenceNumber) -> None:
        self._child_state = "STARTING"
        checkpointer = Checkpointer(
            self.held,
            self._services.held_leases,
            checkpoint,
            self._shard_log,
            self._checkpoint_moved,
            self._instruments,
        )
        session = self._services.start_session(self.held, checkpointer.answer)
        self._session, self._checkpointer = session, checkpointer
        self._log = checkpointer.log = bind(self._shard_log, child_pid=session.pid)
        if self._kill_requested:
            session.kill()
        with self._services.instruments.initializing():
            session.initialize(row.shard_id, checkpoint, checkpointer.report_pending(row))
        self._child_state = "RUNNING"
        self._log.info("child initialized", extra={"action": "child_initialized", "checkpoint": str(checkpoint)})

    def _checkpoint_moved(self) -> None:
        self._history = after_progress(self._history)
        self._checkpoint_at_s = self._clock.monotonic()
        self._last_error = ""
        if self._poison is not None and self._checkpointer is not None:
            self._poison.checkpointed(self._checkpointer.last)

    def _open_source(self, checkpoint: ExtendedSequenceNumber) -> None:
        if self._source_turns is None:
            self._source.open(checkpoint)
            self._source_turns = self._services.start_source(f"source-{self.held.lease_key}", self._source.run_once)
        else:
            self._source.reopen(checkpoint)
            self._source_turns.poke()

    # PROCESSING

    def _process(self) -> float:
        batch = self.handoff.get(0.0) if self._poison is None else self._poison.next_batch(self.handoff)
        if batch is None:
            if self.handoff.failure is not None:
                raise self.handoff.failure
            return IDLE_S
        if self._source_turns is not None:
            self._source_turns.poke()
        if not self._services.held_leases.is_held(self.held):
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        with self._instruments.task(batch):
            self._deliver(batch)
        if batch.shard_end:
            self._at_shard_end, self._child_shards = True, batch.child_shards
            self._on(ConsumerEvent.SHARD_END)
        return 0.0

    def _deliver(self, batch: Batch) -> None:
        assert self._checkpointer is not None and self._session is not None
        records = drop_delivered(batch.records, self._checkpointer.last)
        if records or self._settings.lifecycle.call_process_records_for_empty_list:
            if records:
                self._checkpointer.deliver(records[-1].position)
            self.held.record_payload(batch.payload_bytes)
            if self._poison is not None:
                self._poison.delivering(records)
            with self._instruments.delivering(len(records), batch.payload_bytes):
                self._session.process_records(records, batch.millis_behind_latest)
            if self._poison is not None and self._poison.delivered():
                self._history = after_progress(self._history)
            self._records += len(records)
            self._payload_bytes += batch.payload_bytes
        self._millis_behind_latest = batch.millis_behind_latest

    # SHUTDOWN_REQUESTED

    def _give_away(self) -> float:
        """shutdownRequested, then the lease to its next owner, or to nobody when the host stops."""
        if self._session is not None and not self._asked_to_shut_down:
            self._asked_to_shut_down = True
            # A child that fails here fails again at leaseLost, and is ended there: not between us and the next owner.
            with contextlib.suppress(ChildError):
                self._session.shutdown_requested()
        self._answered = True
        self._transfer()
        self.stop(ShutdownReason.LEASE_LOST)
        return 0.0

    def _transfer(self) -> None:
        self._note_delivered()
        held_leases, departure, lease = self._services.held_leases, self._services.departure, self.held.lease
        if not held_leases.is_held(self.held):
            return
        to, gone = None, None
        if lease.is_handover_pending and lease.lease_owner and departure.is_gone(lease.lease_owner):
            gone = lease.lease_owner
            to = departure.next_owners([lease]).get(lease.lease_key)
        target = held_leases.give_away(self.held, to, shun=gone)
        if target is None:
            self._log.info("lease released", extra={"action": "lease_released"})
        else:
            self._log.info("lease handed over", extra={"action": "lease_handed_over", "to": target})

    def _note_delivered(self) -> None:
        if self._settings.lease.handover_pending_checkpoint and self._checkpointer is not None:
            self._checkpointer.note_delivered()

    # SHUTTING_DOWN

    def _shut_down(self) -> float:
        """The lease goes, or has gone: leaseLost for a child that is there, and the end."""
        if self.handoff.stop_reason == ShutdownReason.REQUESTED:
            self._transfer()
        # It may have expired by our clock only, or its row be of no use: without a consumer nobody may renew it.
        if self._services.held_leases.drop(self.held):
            extra = {
                "action": "lease_lost",
                "reason": "not renewed for longer than failoverTimeMillis, not handed over in time, or no usable row",
            }
            self._log.warning("lease lost", extra=extra)
        if self._session is not None:
            try:
                with self._services.instruments.shutting_down():
                    self._session.lease_lost()
            except ChildError as error:
                self._child_is_gone(error)
        self._end_child()
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    def _end_shard(self) -> float:
        lease, services = self.held.lease, self._services
        if not services.held_leases.is_held(self.held):
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        prepared = services.shard_end.prepare(lease, self._child_shards)
        if prepared.retry:
            if self.handoff.stop_reason is not None:
                return self._give_away()  # The next owner waits instead.
            raise RetryLater(f"the end of the shard must wait: {prepared.reason}")
        if prepared.lost:
            self._log.warning("shard end given up", extra={"action": "shard_end_given_up", "reason": prepared.reason})
            self.stop(ShutdownReason.LEASE_LOST)
            return 0.0
        at_shard_end = prepared.is_at_shard_end or self._ask_to_end_shard()
        conclusion = conclude_shard_end(self._child_shards, is_at_shard_end=at_shard_end)
        if conclusion.enqueue_for_cleanup:
            services.lease_cleanup.enqueue(self.held.lease)
        if not conclusion.completed:
            raise ChildError(
                "the child answered shardEnded without a checkpoint: the shard cannot end and its child shards cannot "
                "start; it must checkpoint without a sequence number in shardEnded"
            )
        children = [child.shard_id for child in self._child_shards]
        self._log.info("shard ended", extra={"action": "shard_ended", "children": children})
        services.on_shard_end(self.held)
        if self.handoff.stop_reason == ShutdownReason.REQUESTED:
            self._transfer()
        self._end_child()
        self._on(ConsumerEvent.TASK_SUCCEEDED)
        return 0.0

    def _ask_to_end_shard(self) -> bool:
        """True when the child has checkpointed SHARD_END; what becomes of the child after that does not matter."""
        assert self._checkpointer is not None and self._session is not None
        self._checkpointer.enter_shard_end()
        try:
            with self._services.instruments.shutting_down():
                self._session.shard_ended()
        except ChildError as error:
            if not self._checkpointer.last.is_shard_end:
                raise
            self._say_failed(error)
        return self._checkpointer.last.is_shard_end

    # Children that fail

    def _child_failed(self, error: ChildError) -> None:
        """Ends what is left of the child and decides when the next one starts, from the last checkpoint."""
        self._child_is_gone(error)
        self._on(ConsumerEvent.CHILD_FAILED)
        self._at_shard_end, self._child_shards = False, ()
        if self.handoff.stop_reason is not None:
            return
        if self._settings.child.failure_policy == "exit":
            self._child_state, self._not_before_s = "FATAL", math.inf
            self._services.on_fatal(f"child of shard {self.held.lease.shard_id}", error)
            return
        if self._poison is None or (verdict := self._poison.child_failed()) is None:
            self._carry_out(*self._after_failure())
            return
        if verdict not in (Verdict.NARROWED, Verdict.POISON):
            decision, to = self._after_failure(to_others=verdict is not Verdict.TOO_MANY)
            if verdict is not Verdict.UNPROVEN or not isinstance(decision, Fatal):
                self._carry_out(decision, to)
                return
        if verdict is not Verdict.NARROWED:
            self._poison.condemn(str(error), self._services.last_stderr(self.held.lease_key))
        self._carry_out(after_narrowing(self._services.rng, self._settings.child))

    def _after_failure(self, *, to_others: bool = True) -> tuple[Restart | HandOver | Fatal, str | None]:
        """What the rules of restarts say to one more failure, and who could take the lease then."""
        # A lease that came from another worker without any progress since has been handed over, or its worker crashed.
        handed_over_before = self.held.lease.owner_switches_since_checkpoint > 0
        to = None if handed_over_before or not to_others else self._other_worker()
        self._history, decision = after_failure(
            self._history,
            now_s=self._clock.monotonic(),
            rng=self._services.rng,
            settings=self._settings.child,
            other_workers_alive=to is not None,
            handed_over_before=handed_over_before,
        )
        return decision, to

    def _carry_out(self, decision: Restart | HandOver | Fatal, to: str | None = None) -> None:
        pause_s = 0.0
        match decision:
            case HandOver():
                self._hand_over_failing(to)
            case Fatal():
                self._child_state, pause_s = "FATAL", decision.retry_in_s
                self._log.error(
                    "child keeps failing without progress; the shard stands still until the next try",
                    extra={"action": "child_fatal", "failures": self._history.failures, "next_try_s": round(pause_s)},
                )
            case Restart():
                self._child_state, pause_s = "BACKOFF", decision.delay_s
                self._log.warning(
                    "child will be restarted",
                    extra={"action": "child_backoff", "failures": self._history.failures, "delay_s": round(pause_s, 1)},
                )
        self._not_before_s = self._clock.monotonic() + pause_s

    def _bury(self, poison: PoisonRecords) -> bool:
        """Puts a poison record into the dead letter, if there is one; False when that has to be tried again later.

        A target that is down is a failure as that of a child is: growing pauses, and once another worker.
        """
        try:
            if poison.bury():
                self._history = after_progress(self._history)
        except REPEATED as error:
            self._last_error = str(error)
            extra = {"action": "dead_letter_failed", "error": str(error)}
            self._log.error("a dead letter cannot be written; the shard stands still until it is", extra=extra)
            self._carry_out(*self._after_failure())
            return False
        return True

    def _other_worker(self) -> str | None:
        """Who could take this lease; None as long as nobody asks for it, or when nobody can."""
        if self._history.failures + 1 < self._settings.child.failures_before_handover:
            return None
        try:
            return self._services.departure.next_owners([self.held.lease]).get(self.held.lease_key)
        except RetryLater as error:
            self._log.warning("no other worker found", extra={"action": "next_owner_unknown", "error": str(error)})
            return None

    def _hand_over_failing(self, to: str | None) -> None:
        """Direct, as there is no child to ask; such a write counts as a switch of owners without a checkpoint."""
        self._note_delivered()
        try:
            target = self._services.held_leases.give_away(self.held, to)
        except RetryLater as error:
            self._log.warning("lease not handed over", extra={"action": "handover_failed", "error": str(error)})
            return  # One more try of the child here, and if that fails one more of this.
        extra = {"action": "lease_handed_over_failing", "to": target, "failures": self._history.failures}
        self._log.error("child keeps failing here, the lease goes to another worker", extra=extra)
        self.stop(ShutdownReason.LEASE_LOST)

    def _child_is_gone(self, error: ChildError) -> None:
        self._say_failed(error)
        self._end_child()

    def _say_failed(self, error: ChildError) -> None:
        self._last_error = str(error)
        self._log.error("child failed", extra={"action": "child_failed", "error": str(error)})

    def _end_child(self) -> None:
        session = self._session
        if session is not None:
            status = session.end()
            self._log.info("child ended", extra={"action": "child_ended", "status": status})
            self._session, self._log = None, self._shard_log  # Only now: until then it can be killed.
        self._child_state = ""

    def _close(self) -> None:
        """Last act of the thread: no child, no source, no further wake-up.

        The source's thread ends by itself: it may be in a read that takes long, and whatever that brings is refused.
        """
        self._end_child()
        self._instruments.end()
        self.handoff.close()
        if self._source_turns is not None:
            self._source_turns.stop()
