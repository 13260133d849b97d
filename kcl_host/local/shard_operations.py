"""Listing and resharding, and how shards are written in answers."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kcl_host.local.account import ACCOUNT, Account
from kcl_host.local.kinesis_request import KinesisRequest, Operation, need, parse_hash_key
from kcl_host.local.service_error import ServiceError, in_use, invalid_argument
from kcl_host.local.shard import LocalShard
from kcl_host.local.stream import LocalStream

NEXT_TOKEN_LIFETIME_S: Final = 300


class ShardListing(msgspec.Struct, frozen=True, array_like=True):
    """What the NextToken of ListShards carries: the listing it belongs to and the last shard given."""

    stream_name: str
    incarnation: int
    kind: str | None
    at_s: float
    after: str
    last_shard_id: str
    issued_s: float


class ShardOperations:
    def __init__(self, account: Account) -> None:
        self._account = account
        self.by_name: dict[str, Operation] = {
            "ListShards": self._list_shards,
            "MergeShards": self._merge_shards,
            "SplitShard": self._split_shard,
            "UpdateShardCount": self._update_shard_count,
        }

    def _list_shards(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream, listing = self._listing(request, now_s)
        shards = stream.list_shards(listing.kind, now_s, at_s=listing.at_s, after=listing.after)
        shards = [shard for shard in shards if shard.shard_id > listing.last_shard_id]
        limit = request.max_results or 1000
        answer: dict[str, Any] = {"Shards": [describe_shard(shard) for shard in shards[:limit]]}
        if len(shards) > limit:
            last = shards[limit - 1].shard_id
            answer["NextToken"] = self._account.seal.seal(
                msgspec.structs.replace(listing, last_shard_id=last, issued_s=now_s)
            )
        return answer

    def _listing(self, request: KinesisRequest, now_s: float) -> tuple[LocalStream, ShardListing]:
        if request.next_token is not None:
            if request.stream_name is not None or request.exclusive_start_shard_id is not None or request.shard_filter:
                raise invalid_argument("NextToken and StreamName cannot be provided together.")
            listing = self._account.seal.open(request.next_token, ShardListing)
            if listing is None:
                raise invalid_argument("NextToken is invalid.")
            if now_s - listing.issued_s > NEXT_TOKEN_LIFETIME_S:
                raise ServiceError("ExpiredNextTokenException", "NextToken has expired.")
            stream = self._account.stream_named(listing.stream_name)
            if stream.incarnation != listing.incarnation:
                raise invalid_argument("NextToken is invalid.")
            return stream, listing
        stream = self._account.stream(request)
        if stream.status not in ("ACTIVE", "UPDATING"):
            raise in_use(f"Stream {stream.name} under account {ACCOUNT} is not ACTIVE, instead in {stream.status}")
        chosen = request.shard_filter
        kind, at_s, after = chosen.type if chosen else None, 0.0, ""
        if chosen is not None:
            if chosen.type in ("AT_TIMESTAMP", "FROM_TIMESTAMP"):
                at_s = need(chosen.timestamp, "shardFilter.timestamp")
                if at_s > now_s:
                    raise invalid_argument("The timestamp of the ShardFilter is in the future.")
            elif chosen.type == "AFTER_SHARD_ID":
                after = need(chosen.shard_id, "shardFilter.shardId")
            elif chosen.type not in ("AT_LATEST", "AT_TRIM_HORIZON", "FROM_TRIM_HORIZON"):
                raise invalid_argument(f"ShardFilter type {chosen.type} is not known.")
        start = request.exclusive_start_shard_id or ""
        return stream, ShardListing(stream.name, stream.incarnation, kind, at_s, after, start, now_s)

    def _split_shard(self, request: KinesisRequest, now_s: float) -> None:
        hash_key = parse_hash_key(need(request.new_starting_hash_key, "newStartingHashKey"))
        shard_id = need(request.shard_to_split, "shardToSplit")
        self._account.stream(request).split(shard_id, hash_key, now_s, self._account.reshard_due(now_s))

    def _merge_shards(self, request: KinesisRequest, now_s: float) -> None:
        shard_id = need(request.shard_to_merge, "shardToMerge")
        adjacent = need(request.adjacent_shard_to_merge, "adjacentShardToMerge")
        self._account.stream(request).merge(shard_id, adjacent, now_s, self._account.reshard_due(now_s))

    def _update_shard_count(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream, target = self._account.stream(request), need(request.target_shard_count, "targetShardCount")
        if need(request.scaling_type, "scalingType") != "UNIFORM_SCALING":
            raise ServiceError("ValidationException", "scalingType must be UNIFORM_SCALING")
        current = len(stream.open_shards)
        stream.update_shard_count(target, now_s, self._account.reshard_due(now_s))
        return {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "CurrentShardCount": current,
            "TargetShardCount": target,
        }


def describe_shard(shard: LocalShard) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": shard.starting_sequence_number}
    if shard.ending_sequence_number is not None:
        numbers["EndingSequenceNumber"] = shard.ending_sequence_number
    return {
        "ShardId": shard.shard_id,
        **dict(zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False)),
        "HashKeyRange": hash_key_range(shard),
        "SequenceNumberRange": numbers,
    }


def hash_key_range(shard: LocalShard) -> dict[str, str]:
    return {
        "StartingHashKey": str(shard.hash_key_range.start),
        "EndingHashKey": str(shard.hash_key_range.end),
    }
