"""Sequence numbers as Kinesis makes them: version 2, 186 bits, 56 decimal digits beginning with 49.

From the highest bit: version (4 bits at bit 184, value 2), creation second of the shard (36 at 148), low 4 bits of
the shard number (144), counter within the shard (64 at 80), 8 unused bits, second of the record (36 at 36), shard
number (32 at 4), version again (0). Source of the outer fields: spec consumer-lifecycle 8.6.

So numbers grow with the counter inside a shard, and every number of a child is above its parents' numbers as long as
the child's creation second is the greater one: LocalStream sees to that.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

VERSION: Final = 2
LAST_COUNTER: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"0|[1-9]\d{0,128}")


class SequenceNumber(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence number, taken apart. Counter 0 starts the shard, LAST_COUNTER ends it, records lie between."""

    shard_created_s: int
    shard_number: int
    counter: int
    time_s: int

    def __int__(self) -> int:
        return (
            VERSION << 184
            | self.shard_created_s << 148
            | (self.shard_number & 0xF) << 144
            | self.counter << 80
            | self.time_s << 36
            | self.shard_number << 4
            | VERSION
        )

    def __str__(self) -> str:
        return str(int(self))

    @classmethod
    def parse(cls, text: str) -> SequenceNumber | None:
        """None for a number of another layout. Raises ValueError when the text is not a decimal number at all."""
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"{text!r} is not a sequence number")
        value = int(text)
        parsed = cls(
            shard_created_s=value >> 148 & 2**36 - 1,
            shard_number=value >> 4 & 2**32 - 1,
            counter=value >> 80 & 2**64 - 1,
            time_s=value >> 36 & 2**36 - 1,
        )
        return parsed if int(parsed) == value else None
