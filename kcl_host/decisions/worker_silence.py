"""Workers that seem to be dead although their metric stats are fresh.

A row of metric stats counts for two reporting periods, a minute, and a worker that was killed looks idle in it: the
best place for every lease, its own expired ones included. So a leader stops to give leases to a worker once all that
it held have expired, until it is heard of again. Java does not: there such leases expire once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.lease_age import Tracked, is_expired
from kcl_host.model.worker import WorkerMetricStats


def note_silence(
    known: Mapping[str, int | None],
    tracked: Mapping[str, Tracked],
    workers: Iterable[WorkerMetricStats],
    now_s: float,
    settings: LeaseSettings,
    observer: str,
    untaken: Collection[str] = (),
) -> dict[str, int | None]:
    """Silent workers by id, each with the last update of its row when it fell silent; `known` are those of before.

    A worker is silent from the moment at which every lease it may heartbeat has expired, and it has at least one,
    until its row is written again or is gone, or one of its leases moves. `observer` is the worker that asks: never
    silent to itself, and when its own leases have all expired too, the fault is the table's and nobody falls silent.
    `untaken` leases, which their owners were given and have not renewed yet, are no sign of life of an owner that has
    other leases.
    """
    takers = {t.lease.actual_owner for key, t in tracked.items() if key not in untaken}
    owners: dict[str | None, bool] = {}
    for key, t in tracked.items():
        owner = t.lease.actual_owner
        if key not in untaken or owner not in takers:
            owners[owner] = owners.get(owner, True) and is_expired(t, now_s, settings)
    table_in_trouble = owners.get(observer, False)
    silent: dict[str, int | None] = {}
    for stats in workers:
        was_silent = stats.worker_id in known and known[stats.worker_id] == stats.last_update_s
        has_only_expired = owners.get(stats.worker_id, was_silent)
        if stats.worker_id != observer and has_only_expired and (was_silent or not table_in_trouble):
            silent[stats.worker_id] = stats.last_update_s
    return silent
