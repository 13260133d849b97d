"""dynalite, an independent implementation of DynamoDB in Node: it locks each item it changes, so it may judge races.

Fetched once from npm into .kcl-host/dynalite; started on 127.0.0.1, in memory, and ended by its pid.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.dynamodb_local import free_port, served

CACHE = Path(__file__).parents[2] / ".kcl-host" / "dynalite"
VERSION = "4.0.0"
STATUS_CHANGE_MS = 1
"""So long a table is CREATING, UPDATING or DELETING; its own default is 500."""


@contextmanager
def dynalite() -> Iterator[str]:
    """Yields the endpoint URL of a fresh engine; skips the test when node or npm is missing."""
    port = free_port()
    command = ["node", str(_package() / "cli.js"), "--host", "127.0.0.1", "--port", str(port)]
    for change in ("create", "update", "delete"):
        command += [f"--{change}TableMs", str(STATUS_CHANGE_MS)]
    with served("dynalite", command, port) as endpoint_url:
        yield endpoint_url


def _package() -> Path:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = CACHE / VERSION
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as parent:
            fetched = Path(parent) / "fetched"
            fetched.mkdir()
            options = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(fetched))
            subprocess.run(["npm", "install", *options, f"dynalite@{VERSION}"], check=True, timeout=600)
            with contextlib.suppress(OSError):  # another test process was faster
                fetched.rename(folder)
    return folder / "node_modules" / "dynalite"
