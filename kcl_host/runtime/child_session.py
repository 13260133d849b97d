"""One child process and the dialogue with it: actions go out, events come back and are acted upon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kcl_host.errors import ChildError
from kcl_host.log import bind
from kcl_host.model.records import Record
from kcl_host.model.sequence import ExtendedSequenceNumber, PreparedCheckpoint
from kcl_host.multilang.dialogue import ActionDone, CheckpointRequested, Dialogue, Event, Noise
from kcl_host.ports import Child, Reply

NOISE_LINES_LOGGED = 20
"""Of the lines on stdout that are no messages, so many are logged per action; the rest is counted."""


class ChildSession:
    """`checkpoint` answers a request with the name of an error or None; it may take as long as the table does.

    With the extension prepareCheckpoint the request may be one to prepare only (PrepareCheckpointRequested).

    A session that has failed raises the same ChildError for everything that follows, but `end` and `kill`.
    """

    def __init__(
        self,
        child: Child,
        dialogue: Dialogue,
        checkpoint: Callable[[CheckpointRequested], str | None],
        timeout_s: float | None,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._child = child
        self._dialogue = dialogue
        self._checkpoint = checkpoint
        self._timeout_s = timeout_s
        self._log = bind(log, child_pid=child.pid)
        self._noise_lines = 0
        self._failure: ChildError | None = None

    def __repr__(self) -> str:
        return f"<ChildSession {self.pid} {'failed' if self._failure else self._dialogue.state}>"

    @property
    def pid(self) -> int:
        return self._child.pid

    def initialize(
        self, shard_id: str, checkpoint: ExtendedSequenceNumber, prepared: PreparedCheckpoint | None = None
    ) -> None:
        self._perform(lambda: self._dialogue.initialize(shard_id, checkpoint, prepared))

    def process_records(self, records: list[Record], millis_behind_latest: int | None) -> None:
        self._perform(lambda: self._dialogue.process_records(records, millis_behind_latest))

    def shutdown_requested(self) -> None:
        self._perform(self._dialogue.shutdown_requested)

    def shard_ended(self) -> None:
        self._perform(self._dialogue.shard_ended)

    def lease_lost(self) -> None:
        self._perform(self._dialogue.lease_lost)

    def idle(self, wake_fd: int | None, timeout_s: float | None) -> None:
        """Waits for the host's next move while the child is served; raises ChildExited as soon as it ends."""
        with self._remembering_failure():
            self._child.idle(wake_fd, self._receive, timeout_s)

    def end(self) -> int | None:
        """Ends the process in order; see ports.Child.end. What it still writes is not read: no checkpoint is made."""
        return self._child.end()

    def kill(self) -> None:
        """May be called by any thread."""
        self._child.kill()

    def _perform(self, open_action: Callable[[], bytes]) -> None:
        with self._remembering_failure():
            self._child.exchange(open_action(), self._receive, self._timeout_s)
        skipped, self._noise_lines = self._noise_lines - NOISE_LINES_LOGGED, 0
        if skipped > 0:
            self._log.info(
                "more lines on the child's stdout were skipped", extra={"action": "child_noise", "lines": skipped}
            )

    @contextmanager
    def _remembering_failure(self) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except ChildError as error:
            self._failure = error
            raise

    def _receive(self, data: bytes) -> Reply:
        to_write, done, progressed = bytearray(), False, False
        for event in self._dialogue.receive(data):
            answer, ended = self._act_on(event)
            to_write += answer
            done = done or ended
            progressed = progressed or not isinstance(event, Noise)
        return Reply(to_write=bytes(to_write), done=done, progressed=progressed)

    def _act_on(self, event: Event) -> tuple[bytes, bool]:
        if isinstance(event, CheckpointRequested):
            return self._dialogue.answer_checkpoint(event, self._checkpoint(event)), False
        if isinstance(event, ActionDone):
            return b"", True
        self._noise_lines += 1
        if self._noise_lines <= NOISE_LINES_LOGGED:
            self._log.info("skipped a line on the child's stdout", extra={"action": "child_noise", "line": event.line})
        return b"", False
