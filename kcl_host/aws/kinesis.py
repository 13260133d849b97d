"""One Kinesis stream: listing and polling.

GetRecords does not go through botocore's response parser, which takes ten times as long as everything else together
(spec environment 2): a parser factory wrapped around the stock one hands the body of that one answer to msgspec, and
the body of SubscribeToShard, which goes on, to subscribe.py.
Endpoint, signature and errors stay botocore's (but see direct_reads.py, for which that parser decodes, too). The
factory is a component of the session, not a documented interface; whatever it cannot decode goes to the stock parser,
and `_page_from_stock` reads what that returns.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from botocore.session import Session

from kcl_host.aws.faults import Resource, error_code, translated
from kcl_host.errors import ExpiredIterator, InvalidPosition, KclHostError, Throttled, Unavailable
from kcl_host.model.records import Record, RecordsPage
from kcl_host.model.sequence import IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard, ShardFilter, StreamSummary

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

_FAST: Final = "KclHostPage"
"""Key under which the wrapped parser returns the typed answer."""
RAW_EVENTS: Final = "KclHostEvents"
"""Key under which it returns the body of SubscribeToShard."""
_MEANT_BY_READS: Final[Mapping[str, type[KclHostError]]] = {
    "ExpiredIteratorException": ExpiredIterator,
    "InvalidArgumentException": InvalidPosition,
    "ValidationException": InvalidPosition,
}


class KinesisStream:
    """Implements ports.Stream. Thread-safe. With `arn` requests name the stream by it, which works across accounts."""

    def __init__(
        self,
        client: KinesisClient,
        name: str,
        arn: str | None = None,
        *,
        list_shards_backoff_s: float = 1.5,
        list_shards_max_attempts: int = 50,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._name = name
        self._arn: dict[str, Any] = {"StreamARN": arn} if arn else {}
        self._stream: dict[str, Any] = self._arn or {"StreamName": name}
        self._resource = Resource("kinesis", name)
        self._backoff_s = list_shards_backoff_s
        self._max_attempts = list_shards_max_attempts
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"<KinesisStream {self._name}>"

    def describe(self) -> StreamSummary:
        with translated(self._resource):
            summary = self._client.describe_stream_summary(**self._stream)["StreamDescriptionSummary"]
        return StreamSummary(
            name=summary["StreamName"],
            arn=summary["StreamARN"],
            status=summary["StreamStatus"],
            open_shard_count=summary["OpenShardCount"],
            retention_hours=summary["RetentionPeriodHours"],
            creation_s=summary["StreamCreationTimestamp"].timestamp(),
        )

    def list_shards(self, shard_filter: ShardFilter | None = None) -> list[Shard] | None:
        """One complete listing, all pages; None when the stream is neither ACTIVE nor UPDATING.

        A throttled page is asked for again after `list_shards_backoff_s`, as KCL's KinesisShardDetector does; Throttled
        when that did not help `list_shards_max_attempts` times.
        """
        request: dict[str, Any] = dict(self._stream)
        if shard_filter is not None:
            request["ShardFilter"] = {"Type": shard_filter.type}
            if shard_filter.timestamp_s is not None:
                request["ShardFilter"]["Timestamp"] = _time_stamp(shard_filter.timestamp_s)
        shards: list[Shard] = []
        while True:
            answer = self._list_page(request)
            if answer is None:
                return None
            shards += [_shard(shard) for shard in answer["Shards"]]
            if not (token := answer.get("NextToken")):
                return shards
            request = {"NextToken": token}

    def get_shard_iterator(self, shard_id: str, position: IteratorPosition) -> str:
        """Raises InvalidPosition; StreamNotFound also when only the shard is gone.

        botocore sends milliseconds of a time stamp, older versions whole seconds; what is cut off makes it earlier.
        """
        request: dict[str, Any] = {**self._stream, "ShardId": shard_id, "ShardIteratorType": position.type}
        if position.sequence_number is not None:
            request["StartingSequenceNumber"] = position.sequence_number
        if position.timestamp_s is not None:
            request["Timestamp"] = _time_stamp(position.timestamp_s)
        with translated(self._resource, _MEANT_BY_READS):
            return self._client.get_shard_iterator(**request)["ShardIterator"]

    def get_records(self, iterator: str, limit: int) -> RecordsPage:
        """Raises ExpiredIterator, InvalidPosition; StreamNotFound also when only the shard is gone."""
        with translated(self._resource, _MEANT_BY_READS):
            answer: Any = self._client.get_records(ShardIterator=iterator, Limit=limit, **self._arn)
        return page_of(answer[_FAST]) if _FAST in answer else _page_from_stock(answer)

    def _list_page(self, request: dict[str, Any]) -> Any:
        """None when the stream is being created or deleted."""
        for attempt in range(1, self._max_attempts + 1):
            try:
                with translated(self._resource):
                    try:
                        return self._client.list_shards(**request)
                    except self._client.exceptions.ResourceInUseException:
                        return None
            except Throttled as error:
                limited = error_code(error.__cause__) == "LimitExceededException"  # type: ignore[arg-type]
                if not limited or attempt == self._max_attempts:
                    raise
                self._sleep(self._backoff_s)
        raise AssertionError("max_attempts is at least 1")


def arn_of(client: KinesisClient, account: str, name: str) -> str:
    """The ARN of a stream in the region of the client, as Java builds it where it is not given (shard-sync 8.3)."""
    return f"arn:{client.meta.partition}:kinesis:{client.meta.region_name}:{account}:stream/{name}"


def _time_stamp(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


def _shard(shard: Any) -> Shard:
    sequence_numbers = shard["SequenceNumberRange"]
    return Shard(
        shard_id=shard["ShardId"],
        hash_key_range=_hash_key_range(shard["HashKeyRange"]),
        starting_sequence_number=sequence_numbers["StartingSequenceNumber"],
        ending_sequence_number=sequence_numbers.get("EndingSequenceNumber"),
        parent_shard_id=shard.get("ParentShardId") or None,
        adjacent_parent_shard_id=shard.get("AdjacentParentShardId") or None,
    )


def _hash_key_range(hash_key_range: Any) -> HashKeyRange:
    return HashKeyRange(int(hash_key_range["StartingHashKey"]), int(hash_key_range["EndingHashKey"]))


# GetRecords


class _WireRecord(msgspec.Struct, gc=False, rename="pascal"):
    sequence_number: str
    partition_key: str
    data: str
    approximate_arrival_timestamp: float = 0.0


class _WireRange(msgspec.Struct, gc=False, rename="pascal"):
    starting_hash_key: str
    ending_hash_key: str


class _WireChildShard(msgspec.Struct, gc=False, rename="pascal"):
    shard_id: str
    parent_shards: list[str]
    hash_key_range: _WireRange


class WirePage(msgspec.Struct, gc=False, rename="pascal"):
    records: list[_WireRecord]
    next_shard_iterator: str | None = None
    millis_behind_latest: int | None = None
    child_shards: list[_WireChildShard] | None = None
    continuation_sequence_number: str | None = None
    """Of an event of SubscribeToShard, in place of the iterator."""


_decode: Final = msgspec.json.Decoder(WirePage).decode


def install_fast_get_records(session: Session) -> None:
    """Clients made from `session` after this decode GetRecords with msgspec and leave SubscribeToShard raw."""
    stock = session.get_component("response_parser_factory")
    session.register_component("response_parser_factory", _ParserFactory(stock))


class _ParserFactory:
    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def create_parser(self, protocol_name: str) -> _Parser:
        return _Parser(self._stock.create_parser(protocol_name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


class _Parser:
    """Takes over for a good JSON answer to GetRecords, and for SubscribeToShard once it is accepted."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock

    def parse(self, response: Mapping[str, Any], shape: Any) -> Any:
        if shape is not None and shape.name == "GetRecordsOutput" and response["status_code"] == 200:
            try:
                page = _decode(response["body"])
            except msgspec.MsgspecError:
                pass
            else:
                return {_FAST: page, "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": response["headers"]}}
        if shape is not None and shape.name == "SubscribeToShardOutput" and response["status_code"] == 200:
            return {RAW_EVENTS: response["body"], "ResponseMetadata": {"HTTPStatusCode": 200}}
        return self._stock.parse(response, shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def page_of(wire: WirePage) -> RecordsPage:
    records = [
        Record(r.data, r.partition_key, r.sequence_number, round(r.approximate_arrival_timestamp * 1000))
        for r in wire.records
    ]
    return RecordsPage(
        records=records,
        next_iterator=wire.next_shard_iterator or wire.continuation_sequence_number,
        millis_behind_latest=wire.millis_behind_latest,
        child_shards=tuple(
            ChildShard(
                shard_id=child.shard_id,
                parent_shard_ids=tuple(child.parent_shards),
                hash_key_range=HashKeyRange(
                    int(child.hash_key_range.starting_hash_key), int(child.hash_key_range.ending_hash_key)
                ),
            )
            for child in wire.child_shards or ()
        ),
        payload_bytes=_payload_bytes(records),
    )


def _payload_bytes(records: list[Record]) -> int:
    """Bytes that the base64 texts stand for; every three bytes are four characters, padded with `=`."""
    texts = [r.data for r in records]
    padded = [text for text in texts if text[-1:] == "="]
    return sum(map(len, texts)) * 3 // 4 - sum([text.count("=", -2) for text in padded])


def _page_from_stock(answer: Mapping[str, Any]) -> RecordsPage:
    if "Records" not in answer:  # botocore takes a body that is no JSON for an empty answer
        raise Unavailable("kinesis:GetRecords: the answer is damaged")
    records = [
        Record(
            base64.b64encode(r["Data"]).decode(),
            r["PartitionKey"],
            r["SequenceNumber"],
            round(r["ApproximateArrivalTimestamp"].timestamp() * 1000) if "ApproximateArrivalTimestamp" in r else 0,
        )
        for r in answer["Records"]
    ]
    return RecordsPage(
        records=records,
        next_iterator=answer.get("NextShardIterator"),
        millis_behind_latest=answer.get("MillisBehindLatest"),
        child_shards=tuple(
            ChildShard(
                shard_id=child["ShardId"],
                parent_shard_ids=tuple(child["ParentShards"]),
                hash_key_range=_hash_key_range(child["HashKeyRange"]),
            )
            for child in answer.get("ChildShards", ())
        ),
        payload_bytes=_payload_bytes(records),
    )
