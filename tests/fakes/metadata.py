"""All metadata but the leases in memory: tables of their own, and what stands in the lease table."""

from __future__ import annotations

from kcl_host.coordination.metadata_tables import MetadataTables
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import FaultPlan
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.table_migration import InMemoryTableMigration
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable


class InMemoryMetadata:
    """`coordinator` and `metrics` exist only if asked for; the items in `lease_table` need no creation."""

    def __init__(
        self, clock: FakeClock, lease_table: InMemoryLeaseTable, *, coordinator: bool = False, metrics: bool = False
    ) -> None:
        self.coordinator = InMemoryCoordinatorTable(clock, exists=coordinator)
        self.metrics = InMemoryWorkerMetricsTable(clock, exists=metrics)
        self.coordinator_in_lease_table = InMemoryCoordinatorTable(clock)
        self.metrics_in_lease_table = InMemoryWorkerMetricsTable(clock, in_lease_table=True)
        self.migration = InMemoryTableMigration(clock, self.coordinator, self.coordinator_in_lease_table)
        lease_table.metrics = self.metrics_in_lease_table
        lease_table.coordinator = self.coordinator_in_lease_table
        self.tables = MetadataTables(
            coordinator=self.coordinator,
            worker_metrics=self.metrics,
            coordinator_in_lease_table=self.coordinator_in_lease_table,
            worker_metrics_in_lease_table=self.metrics_in_lease_table,
            migration=self.migration,
        )

    def plan_faults(self, coordinator: FaultPlan, metrics: FaultPlan) -> None:
        """The same faults wherever the items are."""
        self.coordinator.faults = self.coordinator_in_lease_table.faults = self.migration.faults = coordinator
        self.metrics.faults = self.metrics_in_lease_table.faults = metrics
