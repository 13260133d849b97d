"""What DynamoDB counts for a request, in on-demand request units: the sizes of items and the rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from kcl_host.aws.items import decimal, lease_item, number, text
from kcl_host.model.lease import Lease
from kcl_host.model.worker import WorkerMetricStats

READ_BYTES, WRITE_BYTES = 4096, 1024
"""Of one read unit (half the price when eventually consistent), and of one write unit."""
INDEX_KEYS = ("leaseOwner", "leaseKey")
"""What LeaseOwnerToLeaseKeyIndex projects. Only a write that changes one of these writes to the index."""


class Units(msgspec.Struct, frozen=True):
    """Of some requests; or of each of them, when `requests` is 1."""

    requests: float
    read: float = 0.0
    write: float = 0.0

    def times(self, n: float) -> Units:
        return Units(self.requests * n, self.read * n, self.write * n)


CONSISTENT_GET = Units(1, read=1.0)
"""Of an item up to 4 KB."""


def sum_of(units: Iterable[Units]) -> Units:
    parts = list(units)
    return Units(sum(u.requests for u in parts), sum(u.read for u in parts), sum(u.write for u in parts))


def listing(item_bytes: Iterable[int]) -> Units:
    """A Scan or a Query that reads these items, eventually consistent; one page, which ends at 1 MB."""
    return Units(1, read=0.5 * max(1, math.ceil(sum(item_bytes) / READ_BYTES)))


def update(item_bytes: int) -> Units:
    """A write that leaves the index alone, of an item of that size before and after."""
    return Units(1, write=max(1, math.ceil(item_bytes / WRITE_BYTES)))


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of each row of the tables of a fleet, as both Java and kcl-host would pay for them."""

    lease: dict[str, int]
    """By lease key."""
    index: dict[str, list[int]]
    """Of the entries in the index, by worker id; a worker without a lease has none."""
    worker: dict[str, int]
    """Of the metric stats, by worker id."""


def rows_of(leases: Iterable[Lease], workers: Iterable[WorkerMetricStats]) -> Rows:
    lease_items = [lease_item(lease) for lease in leases]
    index: dict[str, list[int]] = {worker.worker_id: [] for worker in workers}
    for item in lease_items:
        index.setdefault(item["leaseOwner"]["S"], []).append(item_bytes({name: item[name] for name in INDEX_KEYS}))
    return Rows(
        lease={item["leaseKey"]["S"]: item_bytes(item) for item in lease_items},
        index=index,
        worker={worker.worker_id: item_bytes(_worker_item(worker)) for worker in workers},
    )


def item_bytes(item: Mapping[str, Any]) -> int:
    """Size of an item by the rules of the DynamoDB developer guide ("item sizes and formats")."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            digits = Decimal(content).normalize().as_tuple()
            return math.ceil(len(digits.digits) / 2) + 1 + digits.sign
        case "B":
            return len(content)
        case "SS":
            return sum(len(element.encode()) for element in content)
        case "L":
            return 3 + sum(1 + _value_bytes(element) for element in content)
        case "M":
            return 3 + len(content) + item_bytes(content)
        case _:
            raise NotImplementedError(kind)


def _worker_item(worker: WorkerMetricStats) -> dict[str, Any]:
    def lists(values: Mapping[str, list[float]]) -> dict[str, Any]:
        return {"M": {name: {"L": [decimal(value) for value in of]} for name, of in values.items()}}

    return {
        "wid": text(worker.worker_id),
        "entityType": text("WORKER_METRIC_STATS"),
        "lut": number(worker.last_update_s or 0),
        "sts": lists(worker.metric_stats),
        "opr": lists(worker.operating_range),
    }
