"""The only place that starts threads and waits for them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kcl_host.errors import KclHostError
from kcl_host.ports import Event, Item, Lock, Mailbox, Signal, Thread, Threads
from kcl_host.retrieval.handoff import EventFd

_log = logging.getLogger(__name__)


def start_thread(name: str, body: Callable[[], None], *, daemon: bool = False) -> Thread:
    """Runs `body` beside the caller. The process does not wait for a daemon when it ends."""
    thread = threading.Thread(target=body, name=name, daemon=daemon)
    thread.start()
    return thread


class SystemThreads:
    """Threads of the operating system; `pool_size` of them serve `for_each`."""

    def __init__(self, pool_size: int) -> None:
        self._pool = ThreadPoolExecutor(pool_size, "for-each")

    def start(self, name: str, body: Callable[[], None], *, daemon: bool = False) -> Thread:
        return start_thread(name, body, daemon=daemon)

    def lock(self) -> Lock:
        return threading.Lock()

    def event(self) -> Event:
        return threading.Event()

    def signal(self) -> Signal:
        return EventFd()

    def mailbox(self) -> Mailbox[Any]:
        return queue.SimpleQueue()

    def for_each(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        items = list(items)
        if len(items) == 1:
            act(items[0])  # To hand it over would take as long as many an act.
            return
        for _ in self._pool.map(act, items):
            pass

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Periodic:
    """Calls `run_once` again and again; it returns the seconds until its next turn, None when it is done.

    An error that may pass is logged and the turn repeated after `retry_s`; any other one goes to `on_fatal`, once.
    The first turn comes after `first_in_s`. `daemon` is for turns that only read: the process does not wait for one
    under way when it ends.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], float | None],
        *,
        threads: Threads,
        on_fatal: Callable[[str, BaseException], None],
        retry_s: float = 1.0,
        fatal: tuple[type[Exception], ...] = (),
        first_in_s: float = 0.0,
        daemon: bool = False,
    ) -> None:
        self._name = name
        self._run_once = run_once
        self._on_fatal = on_fatal
        self._retry_s = retry_s
        self._first_in_s = first_in_s
        self._fatal = fatal
        self._threads = threads
        self._daemon = daemon
        self._wake = threads.event()
        self._stopped = False
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<Periodic {self._name}>"

    def start(self) -> Periodic:
        self._thread = self._threads.start(self._name, self._loop, daemon=self._daemon)
        return self

    def poke(self) -> None:
        """The next turn comes now."""
        self._wake.set()

    def stop(self) -> None:
        """No further turn; the one under way ends by itself."""
        self._stopped = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """True when the thread has ended within the time, or was never started."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        if self._first_in_s:
            self._wake.wait(self._first_in_s)
        while not self._stopped:
            self._wake.clear()
            try:
                pause_s = self._run_once()
            except self._fatal as error:
                self._on_fatal(self._name, error)
                return
            except KclHostError as error:
                _log.warning(
                    "turn failed, next one soon",
                    extra={"action": "turn_failed", "thread_of": self._name, "error": str(error)},
                )
                pause_s = self._retry_s
            except Exception as error:
                self._on_fatal(self._name, error)
                return
            if pause_s is None:
                return
            if not self._stopped:
                self._wake.wait(pause_s)
