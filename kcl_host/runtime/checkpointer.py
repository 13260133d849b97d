"""Answers the checkpoint requests of one child, within what it may ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.decisions import checkpoint as checkpoints
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.multilang.dialogue import CheckpointRequested


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
    ) -> None:
        self.log = log
        self._held = held
        self._held_leases = held_leases
        self._positions = checkpoints.started(checkpoint)
        self._on_written = on_written

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
        decision = checkpoints.resolve(self._positions, request.sequence_number, request.sub_sequence_number)
        if isinstance(decision, checkpoints.Refused):
            self.log.warning("checkpoint refused", extra={"action": "checkpoint_refused", "reason": decision.reason})
            return decision.error
        if isinstance(decision, checkpoints.Unchanged):
            return None
        return self._write(decision.position)

    def _write(self, position: ExtendedSequenceNumber) -> str | None:
        outcome = self._held_leases.checkpoint(self._held, position)
        if outcome.error is not None:
            self.log.warning(
                "checkpoint failed",
                extra={"action": "checkpoint_failed", "error": outcome.error, "reason": outcome.reason},
            )
            return outcome.error
        self._positions = checkpoints.written(self._positions, position)
        self.log.debug("checkpoint written", extra={"action": "checkpoint_written", "checkpoint": str(position)})
        self._on_written()
        return None
