"""A lease: one row of the lease table (spec lease-table 1.2)."""

from __future__ import annotations

from typing import Literal

import msgspec

from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.model.shard import HashKeyRange, StreamIdentifier
from kcl_host.model.worker import WorkerListing


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The row as read; None and empty sets mean that the attribute is absent.

    During a graceful handover `lease_owner` is the next owner and `checkpoint_owner` the current one.
    """

    lease_key: str
    checkpoint: ExtendedSequenceNumber | None
    lease_counter: int = 0
    lease_owner: str | None = None
    checkpoint_owner: str | None = None
    owner_switches_since_checkpoint: int = 0
    parent_shard_ids: frozenset[str] = frozenset()
    child_shard_ids: frozenset[str] = frozenset()
    hash_key_range: HashKeyRange | None = None
    pending_checkpoint: ExtendedSequenceNumber | None = None
    pending_checkpoint_state: bytes | None = None
    throughput_kbps: float | None = None
    """KiB per second, as the holder last wrote it."""
    stream_name: str | None = None
    """Multi-stream only: the serialised stream identifier."""
    multi_stream_shard_id: str | None = None
    """Multi-stream only: the bare shard id."""

    @property
    def shard_id(self) -> str:
        """The bare shard id, in both modes."""
        return self.multi_stream_shard_id or self.lease_key

    @property
    def actual_owner(self) -> str | None:
        """Who may heartbeat and checkpoint now; None when nobody holds the lease."""
        return self.checkpoint_owner or self.lease_owner

    @property
    def is_handover_pending(self) -> bool:
        return self.checkpoint_owner is not None

    @property
    def is_at_shard_end(self) -> bool:
        return self.checkpoint is not None and self.checkpoint.is_shard_end

    def key_of(self, shard_id: str) -> str:
        """The lease key of a relative (parent or child) of the same stream."""
        return shard_id if self.stream_name is None else StreamIdentifier.parse(self.stream_name).lease_key(shard_id)


class LeaseListing(msgspec.Struct, frozen=True, kw_only=True):
    """Every lease a scan found, and the workers that have their metrics in the lease table (KCL 3.5).

    `undecodable` names the rows that should be leases and are not valid ones; `entity_types` is the set of
    `entityType` values seen on any row (rows without the attribute add nothing).
    """

    leases: tuple[Lease, ...]
    undecodable: tuple[str, ...] = ()
    entity_types: frozenset[str] = frozenset()
    workers: WorkerListing = WorkerListing()


class WriteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a conditional write.

    Applied: `row` is the lease as it now stands where the operation returns it, else None.
    Refused (the condition failed): `row` is the lease as it stood, None when the row does not exist.
    """

    applied: bool
    row: Lease | None = None


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """What DescribeTable says of a table. `index_status` is that of LeaseOwnerToLeaseKeyIndex, None when missing."""

    status: str
    index_status: Literal["CREATING", "UPDATING", "DELETING", "ACTIVE"] | None = None
    size_bytes: int = 0
