"""Worker metrics: recordings of hosts and containers, formulas, choice, sampling (coordination 3.2, 3.7, 3.8)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcl_host.config.settings import WorkerMetricsSettings
from kcl_host.model.worker import WorkerMetric
from kcl_host.observe.cpu import Cgroup, EcsTask, ProcStat, cgroup_v1, cgroup_v2, select_cpu
from kcl_host.observe.load import DEFAULTS, LoadSampler
from kcl_host.observe.network import RECEIVED, SENT, NetworkUse

V4 = {"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/me"}
RECORDINGS = Path(__file__).parents[1] / "data" / "load"
NETWORK: tuple[WorkerMetric, ...] = ("NETWORK_IN", "NETWORK_OUT")


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


# Recordings


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    at_s: float
    files: dict[str, list[str]] = {}
    answers: dict[str, Any] = {}


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    comment: str
    settings: WorkerMetricsSettings
    files: dict[str, list[str]]
    snapshots: list[Snapshot]
    values: dict[str, list[float]]
    averages: dict[str, float]
    answers: dict[str, Any] = {}


class Replay:
    """A host that goes from snapshot to snapshot."""

    def __init__(self, recording: Recording, root: Path) -> None:
        self._recording = recording
        self._root = root
        self._time = Time()
        self._answers = dict(recording.answers)
        self._write(recording.files)
        self._go_to(recording.snapshots[0])
        self.load = LoadSampler(
            recording.settings,
            environ=V4 if recording.answers else {},
            root=root,
            now_s=self._time,
            fetch=lambda url: json.dumps(self._answers[url.removeprefix("http://169.254.170.2")]).encode(),
        )

    def each(self, act: Callable[[], object]) -> None:
        for snapshot in self._recording.snapshots:
            self._go_to(snapshot)
            act()

    def _go_to(self, snapshot: Snapshot) -> None:
        self._time.now_s = 1000.0 + snapshot.at_s
        self._write(snapshot.files)
        self._answers |= snapshot.answers

    def _write(self, files: dict[str, list[str]]) -> None:
        for path, lines in files.items():
            write(self._root, path, "\n".join(lines) + "\n")


FILES = sorted(RECORDINGS.glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> Recording:
    return msgspec.json.decode(request.param.read_bytes(), type=Recording)


def test_each_snapshot_of_a_recording_is_worth_what_was_calculated(recording: Recording, tmp_path: Path) -> None:
    replay = Replay(recording, tmp_path)
    found: dict[str, list[float]] = {metric: [] for metric in recording.values}

    def sample() -> None:
        replay.load.sample()
        for metric, value in replay.load.drain_average().items():
            found[metric].append(value)

    replay.each(sample)
    assert found == {metric: pytest.approx(values, abs=0.000001) for metric, values in recording.values.items()}


def test_the_average_of_a_recording(recording: Recording, tmp_path: Path) -> None:
    replay = Replay(recording, tmp_path)
    replay.each(replay.load.sample)
    assert replay.load.drain_average() == recording.averages


def test_every_kind_of_host_is_recorded() -> None:
    assert {path.stem.split("-")[0] for path in FILES} == {"host", "cgroup", "ecs"}
    assert len(FILES) == 11


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
    assert round(second, 3) == 7.715


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
    [
        ("20000 10000\n", "0-7", 25.0),
        ("max 100000\n", "0-7", 6.25),
        ("max 100000", "0-4,6,8-10", 50 / 9),
        ("max 100000", "3", 50.0),
    ],
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
        ({"Limits": {"Memory": 4}, "Containers": [container("me", 10)]}, 50.0),
        ({"Containers": [container("me")]}, 50.0),
        ({"Containers": [container("other", 2)]}, 50.0),
        ({"Containers": [container("other", 8)]}, 100.0),
        ({}, 50.0),
    ],
    ids=["one container", "shares", "task limit", "memory only", "no shares", "not listed", "exceeded", "none listed"],
)
def test_ecs(task: dict[str, Any], percent: float) -> None:
    assert ecs(task).read() == pytest.approx(percent)


def test_ecs_without_a_reading_before() -> None:
    assert ecs({}, before=(0, 0)).read() == 0.0
    assert ecs({}, before=(5, 1_000_000_000)).read() == 100.0


# Network

HEADER = "Inter-|   Receive       |  Transmit\n face |bytes    packets errs drop |bytes    packets errs drop\n"


def net_dev(root: Path, received: int, sent: int, *, name: str = "  eth0: ") -> None:
    lo = "    lo: 99 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0\n"
    write(root, "proc/net/dev", f"{HEADER}{lo}{name}{received} 1 0 0 0 0 0 7 {sent} 1 0 0 0 0 0 0\n")


@pytest.mark.parametrize("name", ["  eth0: ", "eth0:"])
@pytest.mark.parametrize(("elapsed_s", "percent"), [(1.0, (10.0, 20.0)), (0.5, (20.0, 40.0)), (0.1, (100.0, 100.0))])
def test_network(tmp_path: Path, name: str, elapsed_s: float, percent: tuple[float, float]) -> None:
    """1 MB received and 2 MB sent on an interface of 10 MB/s."""
    time = Time()
    sources = [NetworkUse(tmp_path, "eth0", column, 10.0, time) for column in (RECEIVED, SENT)]
    net_dev(tmp_path, 5_000_000_000, 0, name=name)
    assert [source.read() for source in sources] == [0.0, 0.0]
    time.now_s += elapsed_s
    net_dev(tmp_path, 5_001_048_576, 2_097_152, name=name)
    assert tuple(source.read() for source in sources) == pytest.approx(percent)


def test_counters_that_go_back_count_as_in_java(tmp_path: Path) -> None:
    time = Time()
    source = NetworkUse(tmp_path, "eth0", SENT, 10.0, time)
    net_dev(tmp_path, 0, 1_048_576)
    source.read()
    time.now_s += 1.0
    net_dev(tmp_path, 0, 0)
    assert source.read() == 10.0


def test_an_interface_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net_dev(tmp_path, 0, 0)
    settings = WorkerMetricsSettings(metrics=NETWORK, network_interface="ens5", network_max_mb_per_s=10.0)
    load = sampler(tmp_path, settings)
    load.sample()
    load.sample()
    assert load.drain_average() == {"NI": -1.0, "NO": -1.0}
    assert [r.__dict__["metric"] for r in caplog.records] == ["NI", "NO"]
    assert all("no interface ens5, only eth0, lo" in r.__dict__["error"] for r in caplog.records)


# Choice of the platform


def touch_token(root: Path) -> None:
    write(root, "var/run/secrets/kubernetes.io/serviceaccount/token", "t")


@pytest.mark.parametrize(
    ("environ", "prepare", "expected"),
    [
        (V4, touch_token, "EcsTask"),
        ({"ECS_CONTAINER_METADATA_URI": "http://v3"}, touch_token, "NoneType"),
        ({"ECS_CONTAINER_METADATA_URI": "http://v3"} | V4, touch_token, "EcsTask"),
        ({}, touch_token, "NoneType"),
        ({}, lambda root: None, "ProcStat"),
        ({"ECS_CONTAINER_METADATA_URI_V4": ""}, lambda root: None, "ProcStat"),
        ({}, lambda root: (root / "proc/stat").unlink(), "NoneType"),
    ],
    ids=["ECS v4", "ECS v3 has none", "ECS v4 and v3", "EKS without cgroups", "machine", "empty variable", "not Linux"],
)
def test_the_first_platform_that_fits_decides(
    tmp_path: Path, environ: dict[str, str], prepare: Callable[[Path], object], expected: str
) -> None:
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    prepare(tmp_path)
    assert type(select_cpu(environ, tmp_path, Time(), no_network)).__name__ == expected


@pytest.mark.parametrize("version", ["v1", "v2", "both"])
def test_kubernetes_reads_its_cgroup(tmp_path: Path, version: str) -> None:
    """Only the files of the version that is to be read are there; v2 goes before v1."""
    touch_token(tmp_path)
    if version != "v1":
        make_v2(tmp_path, "10000 10000")
        (tmp_path / "sys/fs/cgroup" / ("memory" if version == "both" else "io")).mkdir()
    else:
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "10000")
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "10000")
        write(tmp_path, "sys/fs/cgroup/cpu/cpuacct.usage", "1")
    source = select_cpu({}, tmp_path, Time(), no_network)
    assert isinstance(source, Cgroup)
    assert source.read() == 0.0


# Choice of the metrics


def settings(*metrics: WorkerMetric, disabled: bool = False) -> WorkerMetricsSettings:
    return WorkerMetricsSettings(metrics=metrics, disabled=disabled, network_max_mb_per_s=10.0)


@pytest.mark.parametrize(
    ("chosen", "reported"),
    [
        (settings(), {"C"}),
        (settings(disabled=True), set()),
        (settings("NETWORK_OUT"), {"NO"}),
        (settings("CPU", "NETWORK_IN", "NETWORK_OUT"), {"C", "NI", "NO"}),
        (settings("CPU", disabled=True), {"C"}),
    ],
    ids=["automatic", "disabled", "no CPU unless it is listed", "all", "disabled is about the automatic choice only"],
)
def test_the_metrics_reported(tmp_path: Path, chosen: WorkerMetricsSettings, reported: set[str]) -> None:
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    net_dev(tmp_path, 0, 0)
    load = sampler(tmp_path, chosen)
    load.sample()
    assert load.drain_average() == dict.fromkeys(reported, 0.0)


def test_what_the_platform_does_not_have_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As -1 it would keep leases away from this worker for ever."""
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    assert sampler(tmp_path, settings("CPU", "NETWORK_IN")).drain_average() == {"C": 0.0}
    v3 = {"ECS_CONTAINER_METADATA_URI": "http://v3"}
    for chosen in (settings(), settings("CPU")):
        assert LoadSampler(chosen, environ=v3, root=tmp_path, fetch=no_network).drain_average() == {}
    said = [(r.__dict__["action"], r.__dict__["metric"]) for r in caplog.records]
    assert said == [("load_unavailable", "NETWORK_IN"), ("load_unavailable", "CPU")]


# The sampler


def sampler(root: Path, chosen: WorkerMetricsSettings = DEFAULTS) -> LoadSampler:
    return LoadSampler(chosen, environ={}, root=root, now_s=Time(), fetch=no_network)


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
    # 1/128 %: a tie in the seventh decimal, which rounding to even would take down.
    write(tmp_path, "proc/stat", "cpu 3 0 0 20012861 0")
    load.sample()
    assert load.drain_average() == {"C": 0.007813}


def test_the_last_300_samples_count(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 0 0 0 0 0")
    load = sampler(tmp_path)
    load.sample()
    for idle_samples, average in [(299, 0.333333), (300, 0.0)]:
        write(tmp_path, "proc/stat", f"cpu {idle_samples} 0 0 0 0")
        for _ in range(1 + idle_samples):  # the first one is worth 100
            load.sample()
        assert load.drain_average() == {"C": average}


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


def test_a_metric_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    time = Time()
    write(tmp_path, "proc/stat", "cpu 0 0 0 0 0")
    net_dev(tmp_path, 0, 0)
    load = LoadSampler(settings("CPU", "NETWORK_IN"), environ={}, root=tmp_path, now_s=time, fetch=no_network)
    load.sample()
    write(tmp_path, "proc/stat", "gone")
    time.now_s += 1.0
    net_dev(tmp_path, 1_048_576, 0)
    load.sample()
    assert load.drain_average() == {"C": 0.0, "NI": 5.0}
    time.now_s += 1.0
    load.sample()
    assert load.drain_average() == {"C": -1.0, "NI": 0.0}


def test_a_value_below_0_is_left_out(tmp_path: Path) -> None:
    """CPU time that goes back: the container was moved, or its counter began again."""
    touch_token(tmp_path)
    make_v2(tmp_path, "10000 10000")
    time = Time()
    load = LoadSampler(environ={}, root=tmp_path, now_s=time, fetch=no_network)
    load.sample()
    for usage_us in (400_000, 800_000):
        time.now_s += 1.0
        write(tmp_path, "sys/fs/cgroup/cpu.stat", f"usage_usec {usage_us}\n")
        load.sample()
    assert load.drain_average() == {"C": 20.0}


def test_disabled_or_without_a_platform_nothing_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 1 1 1 1 1")
    for load in (
        LoadSampler(WorkerMetricsSettings(disabled=True), environ=V4, root=tmp_path, fetch=no_network),
        LoadSampler(environ={}, root=tmp_path / "nothing", fetch=no_network),
    ):
        load.sample()
        assert load.drain_average() == {}
        assert load.run_once() is None


def test_a_turn_takes_one_sample(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu 0 0 0 0 0")
    load = sampler(tmp_path, WorkerMetricsSettings(capture_interval_s=2.5))
    assert load.run_once() == 2.5
    write(tmp_path, "proc/stat", "cpu 1 0 0 0 0")
    assert load.run_once() == 2.5
    assert load.drain_average() == {"C": 50.0}


def test_this_machine() -> None:
    load = LoadSampler(environ={})
    load.sample()
    load.sample()
    average = load.drain_average()
    assert all(0 <= value <= 100 for value in average.values())
