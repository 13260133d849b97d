"""When a batch is due, and what stays in it when somebody else has committed a part."""

from __future__ import annotations

import pytest

from kcl_host.spark.batch import OpenBatch, Trigger, above
from kcl_host.spark.position import Position
from tests.spark.world import Columns, record

TRIGGER = Trigger(records=10, bytes=1000, age_s=5)


def positions(*numbers: int) -> list[Position]:
    return [Position(number, 0) for number in numbers]


def gathered(*lines: list[int], now_s: float = 100.0) -> OpenBatch:
    batch = OpenBatch()
    for numbers in lines:
        batch.see(Position(numbers[-1], 0), 7, now_s)
        batch.add(Columns(positions(*numbers)), len(numbers), Position(numbers[-1], 0))
    return batch


def held(batch: OpenBatch) -> list[int]:
    return [position.sequence_number for part in batch.parts for position in part.columns]


def test_an_empty_batch_is_never_due() -> None:
    batch = OpenBatch()
    assert batch.due(TRIGGER, 1e9) is None
    assert batch.due_in_s(TRIGGER, 1e9) is None


def test_due_by_records() -> None:
    assert gathered([*range(1, 10)]).due(TRIGGER, 100) is None
    assert gathered([*range(1, 11)]).due(TRIGGER, 100) == "records"


def test_due_by_bytes() -> None:
    trigger = Trigger(records=1000, bytes=50, age_s=5)
    assert gathered([1, 2, 3, 4]).due(trigger, 100) is None
    assert gathered([1, 2, 3, 4], [5]).due(trigger, 100) == "bytes"


def test_due_by_the_age_of_its_first_record() -> None:
    batch = gathered([1])
    batch.see(Position(2, 0), 7, 104.0)
    assert batch.due_in_s(TRIGGER, 104.0) == 1.0
    assert batch.due(TRIGGER, 104.9) is None
    assert batch.due(TRIGGER, 105.0) == "age"
    assert batch.due_in_s(TRIGGER, 200.0) == 0.0


def test_records_that_were_dropped_have_an_age_too() -> None:
    """They need a checkpoint, or a replay would begin before them for ever."""
    batch = OpenBatch()
    batch.see(Position(3, 0), None, 100.0)
    assert batch.records == 0
    assert batch.due(TRIGGER, 105.0) == "age"


@pytest.mark.parametrize(
    ("head", "left"),
    [(None, [1, 2, 3, 5, 6]), (0, [1, 2, 3, 5, 6]), (2, [3, 5, 6]), (3, [5, 6]), (4, [5, 6]), (6, []), (9, [])],
)
def test_what_the_head_covers_is_dropped(head: int | None, left: list[int]) -> None:
    batch = gathered([1, 2, 3], [5, 6])
    dropped = batch.drop(None if head is None else Position(head, 0), lambda columns: columns)
    assert held(batch) == left
    assert dropped == 5 - len(left)
    assert batch.records == len(left)
    assert batch.bytes == 10 * len(left)
    assert batch.end == Position(6, 0), "the rest was received all the same"


def test_cleared_it_begins_anew() -> None:
    batch = gathered([1, 2])
    batch.clear()
    assert (batch.records, batch.bytes, batch.end, batch.parts) == (0, 0, None, [])


@pytest.mark.parametrize(
    "wrong",
    [positions(1, 3, 2), positions(1, 1), [Position(10, 1), Position(10, 0)], positions(10, 9), positions(5, 9, 10, 8)],
)
def test_a_line_out_of_order_is_refused(wrong: list[Position]) -> None:
    with pytest.raises(ValueError, match="come in order"):
        above([record(position) for position in wrong], None)


@pytest.mark.parametrize(("floor", "count"), [(None, 0), (8, 0), (9, 1), (10, 2), (11, 2), (100, 3)])
def test_what_was_received_before_is_left_out(floor: int | None, count: int) -> None:
    line = [record(position) for position in positions(9, 10, 100)]
    assert above(line, None if floor is None else Position(floor, 0)) == count


@pytest.mark.parametrize("wrong", [{"records": 0}, {"bytes": -1}, {"age_s": 0}])
def test_a_trigger_that_never_or_always_fires_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Trigger(**wrong)  # type: ignore[arg-type]
