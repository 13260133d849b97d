"""What is to be said of the machine that a worker is to run on: its clock, open files, time to stop, and the child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.decisions.doctor_finding import Checked, Finding, Platform, error, ok, unknown, warn

DESCRIPTORS_PER_SHARD: Final = 8
DESCRIPTORS_BESIDE: Final = 200
"""Connections, logs, and what Python itself has open."""
SKEW_WARN_S: Final = 5.0
SKEW_ERROR_S: Final = 30.0
"""Half of the two report intervals after which leaders, by their clocks, take a worker for gone (default 60 s)."""
SKEW_REFUSED_S: Final = 300.0
"""AWS refuses requests that are signed further off."""
GRACE_S: Final[Mapping[Platform, float]] = {"kubernetes": 30.0, "ecs": 30.0, "systemd": 90.0}
"""What each gives a process between TERM and KILL unless it is told otherwise."""
_GRACE_KEY: Final[Mapping[Platform, str]] = {
    "kubernetes": "terminationGracePeriodSeconds",
    "ecs": "stopTimeout",
    "systemd": "TimeoutStopSec",
}
GRACE_MARGIN_S: Final = 2.0
"""From the end of the drain to the end of the process."""


def judge_machine(checked: Checked, settings: Settings) -> Iterator[Finding]:
    yield from _clocks(checked, settings)
    yield _descriptors(checked, settings)
    yield from _grace(checked, settings)
    yield from _children(checked)


def _clocks(checked: Checked, settings: Settings) -> Iterator[Finding]:
    if not checked.skew_s:
        yield unknown("clock", "this machine", "no service told its time")
        return
    service, ahead_s = max(checked.skew_s.items(), key=lambda entry: abs(entry[1]))
    message = f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} that of {service}"
    gone_s = 2 * settings.worker_metrics.report_interval_s
    advice = (
        f"keep it by NTP: from {gone_s:.0f} s on leaders take this worker for gone, from {SKEW_REFUSED_S:.0f} s on AWS "
        "refuses its requests"
    )
    if abs(ahead_s) >= SKEW_ERROR_S:
        yield error("clock", "this machine", message, advice)
    elif abs(ahead_s) >= SKEW_WARN_S:
        yield warn("clock", "this machine", message, advice)
    else:
        yield ok("clock", "this machine", message)


def _descriptors(checked: Checked, settings: Settings) -> Finding:
    """A fleet may shrink to this one worker, so it must be able to hold every shard."""
    shards = sum(facts.open_shards for facts in checked.streams.values())
    if not shards:
        return unknown("descriptors", "this machine", "the number of shards is not known")
    needed = DESCRIPTORS_PER_SHARD * shards + DESCRIPTORS_BESIDE
    limit = checked.descriptors
    message = f"about {needed:,} open files for all {shards:,} shards in one worker, allowed {limit or 'any number'}"
    if limit is None or limit >= needed:
        return ok("descriptors", "this machine", message)
    most = max((limit - DESCRIPTORS_BESIDE) // DESCRIPTORS_PER_SHARD, 1)
    advice = f"raise the hard limit (ulimit -Hn, LimitNOFILE=), or set maxLeasesForWorker = {most}"
    if settings.lease.max_leases_for_worker <= most:
        return ok("descriptors", "this machine", f"{message}; maxLeasesForWorker keeps it below")
    return warn("descriptors", "this machine", message, advice)


def _grace(checked: Checked, settings: Settings) -> Iterator[Finding]:
    drain_s = settings.coordinator.shutdown_grace_s
    needed_s = drain_s + GRACE_MARGIN_S
    where, platform = "stopping", checked.platform
    given_s = checked.platform_grace_s
    key = "the time from TERM to KILL" if platform is None else _GRACE_KEY[platform]
    origin = ""
    if given_s is None and platform is not None:
        given_s, origin = GRACE_S[platform], f", the default of {platform}"
    if given_s is None:
        advice = f"give the process {needed_s:g} s between TERM and KILL; --grace S checks a value"
        yield unknown(
            "grace", where, f"shutdownGraceMillis is {drain_s:g} s; who stops the process is not known", advice
        )
    elif given_s < needed_s:
        message = f"shutdownGraceMillis is {drain_s:g} s, and {key} {given_s:g} s{origin}: KILL comes too early"
        advice = f"set {key} to {needed_s:g} s or more, or shutdownGraceMillis lower"
        if origin:
            yield warn("grace", where, message, f"{advice}; --grace S checks the value that you have set")
        else:
            yield error("grace", where, message, advice, 2)
    else:
        yield ok("grace", where, f"{drain_s:g} s to drain, and {key} is {given_s:g} s{origin}")
    timeout_s = settings.child.response_timeout_s
    if timeout_s is not None and timeout_s > drain_s:
        message = (
            f"timeoutInSeconds = {timeout_s:g} allows a child longer for one batch than the {drain_s:g} s to drain"
        )
        yield warn("grace", where, message, "a batch that long is ended by KILL at the stop, and delivered again")


def _children(checked: Checked) -> Iterator[Finding]:
    for child in checked.children:
        where = f"child {' '.join(child.command)}"
        if child.path is None:
            advice = "install it, make it executable, or give executableName its whole path"
            yield error("child", where, f"{child.command[0]} is not found, or is not executable", advice, 2)
        elif child.answers is None:
            yield unknown("child", where, f"found: {child.path}; {child.said}", "`kcl-host verify CMD` tries all of it")
        elif child.answers:
            yield ok("child", where, f"{child.path} starts, answers and ends (no record was sent)")
        else:
            yield error("child", where, child.said, "`kcl-host verify CMD` shows the whole exchange", 2)
