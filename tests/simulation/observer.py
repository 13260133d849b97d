"""What must hold whatever happens, checked at every write to the lease table and at every action of a child.

Records are known by their place in their shard. What is checked, and where it is promised: README, "What holds".
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from kcl_host.model.lease import Lease
from kcl_host.model.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from tests.simulation.child import SimChild
    from tests.simulation.fleet import Fleet, Worker

OWNERS_WRITES = frozenset({"renew", "checkpoint", "prepare_checkpoint"})
SHARD_ID = re.compile(r"shardId-\d+")
START_S = 1000.0
ASSIGNMENTS = frozenset({"assign", "initiate_handoff"})


class Broken(AssertionError):
    """An invariant does not hold."""


class Observer:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._index: dict[str, dict[int, int]] = defaultdict(dict)
        """Place of each record in its shard, by sequence number."""
        self._delivered: dict[str, int] = defaultdict(int)
        """So many records of the shard, from its first one on, have been delivered at least once."""
        self._highest: dict[str, ExtendedSequenceNumber] = {}
        """The highest checkpoint that a lease ever had, its row deleted or not."""
        self._children: dict[str, list[SimChild]] = defaultdict(list)
        self.history: list[tuple[float, str, str, str]] = []
        """(time, lease key, who, what), of everything that may matter when something breaks."""
        self.moves = 0
        self.redelivered = 0

    def note(self, key: str, who: str, what: str) -> None:
        self.history.append((self._fleet.hub.now_s, key, who, what))

    def _break(self, key: str, why: str) -> None:
        self.note(key, "", f"BROKEN: {why}")
        error = Broken(f"{key}: {why}")
        self._fleet.fail(error)  # Whatever the worker makes of the exception.
        raise error

    # The stream

    def produced(self, shard_id: str, sequence_number: str) -> None:
        index = self._index[shard_id]
        index[int(sequence_number)] = len(index)

    # Children

    def initialized(self, child: SimChild, checkpoint: str) -> None:
        shard_id = child.shard_id
        self.note(shard_id, child.worker.name, f"child {child.pid} starts at {checkpoint}")
        child.initialized_s = self._fleet.hub.now_s
        if checkpoint.isdigit():
            child.next_record = self._index[shard_id][int(checkpoint)] + 1
        elif checkpoint == "TRIM_HORIZON":
            child.next_record = 0
        else:
            self._break(shard_id, f"a child starts at {checkpoint}")
        for parent in self._fleet.stream.parents_of(shard_id):
            row = self._fleet.lease_table.peek(parent)
            if row is not None and not row.is_at_shard_end:
                self._break(shard_id, f"starts before its parent {parent} has ended, which is at {row.checkpoint}")
        self._children[shard_id].append(child)

    def delivered(self, child: SimChild, sequence_numbers: list[int]) -> None:
        now_s, shard_id = self._fleet.hub.now_s, child.shard_id
        index, expected = self._index[shard_id], child.next_record
        assert expected is not None
        places = [index[number] for number in sequence_numbers]
        if not places:
            return
        if places[0] != expected and not self._is_trimmed(shard_id, expected, places[0]):
            self._break(shard_id, f"record {expected} of {child!r} should come next, not {places[0]}")
        if places != list(range(places[0], places[0] + len(places))):
            self._break(shard_id, f"records out of order or missing: {places}")
        child.next_record = places[-1] + 1
        if child.first_delivery_s is None:
            child.first_delivery_s = now_s
            self.note(shard_id, child.worker.name, f"child {child.pid} gets its first records, {places[0]} on")
        self._check_overlap(child, now_s)
        known = self._delivered[shard_id]
        self.redelivered += max(0, min(known, places[-1] + 1) - places[0])
        self._delivered[shard_id] = max(known, places[-1] + 1)

    def _is_trimmed(self, shard_id: str, first: int, end: int) -> bool:
        """True when the records from `first` up to `end` are older than the retention of the stream."""
        trimmed = first < end and self._fleet.stream.is_trimmed(shard_id, end - 1)
        if trimmed:
            self._fleet.count("records expired unread")
        return trimmed

    def _check_overlap(self, child: SimChild, now_s: float) -> None:
        limit_s = self._fleet.settings.lease.failover_s + child.last_processing_s
        for other in self._children[child.shard_id]:
            if other is child or other.first_delivery_s is None or other.initialized_s <= child.initialized_s:
                continue
            together_s = now_s - other.first_delivery_s
            if together_s > limit_s:
                self._break(
                    child.shard_id,
                    f"{child!r} still gets records {together_s:.1f} s after {other!r} got its first ones",
                )

    def checkpoint_answered(self, child: SimChild, error: str | None) -> None:
        if error is not None:
            self._fleet.count(f"checkpoint answered {error}")

    def ended(self, child: SimChild) -> None:
        children = self._children[child.shard_id]
        if child in children:
            children.remove(child)
            self.note(child.shard_id, child.worker.name, f"child {child.pid} ended")

    def process_gone(self, worker: Worker) -> None:
        for children in self._children.values():
            children[:] = [child for child in children if child.worker is not worker]

    # The lease table

    def wrote(self, operation: str, before: Lease | None, after: Lease | None) -> None:
        if operation == "renew":
            self._check_owner(operation, before)
            return
        row = after or before
        assert row is not None
        key, worker = row.lease_key, self._fleet.current_worker
        who = worker.name if worker else "nobody"
        self._fleet.count(f"write {operation}")
        if operation in OWNERS_WRITES:
            self._check_owner(operation, before)
            self.note(key, who, f"{operation} {row.checkpoint}")
        else:
            owner = f"{row.lease_owner}" + (f" from {row.checkpoint_owner}" if row.checkpoint_owner else "")
            self.note(key, who, f"{operation}, owner {owner}, counter {row.lease_counter}")
        if before is not None and after is not None:
            if after.lease_counter < before.lease_counter:
                self._break(key, f"the counter goes back by {operation}")
            if operation not in ("checkpoint",) and after.checkpoint != before.checkpoint:
                self._break(key, f"{operation} changes the checkpoint")
        if operation in ASSIGNMENTS:
            self._check_right_to_assign(operation, before)
        if operation == "delete":
            self._check_delete(before)
        elif after is not None and after.checkpoint is not None:
            self._check_checkpoint(operation, after)

    def _check_owner(self, operation: str, before: Lease | None) -> None:
        worker = self._fleet.current_worker
        assert worker is not None and before is not None
        if before.actual_owner != worker.worker_id:
            self._break(before.lease_key, f"{operation} by {worker.worker_id}, it belongs to {before.actual_owner}")

    def asks_to_assign(self, worker: Worker) -> None:
        """A worker sends a write that only the leader or the owner may make; it may take effect much later."""
        self._fleet.hub.current.led_when_asked = worker.supervisor.is_leader

    def _check_right_to_assign(self, operation: str, before: Lease | None) -> None:
        worker = self._fleet.current_worker
        assert worker is not None and before is not None
        self.moves += 1
        if worker.worker_id == before.actual_owner:
            return
        if not self._fleet.hub.current.led_when_asked:
            self._break(before.lease_key, f"{operation} by {worker!r}, who does not lead")
        others = [leader for leader in self._fleet.leaders() if leader is not worker]
        if worker.supervisor.is_leader and others:
            self._break(before.lease_key, f"{worker!r} and {others} lead")

    def _check_delete(self, before: Lease | None) -> None:
        if before is None or before.is_at_shard_end or not self._fleet.stream.exists(before.lease_key):
            return
        self._break(before.lease_key, f"deleted at {before.checkpoint}, and its shard still exists")

    def _check_checkpoint(self, operation: str, after: Lease) -> None:
        key, checkpoint = after.lease_key, after.checkpoint
        assert checkpoint is not None
        highest = self._highest.get(key)
        if highest is not None and checkpoint < highest:
            self._break(key, f"checkpoint goes back from {highest} to {checkpoint} by {operation}")
        self._highest[key] = checkpoint
        if operation != "checkpoint":
            return
        if checkpoint.is_shard_end:
            if self._fleet.stream.is_open(key):
                self._break(key, "SHARD_END of an open shard")
            rest = len(self._index[key])
            if self._delivered[key] < rest and not self._is_trimmed(key, self._delivered[key], rest):
                self._break(key, f"SHARD_END after {self._delivered[key]} of {rest} records")
        elif self._index[key][int(checkpoint.sequence_number)] >= self._delivered[key]:
            self._break(key, f"checkpoint {checkpoint} was never delivered")

    # The end

    @property
    def records(self) -> int:
        return sum(map(len, self._index.values()))

    def told(self, error: Broken, lines: int = 60) -> list[str]:
        """The last of the history that concerns the lease of the error, or that concerns no lease at all."""
        found = SHARD_ID.search(str(error))
        key = found.group() if found else None
        told = [entry for entry in self.history if key is None or entry[1] in ("", key)]
        return [f"{at_s - START_S:9.3f} s  {key:22} {who:8} {what}" for at_s, key, who, what in told[-lines:]]

    def check_all_delivered(self) -> None:
        """Raises Broken unless every record was delivered, but for those that have left the stream."""
        for shard_id, index in self._index.items():
            known = self._delivered[shard_id]
            if known < len(index) and not self._is_trimmed(shard_id, known, len(index)):
                self._break(shard_id, f"only {known} of {len(index)} records were delivered")
