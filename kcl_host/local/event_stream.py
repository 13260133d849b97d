"""Frames of application/vnd.amazon.eventstream, written; botocore.eventstream reads them.

A frame: total length, length of the headers, CRC-32 of these two, headers, payload, CRC-32 of everything before. A
header: length of its name in one byte, name, type (7: text), length of its value in two bytes, value.
"""

from __future__ import annotations

import struct
from binascii import crc32
from typing import Final

import msgspec

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
_JSON: Final = "application/x-amz-json-1.1"
_TEXT: Final = 7
_AROUND_BYTES: Final = 16
"""Of a frame without headers and payload."""


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    prelude = struct.pack("!II", _AROUND_BYTES + len(head) + len(payload), len(head))
    body = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return body + struct.pack("!I", crc32(body))


def event(event_type: str, payload: bytes) -> bytes:
    return frame({":event-type": event_type, ":content-type": _JSON, ":message-type": "event"}, payload)


def exception(code: str, message: str) -> bytes:
    headers = {":exception-type": code, ":content-type": _JSON, ":message-type": "exception"}
    return frame(headers, msgspec.json.encode({"message": message}))


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack("!B", len(name)) + name + struct.pack("!BH", _TEXT, len(value)) + value
