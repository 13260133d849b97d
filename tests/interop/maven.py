"""Libraries from Maven Central with all that they need at run time, fetched once."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

FETCH_LIMIT_S = 900


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    name: str
    version: str
    type: str = "jar"

    def as_dependency(self) -> str:
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version><type>{self.type}</type></dependency>"
        )


class NotFound(Exception):
    """The registry has not got one of the artifacts; what Maven said."""


def libraries(folder: Path, artifacts: Iterable[Artifact]) -> Path:
    """`folder`, filled when it does not exist yet; skips the test when mvn is missing for that. Raises NotFound."""
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pom, fetched = Path(scratch) / "pom.xml", Path(scratch) / "libraries"
        pom.write_text(_pom(artifacts))
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fetched}")
        command = ["mvn", "-B", "-q", "-f", str(pom), *goal]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S)
        if done.returncode:
            # The second is what it says of an artifact that it has not found before.
            missing = "Could not find artifact" in done.stdout or "was not found in" in done.stdout
            raise (NotFound if missing else RuntimeError)(
                f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        with contextlib.suppress(OSError):  # another test process was faster
            fetched.rename(folder)
    return folder


def _pom(artifacts: Iterable[Artifact]) -> str:
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>kcl-host</groupId><artifactId>libraries</artifactId><version>1</version>"
        f"<dependencies>{''.join(artifact.as_dependency() for artifact in artifacts)}</dependencies></project>"
    )
