"""Named steps between a record and its checkpoint, at which a test can have this process killed.

KCL_HOST_SPARK_FAIL_AT=step or step:n kills it with SIGKILL at the n-th time it gets there (default 1).
KCL_HOST_SPARK_FAIL_WITH=STOP stops it instead, for a test to let it go on later, when somebody else has the lease.
KCL_HOST_SPARK_FAIL_MARK=file: only if this file could be created, so only once over all restarts and shards.
"""

from __future__ import annotations

import os
import signal
from typing import Final

STEPS: Final = (
    "initialized",  # the head is known
    "received",  # a line was read
    "buffered",  # its records are in the open batch
    "spooled",  # the batch stands where Spark reads it
    "written",  # the rows stand in files that nobody sees
    "synced",  # ... and survive a power cut
    "staged",  # the manifest stands under a temporary name
    "linked",  # the manifest stands under its name: committed
    "committed",  # ... and this process knows
    "folded",  # a layout was created
    "checkpointing",  # the checkpoint is about to be asked for
    "checkpointed",  # the host has answered
)

OF_POSTGRES: Final = (
    "prepared",  # an empty staging table is there
    "written",  # the staging tables are full
    "moved",  # the position, in the transaction
    "inserted",  # the rows too
    "shown",  # the transaction is committed
    "dropped",  # the staging tables are
)
OF_DELTA: Final = (
    "written",
    "synced",
    "staged",  # the note for the other tables stands under a temporary name
    "linked",  # ... under its own
    "logged",  # the first table has its rows and the position
    "spread",  # the others have theirs
)
"""Steps of the other sinks, between `buffered` and `committed`."""

_seen: dict[str, int] = {}


def reach(step: str) -> None:
    """This step is done. Does nothing unless the environment names it."""
    wanted, _, count = os.environ.get("KCL_HOST_SPARK_FAIL_AT", "").partition(":")
    if wanted != step:
        return
    _seen[step] = _seen.get(step, 0) + 1
    if _seen[step] == int(count or 1) and _first():
        os.kill(os.getpid(), signal.SIGSTOP if os.environ.get("KCL_HOST_SPARK_FAIL_WITH") == "STOP" else signal.SIGKILL)


def _first() -> bool:
    mark = os.environ.get("KCL_HOST_SPARK_FAIL_MARK")
    if mark is None:
        return True
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
