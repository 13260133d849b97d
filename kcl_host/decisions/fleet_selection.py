"""Which leases of a fleet are shown, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from kcl_host.decisions.fleet_looks import STATES, LeaseState
from kcl_host.decisions.fleet_report import FleetView, LeaseView

FEW: Final = 40
"""So many leases are shown even when nothing is to be said of them."""
SortKey = Literal["key", "worker", "state", "lag", "age", "throughput", "switches"]


def _largest_first(value: float | None) -> float:
    return float("inf") if value is None else -value


_ORDER: Final[Mapping[SortKey, Callable[[LeaseView], Any]]] = {
    "key": lambda lease: (),
    "worker": lambda lease: (lease.owner is not None, lease.owner or ""),
    "state": lambda lease: -STATES.index(lease.state),
    "lag": lambda lease: _largest_first(lease.lag_ms),
    "age": lambda lease: _largest_first(age_s(lease)),
    "throughput": lambda lease: _largest_first(lease.throughput_kbps),
    "switches": lambda lease: -lease.owner_switches,
}
SORT_KEYS: Final[tuple[SortKey, ...]] = tuple(_ORDER)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of worker ids, shard ids and streams, and whole states; empty: any. With several of one kind any counts."""

    workers: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    states: tuple[LeaseState, ...] = ()
    sort: SortKey = "key"
    all: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.workers or self.shards or self.streams or self.states)


def matches(lease: LeaseView, selection: Selection) -> bool:
    """A worker is that of a lease whether it holds it or is about to get it."""
    owners = (lease.owner or "", lease.next_owner or "")
    return (
        (not selection.states or lease.state in selection.states)
        and (not selection.workers or any(part in owner for part in selection.workers for owner in owners))
        and (not selection.shards or any(part in lease.lease_key for part in selection.shards))
        and (not selection.streams or any(part in lease.stream for part in selection.streams))
    )


def select(view: FleetView, selection: Selection) -> tuple[LeaseView, ...]:
    """The leases that match, in the wanted order; equals stay in the order of their keys."""
    return tuple(sorted((lease for lease in view.leases if matches(lease, selection)), key=_ORDER[selection.sort]))


def interesting(view: FleetView, selection: Selection) -> tuple[LeaseView, ...]:
    """Those of them that are shown without being asked for: all of few, or what is not simply being read.

    A filter, or an order other than by key, asks for them all.
    """
    chosen = select(view, selection)
    if selection.all or selection.is_filtered or selection.sort != "key" or len(chosen) <= FEW:
        return chosen
    named = {key for finding in view.findings if finding.severity == "problem" for key in finding.leases}
    return tuple(lease for lease in chosen if lease.state not in ("reading", "ended") or lease.lease_key in named)


def age_s(lease: LeaseView) -> float | None:
    """Age of the checkpoint in seconds: of its record if known, else how long it was seen unchanged."""
    return lease.checkpoint_age_s if lease.checkpoint_age_s is not None else lease.unchanged_s or None
