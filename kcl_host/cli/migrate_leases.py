"""`kcl-host migrate-leases`: the leases of a single-stream application, as multi-stream leases in a new table."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from kcl_host.cli.properties_file import takes_properties_file
from kcl_host.cli.run import read_settings
from kcl_host.errors import ConfigurationError
from kcl_host.log import one_line

if TYPE_CHECKING:
    from kcl_host.config.settings import Settings
    from kcl_host.coordination.lease_migration import LeaseMigration, LeaseMigrationPreview

PROGRESS_S = 1.0
"""Between two lines about the same thing."""


@click.command("migrate-leases", context_settings={"help_option_names": ["-h", "--help"]})
@partial(takes_properties_file, what="The .properties file of the application as it is, with streamName")
@click.option("--to-table", required=True, help="Name of the new lease table; created if it does not exist.")
@click.option("--apply", is_flag=True, help="Do it. Without this nothing is written.")
def migrate_leases(file: Path | None, properties_file: Path | None, to_table: str, apply: bool) -> None:
    """Turn the leases of a single-stream application into those of one stream among many, in a new table.

    Leases of the two kinds cannot share a table. Each lease is written anew under the key
    ACCOUNT:STREAM:CREATION EPOCH:SHARD, as Java KCL's multi-stream mode writes it: checkpoint, prepared checkpoint,
    parents, children, hash key range, owner switches and throughput are kept, nobody holds it, its counter starts at 0,
    and attributes that KCL does not know are left out. The old table is never changed: it is the way back, as long
    as no multi-stream worker has run.

    \b
    1. kcl-host migrate-leases -p app.properties --to-table app-multi
       shows what would be done. Workers may still be running.
    2. Stop every worker of the application, Java and kcl-host.
    3. The same with --apply. It watches for longer than failoverTimeMillis (longer where a worker reported metrics
       of late), refuses with exit code 6 when any worker shows itself, and then writes. It only creates rows, so
       after an interruption run it again: it completes the work. Start no worker on the new table before it has
       ended well: leases that are missing would begin at the initial position.
    4. In the file of every worker replace streamName by streamNames (streamArn by streamArns), set tableName to the
       new table, and start them. Keep the old file from being used again.

    applicationName stays as it is: the metrics namespace, the fan-out consumer and the tables for coordinator state
    and worker metrics are named after it, and those tables go on to be used. An application of KCL 3.5's single-table
    format finds the same format in the new table, its item Migration3.0 included; the leader's lock and worker metrics
    are made anew by the workers. Several applications may be brought into one table, one after the other, all of them
    stopped; leases of other streams in it are left alone.
    """
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host migrate-leases -p FILE --to-table TABLE")
    settings = read_settings(path).settings
    if settings.multi_stream:
        raise ConfigurationError(f"{path} names several streams: give the file of the single-stream application")
    if to_table in (settings.lease_table.name, settings.coordinator_table.name, settings.worker_metrics_table.name):
        raise ConfigurationError(f"--to-table {to_table} is a table of the application already; name a new one")
    migration = _connect(settings, to_table)
    if apply:
        done = migration.apply(_Progress())
        _print_plan(settings, to_table, done, applied=True)
    else:
        _print_plan(settings, to_table, migration.preview(), applied=False)
    _print_switch(settings, to_table)


def _connect(settings: Settings, to_table: str) -> LeaseMigration:
    from kcl_host.aws.clients import clients_for
    from kcl_host.aws.coordinator_table import DynamoDbCoordinatorTable
    from kcl_host.aws.lease_table import DynamoDbLeaseTable
    from kcl_host.aws.worker_metrics_table import LEASE_KEY
    from kcl_host.coordination.lease_migration import LeaseMigration, MigratedTables
    from kcl_host.runtime.clock import SystemClock
    from kcl_host.runtime.services import lease_table_of, metadata_tables_of, stream_of

    clients = clients_for(settings)
    dynamodb, new = clients.dynamodb, msgspec.structs.replace(settings.lease_table, name=to_table)
    return LeaseMigration(
        stream_of(clients.kinesis, settings.streams[0], settings),
        MigratedTables(
            old=lease_table_of(dynamodb, settings),
            metadata=metadata_tables_of(dynamodb, settings),
            new=DynamoDbLeaseTable(dynamodb, new),
            new_name=to_table,
            new_items=DynamoDbCoordinatorTable(dynamodb, new, key_attribute=LEASE_KEY),
        ),
        settings,
        SystemClock(),
        time.sleep,
    )


class _Progress:
    """A line on stderr now and then, and at the end of each thing."""

    def __init__(self) -> None:
        self._what, self._next_s = "", 0.0

    def __call__(self, what: str, done: float, of: float) -> None:
        now_s = time.monotonic()
        if what != self._what or now_s >= self._next_s or done >= of:
            click.echo(f"{what}: {min(done, of):.0f} of {of:.0f}", err=True)
            self._what, self._next_s = what, now_s + PROGRESS_S


def _print_plan(settings: Settings, to_table: str, preview: LeaseMigrationPreview, *, applied: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from kcl_host.cli.terminal import console

    plan = preview.plan
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (f"lease in {settings.lease_table.name}", f"lease in {to_table}", "checkpoint", "held by", ""):
        table.add_column(column, overflow="fold")
    for move in plan.moves:
        written = "written" if applied else "to be written"
        table.add_row(
            Text(move.lease.lease_key),
            Text(move.to.lease_key),
            Text(str(move.to.checkpoint or "-")),
            Text(move.lease.actual_owner or "-", style="dim"),
            Text("there already, left as it is" if move.is_there else written, style="dim" if move.is_there else ""),
        )
        if move.note:
            table.add_row("", "", "", "", Text(move.note, style="yellow"))
    console(width=None).print(table)
    count = sum(not move.is_there for move in plan.moves)
    click.echo(
        f"{len(plan.moves)} leases, {count} of them {'written' if applied else 'to be written'}, as {plan.stream}"
    )
    if not applied and not preview.new_table_exists:
        click.echo(f"table {to_table} will be created, with its index")
    if preview.client_version is not None:
        verb = "copied" if applied else "to be copied"
        click.echo(one_line(f"item Migration3.0 ({preview.client_version.client_version}): {verb}"))
    if left := [kind for kind in plan.left_behind if kind != "CLIENT_VERSION_MIGRATION"]:
        click.echo(one_line(f"not copied, since the workers write their own: rows of type {', '.join(left)}"))
    if not applied:
        if preview.reporting:
            click.echo(one_line(f"workers that reported of late: {', '.join(preview.reporting)}"))
        click.echo("Nothing was written. Stop every worker of the application, then run this again with --apply.")


def _print_switch(settings: Settings, to_table: str) -> None:
    (stream,) = settings.streams
    old, new = ("streamArn", "streamArns") if stream.arn else ("streamName", "streamNames")
    click.echo(
        f"\nTo switch afterwards, in the properties file of every worker, {old} taken out:\n\n"
        f"    {new} = {stream.arn or stream.name}\n    tableName = {to_table}\n\n"
        "applicationName stays as it is."
    )
