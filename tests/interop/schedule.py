"""Stories told at once, since they mostly wait: in the order of the tests, as far as Java workers have room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

AT_ONCE = 2
"""Stories; and so many Java workers. A story that needs more of them runs alone."""


class Room:
    """For so many Java workers at a time. Its lock guards `_taken`, the places that are in use."""

    def __init__(self, places: int) -> None:
        self._places, self._taken = places, 0
        self._changed = threading.Condition()

    def take(self, places: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._taken == 0 or self._taken + places <= self._places)
            self._taken += places

    def leave(self, places: int) -> None:
        with self._changed:
            self._taken -= places
            self._changed.notify_all()


class Story:
    """One that is being told, or will be; `seconds` is how long it took, once `result` has returned or raised."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._future = Future[None]()

    def result(self) -> None:
        """Waits for its end; raises what it raised."""
        self._future.result()

    def tell(self, tell: Callable[[], object]) -> None:
        began_s = time.monotonic()
        try:
            tell()
        except BaseException as error:
            self.seconds = time.monotonic() - began_s
            self._future.set_exception(error)
        else:
            self.seconds = time.monotonic() - began_s
            self._future.set_result(None)


class Schedule:
    """Tells each story that is given to `add`, by itself; `cancel` at the end."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._room = Room(AT_ONCE)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="story")

    def add(self, java_workers: int, tell: Callable[[], object]) -> Story:
        story = Story()

        def in_turn() -> None:
            self._room.take(java_workers)
            try:
                if not self.cancelled.is_set():
                    story.tell(tell)
            finally:
                self._room.leave(java_workers)

        self._pool.submit(in_turn)
        return story

    def cancel(self) -> None:
        """Waits for the stories that are being told; they end at their next look at `cancelled`."""
        self.cancelled.set()
        self._pool.shutdown(cancel_futures=True)
