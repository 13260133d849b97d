"""What a replay would change: rows, shards and positions, read and put to decisions/replay.py. Nothing is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from kcl_host.config.settings import Settings
from kcl_host.coordination.metadata_tables import CoordinatorItems, Format, MetadataTables
from kcl_host.coordination.replay_position import PositionFinder, Sleep, insist
from kcl_host.coordination.streams import Streams
from kcl_host.decisions.metadata_format import VERSION_2X, VERSION_UPGRADE_FROM_2X
from kcl_host.decisions.replay import (
    LeaseChange,
    Place,
    ReplayPlan,
    ReplayTarget,
    SavedPosition,
    SavedPositions,
    place_shard,
    place_shards,
    plan_replay,
    plan_undo,
    saved_positions,
)
from kcl_host.decisions.table_migration import local_status
from kcl_host.errors import (
    ConfigurationError,
    InvalidPosition,
    KclHostError,
    MetadataConflict,
    StreamNotFound,
    TableMissing,
)
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import Shard, StreamIdentifier
from kcl_host.ports import Clock, LeaseTable, Stream, Threads


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    identifier: StreamIdentifier
    plan: ReplayPlan


class ReplayPreview(msgspec.Struct, frozen=True, kw_only=True):
    """`asks_owners`: whether live owners are asked to hand over, or have their leases taken."""

    streams: tuple[StreamPlan, ...]
    asks_owners: bool
    horizon_is_nearer: bool = False
    """The moment asked for is older than what the streams hold."""

    @property
    def groups(self) -> list[tuple[LeaseChange, ...]]:
        return [group for stream in self.streams for group in stream.plan.groups]

    @property
    def changes(self) -> list[LeaseChange]:
        return [change for group in self.groups for change in group]

    def saved(self, table: str, written: str, target: str) -> SavedPositions:
        """The file for `undo`."""
        leases = [
            one
            for stream in self.streams
            for one in saved_positions(
                stream.plan, {change.lease_key: stream.identifier for change in stream.plan.changes}
            )
        ]
        return SavedPositions(table=table, written=written, target=target, leases=tuple(leases))


class ReplayPlanner:
    """For one thread; `threads` serve it. `ask_owners` False: live owners lose their leases without a word."""

    def __init__(
        self,
        streams: Streams,
        lease_table: LeaseTable,
        tables: MetadataTables,
        settings: Settings,
        clock: Clock,
        threads: Threads,
        *,
        ask_owners: bool = True,
    ) -> None:
        self._streams = streams
        self._table = lease_table
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._ask_owners = ask_owners

    def __repr__(self) -> str:
        return f"<ReplayPlanner {self._table!r}>"

    def preview(
        self, target: ReplayTarget, shard_ids: Iterable[str] = (), stream_names: Iterable[str] = ()
    ) -> ReplayPreview:
        """Reads the streams to find positions, some records of each shard that the position lies in.

        `stream_names` are names or identifiers, empty: all streams of the table; `shard_ids` empty: all shards. Raises
        ConfigurationError when one is unknown, MetadataConflict when rows cannot be read, StreamNotFound.
        """
        chosen = set(shard_ids)
        leases = self._leases(stream_names)
        plans, unknown, is_too_old = [], set(chosen), False
        for identifier, own in leases.items():
            stream = self._streams.of(identifier).stream
            shards = self._shards(stream)
            here = chosen & {shard.shard_id for shard in shards}
            unknown -= here
            if chosen and not here:
                continue
            summary = insist(stream.describe, self._sleep)
            horizon_s = max(self._clock.wall() - summary.retention_hours * 3600, summary.creation_s)
            is_too_old |= target.timestamp_s is not None and target.timestamp_s < horizon_s
            places = self._places(stream, shards, own, target, here, horizon_s)
            wanted = [shard_id for shard_id, place in places.items() if place == "here"]
            found = self._find(stream, wanted, target)
            plans.append(StreamPlan(identifier=identifier, plan=plan_replay(identifier, shards, places, found, own)))
        if unknown:
            raise ConfigurationError(f"no such shard in the stream: {', '.join(sorted(unknown))}")
        return ReplayPreview(streams=tuple(plans), asks_owners=self._asks_owners(), horizon_is_nearer=is_too_old)

    def preview_undo(self, saved: SavedPositions) -> ReplayPreview:
        """Raises ConfigurationError when `saved` is of another table, MetadataConflict, StreamNotFound."""
        if saved.table != self._settings.lease_table.name:
            raise ConfigurationError(
                f"the positions are those of table {saved.table}, not of {self._settings.lease_table.name}"
            )
        by_stream: dict[StreamIdentifier, list[SavedPosition]] = defaultdict(list)
        for one in saved.leases:
            by_stream[StreamIdentifier.parse(one.stream)].append(one)
        leases = self._leases(())
        plans = []
        for identifier, positions in by_stream.items():
            shards = self._shards(self._streams.of(identifier).stream)
            plan = plan_undo(identifier, shards, positions, leases.get(identifier, []))
            plans.append(StreamPlan(identifier=identifier, plan=plan))
        return ReplayPreview(streams=tuple(plans), asks_owners=self._asks_owners())

    def _places(
        self,
        stream: Stream,
        shards: Sequence[Shard],
        leases: Sequence[Lease],
        target: ReplayTarget,
        chosen: set[str],
        horizon_s: float,
    ) -> dict[str, Place]:
        if target.sequence_number is not None:
            (shard_id,) = chosen
            return place_shard(shards, shard_id)
        here = insist(lambda: stream.list_shards(target.shard_filter(horizon_s)), self._sleep)
        rows = {lease.shard_id: lease for lease in leases}
        finished = [s for s in chosen if s not in rows or rows[s].is_at_shard_end]
        return place_shards(shards, [shard.shard_id for shard in here or ()], chosen, finished)

    def _find(
        self, stream: Stream, shard_ids: Sequence[str], target: ReplayTarget
    ) -> dict[str, ExtendedSequenceNumber]:
        if target.kind == "TRIM_HORIZON":
            return dict.fromkeys(shard_ids, AT_TRIM_HORIZON)
        finder = PositionFinder(stream, self._clock, self._sleep)
        found: dict[str, ExtendedSequenceNumber] = {}
        errors: list[KclHostError] = []

        def find(shard_id: str) -> None:
            try:
                before = finder.checkpoint_before(shard_id, target.iterator)
                found[shard_id] = target.checkpoint_within or before
            except InvalidPosition as error:
                errors.append(ConfigurationError(f"shard {shard_id} does not know this position: {error}"))
            except KclHostError as error:
                errors.append(error)

        self._threads.for_each(find, shard_ids)
        if errors:
            raise errors[0]
        return found

    def _leases(self, stream_names: Iterable[str]) -> dict[StreamIdentifier, list[Lease]]:
        """By stream; rows as they are now, since a scan may see them as they were."""
        table = self._settings.lease_table.name
        try:
            listing = insist(self._table.list_leases, self._sleep)
        except TableMissing as error:
            raise ConfigurationError(
                f"lease table {table} is not there: applicationName, tableName and regionName must be those of the "
                "application"
            ) from error
        if listing.undecodable:
            raise MetadataConflict(f"rows of the lease table are no valid leases: {', '.join(listing.undecodable[:5])}")
        keys = [lease.lease_key for lease in listing.leases]
        by_stream: dict[StreamIdentifier, list[Lease]] = defaultdict(list)
        for lease in insist(lambda: self._table.get_all(keys, consistent=True), self._sleep):
            by_stream[self._streams.of_lease(lease).identifier].append(lease)
        if not by_stream:
            raise ConfigurationError(
                f"lease table {table} holds no leases: a new application starts where initialPositionInStream says"
            )
        names = set(stream_names)
        chosen = {i: rows for i, rows in by_stream.items() if not names or names & {str(i), i.name}}
        if missing := names - {name for i in chosen for name in (str(i), i.name)}:
            raise ConfigurationError(f"the lease table holds no leases of stream {', '.join(sorted(missing))}")
        return {i: chosen[i] for i in sorted(chosen, key=str)}

    def _shards(self, stream: Stream) -> list[Shard]:
        shards = insist(stream.list_shards, self._sleep)
        if shards is None:
            raise StreamNotFound("the stream is neither ACTIVE nor UPDATING")
        return shards

    def _asks_owners(self) -> bool:
        """Workers that move leases as KCL 2.x does know nothing of a handover."""
        if not (self._ask_owners and self._settings.lease.graceful_handoff):
            return False
        try:
            version = insist(
                CoordinatorItems(
                    self._tables, format_found(self._tables, self._settings, self._sleep)
                ).read_client_version,
                self._sleep,
            )
        except TableMissing:
            return True
        return version is None or version.client_version not in (VERSION_2X, VERSION_UPGRADE_FROM_2X)

    def _sleep(self, seconds: float) -> None:
        self._threads.event().wait(seconds)


def format_found(tables: MetadataTables, settings: Settings, sleep: Sleep) -> Format:
    """Where the metadata are, as a worker that starts now would find it."""
    if not insist(tables.coordinator.exists, sleep):
        return Format("COMPLETE")
    item = insist(tables.migration.read, sleep)
    status, flag = None if item is None else item.status, settings.coordinator.migrate_all_entities
    return Format(local_status(status, migrate_all=flag) or local_status(status, migrate_all=not flag) or "INIT")
