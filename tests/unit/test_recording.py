"""A dialogue that is written down: what it says, what it keeps to itself, and that it can be played again."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable

import pytest

from kcl_host.cli.verify_session import Step, steps_of
from kcl_host.errors import ChildError
from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber, PreparedCheckpoint
from kcl_host.multilang import recording
from kcl_host.multilang.dialogue import CheckpointRequested
from kcl_host.multilang.messages import Initialize, ProcessRecords
from kcl_host.multilang.recording import RecordedDialogue
from kcl_host.multilang.transcript import Transcript, TranscriptError, parse_transcript, sequence_number

SECRET = b"0123456789abcdef"
TRIM_HORIZON = ExtendedSequenceNumber("TRIM_HORIZON")
CONFIDENTIAL = b"card 4111 1111 1111 1111"
KEY = "alice@example.com"


class Sheet:
    """A sink that keeps everything; `new_file_at` is the number of the action at which a new file starts."""

    def __init__(self, new_file_at: int | None = None) -> None:
        self.text = "# A recorded session.\n"
        self._actions = 0
        self._new_file_at = new_file_at

    def begin(self, text: str, resume: Callable[[], str] | None) -> None:
        self._actions += 1
        if self._actions == self._new_file_at:
            assert resume is not None
            self.text = resume()
        self.text += text

    def add(self, text: str) -> None:
        self.text += text

    def transcript(self) -> Transcript:
        return parse_transcript("recorded", self.text)

    def steps(self) -> list[Step]:
        return list(steps_of(self.transcript()))


def recorded(sheet: Sheet, *, payloads: bool = False, extensions: tuple[str, ...] = ()) -> RecordedDialogue:
    return RecordedDialogue(sheet, SECRET, payloads=payloads, extensions=extensions)


def record(index: int, data: bytes = CONFIDENTIAL, key: str = KEY) -> Record:
    return Record(
        data=b64encode(data).decode(),
        partition_key=key,
        sequence_number=sequence_number(index),
        approximate_arrival_timestamp=1735689600000 + index,
    )


def status(action: str) -> bytes:
    return json.dumps({"action": "status", "responseFor": action}).encode() + b"\n"


def checkpoint(dialogue: RecordedDialogue, number: object, error: str | None = None) -> None:
    (request,) = dialogue.receive(json.dumps({"action": "checkpoint", "sequenceNumber": number}).encode() + b"\n")
    assert isinstance(request, CheckpointRequested)
    dialogue.answer_checkpoint(request, error)


def through_a_batch(dialogue: RecordedDialogue, records: list[Record]) -> None:
    dialogue.initialize("shardId-000000000000", TRIM_HORIZON)
    dialogue.receive(status("initialize"))
    dialogue.process_records(records, 5)
    dialogue.receive(b"working on alice@example.com\r\n")
    checkpoint(dialogue, None, "ThrottlingException")
    checkpoint(dialogue, sequence_number(1))
    dialogue.receive(status("processRecords"))


def test_nothing_of_the_users_data_is_written() -> None:
    sheet = Sheet()
    through_a_batch(recorded(sheet), [record(0), record(1), record(2, b"", "\u00e9")])
    for secret in (KEY, "alice", "4111", b64encode(CONFIDENTIAL).decode(), "\u00e9", "00e9"):
        assert secret not in sheet.text
    assert '"data":"<payload 24B>","partitionKey":"<key 17 ' in sheet.text
    assert '"data":"<payload 0B>","partitionKey":"<key 1 ' in sheet.text
    assert "child> <text 28B>\n" in sheet.text


def test_it_can_be_played_again() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet)
    through_a_batch(dialogue, [record(0), record(1), record(2, b"\xff" * 301, "other")])
    dialogue.lease_lost()
    dialogue.receive(status("leaseLost"))
    first, batch, last = sheet.steps()
    assert first.action == Initialize(
        shard_id="shardId-000000000000", sequence_number="TRIM_HORIZON", sub_sequence_number=0
    )
    assert isinstance(batch.action, ProcessRecords)
    assert [r.sequence_number for r in batch.action.records] == [sequence_number(i) for i in range(3)]
    assert batch.action.millis_behind_latest == 5
    one, two, three = batch.action.records
    assert [len(r.data) for r in (one, two, three)] == [32, 32, 404], "payloads of the same lengths"
    assert one.partition_key == two.partition_key and len(one.partition_key) == len(KEY)
    assert three.partition_key not in one.partition_key and len(three.partition_key) == 5
    assert [a.error for a in batch.answers] == ["ThrottlingException", None]
    assert last.action.action == "leaseLost"


def test_a_hash_of_a_key_needs_the_secret() -> None:
    sheets = Sheet(), Sheet()
    through_a_batch(recorded(sheets[0]), [record(0)])
    through_a_batch(RecordedDialogue(sheets[1], b"another", payloads=False), [record(0)])
    keys = [step.action.records[0].partition_key for s in sheets for step in s.steps() if step.action.action[0] == "p"]  # type: ignore[union-attr]
    assert keys[0] != keys[1]


def test_with_payloads_everything_is_as_it_was_and_nothing_is_a_placeholder() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet, payloads=True)
    records = [record(0, b"<lt>", "<records 9 x 9MB>"), record(1, key="a<b>\u2028\u00e9")]
    dialogue.initialize("shardId-000000000000", TRIM_HORIZON)
    dialogue.receive(status("initialize"))
    dialogue.process_records(records, None)
    dialogue.receive(b"<eof>\x1b[2J \xff\n")
    assert sheet.steps()[1].action == ProcessRecords(records=records, millis_behind_latest=None)
    noise = [entry.text for entry in sheet.transcript().entries if entry.who == "child"][-1]
    assert noise == "<eof>\ufffd[2J \ufffd"


def test_what_a_child_makes_up_is_not_written_either() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet, extensions=("prepareCheckpoint",))
    dialogue.initialize("s", TRIM_HORIZON, PreparedCheckpoint(position=ExtendedSequenceNumber("7"), state=b"secret"))
    dialogue.receive(status("initialize"))
    dialogue.process_records([record(0)], 0)
    checkpoint(dialogue, "secret-number", "IllegalArgumentException")
    dialogue.receive(b'{"action":"prepareCheckpoint","applicationState":"c2VjcmV0","x":"secret"}\n')
    with pytest.raises(ChildError):
        dialogue.receive(b'{"action":"status","responseFor":"secret"}\n')
    assert "secret" not in sheet.text and "c2VjcmV0" not in sheet.text
    assert '"pendingCheckpointState":"<payload 6B>"' in sheet.text
    assert '"sequenceNumber":"<text 13B>"' in sheet.text and '"applicationState":"<payload 6B>"' in sheet.text
    assert sheet.text.endswith("# the child answered processRecords with another status\n")
    assert len(sheet.steps()) == 2


def test_the_end_of_the_child() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet)
    dialogue.initialize("s", TRIM_HORIZON)
    with pytest.raises(ChildError):
        dialogue.receive(b"")
    assert sheet.text.endswith("child> <eof>\n")


def test_noise_without_end_is_cut() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet)
    dialogue.initialize("s", TRIM_HORIZON)
    for _ in range(3):
        dialogue.receive(b"noise\n" * 100)
    assert sheet.text.count("child> <text 5B>") == recording.NOISE_LINES
    assert sheet.text.endswith("# and further lines that are no messages\n")


def test_a_new_file_starts_where_the_child_had_checkpointed() -> None:
    sheet = Sheet(new_file_at=3)
    dialogue = recorded(sheet)
    through_a_batch(dialogue, [record(0), record(1), record(2)])
    dialogue.process_records([record(3)], 0)
    dialogue.receive(status("processRecords"))
    first, batch = sheet.steps()
    assert isinstance(first.action, Initialize) and isinstance(batch.action, ProcessRecords)
    assert (first.action.sequence_number, first.action.sub_sequence_number) == (sequence_number(1), 0)
    assert [r.sequence_number for r in batch.action.records] == [sequence_number(3)]


def test_of_a_batch_that_is_too_long_the_last_records_are_written() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet)
    dialogue.initialize("s", TRIM_HORIZON)
    dialogue.receive(status("initialize"))
    dialogue.process_records([record(i) for i in range(10_000)], 0)
    assert recording.MAX_ACTION_CHARACTERS * 0.5 < len(sheet.text) < recording.MAX_ACTION_CHARACTERS * 1.1
    batch = sheet.steps()[1].action
    assert isinstance(batch, ProcessRecords)
    assert batch.records[-1].sequence_number == sequence_number(9_999)
    assert f"# the first {10_000 - len(batch.records)} records of this batch are left out\n" in sheet.text


def test_a_payload_larger_than_a_file_is_left_out_even_if_payloads_are_wanted() -> None:
    sheet = Sheet()
    dialogue = recorded(sheet, payloads=True)
    dialogue.initialize("s", TRIM_HORIZON)
    dialogue.receive(status("initialize"))
    dialogue.process_records([record(0, bytes(3_000_000))], 0)
    assert '"data":"<payload 3000000B>"' in sheet.text and KEY in sheet.text
    batch = sheet.steps()[1].action
    assert isinstance(batch, ProcessRecords) and len(batch.records[0].data) == 4_000_000


def test_a_line_that_stands_for_too_much_is_refused_before_it_is_made() -> None:
    with pytest.raises(TranscriptError, match="bomb:2: the line stands for more than"):
        parse_transcript("bomb", "# Title.\nhost> " + "<payload 99999999B>" * 10)
    with pytest.raises(TranscriptError, match="stands for more than"):
        parse_transcript("bomb", "host> <records 999999999 x 1B>")


@pytest.mark.parametrize("line", ['host> {"action":"fly"}', "host> nonsense", 'host> {"action":"checkpoint"}'])
def test_a_line_that_no_host_writes_is_refused(line: str) -> None:
    with pytest.raises(TranscriptError, match="t:1"):
        list(steps_of(parse_transcript("t", line)))
