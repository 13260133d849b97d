"""TableMigration3.5 and the move between two coordinator tables in memory."""

from __future__ import annotations

from collections.abc import Sequence

from kcl_host.errors import TableMissing
from kcl_host.model.state import (
    CLIENT_VERSION_KEY,
    LEADER_KEY,
    TABLE_MIGRATION_KEY,
    ClientVersionState,
    CoordinatorItem,
    TableMigrationState,
)
from tests.fakes.clock import FakeClock
from tests.fakes.coordinator_table import InMemoryCoordinatorTable
from tests.fakes.fault import FaultPlan, Requests


class InMemoryTableMigration:
    """Satisfies ports.TableMigrationItems between `legacy` and `in_lease_table`."""

    def __init__(
        self, clock: FakeClock, legacy: InMemoryCoordinatorTable, in_lease_table: InMemoryCoordinatorTable
    ) -> None:
        self._requests = Requests("coordinator table", clock)
        self._legacy = legacy
        self._in_lease_table = in_lease_table

    @property
    def faults(self) -> FaultPlan:
        return self._requests.plan

    @faults.setter
    def faults(self, plan: FaultPlan) -> None:
        self._requests.plan = plan

    @property
    def requests(self) -> dict[str, int]:
        return self._requests.counts

    def read(self) -> TableMigrationState | None:
        with self._requests.request("read_table_migration"):
            return self._table().table_migration

    def create(self, state: TableMigrationState) -> bool:
        with self._requests.request("create_table_migration"):
            if self._table().table_migration is not None:
                return False
            self._legacy.table_migration = state
            return True

    def update(self, state: TableMigrationState, expected_status: str) -> bool:
        with self._requests.request("update_table_migration"):
            if not self._has_status(expected_status):
                return False
            self._legacy.table_migration = state
            return True

    def delete(self, expected_status: str) -> bool:
        with self._requests.request("delete_table_migration"):
            if not self._has_status(expected_status):
                return False
            self._legacy.table_migration = None
            return True

    def list_items(self) -> list[CoordinatorItem]:
        with self._requests.request("list_coordinator_items"):
            table = self._table()
            items = [table.others[key] for key in sorted(table.others)]
            known = {
                LEADER_KEY: table.lock,
                CLIENT_VERSION_KEY: table.client_version,
                TABLE_MIGRATION_KEY: table.table_migration,
            }
            return items + [
                CoordinatorItem(key=key, attributes={"value": value})
                for key, value in known.items()
                if value is not None
            ]

    def move(self, items: Sequence[CoordinatorItem], leader: str) -> bool:
        with self._requests.request("move_coordinator_items"):
            table, to = self._table(), self._in_lease_table
            taken = {CLIENT_VERSION_KEY} & {item.key for item in items} if to.client_version is not None else set()
            if not self._leads(leader) or taken or to.others.keys() & {item.key for item in items}:
                return False
            for item in items:
                if item.key == CLIENT_VERSION_KEY:
                    version = item.attributes["value"]
                    assert isinstance(version, ClientVersionState)
                    to.client_version, table.client_version = version, None
                else:
                    to.others[item.key] = item
                    table.others.pop(item.key, None)
            return True

    def finalise(self, state: TableMigrationState, expected_status: str, leader: str) -> bool:
        with self._requests.request("finalise_table_migration"):
            may = self._has_status(expected_status) and self._leads(leader)
            if not may or self._in_lease_table.table_migration is not None:
                return False
            self._in_lease_table.table_migration = self._legacy.table_migration = state
            return True

    def _leads(self, leader: str) -> bool:
        lock = self._table().lock
        return lock is not None and lock.owner_name == leader

    def _has_status(self, status: str) -> bool:
        state = self._table().table_migration
        return state is not None and state.status == status

    def _table(self) -> InMemoryCoordinatorTable:
        if not self._legacy.is_there:
            raise TableMissing("the coordinator table is not there")
        return self._legacy
