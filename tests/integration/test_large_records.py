"""Records of 10 MiB and batches of 10,000 on the whole way, in both modes: all arrive, and memory is bounded."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = pytest.mark.integration

DIGESTS = f"{sys.executable} {Path(__file__).parent / 'children' / 'digests.py'}"
MIB = 1024 * 1024
LARGEST = 10 * MIB - len("key")


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", 1)
        summary = running.kinesis.call("DescribeStreamSummary", StreamName="numbers")["StreamDescriptionSummary"]
        running.kinesis.call("UpdateMaxRecordSize", StreamARN=summary["StreamARN"], MaxRecordSizeInKiB=10240)
        yield running


class PeakMemory:
    """The most resident memory of a process, in MiB, as long as it lives."""

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._process = psutil.Process(pid)
        self._thread = threading.Thread(target=self._watch)
        self._over = threading.Event()
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.mib = max(self.mib, self._process.memory_info().rss / MIB)
            except psutil.NoSuchProcess:
                return

    def stop(self) -> float:
        self._over.set()
        self._thread.join()
        return self.mib


@pytest.mark.interop  # Long: .ci/run has it.
@pytest.mark.parametrize("mode", ["POLLING", "FANOUT"])
def test_records_of_ten_mebibytes_among_small_ones(engines: Engines, tmp_path: Path, mode: str) -> None:
    """Each larger than maxByteSize; the bounds let it pass, alone."""
    rng = random.Random(7)
    data = [rng.randbytes(size) for size in (100, LARGEST, 1, LARGEST, 5000)]
    counting = Counting(engines, tmp_path, executableName=DIGESTS, retrievalMode=mode, maxByteSize=MIB)
    for one in data:
        engines.put_records("numbers", [("key", one)])
    with Running(counting) as host:
        memory = PeakMemory(host.process.pid)
        counting.wait_until(lambda: len(counting.delivered()) == len(data), 60)
        assert stop(host.process) == 0
        assert memory.stop() < 200, "see retrieval/handoff.py for what a shard may hold"
        assert host.log("child_failed") == []
    assert [one.data for one in counting.delivered()] == [f"{len(d)} {hashlib.sha256(d).hexdigest()}" for d in data]


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_batch_of_ten_thousand_records_is_one_message(engines: Engines, tmp_path: Path) -> None:
    for first in range(0, 25_000, 500):
        engines.put_records("numbers", [("key", f"{n}".encode()) for n in range(first, first + 500)])
    counting = Counting(engines, tmp_path)
    with Running(counting) as host:
        counting.wait_for_numbers(25_000, 60)
        assert stop(host.process) == 0
    assert [one.data for one in counting.delivered()] == [str(n) for n in range(25_000)]
