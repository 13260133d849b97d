"""What systemd wants to know of a service of `Type=notify`: that it is ready, that it lives, that it stops.

The protocol is one datagram of `NAME=value` lines to the socket that the environment names (sd_notify(3)). Without a
service manager nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_USEC: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"
VARIABLES: Final = (SOCKET, WATCHDOG_USEC, WATCHDOG_PID)
"""Not for worker processes and children: what one of them said would be taken for the host's word."""


PATIENCE_S: Final = 1.0
"""A manager's queue may be full for a moment: the kernel keeps ten datagrams."""


class ServiceManager:
    """May be used by any thread."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get(SOCKET, "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        is_ours = environ.get(WATCHDOG_PID, str(os.getpid())) == str(os.getpid())
        usec = environ.get(WATCHDOG_USEC, "")
        self.alive_interval_s: float | None = (
            int(usec) / 2e6 if self._address and is_ours and usec.isdigit() and int(usec) else None
        )
        """Half of the watchdog's time, as sd_watchdog_enabled(3) advises; None: nobody watches."""

    def ready(self, status: str) -> None:
        self._tell("READY=1", f"STATUS={status}")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", f"STATUS={status}")

    def _tell(self, *lines: str) -> None:
        """Who does not listen must not hold up the host for long."""
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.settimeout(PATIENCE_S)
                to.sendto("\n".join(lines).encode(), self._address)


NO_SERVICE_MANAGER: Final = ServiceManager({})
