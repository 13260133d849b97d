"""A child under the real dialogue, whose checkpoints are recorded instead of stored."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from kcl_host.child.process import start_child
from kcl_host.config.settings import ChildSettings
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.multilang.dialogue import CheckpointRequested, Dialogue
from kcl_host.runtime.child_session import ChildSession

SHARD_ID = "shardId-000000000001"


class HostedChild:
    """`checkpoints` holds (sequence number, sub-sequence number, allowed) of each request.

    A request is answered by the next of `errors`, by success when there is none. Leaving the context kills the child.
    """

    def __init__(self, command: Sequence[str], *errors: str | None, **variables: str) -> None:
        self.checkpoints: list[tuple[str | None, int | None, bool]] = []
        self.stderr: list[str] = []
        self.errors = list(errors)
        self.child = start_child(
            command,
            env={**os.environ, **variables},
            settings=ChildSettings(command=(), term_deadline_s=1),
            on_stderr=self.stderr.append,
        )
        log = logging.LoggerAdapter(logging.getLogger(__name__), {})
        self.actions = ChildSession(self.child, Dialogue(), self._checkpoint, 20, log)

    def initialize(self) -> None:
        self.actions.initialize(SHARD_ID, AT_TRIM_HORIZON)

    def __enter__(self) -> HostedChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.end()

    def _checkpoint(self, request: CheckpointRequested) -> str | None:
        self.checkpoints.append((request.sequence_number, request.sub_sequence_number, request.allowed))
        return self.errors.pop(0) if self.errors else None
