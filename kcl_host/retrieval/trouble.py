"""A time of failing reads, as the log tells it: when it begins, when its kind changes, then once a minute.

It is over only when nothing has failed for QUIET_S: a shard that is throttled every other read is one story, not a
pair of lines for each.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

REMIND_S: Final = 60.0
QUIET_S: Final = 10.0


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """All times are monotonic seconds; `said_s` is that of the last log line about this kind."""

    kind: str
    """What the last failure was."""
    failures: int
    """In a row, 0 after a read that succeeded: the back-off goes by it."""
    total: int
    since_s: float
    last_s: float
    said_s: float = -math.inf

    @classmethod
    def after(cls, before: Trouble | None, kind: str, now_s: float) -> Trouble:
        """The trouble after one more failure."""
        if before is None:
            return cls(kind=kind, failures=1, total=1, since_s=now_s, last_s=now_s)
        return msgspec.structs.replace(
            before,
            kind=kind,
            failures=before.failures + 1,
            total=before.total + 1,
            last_s=now_s,
            said_s=before.said_s if before.kind == kind else -math.inf,
        )

    def eased(self) -> Trouble:
        """The trouble after a read that succeeded."""
        return msgspec.structs.replace(self, failures=0)

    def is_over(self, now_s: float) -> bool:
        return now_s - self.last_s >= QUIET_S

    def is_to_be_said(self, now_s: float) -> bool:
        return now_s - self.said_s >= REMIND_S

    def said(self, now_s: float) -> Trouble:
        return msgspec.structs.replace(self, said_s=now_s)
