"""Migration3.0 as it leaves the host, against the item of a Java KCL 3.1.3. A running host writes it a minute or two
after its start, too late for a test with real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import botocore.session
import pytest

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.config.settings import TableSettings
from kcl_host.decisions.metadata_format import client_version_item
from tests.fakes.wire import Reply, Wire
from tests.recorder import read_trace

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def written(worker_id: str, now_ms: int) -> dict[str, Any]:
    """The request that creates the item."""
    client = botocore.session.Session().create_client(
        "dynamodb", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )
    wire = Wire(client, Reply())
    table = DynamoDbCoordinatorTable(client, TableSettings(name="app-CoordinatorState"))
    assert table.create_client_version(client_version_item(worker_id, now_ms))
    client.close()
    ((operation, request),) = wire.requests
    assert operation == "PutItem"
    return dict(request)


def types(value: dict[str, Any]) -> Any:
    """The types of an attribute, all the way down."""
    ((kind, content),) = value.items()
    if kind == "M":
        return {name: types(inner) for name, inner in content.items()}
    return [types(inner) for inner in content] if kind == "L" else kind


@pytest.mark.parametrize("trace", ["split-merge-cleanup", "two-worker-handover"])
def test_names_types_and_values_are_those_of_java(trace: str) -> None:
    changes = read_trace(GOLDEN / f"java-kcl-3.1.3-{trace}.jsonl")
    (java,) = (change.changed for change in changes if change.key == "Migration3.0")
    assert java["mb"] and java["mts"] and java["h"]
    request = written(java["mb"]["S"], int(java["mts"]["N"]))
    ours = request["Item"]
    assert ours.pop("entityType") == {"S": "CLIENT_VERSION_MIGRATION"}, "which KCL 3.5 adds"
    assert types({"M": ours}) == types({"M": java})
    # Java takes the time twice, so that the two can differ by some milliseconds.
    for item in (ours, java):
        item["h"]["L"][0]["M"]["mts"] = item["mts"]
    assert ours == java
    assert request["ConditionExpression"] == "attribute_not_exists(#pk)"
    assert request["ExpressionAttributeNames"] == {"#pk": "key"}
