"""Prometheus text: values by hand, names, labels, and what Prometheus' own parser makes of it."""

from __future__ import annotations

import pytest

from kcl_host.model.records import Batch
from kcl_host.observe.catalogue import CATALOGUE
from kcl_host.observe.metrics import Registry
from kcl_host.observe.prometheus import PrometheusText, name_of, render
from kcl_host.observe.published import Published
from tests.fakes.clock import FakeClock
from tests.unit.test_metrics_published import report_everything

TEXT = r"""
# HELP kcl_host_behind_latest_seconds Lag of the last batch, as Kinesis told it
# TYPE kcl_host_behind_latest_seconds gauge
kcl_host_behind_latest_seconds{operation="ProcessTask",shard="shard-0"} 1.5
# HELP kcl_host_current_leases Leases held after a round of renewals
# TYPE kcl_host_current_leases gauge
kcl_host_current_leases{operation="RenewAllLeases",worker="worker-1"} 6
# HELP kcl_host_fleet_leases Leases of each worker, as the leader sees it
# TYPE kcl_host_fleet_leases gauge
kcl_host_fleet_leases{operation="Fleet",worker="odd \"name\"\n"} 4
# HELP kcl_host_lost_leases_total Leases lost at a renewal
# TYPE kcl_host_lost_leases_total counter
kcl_host_lost_leases_total{operation="RenewAllLeases",worker="worker-1"} 3
# HELP kcl_host_processed_bytes_total Payload given to the child
# TYPE kcl_host_processed_bytes_total counter
kcl_host_processed_bytes_total{operation="ProcessTask",shard="shard-0"} 100
# HELP kcl_host_record_processor_process_records_seconds One processRecords of the child
# TYPE kcl_host_record_processor_process_records_seconds summary
kcl_host_record_processor_process_records_seconds_sum{operation="ProcessTask",shard="shard-0"} 0.25
kcl_host_record_processor_process_records_seconds_count{operation="ProcessTask",shard="shard-0"} 1
# HELP kcl_host_records_processed_total User records, before the checkpoint filter
# TYPE kcl_host_records_processed_total counter
kcl_host_records_processed_total{operation="ProcessTask",shard="shard-0"} 0
# HELP kcl_host_task_seconds Duration
# TYPE kcl_host_task_seconds summary
kcl_host_task_seconds_sum{operation="ProcessTask",shard="shard-0"} 0.25
kcl_host_task_seconds_count{operation="ProcessTask",shard="shard-0"} 1
# HELP kcl_host_task_success 1 for a success, 0 for a failure
# TYPE kcl_host_task_success summary
kcl_host_task_success_sum{operation="ProcessTask",shard="shard-0"} 1
kcl_host_task_success_count{operation="ProcessTask",shard="shard-0"} 1
""".lstrip()


def test_the_text_of_some_work() -> None:
    clock, registry = FakeClock(), Registry("worker-1")
    shard = Published(registry, clock).of_shard("shard-0", None)
    empty = Batch(records=[], millis_behind_latest=1500)
    with shard.task(empty), shard.delivering(2, 100):
        clock.advance(0.25)
    list(registry.drain())
    registry.worker.add("RenewAllLeases", LostLeases=2, CurrentLeases=7)
    registry.worker.add("RenewAllLeases", LostLeases=1, CurrentLeases=6)
    registry.note_fleet({'odd "name"\n': 4})
    assert render(registry.totals()) == TEXT


def test_names_are_as_prometheus_wants_them() -> None:
    names = {metric: name_of(metric) for metric in CATALOGUE}
    kinds = {name: {metric.kind for metric, other in names.items() if other == name} for name in names.values()}
    assert {name for name, of_one in kinds.items() if len(of_one) > 1} == set(), "one name, one type"
    for metric, name in names.items():
        assert name.startswith("kcl_host_") and name.replace("_", "").isalnum() and name == name.lower(), name
        assert "__" not in name, name
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert name.endswith("_seconds") == (metric.unit == "Milliseconds"), name
    assert names[next(m for m in CATALOGUE if m.name == "KinesisDataFetcher.getRecords.Time")] == (
        "kcl_host_kinesis_data_fetcher_get_records_seconds"
    )


def test_labels_are_bounded_by_the_leases_that_are_held() -> None:
    clock, registry = FakeClock(), Registry("worker-1")
    instruments = Published(registry, clock)
    for number in range(500):
        shard = instruments.of_shard(f"shard-{number}", None)
        with shard.task(Batch(records=[], millis_behind_latest=number)):
            pass
        if number < 499:
            shard.end()
    text = render(registry.totals())
    assert "shard-499" in text and "shard-498" not in text


def test_two_incarnations_of_a_lease_are_one_line() -> None:
    clock, registry = FakeClock(), Registry("worker-1")
    for _ in range(2):
        with Published(registry, clock).of_shard("shard-0", None).updating_lease(shard_end=False):
            pass
    text = render(registry.totals())
    assert text.count('update_lease_success_count{operation="ProcessTask",shard="shard-0"} 2') == 1


def test_the_text_is_made_once_a_second_at_most() -> None:
    clock, registry = FakeClock(), Registry("worker-1")
    page = PrometheusText(registry, clock)
    assert page.text() == b""
    registry.worker.add("RenewAllLeases", LostLeases=1)
    clock.advance(0.9)
    assert page.text() == b""
    clock.advance(0.1)
    assert b"kcl_host_lost_leases_total" in page.text()


def test_the_parser_of_prometheus_reads_it() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    clock, registry = FakeClock(), Registry("worker-1")
    report_everything(Published(registry, clock))
    shard = Published(registry, clock).of_shard('a"b\\c\nd', "1:s:2")
    with shard.task(Batch(records=[], millis_behind_latest=10**15)):
        pass
    families = {family.name: family for family in parser.text_string_to_metric_families(render(registry.totals()))}
    assert len(families) > 60
    samples = [
        (sample.name, tuple(sorted(sample.labels.items()))) for family in families.values() for sample in family.samples
    ]
    assert len(samples) == len(set(samples)), "no line twice"
    assert {label for _, labels in samples for label, _ in labels} == {"operation", "shard", "stream", "worker"}
    odd = [s for s in families["kcl_host_behind_latest_seconds"].samples if s.labels["shard"] == 'a"b\\c\nd']
    assert [sample.value for sample in odd] == [10**12]
    assert {family.type for family in families.values()} == {"counter", "gauge", "summary"}
