"""Where in a shard a record stands, and how that is written in the names of files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

SEQUENCE_DIGITS: Final = 129
"""The longest sequence number that the Kinesis API admits; today's have 56 digits."""
SUB_SEQUENCE_DIGITS: Final = 19
"""A Java long."""
GENESIS: Final = "genesis"
"""The name of the place before the first record."""


class Position(NamedTuple):
    """A record's sequence number and its index in a KPL aggregate (0 otherwise); ordered as integers, never as text.

    Up to a position means: with the record there. `None` in place of a position is the place before the first record.
    """

    sequence_number: int
    sub_sequence_number: int


def at_or_below(position: Position, head: Position | None) -> bool:
    """Whether what ends at `head` has this record already."""
    return head is not None and position <= head


def is_above(position: Position | None, head: Position | None) -> bool:
    return position is not None and not at_or_below(position, head)


def encode(position: Position | None) -> str:
    """The same text length for every position, so that names sort as positions do; GENESIS for none.

    Raises ValueError for a number that does not fit, whose name would sort wrongly.
    """
    if position is None:
        return GENESIS
    sequence_number, sub_sequence_number = position
    if not 0 <= sequence_number < 10**SEQUENCE_DIGITS or not 0 <= sub_sequence_number < 10**SUB_SEQUENCE_DIGITS:
        raise ValueError(f"no such position in a shard: {position}")
    return f"{sequence_number:0{SEQUENCE_DIGITS}d}.{sub_sequence_number:0{SUB_SEQUENCE_DIGITS}d}"


def decode(name: str) -> Position | None:
    """The position that `encode` wrote. Raises ValueError for anything else."""
    if name == GENESIS:
        return None
    sequence_number, _, sub_sequence_number = name.partition(".")
    if len(sequence_number) != SEQUENCE_DIGITS or len(sub_sequence_number) != SUB_SEQUENCE_DIGITS:
        raise ValueError(f"not the name of a position: {name!r}")
    return Position(int(sequence_number), int(sub_sequence_number))


def parse(sequence_number: str | None, sub_sequence_number: int | None = None) -> Position | None:
    """A checkpoint as the host says it; None for the words TRIM_HORIZON, LATEST and AT_TIMESTAMP."""
    if sequence_number is None or not (sequence_number.isascii() and sequence_number.isdigit()):
        return None
    return Position(int(sequence_number), sub_sequence_number or 0)


def count_at_or_below(positions: Sequence[Position], head: Position | None) -> int:
    """How many of these, which are in order, `head` covers: always the first ones."""
    return 0 if head is None else bisect_right(positions, head)
