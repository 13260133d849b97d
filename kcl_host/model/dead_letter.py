"""A record that was taken out of its shard's way, as it is kept for people (docs/poison-records.md)."""

from __future__ import annotations

import json

import msgspec


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`data` is base64 as on the wire. The same record may be written again by another worker, or after a restart:
    stream, shard and the two numbers tell."""

    application: str
    stream: str
    """Its name, or the identifier account:name:epoch that a lease of several streams carries."""
    shard: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str
    approximate_arrival_timestamp: int
    """Epoch milliseconds."""
    data: str
    error: str
    """What became of the last child that got it."""
    failures: int
    """Of children, while they held a batch with this record in it."""
    stderr: tuple[str, ...]
    """The last lines of that child, as far as the host reads them."""
    worker: str
    time: str
    """When it was written; ISO 8601."""

    @property
    def name(self) -> str:
        """The same each time that this record is written, and no other's within the application."""
        return "/".join(
            (self.stream.replace(":", "-"), self.shard, f"{self.sequence_number}-{self.sub_sequence_number}")
        )

    def line(self) -> str:
        """One line of JSON, in ASCII: not every target takes all characters that a partition key may have."""
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))
