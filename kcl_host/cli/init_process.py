"""What process 1 of a container has to do: pass signals on, and reap whoever is left behind.

The kernel gives process 1 every orphan of its namespace, and ignores signals that it has no handler for. A record
processor that starts programs of its own, and is killed, would leave zombies that nobody ever waits for. So process 1
does only these two things, and the host runs as its child.
"""

from __future__ import annotations

import os
import signal
from typing import Final

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WATCHED: Final = (*PASSED_ON, signal.SIGCHLD)


def fork_from_init() -> int | None:
    """Forks. None in the child, which goes on as the host; in the parent, later, the exit code of the child.

    For the main thread, before any other is started. The child has a process group of its own: a Ctrl-C of the
    terminal comes to it once, through the parent.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    host = os.fork()
    if host:
        return _attend(host)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None


def _attend(host: int) -> int:
    """Until the host has ended; what it leaves behind is ended by the kernel together with process 1."""
    while True:
        number = signal.sigwait(_WATCHED)
        if number != signal.SIGCHLD:
            os.kill(host, number)  # Not reaped yet, so nobody else has its number.
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)) is not None:
            if ended.si_pid == host:
                return ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
