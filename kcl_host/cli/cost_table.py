"""The cost of a fleet on a terminal, and the prices that were given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kcl_host.decisions.fleet_cost import Cost, Prices

if TYPE_CHECKING:
    from rich.console import RenderableType


def prices_of(given: Iterable[str]) -> Prices:
    """`NAME=USD` over the defaults. Raises click.BadParameter."""
    names = [field.name for field in msgspec.structs.fields(Prices)]
    found: dict[str, float] = {}
    for one in given:
        name, _, amount = one.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            raise click.BadParameter(f"{one!r}: not NAME=USD") from None
        if name not in names or not found[name] >= 0:
            raise click.BadParameter(f"{one!r}: a price is one of {', '.join(names)}, and not negative")
    return Prices(**found)


def cost_page(cost: Cost) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    table.add_column("cost, estimated")
    for name in ("requests/h", "read units/h", "write units/h", "USD/day"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in cost.lines:
        what = f"{line.service}: {line.what}" + (" (measured)" if line.is_measured else "")
        amounts = (line.requests, line.read_units, line.write_units)
        table.add_row(what, *(f"{amount:,.0f}" if amount else "-" for amount in amounts), f"{line.usd_a_day:,.4f}")
    table.add_row(Text("together", "bold"), "", "", "", Text(f"{cost.usd_a_day:,.4f}", "bold"))
    prices = ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(cost.prices).items())
    notes = [
        "An estimate for a fleet of kcl-host with this file; not the stream itself, nor what the children do.",
        *(f"Not in it: {what}." for what in cost.missing),
        f"USD (us-east-1 of 2025 unless --price says otherwise): {prices}",
    ]
    return Group(Text(), table, *(Text(note, "dim") for note in notes))
