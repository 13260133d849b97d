"""The writes at the end of a shard that come before the child process may checkpoint at SHARD_END."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import msgspec

from kcl_host.decisions.rng import Rng
from kcl_host.decisions.shard_end import GIVE_UP_PROBABILITY, ShardEndReason, keys_to_read, plan_shard_end
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.lease import Lease
from kcl_host.model.shard import ChildShard
from kcl_host.ports import LeaseTable

_log = logging.getLogger(__name__)


class ShardEndPrepared(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; `created` are the keys of the child leases that this call wrote, in order."""

    outcome: Literal["proceed", "retry", "lost"]
    reason: ShardEndReason
    created: tuple[str, ...] = ()

    @property
    def retry(self) -> bool:
        """Keep the lease, and call again after the task back-off."""
        return self.outcome == "retry"

    @property
    def lost(self) -> bool:
        """Drop the lease here and tell the child `leaseLost`; the row is left as it is."""
        return self.outcome == "lost"

    @property
    def is_at_shard_end(self) -> bool:
        """The row is at SHARD_END already: no `shardEnded`, only the queue of the clean-up."""
        return self.reason == "already_at_shard_end"


class ShardEnd:
    """Creates the leases of child shards, then notes their ids on the parent's row (spec shard-sync 4.2)."""

    def __init__(self, lease_table: LeaseTable, rng: Rng, instruments: Instruments = NOTHING) -> None:
        self._lease_table = lease_table
        self._rng = rng
        self._instruments = instruments

    def prepare(self, lease: Lease, child_shards: Sequence[ChildShard]) -> ShardEndPrepared:
        """`lease` must still be held; the caller looks first. Safe to repeat after any error, which passes through."""
        read = {key: self._lease_table.get(key) for key in keys_to_read(lease, child_shards)}
        rows = {key: row for key, row in read.items() if row is not None}
        plan = plan_shard_end(lease, child_shards, rows, give_up=self._rng.random() < GIVE_UP_PROBABILITY)

        created = tuple(child.lease_key for child in plan.create if self._create(child))
        if plan.reason == "malformed_merge":
            self._instruments.merge_parent_missing()
        elif plan.reason == "merge_parent_without_lease":
            self._instruments.merge_parent_lease_missing()
        if created:
            _log.info(
                "child leases created",
                extra={"action": "child_leases_created", "lease_key": lease.lease_key, "children": list(created)},
            )
        if plan.child_shard_ids is not None and not self._lease_table.write_child_shards(
            lease.lease_key, plan.child_shard_ids
        ):
            return ShardEndPrepared(outcome="lost", reason="lease_row_gone", created=created)
        return ShardEndPrepared(outcome=plan.outcome, reason=plan.reason, created=created)

    def _create(self, child: Lease) -> bool:
        with self._instruments.creating_lease("ShutdownTask", child):
            return self._lease_table.create(child)
