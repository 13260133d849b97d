"""What a refused lease write means (spec lease-table 5.2, 10.1, pitfalls 6, 10, 30)."""

from __future__ import annotations

import msgspec
import pytest

from kcl_host.aws.items import decimal
from kcl_host.decisions.lease_write import Lost, has_expired, judge_refused, smooth_throughput
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber

FIVE, NINE = ExtendedSequenceNumber("5"), ExtendedSequenceNumber("9")
LOCAL = Lease(lease_key="s", checkpoint=FIVE, lease_counter=7, lease_owner="me")


def row(**changes: object) -> Lease:
    return msgspec.structs.replace(LOCAL, **changes)


def test_a_deleted_row_is_lost() -> None:
    assert judge_refused(LOCAL, None, [], "me") == Lost("the row is gone")


@pytest.mark.parametrize("owner", ["other", None])
def test_a_row_of_somebody_else_or_of_nobody_is_lost(owner: str | None) -> None:
    verdict = judge_refused(LOCAL, row(lease_owner=owner, lease_counter=8), [FIVE], "me")
    assert verdict == Lost(f"owned by {owner or 'nobody'}")


def test_an_announced_handover_leaves_the_lease_with_its_old_owner() -> None:
    pending = row(lease_owner="next", checkpoint_owner="me")
    assert judge_refused(LOCAL, pending, [], "me") == pending


def test_owner_and_checkpoint_owner_alike_is_an_invalid_row() -> None:
    assert isinstance(judge_refused(LOCAL, row(checkpoint_owner="me"), [], "me"), Lost)


def test_a_lost_answer_is_recognised_by_the_counter() -> None:
    assert judge_refused(LOCAL, row(lease_counter=8), [FIVE], "me") == row(lease_counter=8)


def test_a_lost_checkpoint_is_recognised_and_its_position_taken_over() -> None:
    written = row(lease_counter=8, checkpoint=NINE)
    assert judge_refused(LOCAL, written, [NINE], "me") == written


def test_a_lost_answer_and_a_handover_at_once() -> None:
    pending = row(lease_owner="next", checkpoint_owner="me", lease_counter=8)
    assert judge_refused(LOCAL, pending, [FIVE], "me") == pending


def test_more_writes_than_we_are_in_doubt_about_are_a_twins() -> None:
    assert isinstance(judge_refused(LOCAL, row(lease_counter=8), [], "me"), Lost)
    # However many answers were lost: all those writes had the same counter for their condition.
    assert isinstance(judge_refused(LOCAL, row(lease_counter=9), [FIVE, FIVE], "me"), Lost)


def test_a_counter_that_went_back_is_not_ours() -> None:
    assert isinstance(judge_refused(LOCAL, row(lease_counter=6), [FIVE], "me"), Lost)


def test_a_checkpoint_that_we_never_wrote_is_a_twins() -> None:
    foreign = row(lease_counter=8, checkpoint=ExtendedSequenceNumber("6"))
    assert isinstance(judge_refused(LOCAL, foreign, [NINE], "me"), Lost)


def test_an_unmoved_counter_without_a_handover_explains_nothing() -> None:
    assert isinstance(judge_refused(LOCAL, LOCAL, [FIVE], "me"), Lost)


def test_expiry_is_strictly_later_than_the_lease_duration() -> None:
    assert not has_expired(100.0, 110.0, 10.0)
    assert has_expired(100.0, 110.001, 10.0)


# Throughput (spec lease-table 8): bytes / 1024 / seconds, alpha 0.5, six decimals half up

WINDOW_S = 3.308
"""KCL's renewal interval with failoverTimeMillis = 10000."""


@pytest.mark.parametrize(
    ("previous_kbps", "payload_bytes", "elapsed_s", "kbps"),
    [
        (None, 4096, 2.0, 2.0),
        (None, 0, WINDOW_S, 0.0),
        (None, 1_048_576, WINDOW_S, 309.552600),
        (None, 1, WINDOW_S, 0.000295),
        (2.0, 0, WINDOW_S, 1.0),
        (309.5526, 524_288, WINDOW_S, 232.164450),
        (None, 16, 2.0, 0.007813),
        (None, 48, 2.0, 0.023438),
        (0.000001, 0, WINDOW_S, 0.0),
        (0.000002, 0, WINDOW_S, 0.000001),
        (0.000003, 0, WINDOW_S, 0.000002),
    ],
)
def test_throughput(previous_kbps: float | None, payload_bytes: int, elapsed_s: float, kbps: float) -> None:
    value = smooth_throughput(previous_kbps, payload_bytes, elapsed_s)
    assert value == kbps
    # The row gets it as it is.
    assert float(decimal(value)["N"]) == kbps


def test_throughput_is_within_a_digit_of_javas_which_smooths_before_it_rounds() -> None:
    batches = [1_000_003, 77, 0, 0, 123_457, 5, 0, 999, 31, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    ours, exact = None, None
    for payload_bytes in batches:
        ours = smooth_throughput(ours, payload_bytes, WINDOW_S)
        value = payload_bytes / 1024 / WINDOW_S
        exact = value if exact is None else 0.5 * value + 0.5 * exact
        assert ours == pytest.approx(exact, abs=0.000001)


def test_throughput_of_an_idle_lease_fades_to_nothing() -> None:
    value = smooth_throughput(None, 10**9, WINDOW_S)
    for _ in range(40):
        value = smooth_throughput(value, 0, WINDOW_S)
    assert value == 0.0
