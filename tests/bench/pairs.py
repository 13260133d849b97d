"""kcl-host and Java's daemon in turn: what all paired measurements have in common.

A cell is what is measured, a run measures each cell with both hosts, one after the other, in alternating order; only
ratios within a run are compared. Each result is a line of JSON in a file; a second start with the same --results goes
on where the first one ended, and tries again what a host did not manage. With --quick nothing is kept and no figure is
shown: it only says that all of it works.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tests.bench import hosts
from tests.bench.hosts import Java, Missing
from tests.bench.report import KINDS, Column, Kind, Result, append, machine, read, table

Measure = Callable[[str, int, Kind], Mapping[str, float]]
"""Figures of (cell, run, host)."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """As given on the command line."""

    runs: int
    quick: bool
    only: tuple[str, ...]
    kinds: tuple[Kind, ...]
    """Empty: both, or kcl-host alone where there is no Java."""
    jvm: tuple[str, ...]
    results: Path | None
    listing: bool


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a paired measurement, which `command` gets as its first argument."""

    @click.option("--runs", default=5, show_default=True, help="Of each cell, with both hosts.")
    @click.option("--quick", is_flag=True, help="Shows that it works; never a figure.")
    @click.option("--only", multiple=True, help="Cells with all of these words; give it once for each.")
    @click.option("--host", "kinds", multiple=True, type=click.Choice(KINDS), help="Both, if not given.")
    @click.option("--java-option", "jvm", multiple=True, help="For the JVM, such as -Xmx256m; none by default.")
    @click.option("--results", type=click.Path(path_type=Path), help="A file to go on with; a new one, if not given.")
    @click.option("--list", "listing", is_flag=True, help="Names the cells.")
    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        own = {name: given.pop(name) for name in Options.__struct_fields__}
        command(Options(**own), **given)

    return wrapped


class Pairs:
    """One start of a measurement called `name`."""

    def __init__(self, name: str, given: Options) -> None:
        """Raises Missing when Java was asked for and cannot be had."""
        self._name, self._given = name, given
        kinds = given.kinds or KINDS
        self.jvm: Java | None = None
        if "java" in kinds and not given.listing:
            try:
                self.jvm = hosts.java(given.jvm)
            except Missing as missing:
                if given.kinds:
                    raise
                click.echo(f"without Java: {missing.message}")
                kinds = ("kcl-host",)
        self._kinds = kinds
        self._versions = "" if given.listing else f"{_machine()}; {self.jvm.versions if self.jvm else 'without Java'}"

    def run(self, cells: Sequence[str], columns: Sequence[Column], measure: Measure) -> None:
        """Measures what there is no result of yet, and prints the table of all."""
        cells = [cell for cell in cells if all(words in cell for words in self._given.only)]
        if self._given.listing:
            click.echo("\n".join(cells))
            return
        click.echo(self._versions)
        if self._given.quick:
            for cell in cells:
                for kind in self._kinds:
                    measure(cell, 0, kind)
                    click.echo(f"{kind}, {cell}: works")
            return
        file = self._given.results or hosts.BUILT / time.strftime(f"{self._name}-%Y%m%d-%H%M%S.jsonl")
        found = [result for result in read(file) if result.bench == self._name]
        failed = 0
        for run in range(self._given.runs):
            for cell in cells:
                for kind in self._kinds if run % 2 == 0 else reversed(self._kinds):
                    if any((r.cell, r.run, r.host) == (cell, run, kind) for r in found):
                        continue
                    try:
                        found.append(self._measured(cell, run, kind, columns, measure))
                        append(file, found[-1])
                    except AssertionError as error:  # A host ended, or did not get there in time.
                        failed += 1
                        click.echo(f"run {run + 1}/{self._given.runs}, {cell}, {kind}: no result: {error}")
        click.echo("\n".join(["", *table([r for r in found if r.cell in cells], columns)]))
        click.echo(f"\nresults: {file}")
        if failed:
            raise click.ClickException(f"{failed} times no result; the same command with --results {file} tries again")

    def _measured(self, cell: str, run: int, kind: Kind, columns: Sequence[Column], measure: Measure) -> Result:
        began_s = time.monotonic()
        figures = dict(measure(cell, run, kind))
        said = [f"{c.title} {figures[c.figure]:{c.form}}" for c in columns if c.figure in figures]
        took_s = time.monotonic() - began_s
        click.echo(
            f"run {run + 1}/{self._given.runs}, {cell}, {kind}: {', '.join(said)} "
            f"(load {os.getloadavg()[0]:.1f}, took {took_s:.0f} s)"
        )
        return Result(
            bench=self._name,
            cell=cell,
            run=run,
            host=kind,
            figures=figures,
            versions=self._versions,
            taken=time.strftime("%Y-%m-%dT%H:%M:%S"),
        )


def _machine() -> str:
    try:
        go = subprocess.run(["go", "version"], stdout=subprocess.PIPE, text=True).stdout.split()[2]
    except FileNotFoundError:
        go = "Go, which is not installed"
    cpus = [line.partition(": ")[2] for line in hosts.proc_lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{machine()} of {(cpus or ['?'])[0]}, Linux {platform.release()}, source on {go}"
