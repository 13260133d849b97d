"""The command line: `kcl-host --properties FILE`, and one sub-command per question."""

from __future__ import annotations

import click


@click.group(invoke_without_command=True)
def cli() -> None:
    """Consume Amazon Kinesis from any language, without a JVM."""
