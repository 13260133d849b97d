"""`kcl-host --properties FILE`: one worker, until it is told to stop."""

from __future__ import annotations

import logging
import os
import random
import resource
import secrets
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Literal

import click

from kcl_host import log
from kcl_host.config.findings import log_findings
from kcl_host.config.properties import Loaded, load_settings
from kcl_host.errors import ConfigurationError, FleetRolledBack

_log = logging.getLogger(__name__)

DESCRIPTORS = 65536


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "-p",
    "--properties-file",
    "--properties",
    "properties_file",
    type=click.Path(path_type=Path),
    help="The application's .properties file; wins over the argument.",
)
@click.option("-l", "--log-configuration", type=click.Path(), help="Accepted for the Java daemon's sake, not used.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False))
@click.option("--log-format", type=click.Choice(["text", "json"]), help="One line per event either way. Default: text.")
@click.option("--debug", is_flag=True, help="DEBUG logs, and a traceback with an error.")
def run(
    file: Path | None,
    properties_file: Path | None,
    log_configuration: str | None,
    log_level: str | None,
    log_format: Literal["text", "json"] | None,
    debug: bool,
) -> int:
    """Run a worker of the application that FILE describes.

    TERM or INT ends it in order: children are asked to checkpoint, leases are released, exit code 0. A second
    signal ends it at once. Logs go to stderr.
    """
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host --properties FILE")
    loaded = read_settings(path)
    level = "DEBUG" if debug else log_level or loaded.log_level
    log.configure(
        level=level,
        format=log_format or loaded.log_format,
        stream=sys.stderr,
        worker=loaded.settings.worker_id,
        kinesis_stream=loaded.settings.stream.name,
    )
    log_findings(loaded.findings, _log)
    if log_configuration:
        _log.warning(
            "the logback file is not used; see --log-level and --log-format", extra={"action": "configuration"}
        )
    if properties_file and file:
        _log.warning(
            "two properties files given, the option wins", extra={"action": "configuration", "file": str(path)}
        )
    raise_descriptor_limit()
    return serve(loaded)


def read_settings(path: Path) -> Loaded:
    """The configuration of a run in this process: real environment, host name and randomness."""
    from kcl_host.aws.credentials import known_regions

    return load_settings(
        str(path),
        environ=os.environ,
        random_suffix=secrets.token_hex(4),
        hostname=socket.gethostname(),
        known_regions=known_regions(),
    )


def serve(loaded: Loaded) -> int:
    from kcl_host.runtime.clock import SystemClock
    from kcl_host.runtime.outside import connect
    from kcl_host.runtime.supervisor import StoppedAtOnce, Supervisor

    def new_worker() -> Supervisor:
        return Supervisor(
            loaded.settings,
            connect(loaded.settings, environ=dict(os.environ), clock=SystemClock(), rng=random.Random()),
        )

    worker = new_worker()
    received: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        received.append(number)
        (worker.request_stop if len(received) == 1 else worker.stop_now)()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    while True:
        try:
            worker.run()
            return 0
        except FleetRolledBack as error:
            if received:
                return 0
            _log.warning("this worker starts anew", extra={"action": "worker_starts_anew", "reason": str(error)})
            worker = new_worker()
            if received:  # Between the last look and this worker: nobody else would tell it.
                worker.request_stop()
        except StoppedAtOnce:
            # A thread may still wait for an answer of AWS; who signals twice does not want to wait with it.
            logging.shutdown()
            os._exit(128 + received[-1])


def raise_descriptor_limit() -> None:
    """Enough open files for thousands of shards, where the system allows it: a shard needs about eight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
