"""Lease rows in DynamoDB JSON <-> `Lease`, by the rules of spec lease-table 1.2 to 1.6. Pure.

By hand and not with boto3's deserialiser: types decide here (a NULL owner is no owner, a list is no set of parents),
and numbers stay text until they are integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TIMESTAMP, ExtendedSequenceNumber
from kcl_host.model.shard import HashKeyRange, StreamIdentifier

Item = Mapping[str, Any]
"""Attribute name -> {type: value}."""

LEASE: Final = "LEASE"

_SIX_DIGITS: Final = Decimal("0.000001")
_ANY_FLOAT: Final = Context(prec=330)
_LONG: Final = range(-(2**63), 2**63)


class Undecodable(ValueError):
    """The row is not a valid lease, or whatever it should be."""


# Values as DynamoDB takes them


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


def decimal(value: float) -> dict[str, str]:
    """At most six decimals, half up, never an exponent (Java: BigDecimal.setScale(6, HALF_UP))."""
    return {"N": format(Decimal(str(value)).quantize(_SIX_DIGITS, ROUND_HALF_UP, _ANY_FLOAT).normalize(), "f")}


def text(value: str) -> dict[str, str]:
    return {"S": value}


def text_set(values: Iterable[str]) -> dict[str, list[str]]:
    """A set must not be empty: DynamoDB refuses it."""
    return {"SS": sorted(values)}


# Attributes of a lease, as they are written


def checkpoint_attributes(checkpoint: ExtendedSequenceNumber) -> dict[str, Any]:
    return {
        "checkpoint": text(checkpoint.sequence_number),
        "checkpointSubSequenceNumber": number(checkpoint.sub_sequence_number),
    }


def pending_attributes(pending: ExtendedSequenceNumber, state: bytes | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "pendingCheckpoint": text(pending.sequence_number),
        "pendingCheckpointSubSequenceNumber": number(pending.sub_sequence_number),
    }
    if state is not None:
        attributes["pendingCheckpointState"] = {"B": state}
    return attributes


def hash_key_attributes(hash_key_range: HashKeyRange | None) -> dict[str, Any]:
    """Empty when the range is unknown, or a single key: a Java reader rejects a row whose range has start = end."""
    if hash_key_range is None or hash_key_range.start >= hash_key_range.end:
        return {}
    return {
        "startingHashKey": text(str(hash_key_range.start)),
        "endingHashKey": text(str(hash_key_range.end)),
    }


def multi_stream_attributes(lease: Lease) -> dict[str, Any]:
    """Empty in single-stream mode."""
    if lease.stream_name is None:
        return {}
    return {"streamName": text(lease.stream_name), "shardId": text(lease.shard_id)}


def lease_item(lease: Lease) -> dict[str, Any]:
    """The whole row, as createLeaseIfNotExists writes it: what is unknown is absent, never NULL or empty."""
    item = {
        "leaseKey": text(lease.lease_key),
        "entityType": text(LEASE),
        "leaseCounter": number(lease.lease_counter),
        "ownerSwitchesSinceCheckpoint": number(lease.owner_switches_since_checkpoint),
        **hash_key_attributes(lease.hash_key_range),
        **multi_stream_attributes(lease),
    }
    if lease.checkpoint is not None:
        item |= checkpoint_attributes(lease.checkpoint)
    if lease.pending_checkpoint is not None:
        item |= pending_attributes(lease.pending_checkpoint, lease.pending_checkpoint_state)
    if lease.lease_owner:
        item["leaseOwner"] = text(lease.lease_owner)
    if lease.checkpoint_owner:
        item["checkpointOwner"] = text(lease.checkpoint_owner)
    if lease.parent_shard_ids:
        item["parentShardId"] = text_set(lease.parent_shard_ids)
    if lease.child_shard_ids:
        item["childShardIds"] = text_set(lease.child_shard_ids)
    if lease.throughput_kbps is not None and math.isfinite(lease.throughput_kbps):
        item["throughputKBps"] = decimal(lease.throughput_kbps)
    return item


# Reading


def entity_type(item: Item) -> str | None:
    return read_text(item, "entityType")


def is_lease(item: Item) -> bool:
    """True for rows that are leases or should be: those written before 3.5 carry no entityType."""
    return entity_type(item) in (None, LEASE)


def lease_from(item: Item) -> Lease:
    """Raises Undecodable, naming the attribute, where Java's DynamoDBLeaseSerializer fails.

    Rows of the Rust client pass: a NULL owner is absent, and the time stamp that it keeps in the sub-sequence number of
    AT_TIMESTAMP is dropped.
    """
    lease_key = read_text(item, "leaseKey")
    if lease_key is None:
        raise Undecodable("leaseKey is missing")
    stream_name, shard_id = read_text(item, "streamName"), read_text(item, "shardId")
    if stream_name is not None:
        _require_multi_stream(stream_name, shard_id)
    return Lease(
        lease_key=lease_key,
        checkpoint=_sequence_number(item, "checkpoint", "checkpointSubSequenceNumber"),
        lease_counter=_required_integer(item, "leaseCounter"),
        lease_owner=read_text(item, "leaseOwner"),
        checkpoint_owner=read_text(item, "checkpointOwner"),
        owner_switches_since_checkpoint=_required_integer(item, "ownerSwitchesSinceCheckpoint"),
        parent_shard_ids=_text_set(item, "parentShardId"),
        child_shard_ids=_text_set(item, "childShardIds"),
        hash_key_range=_hash_key_range(item),
        pending_checkpoint=_sequence_number(item, "pendingCheckpoint", "pendingCheckpointSubSequenceNumber"),
        pending_checkpoint_state=_binary(item, "pendingCheckpointState"),
        throughput_kbps=read_float(item, "throughputKBps"),
        stream_name=stream_name,
        multi_stream_shard_id=shard_id if stream_name is not None else None,
    )


def read_text(item: Item, name: str) -> str | None:
    """None for an absent attribute, an empty one, and one of another type, as Java reads it."""
    return item.get(name, {}).get("S") or None


def read_integer(item: Item, name: str) -> int | None:
    """A Java Long; JSON, too, has no place for more."""
    value = _number(item, name)
    if value is None:
        return None
    if value != value.to_integral_value():
        raise Undecodable(f"{name} = {value} is not an integer")
    if not _LONG.start <= value < _LONG.stop:
        raise Undecodable(f"{name} = {value} is no number of 64 bits")
    return int(value)


def read_float(item: Item, name: str) -> float | None:
    value = _number(item, name)
    return None if value is None else float(value)


def _required_integer(item: Item, name: str) -> int:
    value = read_integer(item, name)
    if value is None:
        raise Undecodable(f"{name} is missing")
    return value


def _number(item: Item, name: str) -> Decimal | None:
    if name not in item:
        return None
    try:
        value = Decimal(item[name]["N"])
    except (KeyError, TypeError, InvalidOperation):
        raise Undecodable(f"{name} is not a number") from None
    if not value.is_finite():
        raise Undecodable(f"{name} is not a number")
    return value


def _text_set(item: Item, name: str) -> frozenset[str]:
    return frozenset(item.get(name, {}).get("SS", ()))


def _binary(item: Item, name: str) -> bytes | None:
    if name not in item:
        return None
    if "B" not in item[name]:
        raise Undecodable(f"{name} is not binary")
    return bytes(item[name]["B"])


def _sequence_number(item: Item, name: str, sub_name: str) -> ExtendedSequenceNumber | None:
    sequence_number = read_text(item, name)
    if sequence_number is None:
        return None
    sub_sequence_number = read_integer(item, sub_name) or 0
    if sequence_number == AT_TIMESTAMP:
        sub_sequence_number = 0
    try:
        return ExtendedSequenceNumber(sequence_number, sub_sequence_number)
    except ValueError as error:
        raise Undecodable(f"{name}: {error}") from error


def _hash_key_range(item: Item) -> HashKeyRange | None:
    start, end = read_text(item, "startingHashKey"), read_text(item, "endingHashKey")
    if start is None or end is None:
        return None
    try:
        hash_key_range = HashKeyRange(int(start), int(end))
    except ValueError as error:
        raise Undecodable(f"startingHashKey, endingHashKey: {error}") from error
    if hash_key_range.start >= hash_key_range.end:
        raise Undecodable(f"startingHashKey {start} is not below endingHashKey {end}")
    return hash_key_range


def _require_multi_stream(stream_name: str, shard_id: str | None) -> None:
    if shard_id is None:
        raise Undecodable("streamName without shardId")
    try:
        StreamIdentifier.parse(stream_name)
    except ValueError as error:
        raise Undecodable(f"streamName: {error}") from error
