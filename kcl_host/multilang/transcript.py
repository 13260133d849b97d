"""Recorded dialogues: protocol/transcripts/*.txt, and those that a host writes (multilang/recording.py).

Their grammar is in protocol/transcripts/README.md. A line keeps its placeholders until it is asked for: one recorded
without payloads is small in its file, and may be large on the wire.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from kcl_host.model.records import Record

FIRST_SEQUENCE_NUMBER: Final = 49590338271490256608559692538361571095921575989136588898
"""Of the first generated record of a transcript; each further one is one higher."""
FIRST_ARRIVAL_MS: Final = 1735689600000

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""Of a line with its placeholders filled in."""

_UNITS: Final = {"B": 1, "KB": 1024, "MB": 1024 * 1024}
_RECORD_BYTES: Final = 256
"""More than a generated record has beside its payload."""
_PLACEHOLDER: Final = re.compile(
    r"<(?:(?P<records>records) (?P<count>\d{1,9}) x (?P<size>\d{1,9}) ?(?P<unit>B|KB|MB)"
    r"|(?P<text>text) (?P<length>\d{1,9}) ?(?P<text_unit>B|KB|MB)"
    r"|(?P<payload>payload) (?P<payload_bytes>\d{1,9})B"
    r"|(?P<key>key) (?P<characters>\d{1,4}) (?P<stand_in>[0-9a-f]+)"
    r"|(?P<sequence>sequence) (?P<index>\d{1,9})"
    r"|(?P<return>return)"
    r"|(?P<less_than>lt))>"
)
_EOF: Final = "<eof>"


class TranscriptError(ValueError):
    """The transcript does not follow its grammar."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a transcript. `raw` is as it stands there; None: the end of host's or child's output.

    `generated` is how many records the transcript has generated before it.
    """

    who: Literal["host", "child", "event"]
    raw: str | None
    line_number: int
    generated: int = 0

    @property
    def text(self) -> str | None:
        """The line with its placeholders filled in, anew at each access."""
        return None if self.raw is None else _fill_in(self.raw, self.generated)

    @property
    def output(self) -> bytes:
        """What the writer puts into the pipe: the line with its terminator; at the end nothing."""
        text = self.text
        return b"" if text is None else text.encode() + b"\n"


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """`title` is the first comment."""

    name: str
    title: str
    entries: tuple[Entry, ...]


def parse_transcript(name: str, text: str) -> Transcript:
    """Reads the text of one file. Raises TranscriptError with the line's number."""
    title = ""
    entries: list[Entry] = []
    generated = 0
    for line_number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            title = title or line.removeprefix("#").strip()
            continue
        if not line.strip():
            continue
        who, separator, rest = line.partition("> ")
        if not separator or who not in ("host", "child", "event"):
            raise TranscriptError(f"{name}:{line_number}: a line starts with `host> `, `child> ` or `event> `")
        raw = None if rest == _EOF else rest
        entries.append(Entry(who=who, raw=raw, line_number=line_number, generated=generated))  # type: ignore[arg-type]
        records, size_bytes = _measure(rest)
        if size_bytes > MAX_LINE_BYTES:
            raise TranscriptError(f"{name}:{line_number}: the line stands for more than {MAX_LINE_BYTES} bytes")
        generated += records
    if not entries:
        raise TranscriptError(f"{name}: no entries")
    return Transcript(name=name, title=title, entries=tuple(entries))


def _measure(raw: str) -> tuple[int, int]:
    """How many records the line generates, and a bound for its length."""
    generated, size_bytes = 0, len(raw)
    for match in _PLACEHOLDER.finditer(raw):
        if match["records"]:
            count = int(match["count"])
            generated += count
            size_bytes += count * (_RECORD_BYTES + int(match["size"]) * _UNITS[match["unit"]] * 2)
        elif match["text"]:
            size_bytes += int(match["length"]) * _UNITS[match["text_unit"]]
        elif match["payload"]:
            size_bytes += int(match["payload_bytes"]) * 2
        elif match["key"]:
            size_bytes += int(match["characters"])
    return generated, size_bytes


def _fill_in(raw: str, generated: int) -> str:
    """`raw` without placeholders; `generated` records came before it."""

    def replace(match: re.Match[str]) -> str:
        nonlocal generated
        if match["records"]:
            first, generated = generated, generated + int(match["count"])
            payload_bytes = int(match["size"]) * _UNITS[match["unit"]]
            return msgspec.json.encode([_record(i, payload_bytes) for i in range(first, generated)]).decode()
        if match["text"]:
            return "x" * (int(match["length"]) * _UNITS[match["text_unit"]])
        if match["payload"]:
            return _base64_of_letters(int(match["payload_bytes"]))
        if match["key"]:
            characters, stand_in = int(match["characters"]), match["stand_in"]
            return (stand_in * (characters // len(stand_in) + 1))[:characters]
        if match["sequence"]:
            return sequence_number(int(match["index"]) - 1)
        return "<" if match["less_than"] else "\r"

    return _PLACEHOLDER.sub(replace, raw)


def sequence_number(index: int) -> str:
    """Of the generated record with this index, counted from 0."""
    return str(FIRST_SEQUENCE_NUMBER + index)


def _record(index: int, payload_bytes: int) -> Record:
    return Record(
        data=_base64_of_zeros(payload_bytes),
        partition_key=f"key-{index}",
        sequence_number=sequence_number(index),
        approximate_arrival_timestamp=FIRST_ARRIVAL_MS + index,
    )


def _base64_of_zeros(size: int) -> str:
    whole, rest = divmod(size, 3)
    return "AAAA" * whole + ("", "AA==", "AAA=")[rest]


def _base64_of_letters(size: int) -> str:
    """Made up in place of a payload that was left out: `size` letters x."""
    whole, rest = divmod(size, 3)
    return "eHh4" * whole + ("", "eA==", "eHg=")[rest]
