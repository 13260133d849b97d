"""What the shard consumers of a worker share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kcl_host.config.settings import Settings
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.lease_cleanup import LeaseCleanup
from kcl_host.coordination.shard_end import ShardEnd
from kcl_host.multilang.dialogue import CheckpointRequested
from kcl_host.ports import Clock, LeaseTable
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.polling import PollingSource
from kcl_host.runtime.child_session import ChildSession
from kcl_host.runtime.threads import Periodic

OnFatal = Callable[[str, BaseException], None]


class Turns(Protocol):
    """Whoever gives a record source its turns."""

    def poke(self) -> None: ...

    def stop(self) -> None: ...


def start_source_thread(name: str, run_once: Callable[[], float | None], on_fatal: OnFatal) -> Turns:
    """A thread of its own, for which the process does not wait: a read may take half a minute and changes nothing."""
    return Periodic(name, run_once, on_fatal=on_fatal, daemon=True).start()


@dataclass(frozen=True, kw_only=True)
class ConsumerServices:
    settings: Settings
    lease_table: LeaseTable
    held_leases: HeldLeases
    shard_end: ShardEnd
    lease_cleanup: LeaseCleanup
    clock: Clock
    rng: random.Random
    new_source: Callable[[HeldLease, Handoff], PollingSource]
    start_session: Callable[[HeldLease, Callable[[CheckpointRequested], str | None]], ChildSession]
    """Starts a child and the dialogue with it; the second argument answers its checkpoint requests."""
    on_fatal: OnFatal
    """A bug, or a child's failure under childFailurePolicy = exit: the worker has to stop."""
    on_shard_end: Callable[[HeldLease], None]
    """The row says SHARD_END: the children of the shard may start."""
    start_source: Callable[[str, Callable[[], float | None], OnFatal], Turns] = start_source_thread
