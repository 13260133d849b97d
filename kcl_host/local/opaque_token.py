"""Opaque tokens (shard iterators, NextToken) that carry their own state: the engine remembers none of them."""

from __future__ import annotations

import binascii
import hashlib
import secrets
from base64 import b64decode, b64encode
from typing import Final, TypeVar

import msgspec

_T = TypeVar("_T")
_MAC_BYTES: Final = 12


class TokenSeal:
    """Turns values into tokens and back; a token that another seal made, or that was altered, is not accepted."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def seal(self, value: msgspec.Struct) -> str:
        body = msgspec.msgpack.encode(value)
        return b64encode(self._mac(type(value), body) + body).decode()

    def open(self, token: str, kind: type[_T]) -> _T | None:
        """The value, or None when this is not a token of that kind from this seal."""
        try:
            raw = b64decode(token, validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not secrets.compare_digest(mac, self._mac(kind, body)):
            return None
        return msgspec.msgpack.decode(body, type=kind)

    def _mac(self, kind: type, body: bytes) -> bytes:
        return hashlib.blake2s(kind.__name__.encode() + body, key=self._key, digest_size=_MAC_BYTES).digest()
