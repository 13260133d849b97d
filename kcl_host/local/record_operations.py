"""Writing and reading records."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from kcl_host.local.account import Account
from kcl_host.local.kinesis_request import KinesisRequest, Operation, PutEntry, need, parse_hash_key
from kcl_host.local.service_error import ServiceError, invalid_argument
from kcl_host.local.shard import LocalShard
from kcl_host.local.shard_operations import hash_key_range
from kcl_host.local.stream import LocalStream

ITERATOR_LIFETIME_S: Final = 300
MAX_PUT_BYTES: Final = 10 * 1024 * 1024
_JSON: Final = msgspec.json.encode


class ShardIterator(msgspec.Struct, frozen=True, array_like=True):
    """What an iterator token carries; `counter` is the next record to read."""

    stream_name: str
    incarnation: int
    generation: int
    shard_id: str
    counter: int
    issued_s: float


class RecordOperations:
    def __init__(self, account: Account) -> None:
        self._account = account
        self.by_name: dict[str, Operation] = {
            "GetRecords": self._get_records,
            "GetShardIterator": self._get_shard_iterator,
            "PutRecord": self._put_record,
            "PutRecords": self._put_records,
        }

    def _put_record(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        entry = PutEntry(
            need(request.data, "data"), need(request.partition_key, "partitionKey"), request.explicit_hash_key
        )
        if not 1 <= len(entry.partition_key) <= 256:
            raise ServiceError("ValidationException", "partitionKey must have 1 to 256 characters")
        answer = self._put(self._account.live(self._account.stream(request)), entry, now_s)
        if "ErrorCode" in answer:
            raise ServiceError(answer["ErrorCode"], answer["ErrorMessage"])
        return answer

    def _put_records(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream, entries = self._account.live(self._account.stream(request)), need(request.records, "records")
        if sum(entry.size_bytes() for entry in entries) > MAX_PUT_BYTES:
            raise invalid_argument("Records size exceeds 10 MB limit")
        answers = [self._put(stream, entry, now_s) for entry in entries]
        return {"FailedRecordCount": sum("ErrorCode" in answer for answer in answers), "Records": answers}

    def _put(self, stream: LocalStream, entry: PutEntry, now_s: float) -> dict[str, Any]:
        size_bytes = entry.size_bytes()
        if size_bytes > stream.max_record_bytes:
            raise ServiceError(
                "ValidationException", f"Record size of {size_bytes} bytes exceeds {stream.max_record_bytes} bytes"
            )
        shard = stream.open_shard_for(hash_key(entry))
        if self._account.enforce_quotas and not shard.quota.write(now_s, size_bytes):
            code = "ProvisionedThroughputExceededException"
            return {"ErrorCode": code, "ErrorMessage": f"Rate exceeded for shard {shard.shard_id}"}
        sequence_number = shard.append(entry.partition_key, entry.data, size_bytes, now_s)
        return {"ShardId": shard.shard_id, "SequenceNumber": sequence_number}

    def _get_shard_iterator(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream = self._account.live(self._account.stream(request))
        shard = stream.shard(need(request.shard_id, "shardId"))
        if self._account.enforce_quotas:
            shard.quota.take_iterator(now_s)
        counter = start_counter(request, stream, shard, now_s)
        return {"ShardIterator": self._iterator(stream, shard, counter, now_s)}

    def _get_records(self, request: KinesisRequest, now_s: float) -> bytes:
        iterator = self._account.seal.open(need(request.shard_iterator, "shardIterator"), ShardIterator)
        if iterator is None:
            raise invalid_argument("Invalid ShardIterator.")
        stream = self._account.live_stream(iterator.stream_name)
        if stream.incarnation != iterator.incarnation:
            raise invalid_argument("Invalid ShardIterator.")
        if now_s - iterator.issued_s > ITERATOR_LIFETIME_S or iterator.generation != stream.iterator_generation:
            raise ServiceError(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at {iterator.issued_s:.3f} while right now it is "
                f"{now_s:.3f}; the tolerated delay is {ITERATOR_LIFETIME_S * 1000} milliseconds.",
            )
        shard = stream.shard(iterator.shard_id)
        if self._account.enforce_quotas:
            shard.quota.start_read(now_s)
        page = shard.read(iterator.counter, request.limit or 10000, now_s)
        if self._account.enforce_quotas:
            shard.quota.finish_read(now_s, page.size_bytes)
        if page.next_counter is None:
            rest = b',"NextShardIterator":null,"ChildShards":' + _JSON([child_shard(child) for child in shard.children])
        else:
            rest = b',"NextShardIterator":"%b"' % self._iterator(stream, shard, page.next_counter, now_s).encode()
        return b'{"Records":[%b],"MillisBehindLatest":%d%b}' % (
            b",".join(page.fragments),
            page.millis_behind_latest,
            rest,
        )

    def _iterator(self, stream: LocalStream, shard: LocalShard, counter: int, now_s: float) -> str:
        generation = stream.iterator_generation
        return self._account.seal.seal(
            ShardIterator(stream.name, stream.incarnation, generation, shard.shard_id, counter, now_s)
        )


def start_counter(request: KinesisRequest, stream: LocalStream, shard: LocalShard, now_s: float) -> int:
    """The first record to read, by iterator type, sequence number or timestamp of the request. Raises ServiceError."""
    kind = need(request.shard_iterator_type, "shardIteratorType")
    if kind == "TRIM_HORIZON":
        return shard.first_counter
    if kind == "LATEST":
        return shard.end_counter
    if kind == "AT_TIMESTAMP":
        timestamp_s = need(request.timestamp, "timestamp")
        if timestamp_s > now_s:
            raise invalid_argument(
                "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {timestamp_s * 1000:.0f}, currentTimestampInMillis: {now_s * 1000:.0f}"
            )
        return shard.counter_at_timestamp(timestamp_s)
    if kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        if request.starting_sequence_number is None:
            raise invalid_argument(f"Must specify startingSequenceNumber for iterator type {kind}.")
        counter = shard.counter_of(request.starting_sequence_number, stream.name)
        after = kind == "AFTER_SEQUENCE_NUMBER"
        return min(max(counter + after, shard.first_counter), shard.end_counter)
    raise ServiceError("ValidationException", f"Value '{kind}' at 'shardIteratorType' is not known")


def hash_key(entry: PutEntry) -> int:
    if entry.explicit_hash_key is not None:
        return parse_hash_key(entry.explicit_hash_key)
    return int.from_bytes(hashlib.md5(entry.partition_key.encode(), usedforsecurity=False).digest(), "big")


def child_shard(shard: LocalShard) -> dict[str, Any]:
    return {"ShardId": shard.shard_id, "ParentShards": list(shard.parents), "HashKeyRange": hash_key_range(shard)}
