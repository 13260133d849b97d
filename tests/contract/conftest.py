"""The engines that the contract is held against.

Our fakes and moto in this process; DynamoDB Local and dynalite (`interop`), each started once for all modules; for
races the embedded engine too, which is moto behind one lock.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from contract_engines import DynamoDb, Migration, Place, Tables

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.kinesis import install_fast_get_records
from kcl_host.aws.table_migration import DynamoDbTableMigration
from kcl_host.aws.worker_metrics_table import DynamoDbWorkerMetricsTable
from kcl_host.ports import CoordinatorTable, LeaseTable, WorkerMetricsTable
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.metadata import InMemoryMetadata
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable

_KEYS = {"region_name": "us-east-1", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
_ON_LOOPBACK = Config(retries={"total_max_attempts": 1}, max_pool_connections=32, read_timeout=30)
"""One attempt, as in the host: a repeated request would hide what an engine answers."""
INTEROP = [pytest.param(name, marks=pytest.mark.interop) for name in ("dynamodb_local", "dynalite")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """moto, and botocore under it, use what newer Pythons deprecate."""
    for item in items:
        if "contract" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(scope="module")
def moto_session() -> Iterator[botocore.session.Session]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import moto

        with moto.mock_aws():
            session = botocore.session.Session()
            install_fast_get_records(session)
            yield session


@pytest.fixture(scope="module")
def moto(moto_session: botocore.session.Session) -> DynamoDb:
    return DynamoDb(moto_session.create_client("dynamodb", **_KEYS), "moto")


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[DynamoDb]:
    from tests.interop.dynamodb_local import dynamodb_local

    with dynamodb_local() as endpoint_url:
        yield DynamoDb(_client(endpoint_url), "DynamoDB Local")


@pytest.fixture(scope="session")
def dynalite() -> Iterator[DynamoDb]:
    from tests.interop.dynalite import dynalite

    with dynalite() as endpoint_url:
        yield DynamoDb(_client(endpoint_url), "dynalite")


@pytest.fixture(scope="session")
def embedded() -> Iterator[DynamoDb]:
    from kcl_host.local.dynamodb import DynamoDbEngine

    engine = DynamoDbEngine()
    engine.start()
    try:
        yield DynamoDb(_client(engine.endpoint), "embedded")
    finally:
        engine.stop()


@pytest.fixture(scope="module", params=["moto", *INTEROP])
def dynamodb(request: pytest.FixtureRequest) -> DynamoDb:
    return _engine(request)


@pytest.fixture(scope="module", params=["embedded", *INTEROP])
def judge(request: pytest.FixtureRequest) -> DynamoDb:
    """An engine whose conditional writes are atomic; moto's alone are not."""
    return _engine(request)


@pytest.fixture(scope="module", params=["memory", "moto", *INTEROP])
def tables(request: pytest.FixtureRequest) -> Tables:
    if request.param == "memory":
        return Tables(
            lambda: InMemoryLeaseTable(FakeClock()),
            lambda place: InMemoryCoordinatorTable(FakeClock()),
            lambda place: InMemoryWorkerMetricsTable(FakeClock()),
            _migration_in_memory,
        )
    return _tables_of(_engine(request))


@pytest.fixture
def lease_table(tables: Tables) -> LeaseTable:
    return tables.lease_table()


@pytest.fixture(params=["of its own", "in the lease table"])
def coordinator_table(tables: Tables, request: pytest.FixtureRequest) -> CoordinatorTable:
    return tables.coordinator_table(request.param)


@pytest.fixture(params=["of its own", "in the lease table"])
def worker_metrics_table(tables: Tables, request: pytest.FixtureRequest) -> WorkerMetricsTable:
    return tables.worker_metrics_table(request.param)


@pytest.fixture
def migration(tables: Tables) -> Migration:
    return tables.migration()


def _engine(request: pytest.FixtureRequest) -> DynamoDb:
    engine: DynamoDb = request.getfixturevalue(request.param)
    return engine


def _client(endpoint_url: str) -> Any:
    session = botocore.session.Session()
    return session.create_client("dynamodb", endpoint_url=endpoint_url, config=_ON_LOOPBACK, **_KEYS)


def _migration_in_memory() -> Migration:
    clock = FakeClock()
    metadata = InMemoryMetadata(clock, InMemoryLeaseTable(clock), coordinator=True)
    return Migration(metadata.migration, metadata.coordinator, metadata.coordinator_in_lease_table)


def _tables_of(dynamodb: DynamoDb) -> Tables:
    client = dynamodb.client

    def coordinator_table(place: Place) -> CoordinatorTable:
        if place == "in the lease table":
            dynamodb.lease_table_of(settings := dynamodb.settings())
            return DynamoDbCoordinatorTable(client, settings, key_attribute="leaseKey")
        table = DynamoDbCoordinatorTable(client, dynamodb.settings())
        assert table.create_table()
        return table

    def worker_metrics_table(place: Place) -> WorkerMetricsTable:
        if place == "in the lease table":
            dynamodb.lease_table_of(settings := dynamodb.settings())
            return DynamoDbWorkerMetricsTable(client, settings, key_attribute="leaseKey")
        table = DynamoDbWorkerMetricsTable(client, dynamodb.settings())
        assert table.create_table()
        return table

    def migration() -> Migration:
        own, lease_table = dynamodb.settings(), dynamodb.settings()
        dynamodb.lease_table_of(lease_table)
        legacy = DynamoDbCoordinatorTable(client, own)
        assert legacy.create_table()
        in_lease_table = DynamoDbCoordinatorTable(client, lease_table, key_attribute="leaseKey")
        items = DynamoDbTableMigration(client, own, lease_table)
        return Migration(items, legacy, in_lease_table, dynamodb.require)

    return Tables(dynamodb.lease_table, coordinator_table, worker_metrics_table, migration)
