"""The estimate against what real workers send in simulated time, and its arithmetic."""

from __future__ import annotations

import io

import click
import msgspec
import pytest
from rich.console import Console

from kcl_host.cli.cost_table import cost_page, prices_of
from kcl_host.config.settings import MetricsSettings, Settings
from kcl_host.decisions.fleet_cost import KINDS, Cost, Prices, estimate_cost
from kcl_host.decisions.fleet_report import FleetView, MetadataView, Summary
from tests.bench.dynamodb import measure, settings_at_rest
from tests.metric_kinds import read_golden
from tests.unit.test_fleet_view import SETTINGS, lease, seen, snapshot, worker


def fleet(leases: int, workers: int, writes_per_s: float | None = None) -> FleetView:
    rows = [lease(f"shardId-{n:012d}", owner=f"w{n % workers}", throughput_kbps=1024.0) for n in range(leases)]
    view = seen(snapshot(*rows, workers=[worker(f"w{n}") for n in range(workers)]))
    return msgspec.structs.replace(view, summary=msgspec.structs.replace(view.summary, writes_per_s=writes_per_s))


def units(cost: Cost) -> tuple[float, float]:
    return sum(line.read_units for line in cost.lines), sum(line.write_units for line in cost.lines)


@pytest.mark.parametrize(("leases", "workers"), [(4, 1), (4, 3), pytest.param(60, 2, marks=pytest.mark.stress)])
def test_units_are_those_that_workers_send(leases: int, workers: int) -> None:
    sent = measure(leases, workers, hours=1 / 12).our_units
    read, write = units(estimate_cost(fleet(leases, workers), settings_at_rest(leases, workers), Prices()))
    assert write == pytest.approx(sent.write, rel=0.03)
    assert read == pytest.approx(sent.read, rel=0.12)


def test_leases_that_were_looked_at_twice_are_measured() -> None:
    cost = estimate_cost(fleet(10, 1, writes_per_s=5.0), SETTINGS, Prices(write_million=1.0, read_million=0.0))
    (measured,) = (line for line in cost.lines if line.is_measured)
    assert (measured.write_units, measured.usd_a_day) == (18_000, pytest.approx(0.432))
    assert cost.missing == ()
    assert "checkpoints" in estimate_cost(fleet(10, 1), SETTINGS, Prices()).missing[0]


def of_service(cost: Cost, service: str) -> float:
    return sum(line.usd_a_day for line in cost.lines if line.service == service)


def test_fan_out_costs_by_shard_and_by_volume() -> None:
    by_fan_out = msgspec.structs.replace(SETTINGS, retrieval=msgspec.structs.replace(SETTINGS.retrieval, mode="FANOUT"))
    prices = Prices(fan_out_shard_hour=1.0, fan_out_gb=1.0)
    # A MiB a second of each: 84.375 GiB a day.
    assert of_service(estimate_cost(fleet(2, 1), by_fan_out, prices), "Kinesis") == pytest.approx(2 * 24 + 2 * 84.375)
    polling = msgspec.structs.replace(SETTINGS, retrieval=msgspec.structs.replace(SETTINGS.retrieval, mode="POLLING"))
    assert of_service(estimate_cost(fleet(2, 1), polling, prices), "Kinesis") == 0


def with_metrics(**fields: object) -> Settings:
    return msgspec.structs.replace(SETTINGS, metrics=MetricsSettings(**fields))  # type: ignore[arg-type]


def test_metrics_are_billed_by_their_number_and_by_requests() -> None:
    prices = Prices(metric_month=730 / 24, metric_requests_thousand=0.0)
    of_shard, of_worker, of_fleet = KINDS["DETAILED"]
    assert of_service(estimate_cost(fleet(10, 2), with_metrics(), prices), "CloudWatch") == pytest.approx(
        10 * of_shard + 2 * of_worker + of_fleet
    )
    few = with_metrics(enabled_dimensions=("Operation",), level="SUMMARY")
    assert of_service(estimate_cost(fleet(10, 2), few, prices), "CloudWatch") == pytest.approx(sum(KINDS["SUMMARY"]))
    requests = estimate_cost(fleet(10, 2), with_metrics(), Prices(metric_month=0.0, metric_requests_thousand=1.0))
    assert of_service(requests, "CloudWatch") == pytest.approx(2 * 8640 / 1000)
    for none in (with_metrics(level="NONE"), with_metrics(backend="OTEL")):
        assert of_service(estimate_cost(fleet(10, 2), none, prices), "CloudWatch") == 0


@pytest.mark.parametrize("level", ["DETAILED", "SUMMARY"])
def test_the_number_of_metrics_is_what_was_published(level: str) -> None:
    golden = read_golden("detailed")
    if level == "SUMMARY":  # That run left a dimension out.
        names = {(kind.operation, kind.name) for kind in read_golden("summary")}
        golden = {kind for kind in golden if (kind.operation, kind.name) in names}
    counts = [sum(name in kind.dimensions for kind in golden) for name in ("ShardId", "WorkerIdentifier")]
    assert (*counts, len(golden) - sum(counts)) == KINDS[level]


def test_nobody_at_work_costs_nothing() -> None:
    empty = FleetView(
        application="a",
        taken_s=0,
        looks=1,
        observed_s=0,
        metadata=MetadataView(
            form="none", lease_table=None, index=None, client_version=None, table_migration=None, migration_note=None
        ),
        leader=None,
        summary=Summary(
            leases=0,
            by_state={},
            throughput_kbps=0,
            writes_per_s=None,
            lag_known=0,
            worst_lag_ms=None,
            worst_lag_lease=None,
        ),
        streams={},
        workers=(),
        leases=(),
        moves=(),
    )
    cost = estimate_cost(empty, SETTINGS, Prices())
    assert (cost.lines, cost.usd_a_day, cost.missing) == ((), 0.0, ("no worker is active",))


def test_prices_by_name_and_the_page() -> None:
    prices = prices_of(["write_million=1.25", "fan_out_gb=0"])
    assert prices == Prices(write_million=1.25, fan_out_gb=0.0)
    for wrong in ("write_million", "write_million=much", "writes=1", "read_million=-1", "read_million=nan"):
        with pytest.raises(click.BadParameter, match=wrong.partition("=")[0]):
            prices_of([wrong])
    console = Console(width=140, file=io.StringIO())
    console.print(cost_page(estimate_cost(fleet(10, 2), SETTINGS, prices)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "DynamoDB: renewals of leases" in text and "together" in text and "write_million 1.25" in text
    assert "Not in it: checkpoints" in text
