"""One shard consumer on one thread: table, stream, child and time are faked, all the rest is real."""

from __future__ import annotations

import base64
import logging
import random
from collections.abc import Callable
from typing import Any

import msgspec

from kcl_host.config.settings import (
    ChildSettings,
    RetrievalSettings,
    ServiceSettings,
    Settings,
    StreamSettings,
    TableSettings,
)
from kcl_host.coordination.departure import Departure
from kcl_host.coordination.held_leases import HeldLease, HeldLeases
from kcl_host.coordination.lease_cleanup import LeaseCleanup
from kcl_host.coordination.shard_end import ShardEnd
from kcl_host.instruments import ShardInstruments
from kcl_host.log import bind
from kcl_host.model.lease import Lease
from kcl_host.model.sequence import AT_TRIM_HORIZON, TRIM_HORIZON, InitialPosition
from kcl_host.multilang.dialogue import CheckpointRequested, Dialogue
from kcl_host.ports import DeadLetters
from kcl_host.retrieval.handoff import Handoff
from kcl_host.retrieval.polling import PollingSource
from kcl_host.runtime.child_session import ChildSession
from kcl_host.runtime.consumer_services import ConsumerServices
from kcl_host.runtime.shard_consumer import ShardConsumer
from kcl_host.runtime.threads import SystemThreads
from tests.fakes.child import ModelChild, Script, well_behaved
from tests.fakes.clock import FakeClock
from tests.fakes.lease_table import InMemoryLeaseTable
from tests.fakes.stream import InMemoryStream
from tests.fakes.worker_metrics_table import InMemoryWorkerMetricsTable
from tests.unit.coordination_rig import reporting

ME = "me"
SHARD = "shardId-000000000000"
_SERVICE = ServiceSettings(region="us-east-1")
SETTINGS = Settings(
    application_name="app",
    worker_id=ME,
    streams=(StreamSettings(name="orders"),),
    initial_position=InitialPosition(kind=TRIM_HORIZON),
    child=ChildSettings(command=("child",), failures_before_handover=3),
    kinesis=_SERVICE,
    dynamodb=_SERVICE,
    cloudwatch=_SERVICE,
    lease_table=TableSettings(name="app"),
    coordinator_table=TableSettings(name="app-CoordinatorState"),
    worker_metrics_table=TableSettings(name="app-WorkerMetricStats"),
    retrieval=RetrievalSettings(mode="POLLING", mode_reason="test"),
)


def with_child(**changes: Any) -> Settings:
    return msgspec.structs.replace(SETTINGS, child=msgspec.structs.replace(SETTINGS.child, **changes))


class _ByHand:
    """The source takes a turn whenever the rig does."""

    def __init__(self, run_once: Callable[[], float | None]) -> None:
        self.run_once = run_once
        self.stopped = False

    def poke(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True


class Rig:
    """The consumer of the first shard.

    `script` is that of the next child, `children` are those started so far, `calls` what all of them were told.
    """

    def __init__(
        self,
        lease: Lease | None = None,
        *,
        script: Script = well_behaved,
        settings: Settings = SETTINGS,
        shards: int = 1,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self.script = script
        self.clock = FakeClock()
        self.stream = InMemoryStream(self.clock, shard_count=shards)
        self.table = InMemoryLeaseTable(self.clock)
        self.metrics = InMemoryWorkerMetricsTable(self.clock)
        self.children: list[ModelChild] = []
        self.fatal: list[BaseException] = []
        self.shard_ends = 0
        self.source: _ByHand | None = None
        self.on_start: Callable[[], None] = lambda: None
        """Called before a child is started; what it raises is the start's failure."""
        self.held_leases = HeldLeases(
            self.table, ME, settings.lease, self.clock, lambda: "token", on_lost=lambda held, reason: None
        )
        rng = random.Random(0)
        self.cleanup = LeaseCleanup(lambda lease: self.stream, self.table, settings.shard_sync, self.clock)
        self._settings = settings
        lease = lease or Lease(lease_key=SHARD, checkpoint=AT_TRIM_HORIZON, lease_owner=ME, lease_counter=1)
        self.table.put(lease)
        held = self.held_leases.add(lease, self.clock.monotonic())
        assert held is not None
        self.held: HeldLease = held
        self.consumer = ShardConsumer(
            held,
            ConsumerServices(
                settings=settings,
                lease_table=self.table,
                held_leases=self.held_leases,
                shard_end=ShardEnd(self.table, _Never()),
                lease_cleanup=self.cleanup,
                clock=self.clock,
                rng=rng,
                new_source=self._new_source,
                start_session=self._start_session,
                on_fatal=lambda where, error: self.fatal.append(error),
                on_shard_end=self._on_shard_end,
                start_source=self._start_source,
                threads=SystemThreads(1),
                departure=Departure(self.table, self.metrics, ME, settings, self.clock, doubtful=frozenset),
                dead_letters=dead_letters,
                last_stderr=lambda lease_key: (f"last words of {self.child.pid}", "password=hunter2"),
            ),
        )

    # Wiring

    def _new_source(self, held: HeldLease, handoff: Handoff, instruments: ShardInstruments) -> PollingSource:
        settings = self._settings
        return PollingSource(
            self.stream, SHARD, handoff, settings.retrieval, settings.initial_position, self.clock, random.Random(0)
        )

    def _start_source(self, name: str, run_once: Callable[[], float | None]) -> _ByHand:
        self.source = _ByHand(run_once)
        return self.source

    def _start_session(self, held: HeldLease, answer: Callable[[CheckpointRequested], str | None]) -> ChildSession:
        self.on_start()
        child = ModelChild(100 + len(self.children), self.script)
        self.children.append(child)
        dialogue = Dialogue(extensions=self._settings.child.protocol_extensions)
        return ChildSession(child, dialogue, answer, None, bind(logging.getLogger("child")))

    def _on_shard_end(self, held: HeldLease) -> None:
        self.shard_ends += 1

    # What a test does

    def alive(self, worker_id: str, **fields: object) -> None:
        """The metric stats of another worker, fresh now."""
        self.metrics.rows[worker_id] = reporting(worker_id, self.clock, **fields)

    def put(self, *data: str) -> list[str]:
        """Records; their sequence numbers."""
        return [self.stream.put(text.encode(), shard_id=SHARD)[1] for text in data]

    def end_shard(self) -> tuple[str, ...]:
        """Splits the shard; its children's keys."""
        return self.stream.split(SHARD)

    def turn(self) -> float | None:
        """One turn of the source and one of the consumer, with the wait that follows it. Its pause, None at the end."""
        if self.source is not None and not self.source.stopped:
            self.source.run_once()
        pause_s = self.consumer.run_once()
        if pause_s is not None and pause_s > 0:
            if self.consumer.status().child_pid is not None:
                self.consumer.wait(pause_s)
            self.clock.advance(min(pause_s, 2.0))
        if self.held_leases.is_held(self.held):
            self.renew()
        return pause_s

    def renew(self) -> None:
        """What the renewal's thread does in its turn; `on_lost` is not wired to the consumer."""
        self.held_leases.renew(self.held, wait_s=1)

    def turn_until(self, condition: Callable[[], object], limit: int = 200) -> None:
        for _ in range(limit):
            if condition():
                return
            self.turn()
        raise AssertionError(f"never: {self.consumer!r}, {self.calls}")

    def deliver(self, *data: str) -> list[str]:
        """Records, delivered."""
        numbers = self.put(*data)
        before = self.delivered.count(data[-1])
        self.turn_until(lambda: self.delivered.count(data[-1]) > before)
        return numbers

    def finish(self) -> None:
        """Turns until the consumer is complete, and what its thread does then."""
        for _ in range(200):
            if self.turn() is None:
                self.consumer.run()
                return
        raise AssertionError(f"does not end: {self.consumer!r}, {self.calls}")

    # What came of it

    @property
    def child(self) -> ModelChild:
        return self.children[-1]

    @property
    def calls(self) -> list[list[str]]:
        return [child.names for child in self.children]

    @property
    def delivered(self) -> list[str]:
        return [text for child in self.children for text in delivered_to(child)]

    @property
    def row(self) -> Lease:
        return self.table.rows[SHARD]


class _Never:
    """Draws that never come up."""

    def random(self) -> float:
        return 0.999


def delivered_to(child: ModelChild) -> list[str]:
    batches = [message["records"] for message in child.actions if message["action"] == "processRecords"]
    return [base64.b64decode(record["data"]).decode() for batch in batches for record in batch]


def failing(at: str, how: str, otherwise: Script = well_behaved) -> Script:
    """A child that fails at one action: `exits`, `hangs` or `misbehaves` (answers another one)."""

    def script(child: ModelChild, message: dict[str, Any]) -> None:
        if message["action"] != at:
            otherwise(child, message)
        elif how == "exits":
            child.exit()
        elif how == "misbehaves":
            child.answer("initialize" if at != "initialize" else "processRecords")

    return script
