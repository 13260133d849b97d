"""What a run of many seeds must have met at least once; whatever is missing was not tested, and fails the run."""

from __future__ import annotations

from collections import Counter

from kcl_host.decisions.consumer_state import TRANSITIONS
from tests.fakes.subscriber import EVENT_FAULTS
from tests.simulation.disturbances import KINDS, OPERATIONS

SERVICES = ("lease", "coordinator", "metrics", "stream", "fanout")
TROUBLES = ("throttled", "timed_out", "answer_lost", "slow")
WRITES = ("create", "assign", "initiate_handoff", "evict", "checkpoint", "write_child_shards", "delete")
ACTIONS = (
    "assignment_abandoned",
    "assignment_failed",
    "assignment_refused",
    "checkpoint_failed",
    "child_backoff",
    "child_failed",
    "child_fatal",
    "child_initialized",
    "child_leases_created",
    "consumer_found",
    "consumer_gone",
    "consumer_registered",
    "discovery_failed",
    "handover_forced",
    "leader_acquired",
    "leader_heartbeat_failed",
    "leader_lost",
    "leader_released",
    "lease_assigned",
    "lease_cleanup_failed",
    "lease_deleted",
    "lease_handed_over",
    "lease_handed_over_failing",
    "lease_lost",
    "lease_released",
    "lease_taken",
    "reads_recovered",
    "reads_throttled",
    "reads_unavailable",
    "renewal_failed",
    "shard_end_given_up",
    "shard_ended",
    "shard_gone",
    "metadata_format",
    "step_failed",
    "stop_step_failed",
    "subscription_in_use",
    "subscription_invalid",
    "subscription_lost",
    "subscription_refused",
    "subscription_silent",
    "subscription_taken_over",
    "subscription_throttled",
    "table_migration",
    "table_migration_status",
)
OTHERS = (
    "kill -9",
    "SIGSTOP",
    "TERM",
    "killed after TERM",
    "leader killed",
    "leader killed in a pass",
    "leader stopped in a pass",
    "child crashes",
    "child hangs",
    "child is slow",
    "child checkpoints before a failed checkpoint",
    "checkpoint answered ShutdownException",
    "checkpoint answered ThrottlingException",
    "checkpoint answered KinesisClientLibDependencyException",
    "exit TwinWorker",
    "records expired unread",
    "retrieval mode changed",
    "subscribe within a second",
    "subscribe within five seconds",
    "subscription ended with its shard",
    "subscription renewed",
    "subscription taken over",
    "exit DrainDeadlineExceeded",
    "exit FleetRolledBack",
    "at rest in 2.x mode",
    "migration complete",
)


def expected() -> list[str]:
    """Names of everything that must be met, as the fleet counts it."""
    transitions = [
        f"consumer {state.name} -> {to.name}"
        for state, row in TRANSITIONS.items()
        for to in dict.fromkeys(row.values())
        if to is not state
    ]
    return [
        *(f"disturbance {kind}" for kind in sorted(KINDS)),
        *(f"{kind} {service}" for kind in TROUBLES for service in SERVICES),
        *(f"{what} in {operation}" for what in ("stopped", "killed", "failed") for operation in OPERATIONS),
        *(f"event {fault}" for fault in EVENT_FAULTS),
        *transitions,
        *(f"write {operation}" for operation in WRITES),
        *(f"log {action}" for action in ACTIONS),
        *OTHERS,
    ]


def missing(counts: Counter[str]) -> list[str]:
    return [name for name in expected() if not counts[name]]
