"""What was said last: the last lines of each child's stderr, and the last warnings and errors of the host.

Bounded in every way, and cheap to write to: lines are made presentable only when somebody reads them. `_lock` guards
both; children's stderr threads, and whoever logs, write, the endpoint's thread reads.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from typing import Final

import msgspec

from kcl_host.log import CHILD, facts_of, masked_text, one_line
from kcl_host.ports import Clock

LINES: Final = 8
"""Of each shard."""
LINE_CHARS: Final = 400
SHARDS: Final = 2000
"""Of those that wrote last."""
TROUBLES: Final = 50
SHOWN_FACTS: Final = ("shard", "lease_key", "thread_of", "error", "reason")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a child's stderr: when (epoch seconds), by which process, at which level, and the text."""

    at_s: float
    pid: int
    level: str
    text: str


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the host's log, WARNING or worse, with those facts that say about what."""

    at_s: float
    level: str
    action: str
    message: str
    facts: dict[str, str]


class Recent:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, deque[tuple[float, int, int, str]]] = OrderedDict()
        self._troubles: deque[Trouble] = deque(maxlen=TROUBLES)

    def __repr__(self) -> str:
        return f"<Recent {len(self._lines)} shards, {len(self._troubles)} troubles>"

    def note_line(self, lease_key: str, pid: int, level: int, text: str) -> None:
        at_s = self._clock.wall()
        with self._lock:
            lines = self._lines.get(lease_key)
            if lines is None:
                lines = self._lines[lease_key] = deque(maxlen=LINES)
                if len(self._lines) > SHARDS:
                    self._lines.popitem(last=False)
            else:
                self._lines.move_to_end(lease_key)
            lines.append((at_s, pid, level, text[:LINE_CHARS]))

    def note_trouble(self, trouble: Trouble) -> None:
        with self._lock:
            self._troubles.append(trouble)

    def lines_of(self, lease_key: str, count: int = LINES) -> tuple[Line, ...]:
        """The last ones, oldest first, each on one line and without what looks like a secret."""
        with self._lock:
            lines = tuple(self._lines.get(lease_key, ()))[-count:]
        return tuple(
            Line(at_s=at_s, pid=pid, level=logging.getLevelName(level), text=_presentable(text))
            for at_s, pid, level, text in lines
        )

    def troubles(self) -> tuple[Trouble, ...]:
        """Newest first."""
        with self._lock:
            return tuple(reversed(self._troubles))


class TroubleHandler(logging.Handler):
    """Hands warnings and errors of the host to `recent`; what children write has its own place there."""

    def __init__(self, recent: Recent) -> None:
        super().__init__(logging.WARNING)
        self._recent = recent

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == CHILD:
            return
        facts = facts_of(record, {})
        error = f" ({record.exc_info[0].__name__})" if record.exc_info and record.exc_info[0] else ""
        self._recent.note_trouble(
            Trouble(
                at_s=record.created,
                level=record.levelname,
                action=str(facts.get("action", "")),
                message=_presentable(record.getMessage())[:LINE_CHARS] + error,
                facts={name: _presentable(str(facts[name]))[:LINE_CHARS] for name in SHOWN_FACTS if name in facts},
            )
        )


def _presentable(text: str) -> str:
    return one_line(masked_text(text))
