"""The effective configuration: one frozen tree, built once by properties.py.

Every field says unit, default and the key it comes from in config/keys.py; here are only the values.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kcl_host.model.sequence import InitialPosition
from kcl_host.model.worker import SHORT_NAMES, WorkerMetric


class CredentialsProvider(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a provider chain. `name` is the SDK v2 class name without package, `arguments` what followed `|`."""

    name: str
    arguments: tuple[str, ...] = ()
    nested: dict[str, str] = {}

    def __repr__(self) -> str:
        """The name only: arguments are secret and settings end up in logs."""
        return f"CredentialsProvider({self.name!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one AWS service is reached. None means botocore's own rule."""

    region: str | None = None
    endpoint_url: str | None = None
    use_dualstack: bool = False
    use_fips: bool = False
    credentials: tuple[CredentialsProvider, ...] = ()


class ChildSettings(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    response_timeout_s: float | None = None
    failure_policy: Literal["restart", "exit"] = "restart"
    stderr: Literal["log", "inherit"] = "log"
    close_deadline_s: float = 10.0
    """Wait after stdin was closed, before TERM."""
    term_deadline_s: float = 5.0
    """Wait after TERM, before KILL."""
    restart_backoff_s: float = 1.0
    """First wait of the growing, jittered back-off."""
    restart_backoff_max_s: float = 60.0
    failures_before_handover: int = 5
    """Failures without checkpoint progress after which the lease goes to another worker once, then is FATAL."""
    fatal_retry_s: float = 300.0
    max_line_bytes: int = 64 * 1024 * 1024
    """Longest line accepted from a child; a longer one is a broken protocol."""
    protocol_extensions: tuple[Literal["prepareCheckpoint"], ...] = ()
    """Additions to the MultiLang protocol that are switched on (protocol/PROTOCOL.md section 12)."""


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One metadata table; capacities count only with PROVISIONED."""

    name: str
    billing_mode: Literal["PAY_PER_REQUEST", "PROVISIONED"] = "PAY_PER_REQUEST"
    read_capacity: int = 10
    write_capacity: int = 10
    point_in_time_recovery: bool = False
    deletion_protection: bool = False
    tags: dict[str, str] = {}


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    failover_s: float = 10.0
    epsilon_s: float = 0.025
    max_leases_for_worker: int = 2**31 - 1
    max_renewal_threads: int = 20
    graceful_handoff: bool = True
    graceful_handoff_timeout_s: float = 30.0
    handover_pending_checkpoint: bool = False
    """Whether a lease that is handed over notes how far its records were delivered (DESIGN.md 4.4)."""
    scan_segments: int = 0
    """0: by table size."""
    request_timeout_s: float = 3.0
    """Read time-out of lease and lock requests: a third of failoverTimeMillis, between 1 and 3 s;
    dynamoDbRequestTimeout is an upper bound only."""

    @property
    def renewal_interval_s(self) -> float:
        """A third of the lease duration, less epsilon (spec lease-table 7.1)."""
        return self.failover_s / 3 - self.epsilon_s


class LockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The leader lock (DESIGN.md section 4: lease duration = failoverTimeMillis, heartbeat a third of it)."""

    lease_duration_s: float = 10.0
    heartbeat_s: float = 10.0 / 3


class AssignmentSettings(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 20.0
    strategy: Literal["WORKER_UTILIZATION_AWARE", "LEASE_COUNT_BASED"] = "WORKER_UTILIZATION_AWARE"
    max_throughput_per_host_kbps: float = float("inf")
    dampening_percentage: int = 60
    rebalance_threshold_percentage: int = 10
    allow_throughput_overshoot: bool = True
    variance_balancing_frequency: int = 3
    ema_alpha: float = 0.5


class WorkerMetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    disabled: bool = False
    """No automatic choice of metrics; those of `metrics` are reported all the same, as in Java."""
    capture_interval_s: float = 1.0
    report_interval_s: float = 30.0
    persisted_values: int = 10
    stale_after_s: float = 86400.0
    metrics: tuple[WorkerMetric, ...] = ()
    """Empty: the automatic choice, which is CPU where the platform has it."""
    network_interface: str = "eth0"
    network_max_mb_per_s: float = float("inf")
    """Bandwidth of each direction, in 1048576 bytes; never left out when a network metric is reported."""
    cpu_operating_range_percent: int = 100
    network_in_operating_range_percent: int = 100
    network_out_operating_range_percent: int = 100

    def operating_range_percent(self, short_name: str) -> int:
        """The utilisation above which the leader takes load away; 1 at least, since 0 makes the row invalid."""
        return {
            SHORT_NAMES["CPU"]: self.cpu_operating_range_percent,
            SHORT_NAMES["NETWORK_IN"]: self.network_in_operating_range_percent,
            SHORT_NAMES["NETWORK_OUT"]: self.network_out_operating_range_percent,
        }[short_name]


class ShardSyncSettings(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 60.0
    skip_at_start_if_leases_exist: bool = False
    ignore_unexpected_child_shards: bool = False
    list_shards_backoff_s: float = 1.5
    list_shards_max_attempts: int = 50
    audit_interval_s: float = 120.0
    audit_confidence_threshold: int = 3
    cleanup_upon_shard_completion: bool = True
    cleanup_interval_s: float = 60.0
    completed_cleanup_interval_s: float = 300.0
    garbage_cleanup_interval_s: float = 1800.0


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    client_version_config: Literal[
        "CLIENT_VERSION_CONFIG_3X",
        "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
        "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1",
    ] = "CLIENT_VERSION_CONFIG_3X"
    client_version_is_explicit: bool = False
    """True when clientVersionConfig stands in the file."""
    metadata_table_format: Literal["auto", "three", "single"] = "auto"
    migrate_all_entities: bool = False
    init_bake_s: float = 3600.0
    """How long all lease owners must have known the single-table format before phase 2; fixed, as in Java."""
    complete_bake_s: float = 86400.0
    parent_shard_poll_s: float = 10.0
    initialization_attempts: int = 20
    initialization_backoff_s: float = 1.0
    shutdown_grace_s: float = 20.0


class RetrievalSettings(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["POLLING", "FANOUT"]
    mode_reason: str
    """Why this mode, for the one log line: the key that decided, or that none did."""
    max_records: int = 10000
    idle_between_reads_s: float = 1.5
    reduced_tps_threshold_ms: int = 0
    request_timeout_s: float = 30.0
    max_pending_batches: int = 4
    max_pending_records: int = 30000
    max_pending_bytes: int = 8 * 1024 * 1024
    consumer_name: str | None = None
    consumer_arn: str | None = None
    describe_summary_attempts: int = 10
    describe_consumer_attempts: int = 10
    register_consumer_attempts: int = 10
    registration_backoff_s: float = 1.0
    fanout_transport: Literal["http2", "http1"] = "http2"


class LifecycleSettings(msgspec.Struct, frozen=True, kw_only=True):
    call_process_records_for_empty_list: bool = False
    task_backoff_s: float = 0.5
    log_warning_for_task_after_s: float | None = None


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    level: Literal["NONE", "SUMMARY", "DETAILED"] = "DETAILED"
    backend: Literal["CLOUDWATCH", "EMF", "OTEL"] = "CLOUDWATCH"
    enabled_dimensions: tuple[str, ...] = ("ALL",)
    buffer_time_s: float = 10.0
    max_queue_size: int = 10000


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running host answers HTTP. `port` 0: nowhere."""

    port: int = 0
    address: str = "127.0.0.1"


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A stream to read. What is None is as for the whole application."""

    name: str
    arn: str | None = None
    account: str | None = None
    """Of the ARN, or of a stream that was given as account:name:epoch."""
    epoch: int | None = None
    """Creation time in epoch seconds, given so; else Kinesis is asked (multi-stream only)."""
    initial_position: InitialPosition | None = None
    retrieval: RetrievalSettings | None = None
    command: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """As short as tells it from every other one configured: two accounts may have a stream of one name."""
        return self.arn or (f"{self.account}:{self.name}" if self.account else self.name)


class StreamTrackingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the leases of a stream that is not configured any more; the names are KCL's."""

    former_streams: Literal[
        "NO_STREAMS_LEASES_DELETION",
        "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION",
        "PROVIDED_STREAMS_DEFERRED_DELETION",
    ] = "NO_STREAMS_LEASES_DELETION"
    wait_before_deletion_s: float = 3600.0
    provided: tuple[str, ...] = ()
    """Serialised identifiers, for PROVIDED_STREAMS_DEFERRED_DELETION."""


class DeadLetterTarget(msgspec.Struct, frozen=True):
    """Where dead letters go. `place`: absolute path of a folder, URL of a queue, or name of a bucket."""

    kind: Literal["file", "sqs", "s3"]
    place: str
    prefix: str = ""
    """Of the keys in a bucket; without slash at its end."""


class PoisonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Records that make every child fail (docs/poison-records.md). `after_failures` 0: they block their shard."""

    after_failures: int = 0
    """Failures of children on the same batch, after which it is cut."""
    target: DeadLetterTarget | None = None
    per_hour: int = 10
    """Records passed at most, per shard and hour, by one worker."""


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where children that are PySpark drivers find Spark; nothing given: as they see to it themselves."""

    server: Literal["local"] | None = None
    server_memory: str = "2g"
    """Heap, as the JVM writes it."""
    server_port: int | None = None
    """None: any free one."""
    remote: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to know."""

    application_name: str
    worker_id: str
    streams: tuple[StreamSettings, ...]
    """One, or with `multi_stream` any number."""
    multi_stream: bool = False
    """Whether leases carry the identifier of their stream; the two kinds cannot share a table."""
    processes: int = 1
    """Worker processes of this host, each a worker of the application."""
    initial_position: InitialPosition
    child: ChildSettings
    kinesis: ServiceSettings
    dynamodb: ServiceSettings
    cloudwatch: ServiceSettings
    lease_table: TableSettings
    coordinator_table: TableSettings
    worker_metrics_table: TableSettings
    retrieval: RetrievalSettings
    lease: LeaseSettings = LeaseSettings()
    lock: LockSettings = LockSettings()
    assignment: AssignmentSettings = AssignmentSettings()
    worker_metrics: WorkerMetricsSettings = WorkerMetricsSettings()
    shard_sync: ShardSyncSettings = ShardSyncSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    lifecycle: LifecycleSettings = LifecycleSettings()
    metrics: MetricsSettings = MetricsSettings()
    endpoint: EndpointSettings = EndpointSettings()
    stream_tracking: StreamTrackingSettings = StreamTrackingSettings()
    spark: SparkSettings = SparkSettings()
    poison: PoisonSettings = PoisonSettings()

    def of_stream(self, stream: StreamSettings) -> Settings:
        """These settings with what `stream` has of its own: initial position, retrieval, command of the child."""
        return msgspec.structs.replace(
            self,
            initial_position=stream.initial_position or self.initial_position,
            retrieval=stream.retrieval or self.retrieval,
            child=msgspec.structs.replace(self.child, command=stream.command or self.child.command),
        )
