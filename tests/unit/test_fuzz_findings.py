"""What fuzzing has found, each by the shortest input: answers, rows and texts that stopped a worker or held it up."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
from binascii import crc32
from collections.abc import Callable
from pathlib import Path

import pytest

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.direct_calls import GET_RECORDS, DirectCall
from kcl_host.aws.faults import Resource
from kcl_host.aws.http1 import Answer
from kcl_host.aws.items import Undecodable, decimal, lease_from, lease_item
from kcl_host.aws.subscribe import Subscription
from kcl_host.aws.worker_metrics_table import stats_from
from kcl_host.child.stderr import level_of
from kcl_host.cli.replay import read_saved
from kcl_host.config.keys import BY_NAME
from kcl_host.config.settings import TableSettings
from kcl_host.config.values import convert
from kcl_host.decisions.saved_fleet import load_fleet
from kcl_host.endpoint.http import Answer as HttpAnswer
from kcl_host.endpoint.http import HttpServer, Limits
from kcl_host.errors import ConfigurationError, Unavailable
from kcl_host.local import event_stream
from kcl_host.log import masked_text, one_line
from kcl_host.model.sequence import ExtendedSequenceNumber, IteratorPosition
from tests.fakes.clock import FakeClock
from tests.fakes.wire import Reply
from tests.fuzz.driver import Target, fuzz
from tests.unit.test_aws_kinesis import make, session, wire_record

LEASE = {
    "leaseKey": {"S": "shardId-0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "leaseCounter": {"N": "1"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
}


def page(**more: object) -> dict[str, object]:
    return {"Records": [wire_record(b"x") | more], "MillisBehindLatest": 0, "NextShardIterator": "next"}


CHILD = {"ShardId": "s", "ParentShards": ["p"], "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "x"}}


@pytest.mark.parametrize(
    "body",
    [
        b"<html>a proxy says hello</html>",
        b"\xff\xfe\xed not even text",
        b"[]",
        b"null",
        b'{"Records": ' + b"[" * 2000,
        b'{"Records": 5}',
        b'{"Records": [null]}',
        b'{"Records": [{"PartitionKey": "k", "Data": "eA=="}]}',
        b'{"Records": [{"PartitionKey": "k\xa2", "Data": "eA=="}]}',
        page(Data="$(id)", ApproximateArrivalTimestamp=[]),
        page(SequenceNumber=""),
        page(SequenceNumber="12x4"),
        page(SequenceNumber="SHARD_END"),
        page(SequenceNumber="9" * 130),
        page(SequenceNumber={}),
        page(ApproximateArrivalTimestamp=1e300),
        page() | {"MillisBehindLatest": 2**63},
        page() | {"NextShardIterator": {}},
        page() | {"MillisBehindLatest": "5"},
        page() | {"ChildShards": [CHILD]},
        page() | {"ChildShards": [{"ShardId": "s"}]},
    ],
)
def test_a_damaged_answer_is_tried_again_and_stops_no_worker(body: object) -> None:
    stream, _, _ = make(Reply(body))
    with pytest.raises(Unavailable) as raised:
        stream.get_records("iterator", 10)
    assert len(str(raised.value)) < 400 and 'Records"' not in str(raised.value), "a part of the records is in the log"


def test_the_page_of_a_proxy_is_no_empty_answer() -> None:
    stream, _, _ = make(Reply(b"<html>"), Reply(b"<html>"), Reply(b"<html>"))
    for ask in (stream.describe, stream.list_shards):
        with pytest.raises(Unavailable, match="no JSON"):
            ask()
    with pytest.raises(Unavailable, match="no JSON"):
        stream.get_shard_iterator("s", IteratorPosition(type="LATEST"))


def test_numbers_of_records_are_judged_all_together() -> None:
    records = [wire_record(b"x") | {"SequenceNumber": str(number)} for number in (1, 2, 3)]
    bad = [*records, records[0] | {"SequenceNumber": "a"}]
    stream, _, _ = make(Reply({"Records": records}), Reply({"Records": bad}))
    assert len(stream.get_records("iterator", 10).records) == 3
    with pytest.raises(Unavailable, match="not a number"):
        stream.get_records("iterator", 10)


def test_a_refusal_with_more_headers_than_python_reads() -> None:
    client = session(True).create_client("kinesis", "us-east-1", aws_access_key_id="k", aws_secret_access_key="s")
    head = b"HTTP/1.1 503 x\r\n" + b"a: b\r\n" * 120 + b"\r\n"
    with pytest.raises(Exception, match="HTTP Client"):
        DirectCall(client, session(True), GET_RECORDS)._parsed(Answer(503, head, bytearray(b"{}")))


def sealed(head: bytes, payload: bytes) -> bytes:
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    body = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return body + struct.pack("!I", crc32(body))


@pytest.mark.parametrize(
    "frame",
    [
        sealed(b"\x01a\x63", b"{}"),  # a header of a type that is none
        sealed(b"\x01a\x04\0", b"{}"),  # and an integer that is cut off
        event_stream.event("SubscribeToShardEvent", json.dumps(page() | {"ChildShards": [CHILD]}).encode()),
        event_stream.event("SubscribeToShardEvent", json.dumps(page(ApproximateArrivalTimestamp=1e308)).encode()),
        event_stream.event("SubscribeToShardEvent", b'{"Records": [{"PartitionKey": "\xa2"}]}'),
    ],
)
def test_a_damaged_frame_ends_the_subscription(frame: bytes) -> None:
    class Body:
        def read(self, timeout_s: float) -> bytes | None:
            return frame

        def close(self) -> None: ...

    with pytest.raises(Unavailable, match="damaged") as raised:
        Subscription(Body(), Resource("kinesis", "orders")).next(1)
    assert 'Records"' not in str(raised.value), "a part of the records is in the log"


@pytest.mark.parametrize("number", [str(2**63), "-9223372036854775809", "1E+125", "NaN", "sNaN", "Infinity", "1.5"])
def test_what_is_no_long_is_no_counter(number: str) -> None:
    with pytest.raises(Undecodable, match="leaseCounter"):
        lease_from(LEASE | {"leaseCounter": {"N": number}})
    with pytest.raises(Undecodable, match="lut"):
        stats_from({"wid": {"S": "w"}, "lut": {"N": number}}, "wid")
    assert lease_from(LEASE | {"leaseCounter": {"N": str(2**63 - 1)}}).lease_counter == 2**63 - 1


def test_a_throughput_of_any_size_can_be_written_again() -> None:
    lease = lease_from(LEASE | {"throughputKBps": {"N": "9.9E+125"}})
    assert lease_item(lease)["throughputKBps"] == {"N": "99" + "0" * 124}
    assert decimal(1 / 3) == {"N": "0.333333"}


def test_a_position_has_at_most_129_digits() -> None:
    assert ExtendedSequenceNumber("9" * 129).sort_key
    with pytest.raises(ValueError, match="130 digits"):
        ExtendedSequenceNumber("9" * 130)
    with pytest.raises(Undecodable, match="5000 digits"):
        lease_from(LEASE | {"checkpoint": {"S": "9" * 5000}})


@pytest.mark.parametrize("duration", ["9" * 400, "9" * 5000, str(2**63)])
def test_a_lock_for_ever_and_a_day(duration: str) -> None:
    item = {"ownerName": {"S": "a"}, "leaseDuration": {"S": duration}, "recordVersionNumber": {"S": "v"}}

    class Client:
        def get_item(self, **request: object) -> dict[str, object]:
            return {"Item": item}

    with pytest.raises(Unavailable, match="broken"):
        DynamoDbCoordinatorTable(Client(), TableSettings(name="t")).read_lock()  # type: ignore[arg-type]


def test_numbers_that_python_refuses_to_read() -> None:
    assert level_of('{"level": ' + "9" * 5000) == logging.CRITICAL
    assert convert(BY_NAME["leaseTableDeletionProtectionEnabled"], "9" * 5000).problem
    duration = next(key for key in BY_NAME.values() if key.kind == "duration")
    assert convert(duration, f"P{'9' * 5000}D").fatal
    assert convert(duration, "PT1M0.5S").value == 60.5


@pytest.mark.parametrize(
    "act",
    [
        lambda: one_line("x" + " " * 300_000 + "y"),
        lambda: one_line(("\n" + " " * 40) * 8_000),
        lambda: masked_text("secret" * 50_000),
        lambda: convert(BY_NAME["maxThroughputPerHostKBps"], "9" * 100_000 + "x"),
        lambda: _asked_with(b"X: y" + b" " * 150_000 + b"z"),
    ],
    ids=["blanks", "blank lines", "secrets", "digits", "header"],
)
def test_no_text_takes_more_than_its_length(act: Callable[[], object]) -> None:
    """Each of them took minutes, or would have: by the square of its length."""
    outcome = fuzz(Target("length", lambda rng: 0, lambda given: act() and None), range(1), 1, cpu_limit_s=3)
    assert not outcome.findings, outcome.findings[0]


def _asked_with(header: bytes) -> None:
    limits = Limits(head_bytes=1 << 20)
    server = HttpServer(lambda request: HttpAnswer(body=b"here"), "127.0.0.1", 0, FakeClock(), limits)
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setblocking(False)
            sent = memoryview(b"GET / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
            for _ in range(1000):
                if sent:
                    try:
                        sent = sent[client.send(sent) :]
                    except BlockingIOError:
                        pass
                server.turn(0)
                try:
                    assert re.match(rb"HTTP/1.1 200 ", client.recv(1000))
                    return
                except BlockingIOError:
                    pass
        raise AssertionError("no answer")
    finally:
        server.close()


def test_folding_lines_is_what_it_was() -> None:
    assert one_line("a\nb") == "a | b"
    assert one_line("a \r\n\t b\n\n\nc\n") == "a | b | c"
    assert one_line("  a  b  ") == "  a  b  "
    assert one_line("\n") == ""
    assert one_line("a\u2028b\x85c") == "a | b | c"


@pytest.mark.parametrize(
    "changed", [{"stream": ""}, {"stream": "a:b"}, {"checkpoint": "abc"}, {"checkpoint": "1", "subSequenceNumber": -1}]
)
def test_a_damaged_file_of_a_replay_is_refused_in_words(changed: dict[str, object], tmp_path: Path) -> None:
    one = {"leaseKey": "s", "stream": "orders", "shardId": "s"} | changed
    path = tmp_path / "undo.json"
    path.write_text(json.dumps({"version": 1, "table": "t", "written": "", "target": "", "leases": [one]}))
    with pytest.raises(ConfigurationError, match="does not hold"):
        read_saved(path)


def test_files_nested_without_end_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "undo.json"
    path.write_bytes(b'{"leases":' + b"[" * 100_000)
    with pytest.raises(ConfigurationError):
        read_saved(path)
    with pytest.raises(ConfigurationError):
        load_fleet(b'{"looks":' + b"[" * 100_000)
