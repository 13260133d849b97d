"""poisonRecordAfterFailures, deadLetterTarget, poisonRecordsPerHour."""

from __future__ import annotations

import pytest

from kcl_host.config.findings import InvalidConfiguration
from kcl_host.config.properties import load_settings
from kcl_host.config.settings import DeadLetterTarget, PoisonSettings
from tests.unit.test_config_keys import REQUIRED


def poison(**given: str) -> tuple[PoisonSettings, list[str]]:
    """The settings, and the keys that were warned about."""
    loaded = load_settings(None, environ={}, overrides=REQUIRED | given, random_suffix="r", hostname="h")
    return loaded.settings.poison, [finding.key for finding in loaded.findings if "oison" in finding.message]


def test_it_is_off_by_default() -> None:
    assert poison() == (PoisonSettings(after_failures=0, target=None), [])


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("file:/var/dead/", DeadLetterTarget("file", "/var/dead")),
        ("file:///var/dead", DeadLetterTarget("file", "/var/dead")),
        (
            "sqs://sqs.eu-west-1.amazonaws.com/123456789012/dead.fifo",
            DeadLetterTarget("sqs", "https://sqs.eu-west-1.amazonaws.com/123456789012/dead.fifo"),
        ),
        ("s3://bucket", DeadLetterTarget("s3", "bucket")),
        ("s3://bucket/app/dead/", DeadLetterTarget("s3", "bucket", "app/dead")),
    ],
)
def test_targets(text: str, target: DeadLetterTarget) -> None:
    expected = PoisonSettings(after_failures=3, target=target, per_hour=10)
    assert poison(poisonRecordAfterFailures="3", deadLetterTarget=text) == (expected, [])


@pytest.mark.parametrize(
    "text",
    [
        "dead", "file:dead", "file:/", "file:///", "sqs://q", "sqs://host/123456789012/", "sqs://u@host/123456789012/q",
        "sqs://host/123456789012/q?a=b", "s3:bucket", "s3://Bucket/p", "s3://bucket/a b", "s3://bucket/ä", "http://h/q",
    ],
)  # fmt: skip
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="deadLetterTarget"):
        poison(poisonRecordAfterFailures="3", deadLetterTarget=text)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"poisonRecordAfterFailures": "3"}, "deadLetterTarget is missing"),
        ({"deadLetterTarget": "file:/dead"}, "ignored without poisonRecordAfterFailures"),
        ({"poisonRecordAfterFailures": "-1", "deadLetterTarget": "file:/dead"}, "poisonRecordAfterFailures"),
        (
            {"poisonRecordAfterFailures": "1", "deadLetterTarget": "file:/dead", "poisonRecordsPerHour": "0"},
            "poisonRecordsPerHour",
        ),
        (
            {"poisonRecordAfterFailures": "1", "deadLetterTarget": "file:/dead", "childFailurePolicy": "exit"},
            "excludes childFailurePolicy",
        ),
    ],
)
def test_half_of_it_is_an_error(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        poison(**given)


def test_switched_off_with_everything_left_in_the_file() -> None:
    given = {"poisonRecordAfterFailures": "0", "deadLetterTarget": "file:/dead", "poisonRecordsPerHour": "5"}
    assert poison(**given) == (PoisonSettings(per_hour=5), ["deadLetterTarget", "poisonRecordsPerHour"])
