"""The streams of an application, as leases name them, and how each is reached.

Shared by the threads of the worker. `_lock` guards what is configured and what was opened; opening makes no request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kcl_host.config.settings import Settings, StreamSettings
from kcl_host.errors import MetadataConflict
from kcl_host.model.lease import Lease
from kcl_host.model.shard import StreamIdentifier
from kcl_host.ports import NewLock, Stream, Subscriber


@dataclass(frozen=True)
class StreamAccess:
    """`subscriber` is for enhanced fan-out; None: the stream is polled."""

    stream: Stream
    subscriber: Subscriber | None = None


@dataclass(frozen=True, kw_only=True)
class OpenStream:
    """`settings` are those of the worker with what the stream has of its own."""

    identifier: StreamIdentifier
    access: StreamAccess
    settings: Settings
    stream_settings: StreamSettings

    @property
    def stream(self) -> Stream:
        return self.access.stream

    @property
    def log_facts(self) -> dict[str, str]:
        """What a log line about a shard needs besides the shard: of one stream every line of the host has the name."""
        return {"stream": str(self.identifier)} if self.identifier.is_multi_stream else {}


class Streams:
    """Finds the stream of a lease, configured or not: one that only leases name is read with the common settings."""

    def __init__(
        self,
        settings: Settings,
        open_stream: Callable[[StreamSettings, Settings], StreamAccess],
        new_lock: NewLock = threading.Lock,
    ) -> None:
        self._settings = settings
        self._open_stream = open_stream
        self._lock = new_lock()
        self._configured = settings.streams
        self._open: dict[StreamIdentifier, OpenStream] = {}
        self._created: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Streams {', '.join(stream.name for stream in self._configured)}>"

    @property
    def is_multi(self) -> bool:
        return self._settings.multi_stream

    @property
    def configured(self) -> tuple[StreamSettings, ...]:
        return self._configured

    def configure(self, streams: tuple[StreamSettings, ...]) -> bool:
        """What is configured from now on, True when that is new; a shard that is being read goes on as it began."""
        with self._lock:
            if streams == self._configured:
                return False
            self._configured, self._open = streams, {}
            return True

    def of(self, identifier: StreamIdentifier) -> OpenStream:
        """The stream with this identifier; a name alone is what is configured under it."""
        with self._lock:
            found = self._open.get(identifier)
            if found is None:
                found = self._open[identifier] = self._opened(identifier)
            return found

    def of_lease(self, lease: Lease) -> OpenStream:
        """Raises MetadataConflict when leases of one stream and of several are mixed."""
        if (lease.stream_name is not None) != self.is_multi:
            raise MetadataConflict(_MIXED[self.is_multi].format(lease.lease_key))
        return self.of(self.only if lease.stream_name is None else StreamIdentifier.parse(lease.stream_name))

    @property
    def only(self) -> StreamIdentifier:
        """The identifier of the stream where there is one only."""
        return StreamIdentifier(name=self._configured[0].name)

    def note_created(self, name: str, created_s: float) -> None:
        """Children learn when their stream was created; where there is one only, its leases do not say it."""
        with self._lock:
            self._created[name] = int(created_s)
            self._open = {}

    def _opened(self, identifier: StreamIdentifier) -> OpenStream:
        found = [
            stream
            for stream in self._configured
            if stream.name == identifier.name
            and (identifier.account is None or stream.account in (None, identifier.account))
            and stream.epoch in (None, identifier.epoch)
        ]
        # Of two with this name, that which names the account as well.
        given = max(found, key=lambda s: s.account is not None, default=StreamSettings(name=identifier.name))
        stream = msgspec.structs.replace(
            given,
            account=identifier.account or given.account,
            epoch=identifier.epoch or given.epoch or self._created.get(identifier.name),
        )
        settings = self._settings.of_stream(stream)
        access = self._open_stream(stream, settings)
        return OpenStream(identifier=identifier, access=access, settings=settings, stream_settings=stream)


_MIXED = {
    True: "the lease table holds leases of a single-stream application, {} for one: those of several streams need a "
    "table of their own, which `kcl-host migrate-leases` makes from this one",
    False: "the lease table holds leases of several streams, {} for one: give the application another name, or "
    "name its streams by streamNames or streamArns",
}
