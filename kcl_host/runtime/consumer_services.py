"""What the shard consumers of a worker share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kcl_host.config.settings import Settings
from kcl_host.coordination.departure import Departure
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.lease_cleanup import LeaseCleanup
from kcl_host.coordination.shard_end import ShardEnd
from kcl_host.instruments import NOTHING, Instruments, ShardInstruments
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.multilang.dialogue import CheckpointRequested
from kcl_host.ports import Clock, DeadLetters, LeaseTable, Threads
from kcl_host.retrieval.handoff import Handoff
from kcl_host.runtime.child_session import ChildSession

OnFatal = Callable[[str, BaseException], None]


class RecordSource(Protocol):
    """Reads one shard into its handoff: PollingSource, FanoutSource."""

    def open(self, checkpoint: ExtendedSequenceNumber) -> None: ...

    def reopen(self, checkpoint: ExtendedSequenceNumber) -> None: ...

    def run_once(self) -> float | None: ...


class Turns(Protocol):
    """Whoever gives a record source its turns."""

    def poke(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ConsumerServices:
    settings: Settings
    lease_table: LeaseTable
    held_leases: HeldLeases
    departure: Departure
    shard_end: ShardEnd
    lease_cleanup: LeaseCleanup
    clock: Clock
    rng: random.Random
    threads: Threads
    new_source: Callable[[HeldLease, Handoff, ShardInstruments], RecordSource]
    start_source: Callable[[str, Callable[[], float | None]], Turns]
    start_session: Callable[[HeldLease, Callable[[CheckpointRequested], str | None]], ChildSession]
    """Starts a child and the dialogue with it; the second argument answers its checkpoint requests."""
    on_fatal: OnFatal
    """A bug, or a child's failure under childFailurePolicy = exit: the worker has to stop."""
    on_shard_end: Callable[[HeldLease], None]
    """The row says SHARD_END: the children of the shard may start."""
    instruments: Instruments = NOTHING
    dead_letters: DeadLetters | None = None
    """Where poison records go; None: nowhere, such a record blocks its shard."""
    last_stderr: Callable[[str], tuple[str, ...]] = lambda lease_key: ()
    """The last lines that the child of this lease has written, the one before while there is none."""
