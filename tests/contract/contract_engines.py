"""What the contract is held against, as the tests see it, and where an engine is not like DynamoDB."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import pytest

from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.config.settings import TableSettings
from kcl_host.ports import CoordinatorTable, LeaseTable, TableMigrationItems, WorkerMetricsTable

_names = (f"contract-{n}" for n in itertools.count())

CREATION_LIMIT_S: Final = 10.0

# Where an engine is not like DynamoDB, and what it answered instead (dynalite 4.0.0, DynamoDB Local 3.1.0).
# moto 5.2.5 has no entry for its worst deviation, since nothing that depends on it is asked of it: between threads its
# conditional writes are not atomic. With moto as the judge 18 of the 29 tests of test_races.py fail.
# DynamoDB Local does answer with the old item of a refused write, although KCL's notes deny it.
DEVIATIONS: Final[dict[str, dict[str, str]]] = {
    "DynamoDB Local": {
        "tags": "ListTagsOfResource: UnknownOperationException, 'Tagging is not currently supported'",
        "backups": "UpdateContinuousBackups: UnknownOperationException",
    },
    "dynalite": {
        "tags": "CreateTable takes tags, ListTagsOfResource then answers []",
        "backups": "UpdateContinuousBackups: UnknownOperationException",
        "deletion protection": "CreateTable takes it, DescribeTable leaves it out, DeleteTable deletes",
        "index added later": "UpdateTable answers 200 (ValidationException without a throughput), no index comes of it",
        "transactions": "TransactWriteItems: UnknownOperationException",
        "old item of a refused write": "ReturnValuesOnConditionCheckFailure is taken, no Item is answered",
    },
}


class DynamoDb(msgspec.Struct):
    """An engine that speaks DynamoDB, and settings for its next table."""

    client: Any
    name: str

    def settings(self, **settings: Any) -> TableSettings:
        return TableSettings(**{"name": next(_names), **settings})

    def lease_table(self, **settings: Any) -> DynamoDbLeaseTable:
        """A new one, empty and ready; creating does not wait for that."""
        return self.lease_table_of(self.settings(**settings))

    def lease_table_of(self, settings: TableSettings) -> DynamoDbLeaseTable:
        table = DynamoDbLeaseTable(self.client, settings)
        assert table.create_table()
        self.wait_until_active(table, index="ACTIVE")
        return table

    def wait_until_active(self, table: DynamoDbLeaseTable, *, index: str | None) -> None:
        until_s = time.monotonic() + CREATION_LIMIT_S
        while (state := table.describe()) is None or (state.status, state.index_status) != ("ACTIVE", index):
            assert time.monotonic() < until_s, f"{self.name} does not create tables: {state}"
            time.sleep(0.002)

    def require(self, feature: str) -> None:
        """Skips the test where DEVIATIONS says that this engine does not have the feature of DynamoDB."""
        if (evidence := DEVIATIONS.get(self.name, {}).get(feature)) is not None:
            pytest.skip(f"{self.name}: {evidence}")


Place = Literal["of its own", "in the lease table"]


class Tables(msgspec.Struct):
    """Makes the tables of one engine. They exist and are empty."""

    lease_table: Callable[[], LeaseTable]
    coordinator_table: Callable[[Place], CoordinatorTable]
    worker_metrics_table: Callable[[Place], WorkerMetricsTable]
    migration: Callable[[], Migration]


class Migration(msgspec.Struct):
    """Two places for coordinator items, and what moves them; `require` skips what the engine cannot do."""

    items: TableMigrationItems
    legacy: CoordinatorTable
    in_lease_table: CoordinatorTable
    require: Callable[[str], None] = lambda feature: None
