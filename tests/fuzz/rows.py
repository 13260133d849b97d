"""Rows of any type for any attribute: every table's decoders, and then a whole look at the fleet they make."""

from __future__ import annotations

import json
import re
from io import StringIO
from random import Random
from typing import Any, NamedTuple

import msgspec

from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
from kcl_host.aws.items import Undecodable, entity_type, is_lease, lease_from, lease_item
from kcl_host.aws.lease_table import DynamoDbLeaseTable
from kcl_host.aws.table_migration import DynamoDbTableMigration
from kcl_host.aws.worker_metrics_table import DynamoDbWorkerMetricsTable
from kcl_host.cli.fleet_table import page
from kcl_host.cli.plan import _print as print_plan
from kcl_host.cli.terminal import console
from kcl_host.config.settings import TableSettings
from kcl_host.decisions.election import judge_lock
from kcl_host.decisions.fleet_health import diagnose
from kcl_host.decisions.fleet_looks import FleetSnapshot, look
from kcl_host.decisions.fleet_plan import plan_fleet
from kcl_host.decisions.fleet_selection import Selection
from kcl_host.decisions.fleet_view import view_fleet
from kcl_host.decisions.saved_fleet import load_fleet, save_fleet
from kcl_host.errors import ConfigurationError, Unavailable
from kcl_host.model.lease import TableState
from tests.fuzz.driver import Target
from tests.fuzz.mutation import nasty_number, nasty_text
from tests.unit.coordination_rig import settings_of

SETTINGS = settings_of("me")
WALL_S = 1_800_000_000.0
NUMBER = "49640000000000000000000000000000000000000000000000000001"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_STRANGE_NUMBERS = (
    "0", "-0", "-1", "1.5", "1E+2", "1E+125", "9.9999999999999999999999999999999999999E+125", "-1E+125", "1E-130",
    "9" * 38, str(2**63), str(2**64),
)  # fmt: skip


class Tables(NamedTuple):
    """Items as DynamoDB JSON: of the lease table, of worker metrics, and the coordinator's three."""

    leases: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    lock: dict[str, Any] | None
    client_version: dict[str, Any] | None
    migration: dict[str, Any] | None
    with_plan: bool


def make(rng: Random) -> Tables:
    workers = rng.randrange(3)
    return Tables(
        leases=[_strange(rng, _row(rng)) for _ in range(rng.randrange(4))],
        workers=[_strange(rng, _worker(rng, "wid")) for _ in range(workers)],
        lock=_strange(rng, _lock()) if rng.random() < 0.7 else None,
        client_version=_strange(rng, _history("cv", "CLIENT_VERSION_3X", "mb")) if rng.random() < 0.4 else None,
        migration=_strange(rng, _history("tm", "TABLE_MIGRATION_STATUS_PENDING", "mb")) if rng.random() < 0.4 else None,
        with_plan=rng.random() < 0.03,
    )


def _row(rng: Random) -> dict[str, Any]:
    kind = rng.randrange(8)
    if kind == 0:
        return _worker(rng, "leaseKey") | {"entityType": {"S": "WORKER_METRIC_STATS"}}
    if kind == 1:
        return _lock() | {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
    key = f"shardId-00000000000{rng.randrange(4)}"
    row: dict[str, Any] = {
        "leaseKey": {"S": key},
        "entityType": {"S": "LEASE"},
        "checkpoint": {"S": rng.choice((NUMBER, "TRIM_HORIZON", "SHARD_END", "LATEST"))},
        "checkpointSubSequenceNumber": {"N": "0"},
        "leaseCounter": {"N": str(rng.randrange(100))},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "leaseOwner": {"S": rng.choice(("a", "b", "me"))},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": str(2**128 - 1)},
        "throughputKBps": {"N": "12.5"},
    }
    if kind == 2:
        row |= {"checkpointOwner": {"S": "b"}, "parentShardId": {"SS": ["shardId-000000000000", "p"]}}
    if kind == 3:
        row |= {"childShardIds": {"SS": ["shardId-000000000002"]}, "pendingCheckpoint": {"S": NUMBER}}
        row |= {"pendingCheckpointState": {"B": b"state"}, "pendingCheckpointSubSequenceNumber": {"N": "1"}}
    if kind == 4:
        stream = "123456789012:orders:1700000000"
        row |= {"streamName": {"S": stream}, "shardId": {"S": key}, "leaseKey": {"S": f"{stream}:{key}"}}
    return row


def _worker(rng: Random, key: str) -> dict[str, Any]:
    return {
        key: {"S": rng.choice(("a", "b", "me"))},
        "lut": {"N": str(int(WALL_S) - rng.randrange(100))},
        "sts": {"M": {"C": {"L": [{"N": "50"}, {"N": "-1"}, {"N": "12.345678"}]}, "NI": {"L": [{"N": "3"}]}}},
        "opr": {"M": {"C": {"L": [{"N": "80"}]}}},
        "sup": {"N": "1"},
        "slu": {"N": str(int(WALL_S) - 5)},
        "properties": {"M": {"state": {"S": "TERMINATING"}}},
    }


def _lock() -> dict[str, Any]:
    return {
        "key": {"S": "Leader"},
        "ownerName": {"S": "a"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "4f0d"},
    }


def _history(status: str, value: str, by: str) -> dict[str, Any]:
    entry = {status: {"S": value}, by: {"S": "a"}, "mts": {"N": "1799999999000"}}
    return {**entry, "h": {"L": [{"M": dict(entry)}]}}


def _strange(rng: Random, item: dict[str, Any]) -> dict[str, Any]:
    """The item with up to three attributes of another type, another value, or gone."""
    if rng.random() < 0.25:
        return item
    names = list(item)
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(names)
        kind = rng.randrange(6)
        if kind == 0:
            item.pop(name, None)
        elif kind == 1:
            item[name] = {"S": nasty_text(rng)}
        elif kind == 2 and name in item and item[name].keys() & {"L", "M"}:
            item[name] = _strange_within(rng, item[name])
        else:
            item[name] = _attribute(rng, 2)
    return item


def _strange_within(rng: Random, value: dict[str, Any]) -> dict[str, Any]:
    if "L" in value:
        items = [_strange_within(rng, one) if rng.random() < 0.5 else one for one in value["L"]]
        return {"L": [*items, *[_attribute(rng, 1)] * rng.choice((0, 1, 1, 300))]}
    if "M" in value:
        fields = {name: _strange_within(rng, one) if rng.random() < 0.5 else one for name, one in value["M"].items()}
        return {"M": {**fields, rng.choice((*fields, nasty_text(rng))): _attribute(rng, 1)}}
    return _attribute(rng, 1)


def _attribute(rng: Random, depth: int) -> dict[str, Any]:
    """Any value that DynamoDB can keep: numbers of 38 digits from 1E-130 to 1E+126, texts without surrogates."""
    kind = rng.randrange(10 if depth else 6)
    if kind == 0:
        return {"NULL": True}
    if kind == 1:
        return {"BOOL": rng.random() < 0.5}
    if kind in (2, 3):
        return {"N": _number(rng)}
    if kind == 4:
        return {"S": nasty_text(rng)}
    if kind == 5:
        return {"B": rng.randbytes(rng.choice((0, 1, 20, 5000)))}
    if kind == 6:
        return {"SS": [nasty_text(rng) for _ in range(rng.randrange(1, 4))]}
    if kind == 7:
        return rng.choice(({"NS": [_number(rng)]}, {"BS": [rng.randbytes(3)]}))
    if kind == 8:
        return {"L": [_attribute(rng, depth - 1) for _ in range(rng.randrange(4))]}
    return {"M": {nasty_text(rng): _attribute(rng, depth - 1) for _ in range(rng.randrange(4))}}


def _number(rng: Random) -> str:
    return rng.choice(_STRANGE_NUMBERS) if rng.random() < 0.6 else str(nasty_number(rng))[:38]


class _Client:
    """Answers reads with one item; every decoder behind a table is reached through it."""

    def __init__(self) -> None:
        self.item: dict[str, Any] | None = None
        self.items: list[dict[str, Any]] = []

    def get_item(self, **request: Any) -> dict[str, Any]:
        return {} if self.item is None else {"Item": self.item}

    def scan(self, **request: Any) -> dict[str, Any]:
        return {"Items": self.items}


CLIENT: Any = _Client()
_TABLE = TableSettings(name="orders")
LEASES = DynamoDbLeaseTable(CLIENT, _TABLE)
WORKERS = DynamoDbWorkerMetricsTable(CLIENT, _TABLE)
COORDINATOR = DynamoDbCoordinatorTable(CLIENT, _TABLE)
MIGRATION = DynamoDbTableMigration(CLIENT, _TABLE, _TABLE)
SCREEN = StringIO()
CONSOLE = console(file=SCREEN, width=140)


def run(tables: Tables) -> None:
    for item in tables.leases:
        if is_lease(item):
            try:
                lease = lease_from(item)
            except Undecodable:
                continue
            json.dumps(lease_item(lease), default=repr)
            for position in (lease.checkpoint, lease.pending_checkpoint):
                assert position is None or position.sort_key is not None
            assert lease.key_of(lease.shard_id) is not None
        else:
            assert entity_type(item)
    snapshot = _snapshot(tables)
    judge_lock(snapshot.lock, None, 5.0, "me")
    looks = look(None, snapshot)
    later = msgspec.structs.replace(snapshot, at_s=snapshot.at_s + 30, taken_s=snapshot.taken_s + 30)
    looks = look(looks, later)
    view = diagnose(view_fleet(later, looks, SETTINGS), later, SETTINGS)
    msgspec.json.encode(view)
    if tables.with_plan:
        CONSOLE.print(page(view, Selection(all=True), 140))
        _plan(later)
        assert not CONTROL.search(SCREEN.getvalue()), "a control character on the screen"
        SCREEN.seek(0)
        SCREEN.truncate()


def _plan(snapshot: FleetSnapshot) -> None:
    saved = save_fleet((snapshot,), SETTINGS)
    assert b'pending_checkpoint_state": "' not in saved
    fleet = load_fleet(saved)
    try:
        planned = plan_fleet(fleet, Random(1), joining=1)
    except ConfigurationError:
        return
    msgspec.json.encode(planned)
    print_plan(planned, CONSOLE, show_all=True)


def _snapshot(tables: Tables) -> FleetSnapshot:
    CLIENT.items = tables.leases
    listing = LEASES.list_leases()
    CLIENT.items = tables.workers
    return FleetSnapshot(
        taken_s=WALL_S,
        at_s=100.0,
        table=TableState(status="ACTIVE", index_status="ACTIVE"),
        listing=listing,
        has_coordinator_table=True,
        lock=_read(tables.lock, COORDINATOR.read_lock),
        client_version=_read(tables.client_version, COORDINATOR.read_client_version),
        table_migration=_read(tables.migration, MIGRATION.read),
        workers=WORKERS.list_workers(),
    )


def _read(item: dict[str, Any] | None, read: Any) -> Any:
    CLIENT.item = item
    try:
        return read()
    except Unavailable:
        return None


TARGET = Target("rows", make, run)
