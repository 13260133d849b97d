"""What is wrong with a deployment before it runs, by everything that `kcl-host doctor` could find out.

Every finding says what, where, and what to do. A part that nobody could ask about is a finding of its own,
`not_probed`: silence would look like health. docs/doctor.md lists the kinds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.decisions.doctor_finding import Checked, Finding, error, ok, unknown, warn
from kcl_host.decisions.doctor_machine import judge_machine
from kcl_host.decisions.doctor_streams import judge_streams
from kcl_host.decisions.fleet_health import diagnose
from kcl_host.decisions.fleet_looks import FleetSnapshot, look
from kcl_host.decisions.fleet_view import view_fleet
from kcl_host.decisions.metadata_format import (
    CreateSingleTable,
    CreateThreeTables,
    MetadataFacts,
    Observe,
    Refuse,
    UseSingleTable,
    UseThreeTables,
    Wait,
    decide_metadata_format,
)
from kcl_host.decisions.worker_activity import judge_worker
from kcl_host.model.access import Outcome, Probed


def examine(checked: Checked, settings: Settings) -> tuple[Finding, ...]:
    """All findings, in the order in which one would look: who, what may be done, what is there, this machine."""
    return (
        *(warn("configuration", "properties file", text) for text in checked.warnings),
        *_credentials(checked),
        *_permissions(checked),
        *_metadata(checked, settings),
        *judge_streams(checked, settings),
        *judge_machine(checked, settings),
    )


def exit_code_of(findings: Iterable[Finding]) -> int:
    """That of the error that has to be mended first: 2 configuration, 3 permissions, 4 stream, 6 metadata, else 1."""
    codes = {finding.exit_code or 1 for finding in findings if finding.level == "error"}
    return next((code for code in (2, 3, 4, 6, 1) if code in codes), 0)


# Who we are, and what we may do

_GIVE_CREDENTIALS: Final = "see AwsCredentialsProvider in docs/configuration.md, and the clock of this machine"


def _credentials(checked: Checked) -> Iterator[Finding]:
    if checked.no_clients is not None:
        yield error("credentials", "AWS", checked.no_clients, _GIVE_CREDENTIALS, 3)
    for identity in checked.identities:
        where = ", ".join(identity.services)
        if identity.arn is not None:
            yield ok("credentials", where, identity.arn)
        elif identity.outcome == "not_probed":
            yield unknown("credentials", where, f"not asked who they are: {identity.said}")
        elif identity.outcome == "unreachable":
            yield unknown(
                "credentials", where, identity.said, "only doctor needs STS: a private network may well do without it"
            )
        else:
            yield error("credentials", where, identity.said, _GIVE_CREDENTIALS, 3)


def _permissions(checked: Checked) -> Iterator[Finding]:
    exists = {probed.permission.where for probed in checked.probes if probed.outcome == "allowed"}
    consumers = {name for name, facts in checked.streams.items() if facts.consumer_status}
    has_index = (
        checked.snapshot is not None and checked.snapshot.table is not None and checked.snapshot.table.index_status
    )
    by_place: dict[str, list[Probed]] = defaultdict(list)
    said: set[tuple[str, Outcome]] = set()
    for probed in checked.probes:
        permission = probed.permission
        is_there = permission.name in consumers if permission.kind == "consumer" else permission.where in exists
        if permission.action == "UpdateTable":
            is_there = bool(has_index)
        if permission.need == "until_created" and is_there:
            continue
        if probed.outcome in ("no_credentials", "unreachable"):
            if (permission.service, probed.outcome) not in said:
                said.add((permission.service, probed.outcome))
                yield _no_answer(probed)
            continue
        by_place[permission.where].append(probed)
    for where, probes in by_place.items():
        yield from _of_place(where, probes)


def _no_answer(probed: Probed) -> Finding:
    service = probed.permission.service
    if probed.outcome == "no_credentials":
        return error("credentials", service, probed.said, _GIVE_CREDENTIALS, 3)
    return error("network", service, probed.said, "nothing else was asked there; run doctor where the worker is to run")


def _of_place(where: str, probes: Sequence[Probed]) -> Iterator[Finding]:
    by_outcome: dict[Outcome, list[Probed]] = defaultdict(list)
    for probed in probes:
        by_outcome[probed.outcome].append(probed)
    if allowed := by_outcome["allowed"]:
        yield ok("permissions", where, f"allowed: {_actions(allowed)}")
    if missing := by_outcome["missing"]:
        # AWS judges the permission before it looks for the thing.
        yield ok("permissions", where, f"does not exist; not denied: {_actions(missing)}")
    denied = [probed for probed in by_outcome["denied"] if probed.permission.need != "optional"]
    if denied:
        apis = ", ".join(probed.permission.api for probed in denied)
        advice = f"grant {apis}; `kcl-host doctor --policy` prints the whole policy"
        yield error("permissions", where, f"denied: {apis}; AWS says: {denied[0].said}", advice, 3)
    for probed in by_outcome["denied"]:
        if probed.permission.need == "optional":
            message = f"denied: {probed.permission.api}; without it {probed.permission.without}"
            yield warn("permissions", where, message, f"grant {probed.permission.api} if you want it")
    for probed in by_outcome["failed"]:
        yield warn("permissions", where, f"{probed.permission.action}: {probed.said}", "ask again in a while")
    by_reason: dict[str, list[Probed]] = defaultdict(list)
    for probed in by_outcome["not_probed"]:
        by_reason[probed.said].append(probed)
    for reason, unasked in by_reason.items():
        yield unknown("permissions", where, f"{_actions(unasked)}: {reason}")


def _actions(probes: Iterable[Probed]) -> str:
    return ", ".join(probed.permission.action for probed in probes)


# What is there


def _metadata(checked: Checked, settings: Settings) -> Iterator[Finding]:
    snapshot, where = checked.snapshot, f"application {settings.application_name}"
    if snapshot is None:
        yield unknown("metadata", where, checked.snapshot_error or "the tables were not asked")
        return
    facts = _facts(checked, snapshot, settings)
    if failed := [failure.part for failure in snapshot.failures]:
        yield unknown("metadata", where, f"not readable: {', '.join(failed)}")
    if any(snapshot.has_failed(part) for part in ("lease table", "leases", "leader lock")):
        return
    view = diagnose(view_fleet(snapshot, look(None, snapshot), settings), snapshot, settings)
    match decide_metadata_format(facts, settings.coordinator):
        case CreateThreeTables() | CreateSingleTable() as decision:
            count = "three tables" if isinstance(decision, CreateThreeTables) else "one table"
            yield ok("metadata", where, f"a new application: the first worker makes its {count}")
            return
        case Refuse() as refuse:
            yield error("metadata", where, refuse.message, "no worker of kcl-host will start", refuse.error.exit_code)
        case Wait() as wait:
            yield warn("metadata", where, wait.reason, "a worker of kcl-host waits and owns nothing until then")
        case Observe() as observe:
            yield warn(
                "metadata", where, observe.reason, "a worker decides when it starts; see docs/switching-from-java.md"
            )
        case UseThreeTables() | UseSingleTable() as use:
            form = "three tables (KCL 3.0 to 3.4)" if isinstance(use, UseThreeTables) else "the lease table (KCL 3.5)"
            version = view.metadata.client_version
            yield ok("metadata", where, f"metadata in {form}" + (f", Migration3.0 says {version}" if version else ""))
            yield from _index(snapshot, settings)
    if view.metadata.table_migration:
        text = f"the move into one table: {view.metadata.table_migration}, {view.metadata.migration_note}"
        yield ok("migration", where, text)
    problems = [finding.kind for finding in view.findings if finding.severity == "problem"]
    active = sum(worker.standing == "active" for worker in view.workers)
    leader = view.leader.worker_id if view.leader else "-"
    fleet = f"{active} active workers, {view.summary.leases:,} leases, leader {leader}"
    if problems:
        advice = "right if the fleet is stopped; else `kcl-host status -p FILE --observe 20` tells more"
        yield warn("fleet", where, f"{fleet}; {', '.join(dict.fromkeys(problems))}", advice)
    else:
        yield ok("fleet", where, fleet)


def _index(snapshot: FleetSnapshot, settings: Settings) -> Iterator[Finding]:
    where = f"lease table {settings.lease_table.name}"
    if snapshot.table is not None and snapshot.table.status not in ("ACTIVE", "UPDATING"):
        yield warn("metadata", where, f"the table is {snapshot.table.status}", "workers wait until it is ACTIVE")
    status = None if snapshot.table is None else snapshot.table.index_status
    if status is None:
        yield warn(
            "index", where, "has no index yet", "the first worker adds it, for which it needs dynamodb:UpdateTable"
        )
    elif status in ("CREATING", "DELETING"):
        yield warn(
            "index", where, f"the index is {status}", "until it is ACTIVE, workers look for their leases by scans"
        )
    else:
        yield ok("index", where, f"the index is {status}")


def _facts(checked: Checked, snapshot: FleetSnapshot, settings: Settings) -> MetadataFacts:
    """As a starting worker would find them at its first look."""
    reports = [probed for probed in checked.probes if probed.permission.kind == "worker metrics table"]
    described = [probed.outcome for probed in reports if probed.permission.action == "DescribeTable"]
    used = (snapshot.lock, snapshot.table_migration, *snapshot.workers.workers, *snapshot.workers.undecodable)
    version = snapshot.client_version
    return MetadataFacts(
        lease_table_exists=snapshot.table is not None,
        lease_table_has_index=snapshot.table is not None and snapshot.table.index_status is not None,
        entity_types=snapshot.listing.entity_types,
        workers_in_lease_table=any(
            judge_worker(worker, snapshot.taken_s, settings.worker_metrics) not in ("inactive", "leaving")
            for worker in snapshot.listing.workers.workers
        ),
        coordinator_table_exists=bool(snapshot.has_coordinator_table),
        coordinator_table_used=any(entry is not None for entry in used) or version is not None,
        worker_metrics_table_exists=described != ["missing"],
        table_migration_status=None if snapshot.table_migration is None else snapshot.table_migration.status,
        client_version=None if version is None else version.client_version,
    )
