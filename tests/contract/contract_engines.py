"""What the contract is held against, as the tests see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from kcl_host.config.settings import TableSettings
from kcl_host.ports import CoordinatorTable, LeaseTable, WorkerMetricsTable

_names = (f"contract-{n}" for n in itertools.count())


class DynamoDb(msgspec.Struct):
    """An engine that speaks DynamoDB, and settings for its next table."""

    client: Any
    name: str

    def settings(self, **settings: Any) -> TableSettings:
        return TableSettings(**{"name": next(_names), **settings})


class Tables(msgspec.Struct):
    """Makes the tables of one engine. They exist and are empty."""

    lease_table: Callable[[], LeaseTable]
    coordinator_table: Callable[[], CoordinatorTable]
    worker_metrics_table: Callable[[], WorkerMetricsTable]
