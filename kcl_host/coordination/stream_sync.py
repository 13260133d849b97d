"""The leader looks after the streams: a shard sync for each new one, and the leases of former ones deleted.

Where one stream is read there is a single sync, when the lead begins. Source: KCL 3.5.1 Scheduler's stream sync; spec
shard-sync 8.3 to 8.5; the rules: decisions/stream_tracking.py.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.coordination.election import Election
from kcl_host.coordination.shard_sync import ShardSync, ShardSyncFailed
from kcl_host.coordination.streams import OpenStream, Streams
from kcl_host.decisions.stream_tracking import earlier_namesakes, identify, plan_streams
from kcl_host.errors import KclHostError, StreamNotFound
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import LeaseListing
from kcl_host.model.shard import StreamIdentifier
from kcl_host.ports import Clock, LeaseTable, NewLock

_log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
"""Between two looks at the streams, as in Java."""
AGAIN_S: Final = 5.0
"""After a look that did not find out everything, or did not get everything done."""


class StreamSync:
    """State: what is tracked, guarded by `_one_at_a_time`, which is held across the requests of a look on purpose."""

    def __init__(
        self,
        streams: Streams,
        lease_table: LeaseTable,
        election: Election,
        settings: Settings,
        clock: Clock,
        on_created: Callable[[], None] = lambda: None,
        sleep: Callable[[float], object] = time.sleep,
        new_lock: NewLock = threading.Lock,
        instruments: Instruments = NOTHING,
    ) -> None:
        self._streams = streams
        self._lease_table = lease_table
        self._election = election
        self._settings = settings
        self._clock = clock
        self._on_created = on_created
        self._sleep = sleep
        self._new_lock = new_lock
        self._instruments = instruments
        self._one_at_a_time = new_lock()
        self._tracked: frozenset[StreamIdentifier] = frozenset()
        self._former: dict[StreamIdentifier, float] = {}
        self._identity: dict[StreamIdentifier, StreamIdentifier] = {}
        """What Kinesis said of each configured stream."""
        self._shard_syncs: dict[StreamIdentifier, ShardSync] = {}
        self._next_look_s = -math.inf
        self._provided = frozenset(map(StreamIdentifier.parse, settings.stream_tracking.provided))

    def __repr__(self) -> str:
        return f"<StreamSync {len(self._tracked)} tracked>"

    def tracked(self) -> list[OpenStream]:
        """The streams whose leases have to be complete."""
        return [self._streams.of(stream) for stream in sorted(self._tracked, key=str)]

    def shard_sync(self, stream: OpenStream) -> ShardSync:
        sync = self._shard_syncs.get(stream.identifier)
        if sync is None:
            sync = self._shard_syncs[stream.identifier] = ShardSync(
                stream.stream,
                self._lease_table,
                stream.identifier,
                stream.settings.initial_position,
                self._settings.shard_sync,
                sleep=self._sleep,
                new_lock=self._new_lock,
                instruments=self._instruments,
            )
        return sync

    def begin(self) -> None:
        """The first look of a new leader. Raises when there are no leases at all and none could be created, and
        MetadataConflict when the table belongs to the other kind of application."""
        listing = self._lease_table.list_leases()
        for lease in listing.leases[:1]:
            self._streams.of_lease(lease)
        has_leases = bool(listing.leases or listing.undecodable)
        with self._one_at_a_time:
            if self._streams.is_multi:
                self._look(listing, has_leases)
                return
            only = self._streams.only
            self._tracked = frozenset({only})
            if not (has_leases and self._settings.shard_sync.skip_at_start_if_leases_exist):
                self._sync(only, must_succeed=not has_leases)

    def run_once(self, *, at_once: bool = False) -> float | None:
        """A look, if this worker leads and it is time, or `at_once`; None where there is one stream only.

        `on_created` is called when leases were created, which wait for an owner.
        """
        if not self._streams.is_multi:
            return None
        if not self._election.is_leader():
            return LOOK_S
        with self._one_at_a_time:
            if at_once or self._clock.monotonic() >= self._next_look_s:
                if self._look(None, has_leases=True):
                    self._on_created()
            return max(self._next_look_s - self._clock.monotonic(), 0.0)

    def _look(self, listing: LeaseListing | None, has_leases: bool) -> int:
        """Returns how many leases were created. `listing`: of a new leader."""
        in_table = None
        if listing is not None:
            names = {lease.stream_name for lease in listing.leases}
            in_table = frozenset(StreamIdentifier.parse(name) for name in names if name is not None)
        given, missing = self._ask_kinesis()
        known = self._tracked | self._former.keys() | (in_table or frozenset())
        configured, gone = identify(given, self._identity, known)
        self._identity = {key: found for key, found in given.items() if found is not None}
        for stream in earlier_namesakes(configured, in_table or frozenset()):
            _log.warning(
                "leases of a stream that was deleted, or that another application identifies by another creation "
                "epoch; to have them deleted see formerStreamsLeasesDeletionStrategy",
                extra={"action": "earlier_stream_found", "stream": str(stream)},
            )
        if missing and not configured and not has_leases:
            raise missing[0]
        tracking = self._settings.stream_tracking
        plan = plan_streams(
            configured=configured,
            tracked=self._tracked,
            in_table=in_table,
            gone=gone,
            former=self._former,
            strategy=tracking.former_streams,
            provided=self._provided,
            wait_s=tracking.wait_before_deletion_s,
            now_s=self._clock.monotonic(),
        )
        self._tracked, self._former = plan.tracked, dict(plan.former)
        skip = has_leases and listing is not None and self._settings.shard_sync.skip_at_start_if_leases_exist
        # A new leader has not seen the syncs of the one before.
        results = {
            stream: self._sync(stream, must_succeed=False)
            for stream in (sorted(configured, key=str) if listing is not None and not skip else plan.sync)
        }
        synced = {stream: created for stream, created in results.items() if created is not None}
        self._tracked |= synced.keys()
        all_deleted = all([self._delete_leases(stream) for stream in plan.delete])
        self._instruments.streams_tracked(active=len(self._tracked), pending_deletion=len(self._former))
        self._instruments.streams_deleted(deleted=len(plan.delete), of_which_gone=len(gone & frozenset(plan.delete)))
        is_done = all_deleted and len(synced) == len(results) and None not in given.values()
        self._next_look_s = self._clock.monotonic() + (LOOK_S if is_done else AGAIN_S)
        return sum(synced.values())

    def _ask_kinesis(self) -> tuple[dict[StreamIdentifier, StreamIdentifier | None], list[StreamNotFound]]:
        """What each configured stream is now; and what Kinesis said of those that do not exist."""
        given: dict[StreamIdentifier, StreamIdentifier | None] = {}
        missing: list[StreamNotFound] = []
        for stream in self._streams.configured:
            key = StreamIdentifier(name=stream.name, account=stream.account, epoch=stream.epoch)
            given[key] = key if key.account and key.epoch else None
            if given[key] is not None:
                continue
            try:
                given[key] = self._streams.of(key).stream.describe().identifier
            except StreamNotFound as error:
                missing.append(error)
                self._say_failed("stream not found, will be asked for again", key, error)
            except KclHostError as error:
                self._say_failed("stream could not be described, will be asked for again", key, error)
        return given, missing

    def _sync(self, identifier: StreamIdentifier, *, must_succeed: bool) -> int | None:
        """How many leases were created; None when the sync failed."""
        try:
            return len(self.shard_sync(self._streams.of(identifier)).run().created)
        except ShardSyncFailed as error:
            if must_succeed:
                raise
            # The leases that are there must go on; what is missing is created by a later look, or found by the audit.
            _log.error(
                "shard sync failed",
                extra={"action": "shard_sync_failed", "stream": str(identifier), "error": str(error)},
            )
        except KclHostError as error:
            if not self._streams.is_multi:
                raise
            self._say_failed("shard sync failed", identifier, error)
        return None

    def _delete_leases(self, identifier: StreamIdentifier) -> bool:
        """Unconditional, as in Java: whoever holds one notices at its next heartbeat. What fails is made up for."""
        self._former.setdefault(identifier, -math.inf)
        deleted = 0
        try:
            for lease in self._lease_table.list_leases(identifier).leases:
                if not self._election.may_write():
                    return False
                self._lease_table.delete(lease.lease_key)
                deleted += 1
        except KclHostError as error:
            self._say_failed("leases of a former stream not deleted yet", identifier, error)
            return False
        finally:
            if deleted:
                _log.warning(
                    "leases of a former stream deleted",
                    extra={"action": "former_stream_deleted", "stream": str(identifier), "leases": deleted},
                )
        del self._former[identifier]
        self._shard_syncs.pop(identifier, None)
        return True

    def _say_failed(self, message: str, stream: StreamIdentifier, error: KclHostError) -> None:
        extra = {"action": "stream_sync_failed", "stream": str(stream), "error": str(error)}
        _log.warning(message, extra=extra)
