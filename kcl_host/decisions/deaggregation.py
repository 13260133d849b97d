"""Takes the user records out of KPL aggregates.

An aggregate is one Kinesis record: the magic bytes, a protobuf message with a table of partition keys, a table of
explicit hash keys and the user records that point into them, then the MD5 of that message. Whatever does not fit this
exactly is a plain record and passes as it is, without a word, as in Java; so do damaged and truncated aggregates.

A position inside an aggregate is the index of the user record **before** any filter, since checkpoints are exchanged
with Java. Its numbers agree with ours: where it keeps an aggregate at all, it keeps the whole.

Source: KCL 3.5.1 AggregatorUtil; spec retrieval 5. Where we differ: Java drops a whole aggregate when one of its user
records lies outside the hash key range of the shard. When an aggregate lands on a shard that the producer did not
expect (after a reshard), the KPL before 0.15.11 sent all of it again, but since then (its Retrier) only what lies
outside: the others would be lost, so we decide for each. From an old producer those inside come twice. And Java hands
over at once whatever an answer expands to; 10 MiB may hold more than a million user records, so we cut.
"""

from __future__ import annotations

import hashlib
import re
import sys
from binascii import a2b_base64
from collections.abc import Iterator
from functools import cache
from itertools import repeat
from typing import Any, Final

import msgspec

from kcl_host.model.records import Record
from kcl_host.model.shard import MAX_HASH_KEY, MIN_HASH_KEY, HashKeyRange

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_MAGIC_IN_BASE64: Final = "84maw"
"""The first 30 of the 32 bits: enough to leave nearly every plain record undecoded."""
_DIGEST_BYTES: Final = 16
MAX_USER_RECORDS: Final = 10_000
"""Of one piece: as many as a plain answer may have, so no child gets more than it must cope with anyway."""
_MAX_KEY_CHARACTERS: Final = 256
"""What Kinesis takes. A table may say more: pieces with such keys are shorter, as each record repeats its key."""
_WHOLE: Final = HashKeyRange(MIN_HASH_KEY, MAX_HASH_KEY)
_DECIMAL: Final = re.compile(r"[+-]?\d{1,1000}")
"""What Java's BigInteger takes; the bound is ours."""


class UnreadableRest(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregate of which the last `lost` user records cannot be told: an index outside its table, or a bad hash key.

    Java passes on those before and skips the rest; so do we, since all that is left of a shard would wait otherwise.
    """

    sequence_number: str
    kept: int
    """User records before the bad one, those outside the hash key range included."""
    lost: int


class Deaggregated(msgspec.Struct, frozen=True, kw_only=True):
    """User records of one answer, all or a piece of them; `payload_bytes` is the sum of the decoded data lengths."""

    records: list[Record]
    payload_bytes: int
    outside_range: int = 0
    """User records left out: the reader of another shard gets them."""
    unreadable: tuple[UnreadableRest, ...] = ()
    is_last: bool = True
    """False for a piece that others follow."""


def deaggregate_in_pieces(
    records: list[Record], payload_bytes: int, hash_key_range: HashKeyRange | None
) -> Iterator[Deaggregated]:
    """The user records of `records`, in order: usually one piece, several when there are more than MAX_USER_RECORDS.

    A piece is made when it is asked for. Without an aggregate the only piece has `records` itself. `payload_bytes` is
    the sum of the decoded data lengths of `records`. `hash_key_range` is the shard's, None when it is not known: then
    every valid hash key is inside. Plain records pass whatever their partition key is. One level only: an aggregate in
    an aggregate is a user record. Raises nothing.
    """
    # One comparison per record is all that a batch without aggregates costs.
    if not [True for record in records if record.data[:5] == _MAGIC_IN_BASE64]:
        yield Deaggregated(records=records, payload_bytes=payload_bytes)
        return
    piece = _Piece()
    for record in records:
        message = _parse(record.data) if record.data[:5] == _MAGIC_IN_BASE64 else None
        if message is None:
            if len(piece.records) >= MAX_USER_RECORDS:
                yield piece.cut()
            piece.records.append(record)
            piece.payload_bytes += len(record.data) * 3 // 4 - record.data.count("=", -2)
            continue
        aggregate = _Aggregate(record, message, hash_key_range or _WHOLE)
        while not aggregate.is_done:
            if len(piece.records) >= aggregate.most_in_a_piece:
                yield piece.cut()
            aggregate.move_to(piece)
    yield piece.cut(is_last=True)


class _Piece:
    def __init__(self) -> None:
        self._empty()

    def _empty(self) -> None:
        self.records: list[Record] = []
        self.payload_bytes = self.outside_range = 0
        self.unreadable: tuple[UnreadableRest, ...] = ()

    def cut(self, *, is_last: bool = False) -> Deaggregated:
        """What is here, and begins anew."""
        piece = Deaggregated(
            records=self.records,
            payload_bytes=self.payload_bytes,
            outside_range=self.outside_range,
            unreadable=self.unreadable,
            is_last=is_last,
        )
        self._empty()
        return piece


class _Aggregate:
    """The user records of one aggregate on their way into pieces."""

    def __init__(self, container: Record, message: Any, hash_key_range: HashKeyRange) -> None:
        self._container = container
        self._users = message.records
        self._next = 0
        self._keys = _texts(message.partition_key_table[:])
        self._key_is_inside = (
            [True] * len(self._keys) if hash_key_range == _WHOLE else _are_inside(self._keys, hash_key_range)
        )
        self._explicit_is_inside = [
            _explicit_is_inside(key, hash_key_range) for key in _texts(message.explicit_hash_key_table[:])
        ]
        longest = max(map(len, self._keys), default=0)
        self.most_in_a_piece = max(1, MAX_USER_RECORDS * _MAX_KEY_CHARACTERS // max(_MAX_KEY_CHARACTERS, longest))

    @property
    def is_done(self) -> bool:
        return self._next >= len(self._users)

    def move_to(self, piece: _Piece) -> None:
        """Those there is room for, which there must be; all that is left when one of them cannot be told."""
        keys, key_is_inside, explicit_is_inside = self._keys, self._key_is_inside, self._explicit_is_inside
        first = self._next
        self._next = stop = min(len(self._users), first + self.most_in_a_piece - len(piece.records))
        users = self._users[first:stop]
        # Unbound, since upb looks a method up among the fields first.
        has_field = type(users[0]).HasField
        indices: list[int] = []
        keys_of_them: list[str] = []
        data: list[bytes] = []
        for index, user in enumerate(users, first):
            try:
                key_index = user.partition_key_index
                key, is_inside = keys[key_index], key_is_inside[key_index]
                if has_field(user, "explicit_hash_key_index"):
                    is_inside = explicit_is_inside[user.explicit_hash_key_index]
            except IndexError:
                is_inside = None
            if is_inside:
                indices.append(index)
                keys_of_them.append(key)
                data.append(user.data)
            elif is_inside is None:
                stop, self._next = index, len(self._users)
                rest = UnreadableRest(
                    sequence_number=self._container.sequence_number, kept=index, lost=self._next - index
                )
                piece.unreadable = (*piece.unreadable, rest)
                break
        sequence_number = repeat(self._container.sequence_number)
        arrival_ms = repeat(self._container.approximate_arrival_timestamp)
        # msgspec makes base64 of a list of bytes, twice as fast as binascii one by one.
        piece.records += map(Record, msgspec.to_builtins(data), keys_of_them, sequence_number, arrival_ms, indices)
        piece.outside_range += stop - first - len(data)
        piece.payload_bytes += sum(map(len, data))


def _parse(data: str) -> Any | None:
    """The message of an aggregate, None for anything else."""
    raw = _decoded(data)
    if raw is None:
        return None
    body = raw[len(MAGIC) : -_DIGEST_BYTES]
    if not raw.startswith(MAGIC) or not body:
        return None
    if hashlib.md5(body, usedforsecurity=False).digest() != raw[-_DIGEST_BYTES:]:
        return None
    message_class, decode_error = _message_class()
    try:
        message = message_class.FromString(body)
    except decode_error:
        return None
    # Python's parser, unlike Java's, takes a message without its required fields.
    return message if message.IsInitialized() else None


def _decoded(data: str) -> bytes | None:
    """msgspec is three times as fast as binascii, and stricter: what it refuses, binascii decides."""
    try:
        return msgspec.convert(data, bytes)
    except msgspec.ValidationError:
        pass
    try:
        return a2b_base64(data)
    except ValueError:
        return None


def _texts(keys: list[str | bytes]) -> list[str]:
    """protobuf gives bytes for what is no UTF-8; Java reads it with replacement characters."""
    return [key if isinstance(key, str) else key.decode("utf-8", "replace") for key in keys]


def _are_inside(partition_keys: list[str], hash_key_range: HashKeyRange) -> list[bool]:
    """Digests are compared as bytes, which have the order of the numbers."""
    bounds = (max(MIN_HASH_KEY, min(key, MAX_HASH_KEY)) for key in (hash_key_range.start, hash_key_range.end))
    start, end = (key.to_bytes(_DIGEST_BYTES, "big") for key in bounds)
    return [start <= hashlib.md5(key.encode(), usedforsecurity=False).digest() <= end for key in partition_keys]


def _explicit_is_inside(hash_key: str, hash_key_range: HashKeyRange) -> bool | None:
    """None when it is no number."""
    return int(hash_key) in hash_key_range if _DECIMAL.fullmatch(hash_key) else None


@cache
def _message_class() -> tuple[Any, type[Exception]]:
    """AggregatedRecord and the error of its parser; imported with the first aggregate only, since most hosts see none.

    aws-kinesis-agg lets its generated modules find each other by putting two folders in front of sys.path. Under its
    full name, and entered under the short one, the module is found without that.
    """
    from aws_kinesis_agg import config_pb2
    from google.protobuf.message import DecodeError

    sys.modules.setdefault("config_pb2", config_pb2)
    from aws_kinesis_agg.messages_pb2 import AggregatedRecord

    return AggregatedRecord, DecodeError
