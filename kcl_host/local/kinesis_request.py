"""Kinesis requests as typed values. One struct for all operations: the names mean the same in each of them."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from kcl_host.local.service_error import ServiceError, invalid_argument

_T = TypeVar("_T")
_Count = Annotated[int, msgspec.Meta(ge=1, le=10000)]


class PutEntry(msgspec.Struct, frozen=True, rename="pascal"):
    """`data` is base64."""

    data: str
    partition_key: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    explicit_hash_key: str | None = None

    def size_bytes(self) -> int:
        """Data and partition key, as quotas and the record size limit count them. Raises when it is no base64."""
        try:
            data = binascii.a2b_base64(self.data, strict_mode=True)
        except (binascii.Error, ValueError):
            raise ServiceError("SerializationException", "Data is not base64") from None
        return len(data) + len(self.partition_key.encode())


class ListFilter(msgspec.Struct, frozen=True, rename="pascal"):
    type: str
    shard_id: str | None = None
    timestamp: float | None = None


class StartingPosition(msgspec.Struct, frozen=True, rename="pascal"):
    type: str
    sequence_number: str | None = None
    timestamp: float | None = None


class StreamModeDetails(msgspec.Struct, frozen=True, rename="pascal"):
    stream_mode: str


class KinesisRequest(msgspec.Struct, frozen=True, rename="pascal"):
    """A request of any operation; None is a parameter that was not given. Timestamps are epoch seconds."""

    stream_name: str | None = None
    stream_arn: str | None = msgspec.field(default=None, name="StreamARN")
    shard_id: str | None = None
    shard_iterator_type: str | None = None
    starting_sequence_number: str | None = None
    timestamp: float | None = None
    shard_iterator: str | None = None
    limit: _Count | None = None
    max_results: _Count | None = None
    next_token: str | None = None
    exclusive_start_shard_id: str | None = None
    exclusive_start_stream_name: str | None = None
    exclusive_start_tag_key: str | None = None
    shard_filter: ListFilter | None = None
    records: Annotated[list[PutEntry], msgspec.Meta(min_length=1, max_length=500)] | None = None
    data: str | None = None
    partition_key: str | None = None
    explicit_hash_key: str | None = None
    shard_count: int | None = None
    stream_mode_details: StreamModeDetails | None = None
    target_shard_count: int | None = None
    scaling_type: str | None = None
    shard_to_split: str | None = None
    new_starting_hash_key: str | None = None
    shard_to_merge: str | None = None
    adjacent_shard_to_merge: str | None = None
    retention_period_hours: int | None = None
    max_record_size_in_ki_b: int | None = msgspec.field(default=None, name="MaxRecordSizeInKiB")
    enforce_consumer_deletion: bool = False
    consumer_name: str | None = None
    consumer_arn: str | None = msgspec.field(default=None, name="ConsumerARN")
    starting_position: StartingPosition | None = None
    tags: dict[str, str] | None = None
    tag_keys: list[str] | None = None


Operation = Callable[[KinesisRequest, float], bytes | dict[str, Any] | None]
"""An operation at an instant (epoch seconds): its answer as JSON text, as a value to encode, or without a body."""

_DECODER = msgspec.json.Decoder(KinesisRequest)


def parse_request(body: bytes) -> KinesisRequest:
    """Raises ServiceError: ValidationException for a wrong value, SerializationException for what is not JSON."""
    try:
        return _DECODER.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise ServiceError("ValidationException", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServiceError("SerializationException", str(error)) from error


def need(value: _T | None, name: str) -> _T:
    """The value of a required parameter; raises ServiceError when it was not given."""
    if value is None:
        raise ServiceError("ValidationException", f"Value null at '{name}' failed to satisfy constraint: not null")
    return value


def parse_hash_key(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**128:
        raise invalid_argument(f"Invalid hash key {text!r}: it must be a decimal number below 2^128")
    return int(text)
