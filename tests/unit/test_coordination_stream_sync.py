"""The leader's look at the streams, on fakes: what is synced, what is deleted, and what a failure leaves undone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from coordination_rig import settings_of

from kcl_host.config.settings import Settings, ShardSyncSettings, StreamSettings, StreamTrackingSettings
from kcl_host.coordination.stream_sync import AGAIN_S, LOOK_S, StreamSync
from kcl_host.coordination.streams import StreamAccess, Streams
from kcl_host.errors import MetadataConflict, StreamNotFound
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, InitialPosition
from kcl_host.model.shard import StreamIdentifier
from tests.fakes.clock import FakeClock
from tests.fakes.fault import THROTTLED
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.stream import InMemoryStream

AUTO = "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION"


class Lead:
    """Stands for Election."""

    def __init__(self) -> None:
        self.leads = self.writes = True

    def is_leader(self) -> bool:
        return self.leads

    def may_write(self) -> bool:
        return self.leads and self.writes


class Bench:
    def __init__(self, *names: str, multi: bool = True, **sections: Any) -> None:
        self.clock = FakeClock()
        self.table = InMemoryLeaseTable(self.clock)
        self.lead = Lead()
        self.kinesis: dict[str, InMemoryStream] = {}
        self.created = 0
        streams = tuple(StreamSettings(name=name) for name in names)
        self.settings: Settings = settings_of("me", streams=streams, multi_stream=multi, **sections)
        self.streams = Streams(self.settings, lambda stream, _: StreamAccess(self.kinesis[stream.name]))
        self.sync = self.new_leader()

    def new_leader(self) -> StreamSync:
        return StreamSync(
            self.streams,
            self.table,
            self.lead,  # type: ignore[arg-type]
            self.settings,
            self.clock,
            on_created=self.note_created,
            sleep=self.clock.advance,
        )

    def note_created(self) -> None:
        self.created += 1

    def make(self, name: str, shards: int = 1) -> StreamIdentifier:
        self.kinesis[name] = InMemoryStream(self.clock, name, shards)
        identifier = self.kinesis[name].describe().identifier
        self.kinesis[name].requests.clear()
        return identifier

    def configure(self, *names: str) -> None:
        assert self.streams.configure(tuple(StreamSettings(name=name) for name in names))

    def keys(self) -> set[str]:
        return {lease.lease_key for lease in self.table.list_leases().leases}

    def look(self, after_s: float) -> float | None:
        self.clock.advance(after_s)
        return self.sync.run_once()


def leases_of(stream: StreamIdentifier, shards: int = 1) -> set[str]:
    return {stream.lease_key(f"shardId-{number:012d}") for number in range(shards)}


def test_the_first_look_syncs_every_stream() -> None:
    bench = Bench("orders", "clicks")
    orders, clicks = bench.make("orders", 2), bench.make("clicks")
    bench.sync.begin()
    assert bench.keys() == leases_of(orders, 2) | leases_of(clicks)
    assert [one.identifier for one in bench.sync.tracked()] == [clicks, orders]
    assert bench.look(0.0) == LOOK_S and bench.created == 0


def test_a_stream_that_is_not_there_yet_is_asked_for_again_soon() -> None:
    bench = Bench("orders", "late")
    orders, late = bench.make("orders"), bench.make("late")
    bench.kinesis["late"].deleted = True
    bench.sync.begin()
    assert bench.keys() == leases_of(orders)
    bench.kinesis["late"].deleted = False
    assert bench.look(AGAIN_S) == LOOK_S
    assert bench.keys() == leases_of(orders) | leases_of(late) and bench.created == 1


def test_none_of_them_there_and_no_leases_is_an_error_and_later_it_is_not() -> None:
    bench = Bench("orders")
    orders = bench.make("orders")
    bench.kinesis["orders"].deleted = True
    with pytest.raises(StreamNotFound):
        bench.sync.begin()
    bench.kinesis["orders"].deleted = False
    bench.sync.begin()
    bench.kinesis["orders"].deleted = True
    bench.new_leader().begin()
    assert bench.keys() == leases_of(orders)


def test_a_sync_that_fails_is_made_up_for_without_the_others_waiting() -> None:
    bench = Bench("orders", "clicks")
    orders, clicks = bench.make("orders"), bench.make("clicks")
    failing = [True]
    bench.kinesis["clicks"].faults = lambda operation, _: THROTTLED if operation == "list_shards" and failing else None
    bench.sync.begin()
    assert bench.keys() == leases_of(orders)
    failing.clear()
    assert bench.look(AGAIN_S) == LOOK_S and bench.keys() == leases_of(orders) | leases_of(clicks)


def test_each_stream_begins_where_it_is_configured_to() -> None:
    bench = Bench("orders", "clicks")
    own = StreamSettings(name="clicks", initial_position=InitialPosition(kind="LATEST"))
    bench.streams.configure((StreamSettings(name="orders"), own))
    orders, clicks = bench.make("orders"), bench.make("clicks")
    bench.sync.begin()
    found = {lease.stream_name: str(lease.checkpoint) for lease in bench.table.list_leases().leases}
    assert found == {str(orders): "TRIM_HORIZON", str(clicks): "LATEST"}


def test_a_follower_does_nothing() -> None:
    bench = Bench("orders")
    bench.make("orders")
    bench.lead.leads = False
    assert bench.sync.run_once(at_once=True) == LOOK_S
    assert bench.keys() == set() and bench.kinesis["orders"].requests == {}


def test_leases_of_a_removed_stream_stay_by_default() -> None:
    bench = Bench("orders", "clicks")
    orders, clicks = bench.make("orders"), bench.make("clicks")
    bench.sync.begin()
    bench.configure("orders")
    for _ in range(3):
        bench.look(LOOK_S)
    assert bench.keys() == leases_of(orders) | leases_of(clicks)
    assert [one.identifier for one in bench.sync.tracked()] == [orders]


def test_leases_of_a_removed_stream_are_deleted_after_the_wait_and_not_by_who_may_not_write() -> None:
    tracking = StreamTrackingSettings(former_streams=AUTO, wait_before_deletion_s=100.0)
    bench = Bench("orders", "clicks", stream_tracking=tracking)
    orders, clicks = bench.make("orders"), bench.make("clicks", 2)
    bench.sync.begin()
    bench.configure("orders")
    assert bench.look(LOOK_S) == LOOK_S and bench.look(LOOK_S) == LOOK_S
    assert bench.keys() == leases_of(orders) | leases_of(clicks, 2), "first missed 60 s ago"
    bench.lead.writes = False
    assert bench.look(LOOK_S) == AGAIN_S
    assert bench.keys() == leases_of(orders) | leases_of(clicks, 2)
    bench.lead.writes = True
    bench.table.faults = lambda operation, key: THROTTLED if operation == "delete" and key.endswith("1") else None
    assert bench.look(AGAIN_S) == AGAIN_S
    bench.table.faults = lambda *_: None
    assert bench.look(AGAIN_S) == LOOK_S
    assert bench.keys() == leases_of(orders)


def test_a_new_leader_finds_former_streams_in_the_table_and_starts_to_wait_anew() -> None:
    tracking = StreamTrackingSettings(former_streams=AUTO, wait_before_deletion_s=100.0)
    bench = Bench("orders", "clicks", stream_tracking=tracking)
    orders, clicks = bench.make("orders"), bench.make("clicks")
    bench.sync.begin()
    bench.configure("orders")
    bench.look(LOOK_S)
    bench.clock.advance(95.0)
    bench.sync = bench.new_leader()
    bench.sync.begin()
    assert bench.look(99.0) == LOOK_S and bench.keys() == leases_of(orders) | leases_of(clicks)
    bench.look(LOOK_S)
    assert bench.keys() == leases_of(orders)


def test_a_stream_created_anew_gets_leases_of_its_own_and_the_old_ones_go() -> None:
    bench = Bench("orders", "clicks")
    old, clicks = bench.make("orders"), bench.make("clicks")
    bench.sync.begin()
    bench.clock.advance(10.0)
    new = bench.make("orders", 2)
    assert new != old
    bench.streams.configure((*bench.streams.configured, StreamSettings(name="orders")))  # What was opened is forgotten.
    bench.look(LOOK_S)
    assert bench.keys() == leases_of(new, 2) | leases_of(clicks)


def test_what_a_java_application_calls_its_stream_is_left_alone() -> None:
    """Its creation epoch may be any number: it proves nothing about the stream."""
    bench = Bench("orders")
    orders = bench.make("orders")
    foreign = StreamIdentifier(name="orders", account=orders.account, epoch=1)
    bench.table.create(
        Lease(
            lease_key=foreign.lease_key("shardId-000000000000"),
            checkpoint=AT_TRIM_HORIZON,
            stream_name=str(foreign),
            multi_stream_shard_id="shardId-000000000000",
        )
    )
    bench.sync.begin()
    bench.look(LOOK_S)
    assert bench.keys() == leases_of(orders) | leases_of(foreign)


def test_one_that_names_the_identifier_asks_kinesis_nothing_about_it() -> None:
    bench = Bench()
    given = StreamSettings(name="orders", account="111122223333", epoch=7)
    bench.streams.configure((given,))
    bench.make("orders")
    bench.sync.begin()
    assert bench.keys() == {"111122223333:orders:7:shardId-000000000000"}
    assert "describe" not in bench.kinesis["orders"].requests


# One stream


def test_of_one_stream_there_is_one_sync_when_the_lead_begins() -> None:
    bench = Bench("orders", multi=False)
    bench.make("orders", 2)
    bench.sync.begin()
    assert bench.keys() == {"shardId-000000000000", "shardId-000000000001"}
    assert bench.sync.run_once() is None


def test_leases_that_exist_spare_the_sync_where_that_is_configured() -> None:
    bench = Bench("orders", multi=False, shard_sync=ShardSyncSettings(skip_at_start_if_leases_exist=True))
    bench.make("orders", 2)
    bench.sync.begin()
    assert len(bench.keys()) == 2, "there were none"
    bench.table.delete("shardId-000000000001")
    bench.new_leader().begin()
    assert len(bench.keys()) == 1


def test_a_table_of_the_other_kind_is_refused_before_anything_is_written() -> None:
    one = Bench("orders", multi=False)
    one.make("orders")
    one.sync.begin()
    before = one.table.list_leases()
    several = Bench("orders")
    several.table, several.kinesis = one.table, one.kinesis
    with pytest.raises(MetadataConflict, match="kcl-host migrate-leases"):
        several.new_leader().begin()
    assert one.table.list_leases() == before

    mixed = Bench("orders")
    mixed.make("orders")
    mixed.sync.begin()
    one.table = mixed.table
    with pytest.raises(MetadataConflict, match="streamNames"):
        one.new_leader().begin()


# Streams


def test_the_stream_of_a_lease_is_found_by_name_account_and_epoch() -> None:
    opened: list[StreamSettings] = []

    def open_stream(stream: StreamSettings, settings: Settings) -> StreamAccess:
        opened.append(stream)
        return StreamAccess(InMemoryStream(FakeClock()))

    latest, horizon = InitialPosition(kind="LATEST"), InitialPosition(kind="TRIM_HORIZON")
    arn = "arn:aws:kinesis:eu-west-1:444455556666:stream/orders"
    configured = (
        StreamSettings(name="orders", initial_position=latest),
        StreamSettings(name="orders", account="444455556666", arn=arn, initial_position=horizon),
    )
    settings = msgspec.structs.replace(settings_of("me", streams=configured), multi_stream=True)
    streams = Streams(settings, open_stream)
    ours = streams.of(StreamIdentifier.parse("111122223333:orders:5"))
    theirs = streams.of(StreamIdentifier.parse("444455556666:orders:6"))
    orphan = streams.of(StreamIdentifier.parse("111122223333:clicks:7"))
    assert ours.settings.initial_position == latest and theirs.settings.initial_position == horizon
    assert [(one.name, one.account, one.epoch, one.arn) for one in opened] == [
        ("orders", "111122223333", 5, None),
        ("orders", "444455556666", 6, arn),
        ("clicks", "111122223333", 7, None),
    ]
    assert orphan.settings.initial_position == settings.initial_position
    assert streams.of(StreamIdentifier.parse("111122223333:orders:5")) is ours and len(opened) == 3
