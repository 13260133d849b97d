"""How every command that is about an application takes its .properties file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def takes_properties_file(command: Command, what: str = "The application's .properties file") -> Command:
    """Gives `command` the parameters `file` and `properties_file`, both Path or None: the second wins, as in Java."""
    option = click.option(
        "-p",
        "--properties-file",
        "--properties",
        "properties_file",
        type=click.Path(path_type=Path),
        help=f"{what}; wins over the argument.",
    )
    return click.argument("file", required=False, type=click.Path(path_type=Path))(option(command))
