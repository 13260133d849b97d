"""The samples in compiled languages and on Amazon's libraries, each through all of `kcl-host verify`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.clients import kclpy_folder, node_command

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
Sample = tuple[list[str], dict[str, str]]


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def go(into: Path) -> Sample:
    need("go")
    subprocess.run(["go", "build", "-o", str(into / "processor"), str(SAMPLES / "go" / "processor.go")], check=True)
    return [str(into / "processor")], {}


def rust(into: Path) -> Sample:
    need("cargo")
    cache = ROOT / ".kcl-host" / "rust-sample"
    manifest = SAMPLES / "rust" / "Cargo.toml"
    options = ["--release", "--quiet", "--locked", "--manifest-path", str(manifest), "--target-dir", str(cache)]
    subprocess.run(["cargo", "build", *options], check=True)
    return [str(cache / "release" / "processor")], {}


def java(into: Path) -> Sample:
    need("javac", "java")
    subprocess.run(["javac", "-d", str(into), str(SAMPLES / "java" / "Processor.java")], check=True)
    return ["java", "-cp", str(into), "Processor"], {}


def ruby(into: Path) -> Sample:
    need("ruby")
    if subprocess.run(["ruby", "-e", "require 'aws/kclrb'"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("the gem aws-kclrb is not installed")
    return ["ruby", str(SAMPLES / "ruby" / "processor.rb")], {}


def python_kclpy(into: Path) -> Sample:
    return [sys.executable, str(SAMPLES / "python-kclpy" / "processor.py")], {"PYTHONPATH": str(kclpy_folder())}


def node_kcl(into: Path) -> Sample:
    _, variables = node_command()
    return ["node", str(SAMPLES / "node-kcl" / "processor.js")], variables


@pytest.mark.parametrize("make", [go, rust, java, ruby, python_kclpy, node_kcl], ids=lambda make: make.__name__)
def test_a_sample_keeps_to_the_whole_protocol(make: Callable[[Path], Sample], tmp_path: Path) -> None:
    command, variables = make(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "kcl_host", "verify", *command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.endswith("sessions without a deviation\n")
    assert "deviation " not in done.stdout


def test_every_sample_is_named_in_the_list() -> None:
    listed = (SAMPLES / "README.md").read_text()
    for folder in SAMPLES.iterdir():
        if folder.is_dir():
            assert f"`{folder.name}/`" in listed or f"({folder.name}/" in listed, folder.name
