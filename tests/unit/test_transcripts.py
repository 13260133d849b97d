"""Every transcript, replayed whole, byte by byte and with trailing data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from kcl_host.errors import ChildError
from kcl_host.multilang.dialogue import (
    ActionUnanswered,
    CheckpointRequested,
    Dialogue,
    Event,
    Noise,
    RemoteProtocolError,
)
from kcl_host.multilang.messages import CheckpointAnswer, decode_host_line
from kcl_host.multilang.transcript import Entry, Transcript, TranscriptError, parse_transcript

FOLDER = Path(__file__).parents[2] / "protocol" / "transcripts"
FILES = sorted(FOLDER.rglob("*.txt"))


def extensions_of(path: Path) -> list[str]:
    """Those that are switched on in a session: it is in the folder of their name."""
    return [path.parent.name] if path.parent.name not in ("transcripts", "quirks", "optional") else []


def load(path: Path) -> Transcript:
    return parse_transcript(path.stem, path.read_text("utf-8"))


def without_future_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """17-unknown-keys.txt has keys that no host sends."""
    return {key: value for key, value in pairs if not key.startswith("future")}


class Replay:
    """The host's dialogue, fed with the child's lines of a transcript, its own lines checked against the host's."""

    def __init__(self, cut: Callable[[bytes], Iterator[bytes]], extensions: Sequence[str]) -> None:
        self.dialogue = Dialogue(extensions=extensions)
        self.failure: ChildError | None = None
        self._cut = cut
        self._unanswered: list[CheckpointRequested] = []

    def host(self, entry: Entry) -> None:
        text = entry.text
        if text is None:
            return
        message = decode_host_line(text)
        if isinstance(message, CheckpointAnswer):
            line = self.dialogue.answer_checkpoint(self._unanswered.pop(0), message.error)
        else:
            line = self.dialogue.send(message)
        assert line.isascii()
        written, expected = json.loads(line), json.loads(text, object_pairs_hook=without_future_keys)
        assert written == expected
        assert list(written) == list(expected), "the order of keys"

    def child(self, output: bytes) -> list[Event]:
        events: list[Event] = []
        for chunk in self._cut(output) if output else [b""]:
            try:
                events += self.dialogue.receive(chunk)
            except (RemoteProtocolError, ActionUnanswered) as e:
                self.failure = e
                events += e.events
                break
        self._unanswered += [e for e in events if isinstance(e, CheckpointRequested)]
        return events


def whole(output: bytes) -> Iterator[bytes]:
    yield output


def bytewise(output: bytes) -> Iterator[bytes]:
    return (output[i : i + 1] for i in range(len(output)))


def with_trailing_data(output: bytes) -> Iterator[bytes]:
    yield output + b"half"
    yield b" a line\r"


def in_json(event: Event) -> str:
    return msgspec.json.encode(event).decode()


def failed(failure: ChildError) -> str:
    return json.dumps({"event": "failed", "error": type(failure).__name__}, separators=(",", ":"))


def chunks(transcript: Transcript) -> Iterator[tuple[list[Entry], bytes, list[str]]]:
    """(entries of the host, what the child then writes in one go, the events that follow)."""
    host: list[Entry] = []
    output = b""
    events: list[str] = []
    for entry in transcript.entries:
        if entry.who == "host" and (output or events):
            yield host, output, events
            host, output, events = [], b"", []
        if entry.who == "host":
            host.append(entry)
        elif entry.who == "event":
            events.append(entry.text or "")
        elif entry.raw is None:
            yield host, output, events
            host, output, events = [], b"", []
        else:
            output += entry.output
    yield host, output, events


@pytest.mark.parametrize("cut", [whole, bytewise, with_trailing_data])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_dialogue_understands_a_transcript(path: Path, cut: Callable[[bytes], Iterator[bytes]]) -> None:
    replay = Replay(cut, extensions_of(path))
    for host, output, expected in chunks(load(path)):
        for entry in host:
            replay.host(entry)
        events = replay.child(output)
        if cut is with_trailing_data and output and not replay.failure:
            assert events.pop() == Noise(line="half a line", size_bytes=11)
        seen = [in_json(e) for e in events] + ([failed(replay.failure)] if replay.failure else [])
        assert [json.loads(e) for e in seen] == [json.loads(e) for e in expected]


def with_events(path: Path) -> str:
    """The file's text with its event lines as the dialogue says them."""
    replay = Replay(whole, extensions_of(path))
    by_line: dict[int, list[str]] = {}
    for entry in load(path).entries:
        if entry.who == "host":
            replay.host(entry)
        elif entry.who == "child":
            events = [in_json(e) for e in replay.child(entry.output)]
            by_line[entry.line_number] = events + ([failed(replay.failure)] if replay.failure else [])
    lines: list[str] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.startswith("event> "):
            lines.append(line)
        lines += [f"event> {event}" for event in by_line.get(number, [])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_events_in_the_file_stand_where_they_happen(path: Path) -> None:
    text = with_events(path)
    if os.environ.get("KCL_HOST_REWRITE"):
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text


def test_the_sessions_cover_what_a_child_can_meet() -> None:
    names = {p.stem.partition("-")[2] for p in FOLDER.glob("*.txt")}
    assert names >= {
        "start", "records", "checkpoint-bare", "checkpoint-explicit", "checkpoint-refused", "shutdown-requested",
        "shard-end", "large-line", "non-ascii-key", "end-of-input", "aggregate", "handover", "unknown-keys",
    }  # fmt: skip
    assert all(load(p).title.endswith(".") for p in FILES)
    prepared = {p.stem.partition("-")[2] for p in (FOLDER / "prepareCheckpoint").glob("*.txt")}
    assert prepared == {"prepare", "prepared-before", "prepare-refused", "prepare-shard-end"}


def test_the_large_line_is_large() -> None:
    largest = max(len(e.output) for e in load(FOLDER / "12-large-line.txt").entries)
    assert 13_000_000 < largest < 20_000_000


def test_placeholders() -> None:
    lines = ["# Title.", "", "host> <records 2 x 1KB>", "host> <records 1 x 4B>"]
    lines += ["child> <sequence 3><return><text 3B>", "child> <eof>", ""]
    transcript = parse_transcript("t", "\n".join(lines))
    first, second, child, end = transcript.entries
    assert transcript.title == "Title."
    assert [r["sequenceNumber"][-2:] for r in json.loads(first.output)] == ["98", "99"]
    assert json.loads(second.output)[0]["data"] == "AAAAAA=="
    assert child.output == json.loads(second.output)[0]["sequenceNumber"].encode() + b"\rxxx\n"
    assert (end.output, end.line_number) == (b"", 6)


@pytest.mark.parametrize("text", ["hst> {}", "host>{}", "noise", "# only a comment"])
def test_a_wrong_transcript_is_refused(text: str) -> None:
    with pytest.raises(TranscriptError, match="t"):
        parse_transcript("t", text)
