"""What is wrong with a configuration ends in one line that says what to do, and the documented exit code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting

pytestmark = [pytest.mark.integration, pytest.mark.interop]  # Too long for the default tests: .ci/run has it.

Break = Callable[[Engines, Counting], None]


@pytest.fixture(scope="module")
def shared() -> Iterator[Engines]:
    with Engines() as running:
        running.create_stream("numbers", 1)
        yield running


@pytest.fixture
def engines(shared: Engines) -> Iterator[Engines]:
    yield shared
    for engine in (shared.kinesis, shared.dynamodb):
        engine.faults.clear()
        engine.faults.require_authorization = False


def no_file(engines: Engines, counting: Counting) -> None:
    counting.properties.unlink()


def unreadable_file(engines: Engines, counting: Counting) -> None:
    counting.properties.unlink()
    counting.properties.mkdir()


def without(key: str) -> Break:
    def change(engines: Engines, counting: Counting) -> None:
        lines = counting.properties.read_text().splitlines()
        counting.properties.write_text("\n".join(line for line in lines if not line.startswith(key)))

    return change


def having(line: str) -> Break:
    """The last line of a key wins."""

    def change(engines: Engines, counting: Counting) -> None:
        with counting.properties.open("a") as properties:
            properties.write(line + "\n")

    return change


def refused(service: str, operation: str) -> Break:
    def change(engines: Engines, counting: Counting) -> None:
        getattr(engines, service).faults.add(operation, "deny")

    return change


def wrong_credentials(engines: Engines, counting: Counting) -> None:
    engines.kinesis.faults.require_authorization = True


CASES: dict[str, tuple[Break, int, str]] = {
    "missing file": (no_file, 2, r"app\.properties"),
    "unreadable file": (unreadable_file, 2, r"app\.properties"),
    "no command": (without("executableName"), 2, "executableName"),
    "no application": (without("applicationName"), 2, "applicationName"),
    "no stream name": (without("streamName"), 2, "streamName"),
    "no region": (without("regionName"), 2, "regionName"),
    "wrong type": (having("initialPositionInStream = SOMEWHEN"), 2, "initialPositionInStream.*SOMEWHEN"),
    "no region of that form": (having("regionName = mars north"), 2, "mars north"),
    "unknown credentials": (having("AwsCredentialsProvider = MyOwnProvider"), 2, "MyOwnProvider"),
    "refused endpoint": (having("kinesisEndpoint = http://127.0.0.1:9"), 1, "could not connect.*check the endpoint"),
    "no credentials": (having("AwsCredentialsProvider = EnvironmentVariableCredentialsProvider"), 3, "credentials"),
    "wrong credentials": (wrong_credentials, 3, "check the credentials"),
    "missing stream": (having("streamName = nowhere"), 4, "stream nowhere"),
    "may not describe the stream": (refused("kinesis", "DescribeStreamSummary"), 3, "grant kinesis:DescribeStream"),
    "may not list shards": (refused("kinesis", "ListShards"), 3, "grant kinesis:ListShards"),
    "may not describe tables": (refused("dynamodb", "DescribeTable"), 3, "grant dynamodb:DescribeTable"),
    "may not create tables": (refused("dynamodb", "CreateTable"), 3, "grant dynamodb:CreateTable"),
    "may not write leases": (refused("dynamodb", "UpdateItem"), 3, "grant dynamodb:UpdateItem"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_the_documented_exit_code(
    engines: Engines, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    make_wrong, exit_code, said = CASES[case]
    counting = Counting(
        engines,
        tmp_path,
        applicationName=re.sub(r"\W", "-", case),
        schedulerInitializationBackoffTimeMillis=20,
    )
    make_wrong(engines, counting)
    host = counting.start()
    try:
        assert host.wait(30) == exit_code
    finally:
        host.kill()
        host.wait()
    output = counting.log.read_text()
    assert "Traceback" not in output and "exception=" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("kcl-host: ")]
    assert line == output.splitlines()[-1]
    assert re.search(said, line), line
    print(line)
