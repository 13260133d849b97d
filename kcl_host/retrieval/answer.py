"""An answer of GetRecords, or an event of SubscribeToShard, on its way into batches of user records."""

from __future__ import annotations

import logging
from typing import Protocol

from kcl_host.decisions.deaggregation import Deaggregated, deaggregate_in_pieces
from kcl_host.decisions.shard_end import judge_response
from kcl_host.errors import KclHostError
from kcl_host.model.records import Batch, RecordsPage
from kcl_host.model.shard import HashKeyRange


class InvalidAnswer(KclHostError):
    """The answer neither goes on nor ends the shard with child shards that name their parents."""


class Say(Protocol):
    """Writes a log line about the shard."""

    def __call__(self, level: int, message: str, action: str, **facts: object) -> None: ...


class Answer:
    """Becomes one batch, or several. Only the source's thread calls `expand`."""

    def __init__(self, page: RecordsPage, hash_key_range: HashKeyRange | None) -> None:
        """`hash_key_range` is the shard's; None keeps every user record of an aggregate. Raises InvalidAnswer."""
        judgement = judge_response(page.next_iterator, page.child_shards)
        if judgement == "invalid":
            raise InvalidAnswer
        self.page = page
        self.shard_end = judgement == "shard_end"
        self.last_sequence_number = page.records[-1].sequence_number if page.records else None
        self._pieces = deaggregate_in_pieces(page.records, page.payload_bytes, hash_key_range)

    def expand(self) -> Deaggregated:
        """The next piece: work that is done under no lock, and before there is a place for it in the handoff.

        The bounds of the handoff count user records, and no child waits.
        """
        return next(self._pieces)

    def batch(self, users: Deaggregated) -> Batch:
        """The piece as the consumer gets it; the end of the shard is with the last one."""
        return Batch(
            records=users.records,
            millis_behind_latest=self.page.millis_behind_latest,
            shard_end=self.shard_end and users.is_last,
            child_shards=self.page.child_shards if users.is_last else (),
            payload_bytes=users.payload_bytes,
            last_sequence_number=self.last_sequence_number,
        )

    def tell(self, users: Deaggregated, say: Say, message: str, action: str) -> None:
        """The log lines about a piece that was handed over."""
        say(
            logging.DEBUG,
            message,
            action,
            records=len(self.page.records),
            user_records=len(users.records),
            outside_range=users.outside_range,
            payload_bytes=users.payload_bytes,
            millis_behind_latest=self.page.millis_behind_latest,
        )
        for rest in users.unreadable:
            say(
                logging.ERROR,
                "a KPL aggregate is damaged inside: its last user records are skipped, as Java's KCL does",
                "aggregate_unreadable",
                sequence_number=rest.sequence_number,
                kept=rest.kept,
                lost=rest.lost,
            )
