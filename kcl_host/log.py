"""Logs: one line per event, as text for people or as JSON for machines; times are UTC with milliseconds.

Messages are constants and facts travel in `extra`, with an `action` key that names the event. Facts come in one
order: who (worker, stream, shard, child), then what happened, as given, then the action. Lines of a child's stderr come
through the logger `kcl_host.child`. Nothing that looks like a secret is written, and no control character: a message
cannot forge a second line.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO

import msgspec

CHILD: Final = "kcl_host.child"
MASK: Final = "***"
KINDS: Final = 1000
MINUTE_S: Final = 60.0
REPEATED: Final = 60
"""So many lines of one kind, WARNING or worse, are written in a minute."""

_WHO: Final = ("worker", "stream", "shard", "lease_key", "child_pid")
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record carries; all else came in `extra`."""

_SECRET_KEY: Final = re.compile(r"secret|passw|credential|private.?key|access.?key|authorization|signature", re.I)
_TOKEN_KEY: Final = re.compile(r"(?:^|[^a-z])(?:security|session|auth|access|bearer|api)?[_-]?token$", re.I)
_SECRET_TEXT: Final = re.compile(
    r"""((?:secret[\w.-]{0,40}key|secretkey|passw(?:or)?d|(?:session|security)[_-]?token|authorization|x-amz-signature)
        ["']?\s*[=:]\s*["']?)((?:AWS4-HMAC-SHA256|Bearer|Basic)\s+)?[^\s"',;&}]+""",
    re.I | re.X,
)
_BREAKS: Final = re.compile(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""And what turns the direction of text on a screen."""
_PLAIN: Final = re.compile(r"""[^\s"'=\\]+""")


def configure(
    *,
    level: str = "INFO",
    format: Literal["text", "json"] = "text",
    stream: TextIO,
    worker: str | None = None,
    kinesis_stream: str | None = None,
) -> None:
    """Sends the log of this process to `stream`; `worker` and `kinesis_stream` go into every line that has no other.

    `level` counts for kcl_host. Libraries are heard from WARNING on: at DEBUG botocore writes signatures. A second call
    replaces the first.
    """
    handler = _Handler(stream, Repetition(time.monotonic))
    facts = {"worker": worker, "stream": kinesis_stream}
    handler.setFormatter(JsonFormatter(facts) if format == "json" else TextFormatter(facts))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("kcl_host").setLevel(level.upper())
    logging.captureWarnings(True)


def bind(
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger], **facts: object
) -> logging.LoggerAdapter[logging.Logger]:
    """A logger that adds `facts` to every line; those given with a line win, those of an adapter are kept."""
    if isinstance(logger, logging.LoggerAdapter):
        return _Bound(logger.logger, {**(logger.extra or {}), **facts})
    return _Bound(logger, facts)


class _Bound(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}


class Repetition:
    """Which lines of one kind are written when it comes again and again: of a WARNING or worse, whoever it is about,
    the first REPEATED in each minute.

    The last of them says so, and the first of a later minute how many were left out before. A DynamoDB that is down
    makes a line per lease and second otherwise. Lines of children are theirs to limit. Not thread-safe.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._counts: dict[tuple[str, str, object], tuple[float, int]] = {}
        """By logger, message and action: when its minute began, and how many came in it."""

    def allows(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name == CHILD:
            return True
        kind, now_s = (record.name, str(record.msg), getattr(record, "action", None)), self._monotonic()
        since_s, count = self._counts.get(kind, (now_s, 0))
        if now_s - since_s >= MINUTE_S:
            if count > REPEATED:
                vars(record)["left_out"] = count - REPEATED
            since_s, count = now_s, 0
        if len(self._counts) >= KINDS:
            self._counts.clear()  # Somebody's messages are no constants.
        count += 1
        self._counts[kind] = since_s, count
        if count == REPEATED:
            vars(record)["more"] = "left out for a minute"
        return count <= REPEATED


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, to be told from those of others on the root logger."""

    def __init__(self, stream: TextIO, repetition: Repetition) -> None:
        super().__init__(stream)
        self._repetition = repetition

    def emit(self, record: logging.LogRecord) -> None:
        """Under the lock of the handler."""
        if self._repetition.allows(record):
            super().emit(record)


class TextFormatter(logging.Formatter):
    """`2025-01-31T03:04:05.678Z WARNING reads are throttled shard=shardId-0 failures=3 action=reads_throttled`"""

    def __init__(self, facts: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._facts = facts or {}

    def format(self, record: logging.LogRecord) -> str:
        parts = [timestamp(record.created), f"{record.levelname:<7}", one_line(masked_text(record.getMessage()))]
        parts += [f"{key}={_quoted(value)}" for key, value in facts_of(record, self._facts).items()]
        if trace := _trace(record):
            parts.append(f"exception={_quoted(one_line(trace))}")
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """One object: time, level, logger, message, then the facts under their own names."""

    def __init__(self, facts: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._facts = facts or {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _encodable(masked_text(record.getMessage())),
        }
        # A fact never replaces what the line itself says.
        line |= {key: value for key, value in facts_of(record, self._facts).items() if key not in line}
        if trace := _trace(record):
            line["exception"] = _encodable(trace)
        return _json(line)


def facts_of(record: logging.LogRecord, constant: Mapping[str, object]) -> dict[str, object]:
    """The facts of a line in their order, masked and encodable; those that are None are left out."""
    given = {**constant, **{key: value for key, value in vars(record).items() if key not in _OWN}}
    order = [*_WHO, *(key for key in given if key not in _WHO and key != "action"), "action"]
    return {key: _masked(key, given[key]) for key in order if given.get(key) is not None}


def timestamp(epoch_s: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    whole_s, ms = divmod(int(epoch_s * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole_s))}.{ms:03}Z"


def one_line(text: str) -> str:
    """The text on one line, its line breaks as ` | `, other control characters (colours of a child) escaped."""
    pieces = _BREAKS.split(text.strip("\r\n"))
    if len(pieces) > 1:
        text = " | ".join(filter(None, map(str.strip, pieces)))
    else:
        text = pieces[0]
    return escaped(text)


def escaped(text: str) -> str:
    """The text without control characters but tabs and line ends: what strangers wrote must not rule a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def masked_text(text: str) -> str:
    """The text without the values of what looks like `secretKey=...` or `"password": "..."` in it."""
    return _SECRET_TEXT.sub(rf"\1{MASK}", text)


def _masked(key: str, value: object) -> object:
    if _SECRET_KEY.search(key) or _TOKEN_KEY.search(key):
        return MASK
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return value  # A hash key is longer than the integers that JSON readers know, and becomes text.
    if isinstance(value, Mapping):
        return {_encodable(str(k)): _masked(str(k), v) for k, v in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_masked("", item) for item in value]
    return _encodable(masked_text(str(value)))


def _encodable(text: str) -> str:
    """UTF-8 has no lone surrogates, file names and arguments may."""
    return text.encode("utf-8", "backslashreplace").decode()


def _json(value: object) -> str:
    """JSON has to escape less than a log: a line separator of Unicode is a line to some readers."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(value).decode())


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        return _json(value)
    text = one_line(value)
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _trace(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return masked_text(logging.Formatter().formatException(record.exc_info))
    return ""
