"""KPL aggregates: as the producer library makes them, and field by field for those it cannot make."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = bytes.fromhex("f3899ac2")


class User(NamedTuple):
    """A user record; an index of None leaves the field out, as does data of None."""

    data: bytes | None
    key: int | None = 0
    explicit: int | None = None


def by_producer(users: Sequence[tuple[str, bytes, str | None]]) -> bytes:
    """(partition key, data, explicit hash key) each, packed by aws-kinesis-agg."""
    path = list(sys.path)
    try:
        from aws_kinesis_agg.aggregator import AggRecord  # puts two folders in front of sys.path
    finally:
        sys.path[:] = path
    aggregate = AggRecord()
    for user in users:
        assert aggregate.add_user_record(*user)
    contents: bytes = aggregate.get_contents()[2]
    return contents


def aggregate(users: Sequence[User], keys: Sequence[str | bytes] = ("k",), explicit: Sequence[str] = ()) -> bytes:
    return seal(message(users, keys, explicit))


def seal(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body).digest()


def message(users: Sequence[User], keys: Sequence[str | bytes] = ("k",), explicit: Sequence[str] = ()) -> bytes:
    parts = [_field(1, key.encode() if isinstance(key, str) else key) for key in keys]
    parts += [_field(2, key.encode()) for key in explicit]
    parts += [_field(3, _user(user)) for user in users]
    return b"".join(parts)


def _user(user: User) -> bytes:
    key = b"" if user.key is None else b"\x08" + _varint(user.key)
    explicit = b"" if user.explicit is None else b"\x10" + _varint(user.explicit)
    return key + explicit + (b"" if user.data is None else _field(3, user.data))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    more = bytearray()
    while value > 127:
        more.append(value & 127 | 128)
        value >>= 7
    return bytes(more) + bytes([value])
