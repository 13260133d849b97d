"""The demo and a short soak, as scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'kcl-host[spark-local]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'kcl-host[spark-local]'")

from kcl_host.spark.server import ServerFailed, spark_home

try:
    spark_home()
except ServerFailed as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.stress
SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*command: str) -> str:
    if shutil.which("java") is None:
        pytest.skip("needs java on the PATH")
    environ = {**os.environ, "KCL_HOST_SPARK_VENV": sys.prefix}
    done = subprocess.run([str(SCRIPTS / command[0]), *command[1:]], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo() -> None:
    said = run("demo-spark", "--plain", "--seconds", "8")
    assert "each exactly once" in said
    assert "|hour " in said and "|not a JSON object|" in said


def test_a_short_soak() -> None:
    said = run("soak-spark", "--minutes", "1.5")
    assert "0 missing [], 0 twice [], 0 strange" in said
