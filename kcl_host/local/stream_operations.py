"""Streams as a whole: create, delete, describe, settings and tags."""

from __future__ import annotations

from typing import Any

from kcl_host.local.account import ACCOUNT, REGION, Account
from kcl_host.local.kinesis_request import KinesisRequest, Operation, need
from kcl_host.local.service_error import in_use, invalid_argument
from kcl_host.local.shard_operations import describe_shard
from kcl_host.local.stream import LocalStream


class StreamOperations:
    def __init__(self, account: Account) -> None:
        self._account = account
        self.by_name: dict[str, Operation] = {
            "AddTagsToStream": self._add_tags,
            "CreateStream": self._create_stream,
            "DecreaseStreamRetentionPeriod": self._set_retention,
            "DeleteStream": self._delete_stream,
            "DescribeStream": self._describe_stream,
            "DescribeStreamSummary": self._describe_stream_summary,
            "IncreaseStreamRetentionPeriod": self._set_retention,
            "ListStreams": self._list_streams,
            "ListTagsForStream": self._list_tags,
            "RemoveTagsFromStream": self._remove_tags,
            "UpdateMaxRecordSize": self._update_max_record_size,
        }

    def _create_stream(self, request: KinesisRequest, now_s: float) -> None:
        name = need(request.stream_name, "streamName")
        if name in self._account.streams:
            raise in_use(f"Stream {name} under account {ACCOUNT} already exists.")
        mode = request.stream_mode_details.stream_mode if request.stream_mode_details else "PROVISIONED"
        count = request.shard_count if request.shard_count is not None else 4 if mode == "ON_DEMAND" else None
        arn = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name}"
        stream = LocalStream(
            name,
            arn,
            self._account.new_incarnation(),
            need(count, "shardCount"),
            now_s,
            now_s + self._account.durations.create_s,
        )
        stream.mode = mode
        stream.tags.update(request.tags or {})
        stream.max_record_bytes = 1024 * (request.max_record_size_in_ki_b or 1024)
        stream.advance(now_s)
        self._account.streams[name] = stream

    def _delete_stream(self, request: KinesisRequest, now_s: float) -> None:
        stream = self._account.stream(request)
        if stream.consumers and not request.enforce_consumer_deletion:
            raise in_use(f"Stream {stream.name} under account {ACCOUNT} has stream consumers registered")

        def forget(now_s: float) -> None:
            if self._account.streams.get(stream.name) is stream:
                del self._account.streams[stream.name]

        stream.delete_at(now_s + self._account.durations.delete_s, forget)
        stream.advance(now_s)

    def _describe_stream_summary(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream = self._account.stream(request)
        return {
            "StreamDescriptionSummary": {
                **_description(stream),
                "OpenShardCount": len(stream.open_shards),
                "ConsumerCount": len(stream.consumers),
                "MaxRecordSizeInKiB": stream.max_record_bytes // 1024,
            }
        }

    def _describe_stream(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream = self._account.stream(request)
        limit = request.limit or 100
        shards = [shard for shard in stream.shards if shard.shard_id > (request.exclusive_start_shard_id or "")]
        return {
            "StreamDescription": {
                **_description(stream),
                "Shards": [describe_shard(shard) for shard in shards[:limit]],
                "HasMoreShards": len(shards) > limit,
            }
        }

    def _list_streams(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        after = request.next_token or request.exclusive_start_stream_name or ""
        names = sorted(name for name in self._account.streams if name > after)
        limit = request.limit or 100
        page = names[:limit]
        more = {"NextToken": page[-1]} if len(names) > limit else {}
        keys = ("StreamName", "StreamARN", "StreamStatus", "StreamModeDetails", "StreamCreationTimestamp")
        descriptions = [_description(self._account.streams[name]) for name in page]
        return {
            "StreamNames": page,
            "HasMoreStreams": bool(more),
            "StreamSummaries": [{key: description[key] for key in keys} for description in descriptions],
            **more,
        }

    def _set_retention(self, request: KinesisRequest, now_s: float) -> None:
        hours = need(request.retention_period_hours, "retentionPeriodHours")
        if not 1 <= hours <= 8760:
            raise invalid_argument(f"Retention period of {hours} hours is not between 1 and 8760 hours")
        self._account.stream(request).retention_hours = hours

    def _update_max_record_size(self, request: KinesisRequest, now_s: float) -> None:
        size_kib = need(request.max_record_size_in_ki_b, "maxRecordSizeInKiB")
        if not 1024 <= size_kib <= 10240:
            raise invalid_argument(f"MaxRecordSizeInKiB {size_kib} is not between 1024 and 10240")
        self._account.stream(request).max_record_bytes = size_kib * 1024

    def _add_tags(self, request: KinesisRequest, now_s: float) -> None:
        self._account.stream(request).tags.update(need(request.tags, "tags"))

    def _remove_tags(self, request: KinesisRequest, now_s: float) -> None:
        for key in need(request.tag_keys, "tagKeys"):
            self._account.stream(request).tags.pop(key, None)

    def _list_tags(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        after = request.exclusive_start_tag_key or ""
        tags = sorted(tag for tag in self._account.stream(request).tags.items() if tag[0] > after)
        limit = request.limit or 50
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags[:limit]], "HasMoreTags": len(tags) > limit}


def _description(stream: LocalStream) -> dict[str, Any]:
    """What DescribeStream and DescribeStreamSummary have in common."""
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": stream.mode},
        "RetentionPeriodHours": stream.retention_hours,
        "StreamCreationTimestamp": stream.created_s,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }
