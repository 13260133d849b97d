from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.multilang.lines import LineSplitter


def split(*chunks: bytes, max_line_bytes: int = 100) -> list[bytes]:
    splitter = LineSplitter(max_line_bytes)
    return [line for chunk in chunks for line in splitter.feed(chunk)]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\rb\r\nc\n"], [b"a", b"b", b"c"]),
        ([b"a\r", b"\nb\n"], [b"a", b"b"]),
        ([b"\n\n\r\r\n"], []),
        ([b"a"], []),
        ([b"a", b""], [b"a"]),
        ([b"a\n", b""], [b"a"]),
        ([b"a", b"b", b"\n"], [b"ab"]),
        ([b" \n"], [b" "]),
        ([b"a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f\n"], [b"a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f"]),
        ([b""], []),
    ],
)
def test_lines(chunks: list[bytes], lines: list[bytes]) -> None:
    assert split(*chunks) == lines


@given(st.lists(st.text("a{\r\n", max_size=6).map(str.encode)))
def test_chunks_do_not_matter(chunks: list[bytes]) -> None:
    chunks = [c for c in chunks if c]
    assert split(*chunks, b"") == [line for line in re.split(rb"[\r\n]", b"".join(chunks)) if line]


@pytest.mark.parametrize("chunks", [[b"12345\n67890x\nlater\n"], [b"12345\n6789", b"0x", b"\nlater\n"]])
def test_a_line_above_the_bound_ends_it(chunks: list[bytes]) -> None:
    splitter = LineSplitter(5)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    assert lines == [b"12345"]
    assert splitter.overflowed
    assert splitter.feed(b"") == []
    assert repr(splitter) == "<LineSplitter overflowed>"


def test_one_long_line_in_small_chunks_is_not_copied_again_and_again() -> None:
    splitter = LineSplitter(10**9)
    for _ in range(100_000):
        assert splitter.feed(b"x" * 64) == []
    assert repr(splitter) == "<LineSplitter 6400000 bytes unfinished>"
    assert len(splitter.feed(b"\n")[0]) == 6_400_000
