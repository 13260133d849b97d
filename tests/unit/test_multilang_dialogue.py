"""Order of the exchange with a child, and who is to blame when it breaks (PROTOCOL.md section 5)."""

from __future__ import annotations

import json

import msgspec
import pytest

from kcl_host.errors import ChildExited, ChildMisbehaved
from kcl_host.model.records import Record
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber, PreparedCheckpoint
from kcl_host.multilang.dialogue import (
    AWAITED,
    TRANSITIONS,
    ActionDone,
    ActionUnanswered,
    CheckpointRequested,
    Dialogue,
    Happening,
    LocalProtocolError,
    Noise,
    PrepareCheckpointRequested,
    RemoteProtocolError,
    State,
)

CHECKPOINT = b'{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":2}\n'
RECORD = Record(data="", partition_key="k", sequence_number="7", approximate_arrival_timestamp=0)


def status(action: str | None) -> bytes:
    return json.dumps({"action": "status", "responseFor": action}).encode() + b"\n"


def requested(allowed: bool) -> CheckpointRequested:
    return CheckpointRequested(sequence_number="7", sub_sequence_number=2, allowed=allowed)


def ready(max_line_bytes: int = 1000) -> Dialogue:
    dialogue = Dialogue(max_line_bytes)
    dialogue.initialize("shardId-000000000000", AT_TRIM_HORIZON)
    dialogue.receive(status("initialize"))
    return dialogue


def processing(max_line_bytes: int = 1000) -> Dialogue:
    dialogue = ready(max_line_bytes)
    dialogue.process_records([RECORD], 0)
    return dialogue


def test_a_whole_life() -> None:
    dialogue = Dialogue()
    assert repr(dialogue) == "<Dialogue new>"
    line = dialogue.initialize("shardId-000000000003", ExtendedSequenceNumber("123", 4))
    assert json.loads(line) == {
        "action": "initialize", "shardId": "shardId-000000000003", "sequenceNumber": "123", "subSequenceNumber": 4
    }  # fmt: skip
    assert dialogue.awaiting == "initialize" and not dialogue.is_idle
    assert dialogue.receive(status("initialize")) == [ActionDone(action="initialize")]
    assert dialogue.awaiting is None and dialogue.is_idle
    assert json.loads(dialogue.process_records([RECORD], None))["millisBehindLatest"] is None
    assert repr(dialogue) == "<Dialogue processing, awaiting processRecords>"
    assert dialogue.receive(CHECKPOINT) == [requested(allowed=True)]
    assert dialogue.receive(status("processRecords")) == [ActionDone(action="processRecords")]
    assert dialogue.shutdown_requested() == b'{"action":"shutdownRequested"}\n'
    assert dialogue.receive(status("shutdownRequested")) == [ActionDone(action="shutdownRequested")]
    assert dialogue.lease_lost() == b'{"action":"leaseLost"}\n'
    assert dialogue.receive(status("leaseLost")) == [ActionDone(action="leaseLost")]
    assert dialogue.state is State.FINISHED
    assert dialogue.receive(b"bye") == []
    assert dialogue.receive(b"") == [Noise(line="bye", size_bytes=3)]
    assert dialogue.state is State.CLOSED and not dialogue.is_idle


def test_a_shard_end_may_come_after_a_requested_shutdown() -> None:
    dialogue = ready()
    dialogue.shutdown_requested()
    dialogue.receive(status("shutdownRequested"))
    assert dialogue.shard_ended() == b'{"action":"shardEnded"}\n'
    assert dialogue.receive(CHECKPOINT) == [requested(allowed=True)]


@pytest.mark.parametrize("allowed", [True, False])
def test_where_a_checkpoint_is_allowed(allowed: bool) -> None:
    new = Dialogue()
    initializing = Dialogue()
    initializing.initialize("s", AT_TRIM_HORIZON)
    losing = ready()
    losing.lease_lost()
    finished = ready()
    finished.shard_ended()
    finished.receive(status("shardEnded"))
    asked = ready()
    asked.shutdown_requested()
    ending = ready()
    ending.shard_ended()
    for dialogue in [ready(), processing(), asked, ending] if allowed else [new, initializing, losing, finished]:
        before = dialogue.state
        assert dialogue.receive(CHECKPOINT) == [requested(allowed)]
        assert dialogue.state is before


def test_the_answer_echoes_the_request() -> None:
    dialogue = processing()
    bare = CheckpointRequested(sequence_number=None, sub_sequence_number=None, allowed=True)
    assert dialogue.answer_checkpoint(requested(True), None) == (
        b'{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":2,"error":null}\n'
    )
    assert dialogue.answer_checkpoint(bare, "ShutdownException") == (
        b'{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null,"error":"ShutdownException"}\n'
    )


@pytest.mark.parametrize("error", ["", "KeyError", "throttlingexception"])
def test_children_get_to_see_only_the_five_names(error: str) -> None:
    with pytest.raises(LocalProtocolError, match="checkpoint errors"):
        processing().answer_checkpoint(requested(True), error)


# The extension prepareCheckpoint


PREPARE = b'{"action":"prepareCheckpoint","sequenceNumber":"7","subSequenceNumber":2,"applicationState":"AP8="}\n'
PREPARED = PreparedCheckpoint(ExtendedSequenceNumber("9", 1), b"\x00\xff")


def test_without_the_opt_in_nothing_of_the_extension_is_on_the_wire() -> None:
    dialogue = Dialogue()
    plain = dialogue.initialize("s", AT_TRIM_HORIZON, PREPARED)
    assert plain == b'{"action":"initialize","shardId":"s","sequenceNumber":"TRIM_HORIZON","subSequenceNumber":0}\n'
    dialogue.receive(status("initialize"))
    dialogue.process_records([RECORD], 0)
    before = dialogue.state
    (noise,) = dialogue.receive(PREPARE)
    assert isinstance(noise, Noise) and noise.line == PREPARE.decode().strip()
    assert dialogue.state is before


@pytest.mark.parametrize(
    ("prepared", "keys"), [(None, (None, None, None)), (PREPARED, ("9", 1, "AP8="))], ids=["nothing", "something"]
)
def test_with_it_the_child_learns_what_was_prepared(
    prepared: PreparedCheckpoint | None, keys: tuple[object, ...]
) -> None:
    line = Dialogue(extensions=("prepareCheckpoint",)).initialize("s", AT_TRIM_HORIZON, prepared)
    assert list(json.loads(line).items())[4:] == [
        ("pendingCheckpointSequenceNumber", keys[0]),
        ("pendingCheckpointSubSequenceNumber", keys[1]),
        ("pendingCheckpointState", keys[2]),
    ]


def test_a_request_to_prepare_is_answered_as_a_checkpoint() -> None:
    dialogue = Dialogue(extensions=("prepareCheckpoint",))
    dialogue.initialize("s", AT_TRIM_HORIZON)
    asked = PrepareCheckpointRequested(
        sequence_number="7", sub_sequence_number=2, allowed=False, application_state="AP8="
    )
    assert dialogue.receive(PREPARE) == [asked]
    dialogue.receive(status("initialize"))
    assert dialogue.awaiting is None
    dialogue.process_records([RECORD], 0)
    assert dialogue.receive(PREPARE + CHECKPOINT) == [
        msgspec.structs.replace(asked, allowed=True),
        requested(allowed=True),
    ]
    assert dialogue.awaiting == "processRecords"
    assert dialogue.answer_checkpoint(asked, "ThrottlingException") == (
        b'{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":2,"error":"ThrottlingException"}\n'
    )


def test_an_action_out_of_order_is_our_own_mistake_and_changes_nothing() -> None:
    dialogue = processing()
    with pytest.raises(LocalProtocolError, match="leaseLost must not happen while the dialogue is processing"):
        dialogue.lease_lost()
    assert dialogue.receive(status("processRecords")) == [ActionDone(action="processRecords")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (status("initialize"), "answered processRecords with another status"),
        (status("processrecords"), "answered processRecords with another status"),
        (status(None), "answered processRecords with another status"),
        (b'{"action":"status"}\n', "answered processRecords with another status"),
        (b"x" * 1001, "a line of more than 1000 bytes"),
        (b"x" * 1001 + b"\n", "a line of more than 1000 bytes"),
    ],
)
def test_a_breach(line: bytes, message: str) -> None:
    dialogue = processing()
    with pytest.raises(RemoteProtocolError, match=message) as failure:
        dialogue.receive(line)
    assert isinstance(failure.value, ChildMisbehaved)
    assert dialogue.state is State.FAILED and not dialogue.is_idle
    for again in (lambda: dialogue.receive(CHECKPOINT), lambda: dialogue.receive(b""), dialogue.lease_lost):
        with pytest.raises(RemoteProtocolError, match=message):
            again()


def test_an_answer_that_nobody_asked_for() -> None:
    with pytest.raises(RemoteProtocolError, match="nobody asked for"):
        ready().receive(status("initialize"))
    with pytest.raises(RemoteProtocolError, match="nobody asked for"):
        Dialogue().receive(status("initialize"))


def test_events_before_a_breach_are_not_lost() -> None:
    with pytest.raises(RemoteProtocolError, match="nobody asked for") as failure:
        processing().receive(b"hello\n" + CHECKPOINT + status("processRecords") * 2 + CHECKPOINT)
    assert failure.value.events == (
        Noise(line="hello", size_bytes=5),
        requested(allowed=True),
        ActionDone(action="processRecords"),
    )


def test_the_end_while_an_action_is_open() -> None:
    dialogue = processing()
    assert dialogue.receive(b"Traceback") == []
    with pytest.raises(ActionUnanswered, match="before it answered processRecords") as failure:
        dialogue.receive(b"")
    assert isinstance(failure.value, ChildExited)
    assert failure.value.events == (Noise(line="Traceback", size_bytes=9),)
    with pytest.raises(ActionUnanswered):
        dialogue.lease_lost()


def test_a_last_answer_without_terminator_counts() -> None:
    dialogue = processing()
    assert dialogue.receive(status("processRecords").strip()) == []
    assert dialogue.receive(b"") == [ActionDone(action="processRecords")]
    assert dialogue.state is State.CLOSED


def test_the_end_between_actions_is_told_by_the_next_one() -> None:
    dialogue = ready()
    assert dialogue.receive(b"") == []
    assert dialogue.receive(b"") == []
    assert not dialogue.is_idle
    with pytest.raises(ActionUnanswered, match="before processRecords was sent"):
        dialogue.process_records([RECORD], 0)
    with pytest.raises(LocalProtocolError, match="after the end"):
        dialogue.receive(b"x")


def test_noise_is_shortened() -> None:
    assert processing(10**6).receive("é".encode() * 5000 + b"\r") == [Noise(line="é" * 500, size_bytes=10_000)]


def test_the_table_is_closed() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {after for row in TRANSITIONS.values() for after in row.values()} <= set(State)
    assert set(AWAITED) == {s for s, row in TRANSITIONS.items() if Happening.STATUS in row}
    actions = {h for h in Happening if h not in {"checkpoint", "status", "eof", "breach"}}
    assert set(AWAITED.values()) == actions
    assert all(not actions & set(TRANSITIONS[s]) for s in AWAITED), "one action at a time"
