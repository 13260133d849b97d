"""A shard consumer as people see it: in the demo's table, in the status of the worker."""

from __future__ import annotations

import msgspec

from kcl_host.model.sequence import ExtendedSequenceNumber


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer as people see it. `child` is STARTING, RUNNING, BACKOFF, FATAL or empty when there is none.

    `last_error` is what last went wrong with the child or a step, until the checkpoint moves.
    """

    lease_key: str
    shard_id: str
    parent_shard_ids: tuple[str, ...]
    state: str
    child: str
    child_pid: int | None
    child_failures: int
    records: int
    payload_bytes: int
    millis_behind_latest: int | None
    checkpoint: ExtendedSequenceNumber | None
    checkpoint_at_s: float | None
    last_error: str
