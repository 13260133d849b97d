"""Counts the requests of a client, with the capacity units that DynamoDB says each has consumed.

To be told them costs nothing. A conditional write that is refused consumes as well, and its answer does not say how
much: it counts as one unit, which is what a row below 1 KB takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.exceptions import ClientError

from kcl_host.aws.faults import error_code

Report = Callable[[str, str, float, float], None]
"""Gets API, table or stream, read units, write units."""

DYNAMODB_READS: Final = ("get_item", "query", "scan", "batch_get_item")
DYNAMODB_WRITES: Final = ("put_item", "update_item", "delete_item", "transact_write_items")
KINESIS: Final = ("get_records", "get_shard_iterator", "list_shards", "describe_stream_summary")


def count_dynamodb(client: Any, report: Report) -> None:
    """From now on every read and write of this client is reported; any thread may be the one that does."""
    for method in (*DYNAMODB_READS, *DYNAMODB_WRITES):
        setattr(client, method, _dynamodb(getattr(client, method), _api(method), report, method in DYNAMODB_READS))


def count_kinesis(client: Any, report: Report) -> None:
    """From now on every request of this client that shards are read by is reported. SubscribeToShard is not its."""
    for method in KINESIS:
        setattr(client, method, _kinesis(getattr(client, method), _api(method), report))


def _dynamodb(call: Callable[..., Any], api: str, report: Report, is_read: bool) -> Callable[..., Any]:
    def counted(**request: Any) -> Any:
        table = request.get("TableName") or next(iter(request.get("RequestItems", {})), "")
        try:
            answer = call(**request, ReturnConsumedCapacity="TOTAL")
        except ClientError as error:
            refused = error_code(error) == "ConditionalCheckFailedException"
            report(api, table, 0.0, 1.0 if refused else 0.0)
            raise
        consumed = answer.get("ConsumedCapacity") or {}
        of_tables = consumed if isinstance(consumed, list) else [consumed]
        units = sum(float(one.get("CapacityUnits", 0.0)) for one in of_tables)
        table = table or next((one["TableName"] for one in of_tables if "TableName" in one), "")
        report(api, table, units if is_read else 0.0, 0.0 if is_read else units)
        return answer

    return counted


def _kinesis(call: Callable[..., Any], api: str, report: Report) -> Callable[..., Any]:
    def counted(**request: Any) -> Any:
        report(api, _stream(request), 0.0, 0.0)
        return call(**request)

    return counted


def _stream(request: Mapping[str, Any]) -> str:
    """The name; empty where only an iterator says it."""
    return str(request.get("StreamName") or str(request.get("StreamARN", "")).rpartition("/")[2])


def _api(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))
