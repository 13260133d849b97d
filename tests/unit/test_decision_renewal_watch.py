"""Whom a leader has seen alive."""

from __future__ import annotations

import msgspec

from kcl_host.decisions.lease_age import Tracked
from kcl_host.decisions.renewal_watch import new_owners, renewing_workers, unproven_owners
from tests.unit.coordination_rig import ME, OTHER, lease


def with_counter(counter: int, owner: str = OTHER) -> dict[str, Tracked]:
    row = msgspec.structs.replace(lease("s", owner=owner), lease_counter=counter)
    return {"s": Tracked(lease=row, last_counter_increment_s=0.0)}


def test_a_worker_is_proven_by_a_counter_that_grew_under_its_name() -> None:
    assert renewing_workers(with_counter(4), with_counter(5)) == {OTHER}
    assert renewing_workers(with_counter(4), with_counter(4)) == frozenset()
    assert renewing_workers({}, with_counter(5)) == frozenset()
    assert renewing_workers(with_counter(4), with_counter(5, owner=ME)) == frozenset()


def test_owners_that_were_not_seen_to_renew_are_unproven() -> None:
    assert unproven_owners(with_counter(4), frozenset()) == {OTHER}
    assert unproven_owners(with_counter(4), frozenset({OTHER})) == frozenset()


def test_a_lease_that_passed_to_another_owner_has_a_new_one() -> None:
    assert new_owners(with_counter(4), with_counter(5, owner=ME)) == ["s"]
    assert new_owners(with_counter(4), with_counter(5)) == []
    assert new_owners({}, with_counter(5)) == []
    assert new_owners(with_counter(5), with_counter(4, owner=ME)) == [], "a stale read"
    pending = msgspec.structs.replace(lease("s", owner=ME, checkpoint_owner=OTHER), lease_counter=5)
    handing_over = {"s": Tracked(lease=pending, last_counter_increment_s=0.0)}
    assert new_owners(with_counter(4), handing_over) == [], "still the old owner's"
    assert new_owners(handing_over, with_counter(6, owner=ME)) == ["s"]
