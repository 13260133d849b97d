"""The registry: statistics computed by hand, scopes that come and go, threads, levels and dimensions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Literal

import pytest

from kcl_host.config.settings import MetricsSettings
from kcl_host.model.metric import StatisticSet
from kcl_host.model.records import Batch
from kcl_host.observe.catalogue import CATALOGUE
from kcl_host.observe.metrics import Registry, Scope, Selection, Total
from kcl_host.observe.published import Published
from tests.fakes.clock import FakeClock

PROCESS = (("Operation", "ProcessTask"), ("ShardId", "shard-0"))


def shard(registry: Registry, shard_id: str = "shard-0") -> Scope:
    return registry.scope({"ShardId": shard_id})


def drained(registry: Registry) -> dict[tuple[str, str, str], StatisticSet]:
    return {
        (metric.operation, metric.name, dict(dimensions).get("ShardId", "")): statistics
        for metric, dimensions, statistics in registry.drain()
    }


def total_of(registry: Registry, name: str) -> Total:
    (found,) = [total for total in registry.totals() if total.metric.name == name]
    return found


# What is added up


def test_points_become_sum_minimum_maximum_and_count() -> None:
    registry = Registry("w")
    scope = shard(registry)
    for value in (7.0, 0.0, 30.0, 3.0):
        scope.add("ProcessTask", RecordsProcessed=value)
    assert drained(registry) == {
        ("ProcessTask", "RecordsProcessed", "shard-0"): StatisticSet(minimum=0, maximum=30, sum=40, count=4)
    }


def test_a_drain_begins_anew_and_the_totals_go_on() -> None:
    registry = Registry("w")
    scope = shard(registry)
    scope.add("ProcessTask", RecordsProcessed=5)
    list(registry.drain())
    assert drained(registry) == {}, "a series without points is not published"
    scope.add("ProcessTask", RecordsProcessed=2)
    assert drained(registry)["ProcessTask", "RecordsProcessed", "shard-0"] == StatisticSet(2, 2, 2, 1)
    scope.add("ProcessTask", RecordsProcessed=1)
    total = total_of(registry, "RecordsProcessed")
    assert (total.sum, total.count, total.last) == (8, 3, 1), "before the drains, between them, and after"


def test_many_points_of_which_the_sum_is_known_count_as_their_average() -> None:
    registry = Registry("w")
    scope = shard(registry)
    with scope.lock:
        series = scope.series("ProcessTask", "DataBytesProcessed")
        series.add(0)
        series.add_many(1000, 3)
    taken = drained(registry)["ProcessTask", "DataBytesProcessed", "shard-0"]
    assert (taken.minimum, taken.sum, taken.count) == (0, 1000, 4)
    assert taken.maximum == pytest.approx(333.33, abs=0.01)


def test_negative_and_fractional_points() -> None:
    registry = Registry("w")
    for value in (-1.5, 0.25):
        registry.worker.add("ApplicationTracker", MillisBehindLatest=value)
    assert drained(registry)["ApplicationTracker", "MillisBehindLatest", ""] == StatisticSet(-1.5, 0.25, -1.25, 2)


def test_merging_is_what_one_set_of_all_points_would_be() -> None:
    merged = StatisticSet(2, 9, 11, 2).merged(StatisticSet(-4, 3, 5, 7))
    assert merged == StatisticSet(minimum=-4, maximum=9, sum=16, count=9)


def test_a_metric_that_is_not_in_the_catalogue_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Registry("w").worker.add("ProcessTask", RecordsProcesed=1)


# Dimensions


def test_a_metric_gets_the_dimensions_that_it_has_and_that_are_known() -> None:
    registry = Registry("worker-1")
    several = registry.scope({"ShardId": "shard-0", "StreamId": "123:orders:1"})
    several.add("ProcessTask", RecordsProcessed=1, ExpiredIterator=1)
    several.add("ApplicationTracker", MillisBehindLatest=1)
    shard(registry).add("ProcessTask", RecordsProcessed=1, ExpiredIterator=1)
    registry.worker.add("RenewAllLeases", LostLeases=0)
    registry.worker.add("LeaseAssignmentManager", TotalLeases=0)
    found = {(metric.name, dimensions) for metric, dimensions, _ in registry.drain()}
    process, stream, shard_0 = ("Operation", "ProcessTask"), ("StreamId", "123:orders:1"), ("ShardId", "shard-0")
    assert found == {
        ("RecordsProcessed", (process, stream, shard_0)),
        ("ExpiredIterator", (process, stream)),
        ("MillisBehindLatest", (("Operation", "ApplicationTracker"),)),
        ("RecordsProcessed", (process, shard_0)),
        ("ExpiredIterator", (process,)),
        ("LostLeases", (("Operation", "RenewAllLeases"), ("WorkerIdentifier", "worker-1"))),
        ("TotalLeases", (("Operation", "LeaseAssignmentManager"),)),
    }


# Scopes that end


def test_what_an_ended_scope_has_is_drained_once_and_its_totals_are_gone() -> None:
    registry = Registry("w")
    scope = shard(registry)
    scope.add("ProcessTask", RecordsProcessed=3)
    registry.end(scope)
    registry.end(scope)
    again = shard(registry)
    again.add("ProcessTask", RecordsProcessed=4)
    registry.end(again)
    assert registry.totals() == []
    assert drained(registry) == {("ProcessTask", "RecordsProcessed", "shard-0"): StatisticSet(3, 4, 7, 2)}
    assert drained(registry) == {}


def test_leases_that_come_and_go_with_nobody_to_drain_are_bounded_and_counted() -> None:
    registry = Registry("w", max_waiting=10)
    for number in range(1000):
        scope = shard(registry, f"shard-{number}")
        scope.add("ProcessTask", RecordsProcessed=1)
        registry.end(scope)
    late = shard(registry, "shard-3")
    late.add("ProcessTask", RecordsProcessed=5)
    registry.end(late)
    assert total_of(registry, "Shed").sum == 990
    waiting = {key[2]: statistics for key, statistics in drained(registry).items() if key[1] == "RecordsProcessed"}
    assert list(waiting) == [f"shard-{number}" for number in range(10)], "the new ones are dropped, as in Java"
    assert waiting["shard-3"].sum == 6, "and what waits already goes on"
    assert repr(registry) == "<Registry 1 scopes, 0 metrics of ended ones>"


# Threads


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Between almost all instructions, where CPython would wait for 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switch_often")
def test_no_point_is_lost_or_counted_twice_with_many_threads() -> None:
    registry = Registry("w")
    scope = shard(registry)
    found: list[StatisticSet] = []
    stop = threading.Event()

    def report() -> None:
        for _ in range(2000):
            scope.add("ProcessTask", RecordsProcessed=1)
            registry.worker.add("RenewAllLeases", LostLeases=2)
            mine = shard(registry)
            mine.add("ProcessTask", RecordsProcessed=3)
            registry.end(mine)

    def drain() -> None:
        while not stop.is_set():
            found.extend(s for m, _, s in registry.drain() if m.name == "RecordsProcessed")

    reporters = [threading.Thread(target=report) for _ in range(6)]
    drainer = threading.Thread(target=drain)
    for thread in (*reporters, drainer):
        thread.start()
    for thread in reporters:
        thread.join()
    stop.set()
    drainer.join()
    found.extend(s for m, _, s in registry.drain() if m.name == "RecordsProcessed")
    assert (sum(s.sum for s in found), sum(s.count for s in found)) == (6 * 2000 * 4, 6 * 2000 * 2)
    assert (total_of(registry, "RecordsProcessed").sum, total_of(registry, "LostLeases").sum) == (12000, 24000)


class Held(Exception):
    """The lock is somebody else's."""


class HeldLock:
    def __enter__(self) -> None:
        raise Held

    def __exit__(self, *args: object) -> None: ...


def test_whoever_reads_or_reports_takes_the_lock_of_the_scope() -> None:
    """CPython switches so rarely inside of a method that threads alone would not show it."""
    registry = Registry("w")
    shard = Published(registry, FakeClock()).of_shard("shard-0", None)
    (scope,) = [scope for scope in registry.scopes() if scope is not registry.worker]
    scope.lock = HeldLock()  # type: ignore[assignment]
    for touch in (scope.take, scope.totals, registry.totals, shard.iterator_expired, lambda: list(registry.drain())):
        with pytest.raises(Held):
            touch()
    empty = Batch(records=[], millis_behind_latest=1)
    for begin in (lambda: shard.delivering(1, 1), shard.getting_records, lambda: shard.task(empty)):
        with pytest.raises(Held), begin():
            pass


# Fleet


def test_the_fleet_is_what_the_leader_saw_last() -> None:
    registry = Registry("w")
    registry.note_fleet({"a": 3, "b": 1})
    registry.note_fleet({"b": 4})
    assert [(dict(t.dimensions)["WorkerIdentifier"], t.last) for t in registry.totals()] == [("b", 4)]
    assert list(registry.drain()) == [], "it is for Prometheus only"


# Levels and dimensions


def selected(settings: MetricsSettings) -> set[tuple[str, str]]:
    selection = Selection(settings)
    return {(metric.operation, metric.name) for metric in CATALOGUE if selection.wants(metric)}


@pytest.mark.parametrize("level", ["NONE", "SUMMARY", "DETAILED"])
def test_the_level_decides(level: Literal["NONE", "SUMMARY", "DETAILED"]) -> None:
    kept: dict[str, set[str]] = {"NONE": set(), "SUMMARY": {"SUMMARY"}, "DETAILED": {"SUMMARY", "DETAILED"}}
    of_kcl = [metric for metric in CATALOGUE if not metric.ours]
    expected = {(m.operation, m.name) for m in of_kcl if m.level in kept[level]}
    assert selected(MetricsSettings(level=level)) == expected


def test_by_default_all_of_kcl_is_published_and_nothing_of_ours() -> None:
    assert selected(MetricsSettings()) == {(m.operation, m.name) for m in CATALOGUE if not m.ours}


@pytest.mark.parametrize(
    ("enabled", "published"),
    [
        (("ALL",), {("Operation", "ShardId"): [1, 2], ("Operation", "WorkerIdentifier"): [4]}),
        (("ShardId", "ALL"), {("Operation", "ShardId"): [1, 2], ("Operation", "WorkerIdentifier"): [4]}),
        (("Operation", "ShardId"), {("Operation", "ShardId"): [1, 2], ("Operation",): [4]}),
        (("Operation",), {("Operation",): [3, 4]}),
        (("ShardId",), {("ShardId",): [1, 2], (): [4]}),
        ((), {(): [7]}),
        (("shardid",), {(): [7]}),
    ],
    ids=str,
)
def test_dimensions_that_are_left_out_merge_what_differs_in_them(
    enabled: tuple[str, ...], published: dict[tuple[str, ...], list[float]]
) -> None:
    registry = Registry("w")
    shard(registry, "shard-0").add("ProcessTask", Success=1)
    shard(registry, "shard-1").add("ProcessTask", Success=2)
    registry.worker.add("RenewAllLeases", Success=4)
    settings = MetricsSettings(enabled_dimensions=enabled)
    found: dict[tuple[str, ...], list[float]] = {}
    for portion in Selection(settings).data(registry.drain(), 100):
        for datum in portion:
            found.setdefault(tuple(name for name, _ in datum.dimensions), []).append(datum.statistics.sum)
    assert {names: sorted(sums) for names, sums in found.items()} == published


def test_portions_are_full_and_lose_nothing() -> None:
    registry = Registry("w")
    for number in range(25):
        shard(registry, f"shard-{number}").add("ProcessTask", Success=1)
    portions = list(Selection(MetricsSettings()).data(registry.drain(), 10))
    assert [len(portion) for portion in portions] == [10, 10, 5]
    assert len({datum.dimensions for portion in portions for datum in portion}) == 25


def test_each_point_is_told_to_a_recorder_at_once() -> None:
    seen: list[tuple[str, dict[str, str], float]] = []
    registry = Registry(
        "w",
        new_recorder=lambda metric, dimensions: lambda total: seen.append((metric.name, dict(dimensions), total)),
    )
    scope = shard(registry)
    scope.add("ProcessTask", RecordsProcessed=3)
    with scope.lock:
        scope.series("ProcessTask", "DataBytesProcessed").add_many(100, 4)
    assert seen == [("RecordsProcessed", dict(PROCESS), 3), ("DataBytesProcessed", dict(PROCESS), 100)]
