"""Asks AWS, by requests that change nothing, what these credentials may do.

A write is tried on a key that nobody uses, under a condition that contradicts itself and so can never hold: DynamoDB
checks the permission first, and then refuses. Each costs one write unit. What cannot be asked for without doing it (to
create a table, to register a consumer, to take over a subscription, to publish a metric) is not asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from msgspec.structs import replace

from kcl_host.aws.clients import service_session
from kcl_host.aws.faults import Resource, error_code, translated
from kcl_host.aws.kinesis import arn_of
from kcl_host.aws.lease_table import INDEX
from kcl_host.config.credentials import ANONYMOUS
from kcl_host.config.settings import ServiceSettings, Settings, StreamSettings
from kcl_host.errors import AccessError, KclHostError, StreamNotFound, TableMissing
from kcl_host.model.access import Identity, Kind, Outcome, Permission, Probed, StreamFacts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_kinesis.client import KinesisClient

NOBODY: Final = "kcl-host-doctor"
"""A key that no row has: lease keys begin with a shard id or an account, worker ids with a host name."""
NEVER: Final = "attribute_exists(#key) AND attribute_not_exists(#key)"
STS_TIMEOUT_S: Final = 3.0
_KEYS: Final[dict[Kind, str]] = {
    "lease table": "leaseKey",
    "index": "leaseKey",
    "coordinator table": "key",
    "worker metrics table": "wid",
}
_REFUSED_BY_CONDITION: Final = frozenset({"ConditionalCheckFailedException", "TransactionCanceledException"})
_PERMISSION_CODES: Final = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
_DOES_IT: Final = "to ask would be to do it"
_NOT_HARMLESS: Final = {
    **dict.fromkeys(("CreateTable", "UpdateTable", "DeleteTable", "UpdateContinuousBackups", "TagResource"), _DOES_IT),
    "RegisterStreamConsumer": f"{_DOES_IT}, and AWS bills it",
    "SubscribeToShard": "to ask would be to take the subscription away from the worker that reads",
    **dict.fromkeys(("PutMetricData", "SendMessage", "PutObject"), _DOES_IT),
}
_AWS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


class Prober:
    """One round of questions; not thread-safe. A service that cannot be reached is asked once only.

    `skew_s` is how far the clock of a service is ahead of ours, by its Date header (whole seconds); `streams` what was
    found out about each stream that answered.
    """

    def __init__(
        self,
        settings: Settings,
        dynamodb: DynamoDBClient,
        kinesis: KinesisClient,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._dynamodb = dynamodb
        self._kinesis = kinesis
        self._wall = wall
        self._down: dict[str, str] = {}
        self._shards: dict[str, str] = {}
        self._iterators: dict[str, str] = {}
        self.skew_s: dict[str, float] = {}
        self.streams: dict[str, StreamFacts] = {}
        for service, client in (("dynamodb", dynamodb), ("kinesis", kinesis)):
            client.meta.events.register("after-call", partial(self._note_date, service))
        self._acts: dict[str, Callable[[Permission], object]] = {
            "DescribeTable": lambda p: dynamodb.describe_table(TableName=p.name),
            "Scan": lambda p: dynamodb.scan(TableName=p.name, Limit=1),
            "GetItem": lambda p: dynamodb.get_item(TableName=p.name, Key=_nobody(p)),
            "BatchGetItem": lambda p: dynamodb.batch_get_item(RequestItems={p.name: {"Keys": [_nobody(p)]}}),
            "Query": self._query,
            "PutItem": lambda p: dynamodb.put_item(TableName=p.name, Item=_nobody(p), **_never(p)),
            "UpdateItem": lambda p: dynamodb.update_item(
                TableName=p.name,
                Key=_nobody(p),
                UpdateExpression="SET probe = :one",
                ExpressionAttributeValues={":one": {"N": "1"}},
                **_never(p),
            ),
            "DeleteItem": lambda p: dynamodb.delete_item(TableName=p.name, Key=_nobody(p), **_never(p)),
            "ConditionCheckItem": self._check_condition,
            "DescribeStreamSummary": self._describe_stream,
            "ListShards": self._list_shards,
            "GetShardIterator": self._get_iterator,
            "GetRecords": self._get_records,
            "DescribeStreamConsumer": self._describe_consumer,
        }

    def __repr__(self) -> str:
        return f"<Prober {self._settings.application_name}>"

    def probe(self, permission: Permission) -> Probed:
        """Raises nothing."""
        outcome, said = self._ask(permission)
        return Probed(permission=permission, outcome=outcome, said=said)

    def _ask(self, permission: Permission) -> tuple[Outcome, str]:
        if because := _NOT_HARMLESS.get(permission.action):
            return "not_probed", because
        if because := self._down.get(permission.service):
            return "unreachable", because
        if permission.action == "GetRecords" and permission.name not in self._iterators:
            return "not_probed", "there is no iterator to ask with"
        try:
            with translated(Resource(permission.service, permission.name)):
                self._acts[permission.action](permission)
        except (TableMissing, StreamNotFound) as error:
            return "missing", str(error)
        except AccessError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and error_code(cause) in _PERMISSION_CODES:
                # In its own words, which name the user, the resource, and the policy that is missing.
                return "denied", cause.response["Error"].get("Message", "")
            return "no_credentials", str(error)
        except KclHostError as error:
            return self._failed(permission, error)
        return "allowed", ""

    def _failed(self, permission: Permission, error: KclHostError) -> tuple[Outcome, str]:
        cause = error.__cause__
        if isinstance(cause, ClientError):
            if error_code(cause) in _REFUSED_BY_CONDITION:
                return "allowed", ""
            # A table without this index has no such index to query: that is a broken request, not a missing thing.
            no_index = permission.action == "Query" and error_code(cause) == "ValidationException"
            return "missing" if no_index else "failed", str(error)
        if isinstance(cause, BotoCoreError):
            self._down[permission.service] = str(error)
            return "unreachable", str(error)
        return "failed", str(error)

    def _note_date(self, service: str, http_response: Any = None, **_: Any) -> None:
        """The header's seconds are whole ones, half a second too early on average."""
        date = http_response.headers.get("Date") if http_response is not None else None
        if date:
            self.skew_s[service] = round(parsedate_to_datetime(date).timestamp() + 0.5 - self._wall(), 1)

    # Requests that need more than a name

    def _check_condition(self, permission: Permission) -> None:
        check: Any = {"TableName": permission.name, "Key": _nobody(permission), **_never(permission)}
        self._dynamodb.transact_write_items(TransactItems=[{"ConditionCheck": check}])

    def _query(self, permission: Permission) -> None:
        self._dynamodb.query(
            TableName=permission.name.partition("/")[0],
            IndexName=INDEX,
            KeyConditionExpression="leaseOwner = :nobody",
            ExpressionAttributeValues={":nobody": {"S": NOBODY}},
            Limit=1,
        )

    def _stream(self, label: str) -> StreamSettings:
        return next(stream for stream in self._settings.streams if stream.label == label)

    def _named(self, label: str) -> dict[str, Any]:
        stream = self._stream(label)
        if stream.arn is not None:
            return {"StreamARN": stream.arn}
        if stream.account is not None:
            return {"StreamARN": arn_of(self._kinesis, stream.account, stream.name)}
        return {"StreamName": stream.name}

    def _describe_stream(self, permission: Permission) -> None:
        answer = self._kinesis.describe_stream_summary(**self._named(permission.name))
        summary: Any = answer["StreamDescriptionSummary"]
        self.streams[permission.name] = StreamFacts(
            arn=summary["StreamARN"],
            status=summary["StreamStatus"],
            mode=summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED"),
            open_shards=summary["OpenShardCount"],
            retention_hours=summary["RetentionPeriodHours"],
            consumers=summary.get("ConsumerCount", 0),
            kms_key=summary.get("KeyId") if summary.get("EncryptionType") == "KMS" else None,
        )

    def _list_shards(self, permission: Permission) -> None:
        request = {"MaxResults": 1, "ShardFilter": {"Type": "AT_LATEST"}, **self._named(permission.name)}
        shards: Any = self._kinesis.list_shards(**request)["Shards"]
        if shards:
            self._shards[permission.name] = shards[0]["ShardId"]

    def _get_iterator(self, permission: Permission) -> None:
        shard_id = self._shards.get(permission.name, "shardId-000000000000")
        request = {"ShardId": shard_id, "ShardIteratorType": "LATEST", **self._named(permission.name)}
        self._iterators[permission.name] = self._kinesis.get_shard_iterator(**request)["ShardIterator"]

    def _get_records(self, permission: Permission) -> None:
        """One record at most, of those that arrive in this moment; one of the shard's five reads of this second."""
        named = {name: value for name, value in self._named(permission.name).items() if name == "StreamARN"}
        self._kinesis.get_records(ShardIterator=self._iterators[permission.name], Limit=1, **named)

    def _describe_consumer(self, permission: Permission) -> None:
        facts = self.streams.get(permission.name)
        stream = self._stream(permission.name)
        retrieval = self._settings.of_stream(stream).retrieval
        request: Any = {"ConsumerARN": retrieval.consumer_arn}
        if retrieval.consumer_arn is None:
            arn = facts.arn if facts else stream.arn
            if arn is None:
                raise KclHostError("the ARN of the stream is not known: DescribeStreamSummary did not answer")
            request = {"StreamARN": arn, "ConsumerName": retrieval.consumer_name}
        consumer = self._kinesis.describe_stream_consumer(**request)["ConsumerDescription"]
        if facts is not None:
            self.streams[permission.name] = replace(facts, consumer_status=consumer["ConsumerStatus"])


def identities_of(settings: Settings, endpoint_url: str) -> tuple[Identity, ...]:
    """Who the credentials are, one answer for each different chain. `endpoint_url` is that of a client in use.

    Where that is none of AWS's (an engine on this machine, say), STS is asked only if it has an endpoint of its own.
    Raises nothing.
    """
    named = {"kinesis": settings.kinesis, "dynamodb": settings.dynamodb}
    if settings.metrics.level != "NONE" and settings.metrics.backend == "CLOUDWATCH":
        named["cloudwatch"] = settings.cloudwatch
    chains: list[tuple[ServiceSettings, list[str]]] = []
    for name, service in named.items():
        same = [names for other, names in chains if other.credentials == service.credentials]
        if same:
            same[0].append(name)
        else:
            chains.append((service, [name]))
    return tuple(_identity(service, tuple(names), endpoint_url) for service, names in chains)


def _identity(service: ServiceSettings, services: tuple[str, ...], endpoint_url: str) -> Identity:
    if any(provider.name == ANONYMOUS for provider in service.credentials):
        return Identity(services=services, outcome="not_probed", said="requests are not signed")
    own_endpoint = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    if not is_of_aws(endpoint_url) and not own_endpoint:
        return Identity(services=services, outcome="not_probed", said=f"{endpoint_url} is not AWS")
    config = Config(
        connect_timeout=STS_TIMEOUT_S, read_timeout=STS_TIMEOUT_S, retries={"total_max_attempts": 1, "mode": "standard"}
    )
    try:
        client: Any = service_session(service).create_client("sts", region_name=service.region, config=config)
        return Identity(services=services, arn=client.get_caller_identity()["Arn"])
    except AccessError as error:
        return Identity(services=services, outcome="no_credentials", said=str(error))
    except ClientError as error:
        return Identity(services=services, outcome="no_credentials", said=f"sts:GetCallerIdentity: {error}")
    except (BotoCoreError, ValueError) as error:
        return Identity(services=services, outcome="unreachable", said=f"sts:GetCallerIdentity: {error}")


def is_of_aws(endpoint_url: str) -> bool:
    return (urlsplit(endpoint_url).hostname or "").endswith(_AWS)


def _nobody(permission: Permission) -> dict[str, Any]:
    return {_KEYS[permission.kind]: {"S": NOBODY}}


def _never(permission: Permission) -> Any:
    return {"ConditionExpression": NEVER, "ExpressionAttributeNames": {"#key": _KEYS[permission.kind]}}
