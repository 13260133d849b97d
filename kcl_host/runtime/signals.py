"""Signals, told to whoever acts upon them by a thread of their own.

Python runs a handler on the main thread, between two of its steps. A signal that comes in the moment before that thread
begins to wait, or that the kernel gives to another thread, does not wake it: a host with nothing to do would overlook
that it was told to stop. The byte that the interpreter writes into the wake-up descriptor comes at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from kcl_host.runtime.threads import start_thread


def watch_signals(numbers: Iterable[signal.Signals], act: Callable[[int], None]) -> None:
    """From now on calls `act` with the number of each such signal, one after the other, on a thread that never ends.

    For the main thread, once in a process.
    """
    watched = frozenset(numbers)
    told, tell = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(tell, False)

    def watch() -> None:
        while True:
            for number in os.read(told, 64):
                if number in watched:
                    act(number)

    start_thread("signals", watch, daemon=True)
    signal.set_wakeup_fd(tell)
    for number in watched:
        signal.signal(number, lambda *_: None)  # Without a handler the interpreter would not be told.
