"""The host's lines, decoded for speed: payloads leave base64 in the same pass."""

from __future__ import annotations

from typing import Any

import msgspec

from kcl_host.spark.position import Position


class Record(msgspec.Struct, gc=False, rename="camel"):
    """One user record of a processRecords line."""

    sequence_number: str
    sub_sequence_number: int = 0
    partition_key: str | None = None
    arrived_ms: int | None = msgspec.field(default=None, name="approximateArrivalTimestamp")
    data: bytes | None = None

    @property
    def position(self) -> Position:
        return Position(int(self.sequence_number), self.sub_sequence_number)


class _Records(msgspec.Struct, rename="camel"):
    action: str
    records: list[Record] = []
    millis_behind_latest: int | None = None


_records = msgspec.json.Decoder(_Records)
_action = msgspec.json.Decoder(dict[str, Any])


def parse(line: bytes) -> dict[str, Any]:
    """The message of a line, as json.loads gives it, but with `Record`s in processRecords."""
    message = _records.decode(line)
    if message.action != "processRecords":
        return _action.decode(line)
    return {
        "action": message.action,
        "records": message.records,
        "millisBehindLatest": message.millis_behind_latest,
    }
