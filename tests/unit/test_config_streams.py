"""Several streams in one configuration, and what each has of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kcl_host.config.findings import InvalidConfiguration
from kcl_host.config.properties import Loaded, load_settings
from kcl_host.config.settings import StreamSettings
from kcl_host.model.sequence import InitialPosition

ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/"
CONSUMER = ARN + "orders/consumer/me:1700000000"
REQUIRED = {
    "executableName": "app --all",
    "applicationName": "counter",
    "AwsCredentialsProvider": "DefaultCredentialsProvider",
    "regionName": "eu-west-1",
    "retrievalMode": "POLLING",
}


def load(given: Mapping[str, str], *, strict: bool = False) -> Loaded:
    return load_settings(None, environ={}, overrides=REQUIRED | given, strict=strict, random_suffix="r", hostname="h")


def errors(given: Mapping[str, str], *, strict: bool = False) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        load(given, strict=strict)
    return [line.removeprefix("configuration: ") for line in str(caught.value).splitlines()]


def warnings(given: Mapping[str, str]) -> list[str]:
    return [finding.message.removeprefix("configuration: ") for finding in load(given).findings]


def test_names_identifiers_and_arns() -> None:
    """Underscores and dots are part of a name; only commas separate. A repetition counts once."""
    settings = load(
        {"streamNames": "or_ders.v2, clicks, clicks,444455556666:old:1600000000", "streamArns": f"{ARN}far, {ARN}near"}
    ).settings
    assert settings.multi_stream
    assert settings.streams == (
        StreamSettings(name="or_ders.v2"),
        StreamSettings(name="clicks"),
        StreamSettings(name="old", account="444455556666", epoch=1600000000),
        StreamSettings(name="far", arn=f"{ARN}far", account="111122223333"),
        StreamSettings(name="near", arn=f"{ARN}near", account="111122223333"),
    )


def test_one_stream_is_not_multi_stream_unless_it_stands_in_a_list() -> None:
    assert not load({"streamName": "orders"}).settings.multi_stream
    assert load({"streamNames": "orders"}).settings.multi_stream


def test_a_stream_may_have_values_of_its_own() -> None:
    settings = load(
        {
            "streamNames": "orders,clicks,views",
            "executableName.orders": "app 'for orders'",
            "initialPositionInStream.clicks": "trim_horizon",
            "initialPositionInStream.views": "TRIM_HORIZON",
            "initialPositionInStreamExtended.views": "1735689600",
            "retrievalMode.orders": "fanout",
            "fanoutConfig.consumerArn.orders": CONSUMER,
        }
    ).settings
    orders, clicks, views = (settings.of_stream(stream) for stream in settings.streams)
    assert [one.child.command for one in (orders, clicks)] == [("app", "for orders"), ("app", "--all")]
    assert orders.initial_position == InitialPosition(kind="LATEST")
    assert clicks.initial_position == InitialPosition(kind="TRIM_HORIZON")
    assert views.initial_position == InitialPosition(kind="AT_TIMESTAMP", timestamp_s=1735689600)
    assert (orders.retrieval.mode, orders.retrieval.consumer_arn) == ("FANOUT", CONSUMER)
    assert orders.retrieval.mode_reason == "retrievalMode.orders = FANOUT"
    assert (clicks.retrieval.mode, clicks.retrieval.consumer_arn) == ("POLLING", None)
    assert settings.retrieval.mode == "POLLING"


def test_what_is_shown_has_the_values_of_streams() -> None:
    rows = {row.key: row.value for row in load({"streamNames": "a,b", "retrievalMode.b": "FANOUT"}).origins}
    assert rows["retrievalMode.b"] == "FANOUT" and rows["streamNames"] == "a,b"


def test_polling_keys_are_of_use_while_any_stream_is_polled() -> None:
    given = {"streamNames": "a,b", "retrievalMode": "FANOUT", "maxRecords": "5"}
    assert warnings(given) == ["maxRecords is ignored, the retrieval mode is FANOUT (retrievalMode = FANOUT)"]
    assert warnings(given | {"retrievalMode.a": "POLLING"}) == []
    assert load(given | {"retrievalMode.a": "DEFAULT"}).settings.streams[0].retrieval.mode_reason == "maxRecords is set"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"streamName": "a", "streamNames": "b"}, "streamNames and streamName exclude each other"),
        ({"streamNames": "a b"}, "cannot be a stream"),
        ({"streamNames": "1:a:0"}, "the creation epoch must be above 0"),
        ({"streamNames": "1:a"}, "neither a stream name nor account:stream:epoch"),
        ({"streamNames": ""}, "name at least one stream"),
        ({"streamArns": "orders"}, "is not of the form arn:aws:kinesis"),
        ({"streamArns": f"{ARN}a".replace("eu-west-1", "us-east-1")}, "is not in eu-west-1"),
        ({"streamNames": "a", "streamIdentifiersForLeaseCleanup": "b"}, "not of the form account:name:creation epoch"),
        (
            {"streamNames": "orders", "retrievalMode": "FANOUT", "fanoutConfig.consumerArn": CONSUMER},
            "write fanoutConfig.consumerArn.STREAM",
        ),
        (
            {"streamNames": "a", "retrievalMode.a": "FANOUT", "fanoutConfig.consumerArn.a": CONSUMER},
            "is a consumer of another stream",
        ),
        (
            {"streamNames": "a", "retrievalMode.a": "FANOUT", "fanoutConfig.consumerName.a": "my readers"},
            "cannot be a fan-out consumer",
        ),
        ({"streamNames": "a", "retrievalMode.a": "PULL"}, "retrievalMode.a = 'PULL' is not one of"),
    ],
)
def test_what_cannot_be_right(given: dict[str, str], said: str) -> None:
    (error,) = errors(given)
    assert said in error


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"streamNames": "a", "retrievalMode.b": "FANOUT"},
            "retrievalMode.b is ignored, neither streamNames nor streamArns names b",
        ),
        (
            {"streamName": "a", "executableName.a": "x"},
            "executableName.a is ignored, it needs streamNames or streamArns",
        ),
        (
            {"streamNames": "a", "maxRecords.a": "5"},
            "unknown key maxRecords.a is ignored; did you mean maxRecords?",
        ),
    ],
)
def test_what_is_doubtful_is_an_error_for_check(given: dict[str, str], said: str) -> None:
    assert warnings(given) == [said]
    assert errors(given, strict=True) == [said]
