"""The effects the host has on the world. coordination/ and retrieval/ see nothing else of it.

Every remote method may raise Throttled, Unavailable, TableMissing or AccessError (errors.py); a lost condition is an
outcome, never an exception. No method retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

import msgspec

from kcl_host.model.dead_letter import DeadLetter
from kcl_host.model.lease import Lease, LeaseListing, TableState, WriteOutcome
from kcl_host.model.records import RecordsPage
from kcl_host.model.sequence import ExtendedSequenceNumber, IteratorPosition
from kcl_host.model.shard import HashKeyRange, Shard, ShardFilter, StreamIdentifier, StreamSummary
from kcl_host.model.state import ClientVersionState, CoordinatorItem, LeaderLock, TableMigrationState
from kcl_host.model.worker import WorkerListing, WorkerMetricStats

Item = TypeVar("Item")


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds for durations and expiry; never goes back, has no meaning outside this process."""

    def wall(self) -> float:
        """Epoch seconds, only for what is written to tables or shown to people."""


class Lock(Protocol):
    """A lock that may be held across a remote call: threading.Lock, or in the fleet simulation one of its own time."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


NewLock = Callable[[], Lock]


class Event(Protocol):
    """A flag that can be waited for, as threading.Event."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Signal(Protocol):
    """A flag that a child's pipes can be polled together with: `fd` is readable while it is set."""

    @property
    def fd(self) -> int: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...


class Thread(Protocol):
    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Mailbox(Protocol[Item]):
    """A queue of one reader, as queue.SimpleQueue; `get` raises queue.Empty after `timeout` seconds."""

    def put(self, item: Item) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Item: ...


class Threads(Protocol):
    """Everything by which activities run at once and wait for each other.

    Real threads in a worker; in the fleet simulation turns on one thread, in simulated time.
    """

    def start(self, name: str, body: Callable[[], None], *, daemon: bool = False) -> Thread:
        """Runs `body` beside the caller. The process does not wait for a daemon when it ends."""

    def lock(self) -> Lock: ...

    def event(self) -> Event: ...

    def signal(self) -> Signal: ...

    def mailbox(self) -> Mailbox[Any]: ...

    def for_each(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Calls `act` for each item, several at once, and returns when all are done. `act` must not raise."""

    def close(self) -> None:
        """No further `for_each`; does not wait."""


class LeaseTable(Protocol):
    """The lease table. Each write has the condition of spec lease-table section 5."""

    def describe(self) -> TableState | None:
        """None when the table does not exist."""

    def create_table(self) -> bool:
        """Creates the table together with its index; False when somebody else did. Does not wait."""

    def create_index(self) -> None:
        """Adds the index to a table that was found without it; somebody else doing so is fine."""

    def enable_point_in_time_recovery(self) -> None: ...

    def list_leases(self, stream: StreamIdentifier | None = None) -> LeaseListing:
        """Scan, eventually consistent; with `stream` only the leases of that (multi-stream) stream."""

    def is_empty(self) -> bool:
        """True when no row is a lease; rows of other entity types do not count."""

    def get(self, lease_key: str) -> Lease | None:
        """Consistent read; None when there is no such lease."""

    def get_all(self, lease_keys: Iterable[str], *, consistent: bool) -> list[Lease]:
        """Rows of these keys in any order, without those that are not there or cannot be decoded.

        Each row costs half a read unit, a whole one when `consistent`; a scan costs a tenth of that for a row.
        """

    def lease_keys_of(self, worker_id: str) -> list[str]:
        """Keys whose leaseOwner is `worker_id`, through the index (eventually consistent, may be stale)."""

    def create(self, lease: Lease) -> bool:
        """False when a row with this key exists."""

    def renew(self, lease: Lease, throughput_kbps: float | None) -> WriteOutcome: ...

    def assign(self, lease: Lease, to: str) -> WriteOutcome:
        """Leader's direct assignment, and the completion of a handover by the old owner."""

    def initiate_handoff(self, lease: Lease, to: str) -> WriteOutcome: ...

    def evict(self, lease: Lease) -> WriteOutcome: ...

    def checkpoint(self, lease: Lease, checkpoint: ExtendedSequenceNumber) -> WriteOutcome: ...

    def prepare_checkpoint(
        self, lease: Lease, pending: ExtendedSequenceNumber, state: bytes | None
    ) -> WriteOutcome: ...

    def write_child_shards(self, lease_key: str, child_shard_ids: frozenset[str]) -> bool:
        """False when the row is gone."""

    def write_hash_key_range(self, lease_key: str, hash_key_range: HashKeyRange) -> bool:
        """False when the row is gone."""

    def delete(self, lease_key: str) -> None: ...


class MetadataTable(Protocol):
    """A table beside the lease table, as a whole."""

    def exists(self) -> bool: ...

    def create_table(self) -> bool:
        """False when somebody else created it. Waits until it is ACTIVE either way."""

    def delete_table(self) -> None: ...


class CoordinatorState(Protocol):
    """Leader lock and Migration3.0, wherever they are. Reads are consistent."""

    def read_lock(self) -> LeaderLock | None: ...

    def acquire_lock(self, lock: LeaderLock, over: LeaderLock | None) -> bool:
        """PutItem of the whole item. `over` is the item as read: None (must be absent), released, or held."""

    def heartbeat_lock(self, lock: LeaderLock, previous_record_version_number: str) -> bool: ...

    def release_lock(self, lock: LeaderLock) -> bool:
        """Deletes the item if it is still exactly ours."""

    def read_client_version(self) -> ClientVersionState | None: ...

    def create_client_version(self, state: ClientVersionState) -> bool:
        """False when the item exists."""

    def update_client_version(self, state: ClientVersionState, expected: str) -> bool:
        """False when the item is gone, or says something else than `expected`."""


class CoordinatorTable(MetadataTable, CoordinatorState, Protocol): ...


class TableMigrationItems(Protocol):
    """TableMigration3.5, and the move of the coordinator items into the lease table. Reads are consistent.

    The working copy of the item is in the CoordinatorState table (spec migration 2.1).
    """

    def read(self) -> TableMigrationState | None: ...

    def create(self, state: TableMigrationState) -> bool:
        """False when the item exists."""

    def update(self, state: TableMigrationState, expected_status: str) -> bool:
        """False when the item is gone, or has another status than `expected_status`."""

    def delete(self, expected_status: str) -> bool:
        """False when the item is gone, or has another status than `expected_status`."""

    def list_items(self) -> list[CoordinatorItem]:
        """Everything in the CoordinatorState table."""

    def move(self, items: Sequence[CoordinatorItem], leader: str) -> bool:
        """Moves some items in one transaction; False, and nothing moved, unless `leader` owns the lock and no such item
        is in the lease table."""

    def finalise(self, state: TableMigrationState, expected_status: str, leader: str) -> bool:
        """Writes the last status into both tables, while `leader` owns the lock; False when somebody was faster."""


class WorkerReports(Protocol):
    """Worker metric stats, wherever they are."""

    def put(self, stats: WorkerMetricStats) -> int | None:
        """Unconditional update of the named attributes.

        Returns the last update that the row bore before; None when it bore none, or there was no row.
        """

    def get(self, worker_id: str) -> WorkerMetricStats | None: ...

    def list_workers(self, listing: LeaseListing | None = None) -> WorkerListing:
        """Scan, eventually consistent. A `listing` of the lease table that was just made may save it."""

    def delete_if_unchanged(self, stats: WorkerMetricStats) -> bool:
        """Deletes a stale row, provided that its last update is still the one given."""


class WorkerMetricsTable(MetadataTable, WorkerReports, Protocol): ...


class Stream(Protocol):
    """One Kinesis stream. Every method may also raise StreamNotFound."""

    def describe(self) -> StreamSummary: ...

    def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
        """One complete listing, all pages; None when the stream is neither ACTIVE nor UPDATING."""

    def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
        """Raises InvalidPosition; StreamNotFound also when only the shard is gone."""

    def get_records(self, iterator: str, limit: int) -> RecordsPage:
        """Raises ExpiredIterator, InvalidPosition; StreamNotFound also when only the shard is gone."""


class Subscription(Protocol):
    """The events of one SubscribeToShard."""

    @property
    def bytes_received(self) -> int:
        """So far; it stands still when nothing arrives."""

    def next(self, timeout_s: float) -> RecordsPage | None:
        """The next event, whose `next_iterator` is its continuation sequence number. None: none within the time.

        Raises SubscriptionEnded, StreamNotFound, SubscriptionInUse, Throttled, AccessError, Unavailable.
        """

    def close(self) -> None:
        """Ends it, and a `next` under way at once. From any thread, any number of times."""


class Subscriber(Protocol):
    """The registered consumer of one stream."""

    def prepare(self, stream_arn: str | None = None) -> None:
        """Finds or registers the consumer. With `stream_arn` it does not wait when limited, but raises Throttled."""

    def subscribe(self, shard_id: str, position: IteratorPosition) -> Subscription:
        """Returns once the service has accepted.

        Raises SubscriptionInUse, InvalidPosition, ConsumerGone; StreamNotFound when the shard or the stream is gone;
        Throttled, Unavailable, AccessError.
        """


class DeadLetters(Protocol):
    def put(self, letter: DeadLetter) -> None:
        """Returns once the letter is durable; the same one may be put again.

        Raises Throttled, Unavailable, AccessError, ConfigurationError: it may stand there all the same.
        """


class Reply(msgspec.Struct, frozen=True):
    """What the host does with bytes a child wrote: lines to write back, and whether the action is answered.

    `progressed` says that a valid message was among them, which restarts the wait of timeoutInSeconds.
    """

    to_write: bytes = b""
    done: bool = False
    progressed: bool = False


class Child(Protocol):
    """One running child process, owned by one thread."""

    @property
    def pid(self) -> int: ...

    def exchange(self, line: bytes, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        """Writes `line` and reads stdout in one loop until `receive` says done; `receive(b"")` is EOF.

        Raises ChildExited, ChildTimedOut; what `receive` raises passes through.
        """

    def idle(self, wake_fd: int | None, receive: Callable[[bytes], Reply], timeout_s: float | None) -> None:
        """Waits until `wake_fd` is readable or the time is over, and serves the child's output meanwhile.

        Raises ChildExited as soon as the child ends.
        """

    def end(self) -> int | None:
        """Closes stdin, drains, waits, then TERM and KILL of the group, each after its deadline.

        Returns the exit status (negative: signal), None when even KILL did not help in time. Never raises.
        """

    def kill(self) -> None:
        """KILL of the whole group at once."""
