"""The host as a process that reads by enhanced fan-out from the embedded Kinesis; every record is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from kcl_host.local.faults import FaultKind
from kcl_host.local.producer import Producer
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

FANOUT = {"retrievalMode": "FANOUT", "maxRecordsCount": 2000}
SHARDS = 3
KINDS: tuple[FaultKind, ...] = ("drop", "corrupt", "goaway")


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", SHARDS)
        yield running


@pytest.fixture
def producer(engines: Engines) -> Iterator[Producer]:
    producer = Producer(engines, "numbers", records_per_s=200)
    yield producer
    producer.stop()


def check_each_once(counting: Counting) -> None:
    """Each shard's records, in its order, none twice."""
    assert counting.delivered_in_order() == counting.stored()


def subscriptions_break(engines: Engines, kind: FaultKind, shard: str | None = None) -> Callable[[], bool]:
    fault = engines.kinesis.faults.add("SubscribeToShardEvent", kind, times=1, key=shard or ())
    return lambda: fault.hits == 1


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_every_record_once_through_reshards_while_connections_are_cut(
    engines: Engines, producer: Producer, tmp_path: Path
) -> None:
    """The shards share a connection, so each cut ends them all; each goes on behind the last event it has had."""
    counting = Counting(engines, tmp_path, **FANOUT)
    producer.start()
    with Running(counting) as host:
        counting.wait_for_numbers(100, 30)
        for kind in KINDS:
            counting.wait_until(subscriptions_break(engines, kind), 10)
            counting.wait_for_numbers(producer.produced, 30)
        engines.split_shard("numbers", shard_id(0))
        counting.wait_until(lambda: len(host.log("shard_ended")) == 1, 20)
        counting.wait_until(subscriptions_break(engines, "drop"), 10)
        engines.merge_shards("numbers", shard_id(1), shard_id(2))
        counting.wait_until(lambda: len(host.log("shard_ended")) == 3, 30)
        producer.stop()
        counting.wait_for_numbers(producer.produced, 30)
        assert stop(host.process) == 0
        assert {line["shard"] for line in host.log("shard_ended")} == {shard_id(n) for n in range(3)}
        assert len(host.log("child_initialized")) == 6 and host.log("child_failed") == []
        assert host.log("subscription_lost")
        assert [line["reads_by"] for line in host.log("worker_starts")] == ["FANOUT"]
    check_each_once(counting)


@pytest.mark.stress
def test_a_consumer_that_was_deregistered_is_registered_anew(
    engines: Engines, producer: Producer, tmp_path: Path
) -> None:
    """Kinesis answers as if the shard were gone; taken for that, the shard would end."""
    counting = Counting(engines, tmp_path, **FANOUT, **{"fanoutConfig.consumerName": "readers"})
    producer.start()
    with Running(counting) as host:
        counting.wait_for_numbers(100, 30)
        (consumer,) = engines.kinesis.call("ListStreamConsumers", StreamARN=stream_arn(engines))["Consumers"]
        assert consumer["ConsumerName"] == "readers"
        engines.kinesis.call("DeregisterStreamConsumer", ConsumerARN=consumer["ConsumerARN"])
        host.wait_for("consumer_gone")
        counting.wait_for_numbers(producer.produced + 100, 30)
        producer.stop()
        counting.wait_for_numbers(producer.produced, 30)
        assert stop(host.process) == 0
        assert len(host.log("consumer_registered")) == 2 and host.log("shard_ended") == []
    check_each_once(counting)


def stream_arn(engines: Engines) -> str:
    summary = engines.kinesis.call("DescribeStreamSummary", StreamName="numbers")["StreamDescriptionSummary"]
    return str(summary["StreamARN"])


@pytest.mark.stress
def test_from_polling_to_fan_out_and_back(engines: Engines, producer: Producer, tmp_path: Path) -> None:
    """A restart in the other mode goes on at the checkpoints; fan-out by HTTP/1.1 is a transport like the other."""
    producer.start()
    for number, keys in enumerate([{"retrievalMode": "POLLING"}, {**FANOUT, "fanoutTransport": "http1"}, FANOUT] * 2):
        counting = Counting(engines, tmp_path, **keys)
        with Running(counting) as host:
            counting.wait_for_numbers(producer.produced + 50, 30)
            assert stop(host.process) == 0
            assert len(host.log("child_initialized")) == SHARDS * (number + 1)
    check_each_once_up_to_the_stop(counting)


def check_each_once_up_to_the_stop(counting: Counting) -> None:
    delivered, stored = counting.delivered_in_order(), counting.stored()
    assert {shard: stored[shard][: len(numbers)] for shard, numbers in delivered.items()} == delivered


@pytest.mark.stress
def test_leases_handed_to_another_worker_take_their_subscriptions_along(
    engines: Engines, producer: Producer, tmp_path: Path
) -> None:
    """The next owner may subscribe at once when the last call is five seconds old, and waits that long otherwise."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (Counting(engines, folder, **FANOUT, shutdownGraceMillis=20_000) for folder in folders)
    second.out = first.out
    producer.start()
    with Running(first) as old:
        first.wait_for_numbers(100, 30)
        with Running(second) as new:
            first.wait_until(lambda: new.log("child_initialized"), 60)
            assert stop(old.process) == 0
            first.wait_for_numbers(producer.produced + 100, 30)
            producer.stop()
            first.wait_for_numbers(producer.produced, 30)
            assert stop(new.process) == 0
    check_each_once(first)
