"""One look at a fleet: everything that its tables say, by one bounded set of requests that only read.

A part that cannot be fetched (no permission, throttled) is named, and the others are there all the same. A look makes
one DescribeTable, at most five GetItem and the scans of two tables. The lag is asked for apart: two requests per shard,
which count against the five reads a second that each shard allows to all its readers together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kcl_host.coordination.metadata_tables import MetadataTables
from kcl_host.coordination.streams import OpenStream, Streams
from kcl_host.decisions.fleet_looks import FleetSnapshot, Part, PartFailure, ShardLag
from kcl_host.decisions.position import first_position
from kcl_host.errors import AccessError, KclHostError, TableMissing, Throttled
from kcl_host.model.lease import Lease, LeaseListing
from kcl_host.model.sequence import LATEST
from kcl_host.model.worker import WorkerListing
from kcl_host.ports import Clock, LeaseTable, Threads

SHARDS_PER_S: Final = 100
"""How fast shards are asked for their lag, so that no look eats up an account's requests."""
PARALLEL: Final = 8
"""So many threads serve a look well."""
ATTEMPTS: Final = 3
RETRY_S: Final = 0.5


class FleetReader:
    """Reads what `kcl-host status` shows; never writes. Not thread-safe; `threads` serve one look at a time."""

    def __init__(
        self, lease_table: LeaseTable, tables: MetadataTables, streams: Streams, clock: Clock, threads: Threads
    ) -> None:
        self._lease_table = lease_table
        self._tables = tables
        self._streams = streams
        self._clock = clock
        self._threads = threads

    def __repr__(self) -> str:
        return f"<FleetReader {self._lease_table!r}>"

    def take(self) -> FleetSnapshot:
        """What the tables say now. Raises the first error when every part of it failed."""
        look = _Look()
        # First, since the table's size decides how its scan is cut.
        look.fetch("lease table", self._lease_table.describe)
        has_table = "lease table" in look.errors or look.found["lease table"] is not None
        parts: dict[Part, Callable[[], Any]] = {
            "leader lock": self._tables.coordinator.read_lock,
            "Migration3.0": self._tables.coordinator.read_client_version,
            "TableMigration3.5": self._tables.migration.read,
            "worker metrics": self._tables.worker_metrics.list_workers,
        }
        if has_table:
            parts |= {
                "leases": self._lease_table.list_leases,
                "leader lock in the lease table": self._tables.coordinator_in_lease_table.read_lock,
                "Migration3.0 in the lease table": self._tables.coordinator_in_lease_table.read_client_version,
            }
        self._threads.for_each(lambda part: look.fetch(part, parts[part]), parts)
        if look.errors and len(look.errors) == len(parts) + 1:
            raise look.errors["lease table"]
        found = look.found
        return FleetSnapshot(
            taken_s=self._clock.wall(),
            at_s=self._clock.monotonic(),
            table=found.get("lease table"),
            listing=found.get("leases") or LeaseListing(leases=()),
            has_coordinator_table=look.has_coordinator_table,
            lock=found.get("leader lock"),
            lock_in_lease_table=found.get("leader lock in the lease table"),
            client_version=found.get("Migration3.0") or found.get("Migration3.0 in the lease table"),
            table_migration=found.get("TableMigration3.5"),
            workers=found.get("worker metrics") or WorkerListing(),
            failures=tuple(PartFailure(part=part, error=str(error)) for part, error in sorted(look.errors.items())),
        )

    def ask_lags(self, leases: Iterable[Lease]) -> tuple[Mapping[str, ShardLag], tuple[PartFailure, ...]]:
        """The lag of each lease that has a position, by key, and which could not be asked for, one failure per error.

        Takes a second per SHARDS_PER_S leases, two requests each.
        """
        asked = [lease for lease in leases if lag_is_askable(lease)]
        lags: dict[str, ShardLag] = {}
        errors: dict[str, str] = {}
        pace = _Pace(self._clock, self._threads)

        refused: list[AccessError] = []

        def ask(lease: Lease) -> None:
            try:
                if refused:  # Who may not ask for one shard may not ask for the next.
                    raise refused[0]
                lags[lease.lease_key] = self._lag(lease, pace)
            except AccessError as error:
                refused.append(error)
                errors[lease.lease_key] = str(error)
            except (KclHostError, ValueError) as error:  # ValueError: the name of the stream makes no sense.
                errors[lease.lease_key] = str(error)

        self._threads.for_each(ask, asked)
        by_error: dict[str, list[str]] = defaultdict(list)
        for lease_key, error in sorted(errors.items()):
            by_error[error].append(lease_key)
        return lags, tuple(
            PartFailure(part="lag", error=error, subjects=tuple(keys)) for error, keys in sorted(by_error.items())
        )

    def ask_retentions(self, leases: Iterable[Lease]) -> tuple[Mapping[str | None, float], tuple[PartFailure, ...]]:
        """How long each stream of these leases keeps its records, in seconds, by their `stream_name`."""
        one_of = {lease.stream_name: lease for lease in leases}
        found: dict[str | None, float] = {}
        failures = []
        for name in sorted(one_of, key=lambda name: name or ""):
            try:
                found[name] = self._streams.of_lease(one_of[name]).stream.describe().retention_hours * 3600.0
            except (KclHostError, ValueError) as error:
                failures.append(PartFailure(part="retention", error=str(error), subjects=(name or "",)))
        return found, tuple(failures)

    def _lag(self, lease: Lease, pace: _Pace) -> ShardLag:
        opened = self._streams.of_lease(lease)
        for attempt in range(1, ATTEMPTS + 1):
            pace.wait()
            try:
                return self._ask(lease, opened)
            except Throttled:
                if attempt == ATTEMPTS:
                    raise
                self._threads.event().wait(RETRY_S * attempt)
        raise AssertionError("ATTEMPTS is at least 1")

    def _ask(self, lease: Lease, opened: OpenStream) -> ShardLag:
        """The checkpointed record itself is asked for, which tells its age, and how far behind what follows it is."""
        assert lease.checkpoint is not None
        position = first_position(lease.checkpoint, opened.settings.initial_position)
        page = opened.stream.get_records(opened.stream.get_shard_iterator(lease.shard_id, position), 1)
        asked_s = self._clock.wall()
        first = page.records[0] if page.records else None
        behind_ms, record_ms = page.millis_behind_latest, None
        if lease.checkpoint.is_sentinel:
            if first is not None:
                # Nobody has had this record: what lies behind it is nearer to the end than the reader is.
                behind_ms = max(behind_ms or 0, round(asked_s * 1000) - first.approximate_arrival_timestamp)
        elif first is not None and first.sequence_number == lease.checkpoint.sequence_number:
            record_ms = first.approximate_arrival_timestamp
        return ShardLag(behind_ms=behind_ms, record_ms=record_ms, asked_s=asked_s)


def lag_is_askable(lease: Lease) -> bool:
    """A lease at SHARD_END has nothing left to read; at LATEST nobody but its reader knows where that was."""
    return lease.checkpoint is not None and not lease.is_at_shard_end and lease.checkpoint.sequence_number != LATEST


class _Look:
    """What the parts of one look gave; each is written by one thread, under a key of its own."""

    def __init__(self) -> None:
        self.found: dict[Part, Any] = {}
        self.errors: dict[Part, KclHostError] = {}
        self.has_coordinator_table: bool | None = None

    def fetch(self, part: Part, request: Callable[[], Any]) -> None:
        try:
            self.found[part] = request()
        except TableMissing:
            # Of three tables or of one: which are there is part of the answer.
            self.found[part] = None
            if part == "leader lock":
                self.has_coordinator_table = False
        except KclHostError as error:
            self.errors[part] = error
        else:
            if part == "leader lock":
                self.has_coordinator_table = True


class _Pace:
    """Lets SHARDS_PER_S through; from several threads."""

    def __init__(self, clock: Clock, threads: Threads) -> None:
        self._clock = clock
        self._threads = threads
        self._lock = threads.lock()
        self._next_s = clock.monotonic()

    def wait(self) -> None:
        with self._lock:
            now_s = self._clock.monotonic()
            turn_s = max(now_s, self._next_s)
            self._next_s = turn_s + 1 / SHARDS_PER_S
        if turn_s > now_s:
            self._threads.event().wait(turn_s - now_s)
