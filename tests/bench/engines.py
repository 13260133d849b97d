"""The embedded engines in a process of their own, so that their work is not that of the measuring process."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def engines_apart(*options: str) -> Iterator[list[str]]:
    """`kcl-host local`; the lines for the properties file."""
    command = [sys.executable, "-m", "kcl_host", "local", *options]
    engines = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert engines.stdout is not None
    try:
        lines = itertools.takewhile(lambda line: "export" not in line, engines.stdout)
        yield [line.rstrip("\n") for line in lines if not line.startswith("#")]
    finally:
        engines.terminate()
        engines.wait()
        engines.stdout.close()
