"""Which streams the leader looks after, and whose leases it deletes (several streams only).

A stream is tracked from its first shard sync: its leases are audited. One that is not configured any more is a former
stream. What becomes of its leases is configured, and unless they are deleted they are read on, as in Java. Leases of a
stream that Kinesis does not know any more are deleted at once if it is not configured.

A stream that was deleted and created anew under its name has another creation epoch, hence another identifier: it is
another stream, and the old one has gone.
Source: KCL 3.5.1 MultiStreamTracker in Scheduler, FormerStreamsLeasesDeletionStrategy; spec shard-sync 8.3 to 8.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from kcl_host.model.shard import StreamIdentifier

Strategy = Literal[
    "NO_STREAMS_LEASES_DELETION",
    "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION",
    "PROVIDED_STREAMS_DEFERRED_DELETION",
]
Streams = AbstractSet[StreamIdentifier]


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`sync` are new and become tracked when their sync succeeds; `delete` are those whose leases have to go now.

    `tracked` and `former` (monotonic seconds of the first sighting) are the state before either was done.
    """

    sync: tuple[StreamIdentifier, ...]
    delete: tuple[StreamIdentifier, ...]
    tracked: frozenset[StreamIdentifier]
    former: Mapping[StreamIdentifier, float]


def plan_streams(
    *,
    configured: Streams,
    tracked: Streams,
    in_table: Streams | None,
    gone: Streams,
    former: Mapping[StreamIdentifier, float],
    strategy: Strategy,
    provided: Streams,
    wait_s: float,
    now_s: float,
) -> StreamPlan:
    """One look of the leader.

    `configured` are the streams to read, as identified last. `in_table`: whose leases exist, to be given when this
    worker has just come to lead, else None. `gone` are streams known to be deleted. `former` says since when a stream
    is missed; that is in the memory of a leader only, so a new one starts to wait anew.
    """
    if in_table is not None:
        tracked = (tracked & configured) | in_table
    missing = tracked - configured
    leaving: Streams = frozenset()
    if strategy == "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION":
        leaving = missing
    elif strategy == "PROVIDED_STREAMS_DEFERRED_DELETION":
        leaving = missing & provided
    else:
        tracked = tracked - missing
    since_s = {stream: former.get(stream, now_s) for stream in leaving | former.keys() if stream not in configured}
    due = {stream for stream, seen_s in since_s.items() if now_s - seen_s >= wait_s} | (gone - configured)
    return StreamPlan(
        sync=tuple(sorted(configured - tracked, key=str)),
        delete=tuple(sorted(due, key=str)),
        tracked=frozenset(tracked - due),
        former=since_s,
    )


def identify(
    configured: Mapping[StreamIdentifier, StreamIdentifier | None],
    before: Mapping[StreamIdentifier, StreamIdentifier],
    known: Streams,
) -> tuple[frozenset[StreamIdentifier], frozenset[StreamIdentifier]]:
    """(streams to read, streams known to be deleted).

    `configured` has for each stream as it is given (its name, with or without account and creation epoch) what Kinesis
    says it is now, None when there is no such stream at present or no answer; `before` what it said last. One that
    cannot be identified now stays what it is among the `known`, those that are tracked or have leases. Only a stream
    that Kinesis itself has named before, and names no more, is known to be deleted: epochs in the table may be any
    number that an application of Java's chose.
    """
    now = {stream for stream in configured.values() if stream is not None}
    waiting = {
        stream for stream in known for given, found in configured.items() if found is None and _is(given, stream)
    }
    gone = {was for given, was in before.items() if (found := configured.get(given)) is not None and found != was}
    return frozenset(now | waiting), frozenset(gone - now)


def _is(given: StreamIdentifier, stream: StreamIdentifier) -> bool:
    return given.name == stream.name and given.account in (None, stream.account) and given.epoch in (None, stream.epoch)


def earlier_namesakes(configured: Streams, known: Streams) -> frozenset[StreamIdentifier]:
    """Streams with leases that have name and account of a configured one, but were created before it."""
    created = {(stream.account, stream.name): stream.epoch or 0 for stream in configured}
    return frozenset(
        stream for stream in known - configured if (stream.epoch or 0) < created.get((stream.account, stream.name), 0)
    )
