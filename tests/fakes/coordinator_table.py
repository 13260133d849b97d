"""Leader lock and migration items in memory."""

from __future__ import annotations

from kcl_host.errors import TableMissing
from kcl_host.model.state import ClientVersionState, CoordinatorItem, LeaderLock, TableMigrationState
from tests.fakes.clock import FakeClock
from tests.fakes.fault import FaultPlan, Requests


class InMemoryCoordinatorTable:
    """Satisfies ports.CoordinatorTable. `lock`, `client_version` and `table_migration` are the items."""

    def __init__(self, clock: FakeClock, *, exists: bool = True) -> None:
        self._requests = Requests("coordinator table", clock)
        self._exists = exists
        self.lock: LeaderLock | None = None
        self.client_version: ClientVersionState | None = None
        self.table_migration: TableMigrationState | None = None
        self.others: dict[str, CoordinatorItem] = {}
        """Items of kinds that kcl-host does not write, by key."""

    @property
    def faults(self) -> FaultPlan:
        return self._requests.plan

    @faults.setter
    def faults(self, plan: FaultPlan) -> None:
        self._requests.plan = plan

    @property
    def requests(self) -> dict[str, int]:
        return self._requests.counts

    @property
    def is_there(self) -> bool:
        return self._exists

    def exists(self) -> bool:
        with self._requests.request("exists"):
            return self._exists

    def create_table(self) -> bool:
        with self._requests.request("create_table"):
            created, self._exists = not self._exists, True
            return created

    def delete_table(self) -> None:
        with self._requests.request("delete_table"):
            self._exists = False

    def read_lock(self) -> LeaderLock | None:
        with self._requests.request("read_lock"):
            self._require_table()
            return self.lock

    def acquire_lock(self, lock: LeaderLock, over: LeaderLock | None) -> bool:
        with self._requests.request("acquire_lock", lock.owner_name):
            self._require_table()
            now = self.lock
            if over is None:
                granted = now is None
            elif over.is_released:
                granted = now is not None and now.is_released
            else:
                granted = now is not None and now.record_version_number == over.record_version_number
            if granted:
                self.lock = lock
            return granted

    def heartbeat_lock(self, lock: LeaderLock, previous_record_version_number: str) -> bool:
        with self._requests.request("heartbeat_lock", lock.owner_name):
            self._require_table()
            ours = self._is(previous_record_version_number, lock.owner_name)
            if ours:
                self.lock = lock
            return ours

    def release_lock(self, lock: LeaderLock) -> bool:
        with self._requests.request("release_lock", lock.owner_name):
            self._require_table()
            ours = self._is(lock.record_version_number, lock.owner_name)
            if ours:
                self.lock = None
            return ours

    def read_client_version(self) -> ClientVersionState | None:
        with self._requests.request("read_client_version"):
            self._require_table()
            return self.client_version

    def create_client_version(self, state: ClientVersionState) -> bool:
        with self._requests.request("create_client_version"):
            self._require_table()
            if self.client_version is not None:
                return False
            self.client_version = state
            return True

    def update_client_version(self, state: ClientVersionState, expected: str) -> bool:
        with self._requests.request("update_client_version"):
            self._require_table()
            if self.client_version is None or self.client_version.client_version != expected:
                return False
            self.client_version = state
            return True

    def _is(self, record_version_number: str, owner_name: str) -> bool:
        lock = self.lock
        return lock is not None and (lock.record_version_number, lock.owner_name) == (record_version_number, owner_name)

    def _require_table(self) -> None:
        if not self._exists:
            raise TableMissing("the coordinator table is not there")
