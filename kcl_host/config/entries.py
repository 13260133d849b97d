"""A .properties file as entries with their line numbers (spec configuration 1.1)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import javaproperties
import msgspec

from kcl_host.config.findings import Report
from kcl_host.errors import ConfigurationError

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_UTF8_BOM: Final = b"\xef\xbb\xbf"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One key as it was typed. `line` is where it begins, None for an override."""

    name: str
    value: str
    line: int | None


def read_entries(path: str, report: Report) -> list[Entry]:
    """The entries of the file in its order, values trimmed, only the last of each repeated key.

    The file is ISO-8859-1, as java.util.Properties has it. Raises ConfigurationError when it cannot be read or
    is not in that syntax.
    """
    return parse_entries(_read(path), report)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: this is a directory, a .properties file is needed") from None
    except PermissionError:
        raise ConfigurationError(f"{path}: no permission to read this file") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_entries(data: bytes, report: Report) -> list[Entry]:
    """`read_entries` on the content of a file."""
    if data.startswith(_UTF8_BOM):
        report.warning("", "the file starts with a UTF-8 byte order mark, which Java takes for a part of the key", 1)
        data = data.removeprefix(_UTF8_BOM)
    entries: dict[str, Entry] = {}
    line = 1
    try:
        for element in javaproperties.parse(data):
            if isinstance(element, javaproperties.KeyValue):
                _add(entries, element.key, element.value, line, report)
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigurationError(
            f"{report.place(line)}: {error.escape} is not a \\uXXXX escape; write a backslash as \\\\"
        ) from None
    return list(entries.values())


def _add(entries: dict[str, Entry], name: str, value: str, line: int, report: Report) -> None:
    if any("\ud800" <= c <= "\udfff" for c in name + value):
        raise ConfigurationError(f"{report.place(line)}: a \\uXXXX escape stands for half a character only")
    if not name:
        report.lenient(name, "this line has no key and is ignored", line)
        return
    if _looks_like_utf8(name + value):
        report.warning(
            name, f"{name} holds UTF-8 text, but .properties files are ISO-8859-1; write \\uXXXX escapes", line
        )
    earlier = entries.pop(name, None)
    if earlier:
        report.warning(name, f"{name} was already set in line {earlier.line}; this line wins", line)
    entries[name] = Entry(name=name, value=value.strip(), line=line)


def _looks_like_utf8(text: str) -> bool:
    """True when the ISO-8859-1 text has bytes outside ASCII that make sense as UTF-8."""
    if text.isascii():
        return False
    try:
        text.encode("iso-8859-1").decode("utf-8")
    except UnicodeError:
        return False
    return True
