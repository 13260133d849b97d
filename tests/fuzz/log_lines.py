"""Log lines with names and texts of strangers: each is one line, without control characters, and JSON is JSON."""

from __future__ import annotations

import json
import logging
import re
from random import Random
from typing import Any, NamedTuple

from kcl_host.child.stderr import StderrLines, level_of
from kcl_host.log import JsonFormatter, TextFormatter
from tests.fuzz.driver import Target
from tests.fuzz.mutation import any_json, mutated

FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
FORMATTERS = (TextFormatter({"worker": "w\x1b[31m\n"}), JsonFormatter({"worker": "w\x1b[31m\n"}))
_PIECES = (b"secret", b"key=", b" " * 8000, b"\t" * 500, b"secret" * 1300, b"password=" * 800, b'"', b"\n", b"\x1b[0m",
           b"\\", b"Bearer ", b"AWS4-HMAC-SHA256 ", b"secretAccessKey=x", b'{"level": 9', b"\xe2\x80\xae")  # fmt: skip


class Said(NamedTuple):
    stderr: bytes
    facts: dict[str, Any]


def make(rng: Random) -> Said:
    stderr = mutated(rng, rng.choice((b'{"level":"error","msg":"x"}\n', b"ERROR: no\n", b"Traceback (most\n")), _PIECES)
    names = ("worker", "stream", "shard", "lease_key", "child_pid", "error", "reason", "token", "leases")
    return Said(stderr, {name: any_json(rng, 2) for name in rng.sample(names, 3)})


def run(said: Said) -> None:
    lines: list[str] = []
    cutter = StderrLines(lines.append)
    cutter.feed(said.stderr)
    cutter.close()
    for text in (*lines[:3], "constant"):
        level = level_of(text)
        record = logging.LogRecord("kcl_host.child", level, "", 0, "%s", (text,), None)
        vars(record).update(said.facts, action="child_stderr")
        for formatter in FORMATTERS:
            line = formatter.format(record)
            found = FORBIDDEN.search(line)
            assert not found, "a control character in a log line"
            line.encode()
        assert json.loads(line)["action"] == "child_stderr"


TARGET = Target("log-lines", make, run)
