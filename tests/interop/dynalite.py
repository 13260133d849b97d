"""dynalite, an independent implementation of DynamoDB in Node: it locks each item it changes, so it may judge races.

Fetched once from npm into .kcl-host/dynalite; started on 127.0.0.1, in memory, and ended by its pid.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.interop.dynamodb_local import free_port, served
from tests.interop.npm_package import npm_package

VERSION = "4.0.0"
STATUS_CHANGE_MS = 1
"""So long a table is CREATING, UPDATING or DELETING; its own default is 500."""


@contextmanager
def dynalite() -> Iterator[str]:
    """Yields the endpoint URL of a fresh engine; skips the test when node or npm is missing."""
    port = free_port()
    command = ["node", str(npm_package("dynalite", VERSION) / "cli.js"), "--host", "127.0.0.1", "--port", str(port)]
    for change in ("create", "update", "delete"):
        command += [f"--{change}TableMs", str(STATUS_CHANGE_MS)]
    with served("dynalite", command, port) as endpoint_url:
        yield endpoint_url
