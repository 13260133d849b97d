"""The table of keys against KCL's list, against Settings, and against the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kcl_host.config.keys import BY_NAME, KEYS, SECTIONS, Key, as_markdown
from kcl_host.config.names import match_name, nearest_name
from kcl_host.config.properties import load_settings
from kcl_host.config.settings import Settings

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"

# The top-level names that the daemon's bean has (spec configuration section 4), and the three raw ones.
JAVA_NAMES = """
executableName processingLanguage maxActiveThreads
allowThroughputOvershoot applicationName awsCredentialsProvider awsCredentialsProviderCloudWatch
awsCredentialsProviderDynamoDB callProcessRecordsEvenForEmptyRecordList cleanupLeasesUponShardCompletion
clientVersionConfig coordinatorStateBillingMode coordinatorStateDeletionProtectionEnabled
coordinatorStatePointInTimeRecoveryEnabled coordinatorStateReadCapacity coordinatorStateTableName coordinatorStateTags
coordinatorStateWriteCapacity dampeningPercentage disableWorkerMetrics dynamoDBEndpoint enablePriorityLeaseAssignment
failoverTimeMillis gracefulLeaseHandoffTimeoutMillis idleTimeBetweenReadsInMillis ignoreUnexpectedChildShards
inMemoryWorkerMetricsCaptureFrequencyMillis initialLeaseTableReadCapacity initialLeaseTableWriteCapacity
initialPositionInStream initialPositionInStreamExtended isGracefulLeaseHandoffEnabled kinesisEndpoint
leaseAssignmentIntervalMillis leaseTableDeletionProtectionEnabled leaseTablePitrEnabled leaseTableScanTotalSegments
listShardsBackoffTimeInMillis logWarningForTaskAfterMillis maxGetRecordsThreadPool maxLeaseRenewalThreads
maxLeasesForWorker maxLeasesToStealAtOneTime maxListShardsRetryAttempts maxRecords maxThroughputPerHostKBps
metricsBufferTimeMillis metricsEnabledDimensions metricsLevel metricsMaxQueueSize migrateAllEntitiesToLeaseTable
millisBehindLatestThresholdForReducedTps noOfPersistedMetricsPerWorkerMetrics parentShardPollIntervalMillis
reBalanceThresholdPercentage regionName retrievalMode retryGetRecordsInSeconds schedulerInitializationBackoffTimeMillis
shardPrioritization shardSyncIntervalMillis shutdownGraceMillis skipShardSyncAtWorkerInitializationIfLeasesExist
staleWorkerMetricsEntryCleanupDuration streamArn streamName tableMigrationCompleteBakeTimeSeconds tableName
taskBackoffTimeMillis timeoutInSeconds validateSequenceNumberBeforeCheckpointing varianceBalancingFrequency workerId
workerIdentifier workerMetricsBillingMode workerMetricsDeletionProtectionEnabled workerMetricsEMAAlpha
workerMetricsPointInTimeRecoveryEnabled workerMetricsReadCapacity workerMetricsReporterFreqInMillis
workerMetricsTableName workerMetricsTags workerMetricsWriteCapacity
""".split()

REQUIRED = {
    "executableName": "app",
    "streamName": "words",
    "applicationName": "counter",
    "AwsCredentialsProvider": "DefaultCredentialsProvider",
}


def settings(**more: str) -> Settings:
    given = REQUIRED | {name.replace("__", "."): text for name, text in more.items()}
    return load_settings(None, environ={}, overrides=given, random_suffix="r", hostname="h").settings


def landed(tree: Settings, path: str) -> Any:
    value: Any = tree
    for field in path.split("."):
        value = getattr(value, field)
    return value


@pytest.mark.parametrize("name", JAVA_NAMES)
def test_every_key_of_the_daemon_is_known_and_not_called_an_extension(name: str) -> None:
    key = match_name(name).key
    assert key is not None
    assert not key.extension


def test_names_are_unique_and_what_a_key_beats_exists() -> None:
    assert len(BY_NAME) == len(KEYS)
    assert all(name in BY_NAME for key in KEYS for name in key.beats)


@pytest.mark.parametrize("key", [k for k in KEYS if k.to and k.default is not None], ids=lambda k: k.name)
def test_the_default_in_the_table_is_the_default_in_settings(key: Key) -> None:
    """Giving the default explicitly changes nothing."""
    given = {key.name: key.default or ""}
    explicit = load_settings(None, environ={}, overrides=REQUIRED | given, random_suffix="r", hostname="h").settings
    assert landed(explicit, key.to) == landed(settings(), key.to)


SAMPLES = {
    "int": "7", "long": "700", "double": "0.25", "boolean": "true", "duration": "PT2M", "tags": "a=b", "list": "a,b",
    "region": "eu-west-1", "uri": "https://h.example", "credentials": "AnonymousCredentialsProvider",
    "command": "run me", "epoch seconds": "1735689600", "text": "some-name", "names": "a, b",
}  # fmt: skip


NOT_ALONE = ("poisonRecordAfterFailures", "deadLetterTarget")
"""One without the other is an error."""


def sample(key: Key) -> str:
    if key.name == "deadLetterTarget":
        return "s3://bucket/prefix"
    if key.name == "streamArn":
        return "arn:aws:kinesis:eu-west-1:111122223333:stream/words"
    if key.name == "fanoutConfig.consumerArn":
        return f"arn:aws:kinesis:eu-west-1:111122223333:stream/{REQUIRED['streamName']}/consumer/me:1700000000"
    if key.name == "streamArns":
        return sample(BY_NAME["streamArn"])
    if key.name == "streamIdentifiersForLeaseCleanup":
        return "111122223333:words:1700000000"
    if key.name == "metricsLevel":
        return "SUMMARY"
    if key.name == "workerMetricList":  # the others need a bandwidth
        return "CPU"
    if key.name == "endpointAddress":
        return "::1"
    if key.name == "spark.remote":
        return "sc://h.example"
    if key.name == "spark.server.memory":
        return "3g"
    if key.default == "true":
        return "false"
    return key.choices[-1] if key.choices else SAMPLES[key.kind]


@pytest.mark.parametrize("key", [k for k in KEYS if k.status != "not supported"], ids=lambda k: k.name)
def test_every_key_can_be_given_and_arrives(key: Key) -> None:
    given = {name: text for name, text in REQUIRED.items() if key.name != "kinesisCredentialsProvider.class"}
    if key.name == "kinesisCredentialsProvider.class":
        given = {name: text for name, text in REQUIRED.items() if name != "AwsCredentialsProvider"}
    if key.name in ("streamNames", "streamArns"):
        del given["streamName"]
    if key.name in NOT_ALONE:
        given |= {"poisonRecordAfterFailures": "3", "deadLetterTarget": "file:/dead"}
    given[key.name] = sample(key)
    loaded = load_settings(None, environ={}, overrides=given, random_suffix="r", hostname="h")
    origin = next(row for row in loaded.origins if row.key == key.name)
    assert origin.status == key.status
    if key.name not in ("initialPositionInStream", "retrievalMode"):
        assert origin.origin == "override"
    if key.to and key.name not in REQUIRED:
        before = load_settings(None, environ={}, overrides=REQUIRED, random_suffix="r", hostname="h").settings
        assert landed(loaded.settings, key.to) != landed(before, key.to)
        assert isinstance(loaded.settings, Settings)
    not_in_effect = [f.message for f in loaded.findings if "has no effect" in f.message and f.key == key.name]
    assert bool(not_in_effect) == (key.status == "not yet" or bool(key.note)) or "PROVISIONED" in not_in_effect[0]


@pytest.mark.parametrize("key", [k for k in KEYS if k.bean], ids=lambda k: k.name)
def test_the_nested_spelling_is_the_same_key(key: Key) -> None:
    match = match_name(f"{key.bean}.{key.name}")
    assert match.key is key
    assert match.nested


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("RetrievalMode", "retrievalMode"),
        ("dynamoDbEndpoint", "dynamoDBEndpoint"),
        ("failovertimemillis", "failoverTimeMillis"),
        ("failoverTimeMilis", "failoverTimeMillis"),
        ("AwsCredentialsProviderDynamodb", "AwsCredentialsProviderDynamoDB"),
        ("pollingConfig.maxRecord", "pollingConfig.maxRecords"),
        ("streamname", "streamName"),
        ("frobnicate", None),
    ],
)
def test_the_nearest_known_key(typed: str, meant: str | None) -> None:
    assert nearest_name(typed) == meant
    match = match_name(typed)
    assert match.key is None
    assert match.suggestion == meant
    assert typed in match.problem
    assert (meant or "no known key is similar") in match.problem


@pytest.mark.parametrize("typed", ["AWSCREDENTIALSPROVIDERDynamoDB", "awscredentialsproviderDynamoDB"])
def test_only_the_first_part_of_the_credentials_keys_ignores_case(typed: str) -> None:
    assert match_name(typed).key is BY_NAME["AwsCredentialsProviderDynamoDB"]


@pytest.mark.parametrize("typed", ["kinesisClient.bogus", "dynamoDbClient.defaultsMode", "foo[", "streamName[0]"])
def test_names_with_which_java_ends_are_refused(typed: str) -> None:
    assert match_name(typed).fatal


@pytest.mark.parametrize("typed", ["bogus.deep", "pollingConfig.bogus", "foo[0]", "foo(bar)", "kinesisClient", "x"])
def test_names_that_java_ignores_are_only_named(typed: str) -> None:
    match = match_name(typed)
    assert match.key is None
    assert not match.fatal
    assert match.problem


def test_the_docs_are_generated_from_the_table() -> None:
    """On failure: python -m kcl_host.config.keys > docs/configuration.md"""
    assert DOCS.read_text() == as_markdown()


def test_every_key_says_what_it_means_in_one_line() -> None:
    for _, keys in SECTIONS:
        for key in keys:
            assert key.meaning.endswith("."), key.name
            assert "\n" not in key.meaning
            assert "|" not in key.meaning


def test_settings_are_frozen_all_the_way_down() -> None:
    tree = settings()
    for field in msgspec.structs.fields(tree):
        value = getattr(tree, field.name)
        if isinstance(value, msgspec.Struct):
            assert value.__struct_config__.frozen, field.name
