"""Log lines: one per event, UTC, facts in order, no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal

import pytest

from kcl_host import log

Format = Literal["text", "json"]
Configured = Callable[..., io.StringIO]


@pytest.fixture
def configured() -> Iterator[Configured]:
    root, ours = logging.getLogger(), logging.getLogger("kcl_host")
    before = (list(root.handlers), root.level, ours.level)

    def configure(format: Format = "text", **options: Any) -> io.StringIO:
        out = io.StringIO()
        log.configure(format=format, stream=out, **options)
        return out

    yield configure
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.captureWarnings(False)


def record(message: str, created: float = 1738292645.6789, **facts: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "kcl_host.x", "levelname": "WARNING", "levelno": 30, "msg": message, **facts})
    made.created = created
    return made


def text(message: str, **facts: object) -> str:
    return log.TextFormatter().format(record(message, **facts))


def parsed(message: str, **facts: object) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(log.JsonFormatter().format(record(message, **facts)))
    return decoded


def test_a_text_line() -> None:
    line = text(
        "reads are throttled",
        action="reads_throttled",
        failures=3,
        next_try_s=1.5,
        shard="shardId-000000000001",
        worker="host-1",
        child_pid=42,
        to=None,
        children=["a", "b c"],
        ok=True,
        error='said "no" = refused',
    )
    assert line == (
        "2025-01-31T03:04:05.678Z WARNING reads are throttled worker=host-1 shard=shardId-000000000001 child_pid=42 "
        'failures=3 next_try_s=1.5 children=["a","b c"] ok=true error="said \\"no\\" = refused" action=reads_throttled'
    )


def test_a_json_line() -> None:
    assert parsed("lease lost", action="lease_lost", lease_key="k", n=1, nothing=None, inner={"a": [1, None]}) == {
        "time": "2025-01-31T03:04:05.678Z",
        "level": "WARNING",
        "logger": "kcl_host.x",
        "message": "lease lost",
        "lease_key": "k",
        "n": 1,
        "inner": {"a": [1, None]},
        "action": "lease_lost",
    }


def test_a_fact_never_replaces_what_the_line_says() -> None:
    line = parsed("real", level="fake", logger="fake", time="fake")
    assert (line["level"], line["logger"], line["time"]) == ("WARNING", "kcl_host.x", "2025-01-31T03:04:05.678Z")


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        2**128,
        -(2**100),
        b"\xff",
        {1, 2},
        Colour.RED,
        float("nan"),
        float("inf"),
        "\ud800",
        {"\udfff": object()},
        {1: 2},
    ],
)
def test_any_value_can_be_written(value: object) -> None:
    assert parsed("m", fact=value)["message"] == "m"
    assert text("m", fact=value).encode()


def test_a_hash_key_keeps_its_digits() -> None:
    assert parsed("m", hash_key=2**128 - 1)["hash_key"] == str(2**128 - 1)


@pytest.mark.parametrize("broken", ["a\nb", "a\r\n  b", "a\rb", "a\u2028b", "a\x0bb", "a\x85b", "\na\nb\n\n"])
def test_several_lines_become_one(broken: str) -> None:
    line = text(broken, error=broken)
    assert len(line.splitlines()) == 1
    assert "WARNING a | b" in line
    assert 'error="a | b"' in line
    assert len(log.JsonFormatter().format(record(broken, error=broken)).splitlines()) == 1


def test_control_characters_cannot_paint_the_terminal() -> None:
    assert "\\x1b[31mred\\x07" in text("\x1b[31mred\x07")


def test_indentation_of_a_child_is_kept() -> None:
    assert "WARNING     at com.example.Main" in text("    at com.example.Main")


def test_a_traceback_is_on_the_same_line() -> None:
    try:
        raise ValueError("secretKey=hunter2")
    except ValueError as error:
        facts = {"exc_info": (type(error), error, error.__traceback__)}
    line = text("failed", **facts)
    assert len(line.splitlines()) == 1
    assert "Traceback (most recent call last): | File" in line
    assert "ValueError: secretKey=***" in line
    assert parsed("failed", **facts)["exception"].endswith("ValueError: secretKey=***")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    "key",
    ["secretKey", "aws_secret_access_key", "password", "db_passwd", "sessionToken", "token", "security_token",
     "credentials", "Authorization", "privateKey", "accessKey", "X-Amz-Signature"],
)  # fmt: skip
def test_secrets_are_masked(key: str) -> None:
    for line in (text("m", **{key: "hunter2"}), text("m", settings={key: ["hunter2"]})):
        assert "hunter2" not in line
        assert "***" in line
    assert "hunter2" not in json.dumps(parsed("m", outer=[{key: {"deep": "hunter2"}}]))


@pytest.mark.parametrize(
    "key", ["lease_key", "partition_key", "action", "nextToken", "monkey", "tokens_per_s", "broken"]
)
def test_what_is_no_secret_is_shown(key: str) -> None:
    assert "plain" in text("m", **{key: "plain"})


@pytest.mark.parametrize(
    "message",
    ["aws_secret_access_key=hunter2", 'the file says "password": "hunter2"', "AwsSecretKey... secretKey: hunter2",
     "Authorization: AWS4-HMAC-SHA256 hunter2/20250101", "Authorization: Bearer hunter2", "session_token='hunter2'"],
)  # fmt: skip
def test_secrets_inside_a_message_are_masked(message: str) -> None:
    for line in (text(message), text("m", error=message), json.dumps(parsed(message))):
        assert "hunter2" not in line
        assert "***" in line


def test_messages_of_children_are_not_mangled() -> None:
    for line in ("SyntaxError: Unexpected token: }", "password changed", "secret santa: bob"):
        assert line in text(line)


def test_bound_facts_go_into_every_line(configured: Configured) -> None:
    out = configured(worker="w1", kinesis_stream="orders")
    bound = log.bind(logging.getLogger("kcl_host.child"), shard="s0", child_pid=7)
    bound.info("hello")
    bound.info("again", extra={"child_pid": 8, "action": "child_stderr"})
    log.bind(bound, lease_key="k").warning("nested")
    lines = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert lines == [
        "INFO    hello worker=w1 stream=orders shard=s0 child_pid=7",
        "INFO    again worker=w1 stream=orders shard=s0 child_pid=8 action=child_stderr",
        "WARNING nested worker=w1 stream=orders shard=s0 lease_key=k child_pid=7",
    ]


def test_the_worker_of_a_line_wins(configured: Configured) -> None:
    out = configured("json", worker="w1")
    logging.getLogger("kcl_host.x").info("m", extra={"worker": "other"})
    assert json.loads(out.getvalue())["worker"] == "other"


@pytest.mark.parametrize("level", ["debug", "INFO", "ERROR"])
def test_the_level_counts_for_us_and_libraries_are_heard_from_warning(configured: Configured, level: str) -> None:
    out = configured(level=level)
    for name in ("kcl_host.x", "botocore.auth"):
        for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(number, "%s at %s", name, logging.getLevelName(number))
    least = logging.getLevelName(level.upper())
    ours = [n for n in ("DEBUG", "INFO", "WARNING", "ERROR") if logging.getLevelName(n) >= least]
    shown = [line.split(maxsplit=2)[2] for line in out.getvalue().splitlines()]
    assert shown == [
        *(f"kcl_host.x at {n}" for n in ours),
        "botocore.auth at WARNING",
        "botocore.auth at ERROR",
    ]


def test_a_second_call_replaces_the_first(configured: Configured) -> None:
    first, second = configured(), configured("json")
    logging.getLogger("kcl_host.x").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_percent_signs_of_a_child_are_no_format(configured: Configured) -> None:
    out = configured()
    logging.getLogger("kcl_host.child").error("100% %s done", extra={"action": "child_stderr"})
    assert "100% %s done" in out.getvalue()


def test_of_one_warning_sixty_lines_a_minute_and_how_many_were_left_out() -> None:
    now_s = 0.0
    repetition = log.Repetition(lambda: now_s)

    def said(message: str = "turn failed", level: int = logging.WARNING, name: str = "kcl_host.x") -> str | None:
        record = logging.LogRecord(name, level, "", 0, message, None, None)
        record.__dict__["action"] = "turn_failed"
        if not repetition.allows(record):
            return None
        return str(log.facts_of(record, {}))

    lines = [said() for _ in range(200)]
    assert (
        lines
        == ["{'action': 'turn_failed'}"] * 59
        + ["{'more': 'left out for a minute', 'action': 'turn_failed'}"]
        + [None] * 140
    )
    assert said("something else") is not None, "another kind has a count of its own"
    assert all(said(level=logging.INFO) for _ in range(100)), "life is not repetition"
    assert all(said(name=log.CHILD) for _ in range(100)), "what children write is theirs"
    now_s = 60.0
    assert said() == "{'left_out': 140, 'action': 'turn_failed'}"
    assert said() == "{'action': 'turn_failed'}"
