"""BatchGetItem on the wire: a hundred rows to a request, and what DynamoDB leaves undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from kcl_host.aws.items import lease_item
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.config.settings import TableSettings
from kcl_host.errors import Throttled
from tests.unit.coordination_rig import lease


class Client:
    """Answers BatchGetItem alone; `served` says how many of the keys asked for are done by the next request."""

    def __init__(self, served: Callable[[int], int]) -> None:
        self._served = served
        self.asked: list[tuple[int, bool]] = []

    def batch_get_item(self, *, RequestItems: dict[str, Any]) -> dict[str, Any]:
        ((name, request),) = RequestItems.items()
        keys = request["Keys"]
        self.asked.append((len(keys), request["ConsistentRead"]))
        done = self._served(len(keys))
        answer: dict[str, Any] = {"Responses": {name: [_row(key["leaseKey"]["S"]) for key in keys[:done]]}}
        if keys[done:]:
            answer["UnprocessedKeys"] = {name: {"Keys": keys[done:], "ConsistentRead": request["ConsistentRead"]}}
        return answer


def _row(key: str) -> dict[str, Any]:
    if key == "broken":
        return {"leaseKey": {"S": key}, "leaseCounter": {"S": "x"}}
    if key == "metrics":
        return {"leaseKey": {"S": key}, "entityType": {"S": "WORKER_METRIC_STATS"}}
    return lease_item(lease(key))


def table_of(client: Client) -> DynamoDbLeaseTable:
    return DynamoDbLeaseTable(cast(Any, client), TableSettings(name="app"))


@pytest.mark.parametrize("consistent", [True, False])
def test_a_hundred_rows_to_a_request_and_no_key_twice(consistent: bool) -> None:
    client = Client(lambda asked: asked)
    keys = [f"s{n:03d}" for n in range(250)]
    rows = table_of(client).get_all([*keys, *keys], consistent=consistent)
    assert sorted(row.lease_key for row in rows) == keys
    assert client.asked == [(100, consistent), (100, consistent), (50, consistent)]


def test_nothing_wanted_nothing_asked() -> None:
    client = Client(lambda asked: asked)
    assert table_of(client).get_all([], consistent=False) == []
    assert client.asked == []


def test_what_is_left_undone_is_asked_for_again() -> None:
    client = Client(lambda asked: min(asked, 4))
    rows = table_of(client).get_all([f"s{n}" for n in range(10)], consistent=True)
    assert sorted(row.lease_key for row in rows) == [f"s{n}" for n in range(10)]
    assert client.asked == [(10, True), (6, True), (2, True)]


def test_a_request_that_does_nothing_at_all_is_throttled() -> None:
    left = iter((6, 0))
    client = Client(lambda asked: next(left))
    with pytest.raises(Throttled):
        table_of(client).get_all([f"s{n}" for n in range(10)], consistent=True)
    assert len(client.asked) == 2


def test_rows_that_are_no_leases_are_left_out() -> None:
    rows = table_of(Client(lambda asked: asked)).get_all(["s1", "broken", "metrics"], consistent=False)
    assert [row.lease_key for row in rows] == ["s1"]
