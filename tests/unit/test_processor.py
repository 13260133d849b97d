"""kcl_host.processor against scripted input: what it calls and what it answers."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from kcl_host.processor import (
    Checkpointer,
    CheckpointError,
    ExtensionNotEnabled,
    PreparedCheckpointer,
    Record,
    RecordProcessor,
    run,
)

INITIALIZE = {"action": "initialize", "shardId": "shard-1", "sequenceNumber": "TRIM_HORIZON", "subSequenceNumber": 0}
RECORD = {
    "data": "AP8K", "partitionKey": "ключ", "sequenceNumber": "495", "approximateArrivalTimestamp": 1735689600123,
    "subSequenceNumber": 2, "action": "record",
}  # fmt: skip
PROCESS_RECORDS = {"action": "processRecords", "records": [RECORD], "millisBehindLatest": 1250}
LEASE_LOST = {"action": "leaseLost"}
SHARD_ENDED = {"action": "shardEnded"}
SHUTDOWN_REQUESTED = {"action": "shutdownRequested"}


def answer(error: str | None = None) -> dict[str, Any]:
    return {"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None, "error": error}


def request(sequence_number: str | None = None, sub_sequence_number: int | None = None) -> dict[str, Any]:
    return {"action": "checkpoint", "sequenceNumber": sequence_number, "subSequenceNumber": sub_sequence_number}


def status(action: str) -> dict[str, Any]:
    return {"action": "status", "responseFor": action}


class Idle(RecordProcessor):
    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        pass


def converse(processor: RecordProcessor, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the processor writes when the host says `messages` and closes stdin."""
    stdout = io.BytesIO()
    run(processor, io.BytesIO(b"".join(json.dumps(m).encode() + b"\n" for m in messages)), stdout)
    return [json.loads(line) for line in stdout.getvalue().splitlines()]


def test_every_action_reaches_its_method_with_its_values() -> None:
    calls: list[Any] = []

    class Recorder(RecordProcessor):
        def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
            calls.append((shard_id, sequence_number, sub_sequence_number))

        def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
            (r,) = records
            calls.append((r.data, r.partition_key, r.sequence_number, r.sub_sequence_number, r.approximate_arrival_ms))
            calls.append((self.millis_behind_latest, repr(r)))

        def lease_lost(self) -> None:
            calls.append("lost")

        def shard_ended(self, checkpointer: Checkpointer) -> None:
            calls.append("ended")

        def shutdown_requested(self, checkpointer: Checkpointer) -> None:
            calls.append("requested")

    written = converse(Recorder(), INITIALIZE, PROCESS_RECORDS, SHUTDOWN_REQUESTED, LEASE_LOST, SHARD_ENDED)
    assert calls == [
        ("shard-1", "TRIM_HORIZON", 0),
        (b"\x00\xff\n", "ключ", "495", 2, 1735689600123),
        (1250, "<Record 495/2 'ключ'>"),
        "requested",
        "lost",
        "ended",
    ]
    assert written == [
        status(a) for a in ("initialize", "processRecords", "shutdownRequested", "leaseLost", "shardEnded")
    ]


def test_the_defaults_checkpoint_when_it_is_the_last_opportunity() -> None:
    assert converse(Idle(), INITIALIZE, SHUTDOWN_REQUESTED, answer(), LEASE_LOST) == [
        status("initialize"), request(), status("shutdownRequested"), status("leaseLost"),
    ]  # fmt: skip
    assert converse(Idle(), SHARD_ENDED, answer()) == [request(), status("shardEnded")]


def test_the_defaults_take_a_lost_lease_calmly_and_nothing_else() -> None:
    assert converse(Idle(), SHUTDOWN_REQUESTED, answer("ShutdownException"))[-1] == status("shutdownRequested")
    with pytest.raises(CheckpointError, match="IllegalArgumentException"):
        converse(Idle(), SHARD_ENDED, answer("IllegalArgumentException"))


THROTTLED = answer("ThrottlingException")


@pytest.mark.parametrize(
    ("answers", "stored"),
    [
        ([answer()], True),
        ([THROTTLED, answer("KinesisClientLibDependencyException"), answer()], True),
        ([THROTTLED] * 3, False),
        ([THROTTLED, answer("ShutdownException")], False),
    ],
    ids=["at once", "the third time", "never", "lease lost meanwhile"],
)
def test_a_checkpoint_is_asked_for_again_while_the_refusal_may_pass(
    answers: list[dict[str, Any]], stored: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    results: list[bool] = []

    class Retries(RecordProcessor):
        def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
            results.append(checkpointer.checkpoint_with_retry("495", 2, attempts=3, pause_s=0.0))

    written = converse(Retries(), PROCESS_RECORDS, *answers)
    assert results == [stored]
    assert written == [request("495", 2)] * len(answers) + [status("processRecords")]
    assert capsys.readouterr().err.count("WARN checkpoint refused") == sum(
        one["error"] in ("ThrottlingException", "KinesisClientLibDependencyException") for one in answers
    )


@pytest.mark.parametrize(
    ("reply", "value", "may_pass"),
    [
        ([answer("ThrottlingException")], "ThrottlingException", True),
        ([answer("KinesisClientLibDependencyException")], "KinesisClientLibDependencyException", True),
        ([answer("IllegalArgumentException")], "IllegalArgumentException", False),
        ([LEASE_LOST], "InvalidStateException", False),
        ([], "ShutdownException", False),
    ],
    ids=["throttled", "dependency", "malformed", "another action", "end of stdin"],
)
def test_a_refused_checkpoint_is_raised_by_its_java_name(
    reply: list[dict[str, Any]], value: str, may_pass: bool
) -> None:
    errors: list[CheckpointError] = []

    class Checkpoints(RecordProcessor):
        def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
            try:
                checkpointer.checkpoint(records[-1].sequence_number, records[-1].sub_sequence_number)
            except CheckpointError as e:
                errors.append(e)

    written = converse(Checkpoints(), PROCESS_RECORDS, *reply)
    assert written == [request("495", 2), status("processRecords")]
    assert [(e.value, e.may_pass) for e in errors] == [(value, may_pass)]


def test_an_exception_of_the_processor_sends_no_status() -> None:
    class Failing(RecordProcessor):
        def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
            raise ZeroDivisionError

    stdout = io.BytesIO()
    with pytest.raises(ZeroDivisionError):
        run(Failing(), io.BytesIO(json.dumps(PROCESS_RECORDS).encode() + b"\n"), stdout)
    assert stdout.getvalue() == b""


def test_an_unknown_action_is_an_error() -> None:
    with pytest.raises(ValueError, match="shutdown"):
        converse(Idle(), {"action": "shutdown", "reason": "ZOMBIE"})


# Prepared checkpoints


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCL_HOST_PROTOCOL_EXTENSIONS", "prepareCheckpoint")


@pytest.fixture
def no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KCL_HOST_PROTOCOL_EXTENSIONS", raising=False)


def preparation(number: str, sub: int | None, state: str | None = None) -> dict[str, Any]:
    return {
        "action": "prepareCheckpoint", "sequenceNumber": number, "subSequenceNumber": sub, "applicationState": state,
    }  # fmt: skip


class Prepares(RecordProcessor):
    """Prepares in each batch, makes the checkpoint in the next method that may."""

    def __init__(self, *position: Any, state: bytes | None = None) -> None:
        self.position = position
        self.state = state
        self.prepared: list[PreparedCheckpointer] = []

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        for prepared in self.prepared:
            prepared.checkpoint()
        self.prepared = [checkpointer.prepare_checkpoint(*self.position, application_state=self.state)]

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        for prepared in self.prepared:
            prepared.checkpoint()

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        checkpointer.prepare_checkpoint().checkpoint()


@pytest.mark.usefixtures("extension")
def test_a_checkpoint_in_two_phases_may_span_actions() -> None:
    processor = Prepares(state=b"\x00\xff" * 60)
    later = {**PROCESS_RECORDS, "records": [RECORD | {"sequenceNumber": "496", "subSequenceNumber": 0}]}
    written = converse(processor, PROCESS_RECORDS, answer(), later, answer(), answer(), SHUTDOWN_REQUESTED, answer())
    state = "AP8A/wD/" * 20
    assert written == [
        preparation("495", 2, state),
        status("processRecords"),
        request("495", 2),
        preparation("496", 0, state),
        status("processRecords"),
        request("496", 0),
        status("shutdownRequested"),
    ]
    assert repr(processor.prepared[0]).startswith("<PreparedCheckpointer 496/0 b'")


@pytest.mark.usefixtures("extension")
def test_a_position_may_be_named() -> None:
    assert converse(Prepares("494"), PROCESS_RECORDS, answer(), SHUTDOWN_REQUESTED, answer()) == [
        preparation("494", None), status("processRecords"), request("494", 0), status("shutdownRequested"),
    ]  # fmt: skip
    assert converse(Prepares("494", 1), PROCESS_RECORDS, answer())[0] == preparation("494", 1)


@pytest.mark.usefixtures("extension")
def test_without_a_record_the_position_is_where_the_shard_was_started() -> None:
    empty = PROCESS_RECORDS | {"records": []}
    assert converse(Prepares(), INITIALIZE, empty, answer())[1] == preparation("TRIM_HORIZON", 0)


@pytest.mark.usefixtures("extension")
def test_the_end_of_the_shard_in_two_phases() -> None:
    assert converse(Prepares(), SHARD_ENDED, answer(), answer()) == [
        preparation("SHARD_END", 0), request("SHARD_END", 0), status("shardEnded"),
    ]  # fmt: skip


@pytest.mark.usefixtures("extension")
def test_a_refused_preparation_prepares_nothing() -> None:
    processor = Prepares()
    with pytest.raises(CheckpointError, match="ThrottlingException"):
        converse(processor, PROCESS_RECORDS, answer("ThrottlingException"))
    assert processor.prepared == []


@pytest.mark.usefixtures("no_extension")
def test_a_host_that_does_not_offer_it_is_never_asked() -> None:
    asked: list[bool] = []

    class Tries(RecordProcessor):
        def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
            asked.append(checkpointer.can_prepare)
            with pytest.raises(ExtensionNotEnabled, match="protocolExtensions = prepareCheckpoint"):
                checkpointer.prepare_checkpoint()

    assert converse(Tries(), PROCESS_RECORDS) == [status("processRecords")]
    assert asked == [False]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"SequenceNumber": None, "SubSequenceNumber": None, "State": None}, None),
        ({"SequenceNumber": "497", "SubSequenceNumber": 3, "State": None}, ("497", 3, None)),
        ({"SequenceNumber": "497", "SubSequenceNumber": 0, "State": "AP8="}, ("497", 0, b"\x00\xff")),
    ],
    ids=["not offered", "nothing", "without state", "with state"],
)
def test_a_processor_finds_what_was_prepared_before_it(keys: dict[str, Any], expected: object) -> None:
    found: list[Any] = []

    class Looks(Idle):
        def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
            p = self.pending_checkpoint
            found.append(p and (p.sequence_number, p.sub_sequence_number, p.application_state))

    converse(Looks(), INITIALIZE | {f"pendingCheckpoint{key}": value for key, value in keys.items()})
    assert found == [expected]


class Fast(RecordProcessor):
    """Reads lines its own way."""

    def parse_line(self, line: bytes) -> dict[str, Any]:
        message = super().parse_line(line)
        if message["action"] == "processRecords":
            message["records"] = message["records"][::2]
        return message

    def process_records(self, records: list[Record], checkpointer: Checkpointer) -> None:
        self.numbers = [record.sequence_number for record in records]


def test_a_processor_may_read_lines_its_own_way() -> None:
    processor = Fast()
    records = [RECORD | {"sequenceNumber": number} for number in ("1", "2", "3")]
    converse(processor, PROCESS_RECORDS | {"records": records})
    assert processor.numbers == ["1", "3"]


def test_a_processor_has_work_of_its_own_while_the_host_is_silent() -> None:
    """Called again after the time it asked for; a line of the host comes first."""
    host, child = os.pipe(), os.pipe()
    calls: list[float | None] = []

    class Busy(Idle):
        def while_idle(self) -> float | None:
            calls.append(pause := next(pauses))
            if pause is None:  # the host speaks only now
                os.write(host[1], json.dumps(INITIALIZE).encode() + b"\n")
                os.close(host[1])
            return pause

    pauses = iter([0.0, 0.001, None, 60.0])
    with os.fdopen(host[0], "rb") as stdin, os.fdopen(child[1], "wb") as stdout, os.fdopen(child[0], "rb") as said:
        run(Busy(), stdin, stdout)
        stdout.flush()
        assert json.loads(said.readline()) == status("initialize")
    assert calls == [0.0, 0.001, None, 60.0]
