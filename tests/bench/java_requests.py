"""What a fleet of Java workers at rest sends to DynamoDB in an hour, by the cadences in docs/spec.

At rest: every lease owned by a worker that lives, nothing at SHARD_END, nobody waits for a parent. So the queue of the
lease clean-up is empty (shard-sync 7), and no parent is polled (consumer-lifecycle 3). Default configuration.

Two Java fleets differ here. 3.4 knows nothing of the move to one table. 3.5 on three tables asks at every uncached
`isLeader` how far that move is, and a leader's answer is never cached. The budget is held against the cheaper, 3.4.
"""

from __future__ import annotations

import msgspec

from tests.bench.dynamodb_units import CONSISTENT_GET, Rows, Units, listing, sum_of, update

HOUR_S = 3600.0
RENEWAL_S = 3.308
DISCOVERY_S = 9.975
ASSIGNMENT_S = 20.0
LOCK_S = 30.0
REPORT_S = 30.0
AUDIT_S = 120.0
LOOP_S = 1.0


class Line(msgspec.Struct, frozen=True):
    """One thing a fleet does over and over. `units` are of an hour and the whole fleet."""

    what: str
    units: Units
    source: str


def java_lines(rows: Rows) -> list[Line]:
    """Java 3.4, checkpoints left out: those are the child's."""
    workers = len(rows.worker)
    scans = listing(rows.lease.values())
    return [
        Line(
            "renewals",
            sum_of(update(size) for size in rows.lease.values()).times(HOUR_S / RENEWAL_S),
            "lease-table 7.1: every failover/3 - epsilon, one UpdateItem (5.2); the index does not hold the counter",
        ),
        Line(
            "discovery",
            sum_of(listing(keys) for keys in rows.index.values()).times(HOUR_S / DISCOVERY_S),
            "lease-table 7.1, 7.4: every assignment interval/2 - epsilon, a Query of the index; no held lease is read",
        ),
        Line(
            "assignment, leases",
            scans.times(HOUR_S / ASSIGNMENT_S),
            "coordination 4.1, 4.2: the leader every 2 x failover, a Scan of one segment",
        ),
        Line(
            "assignment, workers",
            listing(rows.worker.values()).times(HOUR_S / ASSIGNMENT_S),
            "coordination 4.2 (1b): and a Scan of the metrics table",
        ),
        Line(
            "worker metrics",
            sum_of(update(size) for size in rows.worker.values()).times(HOUR_S / REPORT_S),
            "coordination 3.2: each worker every 30 s, an unconditional UpdateItem",
        ),
        Line(
            "lock, leader", Units(1, write=1.0).times(HOUR_S / LOCK_S), "coordination 2.2, 2.4: a heartbeat every 30 s"
        ),
        Line(
            "lock, followers",
            CONSISTENT_GET.times(2 * (workers - 1) * HOUR_S / LOCK_S),
            "coordination 2.5 (2, 4): two consistent reads in each 30 s",
        ),
        Line("audit", scans.times(HOUR_S / AUDIT_S), "shard-sync 6: the leader every 120 s, a Scan"),
    ]


def java_migration_lines(rows: Rows) -> list[Line]:
    """What Java 3.5 on three tables adds."""
    asked = HOUR_S / LOOP_S + HOUR_S / ASSIGNMENT_S + HOUR_S / AUDIT_S
    source = "coordination 2.5 (3, 5), migration 2.4: a consistent read of TableMigration3.5 at each uncached isLeader"
    return [
        Line("table migration, leader", CONSISTENT_GET.times(asked), source + "; asked by main loop, LAM and auditor"),
        Line(
            "table migration, followers",
            CONSISTENT_GET.times((len(rows.worker) - 1) * HOUR_S / LOCK_S),
            source + "; a no is cached for 30 s",
        ),
    ]
