"""Turns of a Periodic. Everything waits on events with a limit that is never reached when the code is right."""

from __future__ import annotations

import threading

from kcl_host.errors import TwinWorker, Unavailable
from kcl_host.runtime.threads import Periodic, SystemThreads

LIMIT_S = 10.0


class Turns:
    """Plays back one outcome per turn: seconds, None (done) or an error."""

    def __init__(self, *outcomes: float | Exception | None) -> None:
        self._outcomes = list(outcomes)
        self.taken = 0
        self.all_taken = threading.Event()

    def __call__(self) -> float | None:
        outcome = self._outcomes[self.taken]
        self.taken += 1
        if self.taken == len(self._outcomes):
            self.all_taken.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _never(where: str, error: BaseException) -> None:
    raise AssertionError(where) from error


def test_done_ends_the_thread() -> None:
    turns = Turns(0.0, 0.0, None)
    periodic = Periodic("t", turns, threads=SystemThreads(1), on_fatal=_never).start()
    assert periodic.join(LIMIT_S)
    assert turns.taken == 3


def test_a_poke_brings_the_next_turn_now() -> None:
    turns = Turns(3600.0, None)
    periodic = Periodic("t", turns, threads=SystemThreads(1), on_fatal=_never).start()
    periodic.poke()
    assert periodic.join(LIMIT_S)


def test_the_first_turn_waits_when_it_is_told_to() -> None:
    turns = Turns(None)
    periodic = Periodic("t", turns, threads=SystemThreads(1), on_fatal=_never, first_in_s=3600.0).start()
    assert not turns.all_taken.is_set()
    periodic.poke()
    assert periodic.join(LIMIT_S)
    assert turns.taken == 1


def test_stop_ends_a_long_pause() -> None:
    turns = Turns(3600.0)
    periodic = Periodic("t", turns, threads=SystemThreads(1), on_fatal=_never).start()
    assert turns.all_taken.wait(LIMIT_S)
    periodic.stop()
    assert periodic.join(LIMIT_S)


def test_an_error_that_may_pass_is_survived() -> None:
    turns = Turns(Unavailable("gone for a moment"), None)
    periodic = Periodic("t", turns, threads=SystemThreads(1), on_fatal=_never, retry_s=0.0).start()
    assert periodic.join(LIMIT_S)
    assert turns.taken == 2


def test_errors_named_fatal_and_bugs_are_reported_once_and_end_the_turns() -> None:
    for error in (TwinWorker("twin"), ZeroDivisionError("bug")):
        seen: list[tuple[str, BaseException]] = []
        periodic = Periodic(
            "t",
            Turns(error),
            threads=SystemThreads(1),
            on_fatal=lambda *a, seen=seen: seen.append(a),
            fatal=(TwinWorker,),
        ).start()
        assert periodic.join(LIMIT_S)
        assert seen == [("t", error)]


def test_a_thread_never_started_can_be_joined() -> None:
    assert Periodic("t", Turns(None), threads=SystemThreads(1), on_fatal=_never).join(0.0)
