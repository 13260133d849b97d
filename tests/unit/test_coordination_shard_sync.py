"""The shell of a shard sync: what happens when things go wrong around the decision."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from shard_scenarios import Shards, Table

from kcl_host.config.settings import ShardSyncSettings
from kcl_host.coordination.shard_sync import ShardSync, ShardSyncFailed, ShardSyncResult
from kcl_host.errors import RetryLater, StreamNotFound, Throttled
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber, InitialPosition
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange, Shard, ShardFilter, StreamIdentifier


def shards(count: int) -> list[Shard]:
    width = (MAX_HASH_KEY + 1) // count
    return [
        Shard(
            shard_id=f"s{n}",
            hash_key_range=HashKeyRange(n * width, (n + 1) * width - 1 if n < count - 1 else MAX_HASH_KEY),
            starting_sequence_number=str(n + 1),
        )
        for n in range(count)
    ]


def make(stream: Any, table: Any, identifier: str = "orders") -> ShardSync:
    def no_pause(pause_s: float) -> None:
        raise AssertionError(f"a pause of {pause_s} s")

    parsed = StreamIdentifier.parse(identifier)
    return ShardSync(stream, table, parsed, InitialPosition(kind="TRIM_HORIZON"), ShardSyncSettings(), no_pause)


def test_after_an_error_in_the_middle_the_next_pass_adds_the_rest() -> None:
    stream, table = Shards(shards(3)), Table()
    failures = iter([None, Throttled("slow down")])
    table.error = lambda operation: next(failures, None) if operation == "create" else None
    shard_sync = make(stream, table)
    with pytest.raises(Throttled):
        shard_sync.run()
    assert list(table.rows) == ["s0"]
    assert shard_sync.run() == ShardSyncResult(created=("s1", "s2"), synced=True)


def test_a_stream_that_is_gone_is_quiet_once_leases_exist() -> None:
    class Gone(Shards):
        def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
            raise StreamNotFound()

    with pytest.raises(StreamNotFound):
        make(Gone(), Table()).run()
    table = Table([Lease(lease_key="s0", checkpoint=ExtendedSequenceNumber("1"))])
    assert make(Gone(), table).run() == ShardSyncResult()


def test_a_failure_says_what_which_shard_and_what_to_do() -> None:
    parent, child = (
        shards(1)[0],
        Shard(
            shard_id="c",
            hash_key_range=HashKeyRange(0, MAX_HASH_KEY),
            starting_sequence_number="2",
            parent_shard_id="s0",
        ),
    )
    table = Table([Lease(lease_key="other", checkpoint=ExtendedSequenceNumber("1"))])
    with pytest.raises(RetryLater) as failure:
        make(Shards([parent, child]), table).run()
    assert isinstance(failure.value, ShardSyncFailed)
    assert str(failure.value) == (
        "shard sync of stream orders failed, shards are listed whose parents are still open "
        "(ignoreUnexpectedChildShards skips them): c"
    )


def test_unreadable_rows_are_not_taken_for_missing_ones() -> None:
    known = Lease(lease_key="s0", checkpoint=ExtendedSequenceNumber("1"))
    assert make(Shards(shards(2)), Table([known], undecodable=["s1"])).run() == ShardSyncResult(synced=True)


def test_in_multi_stream_mode_only_leases_of_the_stream_are_read() -> None:
    asked: list[StreamIdentifier | None] = []

    class Watched(Table):
        def list_leases(self, stream: StreamIdentifier | None = None) -> Any:
            asked.append(stream)
            return super().list_leases(stream)

    identifier = "123456789012:orders:1700000000"
    other = Lease(lease_key="1:other:1:s0", checkpoint=ExtendedSequenceNumber("1"), stream_name="1:other:1")
    result = make(Shards(shards(1)), Watched([other]), identifier).run()
    assert result.created == (f"{identifier}:s0",)
    assert asked == [StreamIdentifier.parse(identifier)]


def test_two_passes_never_run_at_once() -> None:
    second_listed = threading.Event()

    class Watched(Shards):
        def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
            if threading.current_thread() is second:
                second_listed.set()
            else:
                second.start()
                assert not second_listed.wait(0.1), "the second pass came in beside the first"
            return super().list_shards(shard_filter)

    table = Table()
    shard_sync = make(Watched(shards(4)), table)
    second = threading.Thread(target=shard_sync.run)
    try:
        shard_sync.run()
    finally:
        second.join(10)
    assert second_listed.is_set()
    assert len(table.created) == 4
