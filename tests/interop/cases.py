"""The stories of mixed fleets. Each is told for every Java KCL of its case; what always has to hold is in Fleet.finish.

Limits are generous: nothing fails for being slow. What takes long is Java: 10 s to join a known application, up to 60 s
to start a new one, 30 s between two looks at a lock that it does not hold.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tests.interop.mixed_fleet import Fleet, Java

KCL_HOST_S, JAVA_KNOWN_S, JAVA_NEW_S = 60, 90, 180
JAVA_LOOKS_AT_LOCK_S = 120
"""A follower of Java's looks each 30 s; a lock that stands still it takes at its second look."""
JAVA_LOCK_S = 300
"""A killed Java leader's lock lasts 120-180 s from its last heartbeat."""

SINGLE: Final = Java("3.5.1", "single table")
ALL: Final = (Java("3.1.3", "three tables"), Java("3.5.1", "three tables"), SINGLE)
NEW: Final = (Java("3.1.3", "three tables"), Java("3.5.1", None))
HEAD_STARTS_S: Final = [round(0.25 * n, 2) for n in range(20)]
"""Java asks for its first table 2-3 s after its start, kcl-host within half a second: around that they meet."""
SHORT_HEAD_STARTS_S: Final = (0.0, 2.5)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`java_workers`: how many workers of Java it runs at a time, at most; `short`: part of the gate."""

    name: str
    tell: Callable[[Fleet], None]
    javas: tuple[Java, ...] = ALL
    java_workers: int = 1
    shards: int = 4
    short: bool = False


def found(fleet: Fleet, name: str) -> None:
    """A new application with kcl-host, in the format of the case."""
    fleet.kcl_host(name, **({"metadataTableFormat": "single"} if fleet.java_kcl == SINGLE else {}))
    fleet.wait_delivering(name, limit_s=KCL_HOST_S)
    assert fleet.leader() == name


def found_with_java(fleet: Fleet, name: str) -> None:
    """A new application with Java; where 3.5 is to have three tables, those of an application that kcl-host began."""
    makes_three_tables = fleet.java_kcl.version == "3.1.3"
    if fleet.java_kcl.format == "three tables" and not makes_three_tables:
        found(fleet, "kcl-host-0")
        fleet.stop("kcl-host-0")
    fleet.start(name)
    fleet.wait_delivering(name, limit_s=JAVA_NEW_S)
    fleet.wait_leader(name, limit_s=JAVA_LOOKS_AT_LOCK_S)


def kind_of(worker: str) -> str:
    return worker.rpartition("-")[0]


def status_is_true(fleet: Fleet, name: str) -> bool:
    """Whether what `status` says of a fleet that is well is what is so; not while a lease moves."""
    owners = fleet.owners()
    document = fleet.status(name)
    problems = [finding["kind"] for finding in document["findings"] if finding["severity"] == "problem"]
    open_leases = [lease for lease in document["leases"] if lease["state"] != "ended"]
    if problems or any(lease["state"] != "reading" for lease in open_leases) or fleet.owners() != owners:
        fleet.note(f"status finds {problems}, {document['summary']['by_state']}")
        return False
    assert {lease["shard_id"]: lease["owner"] for lease in open_leases} == owners
    assert document["leader"]["worker_id"] == fleet.leader()
    assert document["metadata"]["form"].replace("_", " ") in fleet.formats()
    loads = {worker["worker_id"]: worker["leases"] for worker in document["workers"] if worker["leases"]}
    assert sorted(loads.values()) == fleet.shares() and set(loads) == set(owners.values())
    assert all(lease["lag_ms"] is not None and lease["writes_per_s"] > 0 for lease in open_leases)
    return True


def leadership_moves_both_ways(fleet: Fleet) -> None:
    """kcl-host leads and Java joins; kcl-host stops, so Java leads and a kcl-host joins; Java stops."""
    found(fleet, "kcl-host-1")
    since_s = time.monotonic()
    fleet.start("java-1")
    fleet.wait_delivering("kcl-host-1", "java-1", limit_s=JAVA_KNOWN_S)
    assert fleet.leader() == "kcl-host-1"
    assert ("kcl-host-1", "java-1") in fleet.handovers(since_s)

    fleet.stop("kcl-host-1")
    fleet.wait_delivering("java-1", limit_s=JAVA_LOOKS_AT_LOCK_S)
    fleet.wait_leader("java-1", limit_s=JAVA_LOOKS_AT_LOCK_S)

    since_s = time.monotonic()
    fleet.start("kcl-host-2")
    fleet.wait_delivering("kcl-host-2", "java-1", limit_s=KCL_HOST_S)
    assert fleet.leader() == "java-1"
    assert ("java-1", "kcl-host-2") in fleet.handovers(since_s)
    fleet.wait_until("kcl-host status tells the truth", lambda: status_is_true(fleet, "kcl-host-2"), JAVA_KNOWN_S)

    fleet.stop("java-1")
    fleet.wait_delivering("kcl-host-2", limit_s=KCL_HOST_S)
    fleet.wait_leader("kcl-host-2", limit_s=KCL_HOST_S)
    fleet.finish()


def killed_leaders(fleet: Fleet) -> None:
    """kill -9 of a kcl-host that leads and then of a Java that leads, each with a follower of the other kind."""
    found(fleet, "kcl-host-1")
    fleet.start("java-1")
    fleet.wait_delivering("kcl-host-1", "java-1", limit_s=JAVA_KNOWN_S)
    fleet.kill("kcl-host-1")
    fleet.wait_leader("java-1", limit_s=JAVA_LOOKS_AT_LOCK_S)
    fleet.wait_delivering("java-1", limit_s=JAVA_KNOWN_S)

    fleet.start("kcl-host-2")
    fleet.wait_delivering("kcl-host-2", "java-1", limit_s=KCL_HOST_S)
    fleet.kill("java-1")
    fleet.wait_leader("kcl-host-2", limit_s=JAVA_LOCK_S)
    fleet.wait_delivering("kcl-host-2", limit_s=KCL_HOST_S)
    fleet.finish()


def killed_followers(fleet: Fleet) -> None:
    """kill -9 of a Java under a kcl-host that leads, and of a kcl-host under a Java that leads."""
    found(fleet, "kcl-host-1")
    fleet.start("java-1")
    fleet.wait_delivering("kcl-host-1", "java-1", limit_s=JAVA_KNOWN_S)
    fleet.kill("java-1")
    fleet.wait_delivering("kcl-host-1", limit_s=KCL_HOST_S)

    fleet.start("java-2")
    fleet.wait_delivering("kcl-host-1", "java-2", limit_s=JAVA_KNOWN_S)
    fleet.stop("kcl-host-1")
    fleet.wait_leader("java-2", limit_s=JAVA_LOOKS_AT_LOCK_S)
    fleet.start("kcl-host-2")
    fleet.wait_delivering("kcl-host-2", "java-2", limit_s=KCL_HOST_S)
    fleet.kill("kcl-host-2")
    fleet.wait_delivering("java-2", limit_s=JAVA_KNOWN_S)
    fleet.finish()


def graceful_handovers(fleet: Fleet) -> None:
    """By load, from either kind to the other, under a leader of either kind; nothing comes twice: nobody crashes."""

    def join(new: str, others: list[str], leader: str, limit_s: float) -> None:
        """Shards go to it, or in its wake to another of its kind, from the other kind."""
        since_s = time.monotonic()
        fleet.start(new)
        fleet.wait_delivering(new, *others, limit_s=limit_s)
        fleet.wait_until(
            f"a handover to {kind_of(new)} from the other kind",
            lambda: any(kind_of(old) != kind_of(new) == kind_of(to) for old, to in fleet.handovers(since_s)),
            limit_s,
        )
        assert fleet.leader() == leader

    found(fleet, "kcl-host-1")
    join("java-1", ["kcl-host-1"], "kcl-host-1", JAVA_KNOWN_S)
    fleet.stop("kcl-host-1")
    fleet.wait_leader("java-1", limit_s=JAVA_LOOKS_AT_LOCK_S)
    join("kcl-host-2", ["java-1"], "java-1", KCL_HOST_S)
    fleet.wait_until("three shards each", lambda: fleet.shares() == [3, 3], JAVA_KNOWN_S)
    join("java-2", ["java-1", "kcl-host-2"], "java-1", JAVA_KNOWN_S)
    fleet.stop("java-1")
    fleet.wait_leader("kcl-host-2", limit_s=KCL_HOST_S)
    fleet.wait_delivering("java-2", "kcl-host-2", limit_s=JAVA_KNOWN_S)
    fleet.wait_until("three shards each", lambda: fleet.shares() == [3, 3], JAVA_KNOWN_S)
    join("kcl-host-3", ["java-2", "kcl-host-2"], "kcl-host-2", KCL_HOST_S)
    fleet.finish()


def split_and_merge(fleet: Fleet) -> None:
    """Of shards of both kinds of worker, and across them, under a leader of either kind."""
    found(fleet, "kcl-host-1")
    fleet.start("java-1")
    fleet.wait_delivering("kcl-host-1", "java-1", limit_s=JAVA_KNOWN_S)
    _reshard(fleet, "kcl-host-1", "java-1")
    assert fleet.leader() == "kcl-host-1"

    fleet.stop("kcl-host-1")
    fleet.wait_leader("java-1", limit_s=JAVA_LOOKS_AT_LOCK_S)
    fleet.start("kcl-host-2")
    fleet.wait_delivering("kcl-host-2", "java-1", limit_s=KCL_HOST_S)
    _reshard(fleet, "kcl-host-2", "java-1")
    assert fleet.leader() == "java-1"
    fleet.finish()


def _reshard(fleet: Fleet, *names: str) -> None:
    """Splits one shard of each of these, then merges neighbours, of two owners where there are such."""
    owners = fleet.owners()
    for name in names:
        fleet.split(next(shard for shard in fleet.open_shards() if owners.get(shard) == name))
    fleet.wait_delivering(*names, limit_s=JAVA_KNOWN_S)
    owners = fleet.owners()
    pairs = list(itertools.pairwise(fleet.open_shards()))
    fleet.merge(*next((pair for pair in pairs if owners[pair[0]] != owners[pair[1]]), pairs[0]))
    fleet.wait_delivering(*names, limit_s=JAVA_KNOWN_S)


def fleet_replaced_host_by_host(fleet: Fleet) -> None:
    """Three Java workers, one after the other replaced by a kcl-host, and back."""
    workers = ["java-1", "java-2", "java-3"]
    found_with_java(fleet, workers[0])
    for number, name in enumerate(workers[1:], 2):
        fleet.start(name)
        fleet.wait_delivering(*workers[:number], limit_s=JAVA_KNOWN_S)
    for new in ("kcl-host-1", "kcl-host-2", "kcl-host-3", "java-4", "java-5", "java-6"):
        old, *staying = workers
        fleet.start(new)
        fleet.wait_delivering(*workers, new, limit_s=JAVA_KNOWN_S)
        fleet.stop(old)
        workers = [*staying, new]
        fleet.wait_delivering(*workers, limit_s=JAVA_LOOKS_AT_LOCK_S)
        fleet.wait_leader(*workers, limit_s=JAVA_LOOKS_AT_LOCK_S)
    fleet.finish()


def java_alone(fleet: Fleet) -> None:
    """A fleet of Java only, for what it logs at ERROR (java_errors.json)."""
    found_with_java(fleet, "java-1")
    fleet.start("java-2")
    fleet.wait_delivering("java-1", "java-2", limit_s=JAVA_KNOWN_S)
    _reshard(fleet, "java-1", "java-2")
    fleet.stop("java-1")
    # After a shard has ended, Java may wait for it in vain when it stops, and then does not release its lock.
    fleet.wait_delivering("java-2", limit_s=JAVA_LOCK_S)
    fleet.wait_leader("java-2", limit_s=JAVA_LOCK_S)
    fleet.finish()


def new_application(head_start_s: float) -> Callable[[Fleet], None]:
    """Both kinds start an application that nobody knew; Java so much earlier."""

    def tell(fleet: Fleet) -> None:
        fleet.start("java-1")
        time.sleep(head_start_s)
        fleet.start("kcl-host-1")
        fleet.wait_delivering("java-1", "kcl-host-1", limit_s=JAVA_NEW_S)
        assert len(fleet.formats()) == 1
        fleet.finish()

    return tell


CASES: Final = (
    Case(name="leadership_moves_both_ways", tell=leadership_moves_both_ways, short=True),
    Case(name="graceful_handovers", tell=graceful_handovers, java_workers=2, shards=6),
    Case(name="split_and_merge", tell=split_and_merge),
    Case(name="killed_followers", tell=killed_followers),
    Case(name="killed_leaders", tell=killed_leaders),
    Case(name="fleet_replaced_host_by_host", tell=fleet_replaced_host_by_host, java_workers=3, shards=6),
    Case(name="java_alone", tell=java_alone, java_workers=2),
    *(
        Case(
            name=f"new_application_{head_start_s:.2f}_s",
            tell=new_application(head_start_s),
            javas=NEW,
            short=head_start_s in SHORT_HEAD_STARTS_S,
        )
        for head_start_s in HEAD_STARTS_S
    ),
)
