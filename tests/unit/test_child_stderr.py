from __future__ import annotations

import logging

import pytest

from kcl_host.child.stderr import MAX_LINE_BYTES, StderrLines, level_of

LINES = [
    ("", logging.INFO),
    ("plain words without a level", logging.INFO),
    ("connected, 0 errors so far", logging.INFO),
    ("2025-01-01 10:00:00,123 DEBUG app.sink - flushed", logging.DEBUG),
    ("WARNING:root:disk is nearly full", logging.WARNING),
    ("[2025-01-01T10:00:00Z] [error] no route", logging.ERROR),
    ("error: no such table", logging.ERROR),
    ('time=2025-01-01T10:00:00Z level=warn msg="slow"', logging.WARNING),
    ("10:00:00.123 [main] FATAL com.example.App - out of memory", logging.CRITICAL),
    ("SEVERE: cannot connect", logging.ERROR),
    ("W0102 15:04:05.678 12 sink.go:42] retrying", logging.WARNING),
    ("Traceback (most recent call last):", logging.ERROR),
    ("ValueError: invalid literal", logging.ERROR),
    ("amazon_kclpy.kcl.CheckpointError: ThrottlingException", logging.ERROR),
    ('Exception in thread "main" java.lang.RuntimeException: x', logging.ERROR),
    ("TypeError: x is not a function", logging.ERROR),
    ('{"level":"warning","msg":"an ERROR is only in the text"}', logging.WARNING),
    ('{"time": "t", "levelname": "CRITICAL"}', logging.CRITICAL),
    ('{"severity":"NOTICE","message":"m"}', logging.INFO),
    ('{"level":50,"msg":"pino writes numbers"}', logging.ERROR),
    ('{"level":10,"msg":"trace"}', logging.DEBUG),
    ('{"level":"strange"}', logging.INFO),
    ('{"msg":"nothing"}', logging.INFO),
    ("x" * 200 + " ERROR far from the start", logging.INFO),
]


@pytest.mark.parametrize(("line", "level"), LINES, ids=[line[:40] for line, _ in LINES])
def test_the_level_that_a_line_shows(line: str, level: int) -> None:
    assert level_of(line) == level


def lines_of(*chunks: bytes) -> list[str]:
    seen: list[str] = []
    lines = StderrLines(seen.append)
    for chunk in chunks:
        lines.feed(chunk)
    lines.close()
    lines.close()
    return seen


def test_lines_do_not_depend_on_the_chunks() -> None:
    data = "one\r\ntwo\rthree\n\n  \nvier Äpfel\nlast".encode()
    expected = ["one", "two", "three", "vier Äpfel", "last"]
    assert lines_of(data) == expected
    assert lines_of(*[data[i : i + 1] for i in range(len(data))]) == expected


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert lines_of(b"a\xffb\n") == ["a�b"]


@pytest.mark.parametrize("chunk", [1000, 10**6])
def test_a_long_line_is_cut_and_the_next_one_is_whole(chunk: int) -> None:
    data = b"x" * 100_000 + b"\nnext\n" + b"y" * MAX_LINE_BYTES + b"\n" + b"z" * (MAX_LINE_BYTES + 1)
    assert lines_of(*[data[i : i + chunk] for i in range(0, len(data), chunk)]) == [
        "x" * MAX_LINE_BYTES + "...",
        "next",
        "y" * MAX_LINE_BYTES,
        "z" * MAX_LINE_BYTES + "...",
    ]
