"""What is shown of a fleet, and what counts as wrong, by cases; no requests, no clock."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable

import msgspec
import pytest
from rich.console import Console

from kcl_host.cli.fleet_table import page, shard_name, worker_name
from kcl_host.decisions.fleet_health import diagnose
from kcl_host.decisions.fleet_looks import FleetSnapshot, Looks, PartFailure, ShardLag, look
from kcl_host.decisions.fleet_report import FleetView, LeaseView, seconds
from kcl_host.decisions.fleet_selection import Selection, interesting, select
from kcl_host.decisions.fleet_view import view_fleet
from kcl_host.decisions.metadata_format import VERSION_2X, VERSION_3X, VERSION_3X_WITH_ROLLBACK
from kcl_host.model.lease import Lease, LeaseListing, TableState
from kcl_host.model.sequence import AT_SHARD_END, ExtendedSequenceNumber
from kcl_host.model.shard import MAX_HASH_KEY, HashKeyRange
from kcl_host.model.state import ClientVersionState, LeaderLock, TableMigrationState
from kcl_host.model.worker import WorkerListing, WorkerMetricStats
from tests.unit.coordination_rig import FIVE, settings_of

SETTINGS = settings_of("me")
WALL_S = 1_800_000_000.0
LOCK = LeaderLock(owner_name="a", lease_duration_ms=10_000, record_version_number="v1")
ALL = HashKeyRange(0, MAX_HASH_KEY)
CHILD = frozenset({"s1"})
HALF = (HashKeyRange(0, MAX_HASH_KEY // 2), HashKeyRange(MAX_HASH_KEY // 2 + 1, MAX_HASH_KEY))


def lease(key: str = "s1", owner: str | None = "a", **fields: object) -> Lease:
    values = {"checkpoint": FIVE, "lease_owner": owner, "lease_counter": 3, "hash_key_range": ALL, **fields}
    return Lease(lease_key=key, **values)  # type: ignore[arg-type]


def worker(worker_id: str, ago_s: float = 5, **fields: object) -> WorkerMetricStats:
    values = {"last_update_s": int(WALL_S - ago_s), "support_code": 1, "support_code_update_s": int(WALL_S), **fields}
    return WorkerMetricStats(worker_id=worker_id, **values)  # type: ignore[arg-type]


def snapshot(
    *leases: Lease, at_s: float = 100.0, workers: Iterable[WorkerMetricStats] = (), **fields: object
) -> FleetSnapshot:
    """A fleet of three tables that is well, but for what is given; its workers are `a` and `b`."""
    values = {
        "table": TableState(status="ACTIVE", index_status="ACTIVE"),
        "listing": LeaseListing(leases=leases),
        "has_coordinator_table": True,
        "lock": LOCK,
        "workers": WorkerListing(workers=tuple(workers) or (worker("a"), worker("b"))),
        **fields,
    }
    return FleetSnapshot(taken_s=WALL_S + at_s - 100, at_s=at_s, **values)  # type: ignore[arg-type]


def seen(*snapshots: FleetSnapshot, max_lag_s: float | None = None) -> FleetView:
    looks: Looks | None = None
    for one in snapshots:
        looks = look(looks, one)
    assert looks is not None
    return diagnose(view_fleet(snapshots[-1], looks, SETTINGS), snapshots[-1], SETTINGS, max_lag_s=max_lag_s)


def problems(view: FleetView) -> list[str]:
    return [finding.kind for finding in view.findings if finding.severity == "problem"]


def notices(view: FleetView) -> list[str]:
    return [finding.kind for finding in view.findings if finding.severity == "notice"]


def of(view: FleetView, key: str = "s1") -> LeaseView:
    return next(row for row in view.leases if row.lease_key == key)


# States and reasons


def test_a_fleet_that_is_well() -> None:
    view = seen(snapshot(lease(throughput_kbps=2.5)))
    assert (of(view).state, of(view).reason, of(view).owner) == ("reading", None, "a")
    assert view.findings == () and not view.is_wrong
    assert view.metadata.form == "three_tables"
    assert view.leader is not None and view.leader.worker_id == "a"
    assert [(w.worker_id, w.standing, w.is_leader, w.leases, w.throughput_kbps) for w in view.workers] == [
        ("a", "active", True, 1, 2.5),
        ("b", "active", False, 0, 0.0),
    ]


@pytest.mark.parametrize(
    ("rows", "state", "reason"),
    [
        ([lease(owner=None)], "no_owner", "no owner"),
        ([lease(checkpoint=None)], "no_checkpoint", "the row has no checkpoint: it is not a lease that KCL wrote"),
        ([lease(checkpoint=ExtendedSequenceNumber("LATEST"))], "reading", "nothing checkpointed yet"),
        ([lease(checkpoint_owner="b")], "handover", "handover to a, since when is not known"),
        ([lease(owner="gone")], "reading", "owner does not report its load"),
        ([lease(owner_switches_since_checkpoint=5)], "reading", "5 changes of owner since the last checkpoint"),
        ([lease(child_shard_ids=frozenset({"s2"}))], "shard_end", "shard end not checkpointed"),
        ([lease(parent_shard_ids=frozenset({"s0"})), lease("s0")], "waits_for_parent", "waits for parent s0"),
        (
            [lease(parent_shard_ids=frozenset({"s0", "s00"})), lease("s0", None), lease("s00")],
            "waits_for_parent",
            "waits for parent s0 (no owner) and s00",
        ),
        (
            [lease(owner=None, parent_shard_ids=frozenset({"s0"})), lease("s0", child_shard_ids=frozenset({"s1"}))],
            "no_owner",
            "no owner; waits for parent s0 (its shard end is not checkpointed)",
        ),
        ([lease(parent_shard_ids=frozenset({"s0"})), lease("s0", checkpoint=AT_SHARD_END)], "reading", None),
        ([lease(parent_shard_ids=frozenset({"trimmed"}))], "reading", None),
        (
            [
                lease(checkpoint=AT_SHARD_END, child_shard_ids=frozenset({"s2"})),
                lease("s2", checkpoint=ExtendedSequenceNumber("TRIM_HORIZON")),
            ],
            "ended",
            "waits for clean-up: child s2 not started",
        ),
        (
            [lease(checkpoint=AT_SHARD_END, child_shard_ids=frozenset({"s2"}))],
            "ended",
            "waits for clean-up: child s2 without lease",
        ),
        (
            [
                lease(checkpoint=AT_SHARD_END, child_shard_ids=frozenset({"s2"}), parent_shard_ids=frozenset({"s0"})),
                lease("s2"),
                lease("s0", checkpoint=AT_SHARD_END),
            ],
            "ended",
            "waits for clean-up: parent s0 still there",
        ),
    ],
)  # fmt: skip
def test_the_state_of_a_lease_and_the_likely_reason(rows: list[Lease], state: str, reason: str | None) -> None:
    row = of(seen(snapshot(*rows)))
    assert (row.state, row.reason) == (state, reason)


def test_what_is_counted_of_a_worker() -> None:
    rows = [
        lease("s1", throughput_kbps=1.5),
        lease("s2", "b", checkpoint_owner="a", throughput_kbps=2.0),
        lease("s3", checkpoint=AT_SHARD_END, throughput_kbps=8.0),
    ]
    a, b = seen(snapshot(*rows)).workers
    assert (a.leases, a.incoming, a.outgoing, a.throughput_kbps) == (2, 0, 1, 3.5)
    assert (b.leases, b.incoming, b.outgoing, b.throughput_kbps) == (0, 1, 0, 0.0)


def test_what_a_running_host_knows_is_told_with_the_lease() -> None:
    one = snapshot(lease())
    view = view_fleet(one, look(None, one), SETTINGS, {"s1": "held, child in BACKOFF"})
    assert of(view).reason == "held, child in BACKOFF"


def test_relatives_of_a_multi_stream_lease_are_those_of_its_stream() -> None:
    stream = "123456789012:orders:1700000000"
    child = lease(f"{stream}:s1", stream_name=stream, multi_stream_shard_id="s1", parent_shard_ids=frozenset({"s0"}))
    parent = lease(f"{stream}:s0", stream_name=stream, multi_stream_shard_id="s0")
    other = lease(
        "123456789012:bills:1700000001:s0", stream_name="123456789012:bills:1700000001", multi_stream_shard_id="s0"
    )
    view = seen(snapshot(child, parent, other))
    assert of(view, child.lease_key).reason == f"waits for parent {stream}:s0"
    assert {name: summary.leases for name, summary in view.streams.items()} == {stream: 2, str(other.stream_name): 1}


def test_an_owner_is_silent_when_its_counter_stands_still_longer_than_a_lease_lasts() -> None:
    still = [snapshot(lease(), at_s=at_s, lock=LOCK) for at_s in (100.0, 110.0)]
    assert of(seen(*still)).state == "reading", "10 s are not more than failoverTimeMillis"
    view = seen(*still, snapshot(lease(), at_s=140.0))
    assert (of(view).state, of(view).reason) == ("silent", "owner silent for 40 s")
    assert problems(view) == ["leader_silent", "owner_silent"]
    assert view.workers[0].silent_leases == 1
    renewed = snapshot(
        lease(lease_counter=4), at_s=141.0, lock=msgspec.structs.replace(LOCK, record_version_number="v2")
    )
    assert not seen(*still, snapshot(lease(), at_s=140.0), renewed).is_wrong


def test_a_look_at_which_the_leases_could_not_be_read_makes_nobody_silent() -> None:
    later = [worker("a", ago_s=-100), worker("b", ago_s=-100)]
    failed = snapshot(at_s=200.0, workers=later, failures=(PartFailure(part="leases", error="no"),))
    view = seen(snapshot(lease()), failed)
    assert of(view).state == "reading" and problems(view) == ["not_read"]


def test_two_looks_tell_rates_ages_and_moves() -> None:
    first = snapshot(lease(), lease("s2"), at_s=100.0)
    second = snapshot(
        lease(lease_counter=13, owner="b"),
        lease("s2", lease_counter=5, checkpoint=ExtendedSequenceNumber("9")),
        at_s=104.0,
    )
    view = seen(first, second)
    assert (of(view).writes_per_s, of(view, "s2").writes_per_s) == (2.5, 0.5)
    assert (of(view).unchanged_s, of(view, "s2").unchanged_s) == (4.0, 0.0)
    assert view.summary.writes_per_s == 3.0 and view.observed_s == 4.0
    later = seen(first, second, msgspec.structs.replace(second, at_s=110.0))
    assert [(m.ago_s, m.lease_key, m.before, m.after) for m in later.moves] == [(6.0, "s1", "a", "b")]
    assert "-> 6 s ago: s1 from a to b" in painted(later, 80)


# What counts as wrong


def test_what_may_be_momentary_counts_when_it_was_so_in_every_look() -> None:
    unowned, owned = lease(owner=None), lease()
    assert problems(seen(snapshot(unowned))) == ["no_owner"], "one look cannot know"
    assert problems(seen(snapshot(unowned), snapshot(unowned, at_s=105.0))) == ["no_owner"]
    fresh = seen(snapshot(owned), snapshot(unowned, at_s=105.0))
    assert problems(fresh) == [] and notices(fresh) == ["no_owner"]
    lasting = [snapshot(owned), *(snapshot(unowned, at_s=at_s, lock=None) for at_s in (105.0, 136.0))]
    assert "no_owner" in problems(seen(*lasting))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"lock": None}, "no_leader"),
        ({"lock": msgspec.structs.replace(LOCK, is_released=True)}, "no_leader"),
        ({"lock": msgspec.structs.replace(LOCK, owner_name="gone")}, "leader_not_reporting"),
        ({"lock_in_lease_table": LOCK}, "split_brain"),
        ({"table": TableState(status="ACTIVE")}, "index_missing"),
        ({"workers": [worker("a"), worker("b", operating_range={"C": [80.0]})]}, "invalid_report"),
        ({"client_version": ClientVersionState(client_version="4", modified_by="", modified_ms=0)}, "unknown_version"),
        ({"table_migration": TableMigrationState(status="?", modified_by="", modified_ms=0)}, "unknown_version"),
        ({"failures": (PartFailure(part="Migration3.0", error="denied"),)}, "not_read"),
        ({"listing": LeaseListing(leases=(lease(),), undecodable=("x",))}, "broken_rows"),
        ({"listing": LeaseListing(leases=())}, "no_leases"),
        ({"listing": LeaseListing(leases=(lease(owner="gone"),))}, "owner_not_reporting"),
        ({"listing": LeaseListing(leases=(lease(hash_key_range=HALF[0]),))}, "hash_range_hole"),
        ({"listing": LeaseListing(leases=(lease(checkpoint=None), lease("s2")))}, "no_checkpoint"),
        ({"listing": LeaseListing(leases=(lease(owner_switches_since_checkpoint=5),))}, "many_owners"),
        ({"listing": LeaseListing(leases=(lease(child_shard_ids=frozenset({"s2"})),))}, "shard_end_not_checkpointed"),
        (
            {"listing": LeaseListing(leases=(lease("s0", checkpoint=AT_SHARD_END, child_shard_ids=CHILD), lease("z")))},
            "child_without_lease",
        ),
    ],
)  # fmt: skip
def test_one_problem_and_its_kind(fields: dict[str, object], kind: str) -> None:
    view = seen(snapshot(lease(), **fields))  # type: ignore[arg-type]
    assert problems(view) == [kind] and view.is_wrong


def test_no_lease_table_at_all() -> None:
    view = seen(FleetSnapshot(taken_s=WALL_S, at_s=100.0, has_coordinator_table=False))
    assert view.metadata.form == "none" and problems(view) == ["no_lease_table"]


@pytest.mark.parametrize(
    ("leases", "workers", "kind"),
    [
        ([lease(checkpoint_owner="b")], [], "handover"),
        ([lease(parent_shard_ids=frozenset({"s0"})), lease("s0")], [], "waits_for_parent"),
        ([lease(hash_key_range=None)], [], "hash_ranges_unknown"),
        ([lease()], [worker("a"), worker("old", ago_s=300)], "former_workers"),
        ([lease()], [worker("a", properties={"state": "TERMINATING"})], "leaving"),
        ([lease()], [worker("a", metric_stats={"C": [-1]}, operating_range={"C": [80]})], "cannot_measure"),
        ([lease()], [worker("a", metric_stats={"C": [81]}, operating_range={"C": [80]})], "overloaded"),
    ],
)
def test_worth_knowing_but_not_wrong(leases: list[Lease], workers: list[WorkerMetricStats], kind: str) -> None:
    view = seen(snapshot(*leases, workers=workers))
    assert (notices(view), problems(view)) == ([kind], [])


def test_a_handover_is_overdue_after_its_time_and_a_lease_duration() -> None:
    rows = [
        snapshot(
            lease(checkpoint_owner="b", lease_counter=n),
            at_s=100.0 + n,
            lock=msgspec.structs.replace(LOCK, record_version_number=str(n)),
        )
        for n in range(0, 45, 4)
    ]
    assert problems(seen(*rows[:-1])) == [], "40 s: 30 s for the handover, 10 s of the lease"
    assert problems(seen(*rows)) == ["handover_overdue"]
    assert of(seen(*rows)).reason == "handover to a, over 44 s ago"


def test_a_2x_fleet_has_no_leader_lock_no_index_and_no_reports() -> None:
    version = ClientVersionState(client_version=VERSION_2X, modified_by="", modified_ms=0)
    view = seen(snapshot(lease(), lock=None, client_version=version, table=TableState(status="ACTIVE"), workers=[]))
    assert (problems(view), notices(view)) == ([], ["migration_from_2x"])
    bare = FleetSnapshot(
        taken_s=WALL_S, at_s=1.0, has_coordinator_table=True, client_version=version,
        table=TableState(status="ACTIVE"), listing=LeaseListing(leases=(lease(),)),
    )  # fmt: skip
    assert problems(seen(bare)) == [] and of(seen(bare)).reason is None


# Migrations


def migrating(status: str, ago_s: float = 600) -> TableMigrationState:
    return TableMigrationState(
        status=f"TABLE_MIGRATION_STATUS_{status}", modified_by="a", modified_ms=int(WALL_S - ago_s) * 1000
    )


@pytest.mark.parametrize(
    ("status", "note"),
    [
        ("INIT", "phase 2 may be deployed in 50 m"),
        (
            "DEPLOYED",
            "phase 2, migrateAllEntitiesToLeaseTable = true, may be deployed; "
            "1 of 2 lease owners report in the lease table",
        ),
        ("PENDING", "1 of 2 lease owners report in the lease table; final in 23 h 50 m"),
    ],
)  # fmt: skip
def test_a_fleet_in_the_middle_of_the_move_into_one_table(status: str, note: str) -> None:
    listing = LeaseListing(
        leases=(lease("s1", "a", hash_key_range=HALF[0]), lease("s2", "b", hash_key_range=HALF[1])),
        entity_types=frozenset({"LEASE", "WORKER_METRIC_STATS"}),
        workers=WorkerListing(workers=(worker("b", ago_s=3),)),
    )
    view = seen(
        snapshot(listing=listing, table_migration=migrating(status), workers=[worker("a"), worker("b", ago_s=400)])
    )
    assert view.metadata.form == "three_tables"
    assert view.metadata.migration_note == note
    assert [(w.worker_id, w.standing, w.reports_to) for w in view.workers] == [
        ("a", "active", "worker_metrics_table"),
        ("b", "active", "lease_table"),
    ]
    assert (problems(view), notices(view)) == ([], ["table_migration"])


def test_after_the_move_only_the_lock_in_the_lease_table_counts() -> None:
    old = msgspec.structs.replace(LOCK, owner_name="before")
    view = seen(snapshot(lease(), lock=old, lock_in_lease_table=LOCK, table_migration=migrating("COMPLETE")))
    assert view.metadata.form == "single_table"
    assert view.leader is not None and (view.leader.worker_id, view.leader.place) == ("a", "lease_table")
    assert view.findings == ()


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"has_coordinator_table": False, "lock": None, "lock_in_lease_table": LOCK}, "single_table"),
        ({"lock": None, "lock_in_lease_table": LOCK}, "single_table"),
        ({"has_coordinator_table": False, "lock": None}, "unknown"),
        ({"has_coordinator_table": None, "lock": None}, "unknown"),
    ],
)
def test_the_form_of_the_tables(fields: dict[str, object], form: str) -> None:
    assert seen(snapshot(lease(), **fields)).metadata.form == form  # type: ignore[arg-type]


def test_a_fleet_that_may_still_be_rolled_back_is_noticed_and_3x_is_not() -> None:
    for version, expected in ((VERSION_3X_WITH_ROLLBACK, ["migration_from_2x"]), (VERSION_3X, [])):
        item = ClientVersionState(client_version=version, modified_by="", modified_ms=0)
        assert notices(seen(snapshot(lease(), client_version=item))) == expected


# Lag


def test_lag_is_wrong_only_above_what_was_asked_for_or_near_the_retention() -> None:
    lag = ShardLag(behind_ms=70_000, record_ms=int(WALL_S * 1000) - 90_000, asked_s=WALL_S)
    one = snapshot(lease(), lags={"s1": lag}, retention_s={None: 86400.0})
    view = seen(one)
    assert (of(view).lag_ms, of(view).checkpoint_age_s, problems(view)) == (70_000, 90.0, [])
    assert (view.summary.worst_lag_ms, view.summary.worst_lag_lease, view.summary.lag_known) == (70_000, "s1", 1)
    assert problems(seen(one, max_lag_s=69)) == ["lag"] and problems(seen(one, max_lag_s=70)) == []
    assert problems(seen(msgspec.structs.replace(one, retention_s={None: 80.0}))) == ["retention"]


def test_the_growth_of_the_lag_is_between_answers_and_survives_looks_that_do_not_ask() -> None:
    def at(at_s: float, behind_ms: int | None) -> FleetSnapshot:
        lags = {} if behind_ms is None else {"s1": ShardLag(behind_ms=behind_ms, record_ms=None, asked_s=at_s)}
        return snapshot(
            lease(lease_counter=int(at_s)),
            at_s=at_s,
            lags=lags,
            lock=msgspec.structs.replace(LOCK, record_version_number=str(at_s)),
        )

    view = seen(at(100, 9000), at(102, None), at(110, 4000), at(112, None))
    assert (of(view).lag_ms, of(view).lag_ms_per_s) == (4000, -500.0)


# What is shown


def test_a_checkpoint_that_stands_while_records_wait_is_said_and_is_no_problem() -> None:
    def looked(behind_ms: int | None, checkpoint: str = "7") -> FleetView:
        lag = ShardLag(behind_ms=behind_ms, record_ms=None, asked_s=WALL_S)
        rows = [
            snapshot(
                lease(lease_counter=at, checkpoint=ExtendedSequenceNumber(of)),
                at_s=at,
                lags={"s1": lag},
                lock=msgspec.structs.replace(LOCK, record_version_number=of + str(at)),
            )
            for at, of in ((0, "7"), (35, checkpoint))
        ]
        return seen(*rows)

    assert of(looked(2000)).reason == "renewed, but its checkpoint stands for 35 s and records wait"
    assert (problems(looked(2000)), notices(looked(2000))) == ([], ["no_progress"])
    for fine in (looked(0), looked(None), looked(2000, checkpoint="8")):
        assert (of(fine).reason, notices(fine)) == (None, [])


def big_fleet(leases: int, workers: int) -> FleetSnapshot:
    step = (MAX_HASH_KEY + 1) // leases
    rows = tuple(
        lease(
            f"shardId-{n:012d}",
            None if n == 17 else f"w{n % workers}",
            hash_key_range=HashKeyRange(n * step, (n + 1) * step - 1 if n < leases - 1 else MAX_HASH_KEY),
            throughput_kbps=float(n),
            checkpoint=ExtendedSequenceNumber(str(49680427895213513149786196209756209032568561012360000000 + n)),
        )
        for n in range(leases)
    )
    stats = [worker(f"w{n}", metric_stats={"C": [10.0] * 10}, operating_range={"C": [80.0]}) for n in range(workers)]
    return snapshot(*rows, workers=stats, lock=msgspec.structs.replace(LOCK, owner_name="w0"))


def test_ten_thousand_leases_and_five_hundred_workers_are_viewed_within_a_second() -> None:
    fleet = big_fleet(10_000, 500)
    started_s = time.process_time()
    view = seen(fleet)
    used_s = time.process_time() - started_s
    assert len(view.leases) == 10_000 and len(view.workers) == 500 and problems(view) == ["no_owner"]
    assert used_s < 1, "0.1 s where this was written"


def painted(view: FleetView, width: int, selection: Selection | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(page(view, selection or Selection(), width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80])
def test_of_ten_thousand_leases_what_matters_fits_on_a_screen(width: int) -> None:
    lines = painted(seen(big_fleet(10_000, 500)), width)
    assert lines[0].startswith(" 1 PROBLEM ")
    assert len(lines) < 30 and max(map(len, lines)) <= width
    assert any("17" in line and "no owner" in line for line in lines)
    assert "… 9,999 leases more, all reading or ended; --all shows them" in lines
    assert "… 495 workers more; --all shows them" in lines


def test_filters_order_and_all() -> None:
    view = seen(big_fleet(100, 10))
    assert [row.shard_id[-2:] for row in interesting(view, Selection())] == ["17"]
    assert [row.shard_id[-2:] for row in interesting(view, Selection(sort="throughput"))][:3] == ["99", "98", "97"]
    assert len(interesting(view, Selection(all=True))) == 100
    assert len(select(view, Selection(workers=("w3",)))) == 10
    assert [row.shard_id[-2:] for row in select(view, Selection(workers=("w3",), shards=("013", "043")))] == [
        "13",
        "43",
    ]
    assert [row.shard_id[-2:] for row in select(view, Selection(states=("no_owner",)))] == ["17"]
    assert len(select(view, Selection(streams=("ord",)))) == 100 and not select(view, Selection(streams=("x",)))
    assert "no lease matches" in painted(view, 80, Selection(streams=("x",)))


def test_a_worker_that_is_about_to_get_a_lease_is_one_of_its_workers() -> None:
    view = seen(snapshot(lease(owner="next", checkpoint_owner="b")))
    assert len(select(view, Selection(workers=("next",)))) == 1


def test_what_others_wrote_into_the_table_is_text_and_no_markup() -> None:
    view = seen(snapshot(lease("[red]s", "[bold]a"), workers=[worker("[bold]a"), worker("a")]))
    text = "\n".join(painted(view, 140))
    assert "[red]s" in text and "[bold]a" in text


def test_names_are_shortened_where_there_is_no_room() -> None:
    assert shard_name("shardId-000000000012", 80) == "12" and shard_name("shardId-000000000012", 140)[:5] == "shard"
    assert shard_name("123456789012:orders:1700000000:shardId-000000000000", 80) == "orders:0"
    assert worker_name("ip-10-0-0-1.eu-west-1.compute.internal:c386bbc4", 80) == "ip-10-0-…:c386bbc4"
    assert worker_name("short", 80) == "short" and worker_name(None, 80) == "-"


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 m"), (185, "3 m 5 s"), (7260, "2 h 1 m"), (187200, "2 d 4 h"), (-3, "0 s")],
)
def test_durations_for_people(duration_s: float, text: str) -> None:
    assert seconds(duration_s) == text
