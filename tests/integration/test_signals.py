"""A signal is acted upon whatever the main thread is doing, and whichever thread the kernel gives it to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import queue, signal, threading
from kcl_host.runtime.signals import watch_signals

events = queue.SimpleQueue()
watch_signals((signal.SIGTERM, signal.SIGHUP), events.put)
other = threading.Thread(target=threading.Event().wait, args=(60,), daemon=True)
other.start()
{send}
print([signal.Signals(events.get()).name for _ in range({count})], flush=True)
"""


def run(send: str, count: int) -> str:
    """With a handler on the main thread this would wait until somebody else ends it."""
    program = PROGRAM.format(send=send, count=count)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True
    ).stdout


def test_a_signal_that_another_thread_gets_wakes_the_one_that_waits() -> None:
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})"
    assert run(f"{blocked}; __import__('os').kill(__import__('os').getpid(), signal.SIGTERM)", 1) == "['SIGTERM']\n"


def test_each_signal_is_told_in_its_order() -> None:
    assert run("[signal.raise_signal(s) for s in (signal.SIGHUP, signal.SIGTERM)]", 2) == "['SIGHUP', 'SIGTERM']\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "in the process that runs the tests nothing is changed"
