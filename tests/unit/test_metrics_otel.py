"""OpenTelemetry: KCL's names and kinds of instruments, and what the SDK makes of the points."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kcl_host.config.settings import MetricsSettings
from kcl_host.errors import ConfigurationError
from kcl_host.observe.catalogue import CATALOGUE
from kcl_host.observe.metrics import Registry
from kcl_host.observe.otel import OtelRecorders, connect, otel_name


class Meter:
    """Satisfies what is used of opentelemetry.metrics.Meter."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, str]] = {}
        self.points: list[tuple[str, float, dict[str, str]]] = []

    def _new(self, kind: str, name: str, unit: str) -> Any:
        assert name not in self.made, "an instrument is made once"
        self.made[name] = (kind, unit)

        def report(value: float, attributes: dict[str, str]) -> None:
            self.points.append((name, value, attributes))

        return type("Instrument", (), {"set": report, "add": report, "record": report})

    def create_gauge(self, name: str, unit: str, description: str) -> Any:
        return self._new("gauge", name, unit)

    def create_counter(self, name: str, unit: str, description: str) -> Any:
        return self._new("counter", name, unit)

    def create_histogram(self, name: str, unit: str, description: str) -> Any:
        return self._new("histogram", name, unit)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MillisBehindLatest", "consumer.lag.duration"),
        ("DataBytesProcessed", "records.size"),
        ("ActiveStreams.Count", "streams.active"),
        ("NumWorkersWithFailingWorkerMetric", "workers.failing_worker_metric"),
        ("RecordsProcessed", "records_processed"),
        ("KinesisDataFetcher.getRecords.Time", "kinesis_data_fetcher.get_records.duration"),
        ("Time", "time"),
        ("Success", "success"),
        ("GetLease:Error", "get_lease.error"),
        ("CreateLease_TRIM_HORIZON.Success", "create_lease_trim_horizon.success"),
        ("LeaderDecider:IsLeader", "leader_decider.is_leader"),
    ],
)
def test_names_are_those_of_kcl(name: str, expected: str) -> None:
    assert otel_name(name) == f"aws.kinesis.client.{expected}"


def test_every_name_is_one_that_opentelemetry_takes() -> None:
    for metric in CATALOGUE:
        name = otel_name(metric.name)
        assert name[0].isalpha() and len(name) <= 255
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-/"), name


def test_points_go_out_as_they_come_with_attributes_and_kinds_of_kcl() -> None:
    meter = Meter()
    registry = Registry("worker-1", new_recorder=OtelRecorders(meter, MetricsSettings()))
    for shard_id in ("shard-0", "shard-1"):
        scope = registry.scope({"ShardId": shard_id, "StreamId": "1:orders:2"})
        scope.add("ProcessTask", RecordsProcessed=3, MillisBehindLatest=50)
    registry.worker.add("RenewAllLeases", CurrentLeases=4)
    registry.worker.add("Metrics", Shed=1)
    prefix = "aws.kinesis.client."
    assert meter.made == {
        f"{prefix}records_processed": ("counter", "1"),
        f"{prefix}consumer.lag.duration": ("histogram", "ms"),
        f"{prefix}current_leases": ("gauge", "1"),
        f"{prefix}shed": ("counter", "1"),
    }
    of_shard = {
        "aws.kinesis.operation": "ProcessTask",
        "aws.kinesis.stream_name": "1:orders:2",
        "aws.kinesis.shard.id": "shard-0",
    }
    assert meter.points[0] == (f"{prefix}records_processed", 3, of_shard)
    of_worker = {"aws.kinesis.operation": "RenewAllLeases", "aws.kinesis.consumer.name": "worker-1"}
    assert (f"{prefix}current_leases", 4, of_worker) in meter.points


def test_level_and_dimensions_are_filtered() -> None:
    meter = Meter()
    settings = MetricsSettings(level="SUMMARY", enabled_dimensions=("ShardId",))
    registry = Registry("worker-1", new_recorder=OtelRecorders(meter, settings))
    registry.scope({"ShardId": "shard-0"}).add("ProcessTask", RecordsProcessed=1, **{"UpdateLease.Success": 1})
    assert meter.points == [("aws.kinesis.client.records_processed", 1, {"aws.kinesis.shard.id": "shard-0"})]


def test_without_the_packages_it_is_said_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigurationError, match=r"kcl-host\[otel\]"):
        connect(MetricsSettings())


def test_the_sdk_takes_the_points() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    registry = Registry("w", new_recorder=OtelRecorders(provider.get_meter("test"), MetricsSettings()))
    registry.worker.add("ApplicationTracker", MillisBehindLatest=100)
    registry.worker.add("ApplicationTracker", MillisBehindLatest=300)
    registry.worker.add("RenewAllLeases", LostLeases=2, CurrentLeases=7)
    data = reader.get_metrics_data()
    (of_meter,) = data.resource_metrics[0].scope_metrics
    found = {metric.name.removeprefix("aws.kinesis.client."): metric.data.data_points[0] for metric in of_meter.metrics}
    assert (found["consumer.lag.duration"].sum, found["consumer.lag.duration"].count) == (400, 2)
    assert (found["lost_leases"].value, found["current_leases"].value) == (2, 7)
    provider.shutdown()
