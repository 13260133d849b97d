"""Network use of this host or container in percent of a bandwidth that the configuration names.

Source: KCL 3.5.1 LinuxNetworkWorkerMetricBase; spec coordination 3.8.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

RECEIVED: Final = 0
SENT: Final = 8
"""Columns of bytes in /proc/net/dev."""

_HEADER_LINES: Final = 2
_BYTES_PER_MB: Final = 1024 * 1024


class NetworkUse:
    """Bytes of one interface in one direction, since the read before, against `max_mb_per_s` (of 1048576 bytes)."""

    def __init__(
        self, root: Path, interface: str, column: int, max_mb_per_s: float, now_s: Callable[[], float]
    ) -> None:
        self._path = root / "proc/net/dev"
        self._interface = interface
        self._column = column
        self._max_mb_per_s = max_mb_per_s
        self._now_s = now_s
        self._before: tuple[float, int] | None = None

    def read(self) -> float:
        now = (self._now_s(), self._bytes())
        before, self._before = self._before, now
        if before is None:
            return 0.0
        mb_per_s = abs(now[1] - before[1]) / _BYTES_PER_MB / (now[0] - before[0])
        return min(100.0, mb_per_s / self._max_mb_per_s * 100)

    def _bytes(self) -> int:
        rows = [line.partition(":") for line in self._path.read_text().splitlines()[_HEADER_LINES:]]
        columns = {name.strip(): values for name, _, values in rows}
        if self._interface not in columns:
            found = ", ".join(sorted(columns))
            raise LookupError(f"no interface {self._interface}, only {found}: see workerMetricNetworkInterface")
        return int(columns[self._interface].split()[self._column])
