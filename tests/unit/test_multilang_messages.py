"""What the host writes, and what it takes for a message (PROTOCOL.md sections 2 to 4, 9)."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber, PreparedCheckpoint
from kcl_host.multilang.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    PrepareCheckpointRequest,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
    Status,
    decode_child_line,
    decode_host_line,
    encode_line,
    with_prepared,
)

RECORD = Record(
    data="aGVsbG8=",
    partition_key="user-17",
    sequence_number="49590338271490256608559692538361571095921575989136588898",
    approximate_arrival_timestamp=1735689600123,
)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            Initialize(shard_id="shardId-000000000003", sequence_number="TRIM_HORIZON", sub_sequence_number=0),
            '{"action":"initialize","shardId":"shardId-000000000003","sequenceNumber":"TRIM_HORIZON","subSequenceNumber":0}',
        ),
        (
            ProcessRecords(records=[RECORD], millis_behind_latest=1250),
            '{"action":"processRecords","records":[{"data":"aGVsbG8=","partitionKey":"user-17",'
            '"sequenceNumber":"49590338271490256608559692538361571095921575989136588898",'
            '"approximateArrivalTimestamp":1735689600123,"subSequenceNumber":0,"action":"record"}],'
            '"millisBehindLatest":1250}',
        ),
        (
            ProcessRecords(records=[], millis_behind_latest=None),
            '{"action":"processRecords","records":[],"millisBehindLatest":null}',
        ),
        (LeaseLost(), '{"action":"leaseLost"}'),
        (ShardEnded(), '{"action":"shardEnded"}'),
        (ShutdownRequested(), '{"action":"shutdownRequested"}'),
        (
            CheckpointAnswer(sequence_number="4959033827149", sub_sequence_number=None, error=None),
            '{"action":"checkpoint","sequenceNumber":"4959033827149","subSequenceNumber":null,"error":null}',
        ),
        (
            CheckpointAnswer(sequence_number=None, sub_sequence_number=None, error="ThrottlingException"),
            '{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null,"error":"ThrottlingException"}',
        ),
    ],
    ids=lambda m: m.action if isinstance(m, msgspec.Struct) else "",
)
def test_lines_are_those_of_the_java_daemon(message: LeaseLost, line: str) -> None:
    assert encode_line(message) == line.encode() + b"\n"
    assert decode_host_line(line) == message


@pytest.mark.parametrize(
    ("prepared", "keys"),
    [
        (
            None,
            '"pendingCheckpointSequenceNumber":null,"pendingCheckpointSubSequenceNumber":null,"pendingCheckpointState":null',
        ),
        (
            PreparedCheckpoint(ExtendedSequenceNumber("9", 2)),
            '"pendingCheckpointSequenceNumber":"9","pendingCheckpointSubSequenceNumber":2,"pendingCheckpointState":null',
        ),
        (
            PreparedCheckpoint(ExtendedSequenceNumber("9"), b"\x00\xff"),
            '"pendingCheckpointSequenceNumber":"9","pendingCheckpointSubSequenceNumber":0,"pendingCheckpointState":"AP8="',
        ),
    ],
    ids=["nothing", "without state", "with state"],
)
def test_the_keys_of_prepared_checkpoints_are_there_all_or_none(prepared: PreparedCheckpoint | None, keys: str) -> None:
    plain = Initialize(shard_id="s", sequence_number="5", sub_sequence_number=0)
    before = '{"action":"initialize","shardId":"s","sequenceNumber":"5","subSequenceNumber":0'
    assert encode_line(plain) == before.encode() + b"}\n"
    extended = with_prepared(plain, prepared)
    assert encode_line(extended) == f"{before},{keys}}}\n".encode()
    assert decode_host_line(encode_line(extended)) == extended
    # the way round for lone surrogates leaves the same keys out
    odd = msgspec.structs.replace(plain, shard_id="\ud800")
    assert b"pending" not in encode_line(odd)


@given(key=st.text(st.characters(codec=None, exclude_categories=()), max_size=20))
def test_any_partition_key_travels_as_ascii(key: str) -> None:
    line = encode_line(
        ProcessRecords(records=[msgspec.structs.replace(RECORD, partition_key=key)], millis_behind_latest=0)
    )
    assert line.isascii()
    assert line.count(b"\n") == 1 and line.endswith(b"\n") and b"\r" not in line
    decoded = json.loads(line)
    # json reads a high and a low surrogate next to each other as the one character they stand for
    assert decoded["records"][0]["partitionKey"] == json.loads(json.dumps(key))
    assert list(decoded) == ["action", "records", "millisBehindLatest"]
    assert list(decoded["records"][0])[-1] == "action"


def test_astral_characters_are_surrogate_pairs() -> None:
    records = [msgspec.structs.replace(RECORD, partition_key="é😀\u2028")]
    assert rb'"\u00e9\ud83d\ude00\u2028"' in encode_line(ProcessRecords(records=records, millis_behind_latest=0))


STATUS = Status(response_for="initialize")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # spec multilang-protocol 1.3, row by row
        ('{"action":"status","responseFor":"initialize"}', STATUS),
        (' \t{ "responseFor" : "initialize", "action":"status" } ', STATUS),
        ('{"action":"status","responseFor":"initialize"} junk after', STATUS),
        ('{"action":"status","responseFor":"initialize"}}', STATUS),
        ('junk {"action":"status","responseFor":"initialize"}', None),
        ('\ufeff{"action":"status","responseFor":"initialize"}', None),
        ('{"action":"status","responseFor":"initialize","host":"a","more":{"x":[1]}}', STATUS),
        ('{"action":"checkpoint","checkpoint":"123"}', CheckpointRequest()),
        ('{"responseFor":"initialize"}', None),
        ('{"action":null,"responseFor":"initialize"}', None),
        ('{"action":"Status","responseFor":"initialize"}', None),
        ('{"action":"record"}', None),
        ('{"action":["status"]}', None),
        ('{"action":"status"}', Status(response_for="")),
        ('{"action":"status","responseFor":null}', Status(response_for="")),
        ('{"action":"status","responseFor":5}', Status(response_for="5")),
        ('{"action":"status","responseFor":true}', Status(response_for="true")),
        ('{"action":"status","responseFor":{}}', None),
        ('{"action":"status","responseFor":["initialize"]}', None),
        ('{"action":"checkpoint"}', CheckpointRequest()),
        (
            '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":2}',
            CheckpointRequest(sequence_number="1", sub_sequence_number=2),
        ),
        ('{"action":"checkpoint","sequenceNumber":123}', CheckpointRequest(sequence_number="123")),
        ('{"action":"checkpoint","sequenceNumber":1.50}', CheckpointRequest(sequence_number="1.50")),
        ('{"action":"checkpoint","sequenceNumber":' + "9" * 5000 + "}", CheckpointRequest(sequence_number="9" * 5000)),
        ('{"action":"checkpoint","sequenceNumber":false}', CheckpointRequest(sequence_number="false")),
        ('{"action":"checkpoint","sequenceNumber":{}}', None),
        ('{"action":"checkpoint","sequenceNumber":[]}', None),
        ('{"action":"checkpoint","subSequenceNumber":"4"}', CheckpointRequest(sub_sequence_number=4)),
        ('{"action":"checkpoint","subSequenceNumber":" +4 "}', CheckpointRequest(sub_sequence_number=4)),
        ('{"action":"checkpoint","subSequenceNumber":""}', CheckpointRequest()),
        ('{"action":"checkpoint","subSequenceNumber":1.7}', CheckpointRequest(sub_sequence_number=1)),
        ('{"action":"checkpoint","subSequenceNumber":1e3}', CheckpointRequest(sub_sequence_number=1000)),
        ('{"action":"checkpoint","subSequenceNumber":-1}', CheckpointRequest(sub_sequence_number=-1)),
        ('{"action":"checkpoint","subSequenceNumber":"x"}', None),
        ('{"action":"checkpoint","subSequenceNumber":"1.7"}', None),
        ('{"action":"checkpoint","subSequenceNumber":"1_0"}', None),
        ('{"action":"checkpoint","subSequenceNumber":true}', None),
        ('{"action":"checkpoint","subSequenceNumber":{}}', None),
        ('{"action":"checkpoint","subSequenceNumber":1e400}', None),
        ('{"action":"checkpoint","subSequenceNumber":9223372036854775808}', None),
        ('{"action":"checkpoint","subSequenceNumber":' + "9" * 5000 + "}", None),
        ('{"action":"prepareCheckpoint"}', PrepareCheckpointRequest()),
        (
            '{"action":"prepareCheckpoint","sequenceNumber":"1","subSequenceNumber":2,"applicationState":"AP8="}',
            PrepareCheckpointRequest(sequence_number="1", sub_sequence_number=2, application_state="AP8="),
        ),
        ('{"action":"prepareCheckpoint","applicationState":null}', PrepareCheckpointRequest()),
        # whatever it holds, the one who asks waits for an answer
        ('{"action":"prepareCheckpoint","applicationState":"?"}', PrepareCheckpointRequest(application_state="?")),
        ('{"action":"prepareCheckpoint","applicationState":5}', PrepareCheckpointRequest(application_state="5")),
        ('{"action":"prepareCheckpoint","applicationState":{}}', None),
        ('{"action":"preparecheckpoint"}', None),
        ('{"action":"status","responseFor":"x","responseFor":"initialize"}', STATUS),
        ("{'action':'status','responseFor':'initialize'}", None),
        ('{"action":"status",/* why */"responseFor":"initialize"}', None),
        ('{"action":"status","responseFor":"initialize",}', None),
        ('{"action":"status","responseFor":"a\tb"}', None),
        ('["status",{"responseFor":"initialize"}]', STATUS),
        ('["status",{"responseFor":"initialize"},1]', None),
        ('["status"]', None),
        ('[5,{"responseFor":"initialize"}]', None),
        ("  ", None),
        ("null", None),
        ("true", None),
        ("5", None),
        ('"text"', None),
        ("[]", None),
        ("{}", None),
        # NaN and Infinity are JSON for Python, but not for Java
        ('{"action":"status","responseFor":NaN}', None),
        ('{"action":"checkpoint","subSequenceNumber":Infinity}', None),
        ('{"action":"checkpoint","subSequenceNumber":-Infinity}', None),
        # what only the host sends
        ('{"action":"leaseLost"}', None),
        ('{"action":"initialize","shardId":"a","sequenceNumber":"1","subSequenceNumber":0}', None),
        ("[" * 200_000, None),
        ('{"a":' * 200_000, None),
    ],
    ids=lambda v: v[:60] if isinstance(v, str) else "",
)  # fmt: skip
def test_what_is_taken_for_a_message(
    line: str, message: Status | CheckpointRequest | PrepareCheckpointRequest | None
) -> None:
    assert decode_child_line(line.encode()) == message


def test_malformed_utf8_is_replaced() -> None:
    line = b'{"action":"status","responseFor":"initialize","note":"\xff\xfe"}'
    assert decode_child_line(line) == STATUS
    assert decode_child_line(b"\xff" + line) is None


def test_a_lone_surrogate_in_a_request_can_be_answered() -> None:
    request = decode_child_line(rb'{"action":"checkpoint","sequenceNumber":"\ud800"}')
    assert isinstance(request, CheckpointRequest)
    answer = CheckpointAnswer(sequence_number=request.sequence_number, sub_sequence_number=None, error=None)
    assert rb'"\ud800"' in encode_line(answer)


@given(st.binary(max_size=60))
def test_no_line_raises(line: bytes) -> None:
    assert decode_child_line(line) is None or line.lstrip()[:1] in (b"{", b"[")
