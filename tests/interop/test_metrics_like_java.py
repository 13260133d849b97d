"""A Java daemon and kcl-host do the same work on streams of their own; what each publishes to CloudWatch is compared.

The work: a new application on four shards, records, checkpoints, a split, the parent's end, the start of its children,
a second worker that gets its share and gives it back, an audit, the stop. Compared is what an alarm names: namespace,
metric, unit and the names of the dimensions. What Java publishes here is kept in
tests/data/golden/java-kcl-3.5.1-metrics.json, by which tests/integration/test_cloudwatch.py judges kcl-host
without Java; `KCL_HOST_REWRITE=1` writes it anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.fakes.cloudwatch_http import CloudWatchServer, MetricPoint
from tests.interop.mixed_fleet import Fleet, Java, Site, site
from tests.metric_kinds import BY_CHANCE, GOLDEN, LEVELS, MetricKind, kinds_of, read_golden

pytestmark = [pytest.mark.interop, pytest.mark.stress]

SHARDS = 4


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


def publish(shared: Site, folder: Path, worker: str, keys: dict[str, str]) -> tuple[list[MetricPoint], set[str]]:
    """Everything that two workers of the kind of that name publish, and the protocols they spoke."""
    name = folder.name
    java = Java("3.5.1", "single table")
    with (
        CloudWatchServer() as cloudwatch,
        Fleet(shared, folder, name, java, shards=SHARDS, cancelled=threading.Event()) as fleet,
    ):
        keys = {**keys, "cloudWatchClient.endpointOverride": cloudwatch.url}
        fleet.start(worker, **keys)
        fleet.wait_delivering(worker, limit_s=120)
        fleet.split(fleet.open_shards()[0])
        fleet.wait_delivering(worker, limit_s=60)
        second = f"{worker}-2"
        fleet.start(second, **keys)
        fleet.wait_delivering(worker, second, limit_s=120)
        audited = lambda: any(point.operation == "PeriodicShardSyncManager" for point in list(cloudwatch.points))  # noqa: E731
        fleet.wait_until("an audit", audited, 240)
        fleet.stop(second)
        fleet.stop(worker)
        assert cloudwatch.failures == []
        assert {point.namespace for point in cloudwatch.points} == {name}
        assert {key for point in cloudwatch.points for key in point.other} <= {"StorageResolution"}
        return cloudwatch.points, cloudwatch.protocols


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_metrics_for_the_same_work(shared: Site, tmp_path: Path, level: str) -> None:
    with ThreadPoolExecutor() as pool:
        by_java, by_kcl_host = [
            pool.submit(publish, shared, tmp_path / f"{level}-{worker}", worker, keys)
            for worker, keys in (
                ("java", LEVELS[level]),
                ("host", {**LEVELS[level], "metadataTableFormat": "single"}),
            )
        ]
    of_java, java_protocols = by_java.result()
    of_kcl_host, _ = by_kcl_host.result()
    print(f"Java speaks {java_protocols}, {len(of_java)} data; kcl-host {len(of_kcl_host)}")
    java, kcl_host = kinds_of(of_java) - BY_CHANCE, kinds_of(of_kcl_host) - BY_CHANCE
    if os.environ.get("KCL_HOST_REWRITE"):
        rewrite(level, java)
    assert java - read_golden(level) == set(), "only Java of now"
    assert read_golden(level) - java == set(), "only Java of then"
    assert kcl_host - java == set(), "only kcl-host"
    assert java - kcl_host == set(), "only Java"


def rewrite(level: str, kinds: set[MetricKind]) -> None:
    document = msgspec.json.decode(GOLDEN.read_bytes()) if GOLDEN.exists() else {}
    document[level] = sorted(kind.line for kind in kinds)
    GOLDEN.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
