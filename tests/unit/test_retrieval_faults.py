"""What both ways of reading a shard must stand up to: every user record once, in order, whatever happens.

One reader on tests/fakes/stream.py and tests/fakes/subscriber.py; DESIGN.md 4 and 4.1, spec retrieval 2, 3.7, 4.5, 7.
"""

from __future__ import annotations

import logging
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_host.decisions.deaggregation import MAX_USER_RECORDS
from kcl_host.errors import KclHostError
from tests.fakes.fault import THROTTLED, TIMED_OUT, Fault, no_faults
from tests.fakes.subscriber import EMPTY_EVENTS, EVENT_FAULTS, EventFault
from tests.unit.retrieval_rig import LATEST, MODES, SHARD_0, TRIM_HORIZON, Mode, Reader, at

both = pytest.mark.parametrize("mode", MODES)


def fail(reader: Reader, fault: Fault, for_s: float) -> list[float]:
    """Every request for so long; the times of all requests from now on."""
    until_s, asked = reader.clock.now_s + for_s, list[float]()

    def plan(operation: str, key: str) -> Fault | None:
        asked.append(reader.clock.now_s)
        return fault if reader.clock.now_s < until_s else None

    reader.stream.faults = reader.fanout.faults = plan
    return asked


def break_subscription(reader: Reader, fault: EventFault = "lost") -> None:
    """With the next event; only once."""
    faults = [fault]
    reader.fanout.event_faults = lambda shard_id: faults.pop() if faults else None


def finish(reader: Reader) -> None:
    """Nothing fails any more, and everything is read."""
    reader.stream.faults = reader.fanout.faults = no_faults
    reader.fanout.event_faults = lambda shard_id: None
    reader.run(120)
    assert reader.seen == reader.produced


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["action"] for record in caplog.records if record.name.startswith("kcl_host.retrieval")]


# Aggregates


@both
@pytest.mark.parametrize("restarted_at", [None, 0, MAX_USER_RECORDS - 1, MAX_USER_RECORDS + 7])
def test_the_iterator_or_subscription_ends_while_an_aggregate_is_handed_over(
    mode: Mode, restarted_at: int | None
) -> None:
    reader = Reader(mode, bounds=(1, 30_000, 8 * 2**20))
    reader.put(users=2 * MAX_USER_RECORDS + 5)
    reader.put()
    reader.open()
    reader.run(1, taking=False)
    reader.take(1)
    reader.run(400, taking=False)
    if restarted_at is not None:
        reader.take(1)
        reader.run(400, taking=False)
        reader.restart_child(at(reader.produced[restarted_at]))
    reader.put(users=3)
    finish(reader)


# Throttling


@both
def test_throttled_for_a_minute(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reader = Reader(mode)
    reader.put()
    reader.open()
    reader.run(20)
    break_subscription(reader)
    asked = fail(reader, THROTTLED, 60)
    reader.put(users=3)
    reader.run(75)
    throttled = [b - a for a, b in pairwise(asked[:6])]
    assert throttled[0] < throttled[1] < throttled[2] and max(throttled) <= 15.0
    assert len(asked) <= 20
    finish(reader)
    said = [action for action in actions(caplog) if action not in ("consumer_found", "consumer_registered")]
    kind = "reads_throttled" if mode == "POLLING" else "subscription_throttled"
    assert said.count(kind) == 1 and said.count("reads_recovered") == 1 and said[-1] == "reads_recovered"


def test_the_read_budget_is_kept_while_everything_fails() -> None:
    """Five reads a second are all there is for everybody who reads the shard."""
    reader = Reader("POLLING")
    reader.open()
    for fault in (THROTTLED, TIMED_OUT, None):
        asked = fail(reader, fault or Fault(), 30)
        for _ in range(20):
            reader.run(0.3)
            reader.restart_child(TRIM_HORIZON)
        assert all(later - earlier >= 1.0 - 1e-6 for earlier, later in zip(asked, asked[6:], strict=False))


@both
@pytest.mark.parametrize("with_last", [False, True])
def test_a_shard_that_ends_while_throttled(mode: Mode, with_last: bool) -> None:
    reader = Reader(mode)
    reader.put()
    reader.open()
    reader.run(20)
    break_subscription(reader)
    fail(reader, THROTTLED, 60)
    if with_last:
        reader.put(users=2)
    children = reader.stream.split(SHARD_0)
    reader.run(59)
    assert not reader.is_at_end
    finish(reader)
    assert reader.is_at_end and tuple(child.shard_id for child in reader.children) == children


# Retention, the consumer


@both
def test_retention_passes_the_checkpoint(mode: Mode) -> None:
    reader = Reader(mode)
    for _ in range(4):
        reader.put(users=3)
    reader.open()
    reader.run(20)
    checkpoint = at(reader.produced[4])
    reader.clock.advance(100)
    reader.stream.trim(50)
    kept = reader.produced[:5]
    reader.produced = list(kept)
    reader.put(users=2)
    reader.open(checkpoint)
    finish(reader)


@both
def test_retention_passes_what_was_fetched_last(mode: Mode) -> None:
    reader = Reader(mode, bounds=(1, 10, 1000))
    reader.put()
    reader.open()
    reader.run(400, taking=False)
    reader.stream.trim(0)
    reader.clock.advance(1)
    reader.put(users=2)
    finish(reader)


@pytest.mark.parametrize("deleting_s", [0.0, 3.0])
def test_the_consumer_is_deregistered_under_us(deleting_s: float, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader("FANOUT")
    reader.put(users=3)
    reader.open()
    reader.run(20)
    reader.put(users=3)
    reader.fanout.deregister("readers", deleting_s)
    reader.put()
    reader.run(30)
    assert reader.seen == reader.produced and not reader.is_at_end
    assert reader.fanout.requests["register_consumer"] == 2
    finish(reader)


# Nothing comes


def test_five_hundred_empty_answers() -> None:
    reader = Reader("POLLING")
    reader.open()
    reader.run(150)
    before = reader.reads
    tracemalloc.start()
    try:
        reader.run(300, taking=False)
        size = tracemalloc.get_traced_memory()[0]
        reader.run(450, taking=False)
        assert tracemalloc.get_traced_memory()[0] - size < 4_000
    finally:
        tracemalloc.stop()
    assert 495 <= reader.reads - before <= 505
    assert reader.turns <= reader.reads + 10
    reader.put()
    finish(reader)


def test_five_hundred_empty_events_and_silence_after_them() -> None:
    reader = Reader("FANOUT")
    reader.open()
    reader.run(30)
    break_subscription(reader, "empty")
    turns, requests = reader.turns, reader.reads
    reader.run(200)
    assert EMPTY_EVENTS <= reader.turns - turns <= EMPTY_EVENTS + 200 / 5 + 10
    assert reader.reads == requests
    reader.put()
    finish(reader)


@pytest.mark.parametrize("fault", EVENT_FAULTS)
def test_every_fault_of_an_event(fault: EventFault) -> None:
    reader = Reader("FANOUT")
    reader.put(users=3)
    reader.open()
    reader.run(30)
    break_subscription(reader, fault)
    reader.put(users=3)
    reader.run(10)
    reader.put()
    finish(reader)


# Clocks


@pytest.mark.parametrize("skew_s", [-60.0, 0.0, 60.0, 240.0])
def test_latest_whose_iterator_expires_before_the_first_record(skew_s: float) -> None:
    """The place of LATEST cannot be asked for again, and the moment is known by our own clock only."""
    reader = Reader("POLLING", skew_s=skew_s)
    reader.clock.advance(1000)
    reader.open(LATEST)
    fail(reader, TIMED_OUT, 320)
    reader.run(1)
    reader.put(users=3)
    reader.run(330)
    reader.put()
    finish(reader)


@pytest.mark.parametrize("skew_s", [-60.0, 0.0, 60.0, 240.0])
def test_latest_whose_subscription_has_to_wait_for_the_previous_one(skew_s: float) -> None:
    reader = Reader("FANOUT", skew_s=skew_s)
    reader.open(LATEST)
    reader.clock.advance(1.5)
    reader.open(LATEST)
    assert reader.fanout.requests["subscribe"] == 2 and "in_use" in repr(reader.source)
    reader.put(users=3)
    reader.run(2)
    reader.put()
    finish(reader)


@both
@pytest.mark.parametrize("skew_s", [-60.0, 60.0])
def test_a_checkpoint_does_not_care_about_clocks(mode: Mode, skew_s: float) -> None:
    reader = Reader(mode, skew_s=skew_s)
    reader.put(users=3)
    reader.open()
    reader.run(20)
    fail(reader, TIMED_OUT, 400)
    break_subscription(reader)
    reader.put(users=3)
    reader.run(410)
    reader.restart_child(at(reader.produced[1]))
    finish(reader)


# From one way of reading to the other


@pytest.mark.parametrize("modes", [MODES, MODES[::-1]], ids=["to fan-out", "to polling"])
@pytest.mark.parametrize("done", range(7))
def test_the_next_owner_reads_in_another_way(modes: tuple[Mode, Mode], done: int) -> None:
    reader = Reader(modes[0])
    reader.put()
    reader.put(users=4)
    reader.open()
    reader.run(20)
    reader.put(users=2)
    reader.run(20)
    reader.open(at(reader.seen[done]), modes[1])
    assert len(reader.seen) == done + 1
    reader.put(users=2)
    finish(reader)


# Everything at once

Step = tuple[str, float]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "read", "wait"]), st.floats(0, 1)),
        st.tuples(
            st.sampled_from([*EVENT_FAULTS, "throttled", "timed_out", "refused", "answer_lost"]), st.floats(0, 1)
        ),
        st.tuples(st.sampled_from(["restart", "hand over", "other mode", "deregister"]), st.floats(0, 1)),
    ),
    max_size=30,
)


def take_over(reader: Reader, checkpoint_at: int, mode: Mode) -> None:
    checkpoint = at(reader.seen[checkpoint_at]) if reader.seen else TRIM_HORIZON
    for _ in range(100):
        try:
            return reader.open(checkpoint, mode)
        except KclHostError:
            reader.clock.advance(1.1)  # As the consumer of a shard does.
    raise AssertionError("the shard cannot be opened")


@settings(max_examples=150)
@given(st.sampled_from(MODES), st.sampled_from([(4, 30_000, 8 * 2**20), (1, 3, 10)]), st.booleans(), steps)
def test_every_record_once_and_in_order(
    mode: Mode, bounds: tuple[int, int, int], ends: bool, course: list[Step]
) -> None:
    """`seen` is what a child has seen up to its checkpoint, and after it since the last restart."""
    reader = Reader(mode, bounds=bounds)
    reader.put(users=2)
    take_over(reader, 0, mode)
    for step, much in course:
        reached = int(much * (len(reader.seen) - 1)) if reader.seen else 0
        match step:
            case "put":
                reader.put(users=int(much * 6))
            case "read":
                reader.run(20 * much)
            case "wait":
                reader.run(400 * much, taking=False)
            case "restart":
                reader.restart_child(at(reader.seen[reached]) if reader.seen else TRIM_HORIZON)
            case "hand over":
                take_over(reader, reached, reader.mode)
            case "other mode":
                take_over(reader, reached, MODES[MODES.index(reader.mode) - 1])
            case "deregister":
                reader.fanout.deregister("readers", 3 * much)
            case "throttled" | "timed_out" | "refused" | "answer_lost":
                fail(reader, Fault(step), 60 * much)
            case _:
                break_subscription(reader, step)  # type: ignore[arg-type]
    if ends:
        reader.stream.split(SHARD_0)
    finish(reader)
    assert reader.is_at_end == ends
    # A subscription whose acceptance never arrived is nobody's.
    if (reader.mode == "POLLING" or ends) and "answer_lost" not in dict(course):
        assert all(calls.live is None for calls in reader.fanout.calls.values())
