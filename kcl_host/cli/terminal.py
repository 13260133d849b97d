"""What is written on a terminal: names out of tables are text there, never markup or control sequences."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kcl_host.log import escaped, one_line

PIPE_WIDTH: Final = 140
"""A pipe has no width: lines are as long as all columns need."""
_View = TypeVar("_View", bound=msgspec.Struct)


class _Terminal(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else escaped(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def console(**how: Any) -> Console:
    """On stdout, without markup. rich takes `[/]` in the name of a worker for markup otherwise, and fails."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Terminal(**{"width": None if has_width else PIPE_WIDTH, "highlight": False, "markup": False, **how})


def printable(view: _View) -> _View:
    """The same with each text on one line, so that no name looks like a line of ours."""
    return msgspec.convert(_printable(msgspec.to_builtins(view)), type(view))


def _printable(value: Any) -> Any:
    match value:
        case str():
            return one_line(value)
        case dict():
            return {_printable(key): _printable(one) for key, one in value.items()}
        case list() | tuple():
            return [_printable(one) for one in value]
    return value
