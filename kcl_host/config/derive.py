"""What follows from the values of a configuration taken together: required keys, defaults that depend on others,
contradictions, and the Settings tree."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

import msgspec

from kcl_host.config.credentials import mask_chain, near_region
from kcl_host.config.dead_letter_target import dead_letter_target
from kcl_host.config.derive_streams import STREAM_ARN, StreamDerivation
from kcl_host.config.keys import BY_NAME
from kcl_host.config.settings import Settings
from kcl_host.config.values import convert, has_unbalanced_quote, mask_uri, split_command

_TABLE_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_HEAP: Final = re.compile(r"(\d+)([mg])", re.IGNORECASE)
_LEAST_HEAP_MB: Final = 512
_INTERFACE: Final = re.compile(r"[^\s/:]{1,15}")
_LEAST_IDLE_MS: Final = 200
_LAST_PORT: Final = 65535
_BAKE_LIMITS_S: Final = (3_600, 604_800)
_SERVICES: Final = (
    # settings, credentials keys, endpoint key, SDK's name in AWS_ENDPOINT_URL_*
    ("kinesis", "AwsCredentialsProvider", "kinesisCredentialsProvider.class", "kinesisEndpoint", "KINESIS"),
    ("dynamodb", "AwsCredentialsProviderDynamoDB", "dynamoDBCredentialsProvider.class", "dynamoDBEndpoint", "DYNAMODB"),
    (
        "cloudwatch",
        "AwsCredentialsProviderCloudWatch",
        "cloudWatchCredentialsProvider.class",
        "cloudWatchEndpoint",
        "CLOUDWATCH",
    ),
)


class Derivation(StreamDerivation):
    """Builds the tree of one configuration. `derived` tells (value, origin) of what is neither given nor a default."""

    def settings(self, *, worker_id: str) -> Settings | None:
        """The tree; None when an error was reported, then or before."""
        for one in self._given.values():
            if one.key.to and one.value is not None:
                milliseconds = one.key.unit == "ms" and one.key.to.endswith("_s")
                self._put(one.key.to, one.value / 1000 if milliseconds else one.value)
        self._command()
        self._streams()
        self._application(worker_id)
        self._region()
        for service, *keys in _SERVICES:
            self._service(service, *keys)
        self._start_position()
        self._lease_times()
        self._worker_metrics()
        self._retrieval()
        self._reading()
        self._tables()
        self._migration()
        self._endpoint()
        self._spark()
        self._poison()
        if self._report.has_errors:
            return None
        return msgspec.convert(self._tree, Settings)

    def _command(self) -> None:
        text = self.value("executableName")
        if text is None:
            self._missing(("executableName",), "set it to the command of your record processor")
            return
        if has_unbalanced_quote(text):
            self._warn("executableName", "executableName has a quote without its partner; it is passed on as it is")
        self._put("child.command", split_command(text))
        for values in (self._given, *self._of_stream.values()):
            one = values.get("executableName")
            if one and any(word.rpartition("/")[2] == "spark-submit" for word in split_command(one.text)):
                problem = (
                    f"{one.name}: spark-submit cannot be the child, its JVM keeps stdin from Python. "
                    "Write: python driver.py, with the options in the environment as "
                    "PYSPARK_SUBMIT_ARGS='--master ... pyspark-shell'; or use spark.remote or spark.server = local"
                )
                self._report.error(one.name, problem, one.line)

    def _application(self, worker_id: str) -> None:
        self._tree.setdefault("worker_id", worker_id)
        if self._tree["worker_id"] == worker_id:
            self.derived["workerId"] = (worker_id, "derived")
        application = self.value("applicationName")
        if application is None:
            self._missing(("applicationName",), "it names the lease table and everything else of your application")
            return
        for key, path, default in (
            ("tableName", "lease_table", application),
            ("coordinatorStateTableName", "coordinator_table", f"{application}-CoordinatorState"),
            ("workerMetricsTableName", "worker_metrics_table", f"{application}-WorkerMetricStats"),
        ):
            table = self._tree.setdefault(path, {})
            if "name" not in table:
                table["name"] = default
                self.derived[key] = (default, "derived")
            if not _TABLE_NAME.fullmatch(table["name"]):
                source = key if key in self._given else "applicationName"
                if self._report.has_error_about(source):
                    continue
                text = f"{source}: {table['name']!r} cannot be a DynamoDB table: 3 to 255 letters, digits and _ . -"
                self._report.error(source, text, self._line(source))

    def _region(self) -> None:
        region = self.value("regionName")
        if region is None:
            for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
                if region := self._environ.get(variable):
                    self.derived["regionName"] = (region, f"environment {variable}")
                    if self._known_regions and region not in self._known_regions:
                        near = near_region(region, self._known_regions)
                        self._report.warning("regionName", f"{variable} = {region} is not a known region{near}")
                    break
        for service, *_ in _SERVICES:
            node = self._tree.setdefault(service, {})
            own = node.setdefault("region", region)
            if own != region and self.value("regionName") is not None:
                self._warn("regionName", f"regionName is ignored for {service}, whose client has a region of its own")
        actual = self._tree["kinesis"]["region"]
        for key, arns in (("streamArn", (self.value("streamArn", ""),)), ("streamArns", self.value("streamArns", ()))):
            for text in arns:
                arn = STREAM_ARN.fullmatch(text)
                if not (arn and actual and arn[1] != actual):
                    continue
                if key == "streamArn":
                    self._warn(key, f"{key} names {arn[1]}, but as in Java the region {actual} is used for requests")
                else:
                    problem = f"{key}: {text} is not in {actual}, the region of the host; as in Java all must be"
                    self._report.error(key, problem, self._line(key))

    def _service(self, service: str, credentials: str, builder: str, endpoint: str, sdk_name: str) -> None:
        node = self._tree[service]
        if credentials in self._given and builder in self._given:
            text = f"{builder} and {credentials} (line {self._line(credentials)}) exclude each other"
            self._report.error(builder, text, self._line(builder))
        elif "credentials" not in node and service == "kinesis":
            self._missing((credentials, builder), "for the default chain of AWS write DefaultCredentialsProvider")
        elif "credentials" not in node:
            node["credentials"] = self._tree["kinesis"].get("credentials", ())
            source = next((n for n in _SERVICES[0][1:3] if n in self._given), None)
            if source:
                self.derived[credentials] = (mask_chain(self._given[source].text), "derived")
        if "endpoint_url" in node or self._environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
            return
        for variable in (f"AWS_ENDPOINT_URL_{sdk_name}", "AWS_ENDPOINT_URL"):
            if url := self._environ.get(variable):
                if problem := convert(BY_NAME[endpoint], url).problem:
                    self._report.error(endpoint, f"{variable} {problem}")
                node["endpoint_url"] = url
                self.derived[endpoint] = (mask_uri(url), f"environment {variable}")
                return

    def _migration(self) -> None:
        self._put("coordinator.client_version_is_explicit", "clientVersionConfig" in self._given)
        name = "tableMigrationCompleteBakeTimeSeconds"
        if (bake_s := self.value(name)) is not None:
            least_s, most_s = _BAKE_LIMITS_S
            self._put("coordinator.complete_bake_s", min(max(bake_s, least_s), most_s))
            if not least_s <= bake_s <= most_s:
                self._warn(name, f"{name} = {bake_s} is taken for the nearest of {least_s} to {most_s}, as in Java")

    def _spark(self) -> None:
        memory = self.value(name := "spark.server.memory", "2g")
        heap = _HEAP.fullmatch(memory)
        if not heap or int(heap[1]) * (1024 if heap[2] in "gG" else 1) < _LEAST_HEAP_MB:
            text = f"{name} = {memory} must be like 2g or 1536m, and {_LEAST_HEAP_MB}m at least"
            self._report.error(name, text, self._line(name))
        remote = self.value("spark.remote")
        if remote is not None and not remote.startswith("sc://"):
            text = f"spark.remote = {remote} must be like sc://HOST:PORT"
            self._report.error("spark.remote", text, self._line("spark.remote"))
        if self.value("spark.server") is None:
            for name in ("spark.server.memory", "spark.server.port"):
                if name in self._given:
                    self._warn(name, f"{name} is ignored, spark.server = local is not there")

    def _poison(self) -> None:
        """Half of it is an error: who asked for dead letters would find out by their absence. An explicit 0 is none."""
        after, where = "poisonRecordAfterFailures", "deadLetterTarget"
        text = self.value(where)
        if not self.value(after):
            for name in (where, "poisonRecordsPerHour"):
                if name in self._given:
                    is_half = name == where and after not in self._given
                    tell = self._report.error if is_half else self._report.warning
                    problem = f"{name} is ignored without {after}, which must be 1 or more; 3 is a good value"
                    tell(name, problem, self._line(name))
            return
        if text is None:
            self._missing((where,), f"{after} needs a place for the records that it takes out of the way")
        elif isinstance(target := dead_letter_target(text), str):
            self._report.error(where, f"{where} = {text} {target}", self._line(where))
        else:
            self._put("poison.target", target)
        if self.value("childFailurePolicy") == "exit":
            problem = f"{after} excludes childFailurePolicy = exit: a worker that exits counts no failures"
            self._report.error(after, problem, self._line(after))

    def _endpoint(self) -> None:
        port, processes = self.value("endpointPort", 0), self.value("processes", 1)
        if port and port + processes - 1 > _LAST_PORT:
            text = f"endpointPort = {port} leaves no port for each of {processes} processes"
            self._report.error("endpointPort", text, self._line("endpointPort"))
        address = self.value("endpointAddress", "127.0.0.1")
        try:
            ipaddress.ip_address(address)
        except ValueError:
            text = f"endpointAddress = {address} must be an IP address; 0.0.0.0 or :: are all of this machine"
            self._report.error("endpointAddress", text, self._line("endpointAddress"))
        if "endpointAddress" in self._given and not port:
            self._warn("endpointAddress", "endpointAddress is ignored, endpointPort is not there")

    def _start_position(self) -> None:
        timestamp = self.value("initialPositionInStreamExtended")
        if timestamp is not None:
            self._tree["initial_position"] = {"kind": "AT_TIMESTAMP", "timestamp_s": timestamp}
            self.derived["initialPositionInStream"] = ("AT_TIMESTAMP", "derived")
        else:
            self._tree["initial_position"] = {"kind": self.value("initialPositionInStream", "LATEST")}

    def _lease_times(self) -> None:
        failover_s = self.value("failoverTimeMillis", 10_000) / 1000
        self._tree["lock"] = {"lease_duration_s": failover_s, "heartbeat_s": failover_s / 3}
        if "interval_s" not in self._tree.setdefault("assignment", {}):
            self._put("assignment.interval_s", 2 * failover_s)
            self.derived["leaseAssignmentIntervalMillis"] = (f"{2000 * failover_s:.0f}", "derived")
        # One request that hangs must leave time for the next try before the lease expires.
        request_s = min(3.0, max(1.0, failover_s / 3))
        self._put("lease.request_timeout_s", request_s)
        if (bound_s := self.value("dynamoDbRequestTimeout")) is not None:
            if bound_s > 0:
                self._put("lease.request_timeout_s", min(request_s, bound_s))
            else:
                text = "dynamoDbRequestTimeout must be longer than nothing"
                self._report.error("dynamoDbRequestTimeout", text, self._line("dynamoDbRequestTimeout"))
        if self.value("cleanupLeasesUponShardCompletion") is False:
            text = (
                "cleanupLeasesUponShardCompletion = false: leases of finished shards stay; the Java daemon deletes them"
            )
            self._warn("cleanupLeasesUponShardCompletion", text)
        capture, report = "inMemoryWorkerMetricsCaptureFrequencyMillis", "workerMetricsReporterFreqInMillis"
        if self.value(capture, 1000) >= self.value(report, 30000):
            self._warn(capture, f"{capture} should be shorter than {report}")

    def _worker_metrics(self) -> None:
        if self._report.has_error_about("workerMetricList"):
            return
        metrics = self.value("workerMetricList", ())
        if metrics and self.value("disableWorkerMetrics"):
            text = (
                "disableWorkerMetrics = true only switches the automatic choice off, as in Java; workerMetricList wins"
            )
            self._warn("disableWorkerMetrics", text)
        reported = set(metrics) or (set() if self.value("disableWorkerMetrics") else {"CPU"})
        network = {"NETWORK_IN", "NETWORK_OUT"}
        if reported & network and self.value(bandwidth := "workerMetricMaxBandwidthMBps") is None:
            self._missing((bandwidth,), "NETWORK_IN and NETWORK_OUT are percentages of it")
        interface = self.value(name := "workerMetricNetworkInterface", "eth0")
        if not _INTERFACE.fullmatch(interface):
            text = f"{name} = {interface!r} cannot be a network interface: at most 15 characters, no space, / or :"
            self._report.error(name, text, self._line(name))
        for key, metrics_of_key in (
            ("workerMetricCpuOperatingRange", {"CPU"}),
            ("workerMetricNetworkInOperatingRange", {"NETWORK_IN"}),
            ("workerMetricNetworkOutOperatingRange", {"NETWORK_OUT"}),
            ("workerMetricNetworkInterface", network),
            ("workerMetricMaxBandwidthMBps", network),
        ):
            if key in self._given and not reported & metrics_of_key:
                self._warn(key, f"{key} is ignored, {' or '.join(sorted(metrics_of_key))} is not reported")

    def _retrieval(self) -> None:
        """POLLING or FANOUT by the rule of spec configuration 3.10."""
        asked = self.value("retrievalMode", "DEFAULT")
        mode, reason = self._mode(asked, "retrievalMode")
        if asked == "DEFAULT":
            self.derived["retrievalMode"] = (f"{mode} ({reason})", "derived")
        self._put("retrieval.mode", mode)
        self._put("retrieval.mode_reason", reason)
        name = "fanoutConfig.consumerName"
        if (
            self.value("fanoutConfig.consumerArn") is None
            and name not in self._given
            and "application_name" in self._tree
        ):
            self._put("retrieval.consumer_name", self._tree["application_name"])
            self.derived[name] = (self._tree["application_name"], "derived")
        idle = "idleTimeBetweenReadsInMillis"
        if self.value(idle, _LEAST_IDLE_MS) < _LEAST_IDLE_MS:
            self._warn(idle, f"{idle} is raised to {_LEAST_IDLE_MS}")
            self._put("retrieval.idle_between_reads_s", _LEAST_IDLE_MS / 1000)
            self.derived[idle] = (str(_LEAST_IDLE_MS), "derived")

    def _tables(self) -> None:
        for mode, names in (
            ("billingMode", ("initialLeaseTableReadCapacity", "initialLeaseTableWriteCapacity")),
            ("coordinatorStateBillingMode", ("coordinatorStateReadCapacity", "coordinatorStateWriteCapacity")),
            ("workerMetricsBillingMode", ("workerMetricsReadCapacity", "workerMetricsWriteCapacity")),
        ):
            if self.value(mode) != "PROVISIONED":
                for name in names:
                    if self.value(name) is not None:
                        self._warn(name, f"{name} has no effect unless {mode} = PROVISIONED")
