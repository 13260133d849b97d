"""The fleet as it is shown: values only, and durations in words. `--json` is a FleetView, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from kcl_host.decisions.fleet_looks import LeaseState, PartFailure
from kcl_host.decisions.worker_activity import Activity

TableForm = Literal["three_tables", "single_table", "none", "unknown"]
MANY_SWITCHES: Final = 5
"""So many owners without one checkpoint: whoever gets the lease fails on it."""
STILL_S: Final = 10.0
"""A checkpoint that stands for so long while records wait behind it is worth a word."""
WorkerStanding = Activity | Literal["no_report"]
"""`no_report`: it owns leases, and no row of worker metric stats tells of it."""


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One lease. Times are seconds; None means not known.

    `owner` may heartbeat now; `next_owner` is set while a handover is pending. `state_s`, `unchanged_s` and
    `counter_still_s` are how long this run has seen the state, the checkpoint and the counter as they are, so at least
    so long. `checkpoint_age_s` is the age of the checkpointed record, known only from Kinesis.
    """

    lease_key: str
    stream: str
    shard_id: str
    state: LeaseState
    reason: str | None
    owner: str | None
    next_owner: str | None
    lag_ms: int | None
    lag_ms_per_s: float | None
    checkpoint: str | None
    checkpoint_age_s: float | None
    unchanged_s: float
    pending_checkpoint: str | None
    throughput_kbps: float | None
    owner_switches: int
    writes_per_s: float | None
    counter: int
    counter_still_s: float
    state_s: float
    parents: tuple[str, ...]
    children: tuple[str, ...]
    hash_key_range: tuple[str, str] | None


class MetricView(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a worker in percent: its moving average, and the operating range it should stay in."""

    average: float
    limit: float | None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `leases` it may heartbeat now; those at SHARD_END are left out, as they are in all its numbers.

    `last_seen_s` is how long ago it wrote its metric stats, by the clocks of two machines; `reports_to` is the table
    that has its newest row.
    """

    worker_id: str
    standing: WorkerStanding
    is_leader: bool
    leases: int
    incoming: int
    outgoing: int
    silent_leases: int
    throughput_kbps: float
    metrics: Mapping[str, MetricView]
    last_seen_s: float | None
    reports_to: Literal["worker_metrics_table", "lease_table"] | None
    support_code: int | None


class LeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the leader lock. `still_s`: this run has seen the lock unchanged for so long."""

    worker_id: str
    place: Literal["coordinator_table", "lease_table"]
    lease_duration_ms: int
    is_released: bool
    still_s: float


class MetadataView(msgspec.Struct, frozen=True, kw_only=True):
    """The tables, and both migrations: `client_version` is that from KCL 2.x, `table_migration` that into one table.

    `migration_note` says in words how far the latter is. None without items.
    """

    form: TableForm
    lease_table: str | None
    index: str | None
    client_version: str | None
    table_migration: str | None
    migration_note: str | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Of all leases, or those of one stream. `lag_known` leases have a lag; the worst is that of `worst_lag_lease`."""

    leases: int
    by_state: Mapping[LeaseState, int]
    throughput_kbps: float
    writes_per_s: float | None
    lag_known: int
    worst_lag_ms: int | None
    worst_lag_lease: str | None


class MoveView(msgspec.Struct, frozen=True, kw_only=True):
    """A change of owner seen in this run, `ago_s` before the last look; None: no owner."""

    ago_s: float
    lease_key: str
    before: str | None
    after: str | None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth knowing. A `problem` makes the exit code 1, a `notice` does not.

    `kind` is one of the words of docs/status.md.
    """

    severity: Literal["problem", "notice"]
    kind: str
    message: str
    leases: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown; `--json` is this, field by field (docs/status.md). `taken_s`: epoch seconds."""

    application: str
    taken_s: float
    looks: int
    observed_s: float
    metadata: MetadataView
    leader: LeaderView | None
    summary: Summary
    streams: Mapping[str, Summary]
    workers: tuple[WorkerView, ...]
    leases: tuple[LeaseView, ...]
    moves: tuple[MoveView, ...]
    findings: tuple[Finding, ...] = ()
    failures: tuple[PartFailure, ...] = ()

    @property
    def is_wrong(self) -> bool:
        return any(finding.severity == "problem" for finding in self.findings)


def seconds(duration_s: float) -> str:
    """A duration for people, in its two largest units: `12 s`, `3 m 5 s`, `2 d 4 h`."""
    left = max(int(duration_s), 0)
    if left < 60:
        return f"{left} s"
    for name, size, lesser, lesser_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if left >= size:
            rest = left % size // lesser_size
            return f"{left // size} {name} {rest} {lesser}" if rest else f"{left // size} {name}"
    raise AssertionError("a minute is the least of these")
