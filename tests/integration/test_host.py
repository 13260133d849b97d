"""The host as a process: `python -m kcl_host -p FILE` against the embedded engines.

What children do wrong stays with their own shard, and the host ends as it is told to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kcl_host.config.properties import load_settings
from kcl_host.local.engines import Engines
from kcl_host.local.sequence_number import SequenceNumber
from kcl_host.runtime.clock import SystemClock
from kcl_host.runtime.outside import connect
from kcl_host.runtime.supervisor import Supervisor
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

NASTY = f"{sys.executable} {Path(__file__).parent / 'children' / 'nasty_once.py'}"
HABITS = [
    "exits at once",
    "exits in the middle",
    "exits while idle",
    "prints half a line and hangs",
    "closes stdout",
    "answers the wrong action",
    "answers twice",
    "sends null",
    "asks for impossible checkpoints",
    "checkpoints while drained",
    "ignores eof and term",
    "leaves a grandchild with its pipes",
    "does not checkpoint the end",
    "always exits",
]
HARMLESS = {"sends null", "asks for impossible checkpoints"}
"""Not worth a restart."""
CHECKPOINTED = {"exits at once", "does not checkpoint the end", "always exits"}
"""They fail when nothing is delivered that is not checkpointed."""
WELL_BEHAVED = 2


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


def habits_of(habits: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tells the children their habits; where they note what they did."""
    (folder / "habits.json").write_text(json.dumps(habits))
    monkeypatch.setenv("NASTY_FOLDER", str(folder))
    return folder / "notes"


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


def leases(engines: Engines) -> dict[str, dict[str, Any]]:
    items = engines.dynamodb.call("Scan", TableName="counting", ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def put(engines: Engines, numbers: range) -> Counter[str]:
    """Numbered records; how many went to each shard."""
    put = engines.put_records("numbers", [(str(number), str(number).encode()) for number in numbers])
    parsed = [SequenceNumber.parse(number) for number in put]
    return Counter(shard_id(number.shard_number) for number in parsed if number)


def test_what_a_child_does_wrong_stays_with_its_shard(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.create_stream("numbers", len(HABITS) + WELL_BEHAVED)
    habit_of = {shard_id(n): habit for n, habit in enumerate(HABITS)}
    shard_of = {habit: shard for shard, habit in habit_of.items()}
    notes = habits_of(habit_of, tmp_path, monkeypatch)
    counting = Counting(
        engines,
        tmp_path,
        executableName=NASTY,
        failoverTimeMillis=10000,  # No lease may expire here, however slow the machine.
        timeoutInSeconds=5,
        childCloseDeadlineMillis=500,
        childTermDeadlineMillis=300,
    )
    expected = put(engines, range(300))
    assert len(expected) == len(HABITS) + WELL_BEHAVED
    lost_for_now = expected[shard_of["always exits"]]
    with Running(counting) as host:
        counting.wait_for_numbers(300 - lost_for_now, 30)
        more = put(engines, range(300, 600))
        engines.split_shard("numbers", shard_of["does not checkpoint the end"])
        lost_for_now += more[shard_of["always exits"]]
        counting.wait_for_numbers(600 - lost_for_now, 30)
        host.wait_for("shard_ended")
        host.wait_for("child_initialized", shard=shard_id(len(HABITS) + WELL_BEHAVED))
        host.wait_for("child_backoff", shard=shard_of["always exits"], failures=3)
        assert stop(host.process) == 0

        for shard in (shard_id(n) for n in range(len(HABITS) + WELL_BEHAVED)):
            habit = habit_of.get(shard, "")
            starts, failures = len(host.log("child_initialized", shard=shard)), host.log("child_failed", shard=shard)
            if habit == "always exits":
                assert starts == 0 and len(failures) >= 3
            elif not habit or habit in HARMLESS:
                assert (starts, failures) == (1, []), f"{habit or 'a well-behaved child'} was restarted: {failures}"
            else:
                assert len(failures) == 1 and failures[0]["error"], f"{habit}: {failures}"
                assert starts == (1 if habit == "exits at once" else 2), habit
    counting.check_order()
    deliveries = Counter((d.shard_id, d.data) for d in counting.delivered())
    seen = Counter(shard for shard, _ in deliveries)
    for shard, count in (expected + more).items():
        assert seen[shard] == (0 if habit_of.get(shard) == "always exits" else count), habit_of.get(shard)
    repeated = {habit_of.get(shard, "") for (shard, _), times in deliveries.items() if times > 1}
    assert repeated == set(HABITS) - HARMLESS - CHECKPOINTED, "what was not checkpointed is repeated, and nothing else"
    text = notes.read_text()
    assert [line for line in text.splitlines() if "Exception" in line] == [
        "999999999 IllegalArgumentException",
        "LATEST IllegalArgumentException",
        "nonsense IllegalArgumentException",
    ]
    assert "drained" in text
    grandchild = int(text.partition("grandchild ")[2].split()[0])
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
    assert all("leaseOwner" not in lease for lease in leases(engines).values())


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_noise_of_one_child_does_not_keep_others_waiting(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.create_stream("numbers", 2)
    habits_of({shard_id(0): "prints 100 mb of noise"}, tmp_path, monkeypatch)
    counting = Counting(engines, tmp_path, executableName=NASTY)
    put(engines, range(10))
    with Running(counting) as host:
        host.wait_for("child_noise", shard=shard_id(0))
        others = put(engines, range(10, 20))[shard_id(1)]
        counting.wait_until(
            lambda: sum(d.shard_id == shard_id(1) and int(d.data) >= 10 for d in counting.delivered()) == others, 30
        )
        counting.wait_for_numbers(20, 60)
        assert stop(host.process) == 0
        assert host.log("child_failed") == []
        assert len(host.log("child_noise")) == 21, "the first lines, and how many more there were"


def test_the_policy_exit_ends_the_worker(engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.create_stream("numbers", 2)
    habits_of({shard_id(0): "always exits"}, tmp_path, monkeypatch)
    with Running(Counting(engines, tmp_path, executableName=NASTY, childFailurePolicy="exit")) as host:
        assert host.process.wait(30) == 1
        (line,) = [line for line in host.counting.log.read_text().splitlines() if not line.startswith("{")]
        assert line.startswith("kcl-host: child process") and "ended with status 3" in line
        assert len(host.log("child_failed")) == 1
    assert all("leaseOwner" not in lease for lease in leases(engines).values())


def test_a_child_that_dies_before_its_first_checkpoint_under_latest_loses_nothing(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.create_stream("numbers", 1)
    habits_of({shard_id(0): "exits in the middle"}, tmp_path, monkeypatch)
    counting = Counting(engines, tmp_path, executableName=NASTY, initialPositionInStream="LATEST")
    put(engines, range(10))
    with Running(counting) as host:
        host.wait_for("child_initialized", checkpoint="LATEST")
        put(engines, range(10, 20))
        host.wait_for("child_backoff")
        put(engines, range(20, 30))
        counting.wait_for_numbers(20, 30)
        assert stop(host.process) == 0
        assert len(host.log("child_initialized", checkpoint="LATEST")) == 2
    repeated = {n: times for n, times in Counter(int(d.data) for d in counting.delivered()).items() if times > 1}
    assert repeated and min(repeated) == 10 and set(repeated.values()) == {2}
    assert {int(d.data) for d in counting.delivered()} == set(range(10, 30))


def test_parents_are_read_to_their_end_before_their_children(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 3)
    counting = Counting(engines, tmp_path)
    put(engines, range(100))
    with Running(counting) as host:
        counting.wait_for_numbers(100, 30)
        put(engines, range(100, 200))
        engines.split_shard("numbers", shard_id(0))
        engines.merge_shards("numbers", shard_id(1), shard_id(2))
        put(engines, range(200, 300))
        counting.wait_for_numbers(300, 30)
        assert stop(host.process) == 0
        assert len(host.log("child_initialized")) == 6
    counting.check_order()
    delivered = counting.delivered()
    assert Counter(int(d.data) for d in delivered) == Counter(range(300)), "each once: nothing went wrong"
    at = {shard: [i for i, d in enumerate(delivered) if d.shard_id == shard] for shard in map(shard_id, range(6))}
    for parent, child in [(0, 3), (0, 4), (1, 5), (2, 5)]:
        assert at[shard_id(parent)][-1] < at[shard_id(child)][0]
    rows = leases(engines)
    assert {rows[shard_id(n)]["checkpoint"]["S"] for n in range(3)} == {"SHARD_END"}


def test_a_stop_is_graceful_and_the_next_start_repeats_nothing(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 2)
    counting = Counting(engines, tmp_path)
    for start in range(2):
        put(engines, range(100 * start, 100 * start + 100))
        with Running(counting) as host:
            counting.wait_for_numbers(100 * start + 100, 30)
            assert stop(host.process) == 0
            assert len(host.log("child_stderr")) == 2 * (start + 1), "lease lost, of each child"
            assert all(line["child_pid"] and line["shard"] for line in host.log("child_stderr"))
            assert {line["status"] for line in host.log("child_ended")} == {0}
        assert all("leaseOwner" not in lease for lease in leases(engines).values())
    assert Counter(int(d.data) for d in counting.delivered()) == Counter(range(200))
    lock = engines.dynamodb.call("Scan", TableName="counting-CoordinatorState")["Items"]
    assert "Leader" not in [item["key"]["S"] for item in lock]


def test_a_read_that_hangs_keeps_nobody_from_stopping(engines: Engines, tmp_path: Path) -> None:
    engines.create_stream("numbers", 2)
    counting = Counting(engines, tmp_path)
    with Running(counting) as host:
        counting.wait_until(lambda: len(host.log("child_initialized")) == 2, 30)
        hung = engines.kinesis.faults.add("GetRecords", "hang")
        counting.wait_until(lambda: hung.hits >= 2, 10)
        assert stop(host.process, limit_s=15) == 0
        assert len(host.log("lease_released")) == 2


class BrokenInConsumers(random.Random):
    """A bug that only shard consumers meet, and only when a child has failed."""

    def random(self) -> float:
        if threading.current_thread().name.startswith("shard-"):
            raise ZeroDivisionError("a bug in the host")
        return super().random()


def test_a_bug_in_one_consumer_ends_the_worker_and_releases_every_lease(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.create_stream("numbers", 2)
    habits_of({shard_id(0): "always exits"}, tmp_path, monkeypatch)
    counting = Counting(engines, tmp_path, executableName=NASTY)
    monkeypatch.setenv("KCL_DEMO_OUT", str(counting.out))
    loaded = load_settings(
        str(counting.properties), environ=os.environ, random_suffix="x", hostname="here", known_regions=()
    )
    supervisor = Supervisor(
        loaded.settings,
        connect(loaded.settings, environ=dict(os.environ), clock=SystemClock(), rng=BrokenInConsumers(0)),
    )
    with pytest.raises(ZeroDivisionError):
        supervisor.run()
    rows = leases(engines)
    assert len(rows) == 2 and all("leaseOwner" not in row for row in rows.values())
    assert [t.name for t in threading.enumerate() if t.name.startswith("shard-")] == []


@pytest.fixture
def hanging(engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A host whose one child hangs in processRecords."""
    engines.create_stream("numbers", 1)
    habits_of({shard_id(0): "prints half a line and hangs"}, tmp_path, monkeypatch)
    put(engines, range(1))
    counting = Counting(
        engines, tmp_path, executableName=NASTY, shutdownGraceMillis=500, logWarningForTaskAfterMillis=1
    )
    with Running(counting) as host:
        counting.wait_for_numbers(1, 30)
        yield host


def test_a_child_past_the_deadline_is_killed_and_its_lease_released(hanging: Running) -> None:
    hanging.wait_for("task_slow", task="PROCESSING")
    assert stop(hanging.process) == 5
    assert hanging.counting.log.read_text().splitlines()[-1].startswith("kcl-host: children were killed")
    assert hanging.log("child_ended")[0]["status"] == -signal.SIGKILL
    (lease,) = leases(hanging.counting.engines).values()
    assert "leaseOwner" not in lease and lease["checkpoint"]["S"] == "TRIM_HORIZON"


def test_a_second_signal_ends_the_host_at_once(hanging: Running) -> None:
    hanging.process.send_signal(signal.SIGTERM)
    hanging.wait_for("stop_requested")
    hanging.process.send_signal(signal.SIGINT)
    assert hanging.process.wait(10) == 128 + signal.SIGINT
