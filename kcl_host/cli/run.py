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
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from kcl_host import log
from kcl_host.cli.processes import WorkerProcesses, number_of_this_process, watch_parent
from kcl_host.cli.properties_file import takes_properties_file
from kcl_host.cli.spark_server import REMOTE, spark_for_children, starts_here
from kcl_host.config.findings import log_findings
from kcl_host.config.keys import KEYS
from kcl_host.config.properties import Loaded, load_settings
from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.errors import ConfigurationError, FleetRolledBack
from kcl_host.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kcl_host.endpoint.service import Endpoint
    from kcl_host.runtime.transcripts import TranscriptFolder

_log = logging.getLogger(__name__)

DESCRIPTORS = 65536
STREAM_KEYS = ("streamNames", "streamArns")
_NOT_GIVEN = ("default", "derived")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_properties_file
@click.option("-l", "--log-configuration", type=click.Path(), help="Accepted for the Java daemon's sake, not used.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False))
@click.option("--log-format", type=click.Choice(["text", "json"]), help="One line per event either way. Default: text.")
@click.option("--debug", is_flag=True, help="DEBUG logs, and a traceback with an error.")
@click.option(
    "--transcript",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Writes what is exchanged with each child to files there, for `kcl-host verify --replay`; without payloads.",
)
@click.option("--transcript-payloads", is_flag=True, help="Payloads, partition keys and stray output as they are, too.")
def run(
    file: Path | None,
    properties_file: Path | None,
    log_configuration: str | None,
    log_level: str | None,
    log_format: Literal["text", "json"] | None,
    debug: bool,
    transcript: Path | None,
    transcript_payloads: bool,
) -> int:
    """Run a worker of the application that FILE describes.

    TERM or INT ends it in order: children are asked to checkpoint, leases are released, exit code 0. A second
    signal ends it at once. HUP reads FILE again, which a host of several streams does each minute too: streams that
    were added or removed and logLevel are taken over, the rest waits for a restart and is named. USR1 writes the state
    of the host to the log: leases, children, queues, the stack of each thread. Logs go to stderr.
    """
    path = properties_file or file
    if path is None:
        raise ConfigurationError("no properties file given: kcl-host --properties FILE")
    loaded = read_settings(path)
    number = number_of_this_process(os.environ)
    if number is not None:
        loaded = as_process(loaded, number)
    is_parent = number is None and loaded.settings.processes > 1
    level = "DEBUG" if debug else log_level or loaded.log_level
    log.configure(
        level=level,
        format=log_format or loaded.log_format,
        stream=sys.stderr,
        worker=None if is_parent else loaded.settings.worker_id,
        kinesis_stream=None if loaded.settings.multi_stream else loaded.settings.streams[0].name,
    )
    if not number:
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
    spark = loaded.settings.spark
    if number is None and spark.server is not None and not starts_here(spark, os.environ):
        facts = {"action": "configuration", "remote": os.environ[REMOTE]}
        _log.warning("spark.server is ignored, the environment has SPARK_REMOTE", extra=facts)
    transcripts = new_transcripts(transcript, transcript_payloads)
    clock, rng = SystemClock(), random.Random()
    with spark_for_children(spark, os.environ, clock, rng) as (environ, lifelines):
        if not is_parent:
            return serve(loaded, path, environ, transcripts)
        command = [sys.executable, "-m", "kcl_host", "run", *sys.argv[1:]]
        if sys.argv[1:2] == ["run"]:
            command.remove("run")
        return WorkerProcesses(command, loaded.settings.processes, environ, clock, rng, lifelines).run()


def as_process(loaded: Loaded, number: int) -> Loaded:
    """The configuration of one of several worker processes: a worker id that was given is told apart by the number."""
    settings = loaded.settings
    given = any(row.key in ("workerId", "workerIdentifier") and row.origin not in _NOT_GIVEN for row in loaded.origins)
    worker_id = f"{settings.worker_id}-{number}" if given else settings.worker_id
    return msgspec.structs.replace(loaded, settings=msgspec.structs.replace(settings, worker_id=worker_id))


def _is_about_streams(key: str) -> bool:
    """What may change while the host runs: which streams there are, and what one of them has of its own."""
    return key in STREAM_KEYS or any(key.startswith(f"{one.name}.") for one in KEYS if one.per_stream)


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


class Configuration:
    """The file of a running host, read again: its streams are taken over, the rest needs a restart and is only named.

    Belongs to one thread.
    """

    def __init__(self, loaded: Loaded, path: Path) -> None:
        self._loaded = loaded
        self._path = path
        self._log_level = loaded.log_level
        self._said: object = None

    def streams(self) -> tuple[StreamSettings, ...] | None:
        """The streams of now; None when the file is wrong, or cannot be read: then those of before go on."""
        try:
            now = read_settings(self._path)
        except ConfigurationError as error:
            self._say("the changed configuration is wrong, that of before goes on", {"error": str(error)})
            return None
        old, new = ({e.key: e.value for e in loaded.origins if e.origin != "derived"} for loaded in (self._loaded, now))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key) and not _is_about_streams(key)]
        if now.log_level != self._log_level:
            self._log_level = now.log_level
            logging.getLogger("kcl_host").setLevel(now.log_level)
            _log.info("logLevel has changed", extra={"action": "configuration", "log_level": now.log_level})
        changed = [key for key in changed if key != "logLevel"]
        if now.settings.multi_stream != self._loaded.settings.multi_stream or not now.settings.multi_stream:
            changed += [key for key in STREAM_KEYS if old.get(key) != new.get(key)]
        if changed:
            self._say("the configuration has changed in what needs a restart", {"keys": sorted(set(changed))})
        else:
            self._said = None
        return now.settings.streams if now.settings.multi_stream == self._loaded.settings.multi_stream else None

    def _say(self, message: str, facts: dict[str, object]) -> None:
        """Once for each change: the file is read every minute."""
        if (message, facts) != self._said:
            self._said = (message, facts)
            _log.warning(message, extra={"action": "configuration", **facts})


def new_transcripts(folder: Path | None, payloads: bool) -> TranscriptFolder | None:
    """Raises ConfigurationError when the folder cannot be written to."""
    if folder is None:
        return None
    from kcl_host.runtime.transcripts import TranscriptFolder

    transcripts = TranscriptFolder(folder, SystemClock(), secrets.token_bytes(16), payloads=payloads)
    transcripts.prepare()
    return transcripts


def serve(loaded: Loaded, path: Path, environ: Mapping[str, str], transcripts: TranscriptFolder | None = None) -> int:
    from kcl_host.runtime.outside import connect
    from kcl_host.runtime.shard_consumers import StoppedAtOnce
    from kcl_host.runtime.signals import watch_signals
    from kcl_host.runtime.supervisor import Supervisor

    configuration = Configuration(loaded, path)
    endpoint = new_endpoint(loaded.settings)

    def new_worker() -> Supervisor:
        outside = connect(
            loaded.settings,
            environ=environ,
            clock=SystemClock(),
            rng=random.Random(),
            read_streams=configuration.streams,
            note_line=endpoint.recent.note_line if endpoint else None,
            transcripts=transcripts,
        )
        worker = Supervisor(loaded.settings, outside)
        if endpoint:
            endpoint.show(worker, outside)
        return worker

    worker = new_worker()
    received: list[int] = []

    def act(number: int) -> None:
        if number == signal.SIGHUP:
            worker.reread()
            return
        if number == signal.SIGUSR1:
            worker.write_state()
            return
        received.append(number)
        (worker.request_stop if len(received) == 1 else worker.stop_now)()

    watch_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1), act)
    if number_of_this_process(os.environ) is not None:
        watch_parent(lambda: act(signal.SIGTERM))
    with endpoint or nullcontext():
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


def new_endpoint(settings: Settings) -> Endpoint | None:
    """None when the configuration asks for none; it is imported only then."""
    if not settings.endpoint.port:
        return None
    from kcl_host.endpoint.service import Endpoint

    return Endpoint(settings, SystemClock(), os.getpid(), number_of_this_process(os.environ))


def raise_descriptor_limit() -> None:
    """Enough open files for thousands of shards, where the system allows it: a shard needs about eight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
