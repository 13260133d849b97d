"""What a measurement of throughput runs: the fast source, either host on its production wire, the reading children.

Java speaks HTTP/2 with CBOR, kcl-host HTTP/1.1 with JSON, both over TLS with a certificate made by the source. Source
and C child are built once per change of their text, into .kcl-host/bench. The Java daemon runs with the JVM's own
defaults, as its users start it, and with the jars that tests/interop fetches. All of Linux' /proc is read here.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import click
import msgspec
import pytest

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

Kind = Literal["kcl-host", "java"]
Child = Literal["c", "kclpy", "node"]


class Missing(click.ClickException):
    """A tool that the measurement needs."""


# Processes, as the kernel sees them


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process so far; nothing of its children. `peak_mb` is resident memory at its highest."""

    cpu_s: float
    peak_mb: float
    threads: int


def use_of(pid: int) -> Use:
    """Raises ProcessLookupError when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return Use(
        cpu_s=(int(stat[11]) + int(stat[12])) / TICKS_PER_S,
        peak_mb=int(status.get("VmHWM", "0 kB").split()[0]) * 1024 / MB,
        threads=int(stat[17]),
    )


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
    """Serves `shards` shards whose records all have the payload of `payloads` (one, or one for each shard)."""

    def __init__(self, folder: Path, shards: int, payloads: Sequence[bytes]) -> None:
        folder.mkdir()
        self.folder, self.shards = folder, shards
        self.notes = folder / "answers"
        self.certificate = folder / "certificate.pem"
        files = []
        for number, payload in enumerate(payloads):
            files.append(folder / f"payload-{number}")
            files[-1].write_bytes(payload)
        options = ["-folder", str(folder), "-shards", str(shards), "-notes", str(self.notes)]
        super().__init__([str(source_program()), "serve", *options, *map(str, files)], folder / "source.log")

    @property
    def url(self) -> str:
        return self.log.read_text().strip()

    def start(self) -> None:
        super().start()
        self.wait_for(lambda: self.url.startswith("https://"), 10, "the source listens")

    def ceiling(self, wire: Literal["h2-cbor", "h1-json"], limit: int, seconds: float) -> tuple[float, float]:
        """Answers and MB of bodies per second to a client of its own, which needs half of the processor time."""
        options = ["-folder", str(self.folder), "-url", self.url, "-wire", wire, "-shards", str(self.shards)]
        command = [str(source_program()), "load", *options, "-limit", str(limit), "-seconds", str(seconds)]
        answers, mb = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        return float(answers), float(mb)


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


@contextlib.contextmanager
def running(
    kind: Kind, folder: Path, source: Source, properties: Mapping[str, str], env: Mapping[str, str], jvm: Java | None
) -> Iterator[LoggedProcess]:
    """The host on `properties`, whose notes go to `folder`/notes; ended by TERM, and by KILL if that does not help."""
    folder.mkdir()
    (folder / "notes").mkdir()
    file = write_properties(folder / "bench.properties", properties)
    env = {**env, "KCL_BENCH_NOTES": str(folder / "notes")}
    if kind == "java":
        assert jvm is not None
        command = ["java", *jvm.options, *_trusting(source.certificate, folder), "-cp", jvm.class_path, MAIN_CLASS]
        command += ["--properties-file", str(file)]
    else:
        command = [sys.executable, "-m", "kcl_host", "-p", str(file)]
        env["AWS_CA_BUNDLE"] = str(source.certificate)
    host = LoggedProcess(command, folder / "host.log", env)
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


# Notes


class Answer(msgspec.Struct, frozen=True):
    """One line of the source's notes; times in seconds since the epoch."""

    records: int
    began_s: float
    ended_s: float


class Status(msgspec.Struct, frozen=True):
    """One line of a child's notes: it has answered for everything up to this position of its shard."""

    batch: int
    """Number of the source's answer."""
    index: int
    """Of the record within it."""
    sub: int
    records: int
    at_s: float


def answers(source: Source) -> dict[tuple[int, int], Answer]:
    """By shard and number of the answer."""
    found: dict[tuple[int, int], Answer] = {}
    for line in _lines(source.notes):
        shard, batch, records, began_ns, ended_ns = map(int, line)
        found[shard, batch] = Answer(records, began_ns / 1e9, ended_ns / 1e9)
    return found


def statuses(folder: Path) -> dict[int, list[Status]]:
    """Of the children of one host by shard, in the order of time; batches without records left out."""
    found: dict[int, list[Status]] = {}
    for file in (folder / "notes").iterdir():
        for number, sub, _, records, at_ns in _lines(file):
            if number != "-":
                shard, batch, index = int(number[32:38]), int(number[38:50]), int(number[50:])
                status = Status(batch, index, int(sub), int(records), int(at_ns) / 1e9)
                found.setdefault(shard, []).append(status)
    for of_shard in found.values():
        of_shard.sort(key=lambda status: status.at_s)
    return found


def _lines(file: Path) -> Iterator[list[str]]:
    """Whole lines only: the last one may be half written."""
    text = file.read_text()
    return (line.split() for line in text[: text.rfind("\n") + 1].splitlines())


def wait_for_statuses(host: LoggedProcess, folder: Path, shards: int, limit_s: float) -> float:
    """Seconds from the start of the host until each shard has had a batch answered."""
    return host.wait_for(lambda: len(statuses(folder)) == shards, limit_s, f"a batch of each of {shards} shards")


def monotone(of_shard: Sequence[Status]) -> bool:
    """No answer of the source was left out, and none came twice."""
    return all(
        b.batch <= a.batch + 1 and (a.batch, a.index, a.sub) < (b.batch, b.index, b.sub)
        for a, b in itertools.pairwise(of_shard)
    )


def now_s() -> float:
    """The clock of all notes."""
    return time.time()
