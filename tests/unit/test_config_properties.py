"""A file -> Settings, findings and origins (spec configuration 1 to 5 and 7; kcl_host/DESIGN.md section 4)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.config.findings import InvalidConfiguration, log_findings
from kcl_host.config.keys import KEYS
from kcl_host.config.properties import Loaded, load_settings
from kcl_host.config.settings import CredentialsProvider, Settings
from kcl_host.errors import ConfigurationError

DATA = Path(__file__).parents[1] / "data" / "config"
REGIONS = ("eu-west-1", "eu-west-2", "us-east-1")
REQUIRED = {
    "executableName": "app",
    "streamName": "words",
    "applicationName": "counter",
    "AwsCredentialsProvider": "DefaultCredentialsProvider",
    "retrievalMode": "POLLING",
}


def load(
    given: Mapping[str, str], *, environ: Mapping[str, str] = {}, strict: bool = False, without: tuple[str, ...] = ()
) -> Loaded:
    overrides = {name: text for name, text in (REQUIRED | dict(given)).items() if name not in without}
    return load_settings(
        None,
        environ=environ,
        overrides=overrides,
        strict=strict,
        random_suffix="r4nd",
        hostname="host",
        known_regions=REGIONS,
    )


def load_file(name: str, *, strict: bool = False, environ: Mapping[str, str] = {}) -> Loaded:
    return load_settings(
        str(DATA / f"{name}.properties"),
        environ=environ,
        strict=strict,
        random_suffix="r4nd",
        hostname="host",
        known_regions=REGIONS,
    )


def messages(loaded: Loaded) -> list[str]:
    return [finding.message.removeprefix("configuration: ") for finding in loaded.findings]


def errors(given: Mapping[str, str], **how: Any) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        load(given, **how)
    assert caught.value.exit_code == 2
    return [line.removeprefix("configuration: ") for line in str(caught.value).splitlines()]


def origin(loaded: Loaded, key: str) -> tuple[str | None, str]:
    row = next(row for row in loaded.origins if row.key == key)
    return row.value, row.origin.rpartition("/")[2]


def test_the_sample_of_a_new_user_means_what_java_makes_of_it() -> None:
    loaded = load_file("kclpy_sample")
    settings = loaded.settings
    assert settings.child.command == ("sample_kclpy_app.py",)
    assert settings.child.response_timeout_s is None
    assert settings.streams[0].name == "words"
    assert settings.application_name == settings.lease_table.name == "PythonKCLSample"
    assert settings.coordinator_table.name == "PythonKCLSample-CoordinatorState"
    assert settings.worker_metrics_table.name == "PythonKCLSample-WorkerMetricStats"
    assert settings.initial_position.kind == "TRIM_HORIZON"
    assert settings.kinesis.region == settings.dynamodb.region == settings.cloudwatch.region == "us-east-1"
    assert settings.worker_id == "host-r4nd"
    assert (settings.retrieval.mode, settings.retrieval.mode_reason) == ("FANOUT", "no polling key is set")
    assert origin(loaded, "retrievalMode") == ("FANOUT (no polling key is set)", "derived")
    assert origin(loaded, "regionName") == ("us-east-1", "kclpy_sample.properties:18")
    assert origin(loaded, "failoverTimeMillis") == ("10000", "default")
    assert origin(loaded, "leaseAssignmentIntervalMillis") == ("20000", "derived")
    assert origin(loaded, "workerId") == ("host-r4nd", "derived")
    assert loaded.findings == ()


def test_an_old_file_with_names_of_sdk_v1_runs_with_warnings_and_passes_the_strict_check() -> None:
    loaded = load_file("node_click_stream", strict=True)
    assert loaded.settings.kinesis.credentials == (CredentialsProvider(name="DefaultCredentialsProvider"),)
    assert loaded.settings.retrieval.mode == "POLLING"
    assert loaded.settings.retrieval.mode_reason == "maxRecords is set"
    assert loaded.settings.retrieval.idle_between_reads_s == 1.0
    assert loaded.settings.lock.lease_duration_s == loaded.settings.lease.failover_s == 20.0
    assert loaded.settings.lock.heartbeat_s == pytest.approx(20 / 3)
    assert loaded.settings.assignment.interval_s == 40.0
    assert loaded.settings.worker_id == "click-1"
    assert [(f.key, f.line) for f in loaded.findings] == [
        ("AWSCredentialsProvider", 5),
        ("userAgent", 14),
    ]


def test_every_form_of_the_syntax_arrives() -> None:
    loaded = load_file("syntax", strict=True)
    assert loaded.settings.child.command == ("python3", "processor.py", "--verbose")
    assert loaded.settings.streams[0].name == "words"
    assert loaded.settings.application_name == "cafe"
    assert loaded.settings.worker_id == "w=1:2"
    assert loaded.settings.coordinator_table.tags == {"a": "b", "team": "data:pipes"}
    assert origin(loaded, "AwsCredentialsProvider")[1] == "syntax.properties:7"
    assert origin(loaded, "workerId")[1] == "syntax.properties:11"
    assert loaded.findings == ()


def test_misspelt_keys_are_named_with_line_and_nearest_key_and_explain_what_is_missing() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load_file("misspelt")
    path = DATA / "misspelt.properties"
    assert str(caught.value).splitlines() == [
        f"{path}: streamName or streamArn is missing: set one of them, or streamNames or streamArns for several"
        f" ({path}:2 has StreamName: names are case-sensitive)",
        f"{path}: applicationName is missing: it names the lease table and everything else of your application"
        f" ({path}:3 has applicationname: names are case-sensitive)",
    ]
    warned = [f.message.removeprefix(f"{path}:") for f in caught.value.findings if f.severity == "warning"]
    assert warned == [
        "2: unknown key StreamName is ignored; keys are case-sensitive, write streamName",
        "3: unknown key applicationname is ignored; keys are case-sensitive, write applicationName",
        "5: unknown key RetrievalMode is ignored; keys are case-sensitive, write retrievalMode",
        "6: unknown key dynamoDbEndpoint is ignored; keys are case-sensitive, write dynamoDBEndpoint",
        "7: unknown key failoverTimeMilis is ignored; did you mean failoverTimeMillis?",
        "8: unknown key frobnicate is ignored; no known key is similar",
    ]


def test_competing_keys_have_a_defined_winner_and_a_warning() -> None:
    loaded = load_file("contradictory", environ={"AWS_REGION": "eu-west-2"})
    settings = loaded.settings
    assert settings.streams[0].name == "events"
    assert settings.kinesis.region == "eu-west-1"
    assert settings.dynamodb.region == "us-east-1"
    assert settings.kinesis.endpoint_url == "https://two.example"
    assert settings.worker_id == "winner"
    assert settings.initial_position.kind == "AT_TIMESTAMP"
    assert settings.initial_position.timestamp_s == 1735689600
    assert settings.retrieval.max_records == 200
    assert settings.lease.failover_s == 30.0
    assert settings.shard_sync.cleanup_upon_shard_completion is False
    path = DATA / "contradictory.properties"
    assert [f.message.removeprefix(f"{path}:") for f in loaded.findings] == [
        "2: streamName is ignored, streamArn names another stream and wins",
        "6: regionName is ignored for kinesis, whose client has a region of its own",
        "8: kinesisEndpoint is ignored, kinesisClient.endpointOverride (line 9) sets the same thing and wins",
        "10: workerIdentifier is ignored, workerId (line 11) sets the same thing and wins",
        "12: initialPositionInStream is ignored,"
        " initialPositionInStreamExtended (line 13) sets the same thing and wins",
        "14: maxRecords is ignored, pollingConfig.maxRecords (line 15) sets the same thing and wins",
        "17: fanoutConfig.consumerName is ignored, the retrieval mode is POLLING (retrievalMode = POLLING)",
        "19: failoverTimeMillis was already set in line 18; this line wins",
        "20: cleanupLeasesUponShardCompletion = false: leases of finished shards stay; the Java daemon deletes them",
    ]


@pytest.mark.parametrize("missing", ["executableName", "streamName", "applicationName", "AwsCredentialsProvider"])
def test_each_required_key_is_asked_for_by_name(missing: str) -> None:
    (message,) = errors({}, without=(missing,))
    assert message.startswith(missing)
    assert "is missing" in message


@pytest.mark.parametrize("empty", ["executableName", "streamName", "applicationName"])
def test_an_empty_required_key_is_one_error(empty: str) -> None:
    (message,) = errors({empty: ""})
    assert message.startswith(f"{empty} needs a value")


def test_all_errors_are_reported_at_once() -> None:
    found = errors({"timeoutInSeconds": "0", "metricsLevel": "LOUD", "maxRecords": "20000", "streamArn": "arn:x"})
    assert [message.split(" ")[0] for message in found] == [
        "timeoutInSeconds", "metricsLevel", "maxRecords", "streamArn",
    ]  # fmt: skip


NETWORK = {"workerMetricList": "NETWORK_IN,NETWORK_OUT", "workerMetricMaxBandwidthMBps": "125"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"streamName": "two words"}, "cannot be a stream"),
        ({"applicationName": "two words"}, "cannot be a DynamoDB table"),
        ({"tableName": "x"}, "tableName: 'x' cannot be a DynamoDB table"),
        ({"streamArn": "arn:aws:kinesis:eu-west-1:12:stream/x"}, "is not of the form"),
        ({"shardPrioritization": "x"}, "shardPrioritization is not supported"),
        ({"kinesisClient.httpClientBuilder": "x"}, "kinesisClient.httpClientBuilder is not supported"),
        ({"kinesisCredentialsProvider.profileName": "x"}, "is not supported"),
        ({"kinesisCredentialsProvider.class": "DefaultCredentialsProvider"}, "exclude each other"),
        ({"awscredentialsprovider": "DefaultCredentialsProvider"}, "are the same key"),
        ({"AwsCredentialsProvider": "StaticCredentialsProvider|ak|sk"}, "unknown credentials provider"),
        ({"AwsCredentialsProvider": ""}, "no credentials provider is named"),
        ({"dynamoDbRequestTimeout": "PT0S"}, "longer than nothing"),
        ({"dynamoDBEndpoint": "localhost:8000"}, "http://localhost:8000"),
        ({"workerMetricList": "CPU MEMORY"}, "'CPU MEMORY' is not one of CPU, NETWORK_IN, NETWORK_OUT"),
        ({"workerMetricList": "NETWORK_IN"}, "workerMetricMaxBandwidthMBps is missing"),
        ({"workerMetricList": "NETWORK_IN", "workerMetricMaxBandwidthMBps": "fast"}, "'fast' is not a number"),
        ({"workerMetricList": "NETWORK_IN", "workerMetricMaxBandwidthMBps": "0"}, "from 0.001 to 999999 is needed"),
        ({"workerMetricList": "NETWORK_IN", "workerMetricMaxBandwidthMBps": "Infinity"}, "out of range"),
        ({"workerMetricCpuOperatingRange": "0"}, "= 0 is out of range, from 1 to 100 is needed"),
        ({"workerMetricCpuOperatingRange": "101"}, "= 101 is out of range, from 1 to 100 is needed"),
        ({"workerMetricCpuOperatingRange": "80%"}, "= '80%' is not an integer"),
        (NETWORK | {"workerMetricNetworkInOperatingRange": "0"}, "= 0 is out of range"),
        (NETWORK | {"workerMetricNetworkOutOperatingRange": "-1"}, "= -1 is out of range"),
        (NETWORK | {"workerMetricNetworkInterface": "eth 0"}, "'eth 0' cannot be a network interface"),
    ],
)  # fmt: skip
def test_a_run_is_impossible(given: dict[str, str], said: str) -> None:
    (message,) = errors(given)
    assert said in message


@pytest.mark.parametrize(
    ("name", "text"),
    [("failoverTimeMillis", "5_000"), ("disableWorkerMetrics", "enabled"), ("tags", "a"), ("nosuch", "x")],
)
def test_what_java_passes_over_is_a_warning_and_in_strict_mode_an_error(name: str, text: str) -> None:
    (warning,) = messages(load({name: text}))
    assert errors({name: text}, strict=True) == [warning]


def test_worker_metrics() -> None:
    given = {"workerMetricNetworkInterface": "ens5", "workerMetricNetworkInOperatingRange": "70"}
    metrics = load(NETWORK | given).settings.worker_metrics
    assert metrics.metrics == ("NETWORK_IN", "NETWORK_OUT")
    assert (metrics.network_interface, metrics.network_max_mb_per_s) == ("ens5", 125.0)
    assert [metrics.operating_range_percent(name) for name in ("C", "NI", "NO")] == [100, 70, 100]
    assert messages(load(NETWORK | given)) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workerMetricMaxBandwidthMBps": "5"}, ["NETWORK_IN or NETWORK_OUT is not reported"]),
        ({"workerMetricList": "CPU", "workerMetricNetworkInOperatingRange": "5"}, ["NETWORK_IN is not reported"]),
        (NETWORK | {"workerMetricCpuOperatingRange": "80"}, ["workerMetricCpuOperatingRange is ignored, CPU is not"]),
        ({"disableWorkerMetrics": "true", "workerMetricCpuOperatingRange": "80"}, ["CPU is not reported"]),
        (
            {"disableWorkerMetrics": "true", "workerMetricList": "CPU", "workerMetricCpuOperatingRange": "80"},
            ["only switches the automatic choice off"],
        ),
        ({"workerMetricList": " , "}, ["workerMetricList is empty and counts as not set"]),
        ({"workerMetricCpuOperatingRange": "80"}, []),
    ],
)
def test_keys_of_metrics_that_are_not_reported_are_named(given: dict[str, str], said: list[str]) -> None:
    found = messages(load(given))
    assert len(found) == len(said)
    assert all(part in message for part, message in zip(said, found, strict=True))


@pytest.mark.parametrize(
    ("given", "mode", "reason"),
    [
        ({}, "FANOUT", "no polling key is set"),
        ({"maxRecords": "10000"}, "POLLING", "maxRecords is set"),
        ({"maxRecords": "abc"}, "FANOUT", "no polling key is set"),
        ({"maxRecords": "0"}, "FANOUT", "no polling key is set"),
        ({"idleTimeBetweenReadsInMillis": "-5"}, "POLLING", "idleTimeBetweenReadsInMillis is set"),
        ({"maxGetRecordsThreadPool": "abc"}, "POLLING", "maxGetRecordsThreadPool is set"),
        ({"retryGetRecordsInSeconds": "0"}, "POLLING", "retryGetRecordsInSeconds is set"),
        ({"pollingConfig.maxRecords": "5"}, "POLLING", "pollingConfig.maxRecords is set"),
        ({"fanoutConfig.consumerName": "x"}, "FANOUT", "no polling key is set"),
        ({"retrievalMode": "default", "maxRecords": "5"}, "POLLING", "maxRecords is set"),
        ({"retrievalMode": "fanout", "maxRecords": "5"}, "FANOUT", "retrievalMode = FANOUT"),
        ({"retrievalMode": "Polling"}, "POLLING", "retrievalMode = POLLING"),
    ],
)
def test_retrieval_mode_by_kcls_rule(given: dict[str, str], mode: str, reason: str) -> None:
    without = () if "retrievalMode" in given else ("retrievalMode",)
    retrieval = load(given, without=without).settings.retrieval
    assert (retrieval.mode, retrieval.mode_reason) == (mode, reason)


def test_polling_keys_are_said_to_be_ignored_under_fan_out() -> None:
    found = messages(load({"retrievalMode": "FANOUT", "maxRecords": "5"}))
    assert "maxRecords is ignored, the retrieval mode is FANOUT (retrievalMode = FANOUT)" in found


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"fanoutConfig.consumerName": "two words"}, "'two words' cannot be a fan-out consumer"),
        ({"fanoutConfig.consumerName": "x" * 129}, "cannot be a fan-out consumer"),
        ({"applicationName": "a" * 129}, "applicationName: "),
        ({"fanoutConfig.consumerArn": "arn:aws:kinesis:us-east-1:111122223333:stream/words"}, "is not of the form"),
        (
            {"fanoutConfig.consumerArn": "arn:aws:kinesis:us-east-1:111122223333:stream/other/consumer/me:17"},
            "is a consumer of another stream",
        ),
    ],
)
def test_a_consumer_that_cannot_be_is_an_error_under_fan_out_only(given: dict[str, str], error: str) -> None:
    assert load({**given, "retrievalMode": "POLLING"}).settings.retrieval.mode == "POLLING"
    with pytest.raises(InvalidConfiguration, match=error):
        load({**given, "retrievalMode": "FANOUT"})


def test_fan_out_as_configured() -> None:
    given = {
        "retrievalMode": "FANOUT",
        "fanoutConfig.consumerName": "readers",
        "fanoutConfig.registerStreamConsumerRetries": "3",
        "fanoutConfig.retryBackoffMillis": "250",
        "fanoutTransport": "HTTP1",
    }
    retrieval = load(given).settings.retrieval
    assert (retrieval.consumer_name, retrieval.register_consumer_attempts) == ("readers", 3)
    assert (retrieval.registration_backoff_s, retrieval.fanout_transport) == (0.25, "http1")
    assert retrieval.describe_summary_attempts == retrieval.describe_consumer_attempts == 10


def test_region_comes_from_the_file_then_the_environment_then_nowhere() -> None:
    both = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}
    loaded = load({"regionName": "us-east-1"}, environ=both)
    assert loaded.settings.kinesis.region == "us-east-1"
    loaded = load({}, environ=both)
    assert loaded.settings.dynamodb.region == "eu-west-1"
    assert origin(loaded, "regionName") == ("eu-west-1", "environment AWS_REGION")
    loaded = load({}, environ={"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-west-2"})
    assert loaded.settings.cloudwatch.region == "eu-west-2"
    loaded = load({})
    assert loaded.settings.kinesis.region is None
    assert origin(loaded, "regionName") == (None, "default")


def test_an_unknown_region_is_a_warning_with_the_nearest_one() -> None:
    assert messages(load({"regionName": "eu-wst-1"})) == [
        "regionName = eu-wst-1 is not a known region; did you mean eu-west-1?"
    ]
    assert messages(load({}, environ={"AWS_REGION": "us-esat-1"})) == [
        "AWS_REGION = us-esat-1 is not a known region; did you mean us-east-1?"
    ]


def test_the_region_of_a_stream_arn_is_not_used_for_requests() -> None:
    arn = "arn:aws-cn:kinesis:cn-north-1:111122223333:stream/words"
    loaded = load({"streamArn": arn, "regionName": "us-east-1"})
    assert loaded.settings.streams[0].arn == arn
    assert loaded.settings.kinesis.region == "us-east-1"
    assert messages(loaded) == ["streamArn names cn-north-1, but as in Java the region us-east-1 is used for requests"]


def test_endpoints_of_the_environment_yield_to_the_file() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_DYNAMODB": "http://me:pw@one:2"}
    loaded = load({"kinesisEndpoint": "http://mine:3"}, environ=environ)
    assert loaded.settings.kinesis.endpoint_url == "http://mine:3"
    assert loaded.settings.dynamodb.endpoint_url == "http://me:pw@one:2"
    assert loaded.settings.cloudwatch.endpoint_url == "http://all:1"
    assert origin(loaded, "dynamoDBEndpoint")[0] == "http://***@one:2"
    ignoring = load({}, environ=environ | {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"})
    assert ignoring.settings.kinesis.endpoint_url is None
    assert errors({}, environ={"AWS_ENDPOINT_URL_KINESIS": "nowhere"})[0].startswith("AWS_ENDPOINT_URL_KINESIS = ")


def test_credentials_fall_back_to_those_of_kinesis() -> None:
    settings = load({"AwsCredentialsProviderDynamoDB": "AnonymousCredentialsProvider"}).settings
    assert [p.name for p in settings.kinesis.credentials] == ["DefaultCredentialsProvider"]
    assert [p.name for p in settings.dynamodb.credentials] == ["AnonymousCredentialsProvider"]
    assert settings.cloudwatch.credentials == settings.kinesis.credentials
    by_class = {
        "kinesisCredentialsProvider.class": "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
    }
    settings = load(by_class, without=("AwsCredentialsProvider",)).settings
    assert [p.name for p in settings.kinesis.credentials] == ["AnonymousCredentialsProvider"]


def test_no_secret_is_shown_anywhere() -> None:
    secret = "StsAssumeRoleCredentialsProvider|arn:aws:iam::111122223333:role/S3CRET|S3CRET|externalId=S3CRET|x=S3CRET"
    loaded = load({"AwsCredentialsProvider": f"{secret}, ProfileCredentialsProvider|S3CRET|S3CRET"})
    assert "S3CRET" not in repr(loaded)
    assert origin(loaded, "AwsCredentialsProvider")[0] == (
        "StsAssumeRoleCredentialsProvider|***|***|externalId=***|***, ProfileCredentialsProvider|***|***"
    )
    for value in ("StaticCredentialsProvider|S3CRET|S3CRET", "S3CRET", "StsAssumeRoleCredentialsProvider|S3CRET"):
        with pytest.raises(InvalidConfiguration) as caught:
            load({"AwsCredentialsProvider": value})
        assert "S3CRET" not in f"{caught.value} {caught.value.findings} {caught.value.origins}"


def test_our_defaults_where_we_differ_from_java() -> None:
    settings = load({}).settings
    assert settings.coordinator.shutdown_grace_s == 20.0
    assert settings.initial_position.kind == "LATEST"
    assert load({"shutdownGraceMillis": "0"}).settings.coordinator.shutdown_grace_s == 0
    assert load({"workerId": ""}).settings.worker_id == "host-r4nd"


def test_values_land_in_seconds() -> None:
    settings = load(
        {
            "timeoutInSeconds": "30",
            "logWarningForTaskAfterMillis": "1500",
            "gracefulLeaseHandoffTimeoutMillis": "0",
            "millisBehindLatestThresholdForReducedTps": "250",
            "maxThroughputPerHostKBps": "1e3",
            "staleWorkerMetricsEntryCleanupDuration": "PT1H",
            "dynamoDbRequestTimeout": "PT1.5S",
        }
    ).settings
    assert settings.child.response_timeout_s == 30.0
    assert settings.lifecycle.log_warning_for_task_after_s == 1.5
    assert settings.lease.graceful_handoff_timeout_s == 0
    assert settings.retrieval.reduced_tps_threshold_ms == 250
    assert settings.assignment.max_throughput_per_host_kbps == 1000.0
    assert settings.worker_metrics.stale_after_s == 3600.0
    assert settings.lease.request_timeout_s == 1.5
    assert load({"dynamoDbRequestTimeout": "PT60S"}).settings.lease.request_timeout_s == 3.0
    assert load({"failoverTimeMillis": "4500"}).settings.lease.request_timeout_s == 1.5
    assert load({"failoverTimeMillis": "1000"}).settings.lease.request_timeout_s == 1.0


def test_reads_are_at_least_200_ms_apart() -> None:
    loaded = load({"idleTimeBetweenReadsInMillis": "50"})
    assert loaded.settings.retrieval.idle_between_reads_s == 0.2
    assert messages(loaded) == ["idleTimeBetweenReadsInMillis is raised to 200"]
    assert origin(loaded, "idleTimeBetweenReadsInMillis") == ("200", "derived")


def test_capacities_without_the_billing_mode_are_named() -> None:
    assert messages(load({"initialLeaseTableReadCapacity": "5"})) == [
        "initialLeaseTableReadCapacity has no effect unless billingMode = PROVISIONED"
    ]
    settings = load({"initialLeaseTableReadCapacity": "5", "billingMode": "provisioned"}).settings
    assert (settings.lease_table.billing_mode, settings.lease_table.read_capacity) == ("PROVISIONED", 5)


def test_log_settings() -> None:
    loaded = load({"logLevel": "debug", "logFormat": "JSON"})
    assert (loaded.log_level, loaded.log_format) == ("DEBUG", "json")
    assert (load({}).log_level, load({}).log_format) == ("INFO", "text")


def test_a_quote_without_its_partner_is_warned_about() -> None:
    loaded = load({"executableName": "run 'a b"})
    assert loaded.settings.child.command == ("run", "'a", "b")
    assert messages(loaded) == ["executableName has a quote without its partner; it is passed on as it is"]


def test_an_override_goes_before_the_file() -> None:
    loaded = load_settings(
        str(DATA / "node_click_stream.properties"),
        environ={},
        overrides={"workerId": "other", "pollingConfig.maxRecords": "3"},
        random_suffix="r",
        hostname="h",
    )
    assert loaded.settings.worker_id == "other"
    assert loaded.settings.retrieval.max_records == 3
    assert origin(loaded, "workerId") == ("other", "override")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none", "there is no such file"), (tmp_path, "this is a directory")):
        with pytest.raises(ConfigurationError, match=said) as caught:
            load_settings(str(path), environ={}, random_suffix="r", hostname="h")
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_findings_become_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        log_findings(load({"nosuch": "x"}).findings, logging.getLogger("t"))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "configuration: unknown key nosuch is ignored; no known key is similar"
    assert (record.__dict__["action"], record.__dict__["key"]) == ("configuration", "nosuch")


TEXTS = st.one_of(
    st.sampled_from(["", "0", "-1", "7", "true", "maybe", "PT1S", "a=b", "http://h", "DEFAULT", "PROVISIONED", "x y"]),
    st.text(max_size=10),
)


@given(st.dictionaries(st.one_of(st.sampled_from([k.name for k in KEYS]), st.text(max_size=12)), TEXTS, max_size=8))
def test_any_configuration_is_settings_or_a_configuration_error(given: dict[str, str]) -> None:
    try:
        loaded = load(given)
    except ConfigurationError as error:
        assert str(error)
        return
    assert isinstance(loaded.settings, Settings)
    assert all(finding.severity == "warning" for finding in loaded.findings)
