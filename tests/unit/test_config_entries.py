"""The .properties syntax, with line numbers (spec configuration 1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.config.entries import parse_entries
from kcl_host.config.findings import Report
from kcl_host.errors import ConfigurationError


def parse(data: bytes) -> tuple[list[tuple[str, str, int | None]], list[str]]:
    report = Report("f", strict=False)
    entries = parse_entries(data, report)
    return [(e.name, e.value, e.line) for e in entries], [f.message for f in report.findings]


@pytest.mark.parametrize(
    ("data", "entries"),
    [
        (b"a=b", [("a", "b", 1)]),
        (b"a = b  ", [("a", "b", 1)]),
        (b"a:b\nc d\n", [("a", "b", 1), ("c", "d", 2)]),
        (b"# x\n! y\n\n  # z\na=1", [("a", "1", 5)]),
        (b"# no continuation \\\na=1", [("a", "1", 2)]),
        (b"a = 1,\\\n    2,\\\n    3\nb=4", [("a", "1,2,3", 1), ("b", "4", 4)]),
        (b"a=1\r\nb=2\rc=3\n", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
        (b"a=x\\ty\\nz\\\\ \\q\\u0041", [("a", "x\ty\nz\\ qA", 1)]),
        (b"a\\ b\\=c = d", [("a b=c", "d", 1)]),
        (b"a = 5 # five", [("a", "5 # five", 1)]),
        (b'a = "w"', [("a", '"w"', 1)]),
        (b"a = \xe9", [("a", "\u00e9", 1)]),
        (b"a = \\ud83d\\ude00", [("a", "\U0001f600", 1)]),
        (b"a", [("a", "", 1)]),
        (b"", []),
    ],
)
def test_syntax(data: bytes, entries: list[tuple[str, str, int | None]]) -> None:
    assert parse(data) == (entries, [])


def test_the_last_of_a_repeated_key_wins_and_both_lines_are_named() -> None:
    entries, messages = parse(b"a=1\nb=2\na=3")
    assert sorted(entries) == [("a", "3", 3), ("b", "2", 2)]
    assert messages == ["f:3: a was already set in line 1; this line wins"]


def test_utf8_text_is_noticed_since_the_file_is_latin_1() -> None:
    entries, messages = parse("a = caf\u00e9".encode())
    assert entries == [("a", "caf\u00c3\u00a9", 1)]
    assert messages == ["f:1: a holds UTF-8 text, but .properties files are ISO-8859-1; write \\uXXXX escapes"]


def test_a_byte_order_mark_does_not_become_a_part_of_the_key() -> None:
    entries, messages = parse(b"\xef\xbb\xbfa = b")
    assert entries == [("a", "b", 1)]
    assert "byte order mark" in messages[0]


def test_a_line_without_a_key_is_named() -> None:
    assert parse(b"a=b\n= c") == ([("a", "b", 1)], ["f:2: this line has no key and is ignored"])


@pytest.mark.parametrize("data", [b"a=1\nb=\\u00zz", b"a=1\nb=\\u12", b"a=1\nb=\\ud83d"])
def test_a_broken_escape_ends_the_reading_with_its_line(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"^f:2: "):
        parse(data)


def escaped(text: str) -> str:
    """Any text as java.util.Properties.store would have to write it, by \\uXXXX alone."""
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.dictionaries(WORDS, WORDS, max_size=6))
def test_what_is_written_in_escapes_is_read_back(pairs: dict[str, str]) -> None:
    data = "\n".join(f"{escaped(k)} = {escaped(v)}" for k, v in pairs.items()).encode("ascii")
    report = Report("f", strict=False)
    read = {e.name: (e.value, e.line) for e in parse_entries(data, report)}
    assert read == {k: (v.strip(), line) for line, (k, v) in enumerate(pairs.items(), start=1)}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_configuration(data: bytes) -> None:
    try:
        entries, _ = parse(data)
    except ConfigurationError:
        return
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1
    assert all(line is not None and 1 <= line <= lines for _, _, line in entries)
