"""The leader lock: held, or competed for (spec coordination 2).

After the crash of a leader with our settings a follower sees its last version within one look (heartbeat / 1.9 = 1.75
s), knows two looks later that it stands still (5.3 s), and takes it failoverTimeMillis after the first (11.8 s). What
that costs: 2,052 read units per follower and hour; Java's, with a lock that outlives its holder by two minutes, 240.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from kcl_host.config.settings import LockSettings
from kcl_host.decisions.election import (
    HeldLock,
    LockObservation,
    Wait,
    is_ours,
    is_stalled,
    judge_lock,
    look_again_in_s,
)
from kcl_host.errors import RetryLater
from kcl_host.instruments import NOTHING, Instruments
from kcl_host.model.state import LeaderLock
from kcl_host.ports import Clock, CoordinatorState, NewLock

_log = logging.getLogger(__name__)

RELEASE_TRIES: Final = 2
RETRY_S: Final = 1.0
"""After a heartbeat without an answer: a request is one attempt, and the lock must not hang on three of them."""
JUST_AFTER_S: Final = 0.05
"""An observed lock expires strictly later than its duration; the turn that waits for it comes so much later."""


class Election:
    """Holds the leader lock or competes for it; a turn per heartbeat, two while following, and one at expiry.

    `on_change` is called after a turn, by its thread, when this worker has come to lead, or not to, or when the lock
    of another has stalled, or goes on: the assigner has something to do that should not wait for its next turn.

    `_lock` guards everything below it. The table call is made under it: two turns at once would refute each other.
    The age of the lock is taken before each request, so that we stop to believe in it before anybody else does.
    """

    def __init__(
        self,
        table: CoordinatorState,
        worker_id: str,
        settings: LockSettings,
        clock: Clock,
        new_version: Callable[[], str],
        new_lock: NewLock = threading.Lock,
        on_change: Callable[[], object] = lambda: None,
        instruments: Instruments = NOTHING,
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._settings = settings
        self._clock = clock
        self._new_version = new_version
        self._on_change = on_change
        self._instruments = instruments
        self._situation = (False, False)
        """As after the last turn: whether this worker leads, and whether the lock of another is stalled."""
        self._holder_said: str | None = None
        self._lock = new_lock()
        self._held: HeldLock | None = None
        self._seen: LockObservation | None = None
        self._attempts: dict[str, float] = {}
        """Versions that may stand in the table though no answer said so, with the monotonic time before each try."""
        self._paused_until_s = -math.inf

    def __repr__(self) -> str:
        return f"<Election {self._worker_id} {'leads' if self.is_leader() else 'follows'}>"

    def is_leader(self) -> bool:
        """True while our lock is certainly still ours; to be asked before every write that only a leader may make."""
        held = self._held
        return held is not None and held.is_valid(self._clock.monotonic())

    def may_write(self) -> bool:
        """True while a write that only a leader may make, sent now, takes effect before our lock is anybody's."""
        held = self._held
        return held is not None and held.outlives_a_request(self._clock.monotonic())

    def lock_is_stalled(self) -> bool:
        """True when this worker follows and the holder of the lock seems to have missed a heartbeat."""
        return is_stalled(self._seen, self._settings.heartbeat_s)

    def run_once(self) -> float:
        try:
            return self._turn()
        finally:
            before, self._situation = self._situation, (self.is_leader(), self.lock_is_stalled())
            self._instruments.leadership_checked(leads=self._situation[0])
            if self._situation != before:
                self._on_change()

    def _turn(self) -> float:
        began_s = self._clock.monotonic()
        due_s = began_s + self._settings.heartbeat_s
        with self._lock:
            if self._held is not None:
                if not self._heartbeat(self._held):
                    due_s = min(due_s, self._clock.monotonic() + RETRY_S)
            elif self._clock.monotonic() >= self._paused_until_s:
                self._compete()
                due_s = began_s + look_again_in_s(self._seen, self._settings.heartbeat_s)
                if self._seen is not None:
                    expires_s = self._seen.first_seen_s + self._seen.lease_duration_s
                    due_s = min(due_s, expires_s + JUST_AFTER_S)
        return max(0.0, due_s - self._clock.monotonic())

    def release(self, pause_s: float = math.inf) -> None:
        """Deletes the lock item if it is ours, and stays out of the election for `pause_s`, by default for good."""
        with self._lock:
            self._release()
            self._paused_until_s = self._clock.monotonic() + pause_s

    def change_table(self, change: Callable[[], None]) -> None:
        """Deletes the lock item if it is ours, and competes from then on where `change` has the requests go.

        No turn is between the two: a lock taken in the meantime would be forgotten where it is.
        """
        with self._lock:
            self._release()
            self._attempts.clear()
            change()

    def _release(self) -> None:
        held, self._held, self._seen = self._held, None, None
        if held is not None:
            self._attempts[held.record_version_number] = held.taken_at_s  # Until it is certain to be gone.
        for _ in range(RELEASE_TRIES):
            try:
                if self._delete(held):
                    _log.info("leader lock released", extra={"action": "leader_released"})
                self._attempts.clear()
                break
            except RetryLater as error:
                _log.warning(
                    "leader lock not released, it may have to expire",
                    extra={"action": "leader_release_failed", "error": str(error)},
                )

    def _delete(self, held: HeldLock | None) -> bool:
        """Deletes our item, also one that bears a version whose answer was lost."""
        if held is not None and self._table.release_lock(self._item(held.record_version_number)):
            return True
        if not self._attempts:
            return False
        found = self._table.read_lock()
        return found is not None and self._is_attempt(found) and self._table.release_lock(found)

    def _item(self, version: str) -> LeaderLock:
        return LeaderLock(
            owner_name=self._worker_id,
            lease_duration_ms=round(self._settings.lease_duration_s * 1000),
            record_version_number=version,
        )

    def _heartbeat(self, held: HeldLock) -> bool:
        """False when the outcome is open."""
        version, before_s = self._new_version(), self._clock.monotonic()
        if not held.is_valid(before_s):
            self._lose("not renewed in time")
            self._attempts[held.record_version_number] = held.taken_at_s
            return True
        self._attempts[version] = before_s
        try:
            if self._table.heartbeat_lock(self._item(version), held.record_version_number):
                self._hold(version)
            elif not self._adopt(self._table.read_lock()):
                self._lose("taken by another worker")
        except RetryLater as error:
            _log.warning("leader heartbeat failed", extra={"action": "leader_heartbeat_failed", "error": str(error)})
            return False
        return True

    def _compete(self) -> None:
        found = self._table.read_lock()
        if self._adopt(found):
            return
        verdict = judge_lock(found, self._seen, self._clock.monotonic(), self._worker_id)
        if isinstance(verdict, Wait):
            self._follow(verdict.observation)
            return
        version = self._new_version()
        self._attempts[version] = self._clock.monotonic()
        if self._table.acquire_lock(self._item(version), verdict.over):
            self._hold(version)
        else:
            del self._attempts[version]

    def _follow(self, seen: LockObservation) -> None:
        self._seen = seen
        if seen.owner_name != self._holder_said:
            self._holder_said = seen.owner_name
            _log.info(
                "another worker holds the leader lock; should it be gone, nobody leads until the lock has expired",
                extra={
                    "action": "leader_lock_foreign",
                    "owner": seen.owner_name,
                    "longest_wait_s": round(seen.lease_duration_s, 1),
                },
            )

    def _adopt(self, found: LeaderLock | None) -> bool:
        """Takes the lock for ours when it carries a version whose answer was lost, unless it is too old by now."""
        if found is None or not self._is_attempt(found):
            return False
        if not self._as_held(found.record_version_number).is_valid(self._clock.monotonic()):
            return False
        self._hold(found.record_version_number)
        return True

    def _is_attempt(self, found: LeaderLock) -> bool:
        return any(is_ours(found, self._worker_id, version) for version in self._attempts)

    def _hold(self, version: str) -> None:
        if self._held is None:
            _log.info("this worker leads", extra={"action": "leader_acquired"})
        self._held = self._as_held(version)
        self._attempts.clear()
        self._seen = self._holder_said = None

    def _as_held(self, version: str) -> HeldLock:
        return HeldLock(
            record_version_number=version,
            duration_s=self._settings.lease_duration_s,
            taken_at_s=self._attempts[version],
        )

    def _lose(self, reason: str) -> None:
        self._held = None
        self._attempts.clear()
        _log.warning("leader lock lost", extra={"action": "leader_lost", "reason": reason})
