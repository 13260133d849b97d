"""The fleet as its tables show it, kept fresh while somebody looks.

A look costs read units (docs/status.md), so nobody looking means no look; a big fleet is looked at less often, and one
whose look takes long too. The thread that looks is no other's: requests that hang hold nothing else up.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.coordination.fleet_snapshot import FleetReader
from kcl_host.decisions.fleet_health import diagnose
from kcl_host.decisions.fleet_looks import FleetSnapshot, Looks, look
from kcl_host.decisions.fleet_report import FleetView
from kcl_host.decisions.fleet_view import view_fleet
from kcl_host.errors import KclHostError
from kcl_host.ports import Clock

_log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
LEASES_PER_S: Final = 100
"""Of 1,000 leases a look each 10 s: about five read units a second."""
SHARE: Final = 20
"""At most this part of the time is spent on looks: a twentieth."""
WANTED_S: Final = 15.0
"""So long after somebody asked the looks go on."""


class FleetWatch:
    """`latest` is for the endpoint's thread, `run` and `run_once` for the thread that looks, `stop` for any.

    `_lock` guards `_wanted_s`, `_view` and `_error`.
    """

    def __init__(
        self, reader: FleetReader, settings: Settings, clock: Clock, notes: Callable[[], Mapping[str, str]]
    ) -> None:
        """`notes` says of leases, by key, what the tables do not tell."""
        self._reader = reader
        self._settings = settings
        self._clock = clock
        self._notes = notes
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._wanted_s = -math.inf
        self._view: FleetView | None = None
        self._error: str | None = None
        self._looks: Looks | None = None
        self._snapshot: FleetSnapshot | None = None

    def latest(self) -> tuple[FleetView | None, str | None]:
        """The last look that found something, and why the last one did not. Asks for further looks."""
        with self._lock:
            was_wanted = self._is_wanted()
            self._wanted_s = self._clock.monotonic()
            latest = self._view, self._error
        if not was_wanted:
            self._wake.set()
        return latest

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            pause_s = self.run_once()
            if not self._stopped:
                self._wake.wait(pause_s)

    def run_once(self) -> float | None:
        """A look, if one is wanted; the seconds until the next one, None: when somebody asks."""
        with self._lock:
            if not self._is_wanted():
                return None
        began_s = self._clock.monotonic()
        try:
            view, error = self._look(), None
        except KclHostError as failed:
            view, error = None, str(failed)
        except Exception:
            _log.exception("a look at the fleet failed", extra={"action": "fleet_look_failed"})
            view, error = None, "a look at the fleet failed, the log says why"
        with self._lock:
            self._view, self._error = view or self._view, error
        took_s = self._clock.monotonic() - began_s
        leases = len(view.leases) if view else 0
        return max(EVERY_S, leases / LEASES_PER_S, SHARE * took_s)

    def _is_wanted(self) -> bool:
        return self._clock.monotonic() - self._wanted_s < WANTED_S

    def _look(self) -> FleetView:
        """Raises the first error when nothing at all could be read."""
        snapshot, before = self._reader.take(), self._snapshot
        if before is not None and snapshot.has_failed("leases"):
            snapshot = msgspec.structs.replace(snapshot, listing=before.listing)
        self._looks, self._snapshot = look(self._looks, snapshot), snapshot
        view = view_fleet(snapshot, self._looks, self._settings, self._notes())
        return diagnose(view, snapshot, self._settings)
