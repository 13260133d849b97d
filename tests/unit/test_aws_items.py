"""Numbers and rows as DynamoDB JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.aws.items import Undecodable, decimal, hash_key_attributes, lease_from, lease_item, read_integer
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.345678, "12.345678"),
        (0.0000005, "0.000001"),
        (0.0000004, "0"),
        (1.0000015, "1.000002"),
        (100.0, "100"),
        (1e15, "1000000000000000"),
        (-1.0, "-1"),
    ],
)
def test_decimals_have_six_places_rounded_half_up_and_no_exponent(value: float, text: str) -> None:
    assert decimal(value) == {"N": text}


@pytest.mark.parametrize("text", ["12", "12.0", "1.2E1"])
def test_integers_are_compared_as_numbers(text: str) -> None:
    assert read_integer({"n": {"N": text}}, "n") == 12


@pytest.mark.parametrize("value", [{"N": "x"}, {"S": "1"}, {"NULL": True}, {"N": "1.5"}])
def test_what_is_no_integer(value: dict[str, object]) -> None:
    with pytest.raises(Undecodable, match=r"^n "):
        read_integer({"n": value}, "n")


def test_a_range_of_one_key_stays_out_of_the_row() -> None:
    assert hash_key_attributes(HashKeyRange(3, 3)) == {}
    assert hash_key_attributes(None) == {}


def test_a_throughput_that_is_no_number_stays_out_of_the_row() -> None:
    lease = Lease(lease_key="s", checkpoint=None, throughput_kbps=float("inf"))
    assert "throughputKBps" not in lease_item(lease)


texts = st.text(min_size=1, max_size=8)
checkpoints = st.builds(
    ExtendedSequenceNumber, st.from_regex(r"[1-9][0-9]{0,60}", fullmatch=True), st.integers(0, 2**40)
)
shard_sets = st.frozensets(texts, max_size=3)


@given(
    st.builds(
        Lease,
        lease_key=texts,
        checkpoint=checkpoints
        | st.sampled_from([ExtendedSequenceNumber(s) for s in (LATEST, TRIM_HORIZON, SHARD_END)]),
        lease_counter=st.integers(0, 2**63 - 1),
        lease_owner=st.none() | texts,
        checkpoint_owner=st.none() | texts,
        owner_switches_since_checkpoint=st.integers(0, 1000),
        parent_shard_ids=shard_sets,
        child_shard_ids=shard_sets,
        hash_key_range=st.none()
        | st.builds(HashKeyRange, st.integers(0, 2**127), st.integers(2**127 + 1, MAX_HASH_KEY)),
        pending_checkpoint=st.none() | checkpoints,
        throughput_kbps=st.none() | st.integers(0, 10**9).map(lambda n: n / 1_000_000),
    )
)
def test_a_lease_survives_its_row(lease: Lease) -> None:
    assert lease_from(lease_item(lease)) == lease
