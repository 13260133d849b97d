"""`kcl-host doctor`: is this deployment able to run, and if not, what is to be done? It changes nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import click
import msgspec
from msgspec.structs import replace

from kcl_host.cli.properties_file import takes_properties_file
from kcl_host.cli.run import DESCRIPTORS, read_settings
from kcl_host.config.findings import InvalidConfiguration
from kcl_host.config.settings import Settings
from kcl_host.decisions.doctor import examine, exit_code_of
from kcl_host.decisions.doctor_finding import Checked, ChildCheck, Finding, Level, Platform
from kcl_host.decisions.fleet_looks import FleetSnapshot
from kcl_host.decisions.permissions import policy_document, required_permissions
from kcl_host.errors import AccessError, ChildError, ConfigurationError, KclHostError
from kcl_host.model.access import Permission, Probed, StreamFacts

if TYPE_CHECKING:
    from rich.console import Console

    from kcl_host.aws.clients import Clients
    from kcl_host.coordination.fleet_snapshot import FleetReader

SCHEMA: Final = 1
"""Of --json; grows when a field changes its meaning or goes."""
CHILD_SESSION: Final = "shutdown-before-records"
"""The session of `verify` that sends no record: nothing is processed."""
CHILD_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 5.0
_STYLES: Final[Mapping[Level, str]] = {"ok": "green", "warn": "yellow", "error": "bold red", "not_probed": "dim"}


class Prober(Protocol):
    """What aws/probe.py does."""

    skew_s: dict[str, float]
    streams: dict[str, StreamFacts]

    def probe(self, permission: Permission) -> Probed: ...


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_properties_file
@click.option("--policy", is_flag=True, help="Print the smallest IAM policy for this file, and ask nobody.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
@click.option("--child/--no-child", default=True, show_default=True, help="Start the child, and send it no record.")
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="What the process gets between TERM and KILL here; default: that of the platform, where it can be told.",
)
def doctor(
    file: Path | None, properties_file: Path | None, policy: bool, as_json: bool, child: bool, grace_s: float | None
) -> int:
    """Check a deployment before it hurts: run it where the worker is to run, as the user it runs as.

    Who the credentials are, every permission on every table, index and stream, the state of tables, streams and
    fleet, the clock, open files, the time to stop, and the child. Nothing is changed: a write is tried under a
    condition that can never hold, and what cannot be asked for without doing it is said to be "not_probed".

    \b
      kcl-host doctor -p app.properties              every finding, and what to do about it
      kcl-host doctor -p app.properties --policy     the IAM policy that this file needs
      kcl-host doctor -p app.properties --json | jq '.findings[] | select(.level == "error")'

    It costs about fifteen requests for the tables, five for each stream, one scan of the lease table (as `status`), a
    write unit for each write that is tried, and one of the five reads that a shard of each stream allows in a second.

    \b
    Exit codes: 0 no error found (warnings may be), else that of what is to be mended first: 2 configuration (or
    child, or time to stop), 3 credentials or permissions, 4 a stream does not exist, 6 conflict in the tables, 1 other.
    """
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host doctor -p FILE")
    try:
        loaded = read_settings(path)
    except InvalidConfiguration as invalid:
        if not as_json:
            raise
        return _show(tuple(_of_configuration(f.severity, f.message) for f in invalid.findings), None, as_json=True)
    settings = loaded.settings
    if policy:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        document = policy_document(settings, region)
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return 0
    checked = replace(
        ask_aws(settings),
        warnings=tuple(f.message for f in loaded.findings if f.severity == "warning"),
        descriptors=descriptor_limit(),
        platform=platform_of(os.environ),
        platform_grace_s=grace_s,
        children=check_children(settings, try_child if child else None),
    )
    return _show(examine(checked, settings), settings, as_json=as_json)


def ask_aws(settings: Settings) -> Checked:
    """Everything about AWS, with short time-outs. Raises ConfigurationError when there is no region."""
    from kcl_host.aws.clients import clients_for
    from kcl_host.aws.probe import Prober, identities_of

    hasty = replace(settings, retrieval=replace(settings.retrieval, request_timeout_s=REQUEST_TIMEOUT_S))
    try:
        clients = clients_for(hasty)
    except AccessError as error:
        return Checked(no_clients=str(error))
    identities = identities_of(hasty, clients.dynamodb.meta.endpoint_url)
    prober = Prober(hasty, clients.dynamodb, clients.kinesis)
    return replace(ask(hasty, prober, reader_of(hasty, clients).take), identities=identities)


def reader_of(settings: Settings, clients: Clients) -> FleetReader:
    """Asks by clients that are there already."""
    from kcl_host.coordination.fleet_snapshot import PARALLEL, FleetReader
    from kcl_host.coordination.streams import StreamAccess, Streams
    from kcl_host.runtime.clock import SystemClock
    from kcl_host.runtime.services import lease_table_of, metadata_tables_of, stream_of
    from kcl_host.runtime.threads import SystemThreads

    return FleetReader(
        lease_table_of(clients.dynamodb, settings),
        metadata_tables_of(clients.dynamodb, settings),
        Streams(settings, lambda stream, own: StreamAccess(stream_of(clients.kinesis, stream, own))),
        SystemClock(),
        SystemThreads(PARALLEL),
    )


def ask(settings: Settings, prober: Prober, take: Callable[[], FleetSnapshot]) -> Checked:
    """Each permission, and then what the tables say, unless nobody answers for them. Raises nothing."""
    probes = tuple(prober.probe(permission) for permission in required_permissions(settings))
    snapshot, error = None, "DynamoDB does not answer"
    if not any(probed.outcome == "unreachable" and probed.permission.service == "dynamodb" for probed in probes):
        try:
            snapshot = take()
        except KclHostError as refused:
            error = str(refused)
    return Checked(probes=probes, streams=prober.streams, skew_s=prober.skew_s, snapshot=snapshot, snapshot_error=error)


# This machine


def descriptor_limit() -> int | None:
    """What a worker gets, which raises its soft limit; None: any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)


def platform_of(environ: Mapping[str, str]) -> Platform | None:
    """Who ends this process, by the variables that each gives to what it runs."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "ECS_CONTAINER_METADATA_URI_V4" in environ or "ECS_CONTAINER_METADATA_URI" in environ:
        return "ecs"
    return "systemd" if "INVOCATION_ID" in environ else None


def check_children(settings: Settings, attempt: Callable[[Sequence[str]], str] | None) -> tuple[ChildCheck, ...]:
    """Each different command once. `attempt` says what is wrong with it, nothing when all is well; None: not tried."""
    commands = dict.fromkeys(settings.of_stream(stream).child.command for stream in settings.streams)
    checks = []
    for command in commands:
        path = shutil.which(command[0])
        check = ChildCheck(command=command, path=path, said="it was not started, as asked for")
        if path is not None and attempt is not None:
            said = attempt(command)
            check = replace(check, answers=not said, said=said)
        checks.append(check)
    return tuple(checks)


def try_child(command: Sequence[str]) -> str:
    """What is wrong with the command when it is started, stopped and sent no record; empty: nothing."""
    from kcl_host.cli.verify import load_sessions, verify_command

    sessions = [session for session in load_sessions() if session.name == CHILD_SESSION]
    try:
        with contextlib.closing(verify_command(command, sessions, CHILD_TIMEOUT_S)) as running:
            for report in running:
                if report.deviations:
                    stderr = f"; it wrote: {' | '.join(report.stderr)}" if report.stderr else ""
                    return f"{report.deviations[0].action}: {report.deviations[0].message}{stderr}"
    except ChildError as error:
        return str(error)
    return ""


# What is shown


def _of_configuration(severity: str, message: str) -> Finding:
    level: Level = "error" if severity == "error" else "warn"
    exit_code = ConfigurationError.exit_code if level == "error" else 0
    return Finding(
        level=level, kind="configuration", where="properties file", message=message, exit_code=exit_code,
        advice="`kcl-host check -p FILE` shows every key",
    )  # fmt: skip


def _show(findings: tuple[Finding, ...], settings: Settings | None, *, as_json: bool) -> int:
    exit_code = exit_code_of(findings)
    if as_json:
        document = {
            "schema": SCHEMA,
            "ok": exit_code == 0,
            "exit_code": exit_code,
            "application": settings.application_name if settings else None,
            "findings": findings,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return exit_code
    _print(findings, _console())
    return exit_code


def _print(findings: Sequence[Finding], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        message = Text(f"{finding.where}: {finding.message}")
        if finding.advice:
            message.append(f"\n-> {finding.advice}", style="cyan")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.kind), message)
    console.print(table)
    counts = {level: sum(finding.level == level for finding in findings) for level in _STYLES}
    console.print()
    console.print(", ".join(f"{count} {level}" for level, count in counts.items() if count), markup=False)


def _console() -> Console:
    from kcl_host.cli.terminal import console

    return console()
