"""Lines in the embedded metric format."""

from __future__ import annotations

import json
import threading

from kcl_host.config.settings import MetricsSettings
from kcl_host.model.metric import MetricDatum, StatisticSet
from kcl_host.observe.cloudwatch import MetricsPublisher
from kcl_host.observe.emf import EmfLines, emf_lines
from kcl_host.observe.metrics import Registry
from tests.fakes.clock import FakeClock


def test_metrics_of_equal_dimensions_share_a_line() -> None:
    clock, registry = FakeClock(wall_s=1_800_000_000.0), Registry("w")
    written: list[bytes] = []
    sink = EmfLines(written.append, "orders-app", clock)
    publisher = MetricsPublisher(registry, sink, MetricsSettings(), clock, threading.Lock())
    scope = registry.scope({"ShardId": "shard-0"})
    scope.add("ProcessTask", RecordsProcessed=3, Success=1)
    scope.add("ProcessTask", RecordsProcessed=0)
    registry.worker.add("LeaderDecider", **{"LeaderDecider:IsLeader": 1})
    publisher.run_once()
    assert [line.endswith(b"\n") and line.count(b"\n") == 1 for line in written] == [True, True]
    of_worker, of_shard = (json.loads(line) for line in written)
    assert of_shard == {
        "_aws": {
            "Timestamp": 1_800_000_000_000,
            "CloudWatchMetrics": [
                {
                    "Namespace": "orders-app",
                    "Dimensions": [["Operation", "ShardId"]],
                    "Metrics": [
                        {"Name": "RecordsProcessed", "Unit": "Count"},
                        {"Name": "Success", "Unit": "Count"},
                    ],
                }
            ],
        },
        "Operation": "ProcessTask",
        "ShardId": "shard-0",
        "RecordsProcessed": {"Max": 3.0, "Min": 0.0, "Count": 2, "Sum": 3.0},
        "Success": {"Max": 1.0, "Min": 1.0, "Count": 1, "Sum": 1.0},
    }
    assert of_worker["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["Operation"]]


def test_a_line_names_at_most_a_hundred_metrics_and_each_once() -> None:
    data = [MetricDatum(f"m{number}", "Count", (), StatisticSet(1, 1, 1, 1)) for number in range(250)]
    lines = [json.loads(line) for line in emf_lines(data, "app", 0)]
    named = [[m["Name"] for m in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]] for line in lines]
    assert [len(names) for names in named] == [100, 100, 50]
    assert sorted(name for names in named for name in names) == sorted(datum.name for datum in data)
    assert lines[0]["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [[]]
