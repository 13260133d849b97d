"""`kcl-host replay` while Java's MultiLangDaemon (KCL 3.1.3) reads: it hands over, and reads again from there.

Alone: `pytest -m stress tests/interop/test_replay_beside_java.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from tests.interop.test_java_one_after_the_other import (
    JAVA_KNOWN_S,
    KCL_HOST_S,
    TERMINATED_JVM,
    Application,
    Positions,
    Run,
    application,
    fleet,
)

__all__ = ["application", "fleet"]
pytestmark = [pytest.mark.interop, pytest.mark.stress]


def replay(application: Application, run: Run, *options: str) -> str:
    """Its output, by the file of kcl-host, which came first; what it says of its progress goes to that of the test."""
    file = application.runs[0].worker.log.with_suffix(".properties")
    done = subprocess.run(
        [sys.executable, "-m", "kcl_host", "replay", "-p", str(file), *options],
        cwd=file.parent,
        env={**os.environ, **run.worker.env, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    return done.stdout


def since(application: Application, at_s: float) -> Positions:
    """What has arrived since then (epoch seconds), as the stream itself says."""
    stored = application.fleet.engines.kinesis.stored_records(application.name)
    return {
        shard_id: [int(r.sequence_number) for r in records if r.approximate_arrival_timestamp >= at_s]
        for shard_id, records in stored.items()
    }


def test_java_hands_over_and_reads_again(application: Application) -> None:
    with application.kcl_host() as kcl_host:
        kcl_host.wait_until_records_flow(KCL_HOST_S)
        at_s = int(time.time() * 1000) / 1000
        time.sleep(2)
        assert kcl_host.worker.stop() == 0

    with application.java() as java:
        java.wait_until_records_flow(JAVA_KNOWN_S)
        before = {shard_id: len(got) for shard_id, got in java.delivered().items()}
        at = datetime.fromtimestamp(at_s, UTC).isoformat()
        said = replay(application, java, "--at", at, "--apply", "--save", "before.json")
        assert "leases set: 3, of which 3 were handed over by their owners" in said
        application.numbers.stop()
        wanted = since(application, at_s)

        def reads_again() -> bool:
            got = java.delivered()
            return all(got[shard_id][-len(numbers) :] == numbers for shard_id, numbers in wanted.items())

        took_s = java.worker.wait_for(reads_again, JAVA_KNOWN_S, "every record since then once more, in order")
        print(f"Java reads again within {took_s:.1f} s of its start")
        for shard_id, numbers in wanted.items():
            assert before[shard_id] > 0 and numbers[0] < max(java.delivered()[shard_id][: before[shard_id]])
        java.worker.wait_for(
            lambda: application.checkpoints() == {shard_id: numbers[-1] for shard_id, numbers in wanted.items()},
            JAVA_KNOWN_S,
            "the checkpoints at the last ones",
        )
        assert java.worker.stop() == TERMINATED_JVM
    kcl_host.assert_content()
    java.assert_content()


def test_java_that_is_not_asked_loses_its_leases_and_reads_again(application: Application) -> None:
    """As from an owner of KCL 2.x, which knows no handover."""
    with application.kcl_host() as kcl_host:
        kcl_host.wait_until_records_flow(KCL_HOST_S)
        assert kcl_host.worker.stop() == 0
    with application.java() as java:
        java.wait_until_records_flow(JAVA_KNOWN_S)
        said = replay(application, java, "--trim-horizon", "--apply", "--take", "--save", "before.json")
        assert "taken from owners that did not hand them over: 3" in said
        application.numbers.stop()
        wanted = since(application, 0)

        def reads_again() -> bool:
            got = java.delivered()
            return all(got[shard_id][-len(numbers) :] == numbers for shard_id, numbers in wanted.items())

        java.worker.wait_for(reads_again, JAVA_KNOWN_S, "every record once more, in order")
        assert java.worker.stop() == TERMINATED_JVM
