"""DynamoDB requests and units of a fleet at rest, an hour, beside what Java sends (java_requests.py).

Counted, not estimated: real workers with the default configuration run in simulated time (tests/simulation) until no
lease moves any more, and then for the time that is counted. Records flow, and each child checkpoints every batch.
Those writes are the child's, equal in both worlds, and shown apart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kcl_host.config.settings import AssignmentSettings, Settings
from kcl_host.decisions.heartbeat_watch import SCANNED_ROWS
from tests.bench.dynamodb_units import CONSISTENT_GET, Rows, Units, listing, rows_of, sum_of, update
from tests.bench.java_requests import HOUR_S, LOCK_S, Line, java_lines, java_migration_lines
from tests.fakes.fault import Fault, FaultPlan
from tests.simulation.fleet import Fleet, Worker
from tests.simulation.run import Setup, counting, settings_of

RECORD_EVERY_S = 60.0
"""Of each shard, on average; and so often a child checkpoints, unless two records come in one batch."""
SETTLING_S = 300.0
ROUNDING = 1.005
"""A count may hold one turn more of an activity than its share of the time: it is good to half a per cent."""

ALLOWED_PER_WORKER, ALLOWED_PER_FOLLOWER = 1_620.0, 2_841.0
ALLOWED_PER_LEASE, ALLOWED_PER_SCANNED_LEASE = 40.0, 100.0
"""Read units an hour above Java's that a fleet of several workers may cost, for being faster than Java's:

per worker          1,620  a Query of the index each second, not each 10 s: leases given to it start at once
per follower        1,812  it looks at the lock each 1.75 s: the leader's crash shows (coordination/election.py)
                    1,029  the leader looks at one of its leases as often: its crash shows (heartbeat_watch.py)
per lease              40  its part of those Queries, one half unit of which holds 46 leases
per lease up to 250   100  its part of the scans by which a leader watches a table of that size

A worker that is alone is allowed nothing.
"""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet at rest for one hour. `ours` is without `checkpoints`."""

    leases: int
    workers: int
    ours: list[Line]
    checkpoints: Units
    java: list[Line]
    java_migration: list[Line]
    lock_allowance: float
    """Write units: heartbeats of the lock that Java does not send."""

    @property
    def our_units(self) -> Units:
        return sum_of(line.units for line in self.ours)

    @property
    def java_units(self) -> Units:
        return sum_of(line.units for line in self.java)

    @property
    def java_35_units(self) -> Units:
        return sum_of(line.units for line in self.java + self.java_migration)

    @property
    def allowed_reads(self) -> float:
        """Java's and the allowance; one worker has none."""
        if self.workers == 1:
            return self.java_units.read
        of_workers = ALLOWED_PER_WORKER * self.workers + ALLOWED_PER_FOLLOWER * (self.workers - 1)
        of_leases = ALLOWED_PER_LEASE * self.leases + ALLOWED_PER_SCANNED_LEASE * min(self.leases, SCANNED_ROWS)
        return self.java_units.read + of_workers + of_leases

    @property
    def allowed_writes(self) -> float:
        """Java's, and our lock's more frequent heartbeats, which are what a leader's crash costs so little time for."""
        return self.java_units.write + self.lock_allowance

    @property
    def above(self) -> list[str]:
        """What is above the budget: "reads", "writes"."""
        ours = self.our_units
        pairs = {"reads": (ours.read, self.allowed_reads), "writes": (ours.write, self.allowed_writes)}
        return [what for what, (units, allowed) in pairs.items() if units > allowed * ROUNDING]


class FleetAtRest(Fleet):
    """Its worker ids are as long as those of real hosts, and all of its workers report the same CPU."""

    def start(self, slot: int, *, worker_id: str | None = None) -> Worker:
        return super().start(slot, worker_id=worker_id or f"ip-10-0-12-{slot:03d}.eu-central-1.compute.internal-1f0c9a")

    def load_of(self, worker: Worker) -> dict[str, float]:
        return {"C": 41.666667}


class Meter:
    """Counts the requests to the three tables, by table, operation and key."""

    def __init__(self, fleet: Fleet) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        fleet.lease_table.faults = self._count("lease", fleet.lease_table.faults)
        fleet.metadata.coordinator.faults = self._count("coordinator", fleet.metadata.coordinator.faults)
        fleet.metadata.migration.faults = self._count("coordinator", fleet.metadata.migration.faults)
        fleet.metadata.metrics.faults = self._count("metrics", fleet.metadata.metrics.faults)

    def _count(self, table: str, plan: FaultPlan) -> FaultPlan:
        def counted(operation: str, key: str) -> Fault | None:
            self.counts[table, operation, key] += 1
            return plan(operation, key)

        return counted


def settings_at_rest(leases: int, workers: int) -> Settings:
    settings = settings_of(Setup(seed=1, workers=workers, shards=leases))
    # By count leases are spread evenly whatever flows, and then none moves. Nothing is sent more or less often for it.
    return msgspec.structs.replace(settings, assignment=AssignmentSettings(strategy="LEASE_COUNT_BASED"))


def measure(leases: int, workers: int, hours: float = 1.0, settings: Settings | None = None) -> Measured:
    """Raises AssertionError when the fleet was not at rest."""
    settings = settings or settings_at_rest(leases, workers)
    fleet = FleetAtRest(1, settings, workers=workers, shards=leases, put_every_s=RECORD_EVERY_S)
    with counting(fleet):
        fleet.run(SETTLING_S)
        moves, meter, read_by_batch = fleet.observer.moves, Meter(fleet), fleet.lease_table.read_units["get_all"]
        fleet.run(hours * HOUR_S)
    assert fleet.observer.moves == moves, f"{fleet.observer.moves - moves} leases moved"
    assert len(fleet.leaders()) == 1 and len(fleet.live) == workers
    rows = rows_of(fleet.lease_table.rows.values(), fleet.metadata.metrics.rows.values())
    assert len(rows.lease) == leases and len(rows.index) == workers
    read_by_batch = fleet.lease_table.read_units["get_all"] - read_by_batch
    lines = _lines(meter.counts, rows, read_by_batch, hours)
    return Measured(
        leases=leases,
        workers=workers,
        ours=[line for what, line in lines.items() if what != "checkpoint"],
        checkpoints=lines["checkpoint"].units if "checkpoint" in lines else Units(0),
        java=java_lines(rows),
        java_migration=java_migration_lines(rows),
        lock_allowance=HOUR_S / settings.lock.heartbeat_s - HOUR_S / LOCK_S,
    )


def _lines(counts: Counter[tuple[str, str, str]], rows: Rows, read_by_batch: float, hours: float) -> dict[str, Line]:
    """By operation, for an hour. An operation without a price is one that a fleet at rest has no business with."""
    prices: dict[tuple[str, str], Callable[[str], Units]] = {
        ("lease", "renew"): lambda key: update(rows.lease[key]),
        ("lease", "checkpoint"): lambda key: update(rows.lease[key]),
        ("lease", "lease_keys_of"): lambda key: listing(rows.index[key]),
        ("lease", "list_leases"): lambda _: listing(rows.lease.values()),
        ("lease", "get"): lambda _: CONSISTENT_GET,
        ("lease", "get_all"): lambda _: Units(1),  # Its price is that of the rows it read, which is added below.
        ("metrics", "put"): lambda key: update(rows.worker[key]),
        ("metrics", "list_workers"): lambda _: listing(rows.worker.values()),
        ("metrics", "get"): lambda _: CONSISTENT_GET,
        ("coordinator", "heartbeat_lock"): lambda _: update(1),
        ("coordinator", "read_lock"): lambda _: CONSISTENT_GET,
        ("coordinator", "read_table_migration"): lambda _: CONSISTENT_GET,
        ("coordinator", "update_table_migration"): lambda _: update(1),
    }
    by_operation: dict[tuple[str, str], list[Units]] = {}
    for (table, operation, key), n in counts.items():
        price = prices[table, operation](key)
        by_operation.setdefault((table, operation), []).append(price.times(n / hours))
    if ("lease", "get_all") in by_operation:
        by_operation["lease", "get_all"].append(Units(0, read=read_by_batch / hours))
    return {op: Line(op, sum_of(units), table) for (table, op), units in sorted(by_operation.items())}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--leases", type=int, multiple=True, default=(1, 4, 100, 1000), show_default=True)
@click.option("--workers", type=int, multiple=True, default=(1, 2, 20), show_default=True)
@click.option("--hours", type=float, default=1.0, show_default=True, help="Simulated time that is counted.")
@click.option("--lines/--no-lines", default=False, show_default=True, help="Show each fleet by operation, too.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write everything here.")
def main(leases: tuple[int, ...], workers: tuple[int, ...], hours: float, lines: bool, json_path: Path | None) -> None:
    """What fleets at rest cost in DynamoDB, beside Java's."""
    console = Console()
    measured = []
    for workers_of_fleet in workers:
        for leases_of_fleet in leases:
            one = measure(leases_of_fleet, workers_of_fleet, hours)
            measured.append(one)
            if lines:
                console.print(_detail(one))
    for table in _tables(measured):
        console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps([_as_json(one) for one in measured], indent=2) + "\n")


def _tables(measured: list[Measured]) -> list[Table]:
    """Requests, reads and writes, each per lease and hour, beside Java's."""
    requests, reads, writes = (
        Table(title=f"{what} per lease and hour at rest, without checkpoints", title_justify="left")
        for what in ("Requests", "Read units", "Write units")
    )
    for table, names in (
        (requests, ("kcl-host", "Java 3.4", "Java 3.5")),
        (reads, ("kcl-host", "Java 3.4", "Java 3.5", "allowed", "")),
        (writes, ("kcl-host", "Java", "allowed", "", "checkpoints")),
    ):
        for name in ("workers", "leases", *names):
            table.add_column(name, justify="right")
    for one in measured:
        ours, java, java_35 = one.our_units, one.java_units, one.java_35_units

        def row(*units: float, of: Measured = one) -> list[str]:
            return [str(of.workers), str(of.leases), *(f"{unit / of.leases:,.1f}" for unit in units)]

        above = {what: "above" if what in one.above else "" for what in ("reads", "writes")}
        requests.add_row(*row(ours.requests, java.requests, java_35.requests))
        reads.add_row(*row(ours.read, java.read, java_35.read, one.allowed_reads), above["reads"])
        checkpoints = f"{one.checkpoints.write / one.leases:,.1f}"
        writes.add_row(*row(ours.write, java.write, one.allowed_writes), above["writes"], checkpoints)
    return [requests, reads, writes]


def _detail(one: Measured) -> Table:
    table = Table(title=f"{one.leases} leases, {one.workers} workers: the fleet in an hour")
    for name in ("", "requests", "read units", "write units", "of"):
        table.add_column(name, justify="left" if name in ("", "of") else "right")
    for whose, lines in (("kcl-host", one.ours), ("Java", one.java), ("Java 3.5", one.java_migration)):
        for line in lines:
            u = line.units
            table.add_row(
                f"{whose}: {line.what}", f"{u.requests:,.0f}", f"{u.read:,.1f}", f"{u.write:,.1f}", line.source
            )
        table.add_section()
    return table


def _as_json(one: Measured) -> dict[str, object]:
    return {**msgspec.to_builtins(one), "allowed_reads": one.allowed_reads, "allowed_writes": one.allowed_writes}


if __name__ == "__main__":
    main()
