"""`kcl-host verify` on a good child, and on one child for each way to break the protocol."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from kcl_host.cli.verify import load_sessions, steps_of, verify
from kcl_host.cli.verify_report import badge, junit, print_session, print_summary, summary
from kcl_host.cli.verify_session import Deviation, SessionReport
from kcl_host.local.engines import Engines
from tests.integration.counting import Counting, stop

pytestmark = pytest.mark.integration

CHILD = r"""
import json, os, subprocess, sys, time

fault = sys.argv[1].removeprefix("--fault=")


KEYS = {"action", "shardId", "sequenceNumber", "subSequenceNumber", "records", "millisBehindLatest", "error"}


def write(**message):
    print(json.dumps(message), flush=True)


def ask(sequence_number, sub_sequence_number=None):
    write(action="checkpoint", sequenceNumber=sequence_number, subSequenceNumber=sub_sequence_number)
    return json.loads(sys.stdin.readline())["error"]


def checkpoint(sequence_number=None, sub_sequence_number=None):
    while ask(sequence_number, sub_sequence_number) in ("ThrottlingException", "KinesisClientLibDependencyException"):
        if fault == "dies-when-refused":
            sys.exit("refused")


for line in sys.stdin:
    message = json.loads(line)
    action = message["action"]
    if fault == "knows-every-key" and message.keys() - KEYS:
        sys.exit("what is this?")
    if fault == "noise":
        print("working on", action, "progress 10%\rprogress 100%", flush=True)
    if action == "initialize" and fault == "checkpoint-in-initialize":
        ask(None)
    if action == "processRecords":
        last = message["records"][-1]
        if fault == "exits":
            print("no such table", file=sys.stderr, flush=True)
            sys.exit(3)
        if fault == "hangs":
            time.sleep(60)
        if fault == "wrong-status":
            action = "initialize"
        if fault == "malformed-number":
            ask("abc")
        if fault == "malformed-request":
            write(action="checkpoint", sequenceNumber={})
        if fault == "prepares":
            write(action="prepareCheckpoint")
        if fault == "too-high":
            ask(str(int(last["sequenceNumber"]) + 1))
        if fault == "misspelt":
            write(action="Status", responseFor=action)
            time.sleep(60)
        if fault == "asks-without-end":
            while True:
                ask(last["sequenceNumber"])
        if fault == "floods-stdout":
            while True:
                sys.stdout.write("x" * 65536 + "\n")
        if fault == "one-endless-line":
            while True:
                sys.stdout.write("x" * 65536)
        if fault == "floods-stderr":
            while True:
                sys.stderr.write("y" * 65536)
        if fault == "leaves-a-grandchild-and-dies":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"], start_new_session=True)
            sys.exit(4)
        if fault == "forks-a-flood-and-dies":
            if os.fork() == 0:
                while True:
                    os.write(1, b"x" * 65536)
            os._exit(5)
        if fault == "only-ascii-keys":
            last["partitionKey"].encode("ascii")
        if fault != "never-checkpoints":
            checkpoint(last["sequenceNumber"], last["subSequenceNumber"])
    if action == "shutdownRequested" and fault != "never-checkpoints":
        checkpoint()
    if action == "shardEnded" and fault != "no-checkpoint-at-shard-end":
        checkpoint()
    write(action="status", responseFor=action)
    if fault == "answers-twice" and action == "processRecords":
        write(action="status", responseFor=action)
    if fault == "exits-after-initialize" and action == "initialize":
        break
    if fault == "exits-by-itself" and action in ("leaseLost", "shardEnded"):
        break
if fault == "ignores-eof":
    time.sleep(60)
if fault == "killed-at-the-end":
    os.kill(os.getpid(), 11)
if fault == "exits-with-9":
    sys.exit(9)
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "child.py"
    path.write_text(CHILD)
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(verify, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def report_of(*arguments: str) -> tuple[int, dict[str, Any]]:
    exit_code, output = run("--json", *arguments)
    return exit_code, json.loads(output)


def report(child: Path, fault: str, *options: str) -> tuple[int, dict[str, Any]]:
    return report_of(*options, sys.executable, str(child), f"--fault={fault}")


@pytest.mark.interop  # Long: .ci/run has it.
def test_a_good_child_passes_every_session(child: Path) -> None:
    exit_code, output = run(sys.executable, str(child), "--fault=none")
    assert exit_code == 0
    lines = output.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", s.name] for s in load_sessions()]
    assert lines[-1] == f"{len(load_sessions())} sessions without a deviation"


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
@pytest.mark.parametrize(
    ("fault", "session", "action", "message"),
    [
        ("exits", "records", "processRecords", "ended with status 3"),
        ("exits-after-initialize", "records", "initialize", "ended with status 0"),
        ("hangs", "records", "processRecords", "did not answer within 2 s"),
        ("wrong-status", "records", "processRecords", "answered processRecords with another status"),
        ("answers-twice", "records", "processRecords", "a status that nobody asked for"),
        ("malformed-number", "records", "processRecords", "sequence number 'abc' is malformed"),
        ("malformed-request", "records", "processRecords", "looks like a message and is none"),
        ("misspelt", "records", "processRecords", "looks like a message and is none"),
        ("too-high", "records", "processRecords", "the last position delivered"),
        ("dies-when-refused", "checkpoint-refused", "processRecords", "ended with status 1"),
        ("knows-every-key", "unknown-keys", "initialize", "ended with status 1"),
        ("asks-without-end", "records", "processRecords", "asks for checkpoints without end"),
        ("floods-stdout", "records", "processRecords", "did not answer within 2 s"),
        ("one-endless-line", "records", "processRecords", "a line of more than 67108864 bytes"),
        ("floods-stderr", "records", "processRecords", "did not answer within 2 s"),
        ("leaves-a-grandchild-and-dies", "records", "processRecords", "ended with status 4"),
        ("forks-a-flood-and-dies", "records", "processRecords", "ended with status 5"),
        ("only-ascii-keys", "non-ascii-key", "processRecords", "ended with status 1"),
        ("no-checkpoint-at-shard-end", "shard-end", "shardEnded", "no checkpoint of the end of the shard"),
        ("ignores-eof", "end-of-input", "processRecords", "did not end within 2 s after its stdin was closed"),
        ("killed-at-the-end", "end-of-input", "processRecords", "was ended by SIGSEGV after its stdin was closed"),
    ],
)
def test_a_deviation_is_reported(child: Path, fault: str, session: str, action: str, message: str) -> None:
    exit_code, result = report(child, fault, "--only", session, "--timeout", "2")
    assert exit_code == 1 and not result["ok"]
    (only,) = result["sessions"]
    assert only["session"] == session and not only["ok"]
    first = only["deviations"][0]
    assert first["action"] == action
    assert message in first["message"]


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_the_line_to_blame_is_shown(child: Path) -> None:
    options = ["--only", "records", "--timeout", "2", sys.executable, str(child)]
    exit_code, output = run(*options, "--fault=misspelt")
    assert exit_code == 1
    assert 'child> {"action": "Status", "responseFor": "processRecords"}' in output
    assert "did not answer within 2 s" in output
    assert "1 of 1 sessions deviate from the protocol: records" in output
    exit_code, output = run(*options, "--fault=exits")
    assert "stderr: no such table" in output


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        ("noise", "noise on stdout, 4 line(s), first 'working on initialize progress 10%'"),
        ("checkpoint-in-initialize", "asks for a checkpoint in initialize, where it is always refused"),
        ("exits-with-9", "the process ended with status 9; the host does not mind"),
    ],
)
def test_what_a_host_puts_up_with_is_only_noted(child: Path, fault: str, note: str) -> None:
    exit_code, result = report(child, fault, "--only", "start")
    assert exit_code == 0
    assert result["sessions"][0]["deviations"] == []
    assert result["sessions"][0]["notes"] == [note]


def test_a_child_may_end_by_itself_after_the_last_action(child: Path) -> None:
    exit_code, result = report(child, "exits-by-itself", "--only", "start", "--only", "shard-end")
    assert exit_code == 0, [session["deviations"] for session in result["sessions"]]


def test_a_child_that_never_checkpoints_is_noted(child: Path) -> None:
    exit_code, result = report(child, "never-checkpoints", "--only", "records", "--only", "shutdown-requested")
    assert exit_code == 0
    assert result["notes"] == ["never asks for a checkpoint: after a restart everything would be delivered again"]


def example(language: str) -> str:
    guide = (Path(__file__).parents[2] / "protocol" / "GUIDE.md").read_text("utf-8")
    return guide.split(f"```{language}\n")[1].split("```")[0]


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_the_python_child_of_the_guide(tmp_path: Path) -> None:
    path = tmp_path / "child.py"
    path.write_text(example("python"))
    exit_code, output = run(sys.executable, str(path))
    assert exit_code == 0, output
    assert "note" not in output


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_javascript_child_of_the_guide(tmp_path: Path) -> None:
    path = tmp_path / "child.js"
    path.write_text(example("javascript"))
    exit_code, output = run("node", str(path))
    assert exit_code == 0, output
    assert "note" not in output


# The extension prepareCheckpoint

PREPARING = """
from kcl_host.processor import CheckpointError, RecordProcessor, run


class Prepares(RecordProcessor):
    def process_records(self, records, checkpointer):
        assert checkpointer.can_prepare
        try:
            prepared = checkpointer.prepare_checkpoint(application_state=STATE)
        except CheckpointError as e:
            if not e.may_pass:
                return
            prepared = checkpointer.prepare_checkpoint()
        while True:
            try:
                return prepared.checkpoint()
            except CheckpointError as e:
                if not e.may_pass:
                    return

    def shard_ended(self, checkpointer):
        checkpointer.prepare_checkpoint(application_state=b"end").checkpoint()

    def initialize(self, shard_id, sequence_number, sub_sequence_number):
        pending = self.pending_checkpoint
        assert (pending is not None) == (shard_id == "shardId-000000000000" and sequence_number.endswith("98"))
        assert pending is None or pending.application_state == b"transaction 7"

    def shutdown_requested(self, checkpointer):
        try:
            checkpointer.checkpoint()
        except CheckpointError:
            checkpointer.checkpoint()


run(Prepares())
"""
EXTENSION = ("--extension", "prepareCheckpoint")
OWN = ["prepare", "prepared-before", "prepare-refused", "prepare-shard-end"]


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_a_child_that_prepares_its_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "child.py"
    path.write_text(PREPARING.replace("STATE", "bytes(4096)"))
    exit_code, output = run(*EXTENSION, sys.executable, str(path))
    assert exit_code == 0, output
    assert output.splitlines()[-1] == f"{len(load_sessions()) + len(OWN)} sessions without a deviation"


def test_a_child_that_keeps_too_much(tmp_path: Path) -> None:
    path = tmp_path / "child.py"
    path.write_text(PREPARING.replace("STATE", "bytes(4097)"))
    exit_code, output = run(*EXTENSION, "--only", "prepare", sys.executable, str(path))
    assert exit_code == 1
    assert "an application state of 4097 bytes is too large, at most 4096 are kept" in output
    assert 'child> {"action":"prepareCheckpoint"' in output


@pytest.mark.parametrize("fault", ["none", "never-checkpoints"])
def test_a_child_that_does_not_know_the_extension_does_not_notice_it(child: Path, fault: str) -> None:
    only = [part for name in ("start", "resume", "shutdown-requested", *OWN[:3]) for part in ("--only", name)]
    exit_code, result = report(child, fault, *EXTENSION, *only)
    assert exit_code == 0, result


def test_the_extension_without_being_asked_is_a_deviation(child: Path) -> None:
    exit_code, result = report(child, "prepares", "--only", "records", "--timeout", "2")
    assert exit_code == 1
    assert "looks like a message and is none" in result["sessions"][0]["deviations"][0]["message"]


def test_usage() -> None:
    exit_code, output = run("--list")
    assert exit_code == 0
    assert [line.split()[0] for line in output.splitlines()] == [s.name for s in load_sessions()]
    exit_code, output = run("--list", *EXTENSION)
    assert [line.split()[0] for line in output.splitlines()] == [s.name for s in load_sessions()] + OWN
    assert run("--extension", "nothing", "true")[0] == 2
    assert run("--only", "nothing", "true")[0] == 2
    assert run("--timeout", "1")[0] == 2
    exit_code, output = run("no-such-program-anywhere")
    assert exit_code == 2 and "no-such-program-anywhere is not on the PATH" in output


def test_sessions_start_with_initialize_and_answer_only_inside_actions() -> None:
    for transcript in load_sessions(("prepareCheckpoint",)):
        steps = list(steps_of(transcript))
        assert steps[0].action.action == "initialize" and not steps[0].answers


# Recorded sessions


def recorded(*lines: str) -> str:
    return "\n".join(["# A recorded session.", *lines, ""])


INITIALIZE = 'host> {"action":"initialize","shardId":"s","sequenceNumber":"5","subSequenceNumber":0}'
BATCH = (
    'host> {"action":"processRecords","records":[{"data":"<payload 24B>","partitionKey":"<key 17 3fa2c1>",'
    '"sequenceNumber":"6","approximateArrivalTimestamp":1,"subSequenceNumber":0,"action":"record"}],'
    '"millisBehindLatest":0}'
)
REFUSED = 'host> {"action":"checkpoint","sequenceNumber":"6","subSequenceNumber":0,"error":"ThrottlingException"}'


def test_a_recorded_session_is_played_again(child: Path, tmp_path: Path) -> None:
    file = tmp_path / "shard.txt"
    file.write_text(recorded(INITIALIZE, BATCH, REFUSED, 'host> {"action":"leaseLost"}'))
    exit_code, result = report(child, "none", "--replay", str(file))
    assert exit_code == 0
    (only,) = result["sessions"]
    assert (only["session"], only["records"], only["checkpoints"]) == ("shard", 1, 1)
    assert [action["action"] for action in only["actions"]] == ["initialize", "processRecords", "leaseLost"]
    exit_code, result = report(child, "dies-when-refused", "--replay", str(file))
    assert exit_code == 1 and "ended with status 1" in result["sessions"][0]["deviations"][0]["message"]


def test_a_folder_of_recorded_sessions(child: Path, tmp_path: Path) -> None:
    assert run("--replay", str(tmp_path), "true")[0] == 2
    (tmp_path / "b.txt").write_text(recorded(INITIALIZE))
    (tmp_path / "a.txt").write_text(recorded(INITIALIZE))
    (tmp_path / "notes.md").write_text("not a transcript")
    exit_code, output = run("--replay", str(tmp_path), "--list")
    assert [line.split()[0] for line in output.splitlines()] == ["a", "b"]
    (tmp_path / "c.txt").write_text("not a transcript")
    exit_code, output = run("--replay", str(tmp_path), "true")
    assert exit_code == 2 and "c:1: a line starts with" in output
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    assert run("--replay", str(tmp_path), "true")[0] == 2
    (tmp_path / "c.txt").write_text('host> {"action":"fly"}')
    exit_code, output = run("--replay", str(tmp_path), "--only", "c", sys.executable, str(child), "--fault=none")
    assert exit_code == 2 and "c:1: not a message of a host" in output


# Stress, and reports for others


def test_stress(child: Path) -> None:
    exit_code, output = run("--stress", "20", "--only", "stress", sys.executable, str(child), "--fault=none")
    assert exit_code == 0
    assert output.splitlines()[2].split()[:4] == ["processRecords", "20", "x,", "mean"]
    exit_code, result = report(child, "answers-twice", "--stress", "20", "--only", "stress")
    assert exit_code == 1 and "nobody asked for" in result["sessions"][0]["deviations"][0]["message"]


def test_sessions_that_not_every_child_has_to_pass(child: Path) -> None:
    assert run("--only", "empty-batch", "--list")[0] == 2
    exit_code, output = run("--optional", "--only", "empty-batch", sys.executable, str(child), "--fault=none")
    assert exit_code == 1 and "IndexError" in output


def test_junit_and_badge(child: Path, tmp_path: Path) -> None:
    xml, svg = tmp_path / "verify.xml", tmp_path / "badge.svg"
    files = ("--junit", str(xml), "--badge", str(svg), "--only", "start", "--only", "records")
    exit_code, _ = run(*files, sys.executable, str(child), "--fault=exits")
    assert exit_code == 1
    suite = ElementTree.fromstring(xml.read_text())
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failure = suite.find("testcase[@name='records']/failure")
    assert failure is not None and "ended with status 3" in (failure.get("message") or "")
    assert "no such table" in (suite.findtext("testcase[@name='records']/system-err") or "")
    ElementTree.fromstring(svg.read_text())
    assert ">1 of 2<" in svg.read_text()
    assert run("--junit", str(tmp_path), "true")[0] == 2


def test_what_a_child_writes_cannot_break_out_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    evil = '</failure>]]>\x1b[2J\x00"<script>&\ud800\nforged'
    session = SessionReport(
        session=evil, title=evil, ok=False, duration_s=1, records=0, checkpoints=0, actions=(), notes=(evil,),
        deviations=(Deviation(action="initialize", message=evil, line=evil),), stderr=(evil,),
    )  # fmt: skip
    result = summary((evil, "<b>"), [session])
    suite = ElementTree.fromstring(junit(result))
    assert [element.tag for element in suite.iter()] == [
        "testsuite", "properties", "property", "testcase", "failure", "system-out", "system-err",
    ]  # fmt: skip
    assert "]]>\ufffd[2J\ufffd" in (suite.findtext("testcase/system-err") or "")
    print_session(session, times=False)
    print_summary(result)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\nforged" not in shown
    ElementTree.fromstring(badge(result))


@pytest.mark.interop  # Too long for the default tests: .ci/run has it.
def test_what_a_running_host_records_is_played_on_a_desk(tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    with Engines() as engines:
        engines.create_stream("numbers", 1)
        counting = Counting(engines, tmp_path)
        engines.put_records("numbers", [(f"user-{n}", b"confidential") for n in range(20)])
        host = counting.start("--log-format", "json", "--transcript", str(folder))
        try:
            counting.wait_until(lambda: len(counting.delivered()) == 20, 30)
            assert stop(host) == 0
        finally:
            host.kill()
            host.wait()
    (file,) = folder.iterdir()
    text = file.read_text()
    assert "<payload 12B>" in text and "user-" not in text and "shutdownRequested" in text
    exit_code, result = report_of("--replay", str(folder), sys.executable, "-m", "kcl_host.processor.demo")
    assert exit_code == 0, result
    assert result["sessions"][0]["records"] == 20 and result["sessions"][0]["checkpoints"] >= 1
