"""Several real hosts on one application, that come, go, crash and freeze: every sequence number is accounted for.

Two stories by default, everything else with `-m stress`, and crashes on DynamoDB Local with `-m interop`. Limits are
generous; how fast it really goes is measured by tests/bench/fleet.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from tests.integration.fleet_of_hosts import FAST, Fleet
from tests.interop.dynamodb_local import dynamodb_local

pytestmark = pytest.mark.integration

LIMIT_S = 30.0
PATIENT: dict[str, object] = {**FAST, "failoverTimeMillis": 5000}
"""Where nothing may be delivered twice: a lease must not expire because the machine is busy."""
NEVER_BALANCED: dict[str, object] = {"varianceBalancingFrequency": 1_000_000}

NewFleet = Callable[..., Fleet]
"""By the number of shards; further arguments as of Fleet."""


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


@pytest.fixture
def new_fleet(engines: Engines, tmp_path: Path) -> NewFleet:
    return lambda shards, **given: Fleet(engines, tmp_path, shards=shards, **given)


@pytest.fixture
def new_fleet_on_dynamodb_local(engines: Engines, tmp_path: Path) -> Iterator[NewFleet]:
    with dynamodb_local() as url:
        yield lambda shards, **given: Fleet(engines, tmp_path, shards=shards, dynamodb_endpoint=url, **given)


# What happens


def shards_of(fleet: Fleet, name: str) -> list[str]:
    return sorted(shard for shard, owner in fleet.owners().items() if owner == name)


def leader_of(fleet: Fleet, *, but: str = "") -> str:
    """Who leads; it may take a while until it is anybody but this one."""
    fleet.wait_until(lambda: fleet.leader() not in (None, but), LIMIT_S)
    leader = fleet.leader()
    assert leader is not None
    return leader


def follower_of(fleet: Fleet, *names: str) -> str:
    return min(set(names) - {leader_of(fleet)})


def wait_delivering(fleet: Fleet, *names: str) -> None:
    """Until these have even shares, and each shard's child has had records since."""
    fleet.wait_until(lambda: fleet.is_even(*names), LIMIT_S)
    since_s = time.monotonic()
    fleet.wait_until(lambda: fleet.notes.delivering(since_s) == fleet.owners(), LIMIT_S)


def check_each_once(fleet: Fleet) -> None:
    fleet.check_all_delivered()
    assert fleet.notes.repeated() == 0


def stop_in_order(fleet: Fleet, name: str) -> None:
    """TERM: its shards go on elsewhere, and it ends well."""
    shards = shards_of(fleet, name)
    assert shards
    fleet.wait_elsewhere(shards, {name}, fleet.host(name).send(signal.SIGTERM), LIMIT_S)
    assert fleet.host(name).process.wait(LIMIT_S) == 0
    leader_of(fleet, but=name)


def crash(fleet: Fleet, name: str) -> None:
    """kill -9: its shards go on elsewhere."""
    shards = shards_of(fleet, name)
    assert shards
    fleet.wait_elsewhere(shards, {name}, fleet.host(name).kill(), 2 * LIMIT_S)
    leader_of(fleet, but=name)


def freeze(fleet: Fleet, name: str, other: str, frozen_s: float) -> None:
    """Stops one of two hosts, for so long at least, while each of its children has a batch not yet checkpointed."""
    host, shards = fleet.host(name), shards_of(fleet, name)
    (fleet.hold / name).touch()
    fleet.wait_until(lambda: fleet.notes.last_events(name) == dict.fromkeys(shards, "records"), LIMIT_S)
    frozen_at_s = host.send(signal.SIGSTOP)
    (fleet.hold / name).unlink()
    fleet.wait_elsewhere(shards, {name}, frozen_at_s, 2 * LIMIT_S)
    leader_of(fleet, but=name)
    time.sleep(max(0.0, frozen_at_s + frozen_s - time.monotonic()))
    fleet.check_all_delivered()
    before = {shard: (row["leaseOwner"], row["checkpoint"]) for shard, row in fleet.rows().items()}
    assert {owner for owner, _ in before.values()} == {other}

    thawed_at_s = host.send(signal.SIGCONT)
    fleet.wait_until(lambda: fleet.notes.last_events(name) == dict.fromkeys(shards, "lease lost"), LIMIT_S)
    since = fleet.notes.all(worker=name, since_s=thawed_at_s)
    assert sorted(note.shard for note in since if note.event == "refused") == shards
    assert {note.error for note in since if note.event == "refused"} == {"ShutdownException"}
    assert {note.event for note in since} == {"refused", "lease lost"}, "nothing was given to them, nothing landed"
    assert {shard: (row["leaseOwner"], row["checkpoint"]) for shard, row in fleet.rows().items()} == before
    assert sorted({line.facts["lease_key"] for line in host.log() if line.action == "lease_lost"}) == shards
    fleet.produce()


# By default


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_second_worker_gets_half_of_the_leases_and_all_of_them_when_the_first_one_stops(new_fleet: NewFleet) -> None:
    with new_fleet(10, checkpoint_each=3, **PATIENT) as fleet:
        fleet.start("a")
        wait_delivering(fleet, "a")
        at_s = time.monotonic()
        fleet.start("b")
        wait_delivering(fleet, "a", "b")
        moves = fleet.log("lease_assigned", since_s=at_s)
        assert [(m.facts["from"], m.facts["to"], m.facts["kind"]) for m in moves] == [("a", "b", "handoff")] * 5
        stop_in_order(fleet, "a")
        assert set(fleet.owners().values()) == {"b"}
        check_each_once(fleet)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_frozen_worker_finds_its_leases_gone_and_takes_those_of_a_killed_one(new_fleet: NewFleet) -> None:
    with new_fleet(4, **{**FAST, **NEVER_BALANCED}) as fleet:
        check_a_freeze(fleet, leader=False, frozen_s=0)


# Under stress


@pytest.mark.stress
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_even_shares(new_fleet: NewFleet, names: str, together: bool) -> None:
    with new_fleet(10, checkpoint_each=3, **PATIENT) as fleet:
        for starting in [names] if together else names:
            fleet.start(*starting)
            fleet.wait_until(fleet.reporting, LIMIT_S)
        wait_delivering(fleet, *names)
        check_each_once(fleet)
        assert len(fleet.log("leader_acquired")) == 1


@pytest.mark.stress
def test_a_follower_stops_then_the_leader(new_fleet: NewFleet) -> None:
    with new_fleet(10, checkpoint_each=3, **PATIENT) as fleet:
        fleet.start_evenly("a", "b", "c")
        stop_in_order(fleet, follower_of(fleet, "a", "b", "c"))
        stop_in_order(fleet, leader_of(fleet))
        check_each_once(fleet)
        (last,) = set(fleet.owners().values())
        assert last is not None
        fleet.host(last).send(signal.SIGTERM)
        assert fleet.host(last).process.wait(LIMIT_S) == 0
        assert not any("leaseOwner" in row or "checkpointOwner" in row for row in fleet.rows().values())


@pytest.mark.stress
def test_all_but_one_stop_at_once(new_fleet: NewFleet) -> None:
    with new_fleet(10, checkpoint_each=3, **PATIENT) as fleet:
        fleet.start_evenly("a", "b", "c", "d")
        since_s = time.monotonic()
        for name in "abc":
            fleet.host(name).send(signal.SIGTERM)
        fleet.wait_until(lambda: fleet.notes.delivering(since_s) == dict.fromkeys(fleet.shards, "d"), LIMIT_S)
        assert [fleet.host(name).process.wait(LIMIT_S) for name in "abc"] == [0, 0, 0]
        check_each_once(fleet)


@pytest.mark.stress
def test_a_rolling_restart_of_five(new_fleet: NewFleet) -> None:
    names = "abcde"
    with new_fleet(10, checkpoint_each=3, **PATIENT) as fleet:
        fleet.start_evenly(*names)
        for name in names:
            stop_in_order(fleet, name)
            fleet.start(name)
            fleet.wait_until(lambda: fleet.is_even(*names), 2 * LIMIT_S)
        check_each_once(fleet)


@pytest.mark.stress
@pytest.mark.parametrize("leader", [True, False])
def test_a_worker_is_killed(new_fleet: NewFleet, leader: bool) -> None:
    with new_fleet(10) as fleet:
        check_a_kill(fleet, leader)


@pytest.mark.stress
@pytest.mark.parametrize("leader", [True, False])
def test_a_worker_is_frozen_for_25_seconds(new_fleet: NewFleet, leader: bool) -> None:
    with new_fleet(10, **NEVER_BALANCED) as fleet:
        check_a_freeze(fleet, leader, 25)


@pytest.mark.interop
@pytest.mark.parametrize("leader", [True, False])
def test_a_worker_is_killed_on_dynamodb_local(new_fleet_on_dynamodb_local: NewFleet, leader: bool) -> None:
    with new_fleet_on_dynamodb_local(10, **FAST) as fleet:
        check_a_kill(fleet, leader)


@pytest.mark.interop
@pytest.mark.parametrize("leader", [True, False])
def test_a_worker_is_frozen_on_dynamodb_local(new_fleet_on_dynamodb_local: NewFleet, leader: bool) -> None:
    with new_fleet_on_dynamodb_local(10, **{**FAST, **NEVER_BALANCED}) as fleet:
        check_a_freeze(fleet, leader, 0)


def check_a_kill(fleet: Fleet, leader: bool) -> None:
    fleet.start_evenly("a", "b", "c")
    wait_delivering(fleet, "a", "b", "c")
    crash(fleet, leader_of(fleet) if leader else follower_of(fleet, "a", "b", "c"))
    fleet.check_all_delivered()


def check_a_freeze(fleet: Fleet, leader: bool, frozen_s: float) -> None:
    fleet.start_evenly("a", "b")
    wait_delivering(fleet, "a", "b")
    leads, follows = leader_of(fleet), follower_of(fleet, "a", "b")
    name, other = (leads, follows) if leader else (follows, leads)
    freeze(fleet, name, other, frozen_s)
    crash(fleet, other)
    fleet.check_all_delivered()
