"""The leader's observations of leases (coordination 4.4, lease-table 6; KCL 3.5.1 LeaseAssignmentManager)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.assignment import applied, blocked_on_pending_checkpoint, is_expired, track
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber

SETTINGS = LeaseSettings()
AT = ExtendedSequenceNumber("5")


def lease(**fields: Any) -> Lease:
    return Lease(**{"lease_key": "k", "checkpoint": AT, "lease_counter": 7, "lease_owner": "a"} | fields)


def observe(*rows: tuple[float, Lease]) -> Any:
    tracked: dict[str, Any] = {}
    for now_s, row in rows:
        tracked = track(tracked, [row], now_s, SETTINGS)
    return tracked["k"]


def test_an_owned_lease_gets_a_full_period_from_a_new_leader() -> None:
    found = observe((100.0, lease()))
    assert found.last_counter_increment_s == 100.0
    assert not is_expired(found, 110.0, SETTINGS)
    assert is_expired(found, 110.001, SETTINGS)


def test_a_lease_without_owner_is_very_old() -> None:
    assert observe((3.0, lease(lease_owner=None))).last_counter_increment_s == -math.inf


@pytest.mark.parametrize("counter, since_s", [(8, 120.0), (7, 100.0), (1, 100.0)])
def test_only_a_greater_counter_is_a_renewal(counter: int, since_s: float) -> None:
    found = observe((100.0, lease()), (120.0, lease(lease_counter=counter)))
    assert found.last_counter_increment_s == since_s


def test_leases_that_are_gone_are_forgotten() -> None:
    assert track(track({}, [lease()], 1.0, SETTINGS), [], 2.0, SETTINGS) == {}


def test_a_handover_has_forty_seconds_from_its_first_sight() -> None:
    pending = lease(lease_owner="b", checkpoint_owner="a")
    found = observe((100.0, lease()), (120.0, pending), (139.0, msgspec.structs.replace(pending, lease_counter=9)))
    assert found.handoff_deadline_s == 160.0
    assert blocked_on_pending_checkpoint(found, 148.0, SETTINGS)
    other = msgspec.structs.replace(pending, lease_owner="c")
    assert observe((120.0, pending), (140.0, other)).handoff_deadline_s == 180.0
    assert observe((120.0, pending), (140.0, lease(lease_owner="b"))).handoff_deadline_s is None


def test_what_ends_the_wait_for_a_pending_checkpoint() -> None:
    pending = lease(lease_owner="b", checkpoint_owner="a")
    renewed = msgspec.structs.replace(pending, lease_counter=8)
    overdue = observe((120.0, pending), (159.0, renewed))
    assert blocked_on_pending_checkpoint(overdue, 159.9, SETTINGS)
    assert not blocked_on_pending_checkpoint(overdue, 160.0, SETTINGS)
    not_renewed = observe((120.0, pending))
    assert not blocked_on_pending_checkpoint(not_renewed, 130.1, SETTINGS)
    ended = observe((120.0, msgspec.structs.replace(pending, checkpoint=AT_SHARD_END)))
    assert not blocked_on_pending_checkpoint(ended, 121.0, SETTINGS)
    assert not blocked_on_pending_checkpoint(observe((120.0, lease())), 121.0, SETTINGS)


def test_after_our_own_writes() -> None:
    before = observe((100.0, lease()))
    handed = applied(before, lease(lease_owner="b", checkpoint_owner="a"), 105.0, SETTINGS)
    assert (handed.last_counter_increment_s, handed.handoff_deadline_s) == (100.0, 145.0)
    assigned = applied(before, lease(lease_owner="b", lease_counter=8), 105.0, SETTINGS)
    assert (assigned.last_counter_increment_s, assigned.handoff_deadline_s) == (105.0, None)
