"""The command line: `kcl-host --properties FILE` runs the host, each sub-command answers one question.

Errors are turned into one line and an exit code here and nowhere else. Commands are imported when they are asked for:
a host that starts loads nothing of the demo or the checks.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Final

import click

from kcl_host import __version__
from kcl_host.errors import KclHostError

COMMANDS: Final = {
    "run": "run the host (the default: `kcl-host -p FILE`)",
    "check": "show the effective configuration and what is wrong with it",
    "status": "show the fleet: who reads what, how far behind, what is wrong",
    "top": "the same, drawn again every 2 seconds, busiest shards first",
    "doctor": "will this deployment run? credentials, permissions, tables, streams, this machine",
    "plan": "show which leases the leader would move, and with more or fewer workers",
    "verify": "try a record processor against the protocol, without AWS",
    "replay": "set where shards are read from, back or forward, while the fleet runs",
    "migrate-leases": "bring the leases of a single-stream application into a multi-stream table",
    "local": "run the embedded Kinesis and DynamoDB engines",
    "demo": "see it all at work, with nothing but this machine",
}


class Commands(click.Group):
    """Sub-commands by name; anything else on the command line belongs to `run`, as the Java daemon takes it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"kcl_host.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = expand_argument_files(args)
        if args and args[0] not in COMMANDS and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def expand_argument_files(args: list[str]) -> list[str]:
    """`@FILE` stands for the lines of that file, as in the Java daemon."""
    expanded: list[str] = []
    for arg in args:
        path = Path(arg[1:])
        if arg.startswith("@") and path.is_file():
            expanded += [line for line in path.read_text().splitlines() if line]
        else:
            expanded.append(arg)
    return expanded


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kcl-host")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Consume Amazon Kinesis from any language, without a JVM.

    \b
      kcl-host --properties app.properties    run a worker of the application
      kcl-host check -p app.properties        is this file right, and what does it mean?
      kcl-host status -p app.properties       is the fleet well, Java workers included?
      kcl-host verify ./my_processor.py       does my record processor speak the protocol?
      kcl-host demo                           watch it work on this machine

    The properties file is the one of Amazon's MultiLangDaemon; record processors written for it run unchanged.

    \b
    Exit codes: 0 stopped as asked, 1 failed, 2 wrong configuration or usage, 3 credentials or permissions,
    4 the stream does not exist, 5 children were killed at the drain deadline, 6 the metadata tables or the
    worker id are in conflict with another worker, 128 + n ended at once by a second signal n.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(2)


def main() -> None:
    """Runs the command line and ends the process with the documented exit code."""
    if os.getpid() == 1 and not COMMANDS.keys() - {"run"} & set(sys.argv[1:2]):
        # Now, while there is little in memory: this process stays beside the host's.
        from kcl_host.cli.init_process import fork_from_init

        if (code := fork_from_init()) is not None:
            sys.exit(code)
    try:
        status = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt):
        status = 130
    except KclHostError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        from kcl_host.log import escaped

        click.echo(escaped(f"kcl-host: {error}"), err=True)
        status = error.exit_code
    sys.exit(status if isinstance(status, int) else 0)
