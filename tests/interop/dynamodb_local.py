"""DynamoDB Local, Amazon's own engine: conditional writes are atomic there, so it may judge races (moto may not).

Fetched once from Maven Central into .kcl-host/dynamodb-local; started on 127.0.0.1, in memory, and ended by its pid.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.maven import Artifact, libraries

CACHE = Path(__file__).parents[2] / ".kcl-host" / "dynamodb-local"
VERSION = "3.1.0"
START_LIMIT_S = 60.0
_ARTIFACTS = (
    Artifact(group="software.amazon.dynamodb", name="DynamoDBLocal", version=VERSION),
    Artifact(group="com.almworks.sqlite4java", name="libsqlite4java-linux-amd64", version="1.0.392", type="so"),
)


@contextmanager
def dynamodb_local() -> Iterator[str]:
    """Yields the endpoint URL of a fresh engine; skips the test when java or mvn is missing."""
    folder = _libraries()
    port = free_port()
    command = [
        "java",
        "-Xmx256m",
        f"-Dsqlite4java.library.path={folder}",
        "-cp",
        f"{folder}/*",
        str(Path(__file__).with_name("DynamoDbOnLoopback.java")),
        *("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)),
    ]
    with served("DynamoDB Local", command, port) as endpoint_url:
        yield endpoint_url


@contextmanager
def served(name: str, command: list[str], port: int) -> Iterator[str]:
    """Runs a server that listens on 127.0.0.1:`port`; yields its URL once it answers, and ends it by its pid."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            if not _answers(f"http://127.0.0.1:{port}/", process):
                output.seek(0)
                pytest.fail(f"{name} did not start:\n{output.read().decode(errors='replace')}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _libraries() -> Path:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    return libraries(CACHE / VERSION, _ARTIFACTS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """True when it answers anything over HTTP; a bare request is answered by status 400."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return True
        except urllib.error.HTTPError as answer:
            answer.close()
            return True
        except OSError:
            time.sleep(0.1)
    return False
