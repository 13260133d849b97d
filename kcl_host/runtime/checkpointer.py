"""Answers the checkpoint requests of one child, within what it may ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcl_host.coordination.held_leases import CheckpointOutcome, HeldLease, HeldLeases
from kcl_host.decisions import checkpoint as checkpoints
from kcl_host.instruments import NOTHING, ShardInstruments
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber, PreparedCheckpoint
from kcl_host.multilang.dialogue import CheckpointRequested, PrepareCheckpointRequested


class Checkpointer:
    """The positions of one child, from its `initialize` to its end; the next child gets a new one.

    Belongs to the thread of the shard consumer. `on_written` is called after each write that moved the checkpoint.
    """

    def __init__(
        self,
        held: HeldLease,
        held_leases: HeldLeases,
        checkpoint: ExtendedSequenceNumber,
        log: logging.LoggerAdapter[logging.Logger],
        on_written: Callable[[], None],
        instruments: ShardInstruments | None = None,
    ) -> None:
        self.log = log
        self._held = held
        self._held_leases = held_leases
        self._positions = checkpoints.started(checkpoint)
        self._on_written = on_written
        self._instruments = instruments or NOTHING.of_shard(held.lease.shard_id, held.lease.stream_name)

    def __repr__(self) -> str:
        return f"<Checkpointer {self._held.lease_key} last={self.last} of {self._positions.largest_permitted}>"

    @property
    def last(self) -> ExtendedSequenceNumber:
        """What the row says, as far as we know."""
        return self._positions.last

    def deliver(self, position: ExtendedSequenceNumber) -> None:
        """From now on the child may checkpoint up to `position`; to be called before it sees that record."""
        self._positions = checkpoints.delivered(self._positions, position)

    def enter_shard_end(self) -> None:
        """From now on a checkpoint of everything means SHARD_END."""
        self._positions = checkpoints.entering_shard_end(self._positions)

    def answer(self, request: CheckpointRequested) -> str | None:
        """None when it was done, or the name of the error that the child gets to see. Raises nothing of the tables."""
        if not request.allowed:
            self.log.warning("checkpoint refused in this action", extra={"action": "checkpoint_refused"})
            return "InvalidStateException"
        state: bytes | checkpoints.Refused | None = None
        if isinstance(request, PrepareCheckpointRequested):
            state = checkpoints.parse_state(request.application_state)
        if isinstance(state, checkpoints.Refused):
            return self._refused(state)
        decision = checkpoints.resolve(self._positions, request.sequence_number, request.sub_sequence_number)
        if isinstance(decision, checkpoints.Refused):
            return self._refused(decision)
        if isinstance(decision, checkpoints.Unchanged):
            return None
        if isinstance(request, PrepareCheckpointRequested):
            return self._prepare(decision.position, state)
        return self._write(decision.position)

    def report_pending(self, row: Lease) -> PreparedCheckpoint | None:
        """Says what `row`, from which the child is about to start, has pending; returns what the child is told of it.

        Neither is a place to start from: that is the checkpoint.
        """
        prepared, replay_end = checkpoints.prepared_checkpoint(row), checkpoints.replay_end(row)
        if prepared is not None:
            extra = {"action": "checkpoint_prepared_before", "pending_checkpoint": str(prepared.position)}
            self.log.info("a checkpoint was prepared and not made", extra=extra)
        if replay_end is not None:
            extra = {"action": "replay_window", "after": str(row.checkpoint), "up_to": str(replay_end)}
            self.log.info("records that the owner before has delivered come again", extra=extra)
        return prepared

    def note_delivered(self) -> None:
        """Leaves a note for the next owner of the lease; to be called right before it is handed over.

        A note is not worth waiting for: what fails is only logged, and the lease may be lost by then.
        """
        # While a write of ours is in doubt the row may hold a prepared checkpoint of the child that we do not know of.
        position = None if self._held.in_doubt else checkpoints.handover_note(self._positions, self._held.lease)
        if position is None:
            return
        outcome = self._held_leases.prepare_checkpoint(self._held, position, checkpoints.HANDOVER_STATE)
        if outcome.error is not None:
            self._failed("handover note failed", "handover_note_failed", outcome)
            return
        extra = {"action": "handover_noted", "checkpoint": str(self.last), "delivered": str(position)}
        self.log.info("lease is handed over with records after its checkpoint delivered", extra=extra)

    def _prepare(self, position: ExtendedSequenceNumber, state: bytes | None) -> str | None:
        with self._instruments.updating_lease(shard_end=position.is_shard_end) as update:
            outcome = self._held_leases.prepare_checkpoint(self._held, position, state)
            update.success = outcome.error in (None, "ShutdownException")
        if outcome.error is not None:
            return self._failed("checkpoint not prepared", "checkpoint_failed", outcome)
        self.log.debug(
            "checkpoint prepared", extra={"action": "checkpoint_prepared", "pending_checkpoint": str(position)}
        )
        return None

    def _write(self, position: ExtendedSequenceNumber) -> str | None:
        with self._instruments.updating_lease(shard_end=position.is_shard_end) as update:
            outcome = self._held_leases.checkpoint(self._held, position)
            update.success = outcome.error in (None, "ShutdownException")
        if outcome.error is not None:
            return self._failed("checkpoint failed", "checkpoint_failed", outcome)
        self._positions = checkpoints.written(self._positions, position)
        self.log.debug("checkpoint written", extra={"action": "checkpoint_written", "checkpoint": str(position)})
        self._on_written()
        return None

    def _failed(self, message: str, action: str, outcome: CheckpointOutcome) -> str | None:
        self.log.warning(message, extra={"action": action, "error": outcome.error, "reason": outcome.reason})
        return outcome.error

    def _refused(self, refusal: checkpoints.Refused) -> str:
        self.log.warning("checkpoint refused", extra={"action": "checkpoint_refused", "reason": refusal.reason})
        return refusal.error
