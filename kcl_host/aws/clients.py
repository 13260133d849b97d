"""Clients of botocore, made so that no call outlives what it protects (DESIGN.md 4: client time-outs).

One request is one attempt, but for metrics: a retry made inside the SDK would make "applied, but the answer was lost"
look like a lost lease. Clients may be shared by threads; their pools are larger than the number of threads that use
them at once, so a renewal never waits for a connection behind a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from kcl_host import __version__
from kcl_host.aws.credentials import session_for
from kcl_host.aws.direct_calls import GET_RECORDS, UPDATE_ITEM, call_directly
from kcl_host.aws.kinesis import install_fast_get_records
from kcl_host.config.settings import ServiceSettings, Settings
from kcl_host.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_kinesis.client import KinesisClient

DYNAMODB_CONNECT_TIMEOUT_S: Final = 1.0
DYNAMODB_POOL: Final = 64
KINESIS_CONNECT_TIMEOUT_S: Final = 2.0
KINESIS_POOL: Final = 128
"""Connections are made as they are needed; beyond this number they are not kept."""
CLOUDWATCH_CONNECT_TIMEOUT_S: Final = 1.0
CLOUDWATCH_READ_TIMEOUT_S: Final = 5.0
DEAD_LETTER_CONNECT_TIMEOUT_S: Final = 2.0
DEAD_LETTER_READ_TIMEOUT_S: Final = 15.0
CLOUDWATCH_ATTEMPTS: Final = 2
"""What is throttled would be lost; and nothing depends on whether a request took effect."""


class Clients(msgspec.Struct, frozen=True):
    """The clients every worker needs, and how to make the one that only metrics need, with what they share."""

    dynamodb: DynamoDBClient
    kinesis: KinesisClient
    new_cloudwatch: Callable[[], Any]


def clients_for(settings: Settings) -> Clients:
    """All clients, from one session where credentials and region are the same: half the cost at start.

    Raises ConfigurationError when there is no region, AccessError when there are no credentials.
    """
    kinesis = settings.kinesis
    session = service_session(kinesis)

    def shared(service: ServiceSettings) -> Session | None:
        same = (service.credentials, service.region) == (kinesis.credentials, kinesis.region)
        return session if same else None

    return Clients(
        dynamodb=dynamodb_client(settings, shared(settings.dynamodb)),
        kinesis=kinesis_client(settings, session),
        new_cloudwatch=partial(cloudwatch_client, settings, shared(settings.cloudwatch)),
    )


def dynamodb_client(settings: Settings, session: Session | None = None, *, direct_calls: bool = True) -> DynamoDBClient:
    """For all three tables. Raises as `clients_for`."""
    session = session or service_session(settings.dynamodb)
    config = Config(
        connect_timeout=DYNAMODB_CONNECT_TIMEOUT_S,
        read_timeout=settings.lease.request_timeout_s,
        max_pool_connections=DYNAMODB_POOL,
    )
    client: DynamoDBClient = _create("dynamodb", settings.dynamodb, config, session)
    if direct_calls:
        call_directly(client, session, UPDATE_ITEM)
    return client


def kinesis_client(settings: Settings, session: Session | None = None, *, direct_calls: bool = True) -> KinesisClient:
    """For listing and polling. Raises as `clients_for`."""
    session = session or service_session(settings.kinesis)
    config = Config(
        connect_timeout=KINESIS_CONNECT_TIMEOUT_S,
        read_timeout=settings.retrieval.request_timeout_s,
        max_pool_connections=KINESIS_POOL,
    )
    client: KinesisClient = _create("kinesis", settings.kinesis, config, session)
    if direct_calls:
        call_directly(client, session, GET_RECORDS)
    return client


def cloudwatch_client(settings: Settings, session: Session | None = None) -> Any:
    """For publishing metrics. Raises as `clients_for`."""
    config = Config(
        connect_timeout=CLOUDWATCH_CONNECT_TIMEOUT_S,
        read_timeout=CLOUDWATCH_READ_TIMEOUT_S,
        retries={"total_max_attempts": CLOUDWATCH_ATTEMPTS, "mode": "standard"},
        max_pool_connections=1,
    )
    return _create("cloudwatch", settings.cloudwatch, config, session)


def dead_letter_client(name: Literal["sqs", "s3"], settings: Settings, region: str | None = None) -> Any:
    """With the credentials of Kinesis, and its region unless another one is given. Raises as `clients_for`."""
    service = ServiceSettings(
        region=region or settings.kinesis.region,
        credentials=settings.kinesis.credentials,
        use_dualstack=settings.kinesis.use_dualstack,
        use_fips=settings.kinesis.use_fips,
    )
    config = Config(connect_timeout=DEAD_LETTER_CONNECT_TIMEOUT_S, read_timeout=DEAD_LETTER_READ_TIMEOUT_S)
    return _create(name, service, config, None)


def service_session(service: ServiceSettings) -> Session:
    """A session with the credentials and the region of `service`, whose clients decode GetRecords fast."""
    session = session_for(service.credentials, service.region)
    install_fast_get_records(session)
    return session


def _create(name: str, service: ServiceSettings, config: Config, session: Session | None) -> Any:
    session = session or service_session(service)
    try:
        region = service.region or session.get_config_variable("region")
        if not region:
            raise ConfigurationError(
                f"no AWS region for {name}: set regionName in the properties file, AWS_REGION in the environment, "
                "or a region in the AWS profile"
            )
        return session.create_client(
            name, region_name=region, endpoint_url=service.endpoint_url, config=_of_every_client(service).merge(config)
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(f"the {name} client cannot be made: {error}") from error


def _of_every_client(service: ServiceSettings) -> Config:
    return Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        user_agent_extra=f"kcl-host/{__version__}",
        use_dualstack_endpoint=service.use_dualstack or None,
        use_fips_endpoint=service.use_fips or None,
    )
