"""A child process that exists only as a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kcl_host.errors import ChildExited, ChildTimedOut
from kcl_host.ports import Reply

Script = Callable[["ModelChild", dict[str, Any]], None]
"""Called with each action the child reads; what it does with the child is what the child does."""


class ModelChild:
    """Satisfies ports.Child. A script that returns without a status makes a child that hangs.

    `actions` are the messages read; `answers` what the host said to checkpoint requests: None or the error's name.
    """

    def __init__(self, pid: int, script: Script) -> None:
        self._pid = pid
        self._script = script
        self._receive: Callable[[bytes], Reply] | None = None
        self._done = False
        self.actions: list[dict[str, Any]] = []
        self.answers: list[str | None] = []
        self.on_idle: Callable[[ModelChild], None] = lambda child: None
        self.on_end: Callable[[ModelChild], None] = lambda child: None
        self.idle_waits: list[tuple[bool, float | None]] = []
        """(whether the host listened to its handoff, for how long it wanted to wait), per wait."""
        self.killed = False
        self.ended = False

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def names(self) -> list[str]:
        return [message["action"] for message in self.actions]

    # What a script may do

    def say(self, **message: object) -> None:
        self._hear(json.dumps(message).encode() + b"\n")

    def answer(self, action: str | None = None) -> None:
        """The status of the open action, or of another one."""
        self.say(action="status", responseFor=action or self.actions[-1]["action"])

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int | None = None) -> str | None:
        self.say(action="checkpoint", sequenceNumber=sequence_number, subSequenceNumber=sub_sequence_number)
        return self.answers[-1]

    def exit(self) -> None:
        raise ChildExited(f"child process {self.pid} ended with status 1")

    def _hear(self, data: bytes) -> None:
        assert self._receive is not None
        reply = self._receive(data)
        self._done = self._done or reply.done
        for line in reply.to_write.splitlines():
            self.answers.append(json.loads(line).get("error"))

    # The port

    def exchange(self, line: bytes, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        self._check()
        self._receive, self._done = receive, False
        self.actions.append(json.loads(line))
        self._script(self, self.actions[-1])
        self._check()
        if not self._done:
            raise ChildTimedOut(f"child process {self.pid} did not answer within {timeout_s} s")

    def idle(self, wake_fd: int | None, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        self._check()
        self._receive = receive
        self.idle_waits.append((wake_fd is not None, timeout_s))
        self.on_idle(self)

    def end(self) -> int | None:
        if not self.ended:
            self.on_end(self)
        self.ended = True
        return -9 if self.killed else 0

    def kill(self) -> None:
        self.killed = True

    def _check(self) -> None:
        assert not self.ended, "nobody talks to a child that was ended"
        if self.killed:
            raise ChildExited(f"child process {self.pid} was ended by SIGKILL")


def well_behaved(child: ModelChild, message: dict[str, Any]) -> None:
    """Checkpoints every batch and the end of the shard."""
    if message["action"] in ("processRecords", "shardEnded"):
        child.checkpoint()
    child.answer()


def never_checkpoints(child: ModelChild, message: dict[str, Any]) -> None:
    child.answer()
