"""Positions and the filter of delivered records (retrieval 2, consumer-lifecycle 10; KCL 3.5.1 IteratorBuilder)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.decisions.position import (
    drop_delivered,
    first_position,
    is_of_earlier_stream,
    lacks_timestamp,
    reposition,
)
from kcl_host.model.records import Record
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber, InitialPosition, IteratorPosition
from kcl_host.model.shard import HashKeyRange, Shard

AT_TIME = InitialPosition(kind="AT_TIMESTAMP", timestamp_s=1700000000.5)
LATEST = InitialPosition(kind="LATEST")


def at(sequence_number: str, sub: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(sequence_number, sub)


def record(sequence_number: str, sub: int = 0) -> Record:
    return Record(
        data="",
        partition_key="p",
        sequence_number=sequence_number,
        approximate_arrival_timestamp=0,
        sub_sequence_number=sub,
    )


@pytest.mark.parametrize(
    ("checkpoint", "initial", "position"),
    [
        (at("LATEST"), LATEST, IteratorPosition(type="LATEST")),
        (at("TRIM_HORIZON"), LATEST, IteratorPosition(type="TRIM_HORIZON")),
        (at("AT_TIMESTAMP"), AT_TIME, IteratorPosition(type="AT_TIMESTAMP", timestamp_s=1700000000.5)),
        (at("496", 3), AT_TIME, IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="496")),
    ],
)
def test_first_position(
    checkpoint: ExtendedSequenceNumber, initial: InitialPosition, position: IteratorPosition
) -> None:
    assert first_position(checkpoint, initial) == position
    assert not lacks_timestamp(checkpoint, initial)


def test_a_lease_at_a_timestamp_that_nobody_knows_any_more_loses_nothing() -> None:
    assert lacks_timestamp(at("AT_TIMESTAMP"), LATEST)
    assert first_position(at("AT_TIMESTAMP"), LATEST) == IteratorPosition(type="TRIM_HORIZON")


def test_shard_end_is_no_position() -> None:
    with pytest.raises(ValueError, match="SHARD_END"):
        first_position(AT_SHARD_END, LATEST)


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST", "AT_SEQUENCE_NUMBER"])
def test_after_what_was_fetched(start: str) -> None:
    position = reposition(IteratorPosition(type=start, sequence_number="5"), "7", 1000.0)  # type: ignore[arg-type]
    assert position == IteratorPosition(type="AFTER_SEQUENCE_NUMBER", sequence_number="7")


def test_before_anything_was_fetched_the_checkpoint_itself_is_read_again() -> None:
    """Java's defect: AFTER the checkpoint skips the rest of an aggregate that the checkpoint lies in."""
    start = first_position(at("5", 2), LATEST)
    assert reposition(start, None, 1000.0) == IteratorPosition(type="AT_SEQUENCE_NUMBER", sequence_number="5")


def test_latest_stays_at_the_moment_it_was_first_asked_for() -> None:
    latest = IteratorPosition(type="LATEST")
    assert reposition(latest, None, 1000.0) == IteratorPosition(type="AT_TIMESTAMP", timestamp_s=700.0)
    horizon = IteratorPosition(type="TRIM_HORIZON")
    assert reposition(horizon, None, 1000.0) == horizon


@pytest.mark.parametrize(
    ("number", "shard_id", "is_earlier"),
    [("99", "a", True), ("100", "a", False), ("101", "a", False), ("99", "c", False), (None, "a", False)],
)
def test_a_number_below_the_first_of_its_shard_is_of_an_earlier_stream(
    number: str | None, shard_id: str, is_earlier: bool
) -> None:
    shards = [
        Shard(shard_id=i, hash_key_range=HashKeyRange(0, 1), starting_sequence_number=first)
        for i, first in (("a", "100"), ("b", "900"))
    ]
    position = IteratorPosition(type="AFTER_SEQUENCE_NUMBER" if number else "LATEST", sequence_number=number)
    assert is_of_earlier_stream(position, shard_id, shards) == is_earlier


@pytest.mark.parametrize("sentinel", ["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
def test_a_sentinel_drops_nothing(sentinel: str) -> None:
    records = [record("1"), record("2")]
    assert drop_delivered(records, at(sentinel)) is records


def test_records_above_the_checkpoint_pass_as_they_are() -> None:
    records = [record("10"), record("11")]
    assert drop_delivered(records, at("9")) is records
    assert drop_delivered([], at("9")) == []


def test_the_rest_of_an_aggregate_is_kept() -> None:
    records = [record("9"), record("10", 0), record("10", 1), record("10", 2), record("11")]
    assert drop_delivered(records, at("10", 1)) == records[3:]
    assert drop_delivered(records, at("11")) == []


def test_shard_end_drops_everything() -> None:
    assert drop_delivered([record("10")], AT_SHARD_END) == []


numbers = st.tuples(st.integers(0, 2000), st.integers(0, 3))


@given(st.lists(numbers), numbers)
def test_the_filter_is_the_obvious_one(pairs: list[tuple[int, int]], checkpoint: tuple[int, int]) -> None:
    records = [record(str(number), sub) for number, sub in sorted(pairs)]
    kept = drop_delivered(records, at(str(checkpoint[0]), checkpoint[1]))
    assert [(int(r.sequence_number), r.sub_sequence_number) for r in kept] == [
        p for p in sorted(pairs) if p > checkpoint
    ]
