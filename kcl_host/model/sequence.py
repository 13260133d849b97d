"""Sequence numbers and the places a shard can be read from.

A checkpoint is a pair (sequence number, sub-sequence number). Its total order is the one KCL uses:
AT_TIMESTAMP < TRIM_HORIZON < LATEST < every number, compared as integers < SHARD_END; ties are broken by the
sub-sequence number. Source: KCL 3.5.1 ExtendedSequenceNumber, SentinelCheckpoint; spec lease-table 1.4.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

TRIM_HORIZON: Final = "TRIM_HORIZON"
LATEST: Final = "LATEST"
AT_TIMESTAMP: Final = "AT_TIMESTAMP"
SHARD_END: Final = "SHARD_END"

MAX_DIGITS: Final = 129
"""Longest sequence number that the Kinesis API accepts."""

_RANK: Final = {AT_TIMESTAMP: -3, TRIM_HORIZON: -2, LATEST: -1}
_SHARD_END_KEY: Final = (1, 0)


class ExtendedSequenceNumber(msgspec.Struct, frozen=True):
    """A checkpoint: digits or a sentinel, and the index of the user record inside a KPL aggregate (0 otherwise).

    `==` compares the text, as Java does; `<`, `<=`, `>`, `>=` compare the order above.
    """

    sequence_number: str
    sub_sequence_number: int = 0

    def __post_init__(self) -> None:
        text = self.sequence_number
        if text not in _RANK and text != SHARD_END and not (text.isascii() and text.isdigit()):
            raise ValueError(
                f"{text[:200]!r} is neither a sequence number nor one of TRIM_HORIZON, LATEST, AT_TIMESTAMP, SHARD_END"
            )
        if len(text) > MAX_DIGITS:
            raise ValueError(f"a sequence number of {len(text)} digits is malformed")
        if self.sub_sequence_number < 0:
            raise ValueError(f"sub-sequence number {self.sub_sequence_number} is negative")

    @property
    def is_sentinel(self) -> bool:
        """True for the four words, false for a number."""
        return self.sequence_number in _RANK or self.sequence_number == SHARD_END

    @property
    def is_shard_end(self) -> bool:
        return self.sequence_number == SHARD_END

    @property
    def sort_key(self) -> tuple[tuple[int, int], int]:
        """Key of the total order; numbers of any length compare as integers."""
        text = self.sequence_number
        if text == SHARD_END:
            return _SHARD_END_KEY, 0
        rank = _RANK.get(text)
        return ((0, int(text)) if rank is None else (-1, rank)), self.sub_sequence_number

    def __lt__(self, other: ExtendedSequenceNumber) -> bool:
        return self.sort_key < other.sort_key

    def __le__(self, other: ExtendedSequenceNumber) -> bool:
        return self.sort_key <= other.sort_key

    def __gt__(self, other: ExtendedSequenceNumber) -> bool:
        return self.sort_key > other.sort_key

    def __ge__(self, other: ExtendedSequenceNumber) -> bool:
        return self.sort_key >= other.sort_key

    def __str__(self) -> str:
        return (
            self.sequence_number
            if not self.sub_sequence_number
            else f"{self.sequence_number}:{self.sub_sequence_number}"
        )


AT_SHARD_END: Final = ExtendedSequenceNumber(SHARD_END)
AT_TRIM_HORIZON: Final = ExtendedSequenceNumber(TRIM_HORIZON)


MAX_STATE_BYTES: Final = 4096
"""Of the state kept with a prepared checkpoint: each heartbeat of a lease is charged by the size of its row."""


class PreparedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint in two phases, after the first: where it is to be made, and what the application kept with it.

    In the lease row: pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState.
    """

    position: ExtendedSequenceNumber
    state: bytes | None = None


class InitialPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where an application starts that has no checkpoint yet.

    `timestamp_s` (epoch seconds) is set exactly when `kind` is AT_TIMESTAMP; rows never store it.
    """

    kind: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]
    timestamp_s: float | None = None

    def __post_init__(self) -> None:
        if (self.kind == AT_TIMESTAMP) != (self.timestamp_s is not None):
            raise ValueError("AT_TIMESTAMP needs a timestamp, the other initial positions have none")

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        """The sentinel that a new lease gets."""
        return ExtendedSequenceNumber(self.kind)


class IteratorPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What GetShardIterator (ShardIteratorType) or SubscribeToShard (StartingPosition) is asked for."""

    type: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"]
    sequence_number: str | None = None
    timestamp_s: float | None = None
