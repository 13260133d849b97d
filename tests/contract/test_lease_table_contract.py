"""What every lease table does: one write at a time (spec lease-table 5, 13 and the checks of 15)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange, StreamIdentifier
from kcl_host.ports import LeaseTable

KEY = "shardId-000000000003"
NUMBER = "49640000000000000000000000000000000000000000000000000000"


def fresh(key: str = KEY, **fields: Any) -> Lease:
    return Lease(
        **{
            "lease_key": key,
            "checkpoint": AT_TRIM_HORIZON,
            "parent_shard_ids": frozenset({"shardId-000000000001", "shardId-000000000002"}),
            "hash_key_range": HashKeyRange(0, MAX_HASH_KEY),
            **fields,
        }
    )


def seeded(table: LeaseTable, **fields: Any) -> Lease:
    """A row as given, which is read back."""
    lease = fresh(**fields)
    assert table.create(lease)
    assert table.get(lease.lease_key) == lease
    return lease


def changed(lease: Lease, **fields: Any) -> Lease:
    return msgspec.structs.replace(lease, **fields)


# Create, read, delete


def test_create_writes_the_whole_row_and_only_once(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table)
    assert not lease_table.create(changed(lease, checkpoint=AT_SHARD_END))
    assert lease_table.get(KEY) == lease


@pytest.mark.parametrize(
    "fields",
    [
        {"parent_shard_ids": frozenset(), "hash_key_range": None},
        {"checkpoint": ExtendedSequenceNumber("LATEST")},
        {"checkpoint": ExtendedSequenceNumber("AT_TIMESTAMP")},
        {"checkpoint": ExtendedSequenceNumber(NUMBER, 7), "lease_counter": 2**40, "lease_owner": "a"},
        {"lease_owner": "b", "checkpoint_owner": "a", "owner_switches_since_checkpoint": 3},
        {"pending_checkpoint": ExtendedSequenceNumber(NUMBER, 1), "pending_checkpoint_state": b"\x00\xff"},
        {"throughput_kbps": 12.345678, "child_shard_ids": frozenset({"shardId-000000000009"})},
        {
            "key": f"123456789012:orders:1700000000:{KEY}",
            "stream_name": "123456789012:orders:1700000000",
            "multi_stream_shard_id": KEY,
        },
    ],
    ids=lambda fields: "+".join(fields),
)
def test_every_attribute_survives_the_table(lease_table: LeaseTable, fields: dict[str, Any]) -> None:
    lease = seeded(lease_table, **fields)
    assert lease_table.list_leases().leases == (lease,)


def test_a_row_that_is_not_there(lease_table: LeaseTable) -> None:
    assert lease_table.get(KEY) is None
    lease_table.delete(KEY)
    assert lease_table.is_empty()


def test_delete_needs_nothing(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a")
    assert not lease_table.is_empty()
    lease_table.delete(lease.lease_key)
    assert lease_table.get(KEY) is None
    assert lease_table.is_empty()


def test_listing_of_one_stream(lease_table: LeaseTable) -> None:
    rows = {}
    for stream in ("123456789012:orders:1700000000", "123456789012:returns:1700000000"):
        rows[stream] = seeded(lease_table, key=f"{stream}:{KEY}", stream_name=stream, multi_stream_shard_id=KEY)
    for stream, lease in rows.items():
        assert lease_table.list_leases(StreamIdentifier.parse(stream)).leases == (lease,)
    assert set(lease_table.list_leases().leases) == set(rows.values())


def test_the_index_names_leases_by_leaseOwner(lease_table: LeaseTable) -> None:
    seeded(lease_table, key="s1", lease_owner="a")
    seeded(lease_table, key="s2", lease_owner="b", checkpoint_owner="a")
    seeded(lease_table, key="s3")
    assert lease_table.lease_keys_of("a") == ["s1"]
    assert lease_table.lease_keys_of("b") == ["s2"]
    assert lease_table.lease_keys_of("c") == []


@pytest.mark.parametrize("consistent", [True, False])
def test_rows_of_many_keys(lease_table: LeaseTable, consistent: bool) -> None:
    leases = {seeded(lease_table, key=f"s{n:03}", lease_counter=n).lease_key for n in range(120)}
    asked = [*leases, "s000", "missing"]
    rows = lease_table.get_all(asked, consistent=consistent)
    assert {row.lease_key: row.lease_counter for row in rows} == {f"s{n:03}": n for n in range(120)}
    assert len(rows) == 120, "a key asked for twice is answered once"
    assert lease_table.get_all([], consistent=consistent) == []


# Renew: checks 1, 2, 3, 8


def test_renew_changes_the_counter_and_nothing_else(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=5, throughput_kbps=1.5)
    assert lease_table.renew(lease, None).applied
    assert lease_table.get(KEY) == changed(lease, lease_counter=6)


def test_renew_writes_the_throughput_that_is_known(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a")
    assert lease_table.renew(lease, 103.2500004).applied
    assert lease_table.get(KEY) == changed(lease, lease_counter=1, throughput_kbps=103.25)


def test_renew_does_not_look_at_the_owner(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a")
    assert lease_table.renew(changed(lease, lease_owner="b"), None).applied


def test_renew_of_a_counter_that_moved_returns_the_row(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=5)
    outcome = lease_table.renew(changed(lease, lease_counter=4), None)
    assert not outcome.applied
    assert outcome.row == lease == lease_table.get(KEY)


def test_renew_of_a_missing_row_creates_nothing(lease_table: LeaseTable) -> None:
    outcome = lease_table.renew(fresh(lease_owner="a"), 1.0)
    assert (outcome.applied, outcome.row) == (False, None)
    assert lease_table.get(KEY) is None


def test_a_handover_announces_itself_to_the_renewing_owner(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=5)
    assert lease_table.initiate_handoff(lease, "b").applied
    refused = lease_table.renew(lease, None)
    pending = changed(lease, lease_owner="b", checkpoint_owner="a")
    assert not refused.applied
    assert refused.row == pending
    assert lease_table.renew(pending, None).applied
    assert lease_table.renew(changed(pending, lease_counter=6), None).applied
    # the transfer moves the counter, so the old owner's next renewal fails
    assert lease_table.assign(changed(pending, lease_counter=7), "b").applied
    late = lease_table.renew(changed(pending, lease_counter=7), None)
    assert not late.applied
    assert late.row == changed(lease, lease_owner="b", lease_counter=8)


# Assign: check 5 and the rule for ownerSwitchesSinceCheckpoint


@pytest.mark.parametrize(
    ("owner", "checkpoint_owner", "to", "switches"),
    [
        (None, None, "x", 0),
        ("a", None, "b", 1),
        ("a", None, "a", 0),
        ("b", "a", "b", 0),
        ("b", "a", "a", 1),
        ("b", "a", "c", 1),
    ],
)
def test_assign(
    lease_table: LeaseTable, owner: str | None, checkpoint_owner: str | None, to: str, switches: int
) -> None:
    lease = seeded(
        lease_table,
        lease_owner=owner,
        checkpoint_owner=checkpoint_owner,
        lease_counter=9,
        owner_switches_since_checkpoint=2,
    )
    outcome = lease_table.assign(lease, to)
    after = changed(
        lease,
        lease_owner=to,
        checkpoint_owner=None,
        lease_counter=10,
        owner_switches_since_checkpoint=2 + switches,
    )
    assert outcome.applied
    assert outcome.row == after == lease_table.get(KEY)


def test_assign_does_not_mind_heartbeats(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a")
    assert lease_table.renew(lease, None).applied
    outcome = lease_table.assign(lease, "b")
    assert outcome.applied
    assert outcome.row == changed(lease, lease_owner="b", lease_counter=2, owner_switches_since_checkpoint=1)


@pytest.mark.parametrize(
    "as_read",
    [
        {"lease_owner": None, "checkpoint_owner": None},
        {"lease_owner": "c", "checkpoint_owner": "a"},
        {"lease_owner": "b", "checkpoint_owner": None},
        {"lease_owner": "b", "checkpoint_owner": "c"},
        {"lease_owner": "a", "checkpoint_owner": None},
    ],
)
def test_assign_and_evict_need_the_owners_as_they_were_read(
    lease_table: LeaseTable, as_read: dict[str, str | None]
) -> None:
    lease = seeded(lease_table, lease_owner="b", checkpoint_owner="a", lease_counter=3)
    for outcome in (
        lease_table.assign(changed(lease, **as_read), "d"),
        lease_table.evict(changed(lease, **as_read)),
    ):
        assert not outcome.applied
        assert outcome.row == lease
    assert lease_table.get(KEY) == lease


@pytest.mark.parametrize("owner", [None, "a"])
def test_assign_and_evict_on_a_deleted_row_create_nothing(lease_table: LeaseTable, owner: str | None) -> None:
    lease = fresh(lease_owner=owner)
    assert lease_table.assign(lease, "b").row is None
    assert not lease_table.evict(lease).applied
    assert lease_table.get(KEY) is None


# Initiate handoff: checks 2 and 4


def test_initiate_handoff_leaves_the_counter_alone(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=7, owner_switches_since_checkpoint=1)
    outcome = lease_table.initiate_handoff(lease, "b")
    assert outcome.applied
    assert outcome.row == changed(lease, lease_owner="b", checkpoint_owner="a") == lease_table.get(KEY)


@pytest.mark.parametrize(
    "row",
    [
        {"lease_owner": "b", "checkpoint_owner": "a"},
        {"lease_owner": "a", "checkpoint_owner": "a"},
        {"lease_owner": "c"},
        {"lease_owner": None},
    ],
)
def test_initiate_handoff_needs_the_owner_and_no_other_handover(
    lease_table: LeaseTable, row: dict[str, str | None]
) -> None:
    lease = seeded(lease_table, **row)
    outcome = lease_table.initiate_handoff(changed(lease, lease_owner="a", checkpoint_owner=None), "d")
    assert not outcome.applied
    assert outcome.row == lease == lease_table.get(KEY)


def test_initiate_handoff_on_a_deleted_row_creates_nothing(lease_table: LeaseTable) -> None:
    assert not lease_table.initiate_handoff(fresh(lease_owner="a"), "b").applied
    assert lease_table.get(KEY) is None


# Evict: check 6


def test_evict_takes_the_owner_away(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=3)
    assert lease_table.evict(lease).applied
    assert lease_table.get(KEY) == changed(lease, lease_owner=None, lease_counter=4)
    assert lease_table.lease_keys_of("a") == []


def test_evict_of_a_pending_row_keeps_the_next_owner(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="b", checkpoint_owner="a", lease_counter=3)
    assert lease_table.evict(lease).applied
    assert lease_table.get(KEY) == changed(lease, checkpoint_owner=None, lease_counter=4)


# Checkpoint and prepare


def test_checkpoint_is_a_heartbeat_and_ends_what_was_prepared(lease_table: LeaseTable) -> None:
    lease = seeded(
        lease_table,
        lease_owner="a",
        lease_counter=3,
        owner_switches_since_checkpoint=2,
        throughput_kbps=2.5,
        pending_checkpoint=ExtendedSequenceNumber(NUMBER, 5),
        pending_checkpoint_state=b"state",
    )
    position = ExtendedSequenceNumber(NUMBER, 4)
    assert lease_table.checkpoint(lease, position).applied
    assert lease_table.get(KEY) == changed(
        lease,
        checkpoint=position,
        lease_counter=4,
        owner_switches_since_checkpoint=0,
        pending_checkpoint=None,
        pending_checkpoint_state=None,
    )


def test_checkpoint_goes_on_during_a_handover(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=3)
    assert lease_table.initiate_handoff(lease, "b").applied
    # before the old owner has noticed, too: its view of the owners is not in the condition
    assert lease_table.checkpoint(lease, AT_SHARD_END).applied
    row = changed(lease, lease_owner="b", checkpoint_owner="a", lease_counter=4, checkpoint=AT_SHARD_END)
    assert lease_table.get(KEY) == row


def test_checkpoint_with_an_old_counter_is_refused(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=3)
    outcome = lease_table.checkpoint(changed(lease, lease_counter=2), AT_SHARD_END)
    assert not outcome.applied
    assert outcome.row == lease == lease_table.get(KEY)


def test_checkpoint_of_a_deleted_row_creates_nothing(lease_table: LeaseTable) -> None:
    assert lease_table.checkpoint(fresh(lease_owner="a"), AT_SHARD_END).row is None
    assert lease_table.get(KEY) is None


def test_prepare_is_conditional_on_the_counter_alone(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=3)
    pending = ExtendedSequenceNumber(NUMBER)
    outcome = lease_table.prepare_checkpoint(changed(lease, lease_counter=2), pending, None)
    assert not outcome.applied
    assert outcome.row == lease == lease_table.get(KEY)
    assert lease_table.initiate_handoff(lease, "b").applied
    assert lease_table.prepare_checkpoint(lease, pending, None).applied
    assert lease_table.get(KEY) == changed(
        lease, lease_owner="b", checkpoint_owner="a", lease_counter=4, pending_checkpoint=pending
    )
    missing = fresh(lease_key="missing", lease_owner="a")
    assert lease_table.prepare_checkpoint(missing, pending, None).row is None
    assert lease_table.get("missing") is None


@pytest.mark.parametrize("state", [None, b"", b"\x01"])
def test_prepare_keeps_the_checkpoint(lease_table: LeaseTable, state: bytes | None) -> None:
    lease = seeded(
        lease_table,
        lease_owner="a",
        owner_switches_since_checkpoint=1,
        pending_checkpoint=ExtendedSequenceNumber("1"),
        pending_checkpoint_state=b"old",
    )
    pending = ExtendedSequenceNumber(NUMBER, 2)
    assert lease_table.prepare_checkpoint(lease, pending, state).applied
    prepared = changed(lease, lease_counter=1, pending_checkpoint=pending, pending_checkpoint_state=state)
    assert lease_table.get(KEY) == prepared
    # what is prepared outlives heartbeats and a change of owner
    assert lease_table.renew(prepared, 1.0).applied
    assert lease_table.assign(prepared, "b").applied
    assert lease_table.get(KEY) == changed(
        prepared, lease_counter=3, lease_owner="b", owner_switches_since_checkpoint=2, throughput_kbps=1.0
    )


# Meta information: check 10


def test_meta_information_touches_neither_counter_nor_owner(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, lease_owner="a", lease_counter=3, hash_key_range=None)
    children = frozenset({"shardId-000000000004", "shardId-000000000005"})
    assert lease_table.write_child_shards(KEY, children)
    assert lease_table.write_hash_key_range(KEY, HashKeyRange(1, 2))
    assert lease_table.get(KEY) == changed(lease, child_shard_ids=children, hash_key_range=HashKeyRange(1, 2))


def test_meta_information_of_a_deleted_row_creates_nothing(lease_table: LeaseTable) -> None:
    assert not lease_table.write_child_shards(KEY, frozenset({"x"}))
    assert not lease_table.write_hash_key_range(KEY, HashKeyRange(1, 2))
    assert lease_table.get(KEY) is None


def test_a_range_of_one_key_is_never_written(lease_table: LeaseTable) -> None:
    lease = seeded(lease_table, hash_key_range=None)
    assert not lease_table.write_hash_key_range(KEY, HashKeyRange(7, 7))
    assert lease_table.get(KEY) == lease


# The table


def test_the_table_is_created_once_with_its_index(lease_table: LeaseTable) -> None:
    state = lease_table.describe()
    assert state is not None
    assert (state.status, state.index_status) == ("ACTIVE", "ACTIVE")
    assert not lease_table.create_table()
    lease_table.create_index()
    assert lease_table.describe() == state
