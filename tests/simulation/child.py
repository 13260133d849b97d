"""Record processors of the simulated fleet: what they do with actions, and how they fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from kcl_host.errors import ChildExited, ChildTimedOut
from kcl_host.ports import Reply

if TYPE_CHECKING:
    from tests.simulation.fleet import Worker

_decode = msgspec.json.decode


class Habits(msgspec.Struct):
    """How the children of a worker, or of a shard, behave until told otherwise; `until_s` ends each of them."""

    processing_s: float = 0.0
    """Time that each action takes."""
    checkpoints: bool = True
    """After every batch. The end of a shard is always checkpointed."""
    crashes_at: str = ""
    """Name of the action at which it exits."""
    hangs_at: str = ""
    until_s: float = math.inf

    @classmethod
    def good(cls) -> Habits:
        return cls()


class SimChild:
    """Satisfies ports.Child. One incarnation for one shard."""

    def __init__(self, worker: Worker, shard_id: str, pid: int) -> None:
        self.worker = worker
        self.shard_id = shard_id
        self.pid = pid
        self.alive = True
        self.killed = False
        self.next_record: int | None = None
        """Index in its shard of the record that must come next; None before `initialize`."""
        self.first_delivery_s: float | None = None
        self.initialized_s = math.inf
        self.last_processing_s = 0.0
        self._hub = worker.hub
        self._observer = worker.fleet.observer
        self._poller: Any = None
        self._delivered: list[int] = []
        """The last two records."""

    def __repr__(self) -> str:
        return f"<SimChild {self.pid} of {self.shard_id} on {self.worker.name}>"

    # ports.Child

    def exchange(self, line: bytes, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        self._check()
        message = _decode(line)
        action = message["action"]
        habits = self.worker.fleet.habits_of(self)
        if action == "processRecords":
            self.last_processing_s = habits.processing_s
            numbers = [int(r["sequenceNumber"]) for r in message["records"]]
            self._delivered = (self._delivered + numbers)[-2:]
            self._observer.delivered(self, numbers)
        elif action == "initialize":
            self._observer.initialized(self, message["sequenceNumber"])
        if habits.crashes_at == action:
            self.worker.fleet.count("child crashes")
            self._exit()
        if habits.hangs_at == action:
            self.worker.fleet.count("child hangs")
            self._sleep(timeout_s if timeout_s is not None else math.inf)
            raise ChildTimedOut(f"child process {self.pid} did not answer within {timeout_s} s")
        if habits.processing_s:
            self.worker.fleet.count("child is slow")
            self._sleep(habits.processing_s)
        if action == "shardEnded" or (action in ("processRecords", "shutdownRequested") and habits.checkpoints):
            self._checkpoint(receive)
        reply = receive(b'{"action":"status","responseFor":"%s"}\n' % action.encode())
        assert reply.done
        self._check()

    def _checkpoint(self, receive: Callable[[bytes], Reply]) -> None:
        reply = receive(b'{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null}\n')
        error = _decode(reply.to_write)["error"]
        self._observer.checkpoint_answered(self, error)
        if error is not None and len(self._delivered) > 1 and self.pid % 2:
            # It does not know what became of that; every other child asks for an earlier record then.
            self.worker.fleet.count("child checkpoints before a failed checkpoint")
            earlier = b'{"action":"checkpoint","sequenceNumber":"%d","subSequenceNumber":0}\n' % self._delivered[-2]
            self._observer.checkpoint_answered(self, _decode(receive(earlier).to_write)["error"])

    def idle(self, wake_fd: int | None, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        self._check()
        signal = None if wake_fd is None else self.worker.threads.signals[wake_fd]
        if signal is not None and signal.is_set:
            return
        self._poller = self._hub.current
        if signal is not None:
            signal.poller = self._poller
        self._hub.wait(timeout_s)
        self._poller = None
        if signal is not None:
            signal.poller = None
        self._check()

    def end(self) -> int | None:
        self.alive = False
        self._observer.ended(self)
        return -9 if self.killed else 0

    def kill(self) -> None:
        self.killed = True
        self.die()

    def die(self) -> None:
        """From outside: its process has gone."""
        self.alive = False
        if self._poller is not None:
            self._hub.wake(self._poller)

    def _sleep(self, seconds: float) -> None:
        """Ends early when the child is killed."""
        until_s = self._hub.now_s + seconds
        self._poller = self._hub.current
        while self.alive and self._hub.now_s < until_s:
            self._hub.wait(until_s - self._hub.now_s)
        self._poller = None
        self._check()

    def _exit(self) -> None:
        self.alive = False
        self._check()

    def _check(self) -> None:
        if not self.alive:
            raise ChildExited(f"child process {self.pid} has ended")
