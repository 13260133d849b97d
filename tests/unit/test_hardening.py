"""What strangers write is text and nothing else: in logs, on terminals, as commands, in the page; and who may read
what the host writes, and reach its port. docs/hardening.md has the whole list."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import kcl_host
from kcl_host.child.stderr import StderrLines, level_of
from kcl_host.cli import plan
from kcl_host.cli.fleet_table import page
from kcl_host.cli.main import main
from kcl_host.cli.replay import write_saved
from kcl_host.cli.terminal import console, printable
from kcl_host.config.settings import EndpointSettings
from kcl_host.config.values import split_command
from kcl_host.decisions.fleet_plan import FleetPlan, PlannedWorker
from kcl_host.decisions.fleet_selection import Selection
from kcl_host.decisions.replay import SavedPositions
from kcl_host.endpoint.answers import Answers, Host
from kcl_host.endpoint.http import Request
from kcl_host.endpoint.recent import Recent
from kcl_host.endpoint.service import Endpoint
from kcl_host.log import JsonFormatter, TextFormatter
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.runtime.clock import SystemClock
from kcl_host.runtime.transcripts import TranscriptFolder
from kcl_host.spark.engine import SparkEngine
from tests.fakes.clock import FakeClock
from tests.unit.coordination_rig import settings_of
from tests.unit.test_endpoint_service import Said, listener, log
from tests.unit.test_fleet_view import lease, seen, snapshot, worker

__all__ = ["listener", "log"]
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2Ja\n2030-01-01T00:00:00.000Z ERROR forged action=lease_lost\r\x85b\u2028c\u202e[/]"
RULES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What rules a terminal, or makes a line where there is none."""


# Logs


@pytest.mark.parametrize("formatter", [TextFormatter({"worker": EVIL}), JsonFormatter({"worker": EVIL})])
def test_no_name_and_no_line_of_a_child_makes_a_second_log_line(formatter: logging.Formatter) -> None:
    said: list[str] = []
    lines = StderrLines(said.append)
    lines.feed(EVIL.encode() + b"\n")
    for text in said:
        record = logging.LogRecord("kcl_host.child", level_of(text), "", 0, "%s", (text,), None)
        vars(record).update(stream=EVIL, lease_keys=[EVIL], owners={EVIL: EVIL}, action="child_stderr")
        line = formatter.format(record)
        assert "\n" not in line and not RULES.search(line)
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["stream"] == EVIL and json.loads(line)["action"] == "child_stderr"


def test_a_quoted_fact_does_not_end_early() -> None:
    record = logging.LogRecord("kcl_host.x", 20, "", 0, "lease lost", (), None)
    vars(record).update(stream='a" action=forged \\', action="lease_lost")
    assert TextFormatter().format(record).endswith(r'lease lost stream="a\" action=forged \\" action=lease_lost')


# Terminals


def screen_of(view: object) -> str:
    screen = io.StringIO()
    console(file=screen, width=300, force_terminal=True).print(view)
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())  # rich's own colours


def test_names_in_the_tables_of_status_and_top_rule_no_terminal() -> None:
    other = lease("s2", EVIL, checkpoint_owner="[bold red]b[/]", parent_shard_ids=frozenset({EVIL}))
    rows = (lease("s1" + EVIL, EVIL), other)
    stats = (worker(EVIL, metric_stats={"[/]" + EVIL: [5.0]}), worker("[link=file:///x]a"))
    view = seen(snapshot(*rows, workers=stats))
    screen = screen_of(page(replace(view, application=EVIL), Selection(all=True), 200))
    assert not RULES.search(screen)
    assert "[bold red]b[/]" in screen and "[link=file:///x]a" in screen
    assert not [text for text in screen.splitlines() if text.startswith("2030-")]


def test_names_in_a_plan_rule_no_terminal() -> None:
    one = PlannedWorker(
        worker_id=EVIL, standing="active", leases_before=1, leases_after=1, kbps_before=0, kbps_after=0,
        metrics={"[/]" + EVIL: 5.0},
    )  # fmt: skip
    planned = FleetPlan(
        application=EVIL, taken_s=0, looks=1, observed_s=0, joining=(), removed=(), moves=(), workers=(one,), leases=1,
        without_target=0, notes=(EVIL,),
    )  # fmt: skip
    screen = io.StringIO()
    plan._print(planned, console(file=screen, width=400), show_all=True)
    assert not RULES.search(screen.getvalue()) and "[/]" in screen.getvalue()
    assert not [text for text in screen.getvalue().splitlines() if text.startswith("2030-")]
    assert printable(one).worker_id.count("\n") == 0


def test_every_table_is_drawn_by_the_console_that_takes_no_markup() -> None:
    """The demo shows names of its own only."""
    of_rich = [
        path.name
        for path in sorted((PACKAGE / "cli").glob("*.py"))
        if re.search(r"\bConsole\(", path.read_text()) and path.name not in ("terminal.py", "demo.py")
    ]
    assert of_rich == []


def test_a_properties_file_rules_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.properties"
    path.write_text(
        "streamName = orders\napplicationName = app\nexecutableName = app \\u001b[2J \\u009b2J\n"
        "\\u001b]0;owned\\u0007 = 1\nregionName = us-east-1\nmaxRecords = \\u001b[2J\\u202e\n"
    )
    for arguments in (["check", str(path)], ["-p", str(path), "--check"]):
        monkeypatch.setattr("sys.argv", ["kcl-host", *arguments])
        with pytest.raises(SystemExit):
            main()
        shown = "".join(capsys.readouterr())
        assert shown and not RULES.search(shown)


# Commands


PACKAGE = Path(kcl_host.__file__).parent


def test_the_command_of_a_child_never_meets_a_shell() -> None:
    words = split_command("app.sh; rm -rf / && $(id) `id` | tee > x 'a b;c' ${HOME} *")
    assert words == ("app.sh;", "rm", "-rf", "/", "&&", "$(id)", "`id`", "|", "tee", ">", "x", "a b;c", "${HOME}", "*")


def test_nothing_of_the_host_starts_a_shell() -> None:
    calls = r"os\.(?:system|popen)\b|getoutput|pickle\.load|yaml\.load|(?<![\w.])(?:eval|exec)\("
    ways = re.compile(rf"shell\s*=\s*True|{calls}")
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    found = [f"{path.name}: {match[0]}" for path, text in texts.items() for match in ways.finditer(text)]
    assert found == [] and len(texts) > 100


# The page


def test_the_page_puts_names_in_as_text_and_may_load_nothing() -> None:
    html = (PACKAGE / "endpoint" / "page.html").read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert way not in html, way
    assert not re.search(r"<[^>]+\son\w+\s*=", html), "a handler in an attribute"
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", html), "something from elsewhere"
    answer = Answers(HOST, FakeClock())(Request(path="/", host="localhost"))
    policy = dict(answer.headers)["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


def test_what_is_no_page_cannot_become_one() -> None:
    for path in ("/status", "/lag", "/ready", "/metrics", "/<script>alert(1)</script>"):
        answer = Answers(HOST, FakeClock())(Request(path=path, host="localhost"))
        headers = dict(answer.headers)
        assert headers["X-Content-Type-Options"] == "nosniff" and "html" not in answer.content_type
        assert "default-src 'none'" in headers["Content-Security-Policy"] and b"<script>" not in answer.body


HOST = Host(status=lambda: None, metrics=lambda: b"", fleet=lambda: (None, None), recent=Recent(FakeClock()), pid=1)


# Files


@pytest.fixture
def open_umask() -> Iterator[None]:
    """So that only what the code says keeps others out."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def test_only_their_owner_may_read_what_is_saved(tmp_path: Path, open_umask: None) -> None:
    write_saved(tmp_path / "undo.json", SavedPositions(table="t", written="now", target="LATEST", leases=()))
    assert mode(tmp_path / "undo.json") == "600"
    fleet = tmp_path / "fleet.json"
    fleet.write_bytes(b"of somebody who let everybody read it")
    plan._write(fleet, b"{}")
    assert mode(fleet) == "600" and fleet.read_bytes() == b"{}"


def test_only_their_owner_may_read_transcripts(tmp_path: Path, open_umask: None) -> None:
    folder = TranscriptFolder(tmp_path / "transcripts", FakeClock(), b"secret", payloads=True)
    folder.prepare()
    dialogue = folder.new_dialogue("../../etc/" + EVIL, 1, 1000, ())
    dialogue.initialize("s", AT_TRIM_HORIZON)
    dialogue.receive(b"noise\n")
    (written,) = (tmp_path / "transcripts").iterdir()
    assert mode(tmp_path / "transcripts") == "700" and mode(written) == "600"
    assert re.fullmatch(r"[\w.-]+", written.name)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for /tmp, where anybody may have taken a name before us."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("KCL_HOST_SPARK_SPOOL", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / f"kcl-host-spool-{os.getuid()}"


def test_only_its_owner_may_look_into_the_spool(temporary: Path, open_umask: None) -> None:
    SparkEngine()
    assert mode(temporary) == "700"


def test_a_spool_that_somebody_prepared_for_us_is_refused(temporary: Path, open_umask: None) -> None:
    (temporary.parent / "elsewhere").mkdir(0o700)
    temporary.symlink_to("elsewhere")
    with pytest.raises(PermissionError, match="is a link"):
        SparkEngine()
    temporary.unlink()
    temporary.mkdir(0o777)
    with pytest.raises(PermissionError, match="open to others"):
        SparkEngine()


# The endpoint


@pytest.mark.parametrize(("address", "is_said"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_an_endpoint_that_others_reach_says_so(
    address: str, is_said: bool, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    said = Said("endpoint_exposed" if is_said else "endpoint_started")
    log.addHandler(said)
    settings = settings_of("me", endpoint=EndpointSettings(port=0, address=address))
    with Endpoint(settings, SystemClock(), 1):
        assert said.heard.wait(5)
    log.removeHandler(said)
    assert ("endpoint_exposed" in [getattr(record, "action", "") for record in caplog.records]) is is_said
