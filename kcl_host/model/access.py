"""What a worker needs of AWS, and what was found out about it: the values of `kcl-host doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal[
    "lease table", "index", "coordinator table", "worker metrics table", "stream", "consumer", "metrics", "dead letters"
]
Need = Literal["always", "until_created", "optional"]
Outcome = Literal["allowed", "denied", "no_credentials", "missing", "unreachable", "failed", "not_probed"]


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """One action on one thing. `name` is that of the table or the namespace, or the label of the (consumer's) stream,
    or where dead letters go.

    `need`: "until_created" is over once the table, the index or the consumer exists; of what is "optional" `without`
    says what happens without it.
    """

    service: Literal["kinesis", "dynamodb", "cloudwatch", "sqs", "s3"]
    action: str
    kind: Kind
    name: str
    need: Need = "always"
    without: str = ""

    @property
    def api(self) -> str:
        """As IAM writes it."""
        return f"{self.service}:{self.action}"

    @property
    def where(self) -> str:
        return f"{self.kind} {self.name}"


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the question whether a permission is there.

    `missing`: the thing does not exist. `denied`: the policy; `no_credentials`: nobody was recognised, or the request
    was signed wrongly. `said` is the service's answer, or why there was no question.
    """

    permission: Permission
    outcome: Outcome
    said: str = ""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who the credentials of some services are, as STS says. `arn` None: `said` tells why it is not known."""

    services: tuple[str, ...]
    arn: str | None = None
    outcome: Outcome = "allowed"
    said: str = ""


class StreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What DescribeStreamSummary and DescribeStreamConsumer say of a stream.

    `kms_key` None: not encrypted. `consumer_status` None: not registered, or not asked.
    """

    arn: str
    status: str
    mode: str
    open_shards: int
    retention_hours: int
    consumers: int
    kms_key: str | None = None
    consumer_status: str | None = None
