"""What a running host says of itself: pure values made from its status. docs/endpoint.md describes the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kcl_host.endpoint.recent import Line, Trouble
from kcl_host.runtime.consumer_status import ConsumerStatus
from kcl_host.runtime.supervisor import WorkerStatus

SCHEMA: Final = 1
"""Of /status; grows when a field changes its meaning or goes."""
NAMED: Final = 10
"""So many shards are named in a reason; of the rest the number is told."""
FAILING: Final = ("BACKOFF", "FATAL")


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`reasons` is empty when the worker is ready."""

    ready: bool
    reasons: tuple[str, ...]


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far this worker is behind, as Kinesis said with the last answer that each child was given.

    `shards` are those it reads; of `unknown` ones nothing has been read yet, and those of which the child fails are
    `failing`: their lag grows unseen. Without any shard all numbers are 0.
    """

    max_millis_behind: int
    sum_millis_behind: int
    shards: int
    unknown: int
    failing: int


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """A shard consumer of this worker, as ConsumerStatus; `stderr` are the last lines of its child, oldest first."""

    lease_key: str
    shard_id: str
    parents: tuple[str, ...]
    state: str
    child: str
    child_pid: int | None
    child_failures: int
    records: int
    payload_bytes: int
    millis_behind_latest: int | None
    checkpoint: str | None
    checkpoint_age_s: float | None
    last_error: str
    stderr: tuple[Line, ...]


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The host itself. `taken_s`, `started_s`: epoch seconds; `process` is which of several worker processes."""

    schema: int
    version: str
    taken_s: float
    started_s: float
    application: str
    streams: tuple[str, ...]
    worker_id: str
    pid: int
    process: int | None
    phase: str
    waits_for: str
    is_leader: bool
    ready: Readiness
    lag: Lag
    consumers: tuple[ShardReport, ...]
    errors: tuple[Trouble, ...]
    fleet_taken_s: float | None
    fleet_error: str | None
    fleet: msgspec.Raw | None
    """A FleetView (docs/status.md); None when there is none yet, or the reader has this one."""


def readiness(status: WorkerStatus | None) -> Readiness:
    """Ready: it runs, knows its leases, and every child it should have has been initialised.

    A shard that waits for its parents needs no child yet, and one that ends, or leaves, needs none any more.
    """
    reasons = []
    if status is None:
        reasons.append("the worker is being made")
    elif status.phase != "RUNNING":
        waiting = f": {status.waits_for}" if status.waits_for else ""
        reasons.append(f"the worker is {status.phase}{waiting}")
    else:
        if not status.leases_known:
            reasons.append("its leases are not known yet")
        failing = [consumer for consumer in status.consumers if consumer.child in FAILING]
        starting = [c for c in status.consumers if c.state == "INITIALIZING" and c.child not in FAILING]
        if failing:
            reasons.append(f"the child fails of {_named(failing)}")
        if starting:
            reasons.append(f"the child is not initialised of {_named(starting)}")
    return Readiness(ready=not reasons, reasons=tuple(reasons))


def _named(consumers: list[ConsumerStatus]) -> str:
    names = ", ".join(consumer.lease_key for consumer in consumers[:NAMED])
    more = len(consumers) - NAMED
    return f"{names} and {more} more" if more > 0 else names


def lag_of(consumers: Iterable[ConsumerStatus]) -> Lag:
    reading = [c for c in consumers if c.state not in ("WAITING_ON_PARENT_SHARDS", "SHUTDOWN_COMPLETE")]
    known = [c.millis_behind_latest for c in reading if c.millis_behind_latest is not None]
    return Lag(
        max_millis_behind=max(known, default=0),
        sum_millis_behind=sum(known),
        shards=len(reading),
        unknown=len(reading) - len(known),
        failing=sum(c.child in FAILING for c in reading),
    )


def shard_report(consumer: ConsumerStatus, now_s: float, stderr: tuple[Line, ...]) -> ShardReport:
    """`now_s`: monotonic, as the time of the checkpoint is."""
    written_s = consumer.checkpoint_at_s
    return ShardReport(
        lease_key=consumer.lease_key,
        shard_id=consumer.shard_id,
        parents=consumer.parent_shard_ids,
        state=consumer.state,
        child=consumer.child,
        child_pid=consumer.child_pid,
        child_failures=consumer.child_failures,
        records=consumer.records,
        payload_bytes=consumer.payload_bytes,
        millis_behind_latest=consumer.millis_behind_latest,
        checkpoint=None if consumer.checkpoint is None else str(consumer.checkpoint),
        checkpoint_age_s=None if written_s is None else round(now_s - written_s, 1),
        last_error=consumer.last_error,
        stderr=stderr,
    )


def notes_of(status: WorkerStatus | None) -> Mapping[str, str]:
    """What this worker knows of its leases, by key, and the tables do not tell."""
    notes = {}
    for consumer in status.consumers if status else ():
        if consumer.child in FAILING:
            notes[consumer.lease_key] = f"child in {consumer.child}, {consumer.child_failures} failures"
    return notes
