"""The Kinesis stand-in without its HTTP: a JSON request in, the JSON body of the answer out.

`serve` is what the HTTP binding calls; the other methods do the same for callers in this process. SubscribeToShard
needs HTTP (subscribe.py). Not served: encryption, resource policies. Errors are ServiceError everywhere.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kcl_host.local.account import Account, Durations, name_in
from kcl_host.local.consumer_operations import ConsumerOperations
from kcl_host.local.kinesis_request import PutEntry, parse_request
from kcl_host.local.record_operations import RecordOperations, ShardIterator, hash_key
from kcl_host.local.service_error import ServiceError
from kcl_host.local.shard import StoredRecord
from kcl_host.local.shard_operations import ShardOperations
from kcl_host.local.stream_operations import StreamOperations


class KinesisService:
    """Streams and their operations; thread-safe. `clock` gives epoch seconds."""

    def __init__(self, clock: Callable[[], float] = time.time, *, enforce_quotas: bool = False) -> None:
        self._account = Account(clock, enforce_quotas=enforce_quotas)
        self._consumers = ConsumerOperations(self._account)
        self._operations = (
            StreamOperations(self._account).by_name
            | ShardOperations(self._account).by_name
            | RecordOperations(self._account).by_name
            | self._consumers.by_name
        )

    @property
    def durations(self) -> Durations:
        """How long streams stay CREATING, UPDATING, DELETING; to be changed in place."""
        return self._account.durations

    def enforce_quotas(self, enforce: bool = True) -> None:
        """Whether the per-shard quotas of the service are checked; off at first."""
        self._account.enforce_quotas = enforce

    def serve(self, operation: str, body: bytes) -> bytes:
        """The body of a 200 answer."""
        act = self._operations.get(operation)
        if act is None:
            raise ServiceError("UnknownOperationException", f"the embedded Kinesis does not know {operation}")
        request = parse_request(body)
        with self._account.at_now() as now_s:
            answer = act(request, now_s)
        if answer is None:
            return b""
        return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)

    def fault_keys(self, operation: str, body: bytes) -> frozenset[str]:
        """The stream name and shard ids that a request is about, those inside its iterator included."""
        try:
            request = parse_request(body)
        except ServiceError:
            return frozenset()
        iterator = self._account.seal.open(request.shard_iterator or "", ShardIterator)
        named = (
            request.stream_name,
            request.stream_arn and name_in(request.stream_arn),
            request.consumer_arn and name_in(request.consumer_arn.partition("/consumer/")[0]),
            request.shard_id,
            request.shard_to_split,
            request.shard_to_merge,
            iterator and iterator.stream_name,
            iterator and iterator.shard_id,
        )
        return frozenset(name for name in named if name)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Any operation, without HTTP: `call("DeleteStream", StreamName=...)`. Data is base64 text here."""
        answer = self.serve(operation, msgspec.json.encode(parameters))
        return dict(msgspec.json.decode(answer)) if answer else {}

    def create_stream(self, name: str, shard_count: int) -> None:
        self.call("CreateStream", StreamName=name, ShardCount=shard_count)

    def split_shard(self, stream_name: str, shard_id: str, new_starting_hash_key: int | None = None) -> None:
        """In the middle when no hash key is given."""
        with self._account.at_now() as now_s:
            stream = self._account.stream_named(stream_name)
            stream.split(shard_id, new_starting_hash_key, now_s, self._account.reshard_due(now_s))

    def merge_shards(self, stream_name: str, shard_id: str, adjacent_shard_id: str) -> None:
        with self._account.at_now() as now_s:
            stream = self._account.stream_named(stream_name)
            stream.merge(shard_id, adjacent_shard_id, now_s, self._account.reshard_due(now_s))

    def put_records(self, stream_name: str, records: Iterable[tuple[str, bytes]]) -> list[str]:
        """Stores (partition key, data) pairs, quotas aside; returns their sequence numbers."""
        sequence_numbers = []
        with self._account.at_now() as now_s:
            stream = self._account.live_stream(stream_name)
            for partition_key, data in records:
                entry = PutEntry(b64encode(data).decode(), partition_key)
                shard = stream.open_shard_for(hash_key(entry))
                sequence_numbers.append(shard.append(partition_key, entry.data, entry.size_bytes(), now_s))
        return sequence_numbers

    def open_shard_ids(self, stream_name: str) -> list[str]:
        """Ordered by hash key range."""
        with self._account.at_now():
            return [shard.shard_id for shard in self._account.stream_named(stream_name).open_shards]

    def stored_records(self, stream_name: str) -> dict[str, list[StoredRecord]]:
        """Everything the stream holds, by shard id, in the order of each shard."""
        with self._account.at_now():
            return {shard.shard_id: shard.stored() for shard in self._account.stream_named(stream_name).shards}

    def expire_iterators(self, stream_name: str) -> None:
        """Every iterator given out so far answers ExpiredIteratorException from now on."""
        with self._account.at_now():
            self._account.stream_named(stream_name).iterator_generation += 1
