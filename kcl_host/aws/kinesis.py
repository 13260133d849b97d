"""One Kinesis stream: listing and polling.

GetRecords does not go through botocore's response parser, which takes ten times as long as everything else together
(spec environment 2): a parser factory wrapped around the stock one hands the body of that one answer to msgspec, and
the body of SubscribeToShard, which goes on, to subscribe.py.
Endpoint, signature and errors stay botocore's (but see direct_calls.py, for which that parser decodes, too). The
factory is a component of the session, not a documented interface; whatever it cannot decode goes to the stock parser,
and `_page_from_stock` reads what that returns.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from botocore.exceptions import HTTPClientError
from botocore.parsers import ResponseParserError
from botocore.session import Session

from kcl_host.aws.faults import Resource, error_code, translated
from kcl_host.errors import ExpiredIterator, InvalidPosition, KclHostError, Throttled, Unavailable
from kcl_host.model.records import Record, RecordsPage
from kcl_host.model.sequence import MAX_DIGITS, IteratorPosition
from kcl_host.model.shard import ChildShard, HashKeyRange, Shard, ShardFilter, StreamSummary

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

DAMAGE: Final = (
    ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, msgspec.MsgspecError,
)  # fmt: skip
"""What parsers raise, ours and botocore's, at an answer that is not what it should be."""
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
        try:
            return page_of(answer[_FAST]) if _FAST in answer else _page_from_stock(answer)
        except DAMAGE as error:
            raise Unavailable(f"{self._resource}: the answer of GetRecords is damaged: {damage(error)}") from error

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


_FAR_S: Final = 1e15
"""Milliseconds of such a time are still an integer of 64 bits."""


class _WireRecord(msgspec.Struct, gc=False, rename="pascal"):
    sequence_number: str
    partition_key: str
    data: str
    approximate_arrival_timestamp: Annotated[float, msgspec.Meta(ge=-_FAR_S, le=_FAR_S)] = 0.0


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
    millis_behind_latest: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
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
        return _Parser(self._stock.create_parser(protocol_name), is_json=protocol_name == "json")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


class _Parser:
    """Takes over for a good JSON answer to GetRecords, and for SubscribeToShard once it is accepted.

    The stock parser takes what is no JSON (the page of a proxy) for an empty answer, and at what is none of its model
    raises what Python happens to raise: either is an error of botocore here.
    """

    def __init__(self, stock: Any, *, is_json: bool) -> None:
        self._stock = stock
        self._is_json = is_json

    def parse(self, response: Mapping[str, Any], shape: Any) -> Any:
        if shape is not None and shape.name == "GetRecordsOutput" and response["status_code"] == 200:
            try:
                page = _decode(response["body"])
            except DAMAGE:
                pass
            else:
                return {_FAST: page, "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": response["headers"]}}
        if shape is not None and shape.name == "SubscribeToShardOutput" and response["status_code"] == 200:
            return {RAW_EVENTS: response["body"], "ResponseMetadata": {"HTTPStatusCode": 200}}
        if self._is_json and response["status_code"] == 200 and response["body"][:1] not in (b"{", b""):
            raise HTTPClientError(error=f"the answer is no JSON object, it begins {bytes(response['body'][:40])!r}")
        try:
            return self._stock.parse(response, shape)
        except (*DAMAGE, ResponseParserError) as error:
            raise HTTPClientError(error=f"the answer is damaged: {damage(error)}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def damage(error: Exception) -> str:
    """For a message. Not its repr: that of a UnicodeDecodeError has the whole answer in it, records and all."""
    return f"{type(error).__name__}: {error!s:.200}"


def page_of(wire: WirePage) -> RecordsPage:
    """Raises what is in DAMAGE."""
    records = [
        Record(r.data, r.partition_key, r.sequence_number, round(r.approximate_arrival_timestamp * 1000))
        for r in wire.records
    ]
    _require_numbers(records)
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


def _require_numbers(records: list[Record]) -> None:
    """Of all at once, since one by one costs as much as half of the rest."""
    numbers = [r.sequence_number for r in records]
    lengths = set(map(len, numbers))
    if records and not ("".join(numbers).encode().isdigit() and 0 < min(lengths) and max(lengths) <= MAX_DIGITS):
        raise ValueError("a sequence number is not a number")


def _payload_bytes(records: list[Record]) -> int:
    """Bytes that the base64 texts stand for; every three bytes are four characters, padded with `=`."""
    texts = [r.data for r in records]
    return sum(map(len, texts)) * 3 // 4 - "".join([text[-2:] for text in texts]).count("=")


def _page_from_stock(answer: Mapping[str, Any]) -> RecordsPage:
    """Raises what is in DAMAGE: botocore checks no types."""
    if "Records" not in answer:  # botocore takes a body that is no JSON for an empty answer
        raise ValueError("there are no records")
    records = [r | {"Data": base64.b64encode(r["Data"]).decode()} for r in answer["Records"]]
    for record in records:
        if (arrival := record.get("ApproximateArrivalTimestamp")) is not None:
            record["ApproximateArrivalTimestamp"] = arrival.timestamp()
    return page_of(msgspec.convert({**answer, "Records": records}, WirePage))
