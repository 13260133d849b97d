"""What a worker must be allowed to do in AWS, for one configuration: the one list that `kcl-host doctor` probes, that
`--policy` prints, and that the table in docs/switching-from-java.md is held to by a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.model.access import Kind, Need, Permission

INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
_QUEUE_REGION: Final = re.compile(r"sqs(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


def required_permissions(settings: Settings) -> tuple[Permission, ...]:
    """Everything that a worker with these settings may ever ask for, streams first, in a fixed order."""
    return (
        *(permission for stream in settings.streams for permission in _of_stream(settings, stream)),
        *_of_lease_table(settings),
        *_of_other_tables(settings),
        *_of_metrics(settings),
        *_of_dead_letters(settings),
    )


def _of_stream(settings: Settings, stream: StreamSettings) -> Iterator[Permission]:
    retrieval = settings.of_stream(stream).retrieval
    # With fan-out too: a shard that has ended names its children to a read.
    for action in ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords"):
        yield Permission(service="kinesis", action=action, kind="stream", name=stream.label)
    if retrieval.mode == "POLLING":
        return
    if retrieval.consumer_arn is None:
        yield Permission(
            service="kinesis", action="RegisterStreamConsumer", kind="consumer", name=stream.label, need="until_created"
        )
    for action in ("DescribeStreamConsumer", "SubscribeToShard"):
        yield Permission(service="kinesis", action=action, kind="consumer", name=stream.label)


def _of_lease_table(settings: Settings) -> Iterator[Permission]:
    table = settings.lease_table
    yield _on("lease table", table.name, "CreateTable", need="until_created")
    yield _on("lease table", table.name, "DescribeTable")
    yield _on("lease table", table.name, "UpdateTable", need="until_created")
    yield _on("lease table", table.name, "Scan")
    yield _on("lease table", table.name, "GetItem")
    yield _on(
        "lease table", table.name, "BatchGetItem", need="optional", without="the leader reads leases one by one instead"
    )
    for action in ("PutItem", "UpdateItem", "DeleteItem"):
        yield _on("lease table", table.name, action)
    if table.point_in_time_recovery:
        yield _on("lease table", table.name, "UpdateContinuousBackups", need="until_created")
    if table.tags:
        yield _on("lease table", table.name, "TagResource", need="until_created")
    yield _on("index", f"{table.name}/index/{INDEX}", "Query")


def _of_other_tables(settings: Settings) -> Iterator[Permission]:
    """Of an application that begins in a single table only what it takes to see that these two do not exist."""
    is_single = settings.coordinator.metadata_table_format == "single"
    kinds: tuple[Kind, Kind] = ("coordinator table", "worker metrics table")
    for kind, table in zip(kinds, (settings.coordinator_table, settings.worker_metrics_table), strict=True):
        if not is_single:
            yield _on(kind, table.name, "CreateTable", need="until_created")
        yield _on(kind, table.name, "DescribeTable")
        yield _on(kind, table.name, "Scan")
        yield _on(kind, table.name, "GetItem")
        if is_single:
            continue
        for action in ("PutItem", "UpdateItem", "DeleteItem"):
            yield _on(kind, table.name, action)
        if kind == "coordinator table" and settings.coordinator.migrate_all_entities:
            yield _on(kind, table.name, "ConditionCheckItem")
        # When a Java KCL 3.5 starts a new application in the same moment, an empty table of ours goes again.
        yield _on(kind, table.name, "DeleteTable", need="until_created")
        if table.point_in_time_recovery:
            yield _on(kind, table.name, "UpdateContinuousBackups", need="until_created")
        if table.tags:
            yield _on(kind, table.name, "TagResource", need="until_created")


def _of_metrics(settings: Settings) -> Iterator[Permission]:
    if settings.metrics.level != "NONE" and settings.metrics.backend == "CLOUDWATCH":
        yield Permission(
            service="cloudwatch",
            action="PutMetricData",
            kind="metrics",
            name=settings.application_name,
            need="optional",
            without="metrics are lost, with one warning in the log; nothing else suffers",
        )


def _of_dead_letters(settings: Settings) -> Iterator[Permission]:
    target = settings.poison.target
    if target is not None and target.kind == "sqs":
        yield Permission(service="sqs", action="SendMessage", kind="dead letters", name=target.place)
    elif target is not None and target.kind == "s3":
        place = "/".join(part for part in (target.place, target.prefix) if part)
        yield Permission(service="s3", action="PutObject", kind="dead letters", name=place)


def _on(kind: Kind, name: str, action: str, *, need: Need = "always", without: str = "") -> Permission:
    return Permission(service="dynamodb", action=action, kind=kind, name=name, need=need, without=without)


# The policy

_LEFT_OUT: Final = frozenset({"DeleteTable"})
"""Wanted in one rare race only; who hands out permissions sparingly does not hand out this one."""


def policy_document(settings: Settings, region: str | None) -> dict[str, Any]:
    """The smallest IAM policy for `required_permissions`, one statement per thing, without DeleteTable.

    Accounts that the configuration does not name, and an unknown region, are `*`: such an ARN still means only what is
    in the account of the role.
    """
    by_resource: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for permission in required_permissions(settings):
        if permission.action not in _LEFT_OUT:
            key = permission.kind, _arns(permission, settings, region)
            by_resource.setdefault(key, []).append(permission.api)
    statements = [
        _statement(kind, arns, actions, number, settings)
        for number, ((kind, arns), actions) in enumerate(by_resource.items(), start=1)
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(kind: str, arns: Iterable[str], actions: list[str], number: int, settings: Settings) -> dict[str, Any]:
    """Sids must be unique, and have letters and digits only."""
    sid = "".join(word.capitalize() for word in kind.split())
    statement: dict[str, Any] = {
        "Sid": f"{sid}{number}",
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": list(arns),
    }
    if kind == "metrics":
        statement["Condition"] = {"StringEquals": {"cloudwatch:namespace": settings.application_name}}
    return statement


def _arns(permission: Permission, settings: Settings, region: str | None) -> tuple[str, ...]:
    if permission.service == "cloudwatch":
        return ("*",)
    if permission.service == "dynamodb":
        place = settings.dynamodb.region or region
        return (f"arn:{_partition(place)}:dynamodb:{place or '*'}:*:table/{permission.name}",)
    if permission.service == "s3":
        return (f"arn:{_partition(settings.kinesis.region or region)}:s3:::{permission.name}/*",)
    if permission.service == "sqs":
        host, account, queue = permission.name.removeprefix("https://").split("/")
        found = _QUEUE_REGION.fullmatch(host)
        place = found[1] if found else settings.kinesis.region or region
        return (f"arn:{_partition(place)}:sqs:{place or '*'}:{account}:{queue}",)
    stream = next(stream for stream in settings.streams if stream.label == permission.name)
    place = settings.kinesis.region or region
    arn = stream.arn or f"arn:{_partition(place)}:kinesis:{place or '*'}:{stream.account or '*'}:stream/{stream.name}"
    if permission.kind == "stream":
        return (arn,)
    retrieval = settings.of_stream(stream).retrieval
    # The ARN of a consumer ends with the time of its registration.
    return arn, retrieval.consumer_arn or f"{arn}/consumer/{retrieval.consumer_name or '*'}:*"


def _partition(region: str | None) -> str:
    if region and region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region and region.startswith("us-gov-") else "aws"
