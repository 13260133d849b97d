"""`kcl-host check`: what a .properties file means and what is wrong with it, without touching AWS."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Iterable

import click
import msgspec

from kcl_host.cli.spark_server import starts_here, what_is_missing
from kcl_host.config.findings import Effective, Finding, InvalidConfiguration
from kcl_host.config.properties import load_settings
from kcl_host.config.settings import SparkSettings
from kcl_host.errors import ConfigurationError
from kcl_host.log import escaped


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path())
@click.option(
    "-p",
    "--properties-file",
    "--properties",
    "properties_file",
    type=click.Path(),
    help="The application's .properties file; wins over the argument.",
)
@click.option(
    "--strict/--no-strict",
    default=True,
    show_default=True,
    help="Unknown keys, and numbers and booleans that are none, are errors; a run only warns about them.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.option("--all", "show_all", is_flag=True, help="Also the keys that are left at their default.")
def check(file: str | None, properties_file: str | None, strict: bool, as_json: bool, show_all: bool) -> None:
    """Show the effective configuration: each key with its value, where that comes from, and its status.

    Findings follow; errors go to stderr and end with exit code 2. Secrets are masked. Nothing is sent to AWS.
    """
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host check -p FILE")
    try:
        from kcl_host.aws.credentials import known_regions

        loaded = load_settings(
            path,
            environ=os.environ,
            strict=strict,
            random_suffix=secrets.token_hex(4),
            hostname=socket.gethostname(),
            known_regions=known_regions(),
        )
        findings = (
            *loaded.findings,
            *_command_findings(loaded.settings.child.command, path),
            *_spark_findings(loaded.settings.spark, path),
        )
        _show(path, loaded.origins, findings, as_json=as_json, show_all=show_all)
    except InvalidConfiguration as invalid:
        _show(path, invalid.origins, invalid.findings, as_json=as_json, show_all=show_all)
        raise


def _command_findings(command: tuple[str, ...], path: str) -> tuple[Finding, ...]:
    if shutil.which(command[0]):
        return ()
    text = f"{path}: executableName: {command[0]} is not found on the PATH of this machine, or is not executable"
    return (Finding(severity="warning", key="executableName", line=None, message=text),)


def _spark_findings(spark: SparkSettings, path: str) -> tuple[Finding, ...]:
    if spark.server is None:
        return ()
    if not starts_here(spark, os.environ):
        problem: str | None = "spark.server is ignored, the environment has SPARK_REMOTE"
    else:
        problem = what_is_missing()
    if problem is None:
        return ()
    return (Finding(severity="warning", key="spark.server", line=None, message=f"{path}: {problem}"),)


def _show(
    path: str, origins: Iterable[Effective], findings: Iterable[Finding], *, as_json: bool, show_all: bool
) -> None:
    rows = [row for row in origins if show_all or row.origin != "default"]
    if as_json:
        ok = all(finding.severity != "error" for finding in findings)
        document = {"file": path, "ok": ok, "values": rows, "findings": list(findings)}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    _print_table(path, rows)
    for finding in findings:
        if finding.severity == "warning":
            click.echo(escaped(f"warning: {finding.message}"))


def _print_table(path: str, rows: list[Effective]) -> None:
    from rich.table import Table
    from rich.text import Text

    from kcl_host.cli.terminal import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("key", "value", "origin", "status"):
        table.add_column(column, overflow="fold")
    for row in rows:
        value = Text("-", style="dim") if row.value is None else Text(row.value)
        origin = row.origin.replace(f"{path}:", "line ", 1)
        status = Text(row.status, style="" if row.status == "used" else "yellow")
        table.add_row(Text(row.key), value, Text(origin, style="dim"), status)
    console(width=None).print(table)
