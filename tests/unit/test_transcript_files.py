"""The files of `kcl-host run --transcript DIR`: modes, bounds, rotation, and a disk that does not take them."""

from __future__ import annotations

import logging
import resource
import stat
from pathlib import Path

import pytest

from kcl_host.errors import ConfigurationError
from kcl_host.model.records import Record
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.multilang.dialogue import Dialogue
from kcl_host.multilang.transcript import parse_transcript
from kcl_host.runtime.transcripts import TranscriptFolder
from tests.fakes.clock import FakeClock

STATUS = b'{"action":"status","responseFor":"processRecords"}\n'


class Recording:
    """One folder, and sessions in it."""

    def __init__(self, folder: Path, *, file_bytes: int = 3000, files: int = 64) -> None:
        self.path = folder / "transcripts"
        self.clock = FakeClock()
        self.folder = TranscriptFolder(
            self.path, self.clock, b"secret", payloads=False, file_bytes=file_bytes, files=files
        )
        self.folder.prepare()

    def session(self, lease_key: str = "shardId-000000000000", pid: int = 4711) -> Dialogue:
        self.clock.now_s += 1
        dialogue = self.folder.new_dialogue(lease_key, pid, 1 << 20, ())
        dialogue.initialize(lease_key, AT_TRIM_HORIZON)
        dialogue.receive(STATUS.replace(b"processRecords", b"initialize"))
        return dialogue

    def batch(self, dialogue: Dialogue, number: int) -> None:
        record = Record(
            data="eHh4", partition_key="k", sequence_number=str(number), approximate_arrival_timestamp=number
        )
        dialogue.process_records([record], 0)
        dialogue.receive(STATUS)

    def files(self) -> list[Path]:
        return sorted(self.path.iterdir())


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_a_file_for_each_start_of_a_child_that_only_its_owner_can_read(recording: Recording) -> None:
    recording.session()
    recording.session("111122223333:numbers:1700000000:shardId-000000000001\n../..", pid=4712)
    assert [f.name for f in recording.files()] == [
        "111122223333_numbers_1700000000_shardId-000000000001_.._...20270115T080002000Z.4712.1.txt",
        "shardId-000000000000.20270115T080001000Z.4711.1.txt",
    ]
    assert {stat.S_IMODE(f.stat().st_mode) for f in recording.files()} == {0o600}
    assert stat.S_IMODE(recording.path.stat().st_mode) == 0o700
    title, time, first = recording.files()[1].read_text().splitlines()[:3]
    assert title == "# shardId-000000000000, child process 4711, 2027-01-15 08:00:01 UTC"
    assert time == "# 08:00:01.000" and first.startswith('host> {"action":"initialize"')


def test_a_long_session_keeps_its_newest_two_parts_each_of_which_can_be_played(recording: Recording) -> None:
    dialogue = recording.session()
    for number in range(1, 101):
        recording.batch(dialogue, number)
    last, before = sorted(recording.files(), key=lambda f: int(f.name.split(".")[-2]), reverse=True)
    assert int(last.name.split(".")[-2]) > 5
    assert before.stat().st_size <= 3000 and last.stat().st_size <= 3000
    for file in (before, last):
        transcript = parse_transcript(file.stem, file.read_text())
        assert transcript.entries[0].raw is not None and '"initialize"' in transcript.entries[0].raw
    assert '"sequenceNumber":"100"' in last.read_text()


def test_the_oldest_files_go_and_nothing_else(tmp_path: Path) -> None:
    recording = Recording(tmp_path, files=5)
    (recording.path / "notes.txt").write_text("mine")
    sessions = [recording.session(pid=100 + n) for n in range(8)]
    names = [f.name for f in recording.files()]
    assert "notes.txt" in names and len(names) == 6
    assert [name.split(".")[2] for name in names if name != "notes.txt"] == ["103", "104", "105", "106", "107"]
    recording.batch(sessions[0], 1)
    assert len(recording.files()) == 6, "a transcript that was removed is not begun again"


def test_a_folder_that_is_gone_and_one_that_cannot_be_made(recording: Recording, tmp_path: Path) -> None:
    dialogue = recording.session()
    for file in recording.files():
        file.unlink()
    recording.path.rmdir()
    recording.batch(dialogue, 1)
    recording.session()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot make the folder"):
        TranscriptFolder(tmp_path / "file" / "x", FakeClock(), b"", payloads=False).prepare()


def test_a_full_disk_ends_the_transcript_at_a_whole_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(tmp_path, file_bytes=1 << 20)
    dialogue = recording.session()
    (file,) = recording.files()
    before = file.read_text()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, hard))  # Python ignores SIGXFSZ
    try:
        with caplog.at_level(logging.WARNING):
            recording.batch(dialogue, 1)
            recording.batch(dialogue, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    recording.batch(dialogue, 3)
    assert file.read_text() == before
    (warning,) = caplog.records
    assert warning.action == "transcript_ended"  # type: ignore[attr-defined]


def test_an_old_file_of_the_same_name_is_not_written_into(recording: Recording, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    (recording.path / "shardId-000000000000.20270115T080001000Z.4711.1.txt").symlink_to(target)
    recording.session()
    assert target.read_text() == "untouched"
