"""Positions compare as integers, and so do their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.spark.position import Position, at_or_below, count_at_or_below, decode, encode, is_above, parse

numbers = st.one_of(st.integers(0, 10**129 - 1), st.integers(0, 1000))
positions = st.builds(Position, numbers, st.one_of(st.integers(0, 10**19 - 1), st.integers(0, 5)))


@given(positions)
def test_a_name_gives_the_position_back(position: Position) -> None:
    assert decode(encode(position)) == position


@given(positions, positions)
def test_names_sort_as_positions_do(a: Position, b: Position) -> None:
    assert (encode(a) < encode(b)) == (a < b)
    assert len(encode(a)) == len(encode(b))


def test_the_beginning_has_a_name() -> None:
    assert decode(encode(None)) is None


@pytest.mark.parametrize("wrong", [Position(-1, 0), Position(1, -1), Position(10**129, 0), Position(1, 10**19)])
def test_a_number_that_would_sort_wrongly_gets_no_name(wrong: Position) -> None:
    with pytest.raises(ValueError, match="no such position"):
        encode(wrong)


@pytest.mark.parametrize("name", ["", "5.0", "genesis.json", "5"])
def test_another_name_is_no_position(name: str) -> None:
    with pytest.raises(ValueError):
        decode(name)


def test_nothing_is_covered_before_the_first_commit() -> None:
    assert not at_or_below(Position(0, 0), None)
    assert is_above(Position(0, 0), None)
    assert not is_above(None, None)
    assert not is_above(None, Position(1, 0))


@given(st.lists(positions, unique=True), positions)
def test_what_is_covered_is_counted_like_one_by_one(some: list[Position], head: Position) -> None:
    some.sort()
    assert count_at_or_below(some, head) == sum(1 for position in some if position <= head)


def test_sub_records_of_one_aggregate_are_told_apart() -> None:
    some = [Position(9, 0), Position(10, 0), Position(10, 1), Position(10, 2), Position(11, 0)]
    assert count_at_or_below(some, Position(10, 1)) == 3


@pytest.mark.parametrize("word", ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END", None, "\u0663"])
def test_a_word_is_no_position(word: str | None) -> None:
    assert parse(word, 0) is None


def test_a_checkpoint_is_a_position() -> None:
    assert parse("495", 3) == Position(495, 3)
    assert parse("495", None) == Position(495, 0)
