"""The look at the fleet that the endpoint keeps fresh: only while somebody wants it, and never too often."""

from __future__ import annotations

from collections.abc import Mapping

from kcl_host.endpoint.fleet import EVERY_S, LEASES_PER_S, SHARE, WANTED_S, FleetWatch
from tests.unit.coordination_rig import lease, reporting, settings_of
from tests.unit.test_fleet_snapshot import Rig, refuse


def watch_of(rig: Rig, notes: Mapping[str, str] | None = None) -> FleetWatch:
    return FleetWatch(rig.reader, settings_of("me"), rig.clock, lambda: notes or {})


def test_nobody_looking_costs_nothing() -> None:
    rig = Rig()
    rig.leases.put(lease())
    watch = watch_of(rig)
    assert watch.run_once() is None and rig.requests() == {}
    assert watch.latest() == (None, None), "the first who asks does not wait"
    assert watch.run_once() == EVERY_S
    view, error = watch.latest()
    assert view is not None and [one.lease_key for one in view.leases] == [lease().lease_key] and error is None
    asked = rig.requests()
    rig.clock.advance(WANTED_S)
    assert watch.run_once() is None and rig.requests() == asked


def test_a_big_fleet_and_a_slow_look_are_looked_at_less_often() -> None:
    rig = Rig()
    for number in range(1000):
        rig.leases.put(lease(f"shardId-{number:012d}"))
    watch = watch_of(rig)
    watch.latest()
    assert watch.run_once() == 1000 / LEASES_PER_S

    slow = Rig()

    def notes() -> Mapping[str, str]:
        slow.clock.advance(3)
        return {}

    watch = FleetWatch(slow.reader, settings_of("me"), slow.clock, notes)
    watch.latest()
    assert watch.run_once() == 3 * SHARE


def test_what_the_host_knows_stands_with_the_lease_and_so_does_what_is_wrong() -> None:
    rig = Rig()
    rig.leases.put(lease(owner=None))
    watch = watch_of(rig, {lease().lease_key: "child in BACKOFF, 4 failures"})
    watch.latest()
    watch.run_once()
    view, _ = watch.latest()
    assert view is not None and (view.leases[0].reason or "").endswith("child in BACKOFF, 4 failures")
    assert "no_owner" in [finding.kind for finding in view.findings]


def test_a_look_that_fails_leaves_the_last_picture() -> None:
    rig = Rig(single=True)  # Of one table the reports of the workers come with the leases.
    rig.leases.put(lease())
    rig.metadata.metrics_in_lease_table.rows["me"] = reporting("me", rig.clock)
    watch = watch_of(rig)
    watch.latest()
    watch.run_once()
    first, _ = watch.latest()
    rig.clock.advance(EVERY_S)
    rig.leases.faults = refuse("list_leases")
    watch.latest()
    watch.run_once()
    view, error = watch.latest()
    assert view is not None and len(view.leases) == 1 and error is None
    assert [failure.part for failure in view.failures] == ["leases"]
    assert first is not None and [worker.standing for worker in first.workers] == ["active"]
    assert [worker.standing for worker in view.workers] == ["active"]
