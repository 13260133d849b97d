"""The paired measurements work: quick ones of kcl-host in the gate, Java's in scripts/ci-full. Never a time."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

GATE = {"throughput": ["--only", "1 KB"], "start": [], "idle": [], "plan": ["--only", "uneven"]}
ALL = ["throughput", "start", "idle", "plan", "handover"]
LIMIT_S = 600


@pytest.mark.interop
@pytest.mark.parametrize("name", GATE)
def test_kcl_host_can_be_measured(name: str) -> None:
    assert "works" in quick(name, "kcl-host", *GATE[name])


@pytest.mark.stress
@pytest.mark.parametrize("host", ["kcl-host", "java"])
@pytest.mark.parametrize("name", ALL)
def test_both_can_be_measured(name: str, host: str) -> None:
    assert "works" in quick(name, host)


def quick(name: str, host: str, *options: str) -> str:
    for tool in ("go", "cc", *(("java", "javac", "mvn", "keytool") if host == "java" else ())):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    command = [sys.executable, "-m", f"tests.bench.{name}", "--quick", "--host", host, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout
    return done.stdout
