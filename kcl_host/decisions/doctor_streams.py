"""What is to be said of the streams of a deployment: whether they are there, what reading them takes, and its price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.decisions.doctor_finding import Checked, Finding, error, ok, unknown, warn
from kcl_host.decisions.fleet_report import seconds
from kcl_host.model.access import StreamFacts

READS_PER_S: Final = 5.0
"""GetRecords a shard allows to all its polling readers together."""
CONSUMERS: Final = 20
"""Fan-out consumers of a stream, unless AWS has raised it."""
FANOUT_USD_PER_SHARD_HOUR: Final = 0.015
FANOUT_USD_PER_GB: Final = 0.013
PRICES_OF: Final = "us-east-1, provisioned mode, 2025"


def judge_streams(checked: Checked, settings: Settings) -> Iterator[Finding]:
    missing = {
        probed.permission.name: probed.said
        for probed in checked.probes
        if probed.permission.action == "DescribeStreamSummary" and probed.outcome == "missing"
    }
    for stream in settings.streams:
        where, facts = f"stream {stream.label}", checked.streams.get(stream.label)
        if stream.label in missing:
            advice = "check the name, the region and the account, or create it"
            yield error("stream", where, missing[stream.label], advice, 4)
        elif facts is None:
            yield unknown("stream", where, "nothing is known of it: DescribeStreamSummary gave no answer")
        else:
            yield from _of_stream(where, facts, settings, stream)


def _of_stream(where: str, facts: StreamFacts, settings: Settings, stream: StreamSettings) -> Iterator[Finding]:
    retrieval = settings.of_stream(stream).retrieval
    about = (
        f"{facts.status}, {facts.mode.replace('_', '-').lower()}, {facts.open_shards:,} open shards, "
        f"records kept for {seconds(facts.retention_hours * 3600)}"
    )
    if facts.status in ("ACTIVE", "UPDATING"):
        yield ok("stream", where, about)
    else:
        yield warn("stream", where, about, "workers wait until it is ACTIVE")
    if facts.kms_key is not None and not facts.kms_key.endswith("alias/aws/kinesis"):
        message = f"encrypted with {facts.kms_key}: kms:Decrypt is needed, and cannot be asked for without a record"
        yield unknown("encryption", where, message, "grant kms:Decrypt on that key")
    if retrieval.mode == "FANOUT":
        yield from _fanout(where, facts, retrieval.consumer_name or retrieval.consumer_arn or "")
        return
    reads = READS_PER_S if not retrieval.idle_between_reads_s else 1 / retrieval.idle_between_reads_s
    shared = f"{READS_PER_S:g} reads and 2 MB a second, which each shard allows to all its polling readers together"
    message = f"polls each shard up to {min(reads, READS_PER_S):.2g} times a second, of {shared}"
    if reads > READS_PER_S:
        yield warn(
            "retrieval", where, message, "raise idleTimeBetweenReadsInMillis, or leave nothing for other readers"
        )
    else:
        yield ok("retrieval", where, message)


def _fanout(where: str, facts: StreamFacts, consumer: str) -> Iterator[Finding]:
    cost = facts.open_shards * FANOUT_USD_PER_SHARD_HOUR
    price = (
        f"{cost:.2f} USD an hour for {facts.open_shards:,} shards and {FANOUT_USD_PER_GB} USD per GB read "
        f"({FANOUT_USD_PER_SHARD_HOUR} per consumer-shard-hour: {PRICES_OF})"
        if facts.mode == "PROVISIONED"
        else "per GB read, in on-demand mode"
    )
    many = f"{facts.consumers} of {CONSUMERS} consumers registered"
    if facts.consumer_status == "ACTIVE":
        yield ok("fanout", where, f"consumer {consumer} is ACTIVE; {many}; AWS bills {price}")
    elif facts.consumer_status is not None:
        yield warn(
            "fanout", where, f"consumer {consumer} is {facts.consumer_status}; {many}", "workers wait for ACTIVE"
        )
    elif facts.consumers >= CONSUMERS:
        advice = "deregister one, or set retrievalMode = POLLING"
        yield error("fanout", where, f"consumer {consumer} is not registered, and {many}", advice)
    else:
        yield warn(
            "fanout",
            where,
            f"consumer {consumer} is not registered, or not to be seen; {many}; AWS will bill {price}",
            "the first worker registers it; retrievalMode = POLLING costs nothing beyond the stream",
        )
