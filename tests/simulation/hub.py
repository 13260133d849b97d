"""Simulated time and the tasks that live in it: many worker processes on one thread of this one.

A task is a greenlet that belongs to a process. It runs until it waits: for an event, a lock, a mailbox, or for time to
pass inside a request. Then the next one that is due runs, in an order that depends on nothing but the schedule, so a
seed replays exactly. `ProcessThreads` makes it look like threads to the code of the worker (ports.Threads).

A process that is killed is never given another turn; one that is stopped (SIGSTOP) gets its turns when it goes on.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import greenlet

from tests.fakes.clock import FakeClock

LEAST_S = 1e-6
"""No wait is shorter: less would be lost in the rounding of the clock, and time would stand still."""
SPINNING = 100_000
"""So many turns within one simulated second mean that something never waits."""
POOL = 5
"""Threads of a process that serve `for_each`."""


class Process:
    """What is killed, stopped and continued together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until_s = -math.inf
        self.is_slow = False
        """Its requests may take time now."""

    def __repr__(self) -> str:
        return f"<Process {self.name}{'' if self.alive else ' dead'}>"


class Task(greenlet.greenlet):
    """One thread of a process."""

    def __init__(self, hub: Hub, process: Process, name: str, body: Callable[[], None]) -> None:
        super().__init__(self._run)
        self.hub = hub
        self.process = process
        self.name = name
        self.done = False
        self.waits = 0
        """Counts waits, so that a timer of an earlier one is known to be stale."""
        self.woken = False
        self.led_when_asked = False
        """Whether its worker led when this task sent its last request to assign a lease; for the observer."""
        self._body = body
        self._joiners: list[Task] = []

    def __repr__(self) -> str:
        return f"<Task {self.process.name}/{self.name}>"

    def _run(self) -> None:
        try:
            self._body()
        except Exception as error:
            self.hub.failures.append((self, error))
        self.done = True
        for joiner in self._joiners:
            self.hub.wake(joiner)

    # ports.Thread

    def join(self, timeout: float | None = None) -> None:
        if not self.done:
            task = self.hub.current
            self._joiners.append(task)
            if not self.hub.wait(timeout):
                self._joiners.remove(task)

    def is_alive(self) -> bool:
        return not self.done


class Hub:
    """The clock and the order of turns. Only `run` passes time."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_s = start_s
        self.failures: list[tuple[Task, Exception]] = []
        """Exceptions that ended a task: bugs."""
        self.turns = 0
        self._second_s, self._turns_then = start_s, 0
        self._heap: list[tuple[float, int, Task | Callable[[], None], int]] = []
        self._numbers = itertools.count()
        self._graveyard: list[Task] = []
        """Tasks of killed processes; they must not be collected, which would run their `finally` blocks."""
        self._main = greenlet.getcurrent()

    @property
    def current(self) -> Task:
        task = greenlet.getcurrent()
        assert isinstance(task, Task), "only a task can wait"
        return task

    @property
    def current_process(self) -> Process | None:
        task = greenlet.getcurrent()
        return task.process if isinstance(task, Task) else None

    # Tasks

    def start(self, process: Process, name: str, body: Callable[[], None]) -> Task:
        task = Task(self, process, name, body)
        task.parent = self._main
        self._push(self.now_s, task, 0)
        return task

    def wait(self, timeout_s: float | None = None) -> bool:
        """Gives up the turn; True when it was `wake` that gave it back, False when the time was over."""
        task = self.current
        task.woken = False
        if timeout_s is not None and timeout_s != math.inf:
            self._push(self.now_s + max(LEAST_S, timeout_s), task, task.waits)
        self._main.switch()
        return task.woken

    def sleep(self, seconds: float) -> None:
        """Time passes inside the current task, and nothing wakes it before."""
        until_s = self.now_s + seconds
        while (rest_s := until_s - self.now_s) > 0:
            self.wait(rest_s)

    def wake(self, task: Task) -> None:
        if not task.woken and not task.done:
            task.woken = True
            self._push(self.now_s, task, task.waits)

    # Time

    def at(self, at_s: float, act: Callable[[], None]) -> None:
        """Calls `act` outside every task, which must not wait."""
        self._push(max(at_s, self.now_s), act, 0)

    def run(self, until_s: float) -> None:
        """Gives turns until the clock stands at `until_s`, or a task has failed."""
        heap = self._heap
        while heap and heap[0][0] <= until_s and not self.failures:
            at_s, number, task, waits = heapq.heappop(heap)
            self.now_s = max(self.now_s, at_s)
            if not isinstance(task, Task):
                task()
                continue
            if task.done or waits != task.waits:
                continue
            process = task.process
            if not process.alive:
                self._graveyard.append(task)
                continue
            if process.paused_until_s > self.now_s:
                heapq.heappush(heap, (process.paused_until_s, number, task, waits))
                continue
            task.waits += 1
            self.turns += 1
            if self.now_s >= self._second_s + 1:
                self._second_s, self._turns_then = self.now_s, self.turns
            elif self.turns - self._turns_then > SPINNING:
                self.failures.append((task, RuntimeError(f"{SPINNING} turns within a second")))
            task.switch()
        self.now_s = max(self.now_s, until_s) if not self.failures else self.now_s

    def _push(self, at_s: float, what: Task | Callable[[], None], waits: int) -> None:
        heapq.heappush(self._heap, (at_s, next(self._numbers), what, waits))


class HubClock(FakeClock):
    """The true time, of the tables and the stream. Time that a request takes passes for its task alone."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._wall_offset_s = 1_800_000_000.0 - hub.now_s

    def monotonic(self) -> float:
        return self._hub.now_s

    def wall(self) -> float:
        return self._hub.now_s + self._wall_offset_s

    def advance(self, seconds: float) -> None:
        if seconds > 0:
            self._hub.sleep(seconds)


class ProcessClock:
    """ports.Clock of one process: its monotonic clock starts anywhere, its wall clock may be wrong."""

    def __init__(self, hub: Hub, since_s: float, wall_offset_s: float = 1_800_000_000.0 - 1000.0) -> None:
        self._hub = hub
        self._since_s = since_s
        self._wall_offset_s = wall_offset_s
        self.wall_skew_s = 0.0

    def monotonic(self) -> float:
        return self._hub.now_s - self._since_s

    def wall(self) -> float:
        return self._hub.now_s + self._wall_offset_s + self.wall_skew_s


class SimEvent:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._set = False
        self._waiters: list[Task] = []

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            self._hub.wake(task)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            task = self._hub.current
            self._waiters.append(task)
            if not self._hub.wait(timeout):
                self._waiters.remove(task)
        return self._set


class SimLock:
    """Handed from holder to holder in the order of their coming."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._held = False
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._held:
            self._held = True
            return True
        if not blocking or timeout == 0:
            return False
        task = self._hub.current
        self._waiters.append(task)
        if self._hub.wait(None if timeout < 0 else timeout):
            return True
        self._waiters.remove(task)
        return False

    def release(self) -> None:
        assert self._held, "released, but not held"
        if self._waiters:
            self._hub.wake(self._waiters.popleft())
        else:
            self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimMailbox:
    def __init__(self, hub: Hub) -> None:
        self._items: deque[Any] = deque()
        self._hub = hub
        self._reader: Task | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._hub.wake(self._reader)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            self._reader = self._hub.current
            self._hub.wait(timeout)
            self._reader = None
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class SimSignal:
    """ports.Signal whose descriptor is only a number; who polls it asks `ProcessThreads.signals`."""

    def __init__(self, threads: ProcessThreads, fd: int) -> None:
        self.fd = fd
        self.is_set = False
        self.poller: Task | None = None
        self._threads = threads

    def set(self) -> None:
        self.is_set = True
        if self.poller is not None:
            self._threads.hub.wake(self.poller)

    def clear(self) -> None:
        self.is_set = False

    def close(self) -> None:
        del self._threads.signals[self.fd]


class ProcessThreads:
    """ports.Threads of one process."""

    def __init__(self, hub: Hub, process: Process) -> None:
        self.hub = hub
        self.process = process
        self.signals: dict[int, SimSignal] = {}
        self._fds = itertools.count(1)

    def start(self, name: str, body: Callable[[], None], *, daemon: bool = False) -> Task:
        return self.hub.start(self.process, name, body)

    def lock(self) -> SimLock:
        return SimLock(self.hub)

    def event(self) -> SimEvent:
        return SimEvent(self.hub)

    def signal(self) -> SimSignal:
        signal = SimSignal(self, next(self._fds))
        self.signals[signal.fd] = signal
        return signal

    def mailbox(self) -> SimMailbox:
        return SimMailbox(self.hub)

    def for_each(self, act: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Several at once while requests take time; else one after the other, which is the same and faster."""
        items = list(items)
        if len(items) < 2 or not self.process.is_slow:
            for item in items:
                act(item)
            return
        rest = iter(items)

        def work() -> None:
            for item in rest:
                act(item)

        for task in [self.start("for-each", work) for _ in range(min(POOL, len(items)))]:
            task.join()

    def close(self) -> None:
        pass
