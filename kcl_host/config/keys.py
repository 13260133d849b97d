"""Every key of a .properties file: the one table that reading, `kcl-host check` and docs/configuration.md come from.

Names, types and defaults are those of KCL 3.5.1's MultiLangDaemon (spec configuration section 3), save where
kcl_host/DESIGN.md section 4 says otherwise; our own keys are marked as extensions, Java ignores them. Names are
case-sensitive, as in Java.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal[
    "text", "int", "long", "double", "boolean", "enum", "duration", "tags", "list", "names", "region", "uri",
    "credentials", "command", "epoch seconds",
]  # fmt: skip
Status = Literal["used", "accepted without effect", "not yet", "not supported"]


class Key(msgspec.Struct, frozen=True):
    """One key.

    `default` is its text, None when there is none or when it is derived (`meaning` says how). `to` is where the value
    lands in Settings; a unit of ms becomes seconds there if the field ends in `_s`.
    """

    name: str
    kind: Kind
    default: str | None
    to: str
    meaning: str
    unit: str = ""
    status: Status = "used"
    primitive: bool = False
    """A primitive field in Java: 0 and false count as 'not set' (spec configuration 1.4)."""
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float | None = None
    fatal: Literal["", "range", "always"] = ""
    """When a wrong number ends the run instead of being passed over: never, out of range only, always."""
    bean: str = ""
    """The nested spelling is `bean.name`; it wins over the plain one."""
    beats: tuple[str, ...] = ()
    """Keys that set the same thing and lose against this one."""
    note: str = ""
    """Said as a warning whenever the key is given."""
    extension: bool = False
    """Ours; the Java daemon ignores it."""
    secret: bool = False
    per_stream: bool = False
    """`name.STREAM` is the value for one of several streams."""


_MODES: Final = ("PAY_PER_REQUEST", "PROVISIONED")
_NO_EFFECT: Final[Status] = "accepted without effect"
_GRACEFUL: Final = "gracefulLeaseHandoffConfigBean"
_BALANCE: Final = "workerUtilizationAwareAssignmentConfigBean"
_METRICS_TABLE: Final = "workerMetricStatsTableConfigBean"
_STATE_TABLE: Final = "coordinatorStateTableConfigBean"


def _client_keys(bean: str, service: str, endpoint: str) -> tuple[Key, ...]:
    """The properties of one SDK client that work in Java; `endpoint` is the plain key of the same meaning."""
    override = f"The same as {endpoint}, and wins over it."
    return (
        Key(f"{bean}.region", "region", None, f"{service}.region", "Region of this service only."),
        Key(
            f"{bean}.endpointOverride",
            "uri",
            None,
            f"{service}.endpoint_url",
            override,
            beats=(endpoint,),
        ),
        Key(
            f"{bean}.dualstackEnabled",
            "boolean",
            "false",
            f"{service}.use_dualstack",
            "Dual-stack endpoint.",
        ),
        Key(f"{bean}.fipsEnabled", "boolean", "false", f"{service}.use_fips", "FIPS endpoint."),
    )


# fmt: off
_APPLICATION: Final = (
    Key("executableName", "command", None, "child.command",
        "Command of the record processor, one per shard; split at spaces, arguments may be quoted. Required.",
        per_stream=True),
    Key("applicationName", "text", None, "application_name",
        "Names the application: lease table, metrics namespace, fan-out consumer and legacy tables. Required."),
    Key("streamName", "text", None, "", "The stream. It, streamArn, streamNames or streamArns is required."),
    Key("streamArn", "text", None, "",
        "The stream by ARN, wins over streamName; as in Java its region and account are not used for requests."),
    Key("workerId", "text", None, "worker_id",
        "Identity of this worker in the lease table. Default: host name and a random suffix.",
        beats=("workerIdentifier",)),
    Key("workerIdentifier", "text", None, "worker_id", "Another spelling of workerId."),
    Key("processes", "int", "1", "processes",
        "Worker processes of this host, each a worker of the application with shards of its own; one uses one core.",
        minimum=1, maximum=64, fatal="always", extension=True),
    Key("timeoutInSeconds", "int", None, "child.response_timeout_s",
        "Longest wait for each message of the child; on expiry that child is ended and restarted. Default: no limit.",
        unit="s", minimum=1, fatal="always"),
    Key("shutdownGraceMillis", "long", "20000", "coordinator.shutdown_grace_s",
        "Budget of a graceful stop after TERM or INT. 0: none. Java's default is 0.", unit="ms"),
    Key("processingLanguage", "text", None, "", "Language of the record processor.", status=_NO_EFFECT),
    Key("maxActiveThreads", "int", "0", "", "Size of Java's pool for pipes.", status=_NO_EFFECT,
        minimum=-(2**31), fatal="always"),
    Key("validateSequenceNumberBeforeCheckpointing", "boolean", "false", "",
        "Stored and never used in Java either.", status=_NO_EFFECT, primitive=True),
    Key("childFailurePolicy", "enum", "restart", "child.failure_policy",
        "What a failed child means: restart that child only, or exit as Java does.", choices=("restart", "exit"),
        extension=True),
    Key("childStderr", "enum", "log", "child.stderr",
        "log: each line of a child's stderr becomes a log line; inherit: it goes to the host's stderr as it is.",
        choices=("log", "inherit"), extension=True),
    Key("poisonRecordAfterFailures", "int", "0", "poison.after_failures",
        "Failures of children on the same batch after which the host looks for the record that causes them, puts it "
        "into deadLetterTarget and goes on behind it. 0: never, it blocks its shard. See docs/poison-records.md.",
        maximum=1000, fatal="always", extension=True),
    Key("deadLetterTarget", "text", None, "",
        "Where such records go: file:/FOLDER, sqs://HOST/ACCOUNT/QUEUE or s3://BUCKET/PREFIX.", extension=True),
    Key("poisonRecordsPerHour", "int", "10", "poison.per_hour",
        "Such records passed at most per shard and hour; a shard with more stands still.", minimum=1, maximum=100_000,
        fatal="always", extension=True),
    Key("childCloseDeadlineMillis", "long", "10000", "child.close_deadline_s",
        "Wait for a child to end after its stdin was closed, before TERM.", unit="ms", primitive=True, extension=True),
    Key("childTermDeadlineMillis", "long", "5000", "child.term_deadline_s",
        "Wait after TERM, before KILL of its process group.", unit="ms", primitive=True, extension=True),
    Key("logLevel", "enum", "INFO", "", "Least severe log lines written.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"), extension=True),
    Key("logFormat", "enum", "text", "", "One line per event, as text or as JSON.", choices=("text", "json"),
        extension=True),
    Key("protocolExtensions", "list", None, "child.protocol_extensions",
        "Opt-in additions to the MultiLang protocol, see protocol/PROTOCOL.md section 12.",
        choices=("prepareCheckpoint",), extension=True),
    Key("streamNames", "names", None, "",
        "Streams read by one application, with leases as in Java's multi-stream mode; each by name or as "
        "account:name:creation epoch. The file is read again each minute and on HUP.", extension=True),
    Key("streamArns", "names", None, "", "The same by ARN, for streams of other accounts too.", extension=True),
    Key("formerStreamsLeasesDeletionStrategy", "enum", "NO_STREAMS_LEASES_DELETION", "stream_tracking.former_streams",
        "Leases of streams no longer named by streamNames and streamArns: kept and read on, deleted after a wait, or "
        "deleted if streamIdentifiersForLeaseCleanup names them.",
        choices=("NO_STREAMS_LEASES_DELETION", "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION",
                 "PROVIDED_STREAMS_DEFERRED_DELETION"), extension=True),
    Key("waitPeriodToDeleteFormerStreamsMillis", "long", "3600000", "stream_tracking.wait_before_deletion_s",
        "That wait, from when the leader first misses the stream.", unit="ms", extension=True),
    Key("streamIdentifiersForLeaseCleanup", "names", None, "stream_tracking.provided",
        "Streams whose leases may be deleted, each as account:name:creation epoch.", extension=True),
)
_CLIENTS: Final = (
    Key("regionName", "region", None, "",
        "Region of Kinesis, DynamoDB and CloudWatch. Default: AWS_REGION, AWS_DEFAULT_REGION, then the AWS profile."),
    Key("kinesisEndpoint", "uri", None, "kinesis.endpoint_url", "Endpoint URL of Kinesis."),
    Key("dynamoDBEndpoint", "uri", None, "dynamodb.endpoint_url", "Endpoint URL of DynamoDB."),
    Key("cloudWatchEndpoint", "uri", None, "cloudwatch.endpoint_url", "Endpoint URL of CloudWatch.",
        extension=True),
    *_client_keys("kinesisClient", "kinesis", "kinesisEndpoint"),
    *_client_keys("dynamoDbClient", "dynamodb", "dynamoDBEndpoint"),
    *_client_keys("cloudWatchClient", "cloudwatch", "cloudWatchEndpoint"),
    Key("dynamoDbClient.endpointDiscoveryEnabled", "boolean", "false", "", "Endpoint discovery of the Java SDK.",
        status=_NO_EFFECT),
)
_CREDENTIALS: Final = (
    Key("AwsCredentialsProvider", "credentials", None, "kinesis.credentials",
        "Chain of credentials providers for Kinesis, and for the others if they have none. Required.", secret=True),
    Key("AwsCredentialsProviderDynamoDB", "credentials", None, "dynamodb.credentials",
        "Chain for DynamoDB. Default: that of Kinesis.", secret=True),
    Key("AwsCredentialsProviderCloudWatch", "credentials", None, "cloudwatch.credentials",
        "Chain for CloudWatch. Default: that of Kinesis.", secret=True),
    Key("kinesisCredentialsProvider.class", "credentials", None, "kinesis.credentials",
        "One provider for Kinesis by class name; not together with AwsCredentialsProvider.", secret=True),
    Key("dynamoDBCredentialsProvider.class", "credentials", None, "dynamodb.credentials",
        "One provider for DynamoDB by class name.", secret=True),
    Key("cloudWatchCredentialsProvider.class", "credentials", None, "cloudwatch.credentials",
        "One provider for CloudWatch by class name.", secret=True),
)
_START: Final = (
    Key("initialPositionInStream", "enum", "LATEST", "", "Where a shard is read from that has no checkpoint yet.",
        choices=("LATEST", "TRIM_HORIZON"), per_stream=True),
    Key("initialPositionInStreamExtended", "epoch seconds", None, "",
        "The same as a time (AT_TIMESTAMP); wins over initialPositionInStream.", unit="s",
        beats=("initialPositionInStream",), per_stream=True),
)
_COORDINATOR: Final = (
    Key("clientVersionConfig", "enum", "CLIENT_VERSION_CONFIG_3X", "coordinator.client_version_config",
        "How the worker behaves in a migration from KCL 2.x.",
        choices=("CLIENT_VERSION_CONFIG_3X", "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
                 "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1")),
    Key("parentShardPollIntervalMillis", "long", "10000", "coordinator.parent_shard_poll_s",
        "Wait between checks whether a parent shard is done.", unit="ms", primitive=True),
    Key("skipShardSyncAtWorkerInitializationIfLeasesExist", "boolean", "false",
        "shard_sync.skip_at_start_if_leases_exist",
        "No shard sync at start if the lease table is not empty.", primitive=True),
    Key("schedulerInitializationBackoffTimeMillis", "long", "1000", "coordinator.initialization_backoff_s",
        "Pause between attempts to initialise.", unit="ms", primitive=True),
    Key("maxInitializationAttempts", "int", "20", "coordinator.initialization_attempts",
        "Attempts to initialise before the host gives up.", primitive=True, extension=True),
    Key("metadataTableFormat", "enum", "auto", "coordinator.metadata_table_format",
        "Metadata in three tables (KCL 3.0 to 3.4) or in the lease table (3.5); auto: as found, else three.",
        choices=("auto", "three", "single"), extension=True),
    Key("migrateAllEntitiesToLeaseTable", "boolean", "false", "coordinator.migrate_all_entities",
        "Move the legacy tables into the lease table (KCL 3.5); equal for all workers.", primitive=True),
    Key("tableMigrationCompleteBakeTimeSeconds", "long", "86400", "coordinator.complete_bake_s",
        "Time before that move is final; from 3600 to 604800 in effect.", unit="s", primitive=True),
    Key("shardPrioritization", "text", None, "", "Java's hook; every value fails there too.", status="not supported"),
    Key("coordinatorStateTableName", "text", None, "coordinator_table.name",
        "Legacy coordinator-state table. Default: applicationName and -CoordinatorState.", bean=_STATE_TABLE),
    Key("coordinatorStateBillingMode", "enum", "PAY_PER_REQUEST", "coordinator_table.billing_mode",
        "Its billing mode.", choices=_MODES, bean=_STATE_TABLE),
    Key("coordinatorStateReadCapacity", "long", "10", "coordinator_table.read_capacity",
        "Its read capacity, with PROVISIONED only. Java's default is 0, which DynamoDB refuses.",
        primitive=True, bean=_STATE_TABLE),
    Key("coordinatorStateWriteCapacity", "long", "10", "coordinator_table.write_capacity",
        "Its write capacity, with PROVISIONED only.", primitive=True, bean=_STATE_TABLE),
    Key("coordinatorStatePointInTimeRecoveryEnabled", "boolean", "false", "coordinator_table.point_in_time_recovery",
        "Point-in-time recovery of it.", bean=_STATE_TABLE),
    Key("coordinatorStateDeletionProtectionEnabled", "boolean", "false", "coordinator_table.deletion_protection",
        "Deletion protection of it, at creation.", bean=_STATE_TABLE),
    Key("coordinatorStateTags", "tags", None, "coordinator_table.tags", "Its tags, at creation.", bean=_STATE_TABLE),
)
_LEASES: Final = (
    Key("tableName", "text", None, "lease_table.name", "Lease table. Default: applicationName."),
    Key("billingMode", "enum", "PAY_PER_REQUEST", "lease_table.billing_mode",
        "Billing mode of the lease table, at creation.",
        choices=_MODES, extension=True),
    Key("initialLeaseTableReadCapacity", "int", "10", "lease_table.read_capacity",
        "Read capacity of the lease table, with billingMode PROVISIONED only.", primitive=True),
    Key("initialLeaseTableWriteCapacity", "int", "10", "lease_table.write_capacity",
        "Write capacity of the lease table, with billingMode PROVISIONED only.", primitive=True),
    Key("tags", "tags", None, "lease_table.tags", "Tags of the lease table, at creation.", extension=True),
    Key("leaseTablePitrEnabled", "boolean", "false", "lease_table.point_in_time_recovery",
        "Point-in-time recovery of the lease table."),
    Key("leaseTableDeletionProtectionEnabled", "boolean", "false", "lease_table.deletion_protection",
        "Deletion protection of the lease table, at creation."),
    Key("leaseTableScanTotalSegments", "int", "0", "lease.scan_segments",
        "Parallel scan segments. 0: by table size.", primitive=True, fatal="range"),
    Key("dynamoDbRequestTimeout", "duration", "PT60S", "",
        "Upper bound of the wait for DynamoDB; lease and lock requests never wait longer than 3 s.", extension=True),
    Key("failoverTimeMillis", "long", "10000", "lease.failover_s",
        "Lease duration: a lease not renewed for longer is taken from its owner. The leader lock lasts as long.",
        unit="ms", primitive=True, minimum=100),
    Key("leaseAssignmentIntervalMillis", "long", None, "assignment.interval_s",
        "Interval of the leader's lease assignment. Default: twice failoverTimeMillis.", unit="ms", primitive=True),
    Key("maxLeasesForWorker", "int", "2147483647", "lease.max_leases_for_worker", "Most leases of one worker.",
        primitive=True),
    Key("maxLeaseRenewalThreads", "int", "20", "lease.max_renewal_threads", "Leases renewed at the same time.",
        primitive=True),
    Key("enablePriorityLeaseAssignment", "boolean", "true", "", "Matters only in Java's 2.x-compatible mode.",
        status=_NO_EFFECT),
    Key("maxLeasesToStealAtOneTime", "int", "1", "", "Matters only in Java's 2.x-compatible mode.", status=_NO_EFFECT,
        primitive=True),
    Key("isGracefulLeaseHandoffEnabled", "boolean", "true", "lease.graceful_handoff",
        "The old owner's child is told (shutdownRequested) before a lease moves.", bean=_GRACEFUL),
    Key("gracefulLeaseHandoffTimeoutMillis", "long", "30000", "lease.graceful_handoff_timeout_s",
        "Wait for a graceful handover before the lease is moved by force.", unit="ms", bean=_GRACEFUL),
    Key("handoverPendingCheckpoint", "boolean", "false", "lease.handover_pending_checkpoint",
        "Note in the lease (pendingCheckpoint) how far records were delivered beyond the checkpoint when it is handed "
        "over; the next owner logs it. Not for fleets with Java workers that prepare checkpoints.", extension=True),
)
_SHARDS: Final = (
    Key("shardSyncIntervalMillis", "long", "60000", "shard_sync.interval_s", "Interval of shard syncs.",
        unit="ms", primitive=True),
    Key("cleanupLeasesUponShardCompletion", "boolean", "true", "shard_sync.cleanup_upon_shard_completion",
        "Delete the leases of finished shards. false is honoured here; the Java daemon ignores it.", primitive=True),
    Key("ignoreUnexpectedChildShards", "boolean", "false", "shard_sync.ignore_unexpected_child_shards",
        "Tolerate open child shards of open parents, for DynamoDB Streams.", primitive=True),
    Key("listShardsBackoffTimeInMillis", "long", "1500", "shard_sync.list_shards_backoff_s",
        "Pause after a throttled ListShards.", unit="ms", primitive=True),
    Key("maxListShardsRetryAttempts", "int", "50", "shard_sync.list_shards_max_attempts", "Attempts of one ListShards.",
        primitive=True),
    Key("leaseCleanupIntervalMillis", "long", "60000", "shard_sync.cleanup_interval_s",
        "Interval of the lease clean-up.",
        unit="ms", primitive=True, extension=True),
    Key("completedLeaseCleanupIntervalMillis", "long", "300000", "shard_sync.completed_cleanup_interval_s",
        "Interval of the check for leases of finished shards.", unit="ms", primitive=True, extension=True),
    Key("garbageLeaseCleanupIntervalMillis", "long", "1800000", "shard_sync.garbage_cleanup_interval_s",
        "Interval of the check for leases of shards that are gone.", unit="ms", primitive=True, extension=True),
    Key("leasesRecoveryAuditorExecutionFrequencyMillis", "long", "120000", "shard_sync.audit_interval_s",
        "Interval of the audit that looks for holes in the hash key range.", unit="ms", primitive=True, extension=True),
    Key("leasesRecoveryAuditorInconsistencyConfidenceThreshold", "int", "3", "shard_sync.audit_confidence_threshold",
        "Audits in a row that must find a hole before a shard sync repairs it.", primitive=True, extension=True),
)
_BALANCING: Final = (
    Key("leaseAssignmentStrategy", "enum", "WORKER_UTILIZATION_AWARE", "assignment.strategy", "How leases are spread.",
        choices=("WORKER_UTILIZATION_AWARE", "LEASE_COUNT_BASED"), extension=True),
    Key("disableWorkerMetrics", "boolean", "false", "worker_metrics.disabled",
        "No automatic choice of worker metrics: balance by throughput only, unless workerMetricList is set.",
        bean=_BALANCE),
    Key("workerMetricList", "list", None, "worker_metrics.metrics",
        "Worker metrics to balance by. Default: CPU where the platform has it. Java sets them in code only.",
        choices=("CPU", "NETWORK_IN", "NETWORK_OUT"), extension=True),
    Key("workerMetricNetworkInterface", "text", "eth0", "worker_metrics.network_interface",
        "Interface of NETWORK_IN and NETWORK_OUT, as /proc/net/dev names it.", extension=True),
    Key("workerMetricMaxBandwidthMBps", "double", None, "worker_metrics.network_max_mb_per_s",
        "Bandwidth of that interface in each direction, in 1048576 bytes a second: 100 %. Required with them.",
        unit="MB/s", minimum=0.001, maximum=999_999, fatal="always", extension=True),
    Key("workerMetricCpuOperatingRange", "int", "100", "worker_metrics.cpu_operating_range_percent",
        "CPU use above which the leader takes leases away.", unit="%", minimum=1, maximum=100, fatal="always",
        extension=True),
    Key("workerMetricNetworkInOperatingRange", "int", "100", "worker_metrics.network_in_operating_range_percent",
        "The same for NETWORK_IN.", unit="%", minimum=1, maximum=100, fatal="always", extension=True),
    Key("workerMetricNetworkOutOperatingRange", "int", "100", "worker_metrics.network_out_operating_range_percent",
        "The same for NETWORK_OUT.", unit="%", minimum=1, maximum=100, fatal="always", extension=True),
    Key("inMemoryWorkerMetricsCaptureFrequencyMillis", "long", "1000", "worker_metrics.capture_interval_s",
        "Interval between samples of the worker's load.", unit="ms", primitive=True, bean=_BALANCE),
    Key("workerMetricsReporterFreqInMillis", "long", "30000", "worker_metrics.report_interval_s",
        "Interval between writes of the worker's load.", unit="ms", primitive=True, bean=_BALANCE),
    Key("noOfPersistedMetricsPerWorkerMetrics", "int", "10", "worker_metrics.persisted_values",
        "Values kept per worker metric.", primitive=True, bean=_BALANCE),
    Key("staleWorkerMetricsEntryCleanupDuration", "duration", "P1D", "worker_metrics.stale_after_s",
        "Age at which the row of a vanished worker is deleted.", bean=_BALANCE),
    Key("workerMetricsEMAAlpha", "double", "0.5", "assignment.ema_alpha",
        "Weight of the newest value in the moving average.",
        primitive=True, maximum=1, bean=_BALANCE),
    Key("maxThroughputPerHostKBps", "double", None, "assignment.max_throughput_per_host_kbps",
        "Most throughput of one worker. Default: unlimited.", unit="KB/s", primitive=True, bean=_BALANCE),
    Key("dampeningPercentage", "int", "60", "assignment.dampening_percentage",
        "Share of the computed move that is done at a time.", unit="%", primitive=True, bean=_BALANCE),
    Key("reBalanceThresholdPercentage", "int", "10", "assignment.rebalance_threshold_percentage",
        "Deviation from the mean load that is left alone.", unit="%", primitive=True, bean=_BALANCE),
    Key("allowThroughputOvershoot", "boolean", "true", "assignment.allow_throughput_overshoot",
        "Move one lease even if it is more than the computed amount.", bean=_BALANCE),
    Key("varianceBalancingFrequency", "int", "3", "assignment.variance_balancing_frequency",
        "Balance in every n-th lease assignment.", primitive=True, bean=_BALANCE),
    Key("workerMetricsTableName", "text", None, "worker_metrics_table.name",
        "Legacy worker-metrics table. Default: applicationName and -WorkerMetricStats.", bean=_METRICS_TABLE),
    Key("workerMetricsBillingMode", "enum", "PAY_PER_REQUEST", "worker_metrics_table.billing_mode",
        "Its billing mode.", choices=_MODES, bean=_METRICS_TABLE),
    Key("workerMetricsReadCapacity", "long", "10", "worker_metrics_table.read_capacity",
        "Its read capacity, with PROVISIONED only. Java's default is 0, which DynamoDB refuses.",
        primitive=True, bean=_METRICS_TABLE),
    Key("workerMetricsWriteCapacity", "long", "10", "worker_metrics_table.write_capacity",
        "Its write capacity, with PROVISIONED only.", primitive=True, bean=_METRICS_TABLE),
    Key("workerMetricsPointInTimeRecoveryEnabled", "boolean", "false", "worker_metrics_table.point_in_time_recovery",
        "Point-in-time recovery of it.", bean=_METRICS_TABLE),
    Key("workerMetricsDeletionProtectionEnabled", "boolean", "false", "worker_metrics_table.deletion_protection",
        "Deletion protection of it, at creation.", bean=_METRICS_TABLE),
    Key("workerMetricsTags", "tags", None, "worker_metrics_table.tags", "Its tags, at creation.", bean=_METRICS_TABLE),
)
_RETRIEVAL: Final = (
    Key("retrievalMode", "enum", "DEFAULT", "",
        "POLLING, FANOUT, or DEFAULT: polling if a polling key is set, else enhanced fan-out.",
        choices=("DEFAULT", "POLLING", "FANOUT"), per_stream=True),
    Key("maxRecords", "int", "10000", "retrieval.max_records", "Most records of one GetRecords.",
        primitive=True, minimum=1, maximum=10000, fatal="range", bean="pollingConfig"),
    Key("idleTimeBetweenReadsInMillis", "long", "1500", "retrieval.idle_between_reads_s",
        "Pause between reads of a shard; 200 at least.", unit="ms", primitive=True, bean="pollingConfig"),
    Key("millisBehindLatestThresholdForReducedTps", "long", "0", "retrieval.reduced_tps_threshold_ms",
        "Read less often when closer to the tip than this. 0: off.", unit="ms", primitive=True, bean="pollingConfig"),
    Key("maxGetRecordsThreadPool", "int", None, "", "Only selects polling under DEFAULT, as in Java.",
        status=_NO_EFFECT,
        bean="pollingConfig"),
    Key("retryGetRecordsInSeconds", "int", None, "", "Only selects polling under DEFAULT, as in Java.", unit="s",
        status=_NO_EFFECT, bean="pollingConfig"),
    Key("maxPendingProcessRecordsInput", "int", "4", "retrieval.max_pending_batches",
        "Batches read ahead per shard.", primitive=True, extension=True),
    Key("maxRecordsCount", "int", "30000", "retrieval.max_pending_records", "Records read ahead per shard.",
        primitive=True, extension=True),
    Key("maxByteSize", "long", "8388608", "retrieval.max_pending_bytes", "Bytes read ahead per shard.",
        unit="bytes", primitive=True, extension=True),
    Key("fanoutConfig.consumerArn", "text", None, "retrieval.consumer_arn",
        "Existing fan-out consumer to use; none is looked for or registered.", per_stream=True),
    Key("fanoutConfig.consumerName", "text", None, "retrieval.consumer_name",
        "Fan-out consumer to find or register. Default: applicationName.", per_stream=True),
    Key("fanoutConfig.maxDescribeStreamSummaryRetries", "int", "10", "retrieval.describe_summary_attempts",
        "Attempts to describe the stream while that is limited, before fan-out begins.", primitive=True),
    Key("fanoutConfig.maxDescribeStreamConsumerRetries", "int", "10", "retrieval.describe_consumer_attempts",
        "Attempts to describe the consumer while that is limited, and looks at it until it is ACTIVE.", primitive=True),
    Key("fanoutConfig.registerStreamConsumerRetries", "int", "10", "retrieval.register_consumer_attempts",
        "Attempts to register the consumer while that is limited.", primitive=True),
    Key("fanoutConfig.retryBackoffMillis", "long", "1000", "retrieval.registration_backoff_s",
        "Pause between these attempts.", unit="ms", primitive=True),
    Key("fanoutTransport", "enum", "http2", "retrieval.fanout_transport",
        "How SubscribeToShard is sent. http1 is for networks that do not let HTTP/2 pass; AWS does not support it.",
        choices=("http2", "http1"), extension=True),
)
_LIFECYCLE: Final = (
    Key("callProcessRecordsEvenForEmptyRecordList", "boolean", "false", "lifecycle.call_process_records_for_empty_list",
        "Send processRecords also when a read gave nothing.", primitive=True),
    Key("taskBackoffTimeMillis", "long", "500", "lifecycle.task_backoff_s", "Pause after a failed task.",
        unit="ms", primitive=True),
    Key("logWarningForTaskAfterMillis", "long", None, "lifecycle.log_warning_for_task_after_s",
        "Warn about tasks that take longer. Default: never.", unit="ms"),
)
_METRICS: Final = (
    Key("metricsLevel", "enum", "DETAILED", "metrics.level", "How much goes to CloudWatch.",
        choices=("NONE", "SUMMARY", "DETAILED")),
    Key("metricsBackend", "enum", "CLOUDWATCH", "metrics.backend",
        "Where metrics go: CloudWatch; lines in its embedded format on stdout; or the exporter that the OTEL_* "
        "environment names (pip install 'kcl-host[otel]').",
        choices=("CLOUDWATCH", "EMF", "OTEL"), extension=True),
    Key("metricsEnabledDimensions", "list", "ALL", "metrics.enabled_dimensions",
        "Dimensions that are sent: Operation, ShardId, WorkerIdentifier, ... or ALL."),
    Key("metricsBufferTimeMillis", "long", "10000", "metrics.buffer_time_s", "Interval between sends.",
        unit="ms", primitive=True),
    Key("metricsMaxQueueSize", "int", "10000", "metrics.max_queue_size", "Most metrics that wait for a send.",
        primitive=True),
)
_ENDPOINT: Final = (
    Key("endpointPort", "int", "0", "endpoint.port",
        "Port of the host's page, health, Prometheus metrics, status and lag (docs/endpoint.md). 0: none. With "
        "processes = N each worker process has its own: this one and the N - 1 that follow.",
        maximum=65535, fatal="always", extension=True),
    Key("endpointAddress", "text", "127.0.0.1", "endpoint.address",
        "IP address it listens on. There is no password: whoever reaches it reads worker ids, errors and the last "
        "lines of the children's stderr.", extension=True),
)
_SPARK: Final = (
    Key("spark.server", "enum", None, "spark.server",
        "local: one Spark Connect server on this machine for all children, for as long as the host runs "
        "(pip install 'kcl-host[spark-local]', or SPARK_HOME). Not started where SPARK_REMOTE is set.",
        choices=("local",), extension=True),
    Key("spark.server.memory", "text", "2g", "spark.server_memory", "Heap of the local server; 512m at least.",
        extension=True),
    Key("spark.server.port", "int", None, "spark.server_port", "Port of the local server on 127.0.0.1. Default: any.",
        minimum=1, maximum=65535, fatal="always", extension=True),
    Key("spark.remote", "text", None, "spark.remote",
        "A Spark Connect server, sc://HOST:PORT, as SPARK_REMOTE for the children; wins over that of the environment.",
        beats=("spark.server",), extension=True),
)
_OLD: Final = "KCL 3 ignores this key of KCL 1.x and 2.x"
_LEGACY: Final = tuple(
    Key(name, "text", None, "", f"{note[0].upper()}{note[1:]}.", status=_NO_EFFECT, note=note)
    for name, note in (
        ("consumerArn", "KCL ignores it at the top level; write fanoutConfig.consumerArn"),
        ("consumerName", "KCL ignores it at the top level; write fanoutConfig.consumerName"),
        ("metricsEndpoint", "KCL ignores it; write cloudWatchEndpoint or cloudWatchClient.endpointOverride"),
        ("maxCacheByteSize", f"{_OLD}; write maxByteSize"),
        ("skipShardSyncAtStartupIfLeasesExist", f"{_OLD}; write skipShardSyncAtWorkerInitializationIfLeasesExist"),
        ("userAgent", _OLD),
        ("commonClientConfig", _OLD),
        ("kinesisClientConfig", f"{_OLD}; see kinesisClient.region and kinesisClient.endpointOverride"),
        ("dynamoDBClientConfig", f"{_OLD}; see dynamoDbClient.region and dynamoDbClient.endpointOverride"),
        ("cloudWatchClientConfig", f"{_OLD}; see cloudWatchClient.region and cloudWatchClient.endpointOverride"),
        ("dataFetchingStrategy", _OLD),
    )
)
# fmt: on

SECTIONS: Final[tuple[tuple[str, tuple[Key, ...]], ...]] = (
    ("Application and child process", _APPLICATION),
    ("Region, endpoints, clients", _CLIENTS),
    ("Credentials", _CREDENTIALS),
    ("Start position", _START),
    ("Coordinator", _COORDINATOR),
    ("Leases", _LEASES),
    ("Shard sync and lease clean-up", _SHARDS),
    ("Lease assignment and balancing", _BALANCING),
    ("Retrieval", _RETRIEVAL),
    ("Lifecycle", _LIFECYCLE),
    ("Metrics", _METRICS),
    ("Endpoint", _ENDPOINT),
    ("Spark for the children", _SPARK),
    ("Keys that KCL 3 no longer knows", _LEGACY),
)
KEYS: Final[tuple[Key, ...]] = tuple(key for _, keys in SECTIONS for key in keys)
BY_NAME: Final[dict[str, Key]] = {key.name: key for key in KEYS}

_HEAD: Final = """\
# Configuration

Generated from `kcl_host/config/keys.py`: change the table there, then
`python -m kcl_host.config.keys > docs/configuration.md`.

kcl-host reads the `.properties` file of Amazon's MultiLangDaemon. Keys are case-sensitive, values are trimmed, the
file is ISO-8859-1 (`\\uXXXX` for other characters).
`kcl-host check -p FILE` shows what a file means and what is wrong with it.

- **Numbers** that Java would pass over in silence (`5_000`, `abc`, out of range) are warned about and the default is
  used; `check` makes them errors. 0 means "not set" for the keys marked 0, as in Java.
- **Booleans** are `true yes y on 1` or `false no n off 0` in any case; another word means false,
  or the default for the keys marked 0.
- **Durations** are ISO-8601: `PT15M`, `P1D`. **Tags** are `name=value, name=value`. **Enumerations** ignore case.
- **Nested** spellings (`pollingConfig.maxRecords`) win over the plain ones.
- **Several streams** (`streamNames`, `streamArns`): a key marked * may be given for one of them, as
  `retrievalMode.STREAM`, by the stream's name.
- Status: *used*; *no effect*: accepted, does nothing (usually as in Java); *not yet*: understood, not in this release;
  *not supported*: an error. Keys marked + are ours; the Java daemon ignores them, so a file can serve both.
"""
_SHORT_STATUS: Final = {"accepted without effect": "no effect"}


def as_markdown() -> str:
    """docs/configuration.md, whole."""
    lines = [_HEAD]
    for title, keys in SECTIONS:
        lines += [f"## {title}", "", "| Key | Type | Default | Status | Meaning |", "| --- | --- | --- | --- | --- |"]
        lines += [_row(key) for key in keys] + [""]
    return "\n".join(lines)


def _row(key: Key) -> str:
    kind = " \\| ".join(f"`{choice}`" for choice in key.choices) or key.kind + (f", {key.unit}" if key.unit else "")
    kind = f"list of {kind}" if key.choices and key.kind == "list" else kind
    marks = " 0" if key.primitive else ""
    name = f"`{key.name}`" + (" +" if key.extension else "") + (" \\*" if key.per_stream else "")
    name += f"<br>`{key.bean}.{key.name}`" if key.bean else ""
    default = f"`{key.default}`" if key.default is not None else ""
    return f"| {name} | {kind}{marks} | {default} | {_SHORT_STATUS.get(key.status, key.status)} | {key.meaning} |"


if __name__ == "__main__":
    print(as_markdown(), end="")
