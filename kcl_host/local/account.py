"""The state of the Kinesis stand-in: streams by name, below one lock and one clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kcl_host.local.kinesis_request import KinesisRequest
from kcl_host.local.opaque_token import TokenSeal
from kcl_host.local.service_error import invalid_argument, not_found
from kcl_host.local.stream import LocalStream

REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"


class Durations(msgspec.Struct, kw_only=True):
    """How long streams and consumers stay in a passing state, in seconds. A test may change them at any time."""

    create_s: float = 0.0
    reshard_s: float = 0.0
    delete_s: float = 0.0
    register_s: float = 0.0


class Account:
    """All state hangs here and is used only within `at_now()`: by the HTTP server's thread and by whoever calls the
    engine directly (the producer, tests, the demo). Every time is epoch seconds of the injected clock.
    """

    def __init__(self, clock: Callable[[], float], *, enforce_quotas: bool) -> None:
        self.durations = Durations()
        self.enforce_quotas = enforce_quotas
        self.seal = TokenSeal()
        self.streams: dict[str, LocalStream] = {}
        self._clock = clock
        self._lock = threading.RLock()
        self._incarnations = 0

    @contextmanager
    def at_now(self) -> Iterator[float]:
        """Holds the lock, with every stream brought up to the instant that it yields."""
        with self._lock:
            now_s = self._clock()
            for stream in list(self.streams.values()):
                stream.advance(now_s)
            yield now_s

    def new_incarnation(self) -> int:
        self._incarnations += 1
        return self._incarnations

    def stream(self, request: KinesisRequest) -> LocalStream:
        """The stream a request names, by name or ARN."""
        if request.stream_arn is None:
            if request.stream_name is None:
                raise invalid_argument("Either StreamName or StreamARN should be provided.")
            return self.stream_named(request.stream_name)
        stream = self.stream_named(name_in(request.stream_arn))
        if stream.arn != request.stream_arn:
            raise not_found(f"Stream {request.stream_arn} not found.")
        if request.stream_name not in (None, stream.name):
            raise invalid_argument("StreamName and StreamARN do not name the same stream.")
        return stream

    def stream_named(self, name: str) -> LocalStream:
        if found := self.streams.get(name):
            return found
        raise not_found(f"Stream {name} under account {ACCOUNT} not found.")

    def live_stream(self, name: str) -> LocalStream:
        return self.live(self.stream_named(name))

    def live(self, stream: LocalStream) -> LocalStream:
        """A stream that is being created or deleted has no records to put or get."""
        if stream.status in ("CREATING", "DELETING"):
            raise not_found(f"Stream {stream.name} under account {ACCOUNT} not found; it is {stream.status}.")
        return stream

    def reshard_due(self, now_s: float) -> float:
        return now_s + self.durations.reshard_s


def name_in(stream_arn: str) -> str:
    return stream_arn.rpartition("stream/")[2]
