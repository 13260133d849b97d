"""A host as its endpoint sees it: a worker with shards of its own in a fleet of others, at work without any."""

from __future__ import annotations

import logging
import math

from kcl_host.decisions.fleet_looks import LeaseState
from kcl_host.decisions.fleet_report import (
    Finding,
    FleetView,
    LeaderView,
    LeaseView,
    MetadataView,
    MetricView,
    MoveView,
    Summary,
    WorkerView,
)
from kcl_host.endpoint.answers import Host
from kcl_host.endpoint.recent import Recent, Trouble
from kcl_host.model.sequence import ExtendedSequenceNumber
from kcl_host.ports import Clock
from kcl_host.runtime.consumer_status import ConsumerStatus
from kcl_host.runtime.supervisor import WorkerStatus


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


class RunningHost:
    """Shard n belongs to worker n modulo `workers`; this one is the first of them. Numbers grow with the clock."""

    def __init__(
        self,
        clock: Clock,
        *,
        shards: int = 4,
        workers: int = 2,
        worker_id: str = "orders-{}",
        application: str = "orders",
    ) -> None:
        self._clock = clock
        self._began_s = clock.monotonic()
        self._application = application
        self._names = [worker_id.replace("{}", "abcdefghijklmnopqrstuvwxyz"[n % 26] + str(n)) for n in range(workers)]
        self.shards = list(range(shards))
        self.owner = {n: self._names[n % workers] for n in self.shards}
        self.next_owner: dict[int, str] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        self.ended: set[int] = set()
        self.child: dict[int, str] = {}
        self.lag_ms: dict[int, int] = {}
        self.phase = "RUNNING"
        self.leases_known = True
        self.waits_for = ""
        self.findings: tuple[Finding, ...] = ()
        self.moves: list[tuple[float, int, str | None, str | None]] = []
        self.fleet_error: str | None = None
        self.has_fleet = True
        self.statuses_made = 0
        self.recent = Recent(clock)
        self._view: FleetView | None = None

    @property
    def name(self) -> str:
        return self._names[0]

    def host(self, **fields: object) -> Host:
        values = {
            "status": self.status,
            "metrics": lambda: b"kcl_host_up 1\n",
            "fleet": lambda: (self.fleet(), self.fleet_error),
            "recent": self.recent,
            "pid": 4711,
            **fields,
        }
        return Host(**values)  # type: ignore[arg-type]

    def move(self, shard: int, to: str | None) -> None:
        before = self.owner.get(shard)
        self.moves.insert(0, (self._clock.monotonic(), shard, before, to))
        if to is None:
            del self.owner[shard]
        else:
            self.owner[shard] = to
        self._view = None

    def split(self, shard: int) -> tuple[int, int]:
        """The shard ends and two children begin, with the owners whose turn it is."""
        first = max(self.shards) + 1
        self.ended.add(shard)
        for child in (first, first + 1):
            self.shards.append(child)
            self.parents[child] = (shard,)
            self.owner[child] = self._names[child % len(self._names)]
        self._view = None
        return first, first + 1

    def says(self, shard: int, text: str, level: int = logging.INFO) -> None:
        self.recent.note_line(shard_id(shard), 1000 + shard, level, text)

    def fails(self, message: str, action: str = "child_failed", **facts: str) -> None:
        self.recent.note_trouble(
            Trouble(at_s=self._clock.wall(), level="ERROR", action=action, message=message, facts=facts)
        )

    def status(self) -> WorkerStatus:
        self.statuses_made += 1
        return WorkerStatus(
            application_name=self._application,
            stream_names=(self._application,),
            worker_id=self.name,
            phase=self.phase,  # type: ignore[arg-type]
            is_leader=True,
            consumers=tuple(self._consumer(n) for n in self.shards if self.owner.get(n) == self.name),
            leases_known=self.leases_known,
            waits_for=self.waits_for,
        )

    def _kbps(self, shard: int) -> float:
        age_s = self._clock.monotonic() - self._began_s
        return _base_kbps(shard) * (1 + math.sin(age_s / 9 + shard) * 0.35 + math.sin(age_s / 2.3 + shard * 3) * 0.15)

    def _payload_bytes(self, shard: int) -> int:
        """What `_kbps` came to since the beginning."""
        age_s = self._clock.monotonic() - self._began_s
        waves = 3.15 * math.cos(age_s / 9 + shard) + 0.345 * math.cos(age_s / 2.3 + shard * 3)
        return int(_base_kbps(shard) * 1024 * (age_s - waves + 3.5))

    def _consumer(self, shard: int) -> ConsumerStatus:
        now_s = self._clock.monotonic()
        ended = shard in self.ended
        payload_bytes = self._payload_bytes(shard)
        return ConsumerStatus(
            lease_key=shard_id(shard),
            shard_id=shard_id(shard),
            parent_shard_ids=tuple(map(shard_id, self.parents.get(shard, ()))),
            state="SHUTDOWN_COMPLETE" if ended else "PROCESSING",
            child="" if ended else self.child.get(shard, "RUNNING"),
            child_pid=None if ended or shard in self.child else 1000 + shard,
            child_failures=4 if shard in self.child else 0,
            records=payload_bytes // 900,
            payload_bytes=payload_bytes,
            millis_behind_latest=self._lag(shard),
            checkpoint=ExtendedSequenceNumber("SHARD_END" if ended else "49650000000000000000000000000000000000"),
            checkpoint_at_s=now_s - 1.5,
            last_error="the child ended with status 1" if shard in self.child else "",
        )

    def _lag(self, shard: int) -> int:
        age_s = self._clock.monotonic() - self._began_s
        return self.lag_ms.get(shard, max(0, int(900 * math.sin(age_s / 5 + shard * 1.7))))

    def fleet(self) -> FleetView | None:
        """A view made anew every two seconds, as a look at the tables would be."""
        now_s = self._clock.monotonic()
        if not self.has_fleet:
            return None
        if self._view is None or self._clock.wall() - self._view.taken_s >= 2:
            leases = tuple(self._lease(n) for n in self.shards)
            self._view = FleetView(
                application=self._application,
                taken_s=self._clock.wall(),
                looks=10,
                observed_s=60.0,
                metadata=MetadataView(
                    form="three_tables", lease_table="ACTIVE", index="ACTIVE", client_version="CLIENT_VERSION_3X",
                    table_migration=None, migration_note=None,
                ),
                leader=LeaderView(
                    worker_id=self.name, place="coordinator_table", lease_duration_ms=10000, is_released=False,
                    still_s=0.0,
                ),
                summary=Summary(
                    leases=len(leases), by_state={}, throughput_kbps=0.0, writes_per_s=None, lag_known=0,
                    worst_lag_ms=None, worst_lag_lease=None,
                ),
                streams={},
                workers=tuple(self._worker(name) for name in self._names),
                leases=leases,
                moves=tuple(
                    MoveView(ago_s=now_s - at_s, lease_key=shard_id(shard), before=before, after=after)
                    for at_s, shard, before, after in self.moves[:20]
                ),
                findings=self.findings,
            )  # fmt: skip
        return self._view

    def _worker(self, name: str) -> WorkerView:
        mine = [n for n in self.shards if self.owner.get(n) == name and n not in self.ended]
        share = 18 + 47 * ((len(name) * 31 + sum(map(ord, name)) * 17) % 89) / 89
        return WorkerView(
            worker_id=name,
            standing="active",
            is_leader=name == self.name,
            leases=len(mine),
            incoming=sum(to == name for to in self.next_owner.values()),
            outgoing=sum(n in self.next_owner for n in mine),
            silent_leases=0,
            throughput_kbps=sum(map(self._kbps, mine)),
            metrics={"C": MetricView(average=share, limit=80)},
            last_seen_s=4.0,
            reports_to="worker_metrics_table",
            support_code=None,
        )

    def _lease(self, shard: int) -> LeaseView:
        owner, to = self.owner.get(shard), self.next_owner.get(shard)
        state: LeaseState = (
            "ended" if shard in self.ended else "no_owner" if owner is None else "handover" if to else "reading"
        )
        children = tuple(shard_id(n) for n, parents in self.parents.items() if shard in parents)
        reasons = {"ended": f"waits for clean-up: child {', '.join(children)} not started", "no_owner": "no owner"}
        return LeaseView(
            lease_key=shard_id(shard),
            stream=self._application,
            shard_id=shard_id(shard),
            state=state,
            reason=f"handover to {to}" if to else reasons.get(state),
            owner=owner,
            next_owner=to,
            lag_ms=self.lag_ms.get(shard),
            lag_ms_per_s=None,
            checkpoint="SHARD_END" if state == "ended" else "49650000000000000000000000000000000000",
            checkpoint_age_s=None,
            unchanged_s=1.0,
            pending_checkpoint=None,
            throughput_kbps=self._kbps(shard),
            owner_switches=0,
            writes_per_s=0.5,
            counter=100,
            counter_still_s=0.5,
            state_s=12.0,
            parents=tuple(map(shard_id, self.parents.get(shard, ()))),
            children=children,
            hash_key_range=(str(shard * 10**30), str((shard + 1) * 10**30 - 1)),
        )


def _base_kbps(shard: int) -> float:
    return 40 + 160 * ((shard * 7919) % 101) / 101
