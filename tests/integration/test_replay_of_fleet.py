"""`kcl-host replay` beside two hosts that read, as processes on the embedded engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from tests.integration.fleet_of_hosts import FAST, STREAM, Fleet

pytestmark = [pytest.mark.integration, pytest.mark.interop]

S0, S1, S2, S3 = (f"shardId-{n:012d}" for n in range(4))
LIMIT_S = 60.0


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


def replay(fleet: Fleet, *options: str) -> str:
    """Its output. It has ended well."""
    done = subprocess.run(
        [sys.executable, "-m", "kcl_host", "replay", "-p", str(fleet.folder / "a.properties"), *options],
        cwd=fleet.folder,
        env={**os.environ, **fleet.engines.environment(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def positions(fleet: Fleet) -> dict[str, str]:
    return {key: row["checkpoint"] for key, row in fleet.rows().items()}


def arrived(engines: Engines, since_s: float) -> dict[str, set[str]]:
    """Sequence numbers by shard."""
    return {
        shard: {str(record.sequence_number) for record in records if record.approximate_arrival_timestamp >= since_s}
        for shard, records in engines.kinesis.stored_records(STREAM).items()
    }


def has_come_again(fleet: Fleet, since_s: float, wanted: dict[str, set[str]]) -> bool:
    """Every one of these records was given to a child that began after `since_s` (monotonic)."""
    began = {(note.worker, note.shard): note.at_s for note in fleet.notes.all("initialized", since_s=since_s)}
    came: dict[str, set[str | None]] = {shard: set() for shard in wanted}
    for note in fleet.notes.all("records", since_s=since_s):
        if note.at_s > began.get((note.worker, note.shard), float("inf")):
            came[note.shard].update(note.numbers)
    return all(numbers <= came[shard] for shard, numbers in wanted.items())


def test_a_fleet_reads_again_over_a_reshard_and_goes_back(engines: Engines, tmp_path: Path) -> None:
    with Fleet(engines, tmp_path, shards=2, tick_s=0.2, **FAST) as fleet:
        a, _ = fleet.start("a", "b")
        fleet.wait_until(lambda: len(set(fleet.owners().values())) == 2, LIMIT_S)
        fleet.wait_until(lambda: len(fleet.notes.delivering(0)) == 2, LIMIT_S)
        time.sleep(1)
        at_s = time.time()
        at = datetime.fromtimestamp(at_s, UTC).isoformat()
        time.sleep(1)
        engines.split_shard(STREAM, S0)
        engines.put_records(STREAM, [(f"key {n}", b"to all of them") for n in range(30)])
        fleet.wait_until(lambda: {S1, S2, S3} <= fleet.notes.delivering(0).keys(), LIMIT_S)
        fleet.wait_until(lambda: fleet.rows()[S2]["checkpoint"].isdigit(), LIMIT_S)

        before = positions(fleet)
        # Each child is in the middle of a batch when its worker loses the lease, and checkpoints it afterwards.
        (fleet.hold / "a").touch()
        (fleet.hold / "b").touch()
        time.sleep(1)
        began_s = time.monotonic()
        said = replay(fleet, "--at", at, "--apply", "--take", "--save", "before.json")
        assert "leases set: 4, of which 0 were handed over" in said
        (fleet.hold / "a").unlink()
        (fleet.hold / "b").unlink()
        wanted = arrived(engines, at_s)
        assert all(wanted.values()), "in each shard"
        fleet.wait_until(lambda: has_come_again(fleet, began_s, wanted), LIMIT_S)
        refused = {note.shard for note in fleet.notes.all("refused", since_s=began_s)}
        assert refused >= {S1}, "its child checkpointed when it was too late"

        saved = {
            one["shardId"]: one.get("checkpoint")
            for one in json.loads((tmp_path / "before.json").read_text())["leases"]
        }
        assert saved[S0] == "SHARD_END" and int(saved[S1]) >= int(before[S1])
        said = replay(fleet, "--undo", "before.json", "--apply", "--save", "then.json")
        assert "leases set: " in said and "taken from" not in said, "now they are handed over"
        fleet.wait_until(lambda: positions(fleet)[S0] == "SHARD_END", LIMIT_S)
        assert all(int(positions(fleet)[shard]) >= int(saved[shard]) for shard in (S1, S2, S3))
        assert a.is_running
