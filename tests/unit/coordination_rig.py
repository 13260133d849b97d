"""What the tests of coordination/ share: faults in order, leases in few words, one worker's held leases."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kcl_host.config.settings import (
    ChildSettings,
    LeaseSettings,
    RetrievalSettings,
    ServiceSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, TRIM_HORIZON, ExtendedSequenceNumber, InitialPosition
from kcl_host.model.worker import WorkerMetricStats
from tests.fakes.clock import FakeClock
from tests.fakes.fault import Fault, FaultPlan
from tests.fakes.lease_table import InMemoryLeaseTable

ME, OTHER, THIRD = "me", "other", "third"
FIVE, SEVEN, NINE = (ExtendedSequenceNumber(n) for n in ("5", "7", "9"))


def lease(key: str = "s1", owner: str | None = ME, counter: int = 3, **fields: object) -> Lease:
    values = {"checkpoint": AT_TRIM_HORIZON, "lease_owner": owner, "lease_counter": counter, **fields}
    return Lease(lease_key=key, **values)  # type: ignore[arg-type]


def befall(operation: str, *faults: Fault | None) -> FaultPlan:
    """The faults befall the next requests of that operation, in order; None spares one."""
    left = list(faults)

    def plan(asked: str, key: str) -> Fault | None:
        return left.pop(0) if asked == operation and left else None

    return plan


def before(operation: str, act: Callable[[], object]) -> FaultPlan:
    """Somebody else acts just before the next request of that operation takes effect."""
    left = [act]

    def plan(asked: str, key: str) -> Fault | None:
        if asked == operation and left:
            left.pop()()
        return None

    return plan


def always(operation: str, fault: Fault) -> FaultPlan:
    return lambda asked, key: fault if asked == operation else None


def reporting(worker_id: str, clock: FakeClock, **fields: object) -> WorkerMetricStats:
    """The row of a live worker without metrics."""
    return WorkerMetricStats(worker_id=worker_id, last_update_s=int(clock.wall()), **fields)  # type: ignore[arg-type]


def settings_of(worker_id: str, **sections: object) -> Settings:
    service = ServiceSettings(region="us-east-1")
    values = {
        "application_name": "app",
        "worker_id": worker_id,
        "streams": (StreamSettings(name="orders"),),
        "initial_position": InitialPosition(kind=TRIM_HORIZON),
        "child": ChildSettings(command=("child",)),
        "kinesis": service,
        "dynamodb": service,
        "cloudwatch": service,
        "lease_table": TableSettings(name="app"),
        "coordinator_table": TableSettings(name="app-CoordinatorState"),
        "worker_metrics_table": TableSettings(name="app-WorkerMetricStats"),
        "retrieval": RetrievalSettings(mode="POLLING", mode_reason="test"),
        **sections,
    }
    return Settings(**values)  # type: ignore[arg-type]


class Worker:
    """Held leases over a table, and what was told of losses."""

    def __init__(self, worker_id: str = ME, settings: LeaseSettings | None = None) -> None:
        self.clock = FakeClock()
        self.table = InMemoryLeaseTable(self.clock)
        self.settings = settings or LeaseSettings()
        self.lost: list[tuple[HeldLease, str]] = []
        tokens = (f"token-{n}" for n in itertools.count())
        self.held_leases = HeldLeases(
            self.table,
            worker_id,
            self.settings,
            self.clock,
            lambda: next(tokens),
            lambda held, reason: self.lost.append((held, reason)),
        )

    def hold(self, row: Lease | None = None) -> HeldLease:
        row = row or lease()
        self.table.put(row)
        held = self.held_leases.add(row, self.clock.monotonic())
        assert held is not None
        return held
