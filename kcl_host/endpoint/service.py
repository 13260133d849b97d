"""The endpoint of a host: its server and what it shows, from the start of the process to its end."""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

from kcl_host.config.settings import Settings
from kcl_host.coordination.fleet_snapshot import FleetReader
from kcl_host.coordination.streams import Streams
from kcl_host.decisions.fleet_report import FleetView
from kcl_host.endpoint.answers import Answers, Host
from kcl_host.endpoint.fleet import FleetWatch
from kcl_host.endpoint.http import HttpServer
from kcl_host.endpoint.recent import Recent, TroubleHandler
from kcl_host.endpoint.report import notes_of
from kcl_host.observe.prometheus import PrometheusText
from kcl_host.ports import Clock, Item, Thread
from kcl_host.runtime.outside import Outside
from kcl_host.runtime.supervisor import Supervisor, WorkerStatus
from kcl_host.runtime.threads import SystemThreads, start_thread

_log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""Between attempts to get the port, which the host before us may still have while it stops."""
JOIN_S: Final = 1.0


class _InTurn(SystemThreads):
    """The requests of a look, one after the other: none on the threads that renew leases, and no pool of its own, for
    whose last request the process would wait at its end."""

    def __init__(self) -> None:
        super().__init__(1)

    def for_each(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        for item in items:
            act(item)


class Endpoint:
    """Shows one worker after the other, as the process makes them.

    A port that is not to be had never keeps a worker from its records: it is said, and tried again.
    """

    def __init__(self, settings: Settings, clock: Clock, pid: int, process: int | None = None) -> None:
        """`process`: which of several worker processes this is; its port is that many above the first."""
        self.recent = Recent(clock)
        self._settings = settings
        self._clock = clock
        self._address, self._port = settings.endpoint.address, settings.endpoint.port + (process or 0)
        self._worker: Supervisor | None = None
        self._metrics: PrometheusText | None = None
        self._fleet: FleetWatch | None = None
        self._handler = TroubleHandler(self.recent)
        self._server: HttpServer | None = None
        self._thread: Thread | None = None
        self._stopping = threading.Event()
        host = Host(
            status=self._status,
            metrics=lambda: None if self._metrics is None else self._metrics.text(),
            fleet=self._latest_fleet,
            recent=self.recent,
            pid=pid,
            process=process,
            only_local=is_loopback(self._address),
        )
        self._answers = Answers(host, clock)

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"

    @property
    def url(self) -> str:
        return f"http://{f'[{self._address}]' if ':' in self._address else self._address}:{self._port}/"

    def __enter__(self) -> Endpoint:
        logging.getLogger("kcl_host").addHandler(self._handler)
        self._thread = start_thread("endpoint", self._serve, daemon=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The port is free afterwards, unless an answer is just being made for longer than a second."""
        logging.getLogger("kcl_host").removeHandler(self._handler)
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        if self._fleet is not None:
            self._fleet.stop()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def show(self, worker: Supervisor, outside: Outside) -> None:
        """From now on this worker. The look at the fleet goes by its tables, on a thread of its own."""
        if self._fleet is not None:
            self._fleet.stop()
        streams = Streams(self._settings, outside.open_stream)
        reader = FleetReader(outside.lease_table, outside.metadata_tables, streams, self._clock, _InTurn())
        self._fleet = FleetWatch(reader, self._settings, self._clock, lambda: notes_of(self._status()))
        registry = outside.metrics.registry
        self._metrics = None if registry is None else PrometheusText(registry, self._clock)
        self._worker = worker
        start_thread("fleet-looks", self._fleet.run, daemon=True)

    def _status(self) -> WorkerStatus | None:
        return None if self._worker is None else self._worker.status()

    def _latest_fleet(self) -> tuple[FleetView | None, str | None]:
        return (None, None) if self._fleet is None else self._fleet.latest()

    def _serve(self) -> None:
        server = self._server = self._listen()
        if server is not None and not self._stopping.is_set():
            _log.info("the endpoint listens", extra={"action": "endpoint_started", "url": self.url})
            if not is_loopback(self._address):
                _log.warning(
                    "the endpoint is open to whoever reaches this address, without a password",
                    extra={"action": "endpoint_exposed", "url": self.url},
                )
            server.run()

    def _listen(self) -> HttpServer | None:
        """None when the stop came first."""
        said = False
        while not self._stopping.is_set():
            try:
                return HttpServer(self._answers, self._address, self._port, self._clock)
            except OSError as error:
                extra = {"action": "endpoint_failed", "url": self.url, "error": str(error)}
                _log.log(
                    logging.DEBUG if said else logging.ERROR,
                    "the endpoint cannot listen, it is tried again and again; records are read all the same",
                    extra=extra,
                )
                said = True
                self._stopping.wait(RETRY_S)
        return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
