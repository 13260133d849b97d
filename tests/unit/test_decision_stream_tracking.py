"""Which streams are synced, tracked, and lose their leases; spec shard-sync 8.3 to 8.5."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kcl_host.decisions.stream_tracking import StreamPlan, earlier_namesakes, identify, plan_streams
from kcl_host.model.shard import StreamIdentifier


def stream(name: str, epoch: int = 1, account: str = "111122223333") -> StreamIdentifier:
    return StreamIdentifier(name=name, account=account, epoch=epoch)


A, B, C = stream("a"), stream("b"), stream("c")
NO = "NO_STREAMS_LEASES_DELETION"
AUTO = "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION"
PROVIDED = "PROVIDED_STREAMS_DEFERRED_DELETION"


def plan(**given: Any) -> StreamPlan:
    values: dict[str, Any] = {
        "configured": set(), "tracked": set(), "in_table": None, "gone": set(), "former": {}, "strategy": NO,
        "provided": set(), "wait_s": 100.0, "now_s": 1000.0,
    }  # fmt: skip
    return plan_streams(**{**values, **given})


def test_a_new_stream_is_synced_and_tracked_only_when_that_has_worked() -> None:
    new = plan(configured={A, B}, tracked={A})
    assert (new.sync, new.tracked, new.delete) == ((B,), {A}, ())


def test_what_has_leases_is_known_to_a_new_leader() -> None:
    """A tracked stream without leases and without configuration is forgotten."""
    new = plan(configured={A}, tracked={A, C}, in_table={B}, strategy=AUTO)
    assert new.tracked == {A, B} and new.former == {B: 1000.0} and new.delete == ()


def test_leases_of_former_streams_stay_by_default_and_are_not_looked_after_any_more() -> None:
    kept = plan(configured={A}, tracked={A, B})
    assert (kept.tracked, kept.former, kept.delete) == ({A}, {}, ())


def test_a_former_stream_is_looked_after_until_the_wait_is_over() -> None:
    waiting = plan(configured={A}, tracked={A, B}, strategy=AUTO, former={B: 950.0})
    assert (waiting.tracked, waiting.former, waiting.delete) == ({A, B}, {B: 950.0}, ())
    over = plan(configured={A}, tracked={A, B}, strategy=AUTO, former={B: 900.0})
    assert (over.tracked, over.delete) == ({A}, (B,))
    assert over.former == {B: 900.0}, "until they are deleted: a failure must be made up for"


def test_a_stream_that_comes_back_starts_to_wait_anew() -> None:
    back = plan(configured={A, B}, tracked={A, B}, strategy=AUTO, former={B: 0.0})
    assert (back.former, back.delete, back.sync) == ({}, (), ())


def test_only_provided_streams_are_deleted_and_never_configured_ones() -> None:
    some = plan(configured={A}, tracked={A, B, C}, strategy=PROVIDED, provided={A, B}, former={B: 0.0})
    assert (some.delete, some.tracked) == ((B,), {A, C})


def test_a_stream_known_to_be_deleted_does_not_wait_unless_it_is_configured() -> None:
    for strategy in (NO, AUTO, PROVIDED):
        assert plan(configured={A}, tracked={A, B}, gone={A, B}, strategy=strategy).delete == (B,)


def test_a_failed_deletion_is_made_up_for_under_every_strategy() -> None:
    assert plan(configured={A}, former={B: float("-inf")}).delete == (B,)


names = st.sets(st.sampled_from([A, B, C, stream("d"), stream("e")]))


@given(names, names, st.none() | names, names, st.sampled_from([NO, AUTO, PROVIDED]), names)
def test_nothing_configured_is_ever_deleted_and_everything_configured_is_synced_or_tracked(
    configured: set[StreamIdentifier],
    tracked: set[StreamIdentifier],
    in_table: set[StreamIdentifier] | None,
    gone: set[StreamIdentifier],
    strategy: str,
    former: set[StreamIdentifier],
) -> None:
    made = plan(
        configured=configured, tracked=tracked, in_table=in_table, gone=gone, strategy=strategy,
        former=dict.fromkeys(former, 0.0),
    )  # fmt: skip
    assert not configured & {*made.delete, *made.former}
    assert configured == {*made.sync} | (configured & made.tracked)
    assert not {*made.sync} & made.tracked and not {*made.delete} & made.tracked


# Who a stream is

NAME, WITH_ACCOUNT = StreamIdentifier(name="a"), StreamIdentifier(name="a", account="444455556666")


def test_a_stream_is_who_kinesis_says_it_is() -> None:
    assert identify({NAME: A}, {}, {A, B}) == ({A}, frozenset())


def test_one_that_kinesis_does_not_name_now_stays_what_it_was() -> None:
    assert identify({NAME: None}, {NAME: A}, {A, B}) == ({A}, frozenset())
    assert identify({NAME: None}, {}, {A, stream("a", 2)}) == ({A, stream("a", 2)}, frozenset())
    assert identify({WITH_ACCOUNT: None}, {}, {A}) == (frozenset(), frozenset())
    assert identify({NAME: None}, {}, {B}) == (frozenset(), frozenset())


def test_created_anew_under_its_name_it_is_another_stream_and_the_old_one_is_gone() -> None:
    assert identify({NAME: stream("a", 2)}, {NAME: A}, {A}) == ({stream("a", 2)}, {A})


def test_an_epoch_that_kinesis_never_said_proves_nothing() -> None:
    """An application of Java's may have made it up; its leases must not be deleted for that."""
    assert identify({NAME: stream("a", 1700000000)}, {}, {A}) == ({stream("a", 1700000000)}, frozenset())
    assert earlier_namesakes({stream("a", 1700000000)}, {A, B, stream("a", 1800000000)}) == {A}
