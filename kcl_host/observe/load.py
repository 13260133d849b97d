"""CPU load of this host or container, for the worker's metric stats.

The sources and formulas are those of Java, so that the averages of a mixed fleet compare like with like: ECS task
stats, cgroup v2 or v1 under Kubernetes, else /proc/stat. Where we differ: Java asks the EC2 metadata service (up to
5 s each for two requests) and reports nothing when there is none; here /proc/stat is used without asking, so that the
start waits for nobody. Outside EC2 a worker of ours then reports CPU where a Java worker is balanced by throughput
alone. Both kinds may meet: the leader averages a metric over those that have it (spec coordination 4.3).

Shared state: the source and the samples of the period, guarded by `LoadSampler._lock`; one thread samples, another
drains. The lock is held while the source reads, at most ECS_TIMEOUT_S each, since the source keeps its last reading.
Source: KCL 3.5.1 WorkerMetricsSelector and its metrics; spec coordination 3.2, 3.7, 3.8.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

_log = logging.getLogger(__name__)

CPU: Final = "C"
"""Short name of the metric in the row."""
FAILED: Final = -1.0
"""What a period without any value reports: the leader gives such a worker no further leases."""
SAMPLES: Final = 300
ECS_TIMEOUT_S: Final = 2.0

Fetch = Callable[[str], bytes]
"""The body of an HTTP GET; raises OSError."""


class CpuSource(Protocol):
    def read(self) -> float:
        """Percent used since the read before, 0 the first time. Raises what `LoadSampler.sample` catches."""


class ProcStat:
    """The whole machine by /proc/stat; waiting for I/O counts as busy, interrupts and stolen time do not count."""

    def __init__(self, root: Path) -> None:
        self._path = root / "proc/stat"
        self._before: tuple[int, int, int] | None = None

    def read(self) -> float:
        with self._path.open() as file:
            user, nice, system, idle, iowait = map(int, file.readline().split()[1:6])
        now = (user + nice + system + idle + iowait, idle, iowait)
        before, self._before = self._before, now
        if before is None or now == before:
            return 0.0
        total, idled = abs(now[0] - before[0]), abs(now[1] - before[1])
        # The kernel's iowait may go backwards; then the idle part can exceed the total.
        return 0.0 if not total or (total < idled and now[2] < before[2]) else (total - idled) / total * 100


class Cgroup:
    """One container by its cgroup: CPU time used against the time that its quota, or its CPUs, allow."""

    def __init__(self, usage_s: Callable[[], float], limit_cpus: Callable[[], float], now_s: Callable[[], float]):
        self._usage_s = usage_s
        self._limit_cpus = limit_cpus
        self._now_s = now_s
        self._limit: float | None = None
        self._before: tuple[float, float] | None = None

    def read(self) -> float:
        self._limit = self._limit or self._limit_cpus()
        now = (self._now_s(), self._usage_s())
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return 0.0
        return min(100.0, (now[1] - before[1]) / (now[0] - before[0]) / self._limit * 100)


def cgroup_v2(root: Path, now_s: Callable[[], float]) -> Cgroup:
    folder = root / "sys/fs/cgroup"

    def usage_s() -> float:
        return int((folder / "cpu.stat").read_text().split(maxsplit=2)[1]) / 1e6

    def limit_cpus() -> float:
        quota, period = (folder / "cpu.max").read_text().split()
        return _cpus(folder / "cpuset.cpus.effective") if quota == "max" else int(quota) / int(period)

    return Cgroup(usage_s, limit_cpus, now_s)


def cgroup_v1(root: Path, now_s: Callable[[], float]) -> Cgroup:
    folder = root / "sys/fs/cgroup"

    def usage_s() -> float:
        return int((folder / "cpu/cpuacct.usage").read_text()) / 1e9

    def limit_cpus() -> float:
        quota = int((folder / "cpu/cpu.cfs_quota_us").read_text())
        if quota == -1:
            return _cpus(folder / "cpuset/cpuset.effective_cpus")
        return quota / int((folder / "cpu/cpu.cfs_period_us").read_text())

    return Cgroup(usage_s, limit_cpus, now_s)


class EcsTask:
    """One container by the ECS task metadata endpoint, version 4, against its share of the task's CPU limit."""

    def __init__(self, base_url: str, fetch: Fetch) -> None:
        self._base_url = base_url
        self._fetch = fetch
        self._limit: float | None = None

    def read(self) -> float:
        stats = self._get("/stats")
        cpu, before, online = stats["cpu_stats"], stats["precpu_stats"], stats["cpu_stats"]["online_cpus"]
        usage_before, system_before = before["cpu_usage"]["total_usage"], before.get("system_cpu_usage", 0)
        if not usage_before and not system_before:
            return 0.0
        system = cpu["system_cpu_usage"] - system_before
        if not system:
            return 100.0
        self._limit = self._limit or self._limit_cpus(online)
        cores = (cpu["cpu_usage"]["total_usage"] - usage_before) / system * online
        return float(min(100.0, cores / self._limit * 100))

    def _limit_cpus(self, online: int) -> float:
        task, own_id = self._get("/task"), self._get("")["DockerId"]
        shares = {c["DockerId"]: (c.get("Limits") or {}).get("CPU") or 0 for c in task["Containers"]}
        task_limit = (task.get("Limits") or {}).get("CPU") or online
        # A container that is not listed counts as 2 in Java; without any shares Java would divide by zero.
        own, total = shares.get(own_id, 2), sum(shares.values())
        return float(task_limit * own / total if own and total else task_limit)

    def _get(self, path: str) -> dict[str, Any]:
        return msgspec.json.decode(self._fetch(self._base_url + path), type=dict[str, Any])


def select_cpu(environ: Mapping[str, str], root: Path, now_s: Callable[[], float], fetch: Fetch) -> CpuSource | None:
    """The source for this platform, None when it has none: the first platform that fits decides, as in Java."""
    if environ.get("ECS_CONTAINER_METADATA_URI_V4"):
        return EcsTask(environ["ECS_CONTAINER_METADATA_URI_V4"], fetch)
    if environ.get("ECS_CONTAINER_METADATA_URI"):
        return None
    if (root / "var/run/secrets/kubernetes.io/serviceaccount/token").exists():
        if (root / "sys/fs/cgroup/cgroup.controllers").exists():
            return cgroup_v2(root, now_s)
        is_v1 = any((root / "sys/fs/cgroup" / name).exists() for name in ("memory", "cpu"))
        return cgroup_v1(root, now_s) if is_v1 else None
    return ProcStat(root) if (root / "proc/stat").exists() else None


def fetch_link_local(url: str) -> bytes:
    """GET without any proxy: the endpoint exists only on this host."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ECS_TIMEOUT_S) as response:
            body: bytes = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {error!r}") from error
    return body


class LoadSampler:
    """Samples CPU load and averages it per reporting period; without a source it reports nothing at all."""

    def __init__(
        self,
        *,
        disabled: bool = False,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        now_s: Callable[[], float] = time.monotonic,
        fetch: Fetch = fetch_link_local,
    ) -> None:
        linux = sys.platform == "linux"
        self._source = select_cpu(environ, root, now_s, fetch) if linux and not disabled else None
        self._lock = threading.Lock()
        self._values: deque[float] = deque(maxlen=SAMPLES)
        self._failing = False

    def __repr__(self) -> str:
        return f"<LoadSampler {type(self._source).__name__ if self._source else 'none'} values={len(self._values)}>"

    def sample(self) -> None:
        """Takes one value; one that cannot be had, or is not within 0 and 100, is left out and said once."""
        if self._source is None:
            return
        with self._lock:
            try:
                value = self._source.read()
                if not 0 <= value <= 100:
                    raise ValueError(f"a CPU load of {value} percent")
            except (OSError, ValueError, LookupError, TypeError, ArithmeticError, msgspec.MsgspecError) as error:
                if not self._failing:
                    _log.warning("CPU load is not known", extra={"action": "load_failed", "error": repr(error)})
                self._failing = True
                return
            self._values.append(value)
            if self._failing:
                _log.info("CPU load is known again", extra={"action": "load_recovered"})
            self._failing = False

    def drain_average(self) -> dict[str, float]:
        """{"C": average since the last drain}, rounded half up to 6 decimals; {} without a source.

        Nothing sampled yet means one sample now, since FAILED would keep leases away from a worker that just starts.
        """
        if self._source is None:
            return {}
        if not self._values:
            self.sample()
        with self._lock:
            values = list(self._values)
            self._values.clear()
        return {CPU: _rounded(sum(values) / len(values)) if values else FAILED}


def _rounded(value: float) -> float:
    return float(Decimal(str(value)).quantize(Decimal("0.000001"), ROUND_HALF_UP))


def _cpus(path: Path) -> float:
    """Number of CPUs in a list like 0-4,6,8-10 (9 of them)."""
    count = 0
    for part in path.read_text().strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return float(count)
