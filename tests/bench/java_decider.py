"""Java's own decision about leases: the class of KCL 3.5.1 that its leader runs, asked by a small program of ours.

The program gets the snapshot that plan_assignment gets. Both decide with the defaults: a graceful handover, dampening,
a pass that balances. What reads the tables and writes the leases is not run.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from kcl_host.decisions.lease_age import Tracked
from kcl_host.model.worker import WorkerMetricStats
from tests.bench.hosts import Java, java_classes

HARNESS = "software.amazon.kinesis.coordinator.assignment.PlanHarness"


class Decided(msgspec.Struct, frozen=True):
    """`seconds` of each decision; `assigned` are new owners by lease key."""

    seconds: list[float]
    assigned: dict[str, str]


class _Lease(msgspec.Struct, frozen=True):
    key: str
    owner: str | None
    kbps: float | None
    incremented_nanos: int


class _Worker(msgspec.Struct, frozen=True):
    id: str
    cpu: list[float]


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    repeat: int
    now_nanos: int
    leases: list[_Lease]
    workers: list[_Worker]


class JavaDecider:
    """One JVM. Raises Missing without javac."""

    def __init__(self, jvm: Java) -> None:
        classes = f"{java_classes('PlanHarness', jvm.class_path)}:{jvm.class_path}"
        self._command = ["java", *jvm.options, "-cp", classes, HARNESS]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def decide(
        self,
        tracked: Mapping[str, Tracked],
        workers: Sequence[WorkerMetricStats],
        *,
        now_s: float,
        repeat: int = 1,
    ) -> Decided:
        """The last of `repeat` decisions about the same."""
        request = _Request(
            repeat=repeat,
            now_nanos=_nanos(now_s),
            leases=[
                _Lease(key, t.lease.lease_owner, t.lease.throughput_kbps, _nanos(t.last_counter_increment_s))
                for key, t in tracked.items()
            ],
            workers=[_Worker(w.worker_id, w.metric_stats.get("C", [])) for w in workers],
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Decided)


def _nanos(at_s: float) -> int:
    """0 for what never happened, as Java has it."""
    return 0 if at_s == -math.inf else int(at_s * 1e9)
