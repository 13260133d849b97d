"""The engines that the contract is held against: our fakes, moto in this process, and DynamoDB Local (`interop`)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import botocore.session
import pytest
from contract_engines import DynamoDb, Tables

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.kinesis import install_fast_get_records
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.aws.worker_metrics_table import DynamoDbWorkerMetricsTable
from kcl_host.ports import CoordinatorTable, LeaseTable, WorkerMetricsTable
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable

_CLIENT = {"region_name": "us-east-1", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}


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


@pytest.fixture(scope="module", params=["moto", pytest.param("dynamodb_local", marks=pytest.mark.interop)])
def dynamodb(request: pytest.FixtureRequest) -> Iterator[DynamoDb]:
    if request.param == "moto":
        yield DynamoDb(request.getfixturevalue("moto_session").create_client("dynamodb", **_CLIENT), "moto")
        return
    yield from _dynamodb_local()


@pytest.fixture(scope="module", params=["memory", "moto", pytest.param("dynamodb_local", marks=pytest.mark.interop)])
def tables(request: pytest.FixtureRequest) -> Iterator[Tables]:
    if request.param == "memory":
        yield Tables(
            lambda: InMemoryLeaseTable(FakeClock()),
            lambda: InMemoryCoordinatorTable(FakeClock()),
            lambda: InMemoryWorkerMetricsTable(FakeClock()),
        )
    elif request.param == "moto":
        client = request.getfixturevalue("moto_session").create_client("dynamodb", **_CLIENT)
        yield _tables_of(DynamoDb(client, "moto"))
    else:
        for engine in _dynamodb_local():
            yield _tables_of(engine)


@pytest.fixture
def lease_table(tables: Tables) -> LeaseTable:
    return tables.lease_table()


@pytest.fixture
def coordinator_table(tables: Tables) -> CoordinatorTable:
    return tables.coordinator_table()


@pytest.fixture
def worker_metrics_table(tables: Tables) -> WorkerMetricsTable:
    return tables.worker_metrics_table()


def _dynamodb_local() -> Iterator[DynamoDb]:
    from tests.interop.dynamodb_local import dynamodb_local

    with dynamodb_local() as endpoint_url:
        session = botocore.session.Session()
        yield DynamoDb(session.create_client("dynamodb", endpoint_url=endpoint_url, **_CLIENT), "DynamoDB Local")


def _tables_of(dynamodb: DynamoDb) -> Tables:
    def lease_table() -> LeaseTable:
        table = DynamoDbLeaseTable(dynamodb.client, dynamodb.settings())
        assert table.create_table()
        return table

    def coordinator_table() -> CoordinatorTable:
        table = DynamoDbCoordinatorTable(dynamodb.client, dynamodb.settings())
        assert table.create_table()
        return table

    def worker_metrics_table() -> WorkerMetricsTable:
        table = DynamoDbWorkerMetricsTable(dynamodb.client, dynamodb.settings())
        assert table.create_table()
        return table

    return Tables(lease_table, coordinator_table, worker_metrics_table)
