"""No secret comes into a log: real processes at DEBUG, with marked secrets wherever a host meets any."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, Running, stop

pytestmark = [pytest.mark.integration, pytest.mark.interop]

KEY_ID = "AKIAMARKEDMARKEDMARK"
MARKS = {
    "AWS_SECRET_ACCESS_KEY": "marked/secret+of/the+environment",
    "AWS_SESSION_TOKEN": "marked+token//of/the/environment==",
    "DATABASE_PASSWORD": "marked-word-of-the-environment",
}
OF_THE_FILE = {"databasePassword": "marked-word-of-the-file", "secretAccessKey": "marked-key-of-the-file"}
OF_THE_CHILD = "marked-word-of-the-child"
CHILD = f"""
import runpy, sys
print("connects with password={OF_THE_CHILD} now", file=sys.stderr, flush=True)
print('{{"level": "warn", "secretKey": "{OF_THE_CHILD}"}}', file=sys.stderr, flush=True)
runpy.run_module("kcl_host.processor.demo", run_name="__main__")
"""


def test_no_secret_in_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    for name, value in MARKS.items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    with Engines() as engines:
        engines.create_stream("numbers", 1)
        counting = Counting(
            engines,
            tmp_path,
            executableName=f"{sys.executable} {program}",
            AwsCredentialsProvider="EnvironmentVariableCredentialsProvider",
            logLevel="DEBUG",
            metricsLevel="DETAILED",
            metricsBufferTimeMillis=200,
            cloudWatchEndpoint="http://127.0.0.1:1",
            **OF_THE_FILE,
        )
        engines.put_records("numbers", [("1", b"1")])
        with Running(counting) as host:
            counting.wait_for_numbers(1, 20)
            for service, operation in ((engines.kinesis, "GetRecords"), (engines.dynamodb, "UpdateItem")):
                service.faults.add(operation, "deny")
            host.wait_for("reads_refused")
            host.wait_for("metrics_lost")
            engines.kinesis.faults.clear()
            engines.dynamodb.faults.clear()
            host.process.send_signal(signal.SIGUSR1)
            host.wait_for("state_of_thread")
            assert stop(host.process) == 0
        assert host.log("credentials_found") or host.log("worker_starts")
    log = counting.log.read_text()
    assert log.count("connects with password=*** now") == 1 and '"level":"DEBUG"' in log
    for secret in (*MARKS.values(), *OF_THE_FILE.values(), OF_THE_CHILD):
        assert secret not in log
    assert "Signature=" not in log and "AWS4-HMAC" not in log
