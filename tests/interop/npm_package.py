"""Packages of npm that tests run, fetched once into .kcl-host."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".kcl-host"


def npm_package(name: str, version: str) -> Path:
    """Its folder; skips the test when node or npm is missing."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    cache = CACHE / name
    folder = cache / version
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as parent:
            fetched = Path(parent) / "fetched"
            fetched.mkdir()
            options = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(fetched))
            subprocess.run(["npm", "install", *options, f"{name}@{version}"], check=True, timeout=600)
            with contextlib.suppress(OSError):  # another test process was faster
                fetched.rename(folder)
    return folder / "node_modules" / name
