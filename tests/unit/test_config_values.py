"""Conversion of texts, as observed of KCL's configuration classes (spec configuration 1.3 and 1.4)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.config.keys import BY_NAME, KEYS
from kcl_host.config.values import convert, has_unbalanced_quote, mask_uri, split_command


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("failoverTimeMillis", "5000", 5000),
        ("failoverTimeMillis", "+5000", 5000),
        ("failoverTimeMillis", "9223372036854775807", 2**63 - 1),
        ("maxRecords", "10000", 10000),
        ("gracefulLeaseHandoffTimeoutMillis", "0", 0),
        ("shutdownGraceMillis", "0", 0),
        ("maxThroughputPerHostKBps", "1e3", 1000.0),
        ("maxThroughputPerHostKBps", ".5", 0.5),
        ("maxThroughputPerHostKBps", "2.5d", 2.5),
        ("maxThroughputPerHostKBps", "Infinity", math.inf),
        ("disableWorkerMetrics", "YES", True),
        ("disableWorkerMetrics", "y", True),
        ("disableWorkerMetrics", "On", True),
        ("disableWorkerMetrics", "1", True),
        ("allowThroughputOvershoot", "no", False),
        ("allowThroughputOvershoot", "N", False),
        ("allowThroughputOvershoot", "off", False),
        ("allowThroughputOvershoot", "0", False),
        ("initialPositionInStream", "trim_Horizon", "TRIM_HORIZON"),
        ("metricsLevel", "summary", "SUMMARY"),
        ("childFailurePolicy", "EXIT", "exit"),
        ("clientVersionConfig", "client_version_config_3x", "CLIENT_VERSION_CONFIG_3X"),
        ("staleWorkerMetricsEntryCleanupDuration", "PT15M", 900.0),
        ("staleWorkerMetricsEntryCleanupDuration", "P2D", 172800.0),
        ("staleWorkerMetricsEntryCleanupDuration", "PT0.5S", 0.5),
        ("staleWorkerMetricsEntryCleanupDuration", "p1dt2h3m4.5s", 93784.5),
        ("tags", "a=b, c = d", {"a": "b", "c": "d"}),
        ("tags", "a=b,,", {"a": "b"}),
        ("metricsEnabledDimensions", "Operation, ShardId", ("Operation", "ShardId")),
        (
            "metricsEnabledDimensions",
            "Operation;ShardId_WorkerIdentifier",
            ("Operation", "ShardId", "WorkerIdentifier"),
        ),
        ("metricsEnabledDimensions", "{A, 'b c', \"d,e\"}", ("A", "b c", "d,e")),
        ("metricsEnabledDimensions", "", ()),
        ("workerMetricList", "NETWORK_OUT, cpu,, CPU", ("NETWORK_OUT", "CPU")),
        ("workerMetricMaxBandwidthMBps", "0.001", 0.001),
        ("workerMetricCpuOperatingRange", "1", 1),
        ("workerMetricCpuOperatingRange", "100", 100),
        ("kinesisEndpoint", "http://localhost:4566", "http://localhost:4566"),
        ("regionName", "anything", "anything"),
        ("initialPositionInStreamExtended", "1735689600", 1735689600),
    ],
)
def test_a_valid_text_is_taken_without_a_word(name: str, text: str, value: Any) -> None:
    converted = convert(BY_NAME[name], text)
    assert (converted.value, converted.problem, converted.fatal) == (value, "", False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("failoverTimeMillis", "100nf"),
        ("failoverTimeMillis", "5000.7"),
        ("failoverTimeMillis", "5_000"),
        ("failoverTimeMillis", "0x10"),
        ("failoverTimeMillis", "٣٠٠٠"),
        ("failoverTimeMillis", ""),
        ("failoverTimeMillis", "0"),
        ("failoverTimeMillis", "-1"),
        ("failoverTimeMillis", "9223372036854775808"),
        ("maxLeasesForWorker", "2147483648"),
        ("workerMetricsEMAAlpha", "NaN"),
        ("workerMetricsEMAAlpha", "1.5"),
        ("cleanupLeasesUponShardCompletion", "nope"),
        ("streamName", ""),
    ],
)
def test_a_text_that_java_passes_over_is_named_and_the_default_stays(name: str, text: str) -> None:
    converted = convert(BY_NAME[name], text)
    assert converted.value is None
    assert converted.problem
    assert not converted.fatal


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("timeoutInSeconds", "0", "at least 1"),
        ("timeoutInSeconds", "soon", "not an integer"),
        ("timeoutInSeconds", "-3", "at least 1"),
        ("maxActiveThreads", "many", "not an integer"),
        ("maxRecords", "10001", "from 1 to 10000"),
        ("leaseTableScanTotalSegments", "-1", "at least 0"),
        ("initialPositionInStream", "AT_TIMESTAMP", "initialPositionInStreamExtended"),
        ("initialPositionInStream", "", "LATEST, TRIM_HORIZON"),
        ("retrievalMode", "poll", "POLLING"),
        ("metricsLevel", "ALL", "SUMMARY"),
        ("initialPositionInStreamExtended", "2025-01-01", "whole seconds"),
        ("initialPositionInStreamExtended", "1.5", "whole seconds"),
        ("initialPositionInStreamExtended", "1735689600000", "milliseconds"),
        ("staleWorkerMetricsEntryCleanupDuration", "1d", "ISO-8601"),
        ("staleWorkerMetricsEntryCleanupDuration", "P", "ISO-8601"),
        ("staleWorkerMetricsEntryCleanupDuration", "PT", "ISO-8601"),
        ("staleWorkerMetricsEntryCleanupDuration", "P1DT", "ISO-8601"),
        ("staleWorkerMetricsEntryCleanupDuration", "", "ISO-8601"),
        ("staleWorkerMetricsEntryCleanupDuration", "PT-1S", "negative"),
        ("kinesisEndpoint", "localhost:4566", "http://localhost:4566"),
        ("kinesisEndpoint", "http://", "http:// or https://"),
        ("kinesisEndpoint", "http://a b", "http:// or https://"),
        ("kinesisEndpoint", "http://a:port", "http:// or https://"),
        ("kinesisEndpoint", "ftp://a", "http:// or https://"),
        ("regionName", "", "eu-west-1"),
    ],
)
def test_a_text_that_cannot_be_run_with_is_an_error(name: str, text: str, said: str) -> None:
    converted = convert(BY_NAME[name], text)
    assert converted.fatal
    assert converted.value is None
    assert said in converted.problem


def test_an_object_typed_boolean_is_false_for_other_words_a_primitive_one_stays_at_its_default() -> None:
    assert convert(BY_NAME["isGracefulLeaseHandoffEnabled"], "enabled").value is False
    assert convert(BY_NAME["cleanupLeasesUponShardCompletion"], "enabled").value is None


def test_tags_that_are_none_are_skipped_by_name() -> None:
    converted = convert(BY_NAME["tags"], "a=b, h=, e=f=g, =x")
    assert converted.value == {"a": "b"}
    assert converted.problem == ": h=, e=f=g, =x is not of the form name=value and is skipped"


@pytest.mark.parametrize(
    ("name", "text", "is_set"),
    [
        ("maxRecords", "abc", False),
        ("maxRecords", "0", False),
        ("idleTimeBetweenReadsInMillis", "-5", True),
        ("maxRecords", "10000", True),
        ("maxGetRecordsThreadPool", "abc", True),
        ("retryGetRecordsInSeconds", "0", True),
    ],
)
def test_whether_java_takes_a_field_as_set(name: str, text: str, is_set: bool) -> None:
    assert convert(BY_NAME[name], text).is_set is is_set


@given(st.sampled_from(KEYS), st.text(max_size=40).map(str.strip))
def test_no_text_makes_a_conversion_fail(key: Any, text: str) -> None:
    converted = convert(key, text)
    assert not converted.fatal or converted.problem


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_the_default_of_every_key_is_a_text_of_its_own_type(key: Any) -> None:
    if key.default is not None:
        assert convert(key, key.default).problem == ""
        assert convert(key, key.default).fatal is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python  app.py   -v", ("python", "app.py", "-v")),
        ("a\tb c", ("a\tb", "c")),
        ("app ", ("app",)),
        ("'/opt/my app/run' \"two words\" ''", ("/opt/my app/run", "two words", "")),
        ("app --x=\"a b\"", ("app", '--x="a', 'b"')),
        ("app it's", ("app", "it's")),
        ("app 'a'b", ("app", "'a'b")),
        ("app 'a b", ("app", "'a", "b")),
        ("app \"it's fine\"", ("app", "it's fine")),
    ],
)  # fmt: skip
def test_a_command_is_split_like_javas_but_for_quoted_words(text: str, words: tuple[str, ...]) -> None:
    assert split_command(text) == words


def test_a_quote_without_its_partner_is_noticed() -> None:
    assert has_unbalanced_quote("app 'a b")
    assert not has_unbalanced_quote("app 'a b' it's")


@given(st.text(alphabet="ab -'\"\t", max_size=30).filter(lambda t: "'" not in t and '"' not in t))
def test_without_quotes_the_split_is_exactly_javas(text: str) -> None:
    assert list(split_command(text)) == [word for word in text.split(" ") if word]


def test_a_password_in_a_url_is_masked() -> None:
    assert mask_uri("http://me:secret@host:1/p") == "http://***@host:1/p"
    assert mask_uri("http://host:1/p") == "http://host:1/p"
