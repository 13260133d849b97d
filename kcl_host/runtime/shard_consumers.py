"""The shard consumers of a worker, each with its thread, from the lease that was found to the end of its child.

Belongs to the main thread. What happens elsewhere arrives as events on the one queue that the worker has.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Literal

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.coordination.held_leases import HeldLease
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.errors import DrainDeadlineExceeded, KclHostError
from kcl_host.ports import Mailbox, Thread
from kcl_host.runtime.consumer_services import ConsumerServices
from kcl_host.runtime.consumer_status import ConsumerStatus
from kcl_host.runtime.shard_consumer import ShardConsumer


class Event(msgspec.Struct, frozen=True):
    """Something the main thread has to act upon."""

    kind: Literal[
        "stop", "stop_now", "reread", "alive", "fatal", "found", "lost", "handover", "shard_ended", "finished"
    ]
    held: HeldLease | None = None
    where: str = ""
    error: BaseException | None = None


class StoppedAtOnce(KclHostError):
    """A second signal ended the host before its children had finished."""


class ShardConsumers:
    """By the token of the held lease: one that is lost and found again gets another consumer.

    `on_lost_all` is called when no lease is left, `on_shard_end` when child shards may be waiting for an owner.
    """

    def __init__(
        self,
        settings: Settings,
        services: ConsumerServices,
        events: Mailbox[Event],
        on_lost_all: Callable[[], None],
        on_shard_end: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._services = services
        self._events = events
        self._on_lost_all = on_lost_all
        self._on_shard_end = on_shard_end
        self._consumers: dict[str, ShardConsumer] = {}
        self._threads: dict[str, Thread] = {}

    def __repr__(self) -> str:
        return f"<ShardConsumers {len(self._consumers)}, {len(self._threads)} running>"

    @property
    def are_running(self) -> bool:
        return bool(self._threads)

    def statuses(self) -> tuple[ConsumerStatus, ...]:
        """By lease key; may be called by any thread."""
        return tuple(sorted((c.status() for c in list(self._consumers.values())), key=lambda s: s.lease_key))

    def queues(self) -> dict[str, str]:
        """What waits between the source and the child of each consumer, by lease key; may be called by any thread."""
        return {consumer.held.lease_key: repr(consumer.handoff) for consumer in list(self._consumers.values())}

    def warn_if_slow(self) -> None:
        """May be called by any thread."""
        for consumer in list(self._consumers.values()):
            consumer.warn_if_slow()

    def stop(self, reason: ShutdownReason) -> None:
        for consumer in self._consumers.values():
            consumer.stop(reason)

    def serve(self, event: Event) -> None:
        """Raises MetadataConflict when a lease is not of this application's kind."""
        held = event.held
        assert held is not None
        if event.kind == "found":
            if not self._services.held_leases.is_held(held):
                return  # Lost before we got here, and that event may have come first.
            consumer = self._consumers[held.token] = ShardConsumer(held, self._services)
            self._threads[held.token] = self._services.threads.start(
                f"shard-{held.lease_key}", lambda: self._consume(consumer)
            )
            return
        consumer_of = self._consumers.get(held.token)
        if event.kind == "finished":
            self._threads.pop(held.token)
            # A shard that has ended keeps its lease, and its line in the status, until the row is cleaned up.
            if not self._services.held_leases.is_held(held):
                self._consumers.pop(held.token, None)
        elif event.kind == "lost" and consumer_of is not None:
            consumer_of.stop(ShutdownReason.LEASE_LOST)
            if held.token not in self._threads:
                self._consumers.pop(held.token)
            if not self._services.held_leases.all():
                self._on_lost_all()
        elif event.kind == "handover" and consumer_of is not None:
            consumer_of.stop(ShutdownReason.REQUESTED)
        elif event.kind == "shard_ended":
            self._on_shard_end()
            for consumer in self._consumers.values():
                consumer.poke()

    def _consume(self, consumer: ShardConsumer) -> None:
        try:
            consumer.run()
        finally:
            self._events.put(Event("finished", consumer.held))

    def finish_now(self) -> DrainDeadlineExceeded:
        """The deadline of the stop has passed: ends what is left, and says what that costs."""
        within = f"within shutdownGraceMillis = {self._settings.coordinator.shutdown_grace_s * 1000:.0f}"
        killed = [token for token in self._threads if self._consumers[token].finish_now()]
        child = self._settings.child
        self.await_end(self._services.clock.monotonic() + child.term_deadline_s + child.close_deadline_s)
        if killed:
            return DrainDeadlineExceeded(
                f"children were killed because they did not finish {within}; nothing is lost, what they did not "
                "checkpoint will be delivered again"
            )
        return DrainDeadlineExceeded(
            f"leases could not be handed over {within}, because the lease table did not answer; nothing is lost, other "
            "workers take them when they have expired"
        )

    def await_end(self, deadline_s: float) -> bool:
        """False when some are running still at the deadline (monotonic seconds).

        Raises StoppedAtOnce when a stop is requested once more.
        """
        while self._threads:
            remaining_s = deadline_s - self._services.clock.monotonic()
            if remaining_s <= 0:
                return False
            try:
                event = self._events.get(timeout=remaining_s)
            except queue.Empty:
                continue
            if event.kind in ("stop", "stop_now"):
                for token in self._threads:
                    self._consumers[token].kill_child()
                raise StoppedAtOnce
            if event.kind in ("finished", "lost"):
                self.serve(event)
        return True
