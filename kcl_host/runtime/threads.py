"""The only place that waits: a thread that gives an object its turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kcl_host.errors import KclHostError

_log = logging.getLogger(__name__)


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
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=daemon)

    def __repr__(self) -> str:
        return f"<Periodic {self._name}>"

    def start(self) -> Periodic:
        self._thread.start()
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
        if self._thread.ident is not None and self._thread is not threading.current_thread():
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


class ConsumerThread:
    """The thread of one shard consumer; `on_end` is called as its last act."""

    def __init__(self, name: str, run: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._run = run
        self._on_end = on_end
        self._thread = threading.Thread(target=self._body, name=name)

    def start(self) -> ConsumerThread:
        self._thread.start()
        return self

    def _body(self) -> None:
        try:
            self._run()
        finally:
            self._on_end()
