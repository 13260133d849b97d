"""One worker of the application: everything is made and wired here, started, watched and stopped.

The main thread waits in `run` for one thing at a time: a request to stop, a failure, a lease found, a lease lost.
Those arrive on one queue, put there by signal handlers and by the threads of the worker; nothing else is shared.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import msgspec

from kcl_host import __version__
from kcl_host.config.settings import Settings
from kcl_host.coordination.auditor import Auditor
from kcl_host.coordination.departure import Departure
from kcl_host.coordination.discovery import Discovery
from kcl_host.coordination.election import Election
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.leader import Assigner
from kcl_host.coordination.lease_cleanup import LeaseCleanup
from kcl_host.coordination.metadata import Metadata, NotYet
from kcl_host.coordination.metadata_tables import CoordinatorItems, Format, WorkerMetrics
from kcl_host.coordination.renewal import Renewal
from kcl_host.coordination.shard_end import ShardEnd
from kcl_host.coordination.stream_sync import StreamSync
from kcl_host.coordination.streams import Streams
from kcl_host.coordination.table_migration import TableMigration
from kcl_host.coordination.worker_report import WorkerReport
from kcl_host.decisions.consumer_state import ShutdownReason
from kcl_host.decisions.start_pacing import start_pause_s
from kcl_host.errors import (
    DrainDeadlineExceeded,
    FleetRolledBack,
    KclHostError,
    MetadataConflict,
    RetryLater,
    Throttled,
    TwinWorker,
)
from kcl_host.instruments import ShardInstruments
from kcl_host.log import CHILD, bind
from kcl_host.model.lease import Lease
from kcl_host.multilang.dialogue import CheckpointRequested, Dialogue
from kcl_host.observe.measured import MeasuredStream
from kcl_host.ports import Mailbox
from kcl_host.retrieval.fanout import FanoutSource
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.polling import PollingSource
from kcl_host.runtime.child_session import ChildSession
from kcl_host.runtime.consumer_services import ConsumerServices, RecordSource
from kcl_host.runtime.consumer_status import ConsumerStatus
from kcl_host.runtime.outside import Outside
from kcl_host.runtime.shard_consumers import Event, ShardConsumers, StoppedAtOnce
from kcl_host.runtime.state_dump import write_state
from kcl_host.runtime.threads import Periodic

_log = logging.getLogger(__name__)

LAST_TURN_S: Final = 1.0
"""So long the stop waits for a turn of the leader, or of discovery, that is under way."""
STREAM_READY: Final = ("ACTIVE", "UPDATING")
SLOW_TASK_CHECK_S: Final = 1.0
"""Java looks as often, and warns each time."""
FLUSH_S: Final = 3.0
"""So long the stop waits for the last metrics."""
JOIN_S: Final = 5.0
"""So long the process waits at its end for requests that are under way, all together."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The worker as people see it, at one moment."""

    application_name: str
    stream_names: tuple[str, ...]
    worker_id: str
    phase: Literal["STARTING", "RUNNING", "STOPPING", "STOPPED"]
    is_leader: bool
    consumers: tuple[ConsumerStatus, ...]
    leases_known: bool = False
    """Whether it has looked at least once which leases are its own."""
    waits_for: str = ""
    """What the start waits for, or last failed with."""


class Supervisor:
    """`run` blocks until the worker has stopped; `request_stop` and `stop_now` may be called by signal handlers."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self._settings = settings
        self._outside = outside
        self._clock = outside.clock
        self._events: Mailbox[Event] = outside.threads.mailbox()
        self._phase: Literal["STARTING", "RUNNING", "STOPPING", "STOPPED"] = "STARTING"
        self._leads = self._look_at_streams = False
        self._lead_again_s = 0.0
        self._stream_arn = self._start_waits_for = ""
        self._leases_known = False
        self._periodics: dict[str, Periodic] = {}
        self._wire()

    # What others may call

    def request_stop(self) -> None:
        self._events.put(Event("stop"))

    def stop_now(self) -> None:
        self._events.put(Event("stop_now"))

    def reread(self) -> None:
        """The configuration has changed: what can be taken over while the worker runs is."""
        self._events.put(Event("reread"))

    def write_state(self) -> None:
        """Into the log, on a thread of its own: it may take longer than a signal should."""
        self._outside.threads.start("state", self._write_state, daemon=True)

    def _write_state(self) -> None:
        status = self.status()
        parts = (self._election, self._held_leases, self._consumers, self._streams, self._auditor, self._cleanup)
        write_state(
            {
                "phase": status.phase,
                "waits_for": status.waits_for or None,
                "is_leader": status.is_leader,
                "version": __version__,
                "application": status.application_name,
                "parts": [repr(part) for part in parts],
                "periodic": sorted(self._periodics),
            },
            self._held_leases.all(),
            status.consumers,
            self._consumers.queues(),
            self._clock.monotonic(),
        )

    @property
    def is_leader(self) -> bool:
        return self._election.is_leader()

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            application_name=self._settings.application_name,
            stream_names=tuple(stream.name for stream in self._streams.configured),
            worker_id=self._settings.worker_id,
            phase=self._phase,
            is_leader=self.is_leader,
            consumers=self._consumers.statuses(),
            leases_known=self._leases_known,
            waits_for=self._start_waits_for if self._phase == "STARTING" else "",
        )

    def run(self) -> None:
        """Raises KclHostError with the reason when the worker could not start or had to stop."""
        failure: BaseException | None = None
        join_s = JOIN_S
        try:
            try:
                if self._start():
                    self._phase = "RUNNING"
                    self._outside.metrics.instruments.started(success=True)
                    self._outside.metrics.instruments.first_leases_read(success=True)
                    self._outside.service_manager.ready("reads " + ", ".join(s.name for s in self._streams.configured))
                    failure = self._watch()
            except Exception as error:
                failure = error  # What was started must be stopped in order all the same.
                if self._phase == "STARTING":
                    self._outside.metrics.instruments.started(success=False)
            self._phase = "STOPPING"
            if not isinstance(failure, FleetRolledBack):  # Then the process goes on, with a new worker.
                self._outside.service_manager.stopping("stops" if failure is None else f"stops: {failure}")
            exceeded = self._drain(
                give_away=not isinstance(failure, TwinWorker), name_owners=not isinstance(failure, FleetRolledBack)
            )
        except StoppedAtOnce:
            join_s = 0.0
            raise
        finally:
            self._stop_threads(join_s)
            self._phase = "STOPPED"
        if failure is not None:
            raise failure
        if exceeded is not None:
            raise exceeded

    # Wiring

    def _wire(self) -> None:
        settings, outside, worker_id = self._settings, self._outside, self._settings.worker_id
        clock, rng, threads, instruments = outside.clock, outside.rng, outside.threads, outside.metrics.instruments
        self._lease_table = outside.lease_table
        self._streams = Streams(settings, outside.open_stream, threads.lock)
        tables, format = outside.metadata_tables, Format()
        coordinator_table, metrics_table = CoordinatorItems(tables, format), WorkerMetrics(tables, format)
        self._metadata = Metadata(self._lease_table, tables, coordinator_table, format, settings, clock, rng)
        self._report = WorkerReport(
            metrics_table, worker_id, settings.worker_metrics, clock, outside.drain_load, threads.lock, instruments
        )
        self._election = Election(
            coordinator_table,
            worker_id,
            settings.lock,
            clock,
            outside.new_id,
            threads.lock,
            on_change=self._wake_leader,
            instruments=instruments,
        )
        self._table_migration = TableMigration(
            tables.migration,
            metrics_table,
            self._election,
            format,
            worker_id,
            settings,
            clock,
            threads.lock,
            instruments,
        )
        self._held_leases = HeldLeases(
            self._lease_table,
            worker_id,
            settings.lease,
            clock,
            outside.new_id,
            on_lost=lambda held, _: self._events.put(Event("lost", held)),
            new_lock=threads.lock,
        )
        self._assigner = Assigner(
            self._election,
            self._lease_table,
            metrics_table,
            worker_id,
            settings.assignment,
            settings.lease,
            settings.worker_metrics,
            clock,
            rng,
            on_assigned_to_self=self._assigned_to_self,
            on_listing=self._table_migration.note,
            for_each=threads.for_each,
            instruments=instruments,
        )
        self._departure = Departure(
            self._lease_table, metrics_table, worker_id, settings, clock, doubtful=self._assigner.doubtful_workers
        )
        self._discovery = Discovery(
            self._lease_table,
            self._held_leases,
            worker_id,
            settings.lease,
            settings.assignment,
            clock,
            is_alone=lambda: self._assigner.active_workers == {worker_id},
            on_found=lambda held: self._events.put(Event("found", held)),
            instruments=instruments,
        )
        self._renewal = Renewal(
            self._held_leases,
            settings.lease,
            clock,
            for_each=threads.for_each,
            on_handover=lambda held: self._events.put(Event("handover", held)),
            instruments=instruments,
        )
        self._stream_sync = StreamSync(
            self._streams,
            self._lease_table,
            self._election,
            settings,
            clock,
            on_created=self._wake_leader,
            sleep=threads.event().wait,
            new_lock=threads.lock,
            instruments=instruments,
        )
        self._cleanup = LeaseCleanup(
            lambda lease: self._streams.of_lease(lease).stream, self._lease_table, settings.shard_sync, clock
        )
        self._auditor = Auditor(
            self._stream_sync,
            self._lease_table,
            settings.shard_sync,
            clock,
            is_leader=self._election.is_leader,
            instruments=instruments,
        )
        services = ConsumerServices(
            settings=settings,
            lease_table=self._lease_table,
            held_leases=self._held_leases,
            departure=self._departure,
            shard_end=ShardEnd(self._lease_table, rng, instruments),
            lease_cleanup=self._cleanup,
            clock=clock,
            rng=rng,
            threads=threads,
            new_source=self._new_source,
            start_source=self._start_source,
            start_session=self._start_session,
            on_fatal=self._fatal,
            on_shard_end=lambda held: self._events.put(Event("shard_ended", held)),
            instruments=instruments,
            dead_letters=outside.dead_letters,
            last_stderr=outside.last_stderr,
        )
        self._consumers = ShardConsumers(
            settings,
            services,
            self._events,
            # Others take a worker for dead that lost everything, until it reports again.
            on_lost_all=lambda: self._periodics["report"].poke(),
            on_shard_end=lambda: self._periodics["lead"].poke(),
        )

    def _new_source(self, held: HeldLease, handoff: Handoff, instruments: ShardInstruments) -> RecordSource:
        stream = self._streams.of_lease(held.lease)
        new: Callable[..., RecordSource] = (
            partial(PollingSource, MeasuredStream(stream.stream, instruments))
            if stream.access.subscriber is None
            else partial(FanoutSource, stream.access.subscriber)
        )
        return new(
            held.lease.shard_id,
            handoff,
            stream.settings.retrieval,
            stream.settings.initial_position,
            self._clock,
            self._outside.rng,
            log_extra=stream.log_facts,
            list_shards=stream.stream.list_shards,
            # With this key Java does not look up the shards, and filters nothing.
            hash_key_range=None
            if self._settings.shard_sync.skip_at_start_if_leases_exist
            else held.lease.hash_key_range,
        )

    def _start_source(self, name: str, run_once: Callable[[], float | None]) -> Periodic:
        """A thread of its own, for which the process does not wait: a read may take long and changes nothing."""
        return Periodic(name, run_once, threads=self._outside.threads, on_fatal=self._fatal, daemon=True).start()

    def _start_session(self, held: HeldLease, checkpoint: Callable[[CheckpointRequested], str | None]) -> ChildSession:
        settings, shard_id = self._settings.child, held.lease.shard_id
        stream = self._streams.of_lease(held.lease)
        child = self._outside.start_child(shard_id, stream)
        limits = settings.max_line_bytes, settings.protocol_extensions
        transcripts = self._outside.transcripts
        dialogue = transcripts.new_dialogue(held.lease_key, child.pid, *limits) if transcripts else Dialogue(*limits)
        log = bind(logging.getLogger(CHILD), shard=shard_id, **stream.log_facts)
        return ChildSession(child, dialogue, checkpoint, settings.response_timeout_s, log)

    def _fatal(self, where: str, error: BaseException) -> None:
        self._events.put(Event("fatal", where=where, error=error))

    def _wake_leader(self) -> None:
        """The lock was taken, lost, or stands still: the leader's turn comes now. There is none in the first steps."""
        if "lead" in self._periodics:
            self._periodics["lead"].poke()

    def _assigned_to_self(self, lease: Lease, read_at_s: float) -> None:
        self._discovery.take_up(lease, read_at_s)

    # Start

    def _start(self) -> bool:
        """Everything up to running threads; False when a stop was requested meanwhile."""
        _log.info(
            "worker starts",
            extra={
                "action": "worker_starts",
                "version": __version__,
                "application": self._settings.application_name,
                "reads_by": self._settings.retrieval.mode,
                "because": self._settings.retrieval.mode_reason,
            },
        )
        self._say_how_it_reads()
        if self._outside.service_manager.alive_interval_s is not None:
            self._periodic("alive", self._show_that_we_live)
        for step in (
            self._find_streams,
            self._find_consumer,
            self._prepare_metadata,
            self._report.run_once,
            self._election.run_once,
        ):
            if not self._retrying(step):
                return False
        # These two have had their first turn. The lock and the first leases must not wait for a long first shard sync.
        report_s, heartbeat_s = self._settings.worker_metrics.report_interval_s, self._settings.lock.heartbeat_s
        self._periodic("report", self._report.run_once, first_in_s=report_s, fatal=(TwinWorker,))
        self._periodic("election", self._election.run_once, first_in_s=heartbeat_s)
        self._periodic("renewal", self._renewal.run_once)
        if (publish := self._outside.metrics.publish) is not None:
            self._periodic("metrics", publish, first_in_s=self._settings.metrics.buffer_time_s, daemon=True)
        if not self._retrying(self._lead):
            return False
        self._periodic("lead", self._lead, first_in_s=self._lead_again_s, fatal=(MetadataConflict,))
        if self._streams.is_multi:
            self._periodic("streams", self._follow_streams)
        self._periodic("discovery", self._discover)
        self._periodic("audit", self._auditor.run_once)
        self._periodic("cleanup", self._cleanup.run_once)
        self._periodic("client-version", self._metadata.run_once, fatal=(MetadataConflict, FleetRolledBack))
        self._periodic("table-migration", self._table_migration.run_once)
        # Workers of one host must not all measure at the same moment.
        first_s = self._settings.worker_metrics.capture_interval_s * self._outside.rng.random()
        self._periodic("load", self._outside.sample_load, first_in_s=first_s)
        if self._settings.lifecycle.log_warning_for_task_after_s is not None:
            self._periodic("slow-tasks", self._warn_of_slow_tasks)
        return True

    def _discover(self) -> float:
        pause_s = self._discovery.run_once()
        self._leases_known = True
        return pause_s

    def _retrying(self, step: Callable[[], object]) -> bool:
        """Runs a step of the start until it succeeds; False when a stop was requested.

        Raises the last RetryLater. Waiting for others, and being refused for the rate, are no failures: how long that
        takes is not up to this host.
        """
        coordinator = self._settings.coordinator
        failed = waited = throttled = 0
        waits_for = ""
        pause = partial(start_pause_s, backoff_s=coordinator.initialization_backoff_s, rng=self._outside.rng)
        while True:
            try:
                step()
                return True
            except NotYet as error:
                waited += 1
                pause_s = pause(waited, throttled=False) if error.pause_s is None else error.pause_s
                if str(error) != waits_for:
                    waits_for = self._start_waits_for = str(error)
                    _log.info("start waits", extra={"action": "start_waits", "reason": waits_for})
            except Throttled as error:
                throttled += 1
                self._start_waits_for = str(error)
                pause_s = pause(throttled, throttled=True)
                extra = {"action": "start_throttled", "times": throttled, "next_try_s": round(pause_s, 1)}
                _log.info("start is throttled, will be repeated", extra={**extra, "error": str(error)})
            except RetryLater as error:
                failed += 1
                if failed == coordinator.initialization_attempts:
                    raise
                pause_s = pause(failed, throttled=False)
                self._start_waits_for = str(error)
                _log.warning(
                    "start failed, will be repeated",
                    extra={
                        "action": "start_failed",
                        "attempt": failed,
                        "of": coordinator.initialization_attempts,
                        "error": str(error),
                    },
                )
            if self._stop_within(pause_s):
                return False

    def _stop_within(self, pause_s: float) -> bool:
        """True when a stop is requested within the pause; what else arrives is kept for later."""
        until_s = self._clock.monotonic() + pause_s
        kept: list[Event] = []
        try:
            while (remaining_s := until_s - self._clock.monotonic()) > 0:
                event = self._events.get(timeout=remaining_s)
                if event.kind in ("stop", "stop_now"):
                    return True
                kept.append(event)
        except queue.Empty:
            pass
        for event in kept:
            self._events.put(event)
        return False

    def _find_streams(self) -> None:
        """One that is read alone must be there. Of several the leader says which are missing; the others are read."""
        if self._streams.is_multi:
            return
        summary = self._streams.of(self._streams.only).stream.describe()
        if summary.status not in STREAM_READY:
            raise NotYet(f"stream {summary.name} is {summary.status}, waiting until it is ACTIVE")
        self._stream_arn = summary.arn
        self._streams.note_created(summary.name, summary.creation_s)

    def _prepare_metadata(self) -> None:
        with self._outside.metrics.instruments.table_status_found():
            self._metadata.prepare()

    def _say_how_it_reads(self) -> None:
        by_fan_out = [
            stream for stream in self._streams.configured if self._settings.of_stream(stream).retrieval.mode == "FANOUT"
        ]
        if by_fan_out:
            _log.info(
                "shards are read by enhanced fan-out, which AWS bills per consumer, shard and hour, and per GB; "
                "retrievalMode = POLLING costs nothing extra",
                extra={
                    "action": "fan_out_chosen",
                    "streams": [stream.name for stream in by_fan_out],
                    "because": self._settings.of_stream(by_fan_out[0]).retrieval.mode_reason,
                },
            )

    def _find_consumer(self) -> None:
        """Before any lease is taken up: a registration may take a while, and no shard can be read without it.

        Those of several streams are found with their first shards.
        """
        if not self._streams.is_multi:
            subscriber = self._streams.of(self._streams.only).access.subscriber
            if subscriber is not None:
                subscriber.prepare(self._stream_arn)

    def _lead(self) -> float:
        """A leader's turn: a shard sync when it has just come to lead, then the assignment pass."""
        came_to_lead = False
        if not self._election.is_leader():
            self._leads = False
        elif not self._leads:
            # The lock that we hold may be of a table that the fleet has left: seen before anything is done with it.
            self._table_migration.look()
            if self._election.is_leader():
                self._stream_sync.begin()
                self._leads = came_to_lead = True
        self._lead_again_s = self._assigner.run_once()
        for name in ("table-migration", "streams") if came_to_lead else ():
            if name in self._periodics:
                self._periodics[name].poke()  # It waits as a follower would.
        return self._lead_again_s

    def _reread(self) -> None:
        if "streams" in self._periodics:
            self._look_at_streams = True
            self._periodics["streams"].poke()
        else:
            self._outside.read_streams()  # It says what needs a restart.

    def _follow_streams(self) -> float | None:
        """The streams that are configured now; the leader does what has to be done for them."""
        at_once, self._look_at_streams = self._look_at_streams, False
        streams = self._outside.read_streams()
        if streams is not None and self._streams.configure(streams):
            at_once = True
        return self._stream_sync.run_once(at_once=at_once)

    def _show_that_we_live(self) -> float | None:
        """While records are read by way of the main thread, which is what the watchdog asks about.

        A start and a stop have their own time limits.
        """
        if self._phase == "RUNNING":
            self._events.put(Event("alive"))
        else:
            self._outside.service_manager.alive()
        return self._outside.service_manager.alive_interval_s

    def _warn_of_slow_tasks(self) -> float:
        self._consumers.warn_if_slow()
        return SLOW_TASK_CHECK_S

    def _periodic(
        self,
        name: str,
        run_once: Callable[[], float | None],
        *,
        first_in_s: float = 0.0,
        fatal: tuple[type[Exception], ...] = (),
        daemon: bool = False,
    ) -> None:
        self._periodics[name] = Periodic(
            name,
            run_once,
            threads=self._outside.threads,
            on_fatal=self._fatal,
            first_in_s=first_in_s,
            fatal=fatal,
            daemon=daemon,
        ).start()

    # Run

    def _watch(self) -> BaseException | None:
        """Serves events until the worker must stop; the failure that made it stop, None after a request."""
        while True:
            event = self._events.get()
            if event.kind in ("stop", "stop_now"):
                _log.info("stop requested", extra={"action": "stop_requested"})
                return None
            if event.kind == "fatal":
                _log.error(
                    "the worker must stop",
                    extra={"action": "fatal", "where": event.where, "error": str(event.error)},
                    exc_info=None if isinstance(event.error, KclHostError) else event.error,
                )
                return event.error
            if event.kind == "reread":
                self._reread()
            elif event.kind == "alive":
                self._outside.service_manager.alive()
            else:
                try:
                    self._consumers.serve(event)
                except MetadataConflict as error:
                    return error

    # Stop (DESIGN.md 4.2)

    def _drain(self, *, give_away: bool, name_owners: bool) -> DrainDeadlineExceeded | None:
        """Ends every consumer within shutdownGraceMillis, or soon after; what could not be done in time, or None.

        Without `name_owners` the leases are left without owner: workers of KCL 2.x take what they find so.
        """
        deadline_s = self._clock.monotonic() + self._settings.coordinator.shutdown_grace_s
        for name in (
            "lead",
            "streams",
            "election",
            "discovery",
            "audit",
            "cleanup",
            "client-version",
            "table-migration",
            "report",
        ):
            if name in self._periodics:
                self._periodics[name].stop()
        _attempt("announce that this worker leaves", self._report.announce_leaving)
        _attempt("release the leader lock", self._election.release)
        for name in ("lead", "discovery"):
            # A turn under way may still take up a lease; what it took must be known before we give everything away.
            if name in self._periodics:
                self._periodics[name].join(LAST_TURN_S)
        reason = ShutdownReason.REQUESTED if give_away else ShutdownReason.LEASE_LOST
        if give_away and name_owners and self._consumers.are_running:
            _attempt("name the next owners of the leases", self._name_next_owners)
        self._consumers.stop(reason)
        exceeded = None if self._consumers.await_end(deadline_s) else self._consumers.finish_now()
        if give_away:
            self._release_the_rest()
            _attempt("pass on what arrived meanwhile", partial(self._pass_on_late_arrivals, name_owners))
            _attempt("expire the metrics of this worker", self._report.expire)
        return exceeded

    def _name_next_owners(self) -> None:
        """Initiates the handover of each held lease to a live worker; leases without one are evicted later."""
        self._outside.threads.for_each(
            lambda move: self._held_leases.initiate_handover(*move), self._departure.targets(self._held_leases.all())
        )

    def _release_the_rest(self) -> None:
        for held in self._held_leases.all():
            _attempt("release a lease", partial(self._held_leases.give_away, held))

    def _pass_on_late_arrivals(self, name_owners: bool) -> None:
        """What was given to us while we stopped. Leases still pending to us are their old owners' to redirect."""
        arrived = [lease for lease in self._discovery.leases_named_ours() if not lease.is_handover_pending]
        if arrived:
            to = self._departure.next_owners(arrived) if name_owners else {}
            for lease in arrived:
                write = partial(self._lease_table.assign, to=to[lease.lease_key]) if lease.lease_key in to else None
                _attempt("pass on a late arrival", partial(write or self._lease_table.evict, lease))

    def _flush_metrics(self) -> None:
        """On a thread that nobody waits for longer: a request under way may take its time."""

        def flush() -> None:
            self._outside.metrics.flush(FLUSH_S)

        if self._settings.metrics.level != "NONE":
            self._outside.threads.start("last-metrics", flush, daemon=True).join(FLUSH_S)

    def _stop_threads(self, join_s: float) -> None:
        self._consumers.stop(
            ShutdownReason.LEASE_LOST
        )  # Whatever happened before: no thread may keep the process alive.
        for periodic in self._periodics.values():
            periodic.stop()
        deadline_s = self._clock.monotonic() + join_s
        for periodic in self._periodics.values():
            periodic.join(max(0.0, deadline_s - self._clock.monotonic()))
        self._outside.close_streams()
        if join_s:
            self._flush_metrics()
        self._outside.threads.close()


def _attempt(what: str, act: Callable[[], object]) -> None:
    """One act of the stop: a failure is said, and the stop goes on."""
    try:
        act()
    except KclHostError as error:
        _log.warning("stopping: could not %s", what, extra={"action": "stop_step_failed", "error": str(error)})
