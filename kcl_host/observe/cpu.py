"""CPU use of this host or container in percent, by the sources and formulas of Java.

ECS task stats, cgroup v2 or v1 under Kubernetes, else /proc/stat: the same figures as a Java worker on the same host
reports, so that the averages of a mixed fleet compare like with like. Where we differ: Java asks the EC2 metadata
service (up to 5 s each for two requests) and reports nothing when there is none; here /proc/stat is used without
asking, so that the start waits for nobody. Outside EC2 a worker of ours then reports CPU where a Java worker is
balanced by throughput alone. Both kinds may meet: the leader averages a metric over those that have it (spec
coordination 4.3).

Every `read` returns the percent used since the read before, 0 the first time; `LoadSampler` catches what it raises.
Source: KCL 3.5.1 WorkerMetricsSelector, worker.metric.impl; spec coordination 3.7, 3.8.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

ECS_TIMEOUT_S: Final = 2.0

Fetch = Callable[[str], bytes]
"""The body of an HTTP GET; raises OSError."""


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
        shares = {c["DockerId"]: (c.get("Limits") or {}).get("CPU") or 0 for c in task.get("Containers") or ()}
        task_limit = (task.get("Limits") or {}).get("CPU") or online
        # A container that is not listed counts as 2 in Java; without any shares Java would divide by zero.
        own, total = shares.get(own_id, 2), sum(shares.values())
        return float(task_limit * own / total if own and total else task_limit)

    def _get(self, path: str) -> dict[str, Any]:
        return msgspec.json.decode(self._fetch(self._base_url + path), type=dict[str, Any])


def select_cpu(
    environ: Mapping[str, str], root: Path, now_s: Callable[[], float], fetch: Fetch
) -> ProcStat | Cgroup | EcsTask | None:
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


def fetch_link_local(url: str, timeout_s: float = ECS_TIMEOUT_S) -> bytes:
    """GET without any proxy: the endpoint exists only on this host. `timeout_s` bounds each wait for it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            body: bytes = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {error!r}") from error
    return body


def _cpus(path: Path) -> float:
    """Number of CPUs in a list like 0-4,6,8-10 (9 of them)."""
    count = 0
    for part in path.read_text().strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return float(count)
