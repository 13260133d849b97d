"""The grace periods in the samples leave a host the time that it takes to stop."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kcl_host.config.keys import KEYS

SAMPLES = Path(__file__).parents[2] / "samples" / "deploy"
ENDS_WITHIN_S = 5.0
"""What the process needs after its budget: runtime/supervisor.py, JOIN_S."""


def number(file: str, pattern: str) -> float:
    found = re.findall(pattern, (SAMPLES / file).read_text())
    assert len(found) == 1, f"{file}: {pattern}"
    return float(found[0])


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("kcl-host.service", r"\nTimeoutStopSec=(\d+)\n"),
        ("kubernetes.yaml", r"\n +terminationGracePeriodSeconds: (\d+)\n"),
        ("ecs-task.json", r'"stopTimeout": (\d+),'),
    ],
)
def test_nobody_is_killed_who_stops_in_order(file: str, pattern: str) -> None:
    (grace,) = [key.default for key in KEYS if key.name == "shutdownGraceMillis"]
    assert number(file, pattern) >= float(str(grace)) / 1000 + ENDS_WITHIN_S


def test_the_task_definition_is_json() -> None:
    assert json.loads((SAMPLES / "ecs-task.json").read_text())["containerDefinitions"]
