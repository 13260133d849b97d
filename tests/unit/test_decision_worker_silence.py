"""Which workers a leader takes for dead before their metric stats are old."""

from __future__ import annotations

from kcl_host.config.settings import LeaseSettings
from kcl_host.decisions.lease_age import Tracked
from kcl_host.decisions.worker_silence import note_silence
from kcl_host.model.worker import WorkerMetricStats
from tests.unit.coordination_rig import ME, OTHER, THIRD, lease

NOW_S = 100.0
MINE = WorkerMetricStats(worker_id=ME, last_update_s=7)
THEIRS = WorkerMetricStats(worker_id=OTHER, last_update_s=7)


def tracked(*renewed: tuple[str, float]) -> dict[str, Tracked]:
    return {
        f"s{n}": Tracked(lease=lease(f"s{n}", owner=owner), last_counter_increment_s=at_s)
        for n, (owner, at_s) in enumerate(renewed)
    }


def silent(
    leases: dict[str, Tracked], known: dict[str, int | None] | None = None, *workers: WorkerMetricStats
) -> object:
    return note_silence(known or {}, leases, workers or (MINE, THEIRS), NOW_S, LeaseSettings(), THIRD)


def test_all_leases_expired() -> None:
    assert silent(tracked((ME, 89.9), (ME, 50.0), (OTHER, 95.0))) == {ME: 7}


def test_one_lease_that_moves_is_a_sign_of_life() -> None:
    assert silent(tracked((ME, 89.9), (ME, 90.0))) == {}


def test_a_worker_without_leases_is_not_judged() -> None:
    assert silent(tracked((ME, 95.0))) == {}


def test_silence_outlasts_the_leases_until_the_worker_reports_again() -> None:
    assert silent(tracked((OTHER, 95.0)), {ME: 7}) == {ME: 7}
    assert silent(tracked((OTHER, 95.0)), {ME: 6}) == {}


def test_a_lease_that_moves_ends_the_silence() -> None:
    assert silent(tracked((ME, 95.0)), {ME: 7}) == {}


def test_a_worker_whose_row_is_gone_is_forgotten() -> None:
    assert silent(tracked((OTHER, 95.0)), {ME: 7}, THEIRS) == {}


def test_in_a_handover_the_old_owner_is_the_one_to_be_heard() -> None:
    row = Tracked(lease=lease(owner=OTHER, checkpoint_owner=ME), last_counter_increment_s=50.0)
    assert silent({"s1": row}) == {ME: 7}


def test_the_observer_is_not_silent_to_itself_and_distrusts_the_table_first() -> None:
    leases = tracked((ME, 50.0), (OTHER, 50.0))
    assert note_silence({}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), ME) == {}
    assert note_silence({OTHER: 7}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), ME) == {OTHER: 7}
    leases = tracked((ME, 95.0), (OTHER, 50.0))
    assert note_silence({}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), ME) == {OTHER: 7}


def test_a_lease_that_was_given_and_not_taken_up_is_no_sign_of_life() -> None:
    leases = tracked((ME, 89.9), (ME, 105.0))
    assert note_silence({}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), THIRD) == {}
    assert note_silence({}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), THIRD, {"s1"}) == {ME: 7}


def test_a_worker_that_was_given_its_first_leases_has_the_time_to_take_them_up() -> None:
    leases = tracked((ME, 89.9), (ME, 105.0))
    assert note_silence({}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), THIRD, {"s0", "s1"}) == {}
    leases = tracked((ME, 89.9), (ME, 89.8))
    assert note_silence({}, leases, (MINE, THEIRS), NOW_S, LeaseSettings(), THIRD, {"s0", "s1"}) == {ME: 7}
