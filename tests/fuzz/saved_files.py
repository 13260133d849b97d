"""Files that a command reads again: a saved fleet, and the positions that take a replay back."""

from __future__ import annotations

import atexit
import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from kcl_host.cli.replay import read_saved
from kcl_host.decisions.fleet_plan import plan_fleet
from kcl_host.decisions.replay import SavedPosition, SavedPositions, plan_undo
from kcl_host.decisions.saved_fleet import load_fleet, save_fleet
from kcl_host.errors import ConfigurationError
from kcl_host.model.shard import StreamIdentifier
from tests.fuzz.driver import Target
from tests.fuzz.mutation import disturbed, mutated
from tests.unit.coordination_rig import settings_of
from tests.unit.test_fleet_view import lease, snapshot


class Saved(NamedTuple):
    is_fleet: bool
    data: bytes


@cache
def _originals() -> tuple[bytes, bytes]:
    positions = (
        SavedPosition(lease_key="s1", stream="orders", shard_id="s1", checkpoint="TRIM_HORIZON"),
        SavedPosition(lease_key="s2", stream="1:orders:2", shard_id="s2", checkpoint="123", sub_sequence_number=4),
    )
    undo = SavedPositions(table="t", written="now", target="LATEST", leases=positions)
    fleet = save_fleet((snapshot(lease("s1", "a"), lease("s2", "b", throughput_kbps=5.0)),), settings_of("me"))
    return fleet, msgspec.json.encode(undo)


def make(rng: Random) -> Saved:
    is_fleet = rng.random() < 0.5
    data = _originals()[0 if is_fleet else 1]
    if rng.random() < 0.7:
        return Saved(is_fleet, json.dumps(disturbed(rng, json.loads(data))).encode())
    return Saved(is_fleet, mutated(rng, data))


@cache
def _file() -> Path:
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name) / "saved.json"


def run(saved: Saved) -> None:
    try:
        if saved.is_fleet:
            plan_fleet(load_fleet(saved.data), Random(1), joining=1)
        else:
            _file().write_bytes(saved.data)
            plan_undo(StreamIdentifier(name="orders"), (), read_saved(_file()).leases, ())
    except ConfigurationError as error:
        assert str(error)


TARGET = Target("saved-files", make, run)
