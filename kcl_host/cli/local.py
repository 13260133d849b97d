"""`kcl-host local`: the embedded engines alone, for development."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

from kcl_host.errors import ConfigurationError

if TYPE_CHECKING:
    from kcl_host.local.engines import Engines


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kinesis-port", type=click.IntRange(0, 65535), default=0, help="Default: any free port.")
@click.option("--dynamodb-port", type=click.IntRange(0, 65535), default=0, help="Default: any free port.")
@click.option("--stream", metavar="NAME", help="Create this stream.")
@click.option("--shards", type=click.IntRange(1, 1000), default=4, show_default=True, help="Shards of that stream.")
@click.option("--produce", type=click.FloatRange(0.1, 10000), metavar="RATE", help="Records per second into it.")
@click.option("--aggregate", type=click.IntRange(1, 1000), default=1, metavar="N", help="N of them to a KPL aggregate.")
def local(
    kinesis_port: int, dynamodb_port: int, stream: str | None, shards: int, produce: float | None, aggregate: int
) -> int:
    """Run the embedded Kinesis and DynamoDB until INT or TERM.

    Prints the lines that a .properties file needs to use them. They listen on 127.0.0.1 only, keep everything in
    memory, and accept any credentials.
    """
    if produce and not stream:
        raise ConfigurationError("--produce needs --stream NAME")
    if aggregate > 1 and not produce:
        raise ConfigurationError("--aggregate needs --produce RATE")
    # Blocked before any thread starts, so that only the sigwait below ever sees them.
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        with _engines(kinesis_port, dynamodb_port) as engines:
            producer = None
            if stream:
                engines.create_stream(stream, shards)
                if produce:
                    from kcl_host.local.producer import Producer

                    producer = Producer(engines, stream, records_per_s=produce, aggregate=aggregate)
                    producer.start()
            try:
                for line in _introduction(engines, stream):
                    click.echo(line)
                signal.sigwait(signals)
            finally:
                if producer:
                    producer.stop()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _engines(kinesis_port: int, dynamodb_port: int) -> Engines:
    try:
        from kcl_host.local.engines import Engines
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the embedded engines are not installed ({error.name} is missing): pip install 'kcl-host[local]'"
        ) from error
    try:
        return Engines(kinesis_port, dynamodb_port)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on 127.0.0.1: {os.strerror(error.errno or 0)}; choose another port"
        ) from error


def _introduction(engines: Engines, stream: str | None) -> list[str]:
    variables = " ".join(f"{name}={value}" for name, value in engines.environment().items())
    return [
        "# the embedded engines are running; Ctrl-C stops them. For your .properties file:",
        *([f"streamName = {stream}"] if stream else []),
        *engines.properties_lines(),
        "AwsCredentialsProvider = AnonymousCredentialsProvider",
        "# other clients sign with anything, for example:",
        f"#   export {variables}",
    ]
