"""Which leases a leader reads between two passes, so that a crash shows long before the next one.

Each `watch_interval_s` the leader reads one lease of every other worker, the one that it saw move last. A worker
whose lease stands still for longer than a renewal takes is suspected, and all of its leases are read from then on.
The leases of a table that is small, or of which many are wanted, are read by one scan instead: a row costs half a
read unit when it is asked for by name, and a tenth of that in a scan. A leader that is alone reads nothing.

What it costs, at failoverTimeMillis = 10 s (a turn each 1.75 s), in read units (RRU) per hour of the whole fleet:

    rows by name        0.5 x 3600 / 1.75 = 1,029 for each other worker, however many leases it holds
    scan of n rows      1,029 x (n x 400 bytes / 4 KiB, rounded up), which is about 100 for each lease

Java's leader, a scan each 20 s, pays 90 for each 4 KiB. The allowance is therefore 100 RRU per lease and hour, up to
SCANNED_ROWS leases, which is 2 % of the price of the 1,088 write units of that lease's own renewals.

How late it is, at most, after a crash (`w` the turn, 1.75 s; `r` the renewal interval, 3.3 s; requests come on top):

    scanned             the turn after the crash sees the last renewal: failoverTimeMillis + w       = 11.8 s
    rows by name        the lease that is watched shows it only by its silence, the other leases are read from then
                        on: failoverTimeMillis + r + 2 w, rounded up to turns                         = 15.3 s

No read proves more than it saw. A counter that is equal in two reads stood still between them, however long the
leader slept in between; so a lease expires by the time before the last read was SENT, and its last change is dated
when the answer that shows it has ARRIVED. An answer that is s seconds old (reads are eventually consistent) hides the
renewals of these s: with a renewal each third of the lease it must be older than failover - r, 6.7 s, to let a lease
look expired, and before any lease is moved for that its row is read again, consistently.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.handover import is_expired_or_unassigned
from kcl_host.decisions.lease_age import Tracked

SCANNED_ROWS: Final = 250
"""A table of so many leases is always scanned: 25 ms of CPU a turn."""
ROWS_PER_UNIT: Final = 10
"""Rows that a scan reads for the price of one that is asked for by name."""
LONGEST_WATCH_S: Final = 2.5


def watch_interval_s(settings: LeaseSettings) -> float:
    """Two turns are a little longer than a renewal interval, so the third read of a lease must show a new counter."""
    return min(0.175 * settings.failover_s, LONGEST_WATCH_S)


def is_standing(tracked: Tracked, read_s: float, settings: LeaseSettings) -> bool:
    """True when the counter was not renewed when it should have been; `read_s`: before its row was asked for."""
    return read_s - tracked.last_counter_increment_s > settings.renewal_interval_s + settings.failover_s / 100


def suspected_workers(
    tracked: Mapping[str, Tracked], read_s: float, settings: LeaseSettings, untaken: Collection[str] = ()
) -> frozenset[str]:
    """Owners of leases that all stand still; `untaken` ones, which their owners may not know of yet, do not count.

    Of leases that were not read lately the one that was decides, since it moved last. `read_s`: before it was read.
    They are given nothing until they renew: what goes to a worker that has just died is late by another lease.
    """
    standing: dict[str, bool] = {}
    for key, t in tracked.items():
        owner = t.lease.actual_owner
        if owner is not None and key not in untaken:
            standing[owner] = standing.get(owner, True) and is_standing(t, read_s, settings)
    return frozenset(owner for owner, all_stand in standing.items() if all_stand)


def watched_leases(
    tracked: Mapping[str, Tracked], observer: str, settled: Collection[str], now_s: float
) -> dict[str, str]:
    """One lease key for each other worker that has leases: of the lease seen to move last, or the lower key.

    Left out are `settled` leases, about which the last pass has done what it could, and those assigned so recently
    that their owner is not expected to renew them yet, unless it has no other.
    """
    best: dict[str, tuple[bool, float, str]] = {}
    for key, t in tracked.items():
        owner, moved_s = t.lease.actual_owner, t.last_counter_increment_s
        if owner is not None and owner != observer and key not in settled:
            rank = (moved_s > now_s, -moved_s, key)
            best[owner] = min(best.get(owner, rank), rank)
    return {owner: key for owner, (_, _, key) in sorted(best.items())}


def leases_of(tracked: Mapping[str, Tracked], owners: Collection[str], settled: Collection[str]) -> list[str]:
    """Keys of all their leases but the `settled` ones, sorted."""
    return sorted(k for k, t in tracked.items() if t.lease.actual_owner in owners and k not in settled)


def scan_is_cheaper(rows: int, wanted: int) -> bool:
    """Whether `wanted` of the `rows` leases of a table are better read by a scan of all."""
    return rows <= max(SCANNED_ROWS, ROWS_PER_UNIT * wanted)


def settled_leases(tracked: Mapping[str, Tracked], read_s: float, settings: LeaseSettings) -> frozenset[str]:
    """After a pass: leases that nobody works on and that it gave to nobody, since nobody could take them."""
    return frozenset(key for key, t in tracked.items() if is_expired_or_unassigned(t, read_s, settings))


def next_pass_s(
    tracked: Mapping[str, Tracked],
    read: Iterable[str],
    settled: Collection[str],
    observer: str,
    read_s: float,
    settings: LeaseSettings,
) -> float:
    """When a pass is needed, by what the rows `read` last have shown; infinity when they call for none.

    At once for a lease without owner, and for one that stands still when it will have stood for failoverTimeMillis.
    """
    due_s = math.inf
    for key in read:
        t = tracked.get(key)
        if t is None or key in settled or t.lease.actual_owner == observer:
            continue
        if t.lease.actual_owner is None:
            return read_s
        if is_standing(t, read_s, settings):
            due_s = min(due_s, t.last_counter_increment_s + settings.failover_s)
    return due_s
