"""kinesis-local, an independent implementation of Kinesis in Node, on 127.0.0.1 and in memory.

Its quirks: a closed shard's ending sequence number is always the same; SubscribeToShard speaks HTTP/1.1 only, sends no
initial-response and does not end with the shard.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.dynamodb_local import free_port, served
from tests.interop.npm_package import npm_package

VERSION = "0.6.2"
_DURATIONS = ("CREATE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "REGISTER_STREAM_CONSUMER")


@contextmanager
def kinesis_local() -> Iterator[str]:
    """Yields the endpoint URL of a fresh engine; skips the test when node or npm is missing."""
    package, port = npm_package("kinesis-local", VERSION), free_port()
    settings = {
        "KINESIS_MOCK_PLAIN_PORT": str(port),
        "KINESIS_MOCK_TLS_PORT": str(free_port()),
        **{f"{name}_DURATION": "50ms" for name in _DURATIONS},
    }
    hook = Path(__file__).parent / "on_loopback.cjs"
    command = ["env", "-C", str(package), *(f"{k}={v}" for k, v in settings.items())]
    assert os.access(hook, os.R_OK)
    with served("kinesis-local", [*command, "node", "-r", str(hook), "main.js"], port) as endpoint_url:
        yield endpoint_url
