"""What a simulated fleet publishes to a CloudWatch: the metrics of KCL, with its dimensions, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from kcl_host.config.settings import MetricsSettings
from kcl_host.observe.cloudwatch import MetricsPublisher
from kcl_host.observe.metrics import Registry
from kcl_host.observe.published import Published
from kcl_host.runtime.metrics import Metrics
from kcl_host.runtime.outside import Outside
from tests.fakes.clock import FakeClock
from tests.fakes.cloudwatch import FakeCloudWatch
from tests.simulation.run import Setup, simulate
from tests.unit.test_metrics_catalogue import rows_of_spec

pytestmark = pytest.mark.simulation

NOT_ALWAYS = {
    # Only after something rare, or with another initial position.
    "ExpiredIterator", "MissingMergeParent", "MissingMergeParentLease", "WriteFault", "ReadFault", "OwnerMismatch",
    "GetLease:Error", "InMemoryMetricStatsReporterFailure", "LeaseDeserializationFailureCount", "LeaseSpillover",
    "NumWorkersWithFailingWorkerMetric", "NumWorkersWithInvalidEntry", "ForceLeaderRelease", "CompletionFault",
    "DeleteFault", "BatchCount", "CreateLease_AT_TIMESTAMP.Success", "CreateLease_LATEST.Success",
    "CreateLease_SEQUENCE_NUMBER.Success", "CreateLease_SHARD_END.Success",
}  # fmt: skip


def test_a_fleet_publishes_what_java_workers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cloudwatch = FakeCloudWatch(FakeClock())

    def outside(**given: Any) -> Outside:
        registry = Registry("worker-1")
        threads, clock = given["threads"], given["clock"]
        publisher = MetricsPublisher(registry, cloudwatch, MetricsSettings(), clock, threads.lock())
        return Outside(
            **given,
            metrics=Metrics(instruments=Published(registry, clock), publish=publisher.run_once, flush=publisher.flush),
        )

    monkeypatch.setattr("tests.simulation.fleet.Outside", outside)
    simulate(Setup(seed=0, workers=2, shards=6, hours=0.15, every_s=20.0))
    published = {
        (dict(dimensions)["Operation"], name, frozenset(key for key, _ in dimensions) - {"Operation"})
        for name, dimensions in cloudwatch.published
    }
    of_java = {(row[0], row[1], row[4] - {"StreamId"}): row[5] for row in rows_of_spec()}
    assert sorted(published - of_java.keys(), key=str) == []
    missing = {
        key[:2]
        for key, seen in of_java.items()
        if seen in ("always", "leader") and key not in published and key[1] not in NOT_ALWAYS
        if key[0] != "TableMigrationAsyncMove"
    }
    assert sorted(missing) == []
