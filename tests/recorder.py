"""Records every change of the metadata tables, and compares what two workers write.

The form is that of the golden files (tests/data/golden): one JSON object per change, `t` seconds since the start,
`table`, `key`, and `new` with the whole row, `deleted`, or what `changed` (DynamoDB JSON; null: attribute gone).
The recorder polls, so quick writes to one row can appear as one change.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

POLL_S = 0.15

Kind = Literal["lease", "coordinator", "worker_metrics"]
SUFFIXES: dict[str, Kind] = {"-CoordinatorState": "coordinator", "-WorkerMetricStats": "worker_metrics"}
KEYS: dict[Kind, str] = {"lease": "leaseKey", "coordinator": "key", "worker_metrics": "wid"}
COORDINATOR_KEYS = {"Leader", "Migration3.0", "TableMigration3.5"}
COUNTED = {"leaseCounter"}
HANDOVER = {"leaseOwner", "checkpointOwner"}


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row as it differs from the scan before."""

    t: float
    table: str
    key: str
    new: bool = False
    deleted: bool = False
    changed: dict[str, dict[str, Any] | None] = {}

    @property
    def kind(self) -> Kind:
        """Of the table, by its name; in the lease table (KCL 3.5) by what no lease has."""
        for suffix, kind in SUFFIXES.items():
            if self.table.endswith(suffix):
                return kind
        if self.key in COORDINATOR_KEYS:
            return "coordinator"
        return "worker_metrics" if {"lut", "sts", "properties"} & self.changed.keys() else "lease"


def read_trace(path: Path) -> list[Change]:
    """The changes of a trace, `event` lines left out."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return [msgspec.convert(line, Change) for line in lines if "table" in line]


def write_trace(path: Path, changes: Iterable[Change]) -> None:
    path.write_text("".join(json.dumps(_as_golden(change)) + "\n" for change in changes))


def _as_golden(change: Change) -> dict[str, Any]:
    line: dict[str, Any] = {"t": round(change.t, 2), "table": change.table, "key": change.key}
    return line | ({"deleted": True} if change.deleted else {"new": change.new, "changed": change.changed})


class Recorder:
    """Watches the tables of an application. `run_once` is one look; `with recorder:` looks on a thread."""

    def __init__(
        self, client: Any, lease_table: str, *, poll_s: float = POLL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._tables = (lease_table, *(lease_table + suffix for suffix in SUFFIXES))
        self._poll_s = poll_s
        self._clock = clock
        self._start_s = clock()
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.changes: list[Change] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="recorder")

    def run_once(self) -> None:
        """Compares all tables with the look before; a table that does not exist is empty."""
        seen = {(table, key): row for table in self._tables for key, row in self._scan(table)}
        at_s = self._clock() - self._start_s
        for place in sorted(self._rows.keys() - seen.keys()):
            self.changes.append(Change(at_s, *place, deleted=True))
        for place, row in sorted(seen.items()):
            before = self._rows.get(place)
            if before is None:
                self.changes.append(Change(at_s, *place, new=True, changed=dict(row)))
            elif before != row:
                changed = {name: row.get(name) for name in sorted(before.keys() | row.keys())}
                differing = {name: value for name, value in changed.items() if before.get(name) != value}
                self.changes.append(Change(at_s, *place, changed=differing))
        self._rows = seen

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.run_once()

    def _loop(self) -> None:
        while not self._stop.wait(self._poll_s):
            self.run_once()

    def _scan(self, table: str) -> list[tuple[str, dict[str, Any]]]:
        key = KEYS[Change(0, table, "").kind]
        request: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
        rows = []
        while True:
            try:
                answer = self._client.scan(**request)
            except self._client.exceptions.ResourceNotFoundException:
                return []
            rows += [(item[key]["S"], _plain(item)) for item in answer["Items"]]
            if not (last := answer.get("LastEvaluatedKey")):
                return rows
            request["ExclusiveStartKey"] = last


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """The item in a form that compares and that JSON can hold."""
    return {name: _plain_value(value) for name, value in item.items()}


def _plain_value(value: dict[str, Any]) -> dict[str, Any]:
    ((kind, content),) = value.items()
    if kind == "B":
        content = base64.b64encode(content).decode()
    return {kind: sorted(content) if kind in ("SS", "NS") else content}


# What a change is


def classify(change: Change) -> str:
    """The write, or the writes between two looks, that a change shows; `unknown: ...` for none that KCL makes.

    Several writes to a lease are joined by `+` in a fixed order, e.g. `checkpoint+renew` where a checkpoint and a
    throughput came at once. Judged from names alone, except that an owner that is gone tells evict from assign.
    """
    if change.deleted:
        return "lock released" if change.key == "Leader" else f"{_place(change)} deleted"
    names = set(change.changed)
    if change.kind == "worker_metrics":
        if change.new:
            return "worker metrics created"
        allowed = {"lut", "sts", "opr", "sup", "slu", "entityType", "properties"}
        return "worker metrics reported" if names <= allowed else _unknown(names)
    if change.kind == "coordinator":
        if change.key != "Leader":
            return f"{change.key} {'created' if change.new else 'changed'}"
        if change.new or "ownerName" in names:
            return "lock acquired"
        return "lock heartbeat" if names <= {"recordVersionNumber", "leaseDuration"} else _unknown(names)
    return "lease created" if change.new else _lease_writes(change.changed)


def _lease_writes(changed: dict[str, dict[str, Any] | None]) -> str:
    rest, found = set(changed), list[str]()
    if {"leaseOwner", "checkpointOwner"} <= rest and changed["leaseOwner"] and changed["checkpointOwner"]:
        found.append("handoff initiated")
        rest -= HANDOVER
    elif "checkpointOwner" in rest and changed["checkpointOwner"] is None:
        found.append("handoff completed")
        rest -= HANDOVER
    elif "leaseOwner" in rest:
        found.append("assigned" if changed["leaseOwner"] else "evicted")
        rest.discard("leaseOwner")
    if "ownerSwitchesSinceCheckpoint" in rest and found:
        rest.discard("ownerSwitchesSinceCheckpoint")
    if "childShardIds" in rest:
        found.append("child shards written")
        rest.discard("childShardIds")
    if rest & {"checkpoint", "checkpointSubSequenceNumber"}:
        found.append("checkpoint")
        pending = {name for name in rest if name.startswith("pendingCheckpoint")}
        rest -= {"checkpoint", "checkpointSubSequenceNumber", "ownerSwitchesSinceCheckpoint"} | pending
    elif "pendingCheckpoint" in rest and changed["pendingCheckpoint"]:
        found.append("checkpoint prepared")
        rest = {name for name in rest if not name.startswith("pendingCheckpoint")}
    if rest & {"startingHashKey", "endingHashKey"}:
        found.append("hash key range written")
        rest -= {"startingHashKey", "endingHashKey"}
    if "throughputKBps" in rest or (rest == COUNTED and not found):
        found.append("renewed")
        rest.discard("throughputKBps")
    if "leaseCounter" in rest and found and found[0] in ("handoff initiated", "child shards written"):
        # these leave the counter alone, so a heartbeat came in between
        if not {"checkpoint", "renewed"} & set(found):
            found.append("renewed")
    rest -= COUNTED
    return "+".join(found) if found and not rest else _unknown(set(changed))


def _unknown(names: set[str]) -> str:
    return f"unknown: {', '.join(sorted(names))}"


# Comparing traces

OURS_BESIDES = frozenset({("entityType", "S"), ("sup", "N"), ("slu", "N"), ("properties", "M")})
"""Attributes that 3.5 writes and the Java 3.1.3 of the golden traces does not."""
WRITES_BESIDES = frozenset({"evicted", "lock released"})
"""A worker of ours that stops gives up its leases; and the Java workers of the traces never released their lock."""


def writes(changes: Iterable[Change]) -> set[str]:
    """Every single write that occurs, by `classify`."""
    return {write for change in changes for write in classify(change).split("+")}


def differences(ours: Sequence[Change], golden: Sequence[Change], required_writes: Iterable[str] = ()) -> list[str]:
    """What is different in kind between the traces of two workers, in words; empty when nothing is.

    Values, the names of tables and the number of repetitions do not count. Each of our attributes must be one of
    Java's with the same type (save OURS_BESIDES), each new row must have what all new rows of Java have, and each write
    must be one that Java makes (save WRITES_BESIDES). `required_writes` must occur.
    """
    found = []
    for place, attributes in sorted(_attributes(ours).items()):
        strange = attributes - _attributes(golden).get(place, set()) - OURS_BESIDES
        found += [f"{place}: {name} of type {kind} is not Java's" for name, kind in sorted(strange)]
    always = _always_created_with(golden)
    for place, attributes in sorted(_always_created_with(ours).items()):
        missing = always.get(place, attributes) - attributes
        found += [f"{place}: a new row lacks {name} of type {kind}" for name, kind in sorted(missing)]
    found += [f"write '{write}' is not Java's" for write in sorted(writes(ours) - writes(golden) - WRITES_BESIDES)]
    found += [f"write '{write}' does not occur" for write in sorted(set(required_writes) - writes(ours))]
    return found


def _attributes(changes: Iterable[Change]) -> dict[str, set[tuple[str, str]]]:
    """Place -> (attribute, type) seen on any row."""
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for change in changes:
        seen[_place(change)] |= _typed(change)
    return seen


def _always_created_with(changes: Iterable[Change]) -> dict[str, set[tuple[str, str]]]:
    """Place -> what every new row there has."""
    rows: dict[str, list[set[tuple[str, str]]]] = defaultdict(list)
    for change in changes:
        if change.new:
            rows[_place(change)].append(_typed(change))
    return {place: set.intersection(*typed) for place, typed in rows.items()}


def _place(change: Change) -> str:
    return change.key if change.kind == "coordinator" else change.kind.replace("_", " ")


def _typed(change: Change) -> set[tuple[str, str]]:
    return {(name, next(iter(value))) for name, value in change.changed.items() if value}
