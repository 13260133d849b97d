"""One pass of shard sync: list the shards, decide, create the missing leases (spec shard-sync 2)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.decisions.shard_sync import ShardSyncPlan, SyncError, bootstrap_filter, plan_shard_sync
from kcl_host.errors import RetryLater, StreamNotFound
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import LeaseListing
from kcl_host.model.sequence import InitialPosition
from kcl_host.model.shard import Shard, StreamIdentifier
from kcl_host.ports import LeaseTable, NewLock, Stream

_log = logging.getLogger(__name__)

MAX_BOOTSTRAP_LISTINGS: Final = 3
BOOTSTRAP_PAUSE_S: Final = 1.0
"""Between two listings of which the first did not cover the hash space: a reshard is under way."""

_ADVICE: Final[dict[SyncError, str]] = {
    "stream_not_ready": "it is neither ACTIVE nor UPDATING, waiting until it is",
    "no_shards": "it has no shards at the initial position",
    "incomplete_hash_range": "its shards do not cover the hash key space, a reshard is probably under way",
    "inconsistent_shards": "shards are listed whose parents are still open (ignoreUnexpectedChildShards skips them)",
    "degenerate_hash_range": "shards that own a single hash key cannot have a lease; merge them with a neighbour",
}


class ShardSyncFailed(RetryLater):
    """The shard sync could not be done. No lease was created; the next one starts afresh."""

    def __init__(self, stream: StreamIdentifier, plan: ShardSyncPlan) -> None:
        assert plan.error is not None
        shards = f": {', '.join(plan.shards_at_fault)}" if plan.shards_at_fault else ""
        super().__init__(f"shard sync of stream {stream} failed, {_ADVICE[plan.error]}{shards}")
        self.reason: SyncError = plan.error


class ShardSyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """`created` are the keys of the leases that this pass wrote, in order; one that had appeared meanwhile is not.

    `synced` false: the stream is gone, and nothing was done.
    """

    created: tuple[str, ...] = ()
    synced: bool = False


class ShardSync:
    """Creates the leases that a stream lacks. Any worker may do so at any time: every put is conditional.

    There is no pause after a pass: Java sleeps shardSyncIntervalMillis there, which delays a first start by a minute.
    """

    def __init__(
        self,
        stream: Stream,
        lease_table: LeaseTable,
        identifier: StreamIdentifier,
        initial: InitialPosition,
        settings: ShardSyncSettings,
        sleep: Callable[[float], object] = time.sleep,
        new_lock: NewLock = threading.Lock,
        instruments: Instruments = NOTHING,
    ) -> None:
        self._stream = stream
        self._lease_table = lease_table
        self._identifier = identifier
        self._initial = initial
        self._settings = settings
        self._sleep = sleep
        self._one_at_a_time = new_lock()
        self._instruments = instruments

    def __repr__(self) -> str:
        return f"<ShardSync {self._identifier}>"

    def run(self) -> ShardSyncResult:
        """Raises ShardSyncFailed before anything was written, and what table and stream raise.

        After an error in the middle the older leases stand, and the next pass adds the rest.
        """
        # Held across the requests on purpose: two passes at once would do the same work twice.
        with self._one_at_a_time, self._instruments.syncing_shards():
            plan = self._bootstrap() if self._lease_table.is_empty() else self._incremental()
            if plan.error is not None:
                raise ShardSyncFailed(self._identifier, plan)
            return self._apply(plan)

    def _bootstrap(self) -> ShardSyncPlan:
        for remaining in reversed(range(MAX_BOOTSTRAP_LISTINGS)):
            shards = self._stream.list_shards(bootstrap_filter(self._initial))
            plan = self._plan(shards, LeaseListing(leases=()), table_is_empty=True)
            if plan.error != "incomplete_hash_range":
                break
            if remaining:
                self._sleep(BOOTSTRAP_PAUSE_S)
        return plan

    def _incremental(self) -> ShardSyncPlan:
        try:
            shards = self._stream.list_shards()
        except StreamNotFound:
            shards = []
        # Read after the listing: what others created meanwhile is seen.
        listing = self._lease_table.list_leases(self._identifier if self._identifier.is_multi_stream else None)
        return self._plan(shards, listing, table_is_empty=False)

    def _plan(self, shards: list[Shard] | None, listing: LeaseListing, *, table_is_empty: bool) -> ShardSyncPlan:
        return plan_shard_sync(
            shards,
            listing.leases,
            self._initial,
            table_is_empty=table_is_empty,
            stream=self._identifier,
            ignore_unexpected_child_shards=self._settings.ignore_unexpected_child_shards,
            undecodable=listing.undecodable,
        )

    def _apply(self, plan: ShardSyncPlan) -> ShardSyncResult:
        if not plan.synced:
            _log.warning(
                "no shards listed, nothing synced",
                extra={"action": "shard_sync_skipped", "stream": str(self._identifier)},
            )
            return ShardSyncResult()
        created = []
        for creation in plan.create:
            lease = creation.lease
            with self._instruments.creating_lease("ShardSyncTask", lease):
                is_new = self._lease_table.create(lease)
            if is_new:
                created.append(lease.lease_key)
                _log.info(
                    "lease created",
                    extra={
                        "action": "lease_created",
                        "lease_key": lease.lease_key,
                        "checkpoint": str(lease.checkpoint),
                        "reason": creation.reason,
                    },
                )
        return ShardSyncResult(created=tuple(created), synced=True)
