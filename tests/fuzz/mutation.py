"""Makes wrong inputs: bytes of right ones changed, values of any type, texts that have broken programs before."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

NASTY_TEXTS = (
    "", " ", "\0", "\n", "\r\n", "\t", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "\u2028", "\u202egnp.exe",
    "[bold red]x[/]", "[/]", "[link=file:///etc/passwd]x[/link]", "<script>alert(1)</script>", "'; rm -rf / #",
    "$(id)", "`id`", "%s%n", "{0.__class__}", "${jndi:ldap://x}", "../../../etc/passwd", "\N{PILE OF POO}", "e\u0301",
    "-0", "0", "00", "-1", "1e5", "1_000", " 12 ", "+5", "٣", "²", "0x10", "NaN", "Infinity", "-Infinity", "1E+125",
    "9" * 39, "9" * 129, "9" * 5000, str(2**31), str(2**63 - 1), str(2**63), str(-(2**63) - 1), str(2**64), str(2**128),
    "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END", "shard_end", "null", "true", "None", "[]", "{}", "a" * 3000,
)  # fmt: skip
NASTY_BYTES = (
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\r", b"\n", b"\r\n\r\n", b"\x1b[2J",
    b" " * 2000, b"[" * 2000, b"{" * 2000, b'{"a":' * 700, b"9" * 5000, b"\\" * 33, b"\\u", b"\\ud800", b"\\u0000",
    b"1e999", b"-1e999", b"1e308", b"NaN", b"null", b"-0", b'"', b"99999999999999999999", b"=", b":", b",", b"A" * 4096,
    (b"\\" + b"\n") * 500, b"\xf3\x89\x9a\xc2", b"84maw",
)  # fmt: skip


def nasty_text(rng: Random) -> str:
    text = rng.choice(NASTY_TEXTS)
    kind = rng.randrange(8)
    if kind == 0:
        return text + rng.choice(NASTY_TEXTS)
    if kind == 1:
        return "".join(chr(_code_point(rng)) for _ in range(rng.randrange(12)))
    if kind == 2:
        return text[:50] * rng.choice((2, 40, 200))
    return text


def _code_point(rng: Random) -> int:
    code = rng.choice((rng.randrange(32), rng.randrange(256), rng.randrange(0x3000), rng.randrange(0x110000)))
    return code if not 0xD800 <= code < 0xE000 else 0xFFFD


def nasty_number(rng: Random) -> int:
    power = rng.choice((0, 1, 4, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64, 127, 128, 300))
    return (2**power + rng.randrange(-2, 3)) * rng.choice((1, 1, 1, -1))


def mutated(rng: Random, data: bytes, pieces: Sequence[bytes] = NASTY_BYTES) -> bytes:
    """The bytes after one to eight changes: flipped, cut, doubled, moved, overwritten, or with a piece put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        size = len(changed)
        at = rng.randrange(size + 1)
        kind = rng.randrange(8)
        if kind == 0 and size:
            changed[at % size] ^= 1 << rng.randrange(8)
        elif kind == 1 and size:
            changed[at % size] = rng.randrange(256)
        elif kind == 2:
            del changed[at : at + rng.choice((1, 1, 2, 5, 20, size))]
        elif kind == 3:
            changed[at:at] = changed[at : at + rng.choice((1, 5, 40))] * rng.choice((1, 2, 30))
        elif kind == 4:
            changed[at:at] = rng.choice(pieces)
        elif kind == 5:
            piece = rng.choice(pieces)
            changed[at : at + len(piece)] = piece
        elif kind == 6 and size:
            start, end = sorted((rng.randrange(size), at))
            piece = bytes(changed[start:end])
            del changed[start:end]
            other = rng.randrange(len(changed) + 1)
            changed[other:other] = piece
        else:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16)))
    return bytes(changed[: 1 << 17])


def any_json(rng: Random, depth: int = 3) -> Any:
    """A value as a JSON reader gives it."""
    kind = rng.randrange(9 if depth else 6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return nasty_number(rng)
    if kind == 3:
        return rng.choice((0.0, -0.0, 0.5, 1e300, -1e300, 1.7e9, 5e-324))
    if kind in (4, 5):
        return nasty_text(rng)
    if kind in (6, 7):
        return {nasty_text(rng): any_json(rng, depth - 1) for _ in range(rng.randrange(4))}
    return [any_json(rng, depth - 1) for _ in range(rng.randrange(4))]


def disturbed(rng: Random, value: Any) -> Any:
    """A copy of a JSON value of which some part is of another type, another text, missing, or there twice."""
    if rng.random() < 0.12:
        return any_json(rng)
    if isinstance(value, dict) and value:
        changed = {name: disturbed(rng, part) if rng.random() < 0.3 else part for name, part in value.items()}
        kind = rng.randrange(6)
        if kind == 0:
            changed.pop(rng.choice(list(changed)))
        elif kind == 1:
            changed[rng.choice((*value, nasty_text(rng)))] = any_json(rng)
        return changed
    if isinstance(value, list) and value:
        items = [disturbed(rng, item) if rng.random() < 0.5 else item for item in value]
        return items * rng.choice((1, 1, 1, 2)) if rng.random() < 0.5 else items[: rng.randrange(len(items) + 1)]
    if isinstance(value, str) and rng.random() < 0.7:
        return nasty_text(rng)
    return any_json(rng, 1)
