"""kcl_host.processor against scripted input: what it calls and what it answers."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kcl_host.processor import Checkpointer, CheckpointError, Record, RecordProcessor, run

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
    with pytest.raises(CheckpointError, match="ThrottlingException"):
        converse(Idle(), SHARD_ENDED, answer("ThrottlingException"))


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
