"""The state of a worker in its log, on request (USR1): what it holds and waits for, and where each thread is.

One line for the worker, one for each lease held or consumed, one for each thread; so it can be read, filtered and sent
on as all of the log can. There is nothing in it that a record, a key of the configuration or the environment says: of a
frame of a thread only its place in the code.
"""

from __future__ import annotations

import logging
import resource
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from kcl_host.coordination.held_leases import HeldLease
from kcl_host.runtime.consumer_status import ConsumerStatus

_log = logging.getLogger(__name__)

FRAMES: Final = 16
"""Of each thread, the innermost."""
_ROOT: Final = Path(__file__).parents[2]


def write_state(
    worker: Mapping[str, object],
    held: Iterable[HeldLease],
    consumers: Iterable[ConsumerStatus],
    queues: Mapping[str, str],
    now_s: float,
) -> None:
    """`worker` are facts about all of it, `queues` what waits for the child of each lease key, in words.

    `now_s`: the worker's monotonic time. For any thread; none of the worker's is waited for.
    """
    by_key = {one.lease.lease_key: one for one in held}
    statuses = {status.lease_key: status for status in consumers}
    threads = {thread.ident: thread for thread in threading.enumerate()}
    _log.info(
        "state of the worker",
        extra={
            "action": "state_of_worker",
            **worker,
            "leases_held": len(by_key),
            "consumers": len(statuses),
            "threads": len(threads),
            "largest_memory_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "cpu_s": round(time.process_time(), 1),
        },
    )
    for lease_key in sorted(by_key.keys() | statuses.keys()):
        facts = {**_of_held(by_key.get(lease_key), now_s), **_of_consumer(statuses.get(lease_key))}
        facts["queue"] = queues.get(lease_key)
        _log.info("state of a lease", extra={"action": "state_of_lease", "lease_key": lease_key, **facts})
    for ident, frame in sorted(sys._current_frames().items()):
        thread = threads.get(ident)
        name = thread.name if thread else f"not Python's, {ident}"
        extra = {"action": "state_of_thread", "thread_of": name, "stack": _places(frame)}
        _log.info("state of a thread", extra=extra)


def _of_held(held: HeldLease | None, now_s: float) -> dict[str, object]:
    if held is None:
        return {"held": False}
    lease = held.lease
    return {
        "held": True,
        "counter": lease.lease_counter,
        "renewed_ago_s": round(now_s - held.last_renewed_s, 1),
        "next_owner": lease.lease_owner if lease.is_handover_pending else None,
        "throughput_kbps": lease.throughput_kbps,
    }


def _of_consumer(status: ConsumerStatus | None) -> dict[str, object]:
    if status is None:
        return {"state": "none"}
    return {
        "child_pid": status.child_pid,
        "state": status.state,
        "child": status.child or None,
        "child_failures": status.child_failures,
        "records": status.records,
        "behind_ms": status.millis_behind_latest,
        "checkpoint": status.checkpoint,
        "last_error": status.last_error or None,
    }


def _places(frame: FrameType | None) -> str:
    """`file:line function` from the innermost outwards."""
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        path = Path(code.co_filename)
        name = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
        places.append(f"{name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(places)
