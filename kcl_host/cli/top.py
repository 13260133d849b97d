"""`kcl-host top`: the fleet on a screen that is drawn again and again, the busiest shards first."""

from __future__ import annotations

from typing import Any

import click

from kcl_host.cli.status import fleet_options, run_status
from kcl_host.decisions.fleet_selection import SORT_KEYS


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@fleet_options
@click.option(
    "--sort", type=click.Choice(SORT_KEYS), default="throughput", show_default=True, help="Order of the leases."
)
@click.option(
    "--watch", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="S", help="Look each S."
)
def top(watch: float, **options: Any) -> int:
    """Watch the fleet of an application at work: `kcl-host status --watch 2 --sort throughput`.

    \b
      kcl-host top -p app.properties                      until Ctrl-C
      kcl-host top -p app.properties --lag --sort lag     who falls behind, who catches up
      kcl-host top -p app.properties --json >fleet.jsonl  one object per look

    From the second look on there are rates: writes per second to each lease (renewals and checkpoints), how long a
    checkpoint has stood, and with --lag how much the lag grows or shrinks in a second. Kinesis is asked each 10 s.
    Each look scans the lease table: half a read unit per 4 KB, about 50 units for 1,000 leases.

    The exit code is that of the last look: 0 no problem, 1 at least one (see `kcl-host status --help`).
    """
    return run_status(watch=watch, observe=None, **options)
