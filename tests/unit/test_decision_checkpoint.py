"""Checkpoint requests (consumer-lifecycle 8; KCL 3.5.1 ShardRecordProcessorCheckpointer)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.decisions.checkpoint import (
    HANDOVER_STATE,
    CheckpointState,
    Refused,
    Unchanged,
    Write,
    delivered,
    entering_shard_end,
    handover_note,
    parse_state,
    prepared_checkpoint,
    replay_end,
    resolve,
    started,
    written,
)
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, MAX_STATE_BYTES, ExtendedSequenceNumber, PreparedCheckpoint


def esn(text: str, sub: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(text, sub)


def reading(last: str = "10", largest: str = "20", sub: int = 0) -> CheckpointState:
    return delivered(started(esn(last)), esn(largest, sub))


def refusal(outcome: Write | Unchanged | Refused) -> str:
    assert isinstance(outcome, Refused)
    assert outcome.error == "IllegalArgumentException"
    return outcome.reason


@pytest.mark.parametrize(
    "sequence_number, sub, position",
    [
        (None, None, esn("20", 3)),
        (None, 7, esn("20", 3)),
        ("15", None, esn("15")),
        ("15", 4, esn("15", 4)),
        ("20", None, esn("20")),
        ("20", 3, esn("20", 3)),
        ("0015", 1, esn("15", 1)),
        ("10", 1, esn("10", 1)),
    ],
)
def test_a_position_in_range_is_written(sequence_number: str | None, sub: int | None, position: object) -> None:
    assert resolve(reading(sub=3), sequence_number, sub) == Write(position)  # type: ignore[arg-type]


@pytest.mark.parametrize("sequence_number", ["10", "010"])
def test_the_last_checkpoint_again_succeeds_without_a_write(sequence_number: str) -> None:
    assert resolve(reading(), sequence_number, None) == Unchanged(esn("10"))


def test_nothing_delivered_yet_means_no_write() -> None:
    assert resolve(started(esn("TRIM_HORIZON")), None, None) == Unchanged(esn("TRIM_HORIZON"))
    assert resolve(started(esn("LATEST")), "LATEST", 0) == Unchanged(esn("LATEST"))


@pytest.mark.parametrize(
    "sequence_number, sub, reason",
    [
        ("9", None, "below the last checkpoint"),
        ("20", 1, "beyond"),
        ("21", None, "beyond"),
        ("SHARD_END", None, "beyond"),
        ("TRIM_HORIZON", None, "below the last checkpoint"),
        ("15", -1, "negative"),
        ("", None, "malformed"),
        ("-15", None, "malformed"),
        ("1 5", None, "malformed"),
        ("15\n", None, "malformed"),
        ("\u0661\u0665", None, "malformed"),
        ("shard_end", None, "malformed"),
        ("9" * 130, None, "malformed"),
        ("1" * 5000, None, "malformed"),
    ],
)
def test_refusals(sequence_number: str, sub: int | None, reason: str) -> None:
    assert reason in refusal(resolve(reading(), sequence_number, sub))


def test_sequence_numbers_compare_as_integers() -> None:
    assert resolve(reading("9", "100"), "10", None) == Write(esn("10"))


def test_a_child_cannot_move_the_row_to_another_sentinel() -> None:
    """In Java LATEST is in range here, and would skip everything that came before the next start."""
    assert "not the position of a record" in refusal(resolve(reading("TRIM_HORIZON", "20"), "LATEST", None))


def test_an_aggregate_checkpointed_by_number_alone_cannot_go_back() -> None:
    state = written(reading(sub=3), esn("20", 2))
    assert "below" in refusal(resolve(state, "20", None))


def test_the_largest_permitted_never_decreases() -> None:
    assert delivered(reading(), esn("15")).largest_permitted == esn("20")
    assert delivered(entering_shard_end(reading()), esn("30")).largest_permitted == AT_SHARD_END


# Shard end


@pytest.mark.parametrize("request_", [(None, None), ("SHARD_END", None), ("SHARD_END", 5), ("20", 3), ("020", 3)])
def test_at_shard_end_the_last_record_stands_for_the_end(request_: tuple[str | None, int | None]) -> None:
    state = entering_shard_end(reading(sub=3))
    assert resolve(state, *request_) == Write(AT_SHARD_END)


def test_a_child_that_checkpointed_the_last_record_already_still_ends_the_shard() -> None:
    """The trap of consumer-lifecycle 8.3: Java writes nothing here, and the shard is wedged."""
    state = entering_shard_end(written(reading(), esn("20")))
    assert resolve(state, "20", None) == Write(AT_SHARD_END)
    assert resolve(state, None, None) == Write(AT_SHARD_END)


def test_an_earlier_record_is_written_as_itself_at_shard_end() -> None:
    assert resolve(entering_shard_end(reading()), "19", None) == Write(esn("19"))


def test_at_shard_end_a_number_that_was_never_delivered_is_refused() -> None:
    assert "beyond 20," in refusal(resolve(entering_shard_end(reading()), "21", None))


def test_a_repeated_shard_end_remembers_the_same_record() -> None:
    once = entering_shard_end(reading())
    assert entering_shard_end(once) == once
    assert once.at_shard_end == esn("20")


def test_after_shard_end_was_written_the_same_requests_succeed() -> None:
    state = written(entering_shard_end(reading()), AT_SHARD_END)
    for request_ in [(None, None), ("SHARD_END", None), ("20", None)]:
        assert resolve(state, *request_) == Unchanged(AT_SHARD_END)
    assert "below" in refusal(resolve(state, "19", None))


def test_a_lease_found_at_shard_end_substitutes_nothing() -> None:
    state = entering_shard_end(started(AT_SHARD_END))
    assert state.at_shard_end is None
    assert resolve(state, None, None) == Unchanged(AT_SHARD_END)


# The state beside a prepared checkpoint


@pytest.mark.parametrize(
    ("text", "state"),
    [(None, None), ("", b""), ("AP8=", b"\x00\xff"), ("A" * 5460 + "AA==", bytes(MAX_STATE_BYTES))],
    ids=["none", "empty", "bytes", "largest"],
)
def test_an_application_state(text: str | None, state: bytes | None) -> None:
    assert parse_state(text) == state


@pytest.mark.parametrize("text", ["AP8", "A P8=", "AP8=\n", "_-==", "\u0661\u0665AA", "AP8=AP8="])
def test_an_application_state_that_is_not_base64(text: str) -> None:
    refused = parse_state(text)
    assert isinstance(refused, Refused)
    assert refused == Refused("IllegalArgumentException", "the application state is not base64")


def test_an_application_state_that_is_too_large() -> None:
    refused = parse_state("A" * 5464)
    assert isinstance(refused, Refused)
    assert "4098 bytes is too large" in refused.reason


# What is left for the next owner


def lease(pending: str | None = None, state: bytes | None = None, checkpoint: str = "10") -> Lease:
    return Lease(
        lease_key="s1",
        checkpoint=esn(checkpoint),
        pending_checkpoint=None if pending is None else esn(pending),
        pending_checkpoint_state=state,
    )


def test_a_handover_notes_the_last_record_delivered() -> None:
    assert handover_note(reading(sub=3), lease()) == esn("20", 3)
    assert handover_note(entering_shard_end(reading(sub=3)), lease()) == esn("20", 3)


@pytest.mark.parametrize(
    "state",
    [
        started(esn("10")),
        started(esn("LATEST")),
        written(reading(), esn("20")),
        written(entering_shard_end(reading()), AT_SHARD_END),
        entering_shard_end(started(AT_SHARD_END)),
    ],
    ids=["nothing delivered", "nothing ever", "all checkpointed", "shard ended", "found at its end"],
)
def test_a_handover_without_a_replay_needs_no_note(state: CheckpointState) -> None:
    assert handover_note(state, lease()) is None


@pytest.mark.parametrize("state", [None, b"", b"transaction 7"])
@pytest.mark.parametrize("pending", ["15", "20", "30"])
def test_what_an_application_prepared_is_never_replaced_by_a_note(pending: str, state: bytes | None) -> None:
    assert handover_note(reading(), lease(pending, state)) is None


@pytest.mark.parametrize(("before", "note"), [("15", esn("20")), ("20", None), ("30", None), ("5", esn("20"))])
def test_of_two_notes_the_farther_one_stays(before: str, note: ExtendedSequenceNumber | None) -> None:
    assert handover_note(reading(), lease(before, HANDOVER_STATE)) == note


def test_a_note_is_told_as_a_replay_and_never_to_the_child() -> None:
    assert replay_end(lease("20", HANDOVER_STATE)) == esn("20")
    assert replay_end(lease("10", HANDOVER_STATE)) is None, "there is nothing between"
    assert prepared_checkpoint(lease("20", HANDOVER_STATE)) is None


@pytest.mark.parametrize("state", [None, b"transaction 7"])
def test_what_an_application_prepared_is_told_to_the_child_only(state: bytes | None) -> None:
    assert prepared_checkpoint(lease("20", state)) == PreparedCheckpoint(esn("20"), state)
    assert replay_end(lease("20", state)) is None


def test_nothing_pending() -> None:
    assert replay_end(lease()) is None
    assert prepared_checkpoint(lease()) is None


# Against a slow obvious version

ORDER = ["AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", *[str(n) for n in range(1, 13)], "SHARD_END"]
LADDER = [(word, sub) for word in ORDER for sub in range(1 if not word.isdigit() else 3)]
"""Every position there is, in ascending order."""


def obvious(last: int, largest: int, at_shard_end: int | None, text: str | None, sub: int | None) -> str:
    """The rule over places on the ladder, spelled out case by case."""
    if text is None:
        place = largest
    elif sub is not None and sub < 0:
        return "refused"
    elif text == "SHARD_END":
        place = len(LADDER) - 1
    elif text.isdigit() and text.isascii():
        place = LADDER.index((str(int(text)), sub or 0))
    elif text in ORDER:
        place = LADDER.index((text, 0))
    else:
        return "refused"
    if place == at_shard_end:
        place = len(LADDER) - 1
    if place == last:
        return f"unchanged {LADDER[place]}"
    if not last < place <= largest:
        return "refused"
    if at_shard_end is not None and at_shard_end < place < largest:
        return "refused"
    if LADDER[place][0] in ("AT_TIMESTAMP", "TRIM_HORIZON", "LATEST"):
        return "refused"
    return f"write {LADDER[place]}"


PLACES = st.integers(0, len(LADDER) - 2)


@settings(max_examples=500)
@given(
    PLACES,
    PLACES,
    st.booleans(),
    st.none() | st.sampled_from([*ORDER, "007", "x", ""]),
    st.none() | st.integers(-1, 2),
)
def test_against_the_obvious_version(a: int, b: int, ended: bool, text: str | None, sub: int | None) -> None:
    last, largest = min(a, b), max(a, b)
    if text in ("AT_TIMESTAMP", "TRIM_HORIZON", "LATEST"):
        sub = min(sub, 0) if sub is not None else None  # no row holds a sentinel with a sub-sequence number
    state = delivered(started(esn(*LADDER[last])), esn(*LADDER[largest]))
    expected = obvious(last, len(LADDER) - 1 if ended else largest, largest if ended else None, text, sub)
    outcome = resolve(entering_shard_end(state) if ended else state, text, sub)
    if isinstance(outcome, Refused):
        assert expected == "refused"
    else:
        found = outcome.position.sequence_number, outcome.position.sub_sequence_number
        assert expected == f"{'write' if isinstance(outcome, Write) else 'unchanged'} {found}"
