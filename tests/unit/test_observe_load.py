"""CPU load: platform choice and formulas (coordination 3.2, 3.7, 3.8; KCL 3.5.1 WorkerMetricsSelector)."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcl_host.observe.load import (
    Cgroup,
    EcsTask,
    LoadSampler,
    ProcStat,
    cgroup_v1,
    cgroup_v2,
    fetch_link_local,
    select_cpu,
)

V4 = {"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/me"}


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def no_network(url: str) -> bytes:
    raise AssertionError(f"asked for {url}")


class Time:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


# /proc/stat


def proc_stat(root: Path, *lines: str) -> list[float]:
    source, values = ProcStat(root), []
    for line in lines:
        write(root, "proc/stat", f"cpu  {line} 7 7 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
        values.append(source.read())
    return values


def test_proc_stat(tmp_path: Path) -> None:
    first, second, unchanged = proc_stat(
        tmp_path, "20000 200 2000 1500000 1000", "30000 3000 30000 2000000 2000", "30000 3000 30000 2000000 2000"
    )
    assert (first, unchanged) == (0.0, 0.0)
    assert second == pytest.approx(41800 / 541800 * 100)


def test_waiting_for_io_counts_as_busy(tmp_path: Path) -> None:
    assert proc_stat(tmp_path, "0 0 0 0 0", "0 0 0 50 50")[1] == 50.0


def test_a_wait_for_io_that_goes_back_is_no_load(tmp_path: Path) -> None:
    assert proc_stat(tmp_path, "0 0 0 100 100", "0 0 0 150 40")[1] == 0.0


# cgroups


def make_v2(root: Path, limit: str, cpus: str = "0-7") -> None:
    write(root, "sys/fs/cgroup/cgroup.controllers", "cpu memory")
    write(root, "sys/fs/cgroup/cpu.max", limit)
    write(root, "sys/fs/cgroup/cpuset.cpus.effective", cpus + "\n")
    write(root, "sys/fs/cgroup/cpu.stat", "usage_usec 1000000\nuser_usec 7\n")


@pytest.mark.parametrize(
    ("limit", "cpus", "percent"),
    [("20000 10000\n", "0-7", 25.0), ("max 100000\n", "0-7", 6.25), ("max 100000", "0-4,6,8-10", 50 / 9)],
)
def test_cgroup_v2(tmp_path: Path, limit: str, cpus: str, percent: float) -> None:
    make_v2(tmp_path, limit, cpus)
    time = Time()
    source = cgroup_v2(tmp_path, time)
    assert source.read() == 0.0
    time.now_s += 1.0
    write(tmp_path, "sys/fs/cgroup/cpu.stat", "usage_usec 1500000\nuser_usec 8\n")
    assert source.read() == pytest.approx(percent)


@pytest.mark.parametrize(("quota", "percent"), [("20000", 25.0), ("-1", 6.25)])
def test_cgroup_v1(tmp_path: Path, quota: str, percent: float) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota + "\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "10000\n")
    write(tmp_path, "sys/fs/cgroup/cpuset/cpuset.effective_cpus", "0-7\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpuacct.usage", "1000000000\n")
    time = Time()
    source = cgroup_v1(tmp_path, time)
    assert source.read() == 0.0
    time.now_s += 1.0
    write(tmp_path, "sys/fs/cgroup/cpu/cpuacct.usage", "1500000000\n")
    assert source.read() == pytest.approx(percent)


def test_more_than_the_limit_is_all_of_it(tmp_path: Path) -> None:
    time, usage = Time(), iter([0.0, 9.0, 9.0])
    source = Cgroup(lambda: next(usage), lambda: 2.0, time)
    source.read()
    time.now_s += 1.0
    assert source.read() == 100.0
    assert source.read() == 0.0


# ECS


def ecs(task: dict[str, Any], before: tuple[int, int] = (100_000_000, 900_000_000)) -> EcsTask:
    stats = {
        "cpu_stats": {
            "cpu_usage": {"total_usage": 150_000_000},
            "system_cpu_usage": 1_000_000_000,
            "online_cpus": 2,
        },
        "precpu_stats": {"cpu_usage": {"total_usage": before[0]}, "system_cpu_usage": before[1]},
    }
    answers = {"/stats": stats, "/task": task, "": {"DockerId": "me"}}
    return EcsTask("http://ecs", lambda url: json.dumps(answers[url.removeprefix("http://ecs")]).encode())


def container(docker_id: str, cpu: int | None = None) -> dict[str, Any]:
    return {"DockerId": docker_id, "Limits": {} if cpu is None else {"CPU": cpu}}


@pytest.mark.parametrize(
    ("task", "percent"),
    [
        ({"Containers": [container("me", 10)]}, 50.0),
        ({"Containers": [container("me", 50), container("other", 30)]}, 80.0),
        ({"Limits": {"CPU": 4}, "Containers": [container("me", 10)]}, 25.0),
        ({"Containers": [container("me")]}, 50.0),
        ({"Containers": [container("other", 2)]}, 50.0),
    ],
    ids=["one container", "shares", "task limit", "no shares", "not listed"],
)
def test_ecs(task: dict[str, Any], percent: float) -> None:
    assert ecs(task).read() == pytest.approx(percent)


def test_ecs_without_a_reading_before() -> None:
    assert ecs({}, before=(0, 0)).read() == 0.0
    assert ecs({}, before=(5, 1_000_000_000)).read() == 100.0


def test_a_real_endpoint_is_asked_without_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"body of " + self.path.encode())

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert fetch_link_local(f"http://127.0.0.1:{server.server_port}/v4/stats") == b"body of /v4/stats"
        thread.join(20)


# Choice of the platform


def touch_token(root: Path) -> None:
    write(root, "var/run/secrets/kubernetes.io/serviceaccount/token", "t")


@pytest.mark.parametrize(
    ("environ", "prepare", "expected"),
    [
        (V4, touch_token, "EcsTask"),
        ({"ECS_CONTAINER_METADATA_URI": "http://v3"}, touch_token, "NoneType"),
        ({}, touch_token, "NoneType"),
        ({}, lambda root: None, "ProcStat"),
        ({"ECS_CONTAINER_METADATA_URI_V4": ""}, lambda root: None, "ProcStat"),
        ({}, lambda root: (root / "proc/stat").unlink(), "NoneType"),
    ],
    ids=["ECS v4 wins", "ECS v3 has none", "EKS without cgroups", "machine", "empty variable", "not Linux"],
)
def test_the_first_platform_that_fits_decides(
    tmp_path: Path, environ: dict[str, str], prepare: Callable[[Path], object], expected: str
) -> None:
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    prepare(tmp_path)
    assert type(select_cpu(environ, tmp_path, Time(), no_network)).__name__ == expected


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_kubernetes_reads_its_cgroup(tmp_path: Path, version: str) -> None:
    touch_token(tmp_path)
    if version == "v2":
        make_v2(tmp_path, "10000 10000")
    else:
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "10000")
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "10000")
        write(tmp_path, "sys/fs/cgroup/cpu/cpuacct.usage", "1")
    source = select_cpu({}, tmp_path, Time(), no_network)
    assert isinstance(source, Cgroup)
    assert source.read() == 0.0


# The sampler


def sampler(root: Path) -> LoadSampler:
    return LoadSampler(environ={}, root=root, now_s=Time(), fetch=no_network)


def test_the_average_of_the_period(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 0 0 0 0 0")
    load = sampler(tmp_path)
    for busy, idle in [(0, 0), (1, 2), (3, 2)]:
        write(tmp_path, "proc/stat", f"cpu {busy} 0 0 {idle} 0")
        load.sample()
    assert load.drain_average() == {"C": 44.444444}


def test_rounding_is_half_up(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 0 0 0 0 0")
    load = sampler(tmp_path)
    load.sample()
    write(tmp_path, "proc/stat", "cpu 1 0 0 63 0")
    load.sample()
    assert load.drain_average() == {"C": 0.78125}
    write(tmp_path, "proc/stat", "cpu 2 0 0 20000062 0")
    load.sample()
    assert load.drain_average() == {"C": 0.000005}


def test_a_worker_that_just_starts_has_not_failed(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    assert sampler(tmp_path).drain_average() == {"C": 0.0}


@pytest.mark.parametrize("text", ["", "cpu a b c d e", "cpu 1 2"])
def test_a_period_without_values_has_failed_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "proc/stat", text)
    load = sampler(tmp_path)
    for _ in range(3):
        load.sample()
    assert load.drain_average() == {"C": -1.0}
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    load.sample()
    assert load.drain_average() == {"C": 0.0}
    assert [r.__dict__["action"] for r in caplog.records] == ["load_failed", "load_recovered"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"cpu_stats": null}'])
def test_an_endpoint_that_answers_nonsense_has_failed(tmp_path: Path, answer: bytes) -> None:
    load = LoadSampler(environ=V4, root=tmp_path, now_s=Time(), fetch=lambda url: answer)
    assert load.drain_average() == {"C": -1.0}


def test_disabled_or_without_a_platform_nothing_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    for load in (
        LoadSampler(disabled=True, environ=V4, root=tmp_path, fetch=no_network),
        LoadSampler(environ={}, root=tmp_path / "nothing", fetch=no_network),
    ):
        load.sample()
        assert load.drain_average() == {}


def test_this_machine() -> None:
    load = LoadSampler(environ={})
    load.sample()
    load.sample()
    average = load.drain_average()
    assert all(0 <= value <= 100 for value in average.values())
