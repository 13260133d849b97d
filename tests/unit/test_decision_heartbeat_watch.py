"""What a leader reads between two passes, and when that calls for a pass."""

from __future__ import annotations

import math

import pytest

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.heartbeat_watch import (
    is_standing,
    leases_of,
    next_pass_s,
    scan_is_cheaper,
    settled_leases,
    suspected_workers,
    watch_interval_s,
    watched_leases,
)
from kcl_host.decisions.lease_age import Tracked
from tests.unit.coordination_rig import ME, OTHER, THIRD, lease

SETTINGS = LeaseSettings()
NOW_S = 100.0


def seen(**leases: tuple[str | None, float]) -> dict[str, Tracked]:
    """Leases by key: owner, and when the counter was seen to move."""
    return {
        key: Tracked(lease=lease(key, owner=owner), last_counter_increment_s=at_s)
        for key, (owner, at_s) in leases.items()
    }


@pytest.mark.parametrize("failover_s", [1.0, 3.0, 10.0])
def test_the_third_read_shows_a_renewal_or_a_lease_that_stands_still(failover_s: float) -> None:
    settings = LeaseSettings(failover_s=failover_s)
    turn_s = watch_interval_s(settings)
    assert settings.renewal_interval_s < 2 * turn_s < 1.15 * settings.renewal_interval_s
    tracked = seen(s=(OTHER, NOW_S))["s"]
    assert not is_standing(tracked, NOW_S + settings.renewal_interval_s, settings)
    assert is_standing(tracked, NOW_S + 2 * turn_s, settings)


def test_a_long_lease_is_not_watched_less_often_than_the_target_needs() -> None:
    assert watch_interval_s(LeaseSettings(failover_s=60.0)) == 2.5


def test_one_lease_of_each_other_worker_the_one_that_moved_last() -> None:
    tracked = seen(
        a=(OTHER, 96.0), b=(OTHER, 99.0), c=(OTHER, 99.0), d=(THIRD, 50.0), e=(ME, 99.0), f=(None, -math.inf)
    )
    assert watched_leases(tracked, ME, (), NOW_S) == {OTHER: "b", THIRD: "d"}
    assert watched_leases(tracked, ME, ("b", "d"), NOW_S) == {OTHER: "c"}
    assert watched_leases(seen(e=(ME, 99.0), f=(None, 0.0)), ME, (), NOW_S) == {}, "alone"


def test_a_lease_that_was_just_assigned_says_nothing_of_its_owner_unless_it_is_the_only_one() -> None:
    tracked = seen(a=(OTHER, 95.0), b=(OTHER, 108.0), c=(THIRD, 109.0), d=(THIRD, 109.5))
    assert watched_leases(tracked, ME, (), NOW_S) == {OTHER: "a", THIRD: "d"}


def test_during_a_handover_the_old_owner_is_watched() -> None:
    row = Tracked(lease=lease("s", owner=OTHER, checkpoint_owner=THIRD), last_counter_increment_s=99.0)
    assert watched_leases({"s": row}, ME, (), NOW_S) == {THIRD: "s"}
    assert leases_of({"s": row}, {OTHER}, ()) == []


def test_a_worker_is_suspected_when_all_its_leases_stand_still() -> None:
    tracked = seen(a=(OTHER, 96.5), b=(OTHER, 95.0), c=(THIRD, 96.5), d=(THIRD, 98.0), e=(None, -math.inf))
    assert suspected_workers(tracked, NOW_S, SETTINGS) == {OTHER}
    given = tracked | seen(f=(OTHER, 108.0), g=(ME, 108.0))
    assert suspected_workers(given, NOW_S, SETTINGS) == frozenset()
    assert suspected_workers(given, NOW_S, SETTINGS, {"f", "g"}) == {OTHER}


def test_leases_of_suspects() -> None:
    tracked = seen(a=(OTHER, 1.0), b=(THIRD, 1.0), c=(OTHER, 1.0), d=(OTHER, 1.0))
    assert leases_of(tracked, {OTHER}, {"c"}) == ["a", "d"]
    assert leases_of(tracked, (), ()) == []


@pytest.mark.parametrize(
    "rows, wanted, scan", [(250, 1, True), (251, 1, False), (1000, 99, False), (1000, 100, True), (0, 0, True)]
)
def test_a_scan_where_it_is_cheap(rows: int, wanted: int, scan: bool) -> None:
    assert scan_is_cheaper(rows, wanted) is scan


def test_a_pass_is_called_for_when_a_lease_that_stands_still_expires() -> None:
    tracked = seen(a=(OTHER, 97.0), b=(OTHER, 96.0), c=(OTHER, 95.0), d=(ME, 80.0))
    assert next_pass_s(tracked, tracked, (), ME, NOW_S, SETTINGS) == 105.0
    assert next_pass_s(tracked, ["a", "b"], (), ME, NOW_S, SETTINGS) == 106.0, "only what was read is known"
    assert next_pass_s(tracked, ["a", "d", "gone"], (), ME, NOW_S, SETTINGS) == math.inf


def test_a_lease_without_owner_calls_for_a_pass_at_once_unless_the_last_one_could_place_it_nowhere() -> None:
    tracked = seen(a=(None, -math.inf), b=(OTHER, 80.0))
    assert next_pass_s(tracked, tracked, (), ME, NOW_S, SETTINGS) == NOW_S
    settled = settled_leases(tracked, NOW_S, SETTINGS)
    assert settled == {"a", "b"}
    assert next_pass_s(tracked, tracked, settled, ME, NOW_S, SETTINGS) == math.inf
    assert watched_leases(tracked, ME, settled, NOW_S) == {}
