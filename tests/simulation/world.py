"""The lease table and the stream of the simulation: those of tests/fakes, with questions that only an observer asks."""

from __future__ import annotations

from collections import defaultdict

from kcl_host.errors import TableMissing
from kcl_host.model.lease import Lease
from tests.fakes.clock import FakeClock
from tests.fakes.lease_table import InMemoryLeaseTable, no_lag
from tests.fakes.stream import InMemoryStream


class SimLeaseTable(InMemoryLeaseTable):
    """Keeps the index as a dictionary: every worker asks it each second."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, exists=False)
        self._keys_by_owner: dict[str | None, dict[str, None]] = defaultdict(dict)

    def no_more_lag(self) -> None:
        self.lag = no_lag

    def lease_keys_of(self, worker_id: str) -> list[str]:
        if self.lag is not no_lag:
            return super().lease_keys_of(worker_id)
        with self._requests.request("lease_keys_of", worker_id):
            self._require_table()
            if self._index_status() != "ACTIVE":
                raise TableMissing("the index is not there or not ready")
            return list(self._keys_by_owner[worker_id])

    def _write(self, operation: str, lease_key: str, after: Lease | None) -> None:
        before = self.peek(lease_key)
        super()._write(operation, lease_key, after)
        if before is None or after is None or before.lease_owner != after.lease_owner:
            if before is not None:
                self._keys_by_owner[before.lease_owner].pop(lease_key, None)
            if after is not None:
                self._keys_by_owner[after.lease_owner][lease_key] = None

    def peek(self, lease_key: str) -> Lease | None:
        """The row as it stands; nobody's request."""
        return self._rows.get(lease_key)


class SimStream(InMemoryStream):
    def parents_of(self, shard_id: str) -> tuple[str, ...]:
        return self._shards[shard_id].parents

    def exists(self, shard_id: str) -> bool:
        """True while ListShards names it."""
        return any(shard.shard_id == shard_id for shard in self._retained())

    def is_open(self, shard_id: str) -> bool:
        return self._shards[shard_id].closed_s is None

    def is_trimmed(self, shard_id: str, place: int) -> bool:
        """True when that record of the shard is older than the retention."""
        return self._shards[shard_id].records[place].arrival_s <= self._horizon_s()

    def neighbour(self, shard_id: str) -> str | None:
        """The open shard whose hash keys follow those of this one; None for the last one."""
        end = self._shards[shard_id].hash_key_range.end
        for other in self._shards.values():
            if other.closed_s is None and other.hash_key_range.start == end + 1:
                return other.shard_id
        return None
