"""Every write to the metadata tables as it was asked for, together with the change of the row that it made.

The embedded DynamoDB answers one request at a time and tells of each one after it was applied, so nothing is sampled,
nothing is merged, and the order is the true one.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import msgspec

from kcl_host.local.engines import Engines
from kcl_host.local.http import HttpAnswer
from kcl_host.local.service_error import ServiceError
from tests.recorder import Change, Kind, Recorder

WRITES: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"})
LEGACY: Final = frozenset(
    {
        "AttributeUpdates",
        "AttributesToGet",
        "ConditionalOperator",
        "Expected",
        "KeyConditions",
        "QueryFilter",
        "ScanFilter",
    }
)
_CLAUSE: Final = re.compile(r"\b(SET|REMOVE|ADD|DELETE)\b")
_TERM: Final = re.compile(r"attribute_(not_)?exists\((\S+?)\)|(\S+) = (:\w+)")


class Rule(NamedTuple):
    """What one kind of write does. A change is a verb and an attribute, a condition a set of terms:
    `x` is equal to a value, `has x`, `no x`."""

    kind: str
    table: Kind
    operation: str
    conditions: tuple[set[str], ...]
    always: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    counter: int = 0
    """What becomes of leaseCounter: 1 more, or 0 more."""


def _changes(text: str) -> frozenset[str]:
    """`SET a b REMOVE c` as SET a, SET b, REMOVE c."""
    parts = _CLAUSE.split(text)
    return frozenset(
        f"{verb} {name}" for verb, names in zip(parts[1::2], parts[2::2], strict=True) for name in names.split()
    )


_AS_READ: Final = tuple(
    {"leaseKey", owner, checkpoint_owner}
    for owner in ("leaseOwner", "no leaseOwner")
    for checkpoint_owner in ("checkpointOwner", "no checkpointOwner")
)
_PENDING: Final = "pendingCheckpoint pendingCheckpointSubSequenceNumber pendingCheckpointState"
_LOCK: Final = {"has key", "recordVersionNumber", "ownerName"}

RULES: Final = (
    # spec lease-table 5.13, one line each
    Rule("create", "lease", "PutItem", ({"no leaseKey"},)),
    Rule(
        "renew",
        "lease",
        "UpdateItem",
        ({"leaseCounter", "no checkpointOwner"}, {"leaseCounter"}),
        _changes("SET leaseCounter"),
        _changes("SET throughputKBps"),
        counter=1,
    ),
    Rule(
        "assign",
        "lease",
        "UpdateItem",
        _AS_READ,
        _changes("SET leaseOwner REMOVE checkpointOwner ADD leaseCounter"),
        _changes("ADD ownerSwitchesSinceCheckpoint"),
        counter=1,
    ),
    Rule(
        "initiate handoff",
        "lease",
        "UpdateItem",
        ({"leaseKey", "leaseOwner", "no checkpointOwner"},),
        _changes("SET leaseOwner checkpointOwner"),
    ),
    Rule(
        "evict",
        "lease",
        "UpdateItem",
        _AS_READ,
        _changes("REMOVE checkpointOwner ADD leaseCounter"),
        _changes("REMOVE leaseOwner"),
        counter=1,
    ),
    Rule(
        "checkpoint",
        "lease",
        "UpdateItem",
        ({"leaseCounter"},),
        _changes(
            "SET leaseCounter checkpoint checkpointSubSequenceNumber ownerSwitchesSinceCheckpoint REMOVE " + _PENDING
        ),
        _changes("SET childShardIds startingHashKey endingHashKey"),
        counter=1,
    ),
    Rule("note children", "lease", "UpdateItem", ({"leaseKey"},), _changes("SET childShardIds")),
    Rule("delete", "lease", "DeleteItem", (set(),)),
    # spec coordination 2.3, 2.4, 2.7 and 3.2
    # The same for the first write of any item of this table: Migration3.0, TableMigration3.5.
    Rule("acquire lock", "coordinator", "PutItem", ({"no key"}, {"has key", "recordVersionNumber"})),
    Rule(
        "heartbeat lock",
        "coordinator",
        "UpdateItem",
        (_LOCK,),
        _changes("SET leaseDuration recordVersionNumber"),
    ),
    Rule("release lock", "coordinator", "DeleteItem", (_LOCK,)),
    Rule(
        "report metrics",
        "worker_metrics",
        "UpdateItem",
        (set(),),
        _changes("SET entityType lut sts opr sup slu"),
        _changes("SET properties REMOVE properties"),
    ),
)


class Write(msgspec.Struct, frozen=True):
    """One request to write, and what came of it: `change` is None when no row changed, or it was refused."""

    operation: str
    request: dict[str, Any]
    refusal: str | None
    change: Change | None

    @property
    def key(self) -> str:
        key: dict[str, dict[str, str]] = self.request.get("Key") or self.request["Item"]
        return next(key[name]["S"] for name in ("leaseKey", "key", "wid") if name in key)

    @property
    def applied(self) -> bool:
        return self.refusal is None

    @property
    def kind(self) -> str:
        return self.rule.kind

    @property
    def rule(self) -> Rule:
        """The one line of RULES that this request is; an AssertionError when there is none."""
        table, changes, terms = Change(0, self.request["TableName"], "").kind, self.changes, set(self.terms)
        found = [
            rule
            for rule in RULES
            if (rule.table, rule.operation) == (table, self.operation)
            and rule.always <= changes <= rule.always | rule.may
            and terms in rule.conditions
        ]
        assert len(found) == 1, f"a write that Java does not make: {self.operation} {json.dumps(self.request)}"
        return found[0]

    @property
    def changes(self) -> frozenset[str]:
        """`SET leaseCounter` and so on, names resolved."""
        return frozenset(f"{verb} {name}" for name, (verb, _) in self.updates.items())

    @property
    def updates(self) -> dict[str, tuple[str, Any]]:
        """Attribute -> (verb, value); REMOVE has no value."""
        parts = _CLAUSE.split(self.request.get("UpdateExpression", ""))
        found: dict[str, tuple[str, Any]] = {}
        for verb, actions in zip(parts[1::2], parts[2::2], strict=True):
            for action in actions.split(","):
                name, *value = action.replace("=", " ").split()
                assert self._name(name) not in found, f"{name} twice in {self.request}"
                found[self._name(name)] = (verb, self._value(value[0]) if value else None)
        return found

    @property
    def terms(self) -> dict[str, Any]:
        """Terms of the condition -> the value compared with; what else is in it (type checks) is left out."""
        found = {}
        for absent, existing, name, value in _TERM.findall(self.request.get("ConditionExpression", "")):
            term = f"{'no' if absent else 'has'} {self._name(existing)}" if existing else self._name(name.strip("("))
            found[term] = self._value(value) if value else None
        return found

    def _name(self, name: str) -> str:
        resolved: str = self.request.get("ExpressionAttributeNames", {}).get(name, name)
        return resolved

    def _value(self, placeholder: str) -> Any:
        ((_, value),) = self.request["ExpressionAttributeValues"][placeholder].items()
        return value


class Watch:
    """Sees every request to the embedded DynamoDB; looks at all rows after each write."""

    def __init__(self, engines: Engines, lease_table: str) -> None:
        self._recorder = Recorder(_Scans(engines), lease_table)
        self.writes: list[Write] = []
        self.created_tables: dict[str, list[str]] = {}
        """Name -> attributes of the key and of those of the indexes, in the order of creation."""
        self.legacy_parameters: set[str] = set()
        engines.dynamodb.front.observe = self._observe

    @property
    def changes(self) -> list[Change]:
        return self._recorder.changes

    def of(self, *kinds: str) -> list[Write]:
        """The writes of these kinds that took effect, in order."""
        return [write for write in list(self.writes) if write.applied and write.kind in kinds]

    def _observe(self, operation: str, body: bytes, answer: HttpAnswer) -> None:
        request = json.loads(body)
        self.legacy_parameters |= LEGACY & request.keys()
        if operation == "CreateTable":
            indexes = request.get("GlobalSecondaryIndexes", [])
            schemas = [request["KeySchema"], *(index["KeySchema"] for index in indexes)]
            self.created_tables[request["TableName"]] = [key["AttributeName"] for schema in schemas for key in schema]
        if operation not in WRITES:
            return
        refusal = None if answer.status == 200 else str(json.loads(answer.body)["__type"]).rpartition("#")[2]
        before = len(self.changes)
        self._recorder.run_once()
        # One request changes one row.
        changes = self.changes[before:]
        self.writes.append(Write(operation, request, refusal, changes[0] if changes else None))


class _Scans:
    """The client of the recorder. Not over HTTP: the engine that it asks is in the middle of a request."""

    class exceptions:
        class ResourceNotFoundException(Exception):
            """The table does not exist."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.dynamodb

    def scan(self, **request: Any) -> dict[str, Any]:
        try:
            return self._engine.call("Scan", **request)
        except ServiceError as error:
            if error.code != "ResourceNotFoundException":
                raise
            raise self.exceptions.ResourceNotFoundException from error
