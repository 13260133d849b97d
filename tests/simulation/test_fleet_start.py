"""Hundreds of real hosts that start in the same second, against the request limits of one AWS account.

Limits: spec retrieval 7; ListShards as older accounts have it; DynamoDB's control plane 2,500 a second (developer
guide, "Best practices for managing the control plane").
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from kcl_host.decisions.pacing import ReadBudget
from tests.fakes.fault import Fault, FaultPlan
from tests.simulation.fleet import Fleet
from tests.simulation.run import Setup, counting, settings_of

pytestmark = pytest.mark.simulation

HOSTS = 500
SHARDS = 50
REQUEST_S = (0.01, 0.06)
PER_S = {
    "DescribeStreamSummary": 20.0,
    "DescribeStreamConsumer": 20.0,
    "RegisterStreamConsumer": 5.0,
    "ListShards": 100.0,
    "GetShardIterator": 5.0,
    "GetRecords": 5.0,
    "DynamoDB control plane": 2500.0,
}
OF_SHARD = ("GetShardIterator", "GetRecords")
KINESIS = {
    "describe": "DescribeStreamSummary",
    "describe_consumer": "DescribeStreamConsumer",
    "register_consumer": "RegisterStreamConsumer",
    "list_shards": "ListShards",
    "get_shard_iterator": "GetShardIterator",
    "get_records": "GetRecords",
}
DYNAMODB = dict.fromkeys(("describe", "exists", "create_table"), "DynamoDB control plane")


class Account:
    """Refuses what is above the limits, each a bucket that holds a second's worth; every request takes its time."""

    def __init__(self, fleet: Fleet) -> None:
        self._clock = fleet.clock
        self._rng = random.Random(0)
        self._budgets: dict[tuple[str, str], ReadBudget] = {}
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.in_second: dict[str, Counter[int]] = defaultdict(Counter)
        """Calls by API and second of the start."""
        self._begun_s = fleet.clock.monotonic()
        for fake, apis in (
            (fleet.stream, KINESIS),
            (fleet.fanout, KINESIS),
            (fleet.lease_table, DYNAMODB),
            (fleet.metadata.coordinator, DYNAMODB),
            (fleet.metadata.metrics, DYNAMODB),
        ):
            fake.faults = self._plan(apis.get, fake.faults)

    def _plan(self, api_of: Callable[[str], str | None], others: FaultPlan) -> FaultPlan:
        def befall(operation: str, key: str) -> Fault | None:
            api = api_of(operation)
            fault = None if api is None else self._judge(api, key if api in OF_SHARD else "")
            return fault or others(operation, key)

        return befall

    def _judge(self, api: str, of: str) -> Fault:
        now_s = self._clock.monotonic()
        self.calls[api] += 1
        self.in_second[api][int(now_s - self._begun_s)] += 1
        full = ReadBudget(tokens=PER_S[api], at_s=now_s, size=PER_S[api], per_s=PER_S[api])
        budget = self._budgets.setdefault((api, of), full)
        is_refused = budget.level(now_s) < 1.0
        self.refused[api] += is_refused
        if not is_refused:
            self._budgets[api, of] = budget.spent(now_s)
        after_s = self._rng.uniform(*REQUEST_S)
        return Fault("throttled" if is_refused else None, after_s=after_s)


def start_at_once(fleet: Fleet, within_s: float) -> list[float]:
    """After how many seconds each host runs, in order; not longer than until all do, or `within_s`."""
    up: dict[str, float] = {}
    begun_s = fleet.hub.now_s
    while fleet.hub.now_s < begun_s + within_s and len(up) < HOSTS:
        fleet.run(1.0)
        for worker in fleet.everybody:
            if worker.supervisor.status().phase == "RUNNING":
                up.setdefault(worker.name, fleet.hub.now_s - begun_s)
    return sorted(up.values())


@pytest.mark.interop  # Long: .ci/run has it.
@pytest.mark.parametrize("seed", [pytest.param(0, id="polling"), pytest.param(1, id="fan-out")])
def test_five_hundred_hosts_start_at_once_and_none_gives_up(seed: int) -> None:
    """A new application: one of them creates the tables, and registers the consumer."""
    setup = Setup(seed=seed, workers=HOSTS, shards=SHARDS)
    fleet = Fleet(setup.seed, settings_of(setup), workers=HOSTS, shards=SHARDS)
    fleet.fanout_slots = {slot for slot in range(HOSTS) if setup.reads_by_fanout(slot)}
    account = Account(fleet)
    least_s = HOSTS / PER_S["DescribeStreamSummary"]  # No fleet could be faster.
    with counting(fleet):
        up_s = start_at_once(fleet, within_s=3 * least_s)

    assert len(up_s) == HOSTS
    assert len(fleet.everybody) == HOSTS and all(worker.alive for worker in fleet.everybody), "somebody gave up"
    assert up_s[-1] <= 2 * least_s and up_s[int(0.95 * HOSTS)] <= 1.5 * least_s
    assert account.refused["DescribeStreamSummary"] > HOSTS, "or the limits were never felt"
    assert account.calls["DescribeStreamSummary"] <= 4 * HOSTS
    assert account.calls["DescribeStreamConsumer"] <= 4 * HOSTS
    for api, calls in account.in_second.items():
        if api not in OF_SHARD:
            later = [number for second, number in calls.items() if second >= least_s / 2]
            assert max(later, default=0) <= 3 * PER_S[api], api
    for api in ("RegisterStreamConsumer", "ListShards"):
        assert account.calls[api] <= 0.1 * HOSTS, "this is for one of them"
    children = {child.shard_id for worker in fleet.everybody for child in worker.children if child.alive}
    assert children == set(fleet.stream.open_shard_ids)
