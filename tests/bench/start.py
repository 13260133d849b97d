"""How long from the start of the process to the first record in a child: a new application, and a known one.

Engines and producer run in this process; the host is started as a user would. "Known" is started again after a
graceful stop of the same worker. The clock is this process's: the child appends to a file, whose growth is watched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from kcl_host.local.engines import Engines
from kcl_host.local.producer import Producer
from tests.bench.report import Spread, machine

LIMIT_S = 60.0


@click.command()
@click.option("--runs", default=7, show_default=True)
@click.option("--shards", default=4, show_default=True)
def main(runs: int, shards: int) -> None:
    """Cold and warm start on the embedded engines."""
    new, known = [], []
    for run in range(1, runs + 1):
        with tempfile.TemporaryDirectory() as folder, Engines() as engines:
            engines.create_stream("bench", shards)
            producer = Producer(engines, "bench", records_per_s=200)
            producer.start()
            new.append(_first_record_s(engines, Path(folder), "first"))
            known.append(_first_record_s(engines, Path(folder), "second"))
            producer.stop()
        click.echo(f"run {run}/{runs}: new {new[-1]:.2f} s, known {known[-1]:.2f} s")
    click.echo(f"\n{machine()}, {shards} shards")
    for name, values in (("new application", new), ("known application", known)):
        median, low, high = Spread.of(values).texts(".2f")
        click.echo(f"{name}: median {median} s, from {low} to {high} s ({runs} runs)")


def _first_record_s(engines: Engines, folder: Path, name: str) -> float:
    out = folder / f"{name}.out"
    properties = folder / "bench.properties"
    lines = [
        f"executableName = {sys.executable} -m kcl_host.processor.demo",
        "streamName = bench",
        "applicationName = bench-app",
        "initialPositionInStream = TRIM_HORIZON",
        "AwsCredentialsProvider = AnonymousCredentialsProvider",
        "retrievalMode = POLLING",
        *engines.properties_lines(),
    ]
    properties.write_text("\n".join(lines) + "\n")
    started_s = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        host = subprocess.Popen(
            [sys.executable, "-m", "kcl_host", "-p", str(properties)],
            stderr=log,
            env={**os.environ, "KCL_DEMO_OUT": str(out)},
        )
    try:
        while not (out.exists() and out.stat().st_size):
            if time.monotonic() - started_s > LIMIT_S or host.poll() is not None:
                raise click.ClickException((folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.005)
        return time.monotonic() - started_s
    finally:
        host.send_signal(signal.SIGTERM)
        host.wait()


if __name__ == "__main__":
    main()
