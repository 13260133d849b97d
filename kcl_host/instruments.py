"""How the record path and the coordination loops tell what happens; observe/published.py makes metrics of it.

No method does work per record, blocks, or raises; any thread may call it. What is measured is a `with` block, which
failed when an exception left it or when it was told so. Names and meanings are KCL's (spec metrics 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Protocol, cast

from kcl_host.model.lease import Lease
from kcl_host.model.records import Batch


class Measured(Protocol):
    """A `with` block whose duration and success count. `success` may be set to False inside."""

    success: bool

    def __enter__(self) -> Measured: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class ShardInstruments(Protocol):
    """Reports about one incarnation of a held lease, from its consumer and its source."""

    def task(self, batch: Batch) -> Measured:
        """Around everything that is done with a batch, empty ones included: once for each that the consumer takes."""

    def delivering(self, records: int, payload_bytes: int) -> Measured:
        """Around the processRecords of the child; what it gets, after the checkpoint filter."""

    def updating_lease(self, *, shard_end: bool) -> Measured:
        """Around the write of a checkpoint or of a prepared one. A lease that turns out to be lost is no failure."""

    def getting_records(self) -> Measured: ...

    def getting_iterator(self) -> Measured: ...

    def iterator_expired(self) -> None: ...

    def dead_lettered(self) -> None:
        """A poison record stands in the dead letter, and is passed."""

    def end(self) -> None:
        """Nothing will be reported any more; what was is still published. Any number of times."""


class Instruments(Protocol):
    """Reports about one worker."""

    # Shard consumers

    def of_shard(self, shard_id: str, stream: str | None) -> ShardInstruments:
        """`stream`: the serialised identifier that the lease carries; None with one stream only."""

    def initializing(self) -> Measured:
        """Around the initialize of a child."""

    def shutting_down(self) -> Measured:
        """From the begin of the shutdown task to the answer to leaseLost or shardEnded."""

    def creating_lease(self, by: Literal["ShutdownTask", "ShardSyncTask"], lease: Lease) -> Measured:
        """Around the put of a new lease; one that is there already is a success."""

    def merge_parent_missing(self) -> None: ...

    def merge_parent_lease_missing(self) -> None: ...

    def child_reported(self, points: Mapping[str, float]) -> None:
        """What a child says of its micro-batches: names of the operation MicroBatch."""

    # Leases of this worker

    def renewing_all(self) -> Measured:
        """Around the renewals of a turn."""

    def renewing(self) -> Measured:
        """Around the heartbeat of one lease; False when its outcome is open."""

    def leases_renewed(self, *, lost: int, held: int) -> None:
        """After a round: leases lost in it, and leases still held."""

    def first_leases_read(self, *, success: bool) -> None: ...

    def discovering(self) -> Measured:
        """Around a round of discovery that asks the index."""

    def listing_keys(self) -> Measured: ...

    def fetching_leases(self) -> Measured: ...

    def leases_discovered(self, found: int) -> None: ...

    def owner_mismatched(self) -> None: ...

    def lease_read_failed(self) -> None: ...

    # The worker

    def started(self, *, success: bool) -> None:
        """Once: the worker runs, or has given up."""

    def requested(self, api: str, resource: str, read_units: float, write_units: float) -> None:
        """After a request to DynamoDB or Kinesis; `resource`: table or stream, units as DynamoDB says."""

    def reporting_load(self) -> Measured:
        """Around the write of the worker's metric stats."""

    def sampling_failed(self) -> None: ...

    def leadership_checked(self, *, leads: bool) -> None: ...

    def table_status_found(self) -> Measured:
        """Around the look for the status of the table migration at the start."""

    # The leader

    def assigning(self) -> Measured:
        """Around an assignment pass of the leader."""

    def assignment_skipped(self, every_s: float) -> None:
        """A turn of the assigner of a worker that does not lead; counted no more often than `every_s`."""

    def loading_leases(self) -> Measured: ...

    def planning(self, *, balance: bool) -> Measured:
        """Around the decision, which is one for expired leases and for the balance."""

    def planned(
        self,
        *,
        total: int,
        workers: int,
        expired: int,
        spillover: int,
        rebalanced: int | None,
        failing_workers: int,
        invalid_workers: int,
        undecodable: int,
        support_code: int | None,
    ) -> None:
        """What a pass has seen. `rebalanced` None: nothing was balanced; `support_code` None: nobody asked for it."""

    def writing_assignments(self) -> Measured: ...

    def assignments_written(self, *, failed: int) -> None: ...

    def lead_given_up(self) -> None:
        """After too many failures."""

    def fleet_seen(self, leases_by_worker: Mapping[str, int], unclaimed: int) -> None:
        """The leader's view; empty when this worker does not lead any more."""

    def auditing(self) -> Measured:
        """Around an audit of the leases by the leader."""

    def audited(self, *, streams_with_holes: int, streams_to_sync: int, skipped: int) -> None: ...

    def syncing_shards(self) -> Measured:
        """Around a shard sync."""

    def streams_tracked(self, *, active: int, pending_deletion: int) -> None: ...

    def streams_deleted(self, *, deleted: int, of_which_gone: int) -> None: ...

    def following_table_migration(self) -> Measured:
        """Around a turn that reads the status, by any worker, as long as it is not COMPLETE."""

    def table_migration_seen(self, status: str | None) -> None:
        """By the leader, from time to time and for ever: what the table says, or `COMPLETE`; None without an item."""

    def table_migration_workers(self, *, before: int, phase_1: int, phase_2: int) -> None: ...


class _Nothing:
    """Every report, and every `with` block: none of them does anything."""

    success = True

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Nothing:
        return self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *args: object) -> None:
        return None


NOTHING: Final = cast(Instruments, _Nothing())
"""Where nobody wants metrics."""
