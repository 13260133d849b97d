"""KPL aggregates, and what only looks like one."""

from __future__ import annotations

import base64
from random import Random
from typing import NamedTuple

from kcl_host.decisions.deaggregation import MAX_USER_RECORDS, deaggregate_in_pieces
from kcl_host.model.records import Record
from kcl_host.model.shard import HashKeyRange
from kcl_host.multilang.messages import ProcessRecords, encode_line
from tests.fuzz.driver import Target
from tests.fuzz.mutation import mutated, nasty_number, nasty_text
from tests.kpl import MAGIC, User, message, seal


class Got(NamedTuple):
    records: tuple[str, ...]
    """base64, as on the wire."""
    hash_key_range: HashKeyRange | None


def make(rng: Random) -> Got:
    ranges = (None, HashKeyRange(0, 2**127), HashKeyRange(5, 5), HashKeyRange(nasty_number(rng), nasty_number(rng)))
    return Got(tuple(_record(rng) for _ in range(rng.randrange(1, 4))), rng.choice(ranges))


def _record(rng: Random) -> str:
    many = rng.choice((0, 1, 2, 5)) if rng.random() < 0.999 else 12_000
    users = [_user(rng) for _ in range(min(many, 5))] * max(1, many // 5)
    keys = [rng.choice(("k", nasty_text(rng), rng.randbytes(5))) for _ in range(rng.randrange(4))]
    explicit = [rng.choice((nasty_text(rng), str(nasty_number(rng)))) for _ in range(rng.randrange(3))]
    body = message(users, keys, explicit)
    kind = rng.randrange(8)
    if kind < 3:  # A digest that fits: the parser has to judge.
        return base64.b64encode(seal(mutated(rng, body))).decode()
    data = seal(body)
    if kind == 3:
        data = mutated(rng, data)
    elif kind == 4:
        data = seal(data)
    elif kind == 5:
        data = MAGIC + rng.randbytes(rng.randrange(40))
    text = base64.b64encode(data).decode()
    return mutated(rng, text.encode()).decode("latin-1") if kind == 6 else text


def _user(rng: Random) -> User:
    index = rng.choice((0, 0, 0, 1, 2, 2**31, 2**63 - 1, 2**64 - 1))
    data = rng.choice((b"", b"data", None, rng.randbytes(30)))
    return User(data, rng.choice((index, None, 0)), rng.choice((None, None, index)))


def run(got: Got) -> None:
    records = [Record(data, "key", str(number + 1), 0) for number, data in enumerate(got.records)]
    pieces, last = 0, None
    for piece in deaggregate_in_pieces(records, 0, got.hash_key_range):
        assert len(piece.records) <= MAX_USER_RECORDS, "a piece is too large"
        assert last is None or not last.is_last, "a piece after the last"
        pieces, last = pieces + 1, piece
        positions = [record.position for record in piece.records[:50]]
        assert positions == sorted(positions, key=lambda position: position.sort_key), "out of order"
        encode_line(ProcessRecords(records=piece.records, millis_behind_latest=None))
    assert last is not None and last.is_last


TARGET = Target("aggregates", make, run)
