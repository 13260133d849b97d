"""Large records, full answers and aggregates that grow: memory stays within the bounds, and nothing stands still."""

from __future__ import annotations

import tracemalloc
from base64 import b64decode

import pytest

from kcl_host.decisions.deaggregation import MAX_USER_RECORDS
from kcl_host.model.records import Batch
from tests.unit.retrieval_rig import MODES, Mode, Reader

both = pytest.mark.parametrize("mode", MODES)
LARGE = 10 * 2**20


def take(reader: Reader, seconds: float = 30.0) -> list[Batch]:
    """What is fetched ahead while the child is busy."""
    reader.run(seconds, taking=False)
    return reader.take()


@both
def test_a_record_of_ten_mebibytes_is_delivered_alone(mode: Mode) -> None:
    reader = Reader(mode)
    reader.fanout.event_records = 1
    data = bytes(range(256)) * (LARGE // 256)
    for _ in range(2):
        reader.put(data=data)
        reader.put()
    reader.open()
    while len(reader.seen) < len(reader.produced):
        before = len(reader.seen)
        *small, last = [batch for batch in take(reader) if batch.records]
        assert all(batch.payload_bytes == len(b"plain") for batch in small)
        if last.payload_bytes > 5:
            (record,) = last.records
            assert last.payload_bytes == LARGE and b64decode(record.data) == data
        assert len(reader.seen) <= before + 2, "nothing is fetched behind a large record that waits"
    assert reader.seen == reader.produced


@both
def test_large_records_wait_at_kinesis_until_there_is_room(mode: Mode) -> None:
    """The bounds count payload; kept is base64 text, 4/3 of it."""
    reader = Reader(mode)
    reader.fanout.event_records = 1
    for _ in range(5):
        reader.put(data=bytes(6 * 2**20))
    reader.open()
    tracemalloc.start()
    try:
        reader.run(60, taking=False)
        kept_bytes = tracemalloc.get_traced_memory()[0]
        # Below the bound of 8 MiB after the first one, above it after the second.
        assert 2 * 8 * 2**20 <= kept_bytes < 2 * 8 * 2**20 + 200_000
        assert [batch.payload_bytes for batch in reader.take()] == [6 * 2**20] * 2
    finally:
        tracemalloc.stop()
    reader.run(60)
    assert reader.seen == reader.produced


def test_full_answers() -> None:
    reader = Reader("POLLING")
    for _ in range(35_000):
        reader.put()
    reader.open()
    assert [len(batch.records) for batch in take(reader)] == [10_000, 10_000, 10_000]
    assert len(take(reader)[0].records) == 5_000
    assert reader.seen == reader.produced


def test_answers_of_ten_megabytes() -> None:
    reader = Reader("POLLING")
    for _ in range(20_000):
        reader.put(data=bytes(1_000))
    reader.open()
    for _ in range(2):
        batch = take(reader)[0]
        assert len(batch.records) >= 9_000 and 9_000_000 <= batch.payload_bytes <= LARGE
    reader.run(30)
    assert reader.seen == reader.produced


@both
def test_a_megabyte_that_grows_to_many_user_records(mode: Mode) -> None:
    """Bounds of 15,000 user records: the rest of the aggregate waits, unopened, for room."""
    reader = Reader(mode, bounds=(10, 15_000, 8 * 2**20))
    for _ in range(2):
        reader.put(users=3 * MAX_USER_RECORDS + 1)
    reader.open()
    while len(reader.seen) < len(reader.produced):
        batches = [batch for batch in take(reader) if batch.records]
        assert max(len(batch.records) for batch in batches) <= MAX_USER_RECORDS
        assert sum(len(batch.records) for batch in batches) <= 15_000 + MAX_USER_RECORDS
    assert reader.seen == reader.produced
