"""Faults of DynamoDB and Kinesis, one at a time, against a host process while numbered records flow.

Each write that a worker makes in its life goes wrong in each way there is: in the default tests each write loses its
answer once; pytest -m stress has every other pair as well, and whole minutes (KCL_HOST_FAULT_SECONDS) of each fault.
Whatever happens is judged by outcomes: every record delivered in order, checkpoints never back and never beyond what
was delivered, leases kept that can be kept, exit code 0 with everything released.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from kcl_host.local.engines import Engines
from kcl_host.local.faults import Fault, FaultKind, Faults
from kcl_host.local.http import HttpAnswer
from kcl_host.local.producer import Producer
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

APPLICATION: Final = "counting"
STATE, METRICS = f"{APPLICATION}-CoordinatorState", f"{APPLICATION}-WorkerMetricStats"
SHARDS: Final = 2
LONG_S = float(os.environ.get("KCL_HOST_FAULT_SECONDS", "60"))
FAILOVER: Final = {"failoverTimeMillis": 6000, "dynamoDbRequestTimeout": "PT1S"}
"""A lease outlives one request without an answer and the pause after it, whatever else the machine has to do."""
SOON: Final = {
    "workerMetricsReporterFreqInMillis": 1000,
    "inMemoryWorkerMetricsCaptureFrequencyMillis": 500,
    "schedulerInitializationBackoffTimeMillis": 200,
    "listShardsBackoffTimeInMillis": 200,
}
"""For tests that need not wait long."""


class Request(NamedTuple):
    """A kind of request, told from others of its operation by its update expression, or the value it writes."""

    what: str
    operation: str
    key: str | tuple[str, ...]
    starts: str = ""
    contains: str = ""
    lacks: str = "\0"
    value: tuple[str, str] | None = None

    def matches(self, body: dict[str, Any]) -> bool:
        update, values = body.get("UpdateExpression", ""), body.get("ExpressionAttributeValues", {})
        if self.value is not None and values.get(self.value[0], {}).get("S") != self.value[1]:
            return False
        return update.startswith(self.starts) and self.contains in update and self.lacks not in update


START: Final = (
    Request("look for the lease table", "DescribeTable", APPLICATION),
    Request("create the coordinator table", "CreateTable", STATE),
    Request("create the metrics table", "CreateTable", METRICS),
    Request("create the lease table", "CreateTable", APPLICATION),
    Request("first report", "UpdateItem", METRICS),
    Request("look at the lock", "GetItem", (STATE, "Leader")),
    Request("acquire the lock", "PutItem", (STATE, "Leader")),
    Request("create a lease", "PutItem", APPLICATION),
    Request("assign", "UpdateItem", APPLICATION, starts="SET leaseOwner = :to"),
)
RUN: Final = (
    Request("renew", "UpdateItem", APPLICATION, starts="SET leaseCounter = :next", lacks="checkpoint"),
    Request("checkpoint", "UpdateItem", APPLICATION, contains="checkpoint = :checkpoint"),
    Request("lock heartbeat", "UpdateItem", (STATE, "Leader")),
    Request("report", "UpdateItem", METRICS),
    Request("discover", "Query", APPLICATION),
    Request("scan the leases", "Scan", APPLICATION),
)
RESHARD: Final = (
    Request("create a child lease", "PutItem", APPLICATION),
    Request("child ids", "UpdateItem", APPLICATION, contains="childShardIds", lacks="leaseCounter"),
    Request("assign a child", "UpdateItem", APPLICATION, starts="SET leaseOwner = :to"),
    Request("checkpoint the end", "UpdateItem", APPLICATION, value=(":checkpoint", "SHARD_END")),
)
STOP: Final = (
    Request("announce", "UpdateItem", METRICS, contains="#properties = "),
    Request("release the lock", "DeleteItem", STATE),
    Request("evict", "UpdateItem", APPLICATION, starts="REMOVE checkpointOwner"),
    Request("look for live workers", "Scan", METRICS),
    Request("look for late arrivals", "Query", APPLICATION),
)
KINDS: Final[tuple[FaultKind, ...]] = ("throttle", "error", "hang", "slow", "late", "drop", "lost_answer")
DELAYS_S: Final = {"slow": 0.6, "late": 1.6}
"""An answer that comes before the time-out, and a write that takes effect after it."""


class Checkpoints:
    """Every checkpoint that took effect, by lease, in order."""

    def __init__(self, engines: Engines) -> None:
        self.written: dict[str, list[str]] = {}
        engines.dynamodb.front.observe = self._observe

    def _observe(self, operation: str, body: bytes, answer: HttpAnswer) -> None:
        if operation == "UpdateItem" and answer.status == 200 and b"checkpoint = :checkpoint" in body:
            request = msgspec.json.decode(body)
            value = request["ExpressionAttributeValues"][":checkpoint"]["S"]
            self.written.setdefault(request["Key"]["leaseKey"]["S"], []).append(value)

    def check(self, delivered: dict[str, list[int]]) -> None:
        assert self.written
        for lease_key, values in self.written.items():
            numbers = [float("inf") if value == "SHARD_END" else int(value) for value in values]
            assert numbers == sorted(numbers), f"{lease_key}: a checkpoint went back"
            assert {n for n in numbers if n != float("inf")} <= set(delivered[lease_key])


class Rig:
    """Both engines with the stream `numbers`, records flowing into it, and what is to be true at the end."""

    def __init__(self, folder: Path, engines: Engines) -> None:
        self.engines = engines
        self.folder = folder
        engines.create_stream("numbers", SHARDS)
        self.checkpoints = Checkpoints(engines)
        self.producer = Producer(engines, "numbers", records_per_s=100)

    def start(self, **keys: object) -> Running:
        self.producer.start()
        return Running(Counting(self.engines, self.folder, applicationName=APPLICATION, **{**FAILOVER, **SOON, **keys}))

    def leases(self) -> dict[str, dict[str, Any]]:
        items = self.engines.dynamodb.call("Scan", TableName=APPLICATION, ConsistentRead=True)["Items"]
        return {item["leaseKey"]["S"]: item for item in items}

    def deliver(self, host: Running, limit_s: float = 60) -> None:
        """Until everything produced up to now has been delivered."""
        host.counting.wait_for_numbers(self.producer.produced, limit_s)

    def settle(self, host: Running) -> None:
        """Nothing more is produced, and everything is delivered."""
        self.producer.stop()
        self.deliver(host)
        await_lead(host)

    def end(self, host: Running) -> None:
        """The host is stopped, which must be in order, and nothing was skipped."""
        self.settle(host)
        assert stop(host.process, limit_s=60) == 0
        self.check_released()
        host.counting.check_order()
        assert {s: set(n) for s, n in host.counting.delivered_in_order().items()} == {
            s: set(n) for s, n in host.counting.stored().items()
        }
        self.checkpoints.check(host.counting.delivered_in_order())

    @contextmanager
    def dynamodb_away(self, host: Running, kind: FaultKind, seconds: float) -> Iterator[None]:
        fault = self.engines.dynamodb.faults.add("*", kind, seconds=seconds, delay_s=1.5)
        yield
        self.await_end_of(host, fault)

    def await_end_of(self, host: Running, fault: Fault) -> None:
        until_s = fault.until_s
        assert until_s is not None
        host.counting.wait_until(lambda: time.monotonic() > until_s, LONG_S + 30)
        assert fault.hits

    def check_released(self) -> None:
        assert all("leaseOwner" not in lease for lease in self.leases().values())
        left = self.engines.dynamodb.call("Scan", TableName=STATE)["Items"]
        assert "Leader" not in [item["key"]["S"] for item in left]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Engines() as engines:
        rig = Rig(tmp_path, engines)
        yield rig
        rig.producer.stop()


def check_undisturbed(host: Running, restarts: int = 0) -> None:
    """No lease was lost, no child ended before its time, nothing came twice."""
    (stop_requested,) = host.log("stop_requested")
    # After that a lease may be found gone because its release took effect without an answer.
    lost = [line for line in host.log("lease_lost") if line["time"] < stop_requested["time"]]
    assert lost == [] and host.log("leader_lost") == [] and host.log("fatal") == []
    assert len(host.log("child_failed")) == restarts
    starts = Counter(line["shard"] for line in host.log("child_initialized"))
    assert sum(starts.values()) == len(starts) + restarts
    assert host.counting.delivered_in_order() == host.counting.stored()


def await_lead(host: Running) -> None:
    """A lead that was given up, or could not be kept, is there again; else there would be no lock to release."""

    def leads() -> bool:
        lines = [
            line
            for action in ("acquired", "released", "release_failed", "lost")
            for line in host.log(f"leader_{action}")
        ]
        return bool(lines) and max(lines, key=lambda line: str(line["time"]))["action"] == "leader_acquired"

    host.counting.wait_until(leads, 60 + LONG_S)


def each_fails_once(
    faults: Faults, requests: tuple[Request, ...], kind_of: Callable[[str], FaultKind]
) -> dict[str, Fault]:
    return {
        request.what: faults.add(
            request.operation,
            kind := kind_of(request.what),
            times=1,
            key=request.key,
            when=request.matches,
            delay_s=DELAYS_S.get(kind, 0.0),
        )
        for request in requests
    }


def await_all(host: Running, faults: dict[str, Fault]) -> None:
    host.counting.wait_until(lambda: all(fault.hits for fault in faults.values()), 40)


def mixed(shift: int) -> Callable[[str], FaultKind]:
    """Another kind for each request; seven shifts have every pair."""
    names = [request.what for request in (*START, *RUN, *RESHARD, *STOP)]
    return lambda what: KINDS[(names.index(what) + shift) % len(KINDS)]


@pytest.mark.parametrize(
    "kind_of",
    [
        pytest.param(lambda _: "lost_answer", id="lost_answer", marks=pytest.mark.interop),
        *(pytest.param(mixed(n), id=f"mixed-{n}", marks=pytest.mark.stress) for n in range(len(KINDS))),
    ],
)
def test_each_request_to_dynamodb_fails_once(rig: Rig, kind_of: Callable[[str], FaultKind]) -> None:
    faults = rig.engines.dynamodb.faults
    at_start = each_fails_once(faults, START, kind_of)
    with rig.start() as host:
        await_all(host, at_start)
        rig.deliver(host)
        await_all(host, each_fails_once(faults, RUN, kind_of))
        rig.deliver(host)
        at_reshard = each_fails_once(faults, RESHARD, kind_of)
        rig.engines.split_shard("numbers", "shardId-000000000000")
        await_all(host, at_reshard)
        host.counting.wait_until(
            lambda: len(host.log("child_initialized", checkpoint="TRIM_HORIZON")) == SHARDS + 2, 30
        )
        rig.settle(host)
        at_stop = each_fails_once(faults, STOP, kind_of)
        rig.end(host)
        assert [what for what, fault in at_stop.items() if not fault.hits] == []
        # The SDK lets a refused checkpoint at the end of a shard end the child; a new one is asked again.
        check_undisturbed(host, restarts=int(kind_of("checkpoint the end") == "throttle"))


FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def disturb_stream(host: Running, faults: Faults, kind: FaultKind) -> None:
    """A read of one shard fails that way; the iterator of the other expires, and the request for a new one fails so."""
    delay_s = DELAYS_S.get(kind, 0.0)
    disturbed = [
        faults.add("GetRecords", kind, times=1, key=FIRST, delay_s=delay_s),
        faults.add("GetRecords", "expired", times=1, key=SECOND),
        faults.add("GetShardIterator", kind, times=1, key=SECOND, delay_s=delay_s),
    ]
    host.counting.wait_until(lambda: all(fault.hits for fault in disturbed), 90)


@pytest.mark.parametrize(
    "kinds",
    [
        # Too long for the default tests: .ci/run has it.
        pytest.param(("throttle", "drop", "error"), id="short", marks=pytest.mark.interop),
        pytest.param(("lost_answer", "slow", "late", "hang", "expired"), id="more", marks=pytest.mark.stress),
    ],
)
def test_requests_to_kinesis_fail(rig: Rig, kinds: tuple[FaultKind, ...]) -> None:
    faults = rig.engines.kinesis.faults
    operations = ("DescribeStreamSummary", "ListShards", "GetShardIterator")
    for number, operation in enumerate(operations):
        kind = kinds[number % len(kinds)]
        faults.add(operation, kind, times=1, delay_s=DELAYS_S.get(kind, 0.0))
    with rig.start() as host:
        rig.deliver(host, 150)
        for kind in kinds:
            disturb_stream(host, faults, kind)
            rig.deliver(host)
        rig.end(host)
        check_undisturbed(host)


def away(short_s: float, *kinds: FaultKind) -> list[Any]:
    """A few seconds of throttling, and with -m stress a minute of each kind."""
    short = pytest.param("throttle", short_s, id="throttle")
    return [short, *(pytest.param(k, LONG_S, id=f"{k}-{LONG_S:.0f}-s", marks=pytest.mark.stress) for k in kinds)]


@pytest.mark.parametrize(
    ("kind", "seconds"), away(2.0, "throttle", "error", "hang", "drop", "slow", "late", "lost_answer")
)
def test_leases_outlive_dynamodb_that_is_away(rig: Rig, kind: FaultKind, seconds: float) -> None:
    with rig.start(failoverTimeMillis=int(2000 * seconds), leaseAssignmentIntervalMillis=1000) as host:
        rig.deliver(host)
        with rig.dynamodb_away(host, kind, seconds):
            rig.deliver(host, 90)  # Kinesis and the children need no DynamoDB.
        rig.end(host)
        check_undisturbed(host)


@pytest.mark.stress
def test_slow_answers_of_dynamodb_disturb_nothing(rig: Rig) -> None:
    """Half of the time-out, for a minute, with the usual lease duration."""
    with rig.start(failoverTimeMillis=10_000, dynamoDbRequestTimeout="PT3S") as host:
        rig.deliver(host)
        with rig.dynamodb_away(host, "slow", LONG_S):
            pass
        rig.end(host)
        check_undisturbed(host)


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
@pytest.mark.parametrize(("kind", "seconds"), away(3.0, "throttle", "hang", "lost_answer"))
def test_leases_that_expire_meanwhile_are_taken_up_again(rig: Rig, kind: FaultKind, seconds: float) -> None:
    """And before that both engines refuse everything while the host starts."""
    at_start = [e.faults.add("*", "throttle", seconds=2) for e in (rig.engines.kinesis, rig.engines.dynamodb)]
    with rig.start(failoverTimeMillis=2000, leaseAssignmentIntervalMillis=1000) as host:
        rig.deliver(host)
        assert any(fault.hits for fault in at_start)
        with rig.dynamodb_away(host, kind, seconds):
            host.counting.wait_until(lambda: len(host.log("child_ended")) >= SHARDS, 30)
        rig.end(host)
        assert host.log("child_failed") == [] and host.log("fatal") == []


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["error", "drop", "lost_answer", "hang"])
def test_engines_that_refuse_everything_at_the_start(rig: Rig, kind: FaultKind) -> None:
    at_start = [e.faults.add("*", kind, seconds=3) for e in (rig.engines.kinesis, rig.engines.dynamodb)]
    with rig.start() as host:
        rig.deliver(host, 90)
        assert any(fault.hits for fault in at_start)
        rig.end(host)
        check_undisturbed(host)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["throttle", "error", "drop", "lost_answer", "slow", "expired", "hang"])
def test_kinesis_that_is_away_for_long_costs_time_only(rig: Rig, kind: FaultKind) -> None:
    with rig.start() as host:
        rig.deliver(host)
        fault = rig.engines.kinesis.faults.add("*", kind, seconds=LONG_S, delay_s=1.5)
        rig.await_end_of(host, fault)
        rig.end(host)
        check_undisturbed(host)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["throttle", "hang"])
def test_a_stop_while_dynamodb_is_away(rig: Rig, kind: FaultKind) -> None:
    """The leases cannot be released; the next worker waits until they have expired, and nothing is skipped."""
    with rig.start(shutdownGraceMillis=3000) as host:
        rig.deliver(host)
        rig.engines.dynamodb.faults.add("*", kind)
        assert stop(host.process, limit_s=60) == 5
        rig.engines.dynamodb.faults.clear()
        with Running(host.counting) as next_host:
            rig.end(next_host)
