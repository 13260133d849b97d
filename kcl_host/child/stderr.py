"""What a child writes on stderr: cut into lines, and the level that each line itself shows."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

MAX_LINE_BYTES = 8192

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "err": logging.ERROR,
    "error": logging.ERROR,
    "severe": logging.ERROR,
    "fatal": logging.CRITICAL,
    "critical": logging.CRITICAL,
    "panic": logging.CRITICAL,
}
_HEAD = 100
"""Characters at the start of a line in which a level is looked for; further in it is the message that says "ERROR"."""

_JSON_LEVEL = re.compile(r'"(?:level|levelname|log\.level|severity|lvl)"\s*:\s*(?:"(\w+)"|(\d{1,9}))', re.IGNORECASE)
_WORD = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|SEVERE|FATAL|CRITICAL|PANIC)\b")
_MARKED = re.compile(
    r"(?:^|[\[<(]|\b(?:level|lvl|severity)[=:]\s*\"?)(" + "|".join(_LEVELS) + r")(?=[\])>:\s\"]|$)", re.I
)
_GLOG = re.compile(r"^([IWEF])\d{4} \d\d:\d\d")
_GLOG_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_EXCEPTION = re.compile(r"^(?:Traceback \(most|(?:Uncaught |Exception in )|[\w.$]*(?:Error|Exception)(?::|$))")


def level_of(line: str) -> int:
    """Level (of module logging) that a line of stderr shows; INFO when it shows none.

    Known: a "level", "levelname" or "severity" in a JSON line (numbers as pino and bunyan write them: 30 is info),
    a level in capitals near the start (Python logging, log4j, slf4j), `[error]`, `error:`, `level=error`, glog's
    `E0102 15:04`, and the first and last line of an uncaught exception.
    """
    if line.startswith("{") and (found := _JSON_LEVEL.search(line)):
        name, number = found.groups()
        if number:
            return max(logging.DEBUG, min(logging.CRITICAL, int(number) - 10))
        return _LEVELS.get(name.lower(), logging.INFO)
    head = line[:_HEAD]
    if found := _GLOG.match(head):
        return _GLOG_LEVELS[found[1]]
    if _EXCEPTION.match(head):
        return logging.ERROR
    if found := _WORD.search(head):
        return _LEVELS[found[0].lower()]
    if found := _MARKED.search(head):
        return _LEVELS[found[1].lower()]
    return logging.INFO


class StderrLines:
    r"""Cuts bytes into lines at \n and \r, decoded as UTF-8 with replacement; blank lines are left out.

    Memory is bounded: of a line longer than MAX_LINE_BYTES only the beginning is kept, marked by an ellipsis.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._partial = b""

    def feed(self, data: bytes) -> None:
        lines = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        # One byte more than is shown, so that a cut line can be told from one that just fits.
        self._partial = lines.pop()[: MAX_LINE_BYTES + 1]
        for line in lines:
            self._emit(line)

    def close(self) -> None:
        """Emits a last line that has no terminator."""
        line, self._partial = self._partial, b""
        self._emit(line)

    def _emit(self, line: bytes) -> None:
        if line.strip():
            text = line[:MAX_LINE_BYTES].decode("utf-8", "replace")
            self._on_line(text + "..." if len(line) > MAX_LINE_BYTES else text)
