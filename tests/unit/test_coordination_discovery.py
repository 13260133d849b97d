"""Taking up the leases whose rows name this worker (spec lease-table 7.4, DESIGN.md 4)."""

from __future__ import annotations

import pytest

from kcl_host.config.settings import AssignmentSettings
from kcl_host.coordination.discovery import Discovery
from kcl_host.coordination.held_leases import HeldLease
from kcl_host.errors import TableMissing, Throttled
from kcl_host.model.sequence import AT_SHARD_END
from tests.fakes.fault import ANSWER_LOST, THROTTLED, TIMED_OUT, Fault
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.unit.coordination_rig import ME, OTHER, Worker, always, befall, before, lease

JAVA_S = 9.975


class Discovering(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[HeldLease] = []
        self.alone = True
        self.discovery = self.discovery_of(self.table)

    def discovery_of(self, table: InMemoryLeaseTable) -> Discovery:
        return Discovery(
            table,
            self.held_leases,
            ME,
            self.settings,
            AssignmentSettings(),
            self.clock,
            lambda: self.alone,
            self.found.append,
        )

    def turns(self, seconds: float) -> None:
        until_s = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until_s:
            pause_s = self.discovery.run_once()
            assert pause_s > 0, "the loop must not spin"
            self.clock.advance(pause_s)

    @property
    def found_keys(self) -> list[str]:
        return [held.lease_key for held in self.found]


@pytest.fixture
def worker() -> Discovering:
    return Discovering()


def test_what_names_us_is_renewed_and_taken_up(worker: Discovering) -> None:
    worker.table.put(lease("s1"))
    worker.table.put(lease("s2", owner=OTHER))
    worker.table.put(lease("s3", owner=None))
    worker.discovery.run_once()
    assert worker.found_keys == ["s1"]
    assert worker.table.requests == {"lease_keys_of": 1, "get": 1, "renew": 1}
    assert worker.table.rows["s1"] == worker.found[0].lease == lease("s1", counter=4)


def test_the_age_of_a_lease_taken_up_counts_from_before_it_was_read(worker: Discovering) -> None:
    worker.table.put(lease())
    worker.table.faults = befall("renew", Fault(before_s=1.0, after_s=1.0))
    sent_at_s = worker.clock.monotonic()
    worker.discovery.run_once()
    assert worker.found[0].last_renewed_s == sent_at_s


def test_a_row_that_moves_on_between_the_read_and_the_renewal_is_not_taken_up(worker: Discovering) -> None:
    """It named us for long, and the leader gave it to somebody else just now."""
    worker.table.put(lease())
    worker.table.faults = before("renew", lambda: worker.table.put(lease(owner=OTHER, counter=4)))
    worker.discovery.run_once()
    assert worker.found == []
    assert worker.held_leases.all() == []


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, ANSWER_LOST, Fault("refused")])
def test_a_row_whose_renewal_failed_is_taken_up_a_little_later(worker: Discovering, fault: Fault) -> None:
    worker.table.put(lease())
    worker.table.faults = befall("renew", fault)
    assert worker.discovery.run_once() == pytest.approx(1.0)
    assert worker.found == []
    assert worker.held_leases.all() == []
    worker.clock.advance(1.0)
    worker.discovery.run_once()
    assert worker.found_keys == ["s1"]
    assert worker.found[0].lease == worker.table.rows["s1"]


def test_a_row_taken_up_by_the_leader_thread_between_the_read_and_the_renewal(worker: Discovering) -> None:
    worker.table.put(lease())

    def meanwhile(operation: str, key: str) -> None:
        if operation == "get":
            worker.discovery.take_up(lease(), worker.clock.monotonic())

    worker.table.faults = meanwhile
    worker.discovery.run_once()
    assert worker.found_keys == ["s1"]
    assert worker.table.requests["renew"] == 0
    assert worker.held_leases.renew(worker.found[0], 0.0) == "renewed"


def test_what_an_earlier_process_with_our_worker_id_held_is_resumed(worker: Discovering) -> None:
    worker.table.put(lease("s1", counter=812))
    worker.table.put(lease("s2", counter=7, owner=ME, checkpoint_owner=OTHER))
    worker.discovery.run_once()
    assert worker.found_keys == ["s1"]
    assert worker.held_leases.renew(worker.found[0], 0.0) == "renewed"


def test_a_lease_at_shard_end_is_taken_up_as_well(worker: Discovering) -> None:
    worker.table.put(lease(checkpoint=AT_SHARD_END))
    worker.discovery.run_once()
    assert worker.found_keys == ["s1"]


def test_a_held_lease_is_not_read_again(worker: Discovering) -> None:
    worker.hold()
    worker.turns(100.0)
    assert worker.table.requests["get"] == 0
    assert worker.found == []


@pytest.mark.parametrize("alone, cadence_s", [(True, JAVA_S), (False, 1.0)])
def test_cadence(worker: Discovering, alone: bool, cadence_s: float) -> None:
    worker.alone = alone
    assert worker.discovery.run_once() == pytest.approx(cadence_s)
    worker.turns(3600.0)
    assert worker.table.requests == {"lease_keys_of": pytest.approx(3600 / cadence_s, abs=3)}


def test_company_is_noticed_at_the_next_turn(worker: Discovering) -> None:
    worker.clock.advance(worker.discovery.run_once())
    worker.alone = False
    assert worker.discovery.run_once() == pytest.approx(1.0)


def test_a_row_in_handover_to_us_is_asked_for_often_and_taken_up_when_it_is_ours(worker: Discovering) -> None:
    worker.table.put(lease(owner=ME, checkpoint_owner=OTHER))
    assert worker.discovery.run_once() == pytest.approx(0.2)
    worker.clock.advance(0.2)
    assert worker.discovery.run_once() == pytest.approx(0.2)
    assert worker.found == []
    assert worker.table.requests["lease_keys_of"] == 1
    worker.table.assign(worker.table.rows["s1"], ME)
    worker.clock.advance(0.2)
    assert worker.discovery.run_once() > 0.2
    assert worker.found_keys == ["s1"]


@pytest.mark.parametrize("row", [lease(owner=OTHER), lease(owner=None), None], ids=["other", "nobody", "deleted"])
def test_a_handover_to_us_that_does_not_come_about_is_forgotten(worker: Discovering, row: object) -> None:
    worker.table.put(lease(owner=ME, checkpoint_owner=OTHER))
    worker.discovery.run_once()
    worker.table.delete("s1")
    if row is not None:
        worker.table.put(row)  # type: ignore[arg-type]
    worker.clock.advance(0.2)
    assert worker.discovery.run_once() > 1.0
    assert worker.found == []


def test_a_pending_row_that_the_leader_thread_took_up_is_asked_for_no_more(worker: Discovering) -> None:
    worker.table.put(lease(owner=ME, checkpoint_owner=OTHER))
    worker.discovery.run_once()
    row = worker.table.assign(worker.table.rows["s1"], ME).row
    assert row is not None
    worker.clock.advance(0.1)
    assert worker.discovery.take_up(row, worker.clock.monotonic())
    worker.clock.advance(0.1)
    assert worker.discovery.run_once() > 1.0
    assert worker.found_keys == ["s1"]


def test_two_threads_take_a_lease_up_once(worker: Discovering) -> None:
    row = lease()
    worker.table.put(row)
    now_s = worker.clock.monotonic()
    assert [worker.discovery.take_up(row, now_s) for _ in range(2)] == [True, False]
    assert len(worker.found) == 1


def test_a_row_read_before_we_gave_the_lease_away_is_not_taken_up(worker: Discovering) -> None:
    """The discovery reads the row; the leader's thread takes it up, it is processed and given away; then we go on."""
    worker.table.put(lease())

    def meanwhile(operation: str, key: str) -> Fault | None:
        if operation == "get":
            worker.table.faults = befall("get")
            worker.discovery.take_up(worker.table.rows["s1"], worker.clock.monotonic())
            stale = worker.table.rows["s1"]
            worker.clock.advance(1.0)
            worker.held_leases.give_away(worker.found[0])
            worker.table.put(stale)  # What the read sees.
        return None

    worker.table.faults = meanwhile
    worker.discovery.run_once()
    assert worker.held_leases.all() == []
    assert len(worker.found) == 1


def test_the_index_may_be_stale_the_row_decides(worker: Discovering) -> None:
    worker.table.put(lease())
    worker.clock.advance(1.0)
    worker.table.put(lease(owner=OTHER, counter=4))
    worker.table.lag = lambda read, key: 0.5 if read == "index" else 0.0
    worker.discovery.run_once()
    assert worker.table.requests["get"] == 1
    assert worker.found == []


@pytest.mark.parametrize("fault", [THROTTLED, TIMED_OUT, Fault("refused")])
def test_a_row_that_could_not_be_read_is_asked_for_soon(worker: Discovering, fault: Fault) -> None:
    worker.table.put(lease("s1"))
    worker.table.put(lease("s2"))
    worker.table.faults = befall("get", fault)
    assert worker.discovery.run_once() == pytest.approx(1.0)
    assert worker.found_keys == ["s2"]
    worker.clock.advance(1.0)
    assert worker.discovery.run_once() == pytest.approx(JAVA_S)
    assert worker.found_keys == ["s2", "s1"]


def test_a_query_that_failed_does_not_stop_what_is_pending(worker: Discovering) -> None:
    worker.table.put(lease(owner=ME, checkpoint_owner=OTHER))
    worker.discovery.run_once()
    worker.table.assign(worker.table.rows["s1"], ME)
    worker.table.faults = always("lease_keys_of", THROTTLED)
    worker.clock.advance(JAVA_S)
    with pytest.raises(Throttled):
        worker.discovery.run_once()
    assert worker.found_keys == ["s1"]


def test_without_an_index_a_scan_stands_in_every_ten_seconds_at_most(worker: Discovering) -> None:
    worker.alone = False
    worker.table.index_active_at_s = worker.clock.monotonic() + 60.0
    worker.table.put(lease())
    worker.turns(59.0)
    assert worker.found_keys == ["s1"]
    assert worker.table.requests["list_leases"] == 6
    worker.turns(600.0)
    assert worker.table.requests["list_leases"] <= 7


def test_without_a_table_there_is_nothing_to_find(worker: Discovering) -> None:
    discovery = worker.discovery_of(InMemoryLeaseTable(worker.clock, exists=False))
    with pytest.raises(TableMissing):
        discovery.run_once()


def test_the_last_look_names_what_is_not_held(worker: Discovering) -> None:
    worker.hold(lease("s1"))
    worker.table.put(lease("s2"))
    worker.table.put(lease("s3", owner=ME, checkpoint_owner=OTHER))
    worker.table.put(lease("s4", owner=OTHER))
    assert [row.lease_key for row in worker.discovery.leases_named_ours()] == ["s2", "s3"]
