"""What a measurement of throughput runs: the fast source, either host on its production wire, the reading children.

Java speaks HTTP/2 with CBOR, kcl-host HTTP/1.1 with JSON, both over TLS with a certificate made by the source. Source
and C child are built once per change of their text, into .kcl-host/bench. The Java daemon runs with the JVM's own
defaults, as its users start it, and with the jars that tests/interop fetches. All of Linux' /proc is read here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import click
import msgspec
import pytest

from kcl_host.local.dynamodb import REGION, DynamoDbEngine
from tests.bench.report import Kind
from tests.interop.clients import kclpy_folder, node_command
from tests.interop.java_daemon import (
    CACHE,
    DAEMON_OF_3_5_1,
    KCL_3_5_1_UNDER_AN_OLDER_DAEMON,
    MAIN_CLASS,
    LoggedProcess,
    write_properties,
)
from tests.interop.maven import NotFound, libraries

HERE: Final = Path(__file__).parent
BUILT: Final = HERE.parents[1] / ".kcl-host" / "bench"

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
MB: Final = 1e6

Child = Literal["c", "kclpy", "node"]
PROPERTIES: Final = {
    "streamName": "bench",
    "AWSCredentialsProvider": "EnvironmentVariableCredentialsProvider",
    "initialPositionInStream": "TRIM_HORIZON",
    "retrievalMode": "POLLING",
    "metricsLevel": "NONE",
    "disableWorkerMetrics": "true",
    "regionName": REGION,
}
"""Of every measurement. CloudWatch is not there; nor are the files of a container, from which Java reads its CPU."""
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": REGION}


class Missing(click.ClickException):
    """A tool that the measurement needs."""


# Processes, as the kernel sees them


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process so far; nothing of its children. `peak_mb` is resident memory at its highest."""

    cpu_s: float
    resident_mb: float
    peak_mb: float
    threads: int
    descriptors: int


def use_of(pid: int) -> Use:
    """Raises ProcessLookupError when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in proc_lines(f"/proc/{pid}/status"))
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    resident_mb, peak_mb = (int(status.get(n, "0 kB").split()[0]) * 1024 / MB for n in ("VmRSS", "VmHWM"))
    return Use(
        cpu_s=(int(stat[11]) + int(stat[12])) / TICKS_PER_S,
        resident_mb=resident_mb,
        peak_mb=peak_mb,
        threads=int(stat[17]),
        descriptors=descriptors,
    )


def proc_lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


def machine_busy_s() -> float:
    """CPU seconds of all cores that were not idle, since the machine started."""
    ticks = list(map(int, proc_lines("/proc/stat")[0].split()[1:9]))
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S


def children_of(pid: int) -> list[int]:
    """Started by any of its threads and alive."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return sorted(found)


# What is built


def source_program() -> Path:
    """Raises Missing without Go."""
    folder = HERE / "source"
    return _built("source", [*sorted(folder.glob("*.go")), folder / "go.mod"], ["go", "build", "-C", str(folder), "-o"])


def reading_child() -> Path:
    """Raises Missing without a C compiler."""
    text = HERE / "children" / "reading_child.c"
    return _built("reading_child", [text], ["cc", "-O2", str(text), "-o"])


def java_classes(name: str, class_path: str) -> Path:
    """The folder of classes compiled from java/`name`.java. Raises Missing without javac."""
    text = HERE / "java" / f"{name}.java"
    return _built(name, [text], ["javac", "-proc:none", "-cp", class_path, str(text), "-d"])


def _built(name: str, texts: Sequence[Path], command: Sequence[str]) -> Path:
    digest = hashlib.sha256(b"\0".join(text.read_bytes() for text in texts)).hexdigest()[:12]
    program = BUILT / f"{name}-{digest}"
    if not program.exists():
        if shutil.which(command[0]) is None:
            raise Missing(f"{command[0]} is not installed: it builds {name}")
        BUILT.mkdir(parents=True, exist_ok=True)
        making = program.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, str(making)], check=True)
        making.rename(program)
    return program


def child_command(child: Child) -> tuple[str, dict[str, str]]:
    """`executableName` and further environment variables. Raises Missing when its library cannot be had."""
    if child == "c":
        return str(reading_child()), {}
    if child == "kclpy":
        path = os.pathsep.join((str(kclpy_folder()), os.environ.get("PYTHONPATH", "")))
        return f"{sys.executable} {HERE / 'children' / 'kclpy_child.py'}", {"PYTHONPATH": path}
    try:
        _, env = node_command()
    except pytest.skip.Exception as missing:
        raise Missing(str(missing)) from None
    return f"node {HERE / 'children' / 'node_child.js'}", env


# The source


class Source(LoggedProcess):
    """Serves `shards` shards whose records all have the payload of `payloads` (one, or one for each shard); none: idle
    shards."""

    def __init__(self, folder: Path, shards: int, payloads: Sequence[bytes] = ()) -> None:
        folder.mkdir()
        self.folder, self.shards = folder, shards
        self.notes = folder / "answers"
        self.certificate = folder / "certificate.pem"
        files = []
        for number, payload in enumerate(payloads):
            files.append(folder / f"payload-{number}")
            files[-1].write_bytes(payload)
        options = ["-folder", str(folder), "-shards", str(shards)]
        options += ["-notes", str(self.notes)] if payloads else ["-idle"]
        super().__init__([str(source_program()), "serve", *options, *map(str, files)], folder / "source.log")

    @property
    def url(self) -> str:
        return self.log.read_text().strip()

    def start(self) -> None:
        super().start()
        self.wait_for(lambda: self.url.startswith("https://"), 10, "the source listens")

    def requests(self) -> Counter[str]:
        """So far, by operation."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        with urllib.request.urlopen(self.url, context=context) as answer:
            return Counter(json.load(answer))

    def ceiling(self, kind: Kind, limit: int, seconds: float) -> float:
        """MB of bodies per second on the wire of a host, to a client that needs half of the processor time."""
        wire = "h2-cbor" if kind == "java" else "h1-json"
        options = ["-folder", str(self.folder), "-url", self.url, "-wire", wire, "-shards", str(self.shards)]
        command = [str(source_program()), "load", *options, "-limit", str(limit), "-seconds", str(seconds)]
        _, mb = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        return float(mb)


class Place(msgspec.Struct, frozen=True):
    """A stream, and the tables of one application."""

    folder: Path
    source: Source
    tables: DynamoDbEngine
    table_requests: Counter[str]
    """So far, by operation."""

    def rows(self) -> list[dict[str, dict[str, str]]]:
        """Of all tables, in DynamoDB JSON."""
        names = self.tables.call("ListTables")["TableNames"]
        return [row for name in names for row in self.tables.call("Scan", TableName=name)["Items"]]

    def owners(self) -> dict[str, str | None]:
        """Of leases by key; None is nobody."""
        leases = [row for row in self.rows() if row.get("leaseKey", {}).get("S", "").startswith("shardId-")]
        return {row["leaseKey"]["S"]: row.get("leaseOwner", {}).get("S") for row in leases}

    def leader(self) -> str | None:
        """Worker id of the holder of the leader lock."""
        locks = [row for row in self.rows() if "Leader" in (row.get(n, {}).get("S") for n in ("key", "leaseKey"))]
        return next((row["ownerName"]["S"] for row in locks if "ownerName" in row), None)


@contextlib.contextmanager
def place(folder: Path, shards: int, payloads: Sequence[bytes] = ()) -> Iterator[Place]:
    """Without payloads the shards are idle."""
    tables, requests = DynamoDbEngine(), Counter[str]()
    tables.front.observe = lambda operation, _body, _answer: requests.update([operation])
    tables.start()
    try:
        with Source(folder / "source", shards, payloads) as source:
            yield Place(folder, source, tables, requests)
    finally:
        tables.stop()


# The hosts


class Java(msgspec.Struct, frozen=True):
    """`options` are the JVM's."""

    class_path: str
    versions: str
    options: tuple[str, ...] = ()


def java(options: Sequence[str] = ()) -> Java:
    """The newest daemon that the registry has, on KCL 3.5.1. Raises Missing without java or mvn."""
    if shutil.which("java") is None or shutil.which("keytool") is None:
        raise Missing("java and keytool are not installed")
    folder = CACHE / "kcl-3.5.1"
    try:
        try:
            jars = libraries(folder, DAEMON_OF_3_5_1)
        except NotFound:
            jars = libraries(folder, KCL_3_5_1_UNDER_AN_OLDER_DAEMON)
    except pytest.skip.Exception as missing:
        raise Missing(str(missing)) from None
    named = {
        found[1]: found[2] for jar in jars.iterdir() if (found := re.fullmatch(r"(.*?)-(\d[\w.]*)\.jar", jar.name))
    }
    runtime = subprocess.run(["java", "-version"], stderr=subprocess.PIPE, text=True, check=True).stderr
    release = re.search(r'"([\d._]+)"', runtime)
    versions = (
        f"MultiLangDaemon {named['amazon-kinesis-client-multilang']} on KCL {named['amazon-kinesis-client']}, "
        f"Java {release[1] if release else '?'} {' '.join(options) or 'without options'}"
    )
    return Java(f"{jars}/*", versions, tuple(options))


def host(
    kind: Kind,
    name: str,
    at: Place,
    properties: Mapping[str, str],
    env: Mapping[str, str],
    jvm: Java | None,
    *,
    is_paced: bool = True,
) -> LoggedProcess:
    """Not started yet; its log, properties and its children's notes are in the folder `name` of the place.

    Neither host reads a shard more often than every 200 ms; with `is_paced` False both are made to, by a start of ours.
    """
    folder = at.folder / name
    (folder / "notes").mkdir(parents=True)
    properties = {
        **PROPERTIES,
        "applicationName": f"bench-{kind}",
        "kinesisEndpoint": at.source.url,
        "dynamoDBEndpoint": at.tables.endpoint,
        **properties,
    }
    file = write_properties(folder / "bench.properties", properties)
    env = {**env, **CREDENTIALS, "KCL_BENCH_NOTES": str(folder / "notes")}
    if kind == "java":
        assert jvm is not None
        classes, main = jvm.class_path, MAIN_CLASS
        if not is_paced:
            classes, main = (
                f"{java_classes('UnpacedDaemon', classes)}:{classes}",
                "software.amazon.kinesis.multilang.config.UnpacedDaemon",
            )
        command = ["java", *jvm.options, *_trusting(at.source.certificate, folder), "-cp", classes]
        command += [main, "--properties-file", str(file)]
    else:
        command = [sys.executable, "-m", "kcl_host" if is_paced else "tests.bench.unpaced_host", "-p", str(file)]
        env["AWS_CA_BUNDLE"] = str(at.source.certificate)
    return LoggedProcess(command, folder / "host.log", env)


@contextlib.contextmanager
def running(host: LoggedProcess) -> Iterator[LoggedProcess]:
    """Started; ended by TERM if it still runs then, and by KILL if that does not help."""
    with host:
        yield host
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.stop(20)


def _trusting(certificate: Path, folder: Path) -> list[str]:
    store = folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "source", "-file", str(certificate)]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", "changeit"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]
