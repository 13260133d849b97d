"""The poison records of one shard: what decisions/poison.py finds out, and the way into the dead letter.

Belongs to the thread of the shard consumer. There is none of these while poisonRecordAfterFailures is 0.
"""

from __future__ import annotations

import logging
from typing import Final

from msgspec.structs import replace

from kcl_host.config.settings import PoisonSettings, Settings
from kcl_host.decisions import poison
from kcl_host.decisions.poison import PoisonState, Verdict
from kcl_host.instruments import ShardInstruments
from kcl_host.log import masked_text, timestamp
from kcl_host.model.dead_letter import DeadLetter
from kcl_host.model.lease import Lease
from kcl_host.model.records import Batch, Record
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.ports import Clock, DeadLetters
from kcl_host.retrieval.handoff import Handoff

STDERR_LINES: Final = 20
STDERR_CHARACTERS: Final = 2000
"""Of each of those lines."""


class PoisonRecords:
    def __init__(
        self,
        lease: Lease,
        settings: Settings,
        dead_letters: DeadLetters,
        clock: Clock,
        log: logging.LoggerAdapter[logging.Logger],
        instruments: ShardInstruments,
    ) -> None:
        self._settings: PoisonSettings = settings.poison
        self._dead_letters = dead_letters
        self._clock = clock
        self._log = log
        self._instruments = instruments
        self._whose = {
            "application": settings.application_name,
            "worker": settings.worker_id,
            "stream": lease.stream_name or settings.streams[0].name,
            "shard": lease.shard_id,
        }
        self._state = PoisonState()
        self._rest: Batch | None = None
        self._held: list[Record] = []
        self._suspect: Record | None = None
        self._letter: DeadLetter | None = None

    def __repr__(self) -> str:
        return f"<PoisonRecords {self._state.suspicion or '-'} passed={len(self._state.passed)}>"

    # Records on their way to the child

    def next_batch(self, handoff: Handoff) -> Batch | None:
        """The next batch, or the part of it that is to be delivered on its own; what is left of it comes next."""
        batch, self._rest = self._rest or handoff.get(0.0), None
        if batch is None:
            return None
        piece, rest = poison.next_piece(self._state, batch.records, self._settings)
        if piece is batch.records:
            return batch
        if not rest:
            return replace(batch, records=piece, payload_bytes=_payload_bytes(piece))
        self._rest = replace(batch, records=rest, payload_bytes=_payload_bytes(rest))
        return replace(batch, records=piece, payload_bytes=_payload_bytes(piece), shard_end=False, child_shards=())

    def delivering(self, records: list[Record]) -> None:
        """The child is about to get these."""
        self._held = records

    def delivered(self) -> bool:
        """The child has answered for what it got. True when that is the first since a record was passed."""
        first = self._state.passed_in_a_row > 0 and bool(self._held)
        if self._held:
            self._state = poison.processed(self._state, self._held)
            self._held = []
        return first

    def checkpointed(self, checkpoint: ExtendedSequenceNumber) -> None:
        self._state = poison.checkpointed(self._state, checkpoint)

    # Children that fail

    def child_failed(self) -> Verdict | None:
        """What the end of the child says about the records it held; None when it held none. They come again."""
        self._rest = None
        held, self._held = self._held, []
        if not held:
            return None
        self._state, verdict = poison.failed(self._state, held, self._settings, self._clock.monotonic())
        suspicion = self._state.suspicion
        assert suspicion is not None
        self._suspect = held[0] if len(held) == 1 else None
        extra = {
            "action": "records_suspected",
            "from": str(suspicion.first),
            "to": str(suspicion.last),
            "records": suspicion.records,
            "failures": suspicion.failures,
        }
        self._log.warning("one of these records makes the child fail", extra=extra)
        if verdict is Verdict.TOO_MANY:
            extra = {"action": "poison_not_passed", "record": str(suspicion.first), "limit": self._settings.per_hour}
            self._log.error("a poison record stays: poisonRecordsPerHour were passed already", extra=extra)
        return verdict

    def condemn(self, error: str, stderr: tuple[str, ...]) -> None:
        """The record that is alone under suspicion is poison: `bury` has to be called before another child starts."""
        record, suspicion = self._suspect, self._state.suspicion
        assert record is not None and suspicion is not None
        self._letter = DeadLetter(
            **self._whose,
            sequence_number=record.sequence_number,
            sub_sequence_number=record.sub_sequence_number,
            partition_key=record.partition_key,
            approximate_arrival_timestamp=record.approximate_arrival_timestamp,
            data=record.data,
            error=masked_text(error),
            failures=suspicion.failures,
            stderr=tuple(masked_text(line)[:STDERR_CHARACTERS] for line in stderr[-STDERR_LINES:]),
            time=timestamp(self._clock.wall()),
        )

    def bury(self) -> bool | None:
        """Writes what was condemned into the dead letter, and passes it. None when there is nothing to write.

        True when the record is known to be at fault, False when it may be the child. Raises what DeadLetters.put does.
        """
        letter = self._letter
        if letter is None:
            return None
        self._dead_letters.put(letter)
        self._letter = None
        position = ExtendedSequenceNumber(letter.sequence_number, letter.sub_sequence_number)
        self._state = poison.passed(self._state, position, self._clock.monotonic())
        self._instruments.dead_lettered()
        extra = {"action": "record_dead_lettered", "record": str(position), "failures": letter.failures}
        self._log.error("a record makes every child fail: it is in the dead letter, the shard goes on", extra=extra)
        return self._state.is_proven


def _payload_bytes(records: list[Record]) -> int:
    """Of the decoded data; the padding of base64 counts as none."""
    return sum(len(record.data) * 3 // 4 - record.data.count("=", -2) for record in records)
