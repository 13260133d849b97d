"""Whom a leader has seen alive."""

from __future__ import annotations

import msgspec

from kcl_host.decisions.lease_age import Tracked
from kcl_host.decisions.renewal_watch import renewing_workers, unproven_owners
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
