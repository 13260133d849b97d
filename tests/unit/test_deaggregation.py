"""User records out of KPL aggregates (retrieval 5; KCL 3.5.1 AggregatorUtil)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.decisions.deaggregation import MAX_USER_RECORDS, Deaggregated, deaggregate_in_pieces
from kcl_host.model.records import Record
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange
from tests.kpl import MAGIC, User, aggregate, by_producer, message, seal

CASES = json.loads((Path(__file__).parents[1] / "scenarios" / "deaggregation.json").read_text())
ARRIVAL_MS = 1_700_000_000_123


def record(data: bytes, sequence_number: str = "1", partition_key: str = "container") -> Record:
    return Record(b64encode(data).decode(), partition_key, sequence_number, ARRIVAL_MS)


def run(records: list[Record], hash_key_range: HashKeyRange | None = None) -> Deaggregated:
    """All pieces as one."""
    pieces = list(deaggregate_in_pieces(records, sum(len(b64decode(r.data)) for r in records), hash_key_range))
    return Deaggregated(
        records=[r for piece in pieces for r in piece.records],
        payload_bytes=sum(piece.payload_bytes for piece in pieces),
        outside_range=sum(piece.outside_range for piece in pieces),
        unreadable=tuple(rest for piece in pieces for rest in piece.unreadable),
    )


# Scenarios


def container(fields: dict[str, Any], damage: str | None) -> bytes:
    users = [
        User(
            aggregate([User(text.encode()) for text in user["inner"]]) if "inner" in user else user["data"].encode(),
            user["key"],
            user.get("explicit"),
        )
        for user in fields["users"]
    ]
    whole = aggregate(users, fields["keys"], fields["explicit"])
    match damage:
        case None:
            return whole
        case "digest":
            return whole[:-1] + bytes([whole[-1] ^ 1])
        case "truncated":
            return whole[: len(whole) // 2]
        case "magic":
            return whole[:3] + b"\xc3" + whole[4:]
        case "magic_only":
            return MAGIC
        case "no_message":
            return seal(b"")
        case "junk":
            return seal(b"\x0a\x7fjunk")
        case "no_key_index":
            return seal(message([*users, User(b"c", key=None)]))
        case "no_data":
            return seal(message([*users, User(None)]))
        case "trailing":
            return whole + b"more"
    raise AssertionError(damage)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_scenario(case: dict[str, Any]) -> None:
    records = [
        record(container(r["aggregate"], r.get("damage")), r["sequence_number"])
        if "aggregate" in r
        else record(r["data"].encode(), r["sequence_number"], r["partition_key"])
        for r in case["records"]
    ]
    given_data = {r.sequence_number: r.data for r in records}
    inner = [
        user["inner"] for r in case["records"] for user in r.get("aggregate", {}).get("users", []) if "inner" in user
    ]
    for texts in inner:
        given_data["1"] = b64encode(aggregate([User(text.encode()) for text in texts])).decode()
    bounds = case["hash_key_range"]
    result = run(records, HashKeyRange(*map(int, bounds)) if bounds else None)
    expected = [
        Record(
            b64encode(e["data"].encode()).decode() if e["data"] is not None else given_data[e["sequence_number"]],
            e["partition_key"],
            e["sequence_number"],
            ARRIVAL_MS,
            e["sub_sequence_number"],
        )
        for e in case["expect"]
    ]
    assert result.records == expected, case["why"]
    assert result.outside_range == case["expect_outside_range"], case["why"]
    unreadable = [{"sequence_number": u.sequence_number, "kept": u.kept, "lost": u.lost} for u in result.unreadable]
    assert unreadable == case["expect_unreadable"], case["why"]
    assert result.payload_bytes == sum(len(b64decode(r.data)) for r in result.records)


def test_plain_records_are_neither_decoded_nor_copied() -> None:
    records = [Record(text, "p", "1", 0) for text in ("84maX", "no base64 at all!", "", "84ma")]
    (piece,) = deaggregate_in_pieces(records, 7, None)
    assert piece.records is records
    assert piece.payload_bytes == 7 and piece.is_last


def test_text_that_only_begins_like_an_aggregate_passes() -> None:
    records = [Record(text, "p", "1", 0) for text in ("84maw", "84mawg==", "84mawg" + "=" * 40)]
    (piece,) = deaggregate_in_pieces(records, 0, None)
    assert piece.records == records


def test_a_partition_key_that_is_no_text_is_read_as_java_reads_it() -> None:
    (user,) = run([record(aggregate([User(b"a")], [b"caf\xe9"]))]).records
    assert user.partition_key == "caf\N{REPLACEMENT CHARACTER}"


# Pieces


def test_user_records_come_in_pieces_no_larger_than_a_plain_answer() -> None:
    """Java hands them over at once."""
    records = [
        record(aggregate([User(b"a")] * 9_999), "1"),
        record(b"bc", "2"),
        record(b"d", "3"),
        record(aggregate([User(b"e")] * 25_000), "4"),
    ]
    pieces = list(deaggregate_in_pieces(records, 0, None))
    assert [len(piece.records) for piece in pieces] == [10_000, 10_000, 10_000, 5_001]
    assert [piece.is_last for piece in pieces] == [False, False, False, True]
    assert [piece.payload_bytes for piece in pieces] == [10_001, 10_000, 10_000, 5_001]
    everything = [r for piece in pieces for r in piece.records]
    assert [(r.sequence_number, r.sub_sequence_number) for r in everything] == [
        *(("1", n) for n in range(9_999)), ("2", 0), ("3", 0), *(("4", n) for n in range(25_000)),
    ]  # fmt: skip


def test_what_is_left_out_takes_no_room_in_a_piece_and_a_bad_index_ends_only_its_aggregate() -> None:
    outside = User(b"x", explicit=1)
    mixed = [outside, *[User(b"a", explicit=0)] * 9_000, *[outside] * 4_000, *[User(b"a", explicit=0)] * 2_000]
    records = [
        record(aggregate([*mixed, User(b"x", explicit=9), User(b"x")], explicit=["0", "1"]), "1"),
        record(b"b", "2"),
    ]
    pieces = list(deaggregate_in_pieces(records, 0, HashKeyRange(0, 0)))
    assert max(len(piece.records) for piece in pieces) <= MAX_USER_RECORDS
    subs = [r.sub_sequence_number for piece in pieces for r in piece.records]
    assert subs == [*range(1, 9_001), *range(13_001, 15_001), 0]
    assert sum(piece.outside_range for piece in pieces) == 4_001
    unreadable = [u for piece in pieces for u in piece.unreadable]
    assert [(u.sequence_number, u.kept, u.lost) for u in unreadable] == [("1", 15_001, 2)]


def test_no_more_aggregates_are_opened_than_the_piece_asked_for_needs() -> None:
    whole = aggregate([User(b"a")] * 10_000)
    records = [record(whole, "1"), record(whole, "2"), record(whole, "3")]
    pieces = deaggregate_in_pieces(records, 0, None)
    assert len(next(pieces).records) == 10_000
    records[2] = record(b"changed meanwhile", "3")
    assert len(next(pieces).records) == 10_000
    assert next(pieces).records == [records[2]]


def test_a_key_longer_than_kinesis_takes_makes_the_pieces_shorter() -> None:
    """Each user record repeats its key in the message: a million of them with one key of a megabyte is a terabyte."""
    long = record(aggregate([User(b"a")] * 10, ["k" * 256 * 2_500]), "2")
    pieces = list(deaggregate_in_pieces([record(aggregate([User(b"b")] * 7)), long], 0, None))
    assert [len(piece.records) for piece in pieces] == [7, 4, 4, 2]


# Round trip with the producer library

keys = st.text(min_size=1, max_size=20)
hash_keys = st.integers(0, MAX_HASH_KEY)
users = st.lists(st.tuples(keys, st.binary(max_size=300), st.none() | hash_keys.map(str)), min_size=1, max_size=30)


@given(st.lists(users | st.binary(max_size=50), max_size=5), st.none() | st.tuples(hash_keys, hash_keys).map(sorted))
def test_what_a_producer_packs_comes_out(
    contents: list[list[tuple[str, bytes, str | None]] | bytes], bounds: list[int] | None
) -> None:
    start, end = bounds or (0, MAX_HASH_KEY)
    records, expected = [], []
    for number, content in enumerate(contents):
        if isinstance(content, bytes):
            records.append(record(content, str(number), "p"))
            expected.append((str(number), 0, "p", content))
            continue
        records.append(record(by_producer(content), str(number)))
        for sub, (key, data, explicit) in enumerate(content):
            hash_key = int(explicit) if explicit else int(hashlib.md5(key.encode()).hexdigest(), 16)
            if start <= hash_key <= end:
                expected.append((str(number), sub, key, data))
    result = run(records, HashKeyRange(start, end) if bounds else None)
    assert [
        (r.sequence_number, r.sub_sequence_number, r.partition_key, b64decode(r.data)) for r in result.records
    ] == expected
    assert result.payload_bytes == sum(len(e[3]) for e in expected)
    assert not result.unreadable


@given(users, st.integers(0, 10_000), st.integers(1, 255))
def test_one_flipped_byte_makes_it_a_plain_record(
    content: list[tuple[str, bytes, str | None]], place: int, flip: int
) -> None:
    data = bytearray(by_producer(content))
    data[place % len(data)] ^= flip
    damaged = [record(bytes(data))]
    assert run(damaged).records == damaged


# Import


def test_protobuf_is_imported_with_the_first_aggregate_and_leaves_the_path_alone() -> None:
    program = """
import sys
from kcl_host.decisions.deaggregation import deaggregate_in_pieces
import kcl_host.retrieval.polling
from kcl_host.model.records import Record
path = list(sys.path)
list(deaggregate_in_pieces([Record("84maX", "p", "1", 0)], 0, None))
assert "google.protobuf" not in sys.modules and "aws_kinesis_agg" not in sys.modules
(piece,) = deaggregate_in_pieces([Record(sys.argv[1], "p", "1", 0)], 0, None)
assert len(piece.records) == 2
assert "google.protobuf" in sys.modules
assert "six" not in sys.modules
assert sys.path == path
"""
    data = b64encode(aggregate([User(b"a"), User(b"b")])).decode()
    subprocess.run([sys.executable, "-W", "error", "-c", program, data], check=True)
