"""Unmodified MultiLang clients of other people, fetched once by package name into .kcl-host/clients.

`kclpy_command` and `node_command` return (command, extra environment variables) of a child.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".kcl-host" / "clients"
KCLPY = "amazon_kclpy-3.2.0"
"""From PyPI, where only the source distribution is; unpacked, not installed, since installing it downloads jars."""
AWS_KCL = "aws-kcl@2.3.2"
"""The newest on npm. It contains no sample, so the application is our own node_app.js."""


def kclpy_folder() -> Path:
    """The library of amazon_kclpy, unedited: what PYTHONPATH has to name."""
    return _fetched(KCLPY, _fetch_kclpy)


def kclpy_command() -> tuple[list[str], dict[str, str]]:
    """The sample application of amazon_kclpy, unedited."""
    folder = kclpy_folder()
    return [sys.executable, str(folder / "samples" / "sample_kclpy_app.py")], {"PYTHONPATH": str(folder)}


def node_command() -> tuple[list[str], dict[str, str]]:
    """node_app.js on the unedited package aws-kcl; skips the test when node or npm is missing."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = _fetched(AWS_KCL, _fetch_aws_kcl)
    return ["node", str(Path(__file__).parent / "node_app.js")], {"NODE_PATH": str(folder / "node_modules")}


def _fetch_kclpy(into: Path) -> None:
    requirement = KCLPY.replace("-", "==")
    _run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        "amazon_kclpy",
        "-d",
        str(into),
        requirement,
    )
    with tarfile.open(into / f"{KCLPY}.tar.gz") as sdist:
        sdist.extractall(into, filter="data")
    for path in (into / KCLPY).iterdir():
        path.rename(into / path.name)


def _fetch_aws_kcl(into: Path) -> None:
    _run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(into), AWS_KCL)


def _fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as parent:
            made = Path(parent) / "made"
            made.mkdir()
            fetch(made)
            with contextlib.suppress(OSError):  # another test process was faster
                os.rename(made, folder)
    return folder


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
