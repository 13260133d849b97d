from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.local.sequence_number import LAST_COUNTER, SequenceNumber
from kcl_host.model.sequence import ExtendedSequenceNumber

seconds = st.integers(1_400_000_000, 2_600_000_000)  # to the year 2052: later ones begin with 50
numbers = st.builds(
    SequenceNumber,
    shard_created_s=seconds,
    shard_number=st.integers(0, 2**32 - 1),
    counter=st.integers(0, LAST_COUNTER),
    time_s=seconds,
)


@given(numbers)
def test_a_number_has_the_form_of_the_service_and_can_be_taken_apart(number: SequenceNumber) -> None:
    text = str(number)
    assert len(text) == 56 and text.startswith("49")
    assert int(text).bit_length() == 186 and int(text) >> 184 == 2
    assert int(text) >> 4 & 2**32 - 1 == number.shard_number  # where SequenceNumberValidator looks for the shard
    assert SequenceNumber.parse(text) == number


@given(numbers, st.integers(0, LAST_COUNTER), seconds)
def test_numbers_of_a_shard_grow_with_the_counter_whatever_the_clock_does(
    number: SequenceNumber, counter: int, time_s: int
) -> None:
    other = SequenceNumber(
        shard_created_s=number.shard_created_s, shard_number=number.shard_number, counter=counter, time_s=time_s
    )
    if number.counter != counter:
        assert (int(number) < int(other)) == (number.counter < counter)


@given(numbers, st.integers(0, 2**32 - 1), seconds)
def test_every_number_of_a_later_shard_is_above_the_end_of_an_earlier_one(
    number: SequenceNumber, shard_number: int, time_s: int
) -> None:
    child = SequenceNumber(
        shard_created_s=number.shard_created_s + 1, shard_number=shard_number, counter=0, time_s=time_s
    )
    assert int(child) > int(number)
    assert ExtendedSequenceNumber(str(child)) > ExtendedSequenceNumber(str(number))


@pytest.mark.parametrize("text", ["", "abc", "-1", "01", "1.5", "1" * 130, "٣"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a sequence number"):
        SequenceNumber.parse(text)


@pytest.mark.parametrize("text", ["0", "1", "9223372036854775807", "4" * 56])
def test_numbers_of_other_layouts_are_numbers_but_not_ours(text: str) -> None:
    assert SequenceNumber.parse(text) is None
